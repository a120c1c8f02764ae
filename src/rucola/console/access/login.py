"""Signing in: the brokers decide whether an account is good. The console keeps no accounts."""

from __future__ import annotations

from rucola.console.access.sessions import BrokerAccount
from rucola.console.cluster.asking import Unknown, asked, signature_refused
from rucola.console.cluster.watches import Watches, is_guarded
from rucola.errors import ConfigError


class SignInError(Exception):
    """The account was not accepted; ``args[0]`` says why, as a key of the catalogue."""


async def check_account(watches: Watches, cluster: str, account: BrokerAccount) -> None:
    """Asks the brokers of a cluster whether they know an account.

    A broker without accounts would accept any name. Therefore a broker must also refuse a request that nobody signed.

    Raises:
        SignInError: they do not know it, have no accounts, or do not answer.
    """
    try:
        watch = watches.unstarted(cluster, account)
    except ConfigError:
        raise SignInError("Account or secret is wrong.") from None
    nobody = watches.unstarted(cluster, BrokerAccount())
    try:
        guarded = await is_guarded(nobody)
        if guarded is None:
            raise SignInError("No broker answers; try again later.")
        if not guarded:
            raise SignInError("The brokers of this cluster have no accounts.")
        info = await asked(watch.at.namesrv, watch.admin.cluster_info())
        if isinstance(info, Unknown):
            raise SignInError("No broker answers; try again later.")
        addresses = [address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()]
        for address in addresses:
            answer = await asked(address, watch.admin.api.runtime_info(address))
            if not isinstance(answer, Unknown) or (answer.code is not None and not signature_refused(answer)):
                return
            if answer.code is not None:
                raise SignInError("Account or secret is wrong.")
        raise SignInError("No broker answers; try again later.")
    finally:
        await watch.close()
        await nobody.close()
