"""A copy of a master's log in a directory of its own: registers nowhere and serves nobody.

The log is copied byte by byte, and dispatched to consume queues and index as everywhere. Where the master's broker port
is known, its tables come too. Whoever reads store directories in place (Spark, SQL, the store tools) reads the copy
while it grows.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from math import inf
from ssl import SSLContext

from rucola.broker.config_files import ConfigFiles
from rucola.broker.dispatch_scheduler import MAPS_A_TURN, ROWS_A_TURN
from rucola.broker.ha.copying import Copying, CopyRules
from rucola.broker.ha.master_broker import LogBounds, MasterBroker, MasterTables
from rucola.common.options import parse_options
from rucola.common.topic_config import TopicConfig
from rucola.errors import ConfigError, DiskError, RucolaError, StoreLockedError
from rucola.formats.segment_name import is_segment_name
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.keep_rule import KeepRule
from rucola.store.message_store import MessageStore
from rucola.store.results import StoreState

logger = logging.getLogger(__name__)
TABLES_S = 10.0
"""Pause between two copies of the master's tables, and between two lines about the progress."""
QUARANTINE_BYTES = 1 << 30
"""Default of ``quarantine_bytes_max``."""
_TICK_S = 0.2
_KEPT_FOR_EVER_H = 1 << 20


@dataclass(frozen=True)
class ReplicaOptions:
    """What to copy, and where to.

    Attributes:
        master: the master's HA port, ``host:port``.
        store: the directory of the copy.
        broker: the master's broker port, ``host:port``; None if it is unknown.
        until_now: whether to end when the copy has what the master had at the start; needs ``broker``.
        segment_bytes: the master's ``mappedFileSizeCommitLog``; None to ask for it.
        flush_at_once: whether what came is synced, and reported, at once and not twice a second.
        tls: encrypts the connections to the HA port; None for plain ones.
        keep: how much of the log is kept; None to remove nothing.
        rejoin: whether a copy whose log parts from the master's goes back to the last common record.
        quarantine_bytes_max: most bytes that are kept then of what only the copy has.
    """

    master: str
    store: str
    broker: str | None = None
    until_now: bool = False
    segment_bytes: int | None = None
    flush_at_once: bool = False
    tls: SSLContext | None = None
    keep: KeepRule | None = None
    rejoin: bool = False
    quarantine_bytes_max: int = QUARANTINE_BYTES


class Replica:
    """Copies a log. Call ``start`` once, then ``run``, then ``stop`` once. Event loop only.

    Attributes:
        store: the store of the copy; made by ``start``.

    Args:
        options: what to copy.
        master: the master's broker; None if its address is unknown.
    """

    store: MessageStore

    def __init__(self, options: ReplicaOptions, master: MasterBroker | None, files: Files, clock: Clock) -> None:
        self._options = options
        self._master = master
        self._files = files
        self._clock = clock
        self._root = files.expand(options.store)
        self._tables: MasterTables | None = None
        """Tables that are not written yet."""
        self._topics: dict[str, TopicConfig] = {}
        self._written: dict[str, bytes] = {}
        self._writing: asyncio.Future[None] | None = None
        self._dispatching: asyncio.Handle | None = None
        self._failure: BaseException | None = None
        self._until: float = inf
        self._shown = (-1, 0.0)

    async def start(self) -> None:
        """Locks and opens the directory; asks the master's broker first, if there is one. Copies nothing yet.

        Raises:
            StoreLockedError: another process uses the directory.
            ConfigError: the size of a segment is unknown, or not that of the master or of the directory.
            RemotingError, BrokerError: the master's broker does not answer, or refuses.
            StoreDamagedError, DiskError: the directory cannot be opened.
        """
        if self._files.exists(self._root) and self._files.lock_held(self._root):
            raise StoreLockedError(self._root)
        try:
            values, bounds = ({}, None) if self._master is None else await self._ask(self._master)
            if self._options.until_now and bounds is not None:
                self._until = bounds.max_offset
            self._open(self._config(values))
            self._copying.bounds = bounds
        except BaseException:
            if self._master is not None:
                await self._master.close()
            raise

    async def _ask(self, master: MasterBroker) -> tuple[dict[str, str], LogBounds]:
        """Asks the master's broker for all that a start needs; returns the options of its store, and where its log
        begins and ends.
        """
        values = await master.store_options()
        self._tables = await master.tables()
        self._topics = self._tables.topics
        # The tables came first: what they point to is in the log that is copied.
        return values, await master.log_bounds()

    def _open(self, config: MessageStoreConfig) -> None:
        """Opens the directory, and starts the store if it has records."""
        self.store = store = MessageStore(config, self._files, self._clock, self._is_batch_topic, is_copy=True)
        self._loop = asyncio.get_running_loop()
        store.listen(on_flushed=self._flushed_in_thread)
        if self._options.keep is not None:
            store.keep_only(self._options.keep)
        store.load()
        try:
            # Whoever reads the directory in place may open it before the first record comes.
            self._files.make_directory(f"{self._root}/commitlog")
            rules = CopyRules(rejoins=self._options.rejoin, tls=self._options.tls)
            self._copying = Copying(store, lambda: self._options.master, lambda: self._master, rules, self._appended)
            if not self._copying.is_empty:
                store.start()
        except BaseException:
            store.shutdown()
            raise

    async def run(self) -> None:
        """Copies until ``until_now`` is reached; else until it is cancelled.

        Raises:
            CopyRefusedError: the copy must not go on with this master's log.
            DiskError: the disk failed or is full.
            StoreDamagedError: records of the copy cannot be dispatched, or what is behind a cut cannot be read.
        """
        while not await self._copy():
            await self._cut()

    async def _copy(self) -> bool:
        """Copies; returns False if the log must be cut first."""
        copying = asyncio.ensure_future(self._copying.run())
        following = asyncio.ensure_future(self._follow())
        try:
            while self._failure is None and not copying.done() and not self._is_complete:
                await asyncio.wait((copying, following), timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in (copying, following):
                    if task.done():
                        task.result()
            if self._failure is not None:
                raise self._failure
            return not copying.done()
        finally:
            for task in (copying, following):
                task.cancel()
            await asyncio.gather(copying, following, return_exceptions=True)

    async def _cut(self) -> None:
        """Cuts the log behind the last record that the master has, too."""
        cut_offset = self._copying.cut_offset
        event(
            logger,
            logging.WARNING,
            "logs part, going back to the last common record",
            cut_offset=cut_offset,
            end_offset=self.end_offset,
        )
        self.store.plan_cut(cut_offset, self._options.quarantine_bytes_max)
        bounds = self._copying.bounds
        await self._close()
        self._open(self.store.config)
        self._copying.bounds = bounds

    async def stop(self) -> None:
        """Syncs and closes the store, also after a failed ``run``."""
        if self._master is not None:
            await self._master.close()
        await self._close()

    async def _close(self) -> None:
        if self._dispatching is not None:
            self._dispatching.cancel()
            self._dispatching = None
        if self._writing is not None:  # a thread may still write a table, and the lock must outlast that
            await asyncio.gather(self._writing, return_exceptions=True)
        self.store.shutdown()

    @property
    def end_offset(self) -> int:
        """Physical offset after the newest checked record of the copy."""
        return self._copying.end_offset

    @property
    def segment_bytes(self) -> int:
        """Length of a segment."""
        return self._copying.segment_bytes

    @property
    def _is_complete(self) -> bool:
        """Whether the copy has all that is wanted, and its tables."""
        if self._copying.is_proved and self._tables is None:
            is_empty = self._copying.is_empty and self._until < inf
            return is_empty or (self.end_offset >= self._until and not self.store.dispatch_behind_bytes)
        return False

    # -- the parts that the client calls -------------------------------------------------------------------------------

    def _appended(self) -> None:
        if self._dispatching is None:
            self._dispatching = asyncio.get_running_loop().call_soon(self._dispatch)

    def _flushed_in_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._flushed)

    def _flushed(self) -> None:
        self._copying.client.grew()
        self._appended()

    def _dispatch(self) -> None:
        self._dispatching = None
        store = self.store
        if store.state is StoreState.STOPPED:
            return
        if self._options.flush_at_once and store.flushed_offset < store.max_offset:
            store.flush_soon()
        try:
            store.dispatch(MAPS_A_TURN, ROWS_A_TURN)
        except RucolaError as error:
            self._failure = error
            return
        store.take_arrivals()  # nobody waits for messages
        if store.dispatch_paused:
            self._appended()

    # -- the master's tables, and the progress -------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Copies the tables from time to time, and logs the progress."""
        while True:
            if self._copying.is_proved:
                await self._copy_tables()
            self._show_progress()
            await asyncio.sleep(TABLES_S if self._tables is None else _TICK_S)

    async def _copy_tables(self) -> None:
        """Writes the tables that have changed, of a master that has proved to be the right one."""
        master, tables = self._master, self._tables
        if master is None:
            return
        try:
            if tables is None:
                self._copying.bounds = await master.log_bounds()
                tables = await master.tables()
                self._topics = tables.topics
            self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, tables))
            await asyncio.shield(self._writing)
        except DiskError:
            raise
        except RucolaError as error:
            event(logger, logging.WARNING, "tables of the master not copied, tried again", error=error)
            return
        self._tables = None

    def _write(self, tables: MasterTables) -> None:
        config = ConfigFiles(self._files, self._root)
        for name, content in tables.files.items():
            if self._written.get(name) != content:
                config.replacer(name)(content)
                self._written[name] = content

    def _show_progress(self) -> None:
        end, (shown, shown_s) = self.end_offset, self._shown
        now = asyncio.get_running_loop().time()
        if end == shown or now - shown_s < TABLES_S:
            return
        rate = round((end - shown) / (now - shown_s)) if shown >= 0 else None
        event(logger, logging.INFO, "copied", end_offset=end, behind_bytes=self._copying.behind_bytes, bytes_per_s=rate)
        self._shown = end, now

    # -- the directory -------------------------------------------------------------------------------------------------

    def _is_batch_topic(self, topic: bytes) -> bool | None:
        config = self._topics.get(topic.decode("utf-8", "replace"))
        return None if config is None else config.is_batch_queue

    def _config(self, values: dict[str, str]) -> MessageStoreConfig:
        """Returns the options of the store.

        Args:
            values: those that the master's broker has told.
        """
        config = replace(
            parse_options(MessageStoreConfig, values),
            store_path_root_dir=self._root,
            flush_disk_type=FlushDiskType.ASYNC_FLUSH,
            flush_commit_log_least_pages=0,
            # The records are the master's: this store adds none, and without a rule of its own it removes none.
            enabled_append_prop_crc=False,
            file_reserved_time_h=_KEPT_FOR_EVER_H,
            clean_file_forcibly_enable=self._options.keep is not None,
        )
        sizes = {
            "the master": int(values["mappedFileSizeCommitLog"]) if "mappedFileSizeCommitLog" in values else None,
            self._root: self._segment_bytes_here(),
        }
        given = self._options.segment_bytes
        for owner, size in sizes.items():
            if size is not None and given is not None and size != given:
                raise ConfigError("--segment-bytes", str(given), f"{size}, the size of the segments of {owner}")
            given = size or given
        if given is None:
            raise ConfigError(
                "--segment-bytes", "", "the master's mappedFileSizeCommitLog; or --broker, to ask the master for it"
            )
        return replace(config, mapped_file_size_commit_log=given)

    def _segment_bytes_here(self) -> int | None:
        """Returns the length of the segments that the directory has; None if it has none."""
        sizes = self._files.list_sizes(f"{self._root}/commitlog", is_segment_name)
        return next((size for size in sizes.values() if size), None)
