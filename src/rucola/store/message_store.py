"""The broker's interface to the message store. Each method passes its work to the responsible part of the store.

Life cycle: ``load`` (lock, open, recover), ``start``, use, ``shutdown``. All methods must be called on the thread of
the event loop; other threads may only read ``flushed_offset`` and ``max_offset``. Callbacks: ``on_append`` is called on
that thread, ``on_flushed`` on any thread. ``dispatch`` calls no listener; ``take_arrivals`` returns the queues that got
messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from rucola.common.message import StoreMessage
from rucola.common.numbers import INT64_MAX
from rucola.errors import DiskError, DiskFullError, ResourceError, StoreError
from rucola.formats.consume_queue import UNIT_BYTES
from rucola.formats.light_queue import is_lite, lite_name
from rucola.runtime.clock import Clock
from rucola.runtime.files import DirectoryLock, Files
from rucola.runtime.logs import event
from rucola.runtime.machine import memory_bytes
from rucola.store.append import MessageAppender
from rucola.store.condition import StoreCondition
from rucola.store.config import MessageStoreConfig
from rucola.store.dispatch import Dispatcher
from rucola.store.index.index_service import IndexService
from rucola.store.keep_rule import KeepRule
from rucola.store.keeper import StoreKeeper
from rucola.store.log.cold_read import ColdRecords
from rucola.store.log.commit_log import CommitLog
from rucola.store.log.flush import FlushService
from rucola.store.log.log_reader import Gap
from rucola.store.log.log_walk import records_of_kind
from rucola.store.opening import StoreOpening
from rucola.store.parts import StoreParts
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.queue.queue_factory import IsBatchTopic, QueueOptions
from rucola.store.reader import MessageReader
from rucola.store.recovery.marks import StoreMarks
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.watermark import Watermark
from rucola.store.results import (
    Boundary,
    GetMessageResult,
    LightPlace,
    PutMessageResult,
    PutMessageStatus,
    QueryMessageResult,
    StoreState,
)
from rucola.store.retention import LogHolder, Retention
from rucola.store.row_run import RowRun
from rucola.store.stats import StoreStats
from rucola.store.topic_deletion import TopicDeletion

if TYPE_CHECKING:
    from rucola.formats.auto_switch import EpochEntry
    from rucola.store.ha.sent_log import SentLog
    from rucola.store.ha.slave_log import SlaveLog
    from rucola.store.lite.lite_topics import LiteTopics

logger = logging.getLogger(__name__)


class MessageStore:
    """A store directory, opened for writing.

    Args:
        config: the options.
        files: access to the disk.
        clock: for store times and intervals.
        is_batch_topic: returns whether the attribute ``queue.type`` of a topic is BatchCQ. It returns None for an
            unknown topic; then the topic's directory decides.
        is_copy: whether the log is a copy of a master's, which may have deleted topics and made them again.

    Attributes:
        config: the options.
        root: absolute path of the directory.
        stats: counters since start-up.
        recovered: whether ``load`` had to recover the store; queues may then end earlier than before.
        mended: the number of queue entries that ``load`` wrote again; other than 0 only after damage on the disk.
        append_rows: ``MessageAppender.append_rows``. An attribute instead of a method saves a call for each append.
        take_arrivals: ``Dispatcher.take_arrivals``. It returns the queues that got messages since the last call, each
            queue once. Messages of a ``dispatch`` that failed half-way count as well.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        files: Files,
        clock: Clock,
        is_batch_topic: IsBatchTopic | None = None,
        is_copy: bool = False,
    ) -> None:
        self.config = config
        self.root = root = files.expand(config.store_path_root_dir)
        self.stats = StoreStats()
        self.recovered = False
        self.mended = 0
        self._files = files
        self._last_record = -1
        self._bound: Callable[[], int] | None = None
        self._lock: DirectoryLock | None = None
        self._condition = condition = StoreCondition()
        self._log = log = CommitLog(files, clock, config, root, condition.segment_made)
        self._queues = queues = ConsumeQueueStore(files, root, QueueOptions.of(config, is_batch_topic), log)
        self._index = index = (
            IndexService(files, clock, f"{root}/index", config) if config.message_index_enable else None
        )
        self._deletion = TopicDeletion(files, root)
        if config.enable_lmq and config.enable_multi_dispatch:
            # Imported only here, because few stores have lite topics.
            from rucola.store.lite import lite_topics

            queues.lite = lite_topics.LiteTopics(files, root, config.consume_queue_segment_bytes // UNIT_BYTES, log)
        self._lite = queues.lite
        self._parts = parts = StoreParts(log, queues, index, self._deletion.ends)
        self._dispatcher = Dispatcher(parts, config, self.stats)
        if is_copy:
            # Imported only here, because most stores are no slave's.
            from rucola.store.ha.topic_lives import TopicLives

            self._dispatcher.lives = TopicLives(queues, self._delete_life)
        self._flush = FlushService(log, clock, config, condition)
        self._appender = MessageAppender(config, log, queues, self._flush, condition, self.stats)
        self._retention = Retention(files, clock, config, root, parts, self.stats, condition)
        self._marks = StoreMarks(files, root)
        self._keeper = StoreKeeper(
            clock, config, self._flush, parts, self._dispatcher, self._marks, self._retention, condition
        )
        self._reader = MessageReader(config, parts, memory_bytes(), self.stats)
        self.append_rows = self._appender.append_rows
        self.take_arrivals = self._dispatcher.take_arrivals

    # -- life ----------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Locks the directory and opens the store in it; recovers it if necessary.

        Raises:
            StoreLockedError: another process uses the store; nothing was touched.
            StoreDamagedError: a file is damaged; if the end of the log had not been found yet, nothing was changed.
            DiskError: a call of the operating system failed.
        """
        opening = StoreOpening(
            self._files, self.root, self.config, self._parts, self._dispatcher, self._deletion, self._marks
        )
        self._lock = opening.take()
        try:
            end = opening.open()
            self.recovered, self.mended = opening.recovered, opening.mended
            self._log.loaded(end.physical_offset, end.store_timestamp_ms)
            # The clock may have been set back since a deletion. Pops before and after it are told apart by their times.
            self._log.not_before(self._deletion.newest_ms)
            self._flush.loaded(end.physical_offset, end.store_timestamp_ms)
            self._keeper.load()
            self._reader.loaded(end.physical_offset, self._log.gaps)
            self._last_record = end.last_record
        except BaseException:
            self._close()
            raise

    def slave_log(self, passes_damage: bool = True) -> SlaveLog:
        """Returns the log as that of a slave, to which a master's bytes are appended. From then on the store refuses
        messages. Call it once, after ``load``.

        Args:
            passes_damage: whether the copy goes on behind a record that its master has damaged.
        """
        # Imported only here, because most stores are no slave's.
        from rucola.store.ha.slave_log import SlaveLog

        self._appender.close()
        quarantine = Quarantine(self._files, self.root)
        return SlaveLog(
            self._log,
            quarantine,
            self._last_record,
            self._begin_at,
            self._flush.wake,
            lambda: self.flushed_offset,
            passes_damage,
        )

    def plan_cut(self, physical_offset: int, kept_bytes_max: int, epochs: tuple[EpochEntry, ...] | None = None) -> None:
        """Decides that the log ends at ``physical_offset`` from now on: the next ``load`` of this directory, by
        whomever, cuts it there. Shut the store down then.

        Args:
            physical_offset: the end of a record.
            kept_bytes_max: largest number of bytes that are kept in ``quarantine/``; of more, only digests are.
            epochs: the epochs that the log has afterwards; None for those of now that begin before the cut.

        Raises:
            DiskError: it is unknown whether the next ``load`` cuts the log.
        """
        from rucola.store.recovery.log_cut import CutPlan, plan_cut

        plan_cut(self._files, self._log.segments.path, CutPlan(physical_offset, kept_bytes_max, epochs=epochs))

    def sent_log(self, unsynced: bool = False) -> SentLog:
        """Returns the log as that of a master. Call it after ``load``.

        Args:
            unsynced: whether slaves get what is written, as behind a controller; else they get what may be read.
        """
        # Imported only here, because most stores have no slaves.
        from rucola.store.ha.sent_log import SentLog

        log = self._log
        sendable = (lambda: log.max_offset) if unsynced else (lambda: self.confirm_offset)
        return SentLog(log, sendable, self.config.mapped_file_size_commit_log, lambda: log.store_timestamp_ms)

    def bound_by(self, confirm_offset: Callable[[], int]) -> None:
        """From now on, messages become readable only below ``confirm_offset()``, which ``checkpoint`` keeps. What was
        readable before stays so. Called on all threads.
        """
        self._bound = self._marks.confirm_offset = confirm_offset

    def start(self) -> None:
        """Starts to accept appends. The abort file is synced before that.

        Raises:
            DiskError: a file cannot be created.
        """
        # The log starts first, because it needs space: if the disk is full, start-up fails here and leaves the
        # directory unchanged.
        self._log.start()
        try:
            self._marks.create_abort_file()
        except DiskError:
            self._log.stop()
            raise
        self._keeper.start()
        self._flush.start()
        self._dispatcher.take_arrivals()  # These arrivals come from recovery; no consumer waits yet.
        self._condition.start()

    def shutdown(self) -> None:
        """Syncs everything and unlocks the directory. If a sync fails, the abort file is kept."""
        if self._lock is None:
            return
        try:
            if self._condition.stop():
                self._log.stop()
                self._flush.stop()
                if not self._log.sound:
                    self._flush.fail()
                self._bound = None  # queues that end with the log need no recovery
                self._catch_up()
                if self._keeper.stop():
                    self._marks.remove_abort_file()
        except StoreError as error:
            event(logger, logging.ERROR, "store did not stop cleanly, the next start recovers it", error=error)
        finally:
            # Even after a failure, the threads end before the files are closed: a thread that still syncs would treat
            # closed files as synced.
            self._flush.end()
            self._keeper.end()
            self._close()

    # -- append --------------------------------------------------------------------------------------------------------

    def put_message(self, message: StoreMessage) -> PutMessageResult:
        """Appends one message with its properties unchanged."""
        return self.put_messages([message])[0]

    def put_messages(self, messages: Sequence[StoreMessage]) -> list[PutMessageResult]:
        """Appends messages consecutively in the same segment: either all of them or none.

        Raises:
            ValueError: the messages differ in topic, sender or store host.
        """
        return self._appender.put_messages(messages)

    def put_copy(self, message: StoreMessage) -> PutMessageResult:
        """Appends one copy; see ``put_copies``."""
        return self.put_copies([message])[0]

    def append_lite(self, run: RowRun, topic: bytes, born_host: bytes, light: LightPlace) -> PutMessageStatus:
        """Appends the only row of ``run``, as ``append_rows`` does. Its properties have the light queue of a lite
        topic, and ``LiteTopics.next_offset`` of it.
        """
        status = self._appender.append_rows(run, topic, born_host)
        if status is PutMessageStatus.PUT_OK and self._lite is not None:
            self._lite.appended_at(light)
        return status

    def put_copies(self, messages: Sequence[StoreMessage]) -> list[PutMessageResult]:
        """Appends copies of stored messages, as ``put_messages`` does. ``maxMessageSize`` does not apply: the option
        limits what producers send, and may be smaller today than when the messages were accepted.
        """
        return self._appender.put_messages(messages, copies=True)

    def dispatch(self, maps_max: float = inf, rows_max: float = inf) -> int:
        """Makes appended messages visible: adds them to queues and index, and records their arrival. With SYNC_FLUSH,
        only synced messages become visible.

        Args:
            maps_max, rows_max: numbers of mapped queue segments and of messages after which the dispatch ends early;
                ``dispatch_paused`` is then True. See ``Dispatcher.dispatch``.

        Returns:
            The number of messages dispatched.
        """
        if self._retention.waiting:
            self._retention.hand_over()
        if self._lite is not None:
            self._lite.settle()
            if expired := self._lite.detach_expired():
                self._retention.remove_later(partial(self._lite.note_dropped, self._lite.units.first))
                self._retention.remove_segments(expired)
        try:
            count = self._dispatch_with_resources(maps_max, rows_max)
        except ResourceError:
            return 0  # The maintenance thread requests the next attempt.
        except DiskFullError as error:
            self._condition.space_is_gone("dispatch", error)
            return 0
        except DiskError as error:
            if self._condition.fail():
                event(
                    logger,
                    logging.CRITICAL,
                    "queues cannot be written, store is read-only until a restart",
                    error=error,
                )
            return 0
        if self._condition.missing:
            self._condition.space_is_back("dispatch")
        if self._dispatcher.follower is not None and self._dispatcher.follower.due:
            self._condition.tell()
        return count

    def _dispatch_with_resources(self, maps_max: float, rows_max: float) -> int:
        """Dispatches; if no descriptor or memory is left, closes the files of some queues and tries once more."""
        try:
            count = self._dispatcher.dispatch(self.confirm_offset, maps_max=maps_max, rows_max=rows_max)
        except ResourceError as error:
            self._condition.resources_are_gone(error)
            self._queues.free_descriptors()
            count = self._dispatcher.dispatch(self.confirm_offset, maps_max=maps_max, rows_max=rows_max)
        self._condition.resources_are_back()
        return count

    def flush_soon(self) -> None:
        """Requests a sync of everything appended so far, also with ASYNC_FLUSH. ``flushed_offset`` shows when the sync
        has ended.
        """
        self._flush.ask()

    def delete_topic(self, topic: bytes, end: int | None = None) -> None:
        """Removes the queues of ``topic`` permanently. A new topic of that name begins at queue offset 0.

        The old topic's records stay in the log until they expire.

        Args:
            end: physical offset up to which its records belong to the old topic, at most the end of the log; None for
                the end of the log.

        Raises:
            DiskError: it is unknown whether the topic is deleted; a restart or another call settles it.
            StoreDamagedError: ``topic`` cannot be the name of a directory; nothing was changed.
        """
        self._queues.directory(topic, 0)
        if self._lite is not None and is_lite(topic):
            self.delete_lite([lite_name(topic)])
            return
        # Pops of the old topic have earlier times, those of a new one have this time or a later one.
        time_ms = self._log.now_ms() + 1
        self._log.not_before(time_ms)
        self._delete_queues(topic, self._log.written_offset if end is None else end, time_ms)

    @property
    def lite(self) -> LiteTopics | None:
        """The lite topics; None unless ``enableLmq`` and ``enableMultiDispatch`` are set."""
        return self._lite

    def delete_lite(self, names: Iterable[bytes]) -> int:
        """Deletes the messages of lite topics; see ``LiteTopics.delete``. Takes effect after the next sync, which is
        requested.

        Raises:
            DiskFullError: no space; some of the names may be deleted.
        """
        count = 0 if self._lite is None else self._lite.delete(names)
        if count:
            self._keeper.look_soon()
        return count

    def _delete_life(self, topic: bytes, end: int) -> None:
        """Removes the queues of a topic that the master has deleted up to the physical offset ``end``."""
        self._delete_queues(topic, end, self._dispatcher.store_timestamp_ms + 1)

    def _delete_queues(self, topic: bytes, end: int, time_ms: int) -> None:
        self._deletion.begin(topic, end, time_ms)
        queues = self._queues.detach_topic(topic)
        self._retention.forget(queues)
        self._dispatcher.forget(queues)
        moved: list[str] = []
        try:
            moved = self._deletion.finish(topic)
        finally:
            self._retention.remove_later(partial(self._remove_queues, queues, moved))

    def is_deleted(self, topic: bytes, physical_offset: int) -> bool:
        """Whether ``topic`` was deleted after the record at ``physical_offset`` was stored. Such a record belongs to no
        queue, also if the topic has been created again.
        """
        return physical_offset < self._deletion.ends.get(topic, 0)

    def deleted_ms(self, topic: bytes) -> int:
        """Returns the store time of the last deletion of ``topic`` in ms: everything before it belongs to the old
        topic. 0 if there was none, or if nothing from before can be waiting any more.
        """
        return self._deletion.times_ms.get(topic, 0)

    # -- read ----------------------------------------------------------------------------------------------------------

    def get_message(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: Collection[int] | None = None,
        may_block: bool = True,
    ) -> GetMessageResult:
        """Reads messages of a queue from ``queue_offset`` on (RocketMQ 5.3.3, ``DefaultMessageStore#getMessage``).

        The store's own limits apply as well. The first record is returned even if it exceeds a limit.

        Args:
            max_messages: largest number of messages.
            max_bytes: largest total size of the records in bytes; values are limited to the range from 100 bytes to
                128 MiB.
            tag_codes: hashes of the wanted tags, preferably a frozenset; None for all messages.
            may_block: whether to wait for the disk. If False, the result's ``cold`` lists what must be fetched first.
        """
        result = self._reader.get_message(topic, queue_id, queue_offset, max_messages, max_bytes, tag_codes, may_block)
        self.stats.got_messages += result.message_count
        self.stats.got_bytes += result.message_bytes
        return result

    def message_at(self, physical_offset: int, cold: ColdRecords | None = None) -> memoryview | None:
        """Returns the record that starts at ``physical_offset``; None if there is none, or if the disk cannot read it.

        Args:
            cold: if given, the method does not wait for the disk, but adds to ``cold`` what must be fetched before the
                next attempt. All methods with the argument ``cold`` do so.

        Raises:
            NotInMemoryError: the record, or another one noted in ``cold``, must be fetched.
        """
        return self._reader.message_at(physical_offset, cold)

    def look_ahead(self, physical_offsets: Iterable[int], cold: ColdRecords) -> None:
        """Notes in ``cold`` which of the records at ``physical_offsets`` must be fetched, so that one fetch serves
        several reads.
        """
        self._reader.look_ahead(physical_offsets, cold)

    def records_of_kind(self, physical_offset: int, flag_mask: int, flags: int, topic: bytes) -> Iterator[memoryview]:
        """Yields the records from ``physical_offset`` to the end of the log that match ``flags`` or belong to
        ``topic``.
        """
        return records_of_kind(self._log, physical_offset, flag_mask, flags, topic)

    def query_by_key(
        self,
        topic: bytes,
        key: bytes,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int = INT64_MAX,
        cold: ColdRecords | None = None,
    ) -> QueryMessageResult:
        """Returns the newest ``count_max`` messages of ``topic`` whose UNIQ_KEY is ``key`` or whose KEYS include it.

        Args:
            begin_ms, end_ms: first and last store time in ms, both included.
            cold: see ``message_at``.

        Raises:
            NotInMemoryError: some messages must be fetched.
        """
        return self._reader.query_by_key(topic, key, count_max, begin_ms, end_ms, cold)

    def offset_by_time(
        self,
        topic: bytes,
        queue_id: int,
        timestamp_ms: int,
        boundary: Boundary = Boundary.LOWER,
        cold: ColdRecords | None = None,
    ) -> int:
        """Returns the queue offset of the message at a store time; see ``Boundary``. 0 for an unknown queue.

        Args:
            cold: see ``message_at``. A search has many steps, and each of them may need a different record.

        Raises:
            NotInMemoryError: the next step needs a record that must be fetched.
            DiskError: the search needs a record that the disk cannot read.
        """
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms, boundary, cold)

    def store_time_at(self, topic: bytes, queue_id: int, queue_offset: int, cold: ColdRecords | None = None) -> int:
        """Returns the store time in ms of the message at ``queue_offset``; -1 if there is none, or if the disk cannot
        read it.

        Args:
            cold: see ``message_at``.

        Raises:
            NotInMemoryError: the record, or another one noted in ``cold``, must be fetched.
        """
        return self._reader.store_time_at(topic, queue_id, queue_offset, cold)

    def in_memory(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Whether there is a message at ``queue_offset`` that is in memory."""
        return self._reader.in_memory(topic, queue_id, queue_offset)

    def max_queue_offset(self, topic: bytes, queue_id: int) -> int:
        """Returns the queue offset after the newest visible message of a queue; 0 for an unknown queue."""
        queue = self._queues.readable(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def min_queue_offset(self, topic: bytes, queue_id: int) -> int:
        """Returns the queue offset of the oldest message of a queue; 0 for an unknown queue."""
        queue = self._queues.readable(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def queue_range(self, topic: bytes, queue_id: int) -> tuple[int, int]:
        """Returns ``min_queue_offset`` and ``max_queue_offset``."""
        queue = self._queues.readable(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def first_queue_offset(self, topic: bytes, queue_id: int) -> int:
        """Returns ``min_queue_offset`` as reported to clients: -1 for an empty queue of type BatchCQ."""
        return self._queues.first_offset(topic, queue_id)

    def queue_unit(self, topic: bytes, queue_id: int, queue_offset: int) -> tuple[int, int, int]:
        """Returns physical offset, size and tags code of the queue entry at ``queue_offset``; zeros for an unknown
        queue. The method does not check whether ``queue_offset`` lies in the queue's range.
        """
        queue = self._queues.readable(topic, queue_id)
        return (0, 0, 0) if queue is None else queue.entry(queue_offset)

    def queue_names(self) -> list[tuple[bytes, int]]:
        """Returns topic and queue id of every queue that has a directory."""
        return list(self._queues.names())

    def topics_with_queues(self) -> set[bytes]:
        """Returns every topic that may have a queue."""
        return self._queues.topics()

    def queue_ids(self, topic: bytes) -> list[int]:
        """Returns the ids of the queues of ``topic`` that have a directory."""
        return self._queues.ids(topic)

    def appended_topics(self) -> list[bytes]:
        """Returns the topics to which messages may have been appended since start-up."""
        return list(self._queues.next_offset_tables)

    def appended_count(self, topic: bytes) -> int:
        """Returns the number of messages appended to ``topic`` since start-up."""
        offsets = self._queues.next_offset_tables.get(topic)
        return 0 if offsets is None else sum(offsets) - self._queues.first_counts[topic]

    def park_idle_queues(self, shares: int) -> None:
        """Closes files of unused queues. After ``shares`` calls, each queue has been checked once."""
        self._queues.park_idle(shares)

    def set_read_ahead(self, ahead: bool) -> None:
        """Sets whether reading a part of the log that is not in memory also loads the bytes after it."""
        self._log.segments.set_read_ahead(ahead)

    def listen(self, on_append: Callable[[], None] | None = None, on_flushed: Callable[[], None] | None = None) -> None:
        """Calls these functions from now on. Call it before ``start``.

        Args:
            on_append: called after messages were appended; the broker schedules one ``dispatch`` per iteration of the
                event loop.
            on_flushed: called when ``flushed_offset`` or ``state`` may have changed, and when a dispatch should be
                retried. It is called on a thread of the store or on the event loop's thread. The broker then sends the
                responses that waited for a sync, and schedules a dispatch.
        """
        if on_append is not None:
            self._appender.listen(on_append)
        if on_flushed is not None:
            self._condition.listen(on_flushed)

    def add_holder(self, holder: LogHolder) -> None:
        """Keeps the segments of the log that ``holder`` needs; call it before ``start``."""
        self._retention.holders.append(holder)

    def keep_only(self, rule: KeepRule) -> None:
        """Lets ``rule`` decide what expires; call it before ``start``."""
        self._retention.keep_rule = rule

    def expire_now(self) -> None:
        """Makes the maintenance thread remove files older than ``fileReservedTime`` now; it ignores ``deleteWhen``."""
        self._retention.look_soon()
        self._keeper.look_soon()

    def clock_moved(self) -> None:
        """Makes the maintenance thread remove expired files now, because the wall clock was moved deliberately."""
        self._retention.clock_moved()
        self._keeper.look_soon()

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> StoreState:
        """State of the store: whether it accepts messages now, and if not, why."""
        return self._condition.state

    @property
    def lacks_space(self) -> bool:
        """Whether an operation found no space. Unlike ``state``, this ignores the used fraction of the disk."""
        return bool(self._condition.missing - {"ratio"})

    @property
    def gaps(self) -> list[Gap]:
        """Parts of the log that are lost: a start-up with ``quarantine`` skipped them, or a master had them damaged."""
        return self._log.gaps

    def now_ms(self) -> int:
        """Returns the store time that a message would get now. It never goes back, whatever the wall clock does; see
        ``store.log.store_time``.
        """
        return self._log.now_ms()

    def not_before(self, time_ms: int) -> None:
        """Makes ``now_ms`` never return earlier times than ``time_ms``. Call it after ``load``, with a time that an
        earlier process has recorded.
        """
        self._log.not_before(time_ms)

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest byte of the log."""
        return self._log.min_offset

    @property
    def max_offset(self) -> int:
        """Physical offset after the newest message. This message may not be readable yet; see ``confirm_offset``."""
        return self._log.written_offset

    @property
    def flushed_offset(self) -> int:
        """Physical offset up to which the log is synced."""
        return self._flush.flushed_offset

    @property
    def confirm_offset(self) -> int:
        """Physical offset up to which messages may be read."""
        own = self._flush.flushed_offset if self.config.sync_flush else self._log.max_offset
        return own if self._bound is None else min(own, self._bound())

    @property
    def stored_confirm_offset(self) -> int:
        """Confirm offset that the last run has left in ``checkpoint``; 0 if there was none."""
        return self._marks.read_checkpoint().confirm_physical_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """Number of bytes of the log that may be read but are not dispatched yet."""
        return max(self.confirm_offset - self._dispatcher.position, 0)

    @property
    def undispatched_since_ms(self) -> int | None:
        """A time that is not later than the store time of any message that is not dispatched yet, in ms since the
        epoch; None if all messages are dispatched.
        """
        dispatcher = self._dispatcher
        return None if dispatcher.position >= self._log.written_offset else dispatcher.store_timestamp_ms

    @property
    def dispatch_paused(self) -> bool:
        """Whether the last ``dispatch`` ended early because of ``maps_max`` or ``rows_max``."""
        return self._dispatcher.paused

    @property
    def maps_awaited(self) -> bool:
        """Whether the next ``dispatch`` must map segments before it can put appended messages into their queues."""
        return self._queues.maps_awaited

    @property
    def index_behind_bytes(self) -> int:
        """Number of bytes of the log whose messages cannot be found by key yet, because there was no space for an index
        file.
        """
        return self._dispatcher.position - self._dispatcher.index_position

    @property
    def queue_sync_failed(self) -> bool:
        """Whether a sync of queues or index failed. If so, messages are still accepted, segments that are not synced
        yet do not expire, and the next start-up recovers the store.
        """
        return self._keeper.failed

    @property
    def store_host(self) -> bytes:
        """This broker's address and port as written into records, 8 or 20 bytes."""
        return self._log.store_host

    @store_host.setter
    def store_host(self, host: bytes) -> None:
        self._log.store_host = host

    @property
    def property_suffix(self) -> bytes:
        """Property text that ``append_rows`` adds to each message."""
        return self._log.suffix

    @property_suffix.setter
    def property_suffix(self, text: bytes) -> None:
        self._log.suffix = text

    # -- calls between the parts of the store --------------------------------------------------------------------------

    def _begin_at(self, physical_offset: int) -> None:
        """Makes the loaded store, which has no record, begin at the segment at ``physical_offset``, and starts it.

        Raises:
            DiskError: a file cannot be created.
        """
        segments = self._log.segments
        if segments.files and segments.start != physical_offset:
            # A crash before the first record has left an empty segment. Without it, a mark above the end of the log
            # would prevent the next start.
            self._marks.watermark.write(Watermark(0, 0))
            segments.remove_after(-1)
        self._log.loaded(physical_offset, 0)
        self._flush.loaded(physical_offset, 0)
        self._dispatcher.position = physical_offset
        self._keeper.load()
        self._reader.loaded(physical_offset, self._log.gaps)
        self.start()

    def _catch_up(self) -> None:
        """Dispatches everything that may be dispatched, and then updates the index, as far as there is space on the
        disk.
        """
        self.dispatch()
        index, before = self._dispatcher.follower, -1
        if index is not None and index.retry():
            while index.due and index.missing_from != before:
                before = index.missing_from or 0
                self.dispatch()

    def _remove_queues(self, queues: list[ConsumeQueue], paths: list[str]) -> None:
        """Removes the files of deleted queues. Called on the maintenance thread. Files that are not removed now are
        removed by the next load.
        """
        for queue in queues:
            queue.close()
        for path in paths:
            self._files.remove_tree(path)

    def _close(self) -> None:
        self._queues.close()
        if self._index is not None:
            self._index.close()
        if self._lite is not None:
            self._lite.close()
        self._log.segments.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
