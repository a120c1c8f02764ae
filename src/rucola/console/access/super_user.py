"""Who may see what no rule of a broker covers: the files of stores, and queries over them."""

from __future__ import annotations

from typing import Any

from rucola.client.admin import AdminClient
from rucola.common.hosts import is_loopback, join_address
from rucola.console.cluster.asking import Unknown, by_deadline
from rucola.console.cluster.watches import is_guarded
from rucola.console.visit import NotPermittedError, Visit

_DEADLINE_S = 2.5


async def require_super_user(visit: Visit) -> None:
    """Lets through super users of all masters. On loopback, every visitor is let through if the brokers say that they
    have no accounts. Nothing is remembered: who lost the right has lost it with the next page.

    Raises:
        NotPermittedError: the visitor is no super user, may not see bodies, or the brokers do not say who he is.
    """
    if not visit.may_see_bodies:
        raise NotPermittedError("This account may not see bodies of messages.")
    if not visit.account.name:
        config = visit.config
        is_local = is_loopback(join_address(config.bind_address, 1)) and not config.insecure and not config.public_url
        if not is_local:
            raise NotPermittedError("Sign in as a super user.")
        if await is_guarded(visit.watch) is not False:
            raise NotPermittedError("Sign in as a super user; or no broker answers that could say who may see it.")
        return
    masters = [broker.address for broker in (await visit.watch.fresh()).masters]
    calls = [(one, _is_super(visit.watch.admin, one, visit.account.name)) for one in masters]
    answers = await by_deadline(calls, _DEADLINE_S)
    if not answers or not all(answer is True for answer in answers):
        raise NotPermittedError("This needs a super user of all masters.")


async def _is_super(admin: AdminClient, address: str, name: str) -> bool:
    """Whether a broker calls an account its super user, by the users of 5.x or the accounts of 4.x."""
    (user,) = await by_deadline([(address, admin.auth.user(address, name))], _DEADLINE_S)
    if isinstance(user, dict):
        return str(user.get("userType")) == "Super" and str(user.get("userStatus") or "enable") == "enable"
    (found,) = await by_deadline([(address, admin.auth.accounts(address))], _DEADLINE_S)
    accounts: Any = [] if isinstance(found, Unknown) else found.get("plainAccessConfigs")
    return any(
        isinstance(one, dict) and one.get("accessKey") == name and one.get("admin") is True for one in accounts or ()
    )
