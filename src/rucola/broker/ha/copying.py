"""Follows a master: a store whose log is a copy, and the connection that fills it.

``rucola replica`` and a broker with ``brokerRole=SLAVE`` share it. What they do with the records, and which tables they
copy, is theirs. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ssl import SSLContext

from rucola.broker.ha.master_broker import LogBounds, MasterBroker
from rucola.broker.ha.slave_client import SlaveClient
from rucola.errors import ConfigError, DiskError, DiskFullError, RemotingConnectError
from rucola.formats.ha import FIRST_BYTE, NEWEST_SEGMENT
from rucola.store.ha.slave_link import SlaveLink
from rucola.store.message_store import MessageStore
from rucola.store.results import StoreState

_TICK_S = 0.2


@dataclass(frozen=True)
class CopyRules:
    """How a store follows its master.

    Attributes:
        passes_damage: whether the copy goes on behind a record that its master has damaged.
        reports_flushed: whether the master is told what is synced; otherwise, what was received and checked.
        size_key: the option with the size of segments, for errors.
        may_begin_anywhere: whether an empty copy whose master's broker port is unknown begins at the newest segment;
            otherwise it waits.
        rejoins: whether a copy whose log parts from the master's looks for the last common record.
        tls: see ``SlaveClient``.
    """

    passes_damage: bool = True
    reports_flushed: bool = True
    size_key: str = "--segment-bytes"
    may_begin_anywhere: bool = True
    rejoins: bool = False
    tls: SSLContext | None = None


class Copying:
    """The copy of one log.

    Attributes:
        bounds: where the master's log began and ended when it was asked last; None if it was not asked.
        client: the connection.

    Args:
        store: a loaded store. If its log is empty, it is started when the first bytes come; otherwise the caller starts
            it.
        address: see ``SlaveClient``.
        master: returns the master's broker; None if its address is unknown.
        appended: called after bytes were taken.
        check_master: called before each connection; raises an error if this master must not be followed.
    """

    def __init__(
        self,
        store: MessageStore,
        address: Callable[[], str],
        master: Callable[[], MasterBroker | None],
        rules: CopyRules,
        appended: Callable[[], None],
        check_master: Callable[[MasterBroker], Awaitable[None]] | None = None,
    ) -> None:
        self.bounds: LogBounds | None = None
        self._store, self._master, self._rules, self._check_master = store, master, rules, check_master
        self._log = log = store.slave_log(rules.passes_damage)
        self._common = log.common_point() if rules.rejoins else None
        held = (lambda: store.flushed_offset) if rules.reports_flushed else (lambda: log.end_offset)
        self.client = SlaveClient(address, self._link, self._choose_start, held, appended, rules.tls)

    @property
    def end_offset(self) -> int:
        """Physical offset after the newest checked record of the copy."""
        return self._log.end_offset

    @property
    def segment_bytes(self) -> int:
        """Length of a segment."""
        return self._log.segment_bytes

    @property
    def is_empty(self) -> bool:
        """Whether the copy has no record."""
        return self._log.is_empty

    @property
    def cut_offset(self) -> int:
        """Physical offset at which the log must be cut, after ``run`` has returned."""
        assert self._common is not None
        return self._common.cut_offset

    @property
    def is_proved(self) -> bool:
        """Whether the master is the one whose log this is. If both logs are empty, nothing speaks against it."""
        bounds = self.bounds
        none_yet = bounds is not None and bounds.min_offset == bounds.max_offset and self._log.is_empty
        return none_yet or self.client.is_copying

    @property
    def behind_bytes(self) -> int | None:
        """Bytes of the master's log that the copy lacks; None if the master was not asked."""
        return None if self.bounds is None else max(self.bounds.max_offset - self.end_offset, 0)

    async def run(self) -> None:
        """Copies until it is cancelled, or until the log must be cut at ``cut_offset``. May be called again after an
        error.

        Raises:
            CopyRefusedError: the copy must not go on with this master's log.
            ConfigError: the size of segments is not the master's.
            DiskError: the disk failed or is full.
        """
        await copy_while_disk_works(self.client, self._store)

    def _link(self, start: int) -> SlaveLink:
        return SlaveLink(self._log, start, self._store.root, self._common)

    async def _choose_start(self) -> int:
        """Returns what to ask for if the copy has no record."""
        master = self._master()
        if master is not None and self._check_master is not None:
            await self._check_master(master)
        if self._common is not None and self._common.is_searching and master is not None:
            bounds = await master.log_bounds()
            self._common.bound(bounds.min_offset, bounds.max_offset)
        if not self._log.is_empty:
            return NEWEST_SEGMENT
        if master is None:
            if self._rules.may_begin_anywhere:
                return NEWEST_SEGMENT
            raise RemotingConnectError("-", "the address of the master's broker is not known yet")
        self.bounds = await master.log_bounds()
        start = self.bounds.min_offset
        if start % self._log.segment_bytes:
            allowed = f"a divisor of {start}, where the master's log begins"
            raise ConfigError(self._rules.size_key, str(self._log.segment_bytes), allowed)
        return start or FIRST_BYTE


async def copy_while_disk_works(client: SlaveClient, store: MessageStore) -> None:
    """Runs a connection's client (``SlaveClient.run``) as long as the disk of the copy takes what comes.

    Raises:
        CopyRefusedError: the copy must not go on with this master's log.
        DiskError: the disk failed or is full.
    """
    _check_disk(store)
    copying = asyncio.ensure_future(client.run())
    try:
        while not copying.done():
            await asyncio.wait((copying,), timeout=_TICK_S)
            _check_disk(store)
        copying.result()
    finally:
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)


def _check_disk(store: MessageStore) -> None:
    """Raises a ``DiskError`` when the disk does not take the copy."""
    if store.state is StoreState.IO_ERROR:
        raise DiskError(
            store.root,
            "sync",
            "the log or its queues cannot be written until a restart, see the log on standard error",
        )
    if store.lacks_space:
        raise DiskFullError(store.root, "write", "no space left for consume queues, index or the next segment")
