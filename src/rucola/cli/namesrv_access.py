"""Who may change what a name server says where the cluster has accounts: administrators, on whatever machine.

Brokers register with credentials of their own (``innerClientAuthenticationCredentials``). ``rucola up`` makes a secret
for its brokers with each start; a name server alone reads ``conf/plain_acl.yml`` like a broker. An account that is no
administrator may only read, as everybody may.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import orjson

from rucola.broker.acl.access import RELOAD_INTERVAL_S
from rucola.broker.acl.guard import AccessGuard
from rucola.broker.acl.name_quota import NameQuota
from rucola.broker.acl.permission import Account, AclSnapshot
from rucola.broker.acl.plain_manager import PlainPermissionManager
from rucola.errors import ConfigError, FormatError
from rucola.protocol.command import RemotingCommand
from rucola.protocol.signature import ACCESS_KEY
from rucola.remoting.channel import Channel
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.runtime.supervision import PeriodicWork, Supervisor

_OWN_BROKERS = "rucola-up"


class NamesrvAccess:
    """Judges requests to a name server that are not for everybody.

    Args:
        source: the accounts now; None while nobody knows them.
        insecure: take signatures that can be replayed over any connection.
        own: an account beside them.
    """

    def __init__(
        self, source: Callable[[], AclSnapshot | None], clock: Clock, insecure: bool, own: Account | None = None
    ) -> None:
        self._source = source
        self._own = {} if own is None else {own.access_key: own}
        self._seen: AclSnapshot | None = None
        self._snapshot = AclSnapshot(self._own)
        # Nothing that a name server is asked for is about a message.
        self._guard = AccessGuard(self.snapshot, _no_topic, clock, insecure, require_v2=False, quota=NameQuota(0))

    def snapshot(self) -> AclSnapshot:
        """All accounts, the own one with them."""
        found = self._source()
        if found is not None and found is not self._seen:
            self._seen = found
            self._snapshot = AclSnapshot({**found.accounts, **self._own}, found.global_addresses, found.digest)
        return self._snapshot

    def judge(self, channel: Channel, command: RemotingCommand) -> str:
        """Why ``command`` is refused, empty when an administrator sent it."""
        reason = self._guard.judge(channel, command)
        account = self.snapshot().accounts.get(command.ext_fields.get(ACCESS_KEY, ""))
        if not reason and (account is None or not account.admin):
            reason = f"access denied: request {command.code} to a name server needs an administrator"
        return reason


class AccountFiles:
    """The accounts of ``conf/plain_acl.yml`` and ``conf/acl`` below ``home``, read again when they change.

    Raises:
        ConfigError: there are no good ones.
    """

    def __init__(self, home: str, insecure: bool, clock: Clock) -> None:
        self._manager = PlainPermissionManager(Files(), Files().expand(home), insecure, clock.wall_ms)
        try:
            self._manager.load()
        except FormatError as error:
            raise ConfigError("aclEnable", "true", f"good files below {home}/conf ({error})") from None

    def snapshot(self) -> AclSnapshot:
        """The accounts now."""
        return self._manager.snapshot

    def watch(self, supervisor: Supervisor) -> PeriodicWork:
        """Take changed files from now on; reading and parsing happen in a thread."""
        loop = asyncio.get_running_loop()
        return supervisor.every(
            "reload of accounts", lambda: RELOAD_INTERVAL_S, lambda: asyncio.to_thread(self._manager.reload), loop
        )


def own_brokers() -> Account:
    """An account for the brokers of one ``up``, which nobody else knows."""
    return Account(_OWN_BROKERS, secrets.token_urlsafe(32).encode(), admin=True)


def credentials_of(account: Account) -> str:
    """The account as ``innerClientAuthenticationCredentials``."""
    return orjson.dumps({"accessKey": account.access_key, "secretKey": account.secret_key.decode()}).decode()


def _no_topic(physical_offset: int, cold: object = None) -> None:
    return None
