"""Accounts that a server without a store reads from files, and reads again when they change."""

from __future__ import annotations

import asyncio

from rucola.broker.acl.access import RELOAD_INTERVAL_S
from rucola.broker.acl.permission import AclSnapshot
from rucola.broker.acl.plain_manager import PlainPermissionManager
from rucola.broker.acl.users_file import USERS_FILE, WatchedUsers
from rucola.broker.acl.watched_accounts import WatchedAccounts
from rucola.errors import ConfigError, FormatError
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.runtime.supervision import PeriodicWork, Supervisor


class AccountFiles:
    """The accounts in files, reloaded when they change. ``plain_accounts`` and ``broker_users`` make it.

    Args:
        watched: the files.
        option: the option that turns access control on, for errors.
        allowed: what must be there, for errors.

    Raises:
        ConfigError: the files are missing or invalid.
    """

    def __init__(self, watched: WatchedAccounts, option: str, allowed: str) -> None:
        self._watched = watched
        try:
            watched.load()
        except FormatError as error:
            raise ConfigError(option, "true", f"{allowed} ({error})") from None

    def snapshot(self) -> AclSnapshot:
        """The current accounts."""
        return self._watched.snapshot

    @property
    def failures(self) -> int:
        """Number of failed loads since start-up."""
        return self._watched.failures

    @property
    def error(self) -> str:
        """Error of the last load, after which the last good accounts are in use; empty if it succeeded."""
        return self._watched.error

    def watch(self, supervisor: Supervisor) -> PeriodicWork:
        """Starts to watch the files; a thread reads and parses changed ones."""
        loop = asyncio.get_running_loop()
        return supervisor.every(
            "reload of accounts", lambda: RELOAD_INTERVAL_S, lambda: asyncio.to_thread(self._watched.reload), loop
        )


def plain_accounts(home: str, insecure: bool, clock: Clock) -> AccountFiles:
    """The accounts in ``conf/plain_acl.yml`` and ``conf/acl`` below ``home``.

    Raises:
        ConfigError: the files are missing or invalid.
    """
    watched = PlainPermissionManager(Files(), Files().expand(home), insecure, clock.wall_ms)
    return AccountFiles(watched, "aclEnable", f"valid files below {home}/conf")


def broker_users(home: str, checked: bool) -> AccountFiles:
    """The users in ``config/rucola-auth.json`` below ``home``, as a broker keeps them in its store.

    Raises:
        ConfigError: the file is missing or invalid.
    """
    watched = WatchedUsers(Files(), Files().expand(home), checked)
    return AccountFiles(watched, "authenticationEnabled", f"a valid {home}/config/{USERS_FILE}")
