"""Access control of a name server or controller in a cluster with accounts: only administrators may change its state.

Brokers register with credentials of their own (``innerClientAuthenticationCredentials``). ``rucola up`` creates a
secret for its brokers at each start; a separate name server reads ``conf/plain_acl.yml`` as a broker does. An account
without administrator rights may only read, as any client may.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

from rucola.broker.acl.freshness import Freshness
from rucola.broker.acl.guard import AccessGuard
from rucola.broker.acl.name_quota import NameQuota
from rucola.broker.acl.permission import Account, AclSnapshot
from rucola.common.json_library import orjson
from rucola.protocol.command import RemotingCommand
from rucola.protocol.signature import ACCESS_KEY
from rucola.remoting.channel import Channel
from rucola.runtime.clock import Clock

_OWN_BROKERS = "rucola-up"


class NamesrvAccess:
    """Accepts or refuses those requests to a name server or controller that are not open to every client.

    Args:
        source: returns the current accounts; None while they are not known.
        insecure: accept legacy signatures, which can be replayed, over any connection.
        own: the account of the name server's own brokers, in addition to the accounts of ``source``.
        addresses: see ``Freshness``.
        server: what it guards, for the reason of a refusal.
    """

    def __init__(
        self,
        source: Callable[[], AclSnapshot | None],
        clock: Clock,
        insecure: bool,
        own: Account | None = None,
        addresses: str = "",
        server: str = "a name server",
    ) -> None:
        self._server = server
        self._source = source
        self._own = {} if own is None else {own.access_key: own}
        self._seen: AclSnapshot | None = None
        self._snapshot = AclSnapshot(self._own)
        # No request to name servers and controllers refers to a message.
        freshness = Freshness(clock, (socket.gethostname(),), addresses)
        quota = NameQuota(0)
        self._guard = AccessGuard(self.snapshot, _no_topic, clock, freshness, insecure, require_v2=False, quota=quota)

    def snapshot(self) -> AclSnapshot:
        """The latest known accounts of ``source``, and ``own``."""
        found = self._source()
        if found is not None and found is not self._seen:
            self._seen = found
            self._snapshot = AclSnapshot({**found.accounts, **self._own}, found.global_addresses, found.digest)
        return self._snapshot

    def judge(self, channel: Channel, command: RemotingCommand) -> str:
        """The reason to refuse ``command``; an empty text if an administrator sent it."""
        reason = self._guard.judge(channel, command)
        account = self.snapshot().accounts.get(command.ext_fields.get(ACCESS_KEY, ""))
        if not reason and (account is None or not account.admin):
            reason = f"access denied: request {command.code} to {self._server} needs an administrator"
        return reason


def own_brokers(given: tuple[str, str] | None = None) -> Account:
    """The account of the brokers that a ``rucola up`` starts.

    Args:
        given: access key and secret that an option names; without them, the secret exists only in the processes of
            ``up``.
    """
    name, secret = given or (_OWN_BROKERS, secrets.token_urlsafe(32))
    return Account(name, secret.encode(), admin=True)


def credentials_of(account: Account) -> str:
    """The account as a value of ``innerClientAuthenticationCredentials``."""
    return orjson.dumps({"accessKey": account.access_key, "secretKey": account.secret_key.decode()}).decode()


def _no_topic(physical_offset: int, cold: object = None) -> None:
    return None
