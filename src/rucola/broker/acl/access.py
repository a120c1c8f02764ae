"""Access control of one broker: its accounts, their files, and the guard that uses them."""

from __future__ import annotations

import asyncio
import socket

from rucola.broker.acl.auth_manager import AuthManager
from rucola.broker.acl.former_members import FormerMembers
from rucola.broker.acl.freshness import Freshness
from rucola.broker.acl.guard import AccessGuard
from rucola.broker.acl.lite_name_quota import LiteNameQuota
from rucola.broker.acl.message_topic import topic_of
from rucola.broker.acl.name_quota import NameQuota
from rucola.broker.acl.permission import Account, AclSnapshot
from rucola.broker.acl.plain_file import is_weak_secret
from rucola.broker.acl.plain_manager import PlainPermissionManager
from rucola.broker.acl.senders import AccountSenders
from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.config import BrokerConfig, credentials
from rucola.errors import ConfigError, FormatError
from rucola.formats.message import decode_message
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.store.log.cold_read import ColdRecords
from rucola.store.message_store import MessageStore

RELOAD_INTERVAL_S = 1.0
"""Seconds between two checks of the files; RocketMQ checks them every 5 s."""


class BrokerAccess:
    """Accounts and guard of one broker. Call ``load`` before the port is opened, and ``reload`` at intervals
    afterwards.

    Args:
        home: the directory that contains ``conf``.

    Raises:
        ConfigError: the secret of the cluster's own servers is easy to guess.
    """

    def __init__(self, config: BrokerConfig, files: Files, clock: Clock, store: MessageStore, home: str) -> None:
        self._store = store
        self._home = home
        self._initial_user = config.init_authentication_user
        self._inner = _inner_account(config)
        self._seen: AclSnapshot | None = None
        self._snapshot = AclSnapshot({})
        self.accounts = PlainPermissionManager(files, home, config.insecure, clock.wall_ms)
        self.users: AuthManager | None = None
        if config.authentication_enabled:
            self.users = AuthManager(files, store.root, config.authorization_enabled, config.insecure)
        self.quota = NameQuota(config.auto_create_per_account_max)
        self.lite_quota = LiteNameQuota(config, clock.monotonic)
        hosts = (config.client_host, socket.gethostname())
        self.freshness = Freshness(clock, hosts, config.acl_signed_addresses)
        self.guard = AccessGuard(
            self.snapshot, self._topic_at, clock, self.freshness, config.insecure, config.acl_require_v2, self.quota
        )
        self.senders = AccountSenders(self.snapshot, lambda: self.guard.account, self.guard.serve, clock.monotonic)

    @property
    def user_accounts(self) -> AuthManager:
        """The users, for requests that exist only with them."""
        assert self.users is not None
        return self.users

    def load(self) -> None:
        """Reads the ACL files. ``load_users`` reads the users.

        Raises:
            ConfigError: an ACL file is invalid, or there is none. A broker without accounts would refuse every request.
            DiskError: a file cannot be read.
        """
        if self.users is not None:
            return
        try:
            self.accounts.load()
        except FormatError as error:
            raise ConfigError("aclEnable", "true", f"valid files below {self._home}/conf ({error})") from None

    def load_users(self) -> None:
        """Reads users and rules from the store, which must be locked already. Raises the same errors as ``load``."""
        if self.users is not None:
            self.users.load(self._initial_user)

    @staticmethod
    def reload_interval_s() -> float:
        """Seconds between two checks of the files."""
        return RELOAD_INTERVAL_S

    async def reload(self) -> None:
        """Loads changed files, which a thread reads and parses."""
        await asyncio.to_thread(self.accounts.reload)

    def former_members(self, consumers: ConsumerManager) -> FormerMembers:
        """Removes members of consumer groups whose rights have ended."""
        return FormerMembers(self.snapshot, self.senders, consumers)

    def snapshot(self) -> AclSnapshot:
        """The current accounts or users, and that of the cluster's own servers unless one of them has its name."""
        found = self.accounts.snapshot if self.users is None else self.users.snapshot
        if found is not self._seen:
            self._seen = self._snapshot = found
            if self._inner is not None:
                accounts = {self._inner.access_key: self._inner, **found.accounts}
                self._snapshot = AclSnapshot(accounts, found.global_addresses, found.digest)
        return self._snapshot

    def _topic_at(self, physical_offset: int, cold: ColdRecords | None = None) -> str | None:
        record = self._store.message_at(physical_offset, ColdRecords() if cold is None else cold)
        if record is None:
            return None
        return topic_of(decode_message(record, unpack=False))


def _inner_account(config: BrokerConfig) -> Account | None:
    """The account of ``innerClientAuthenticationCredentials``, with which the servers of a cluster sign their requests
    to one another. As in RocketMQ, it is an administrator's.
    """
    found = credentials(config.inner_client_authentication_credentials)
    if found is None:
        return None
    if is_weak_secret(found[1], config.insecure):
        allowed = "a secret of at least 16 characters that is not well known"
        raise ConfigError("innerClientAuthenticationCredentials", "******", allowed)
    return Account(found[0], found[1].encode(), admin=True)
