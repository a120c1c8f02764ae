"""Access control of one broker: its accounts, their files, and the guard that judges by them."""

from __future__ import annotations

import asyncio

from rucola.broker.acl.guard import AccessGuard
from rucola.broker.acl.plain_manager import PlainPermissionManager
from rucola.broker.config import BrokerConfig
from rucola.common.key_builder import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from rucola.common.message_const import REAL_TOPIC
from rucola.errors import ConfigError, FormatError
from rucola.formats.message import decode_message
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore

RELOAD_INTERVAL_S = 1.0
"""The reference looks every 5 s."""
_STAND_INS = (SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TIMER_TOPIC)
"""Topics in which messages wait that are for another one, named by a property that only the broker writes."""


class BrokerAccess:
    """Life: ``load`` before the port is opened, ``reload_periodically`` while the broker serves.

    Args:
        home: directory that holds ``conf``.
    """

    def __init__(self, config: BrokerConfig, files: Files, clock: Clock, store: MessageStore, home: str) -> None:
        self._store = store
        self._home = home
        self.accounts = PlainPermissionManager(files, home, config.insecure, clock.wall_ms)
        self.guard = AccessGuard(
            lambda: self.accounts.snapshot, self._topic_at, clock, config.insecure, config.acl_require_v2
        )

    def load(self) -> None:
        """Read the files.

        Raises:
            ConfigError: there is no good one: a broker without accounts would refuse everybody.
            DiskError: one cannot be read.
        """
        try:
            self.accounts.load()
        except FormatError as error:
            raise ConfigError("aclEnable", "true", f"good files below {self._home}/conf ({error})") from None

    async def reload_periodically(self) -> None:
        """Take changed files; reading and parsing happen in a thread."""
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            await asyncio.to_thread(self.accounts.reload)

    def _topic_at(self, physical_offset: int) -> str | None:
        record = self._store.message_at(physical_offset)
        if record is None:
            return None
        message = decode_message(record, unpack=False)
        if message.topic in _STAND_INS:
            return message.properties.get(REAL_TOPIC)
        return message.topic
