"""A message store on a simulated disk, driven step by step, with a model that records what the store reports.

The store starts no threads of its own, so that a run is reproducible. The methods ``flush``, ``commit``, ``allocate``
and ``keep`` do the work of these threads; an ``Interleaver``, if there is one, starts such work, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from struct import Struct

from rucola.common.columns import ROW_WIDTH, FrameColumn, new_table
from rucola.common.message import StoreMessage
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, IndexHeader
from rucola.formats.message import BLANK, MAGIC_BLANK, fill_row
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig, split_paths
from rucola.store.message_store import MessageStore
from rucola.store.recovery.watermark import WatermarkFile
from rucola.store.results import GetMessageStatus, PutMessageStatus, StoreState
from rucola.store.row_run import AS_THEY_ARE, RowRun
from rucola.testing.clock import ManualClock
from rucola.testing.interleaver import Interleaver, Task
from rucola.testing.manual_worker import ManualWorker, manual_workers
from rucola.testing.progress_check import ProgressCheck
from rucola.testing.simulated_disk import SECTOR, Directory, Image, Inode, SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_model import (
    Mismatch,
    QueueName,
    StoreModel,
    check_index,
    check_log,
    check_queues,
)

ROOT = "/store"
_WORKERS = ("rucola.store.log.allocate", "rucola.store.log.commit", "rucola.store.log.flush", "rucola.store.keeper")
_ENTRY = Struct(">iqii")
_PASS_MS = 1000
_COMMIT_MS = 200
_FIRST_LOOK_MS = 61_000
_SHORT_OF_SPACE = 86


class StartRefused(Exception):  # noqa: N818 - the name says what happened
    """A disk call failed, so that the store could not start or could not delete a topic."""


def empty_disk() -> SimulatedDisk:
    """A disk that has only its root directory."""
    root = Directory()
    return SimulatedDisk({"/": root}, {"/": root})


class StoreLife:
    """A store that may be started, stopped and killed many times on the same disk.

    Attributes:
        disk: disk of the store.
        config: configuration of the store.
        model: the expected content.
        store: the running store.
        known_changes: ids of the name changes (creation, rename, removal) that were not durable when the store was
            loaded.
        pulls: number of pulls by result: ``found``, or ``cold`` if the records must first be read from the disk;
            counted only if there is an interleaver.
        progress: checks what the running store reports as synced; None before the store starts.

    Args:
        prepare: function that changes the ``Files``, for example to plant a defect.
        interleave: function that creates the interleaver for the threads of a process; if it returns None, the work
            of the threads runs in the calling thread.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        config: MessageStoreConfig,
        model: StoreModel | None = None,
        prepare: Callable[[Files], None] | None = None,
        interleave: Callable[[], Interleaver | None] = lambda: None,
    ) -> None:
        self.disk = disk
        self.config = config
        self.model = model if model is not None else StoreModel(config.mapped_file_size_commit_log)
        self.store: MessageStore
        self.known_changes: set[int] = set()
        self.interleaver: Interleaver | None = None
        self.progress: ProgressCheck | None = None
        self.pulls: Counter[str] = Counter()
        self._cold: Task | None = None
        self._prepare = prepare
        self._interleave = interleave
        self._clock = ManualClock(step_ms=1)
        self._failed_at = -1
        self._io_error = False
        self._refuses = False
        self._started = False
        self._kept_end = 0

    # -- life ----------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Opens the store's directory in a new process and recovers the store.

        Raises:
            StartRefused: a disk call failed.
            Mismatch: recovery had to restore queue entries that had been reported as synced.
        """
        self._kept_end = self.kept_end
        self.end()
        self.progress = self._cold = None
        self.interleaver = self._interleave()
        files = files_on(self.disk, self.interleaver)
        if self._prepare is not None:
            self._prepare(files)
        self._failed_at = -1
        self._io_error = self._started = False
        self.disk.failed_syncs.clear()
        self.known_changes = {id(change) for change in self.disk.changes}
        with manual_workers(*_WORKERS, interleaver=self.interleaver):
            self.store = MessageStore(
                self.config,
                files,
                self._clock,
                is_batch_topic=lambda topic: topic.startswith(b"Batch"),
            )
            self.store.listen(on_flushed=self._flushed)
        self._keeper.before_runs(partial(self._clock.advance, _PASS_MS))
        if self._commit is not None:
            self._commit.before_runs(partial(self._clock.advance, _COMMIT_MS))
        if self.interleaver is not None:
            self.interleaver.open_to_start = self._ready
        try:
            self.store.load()
        except DiskError as error:
            raise StartRefused from error
        except StoreDamagedError as error:
            if self.disk.faults is None:
                raise
            raise StartRefused from error  # files that could not be read may still contain data
        if self.store.mended:
            raise Mismatch(f"{self.store.mended} entries below the watermark did not reach the disk")
        if self.interleaver is not None:
            self.store._reader._in_memory_bytes = 0

    def _ready(self) -> list[Callable[[], Task]]:
        """Functions that start the work which the store's threads could do now."""
        return [worker.begin for worker in self._workers() if worker.ready]

    def end(self) -> None:
        """Ends the process, whatever its threads are doing."""
        if self.interleaver is not None:
            self.interleaver.drop()

    def open(self) -> None:
        """Loads the store, compares its content with the model, makes the recovered content the new model, and starts
        the store.

        Raises:
            StartRefused: a disk call failed.
        """
        self.load()
        self.model = check_recovered(self)
        self._started = True
        self.progress = ProgressCheck(self.disk, self.config, ROOT, self.store, lambda: self.model)
        try:
            self.store.start()
        except DiskError as error:
            raise StartRefused from error

    def check_progress(self) -> None:
        """Compares what the store reports as synced with what is durable on disk.

        Raises:
            Mismatch: the reported progress is ahead of the disk.
        """
        if self.progress is not None:
            self.progress.step()

    def stop(self) -> None:
        """Stops the store; after a clean stop, all its messages must be on disk."""
        if self.interleaver is not None:
            # The broker, too, waits for reads from the disk before it shuts the store down.
            self.interleaver.wait(lambda: self._cold is None or self._cold.done)
        self.store.shutdown()
        if f"{ROOT}/abort" not in self.disk.names:
            self.model.acked_end = self.model.end
            with self.disk.sound():
                _check_counts(self.disk)
        self.disk.step("stopped", ROOT)

    def settle(self) -> None:
        """Completes all work that was begun or requested, and checks that none is left.

        Raises:
            Mismatch: a sender still waits, or work was not done.
        """
        store = self.store
        self.finish()
        if store.state is not StoreState.RUNNING:
            return
        for _ in range(2):
            for worker in self._workers():
                while worker.wanted and worker.ready:
                    worker.run()
                    self.finish()
        if store.state is StoreState.RUNNING and self.config.sync_flush and store.flushed_offset < store.max_offset:
            raise Mismatch(
                f"senders wait until {store.max_offset} is synced, but no thread syncs beyond {store.flushed_offset}"
            )
        self.dispatch()
        if store.state is StoreState.RUNNING and store.dispatch_behind_bytes:
            raise Mismatch(f"{store.dispatch_behind_bytes} bytes should have been dispatched but were not")
        for _ in range(2):
            self.keep()
            self.finish()
        if store._keeper.failed:
            raise Mismatch("queues and index are no longer synced although no call had failed")

    def finish(self) -> None:
        """Lets the threads finish their work in progress."""
        if self.interleaver is not None:
            self.interleaver.finish()

    def _workers(self) -> list[ManualWorker]:
        workers = (self._keeper, self._commit, self._flush, self._allocator)
        return [worker for worker in workers if worker is not None]

    @property
    def promised_end(self) -> int:
        """Messages below this offset survive a power failure, because they were acknowledged or reported as synced."""
        return max(self.model.acked_end, self._reported_end())

    @property
    def kept_end(self) -> int:
        """Messages below this offset survive the end of the process, because they are in the page cache."""
        if not self.config.pooled:
            return self.model.end
        return self.store._log.max_offset if self._started else self._kept_end

    def refused(self) -> None:
        """Shuts the store down after ``StartRefused``; unlike ``stop``, does not expect all messages on disk."""
        self.store.shutdown()

    def _reported_end(self) -> int:
        return self.store.flushed_offset if self._started else 0

    # -- the work of producers, consumers and threads ------------------------------------------------------------------

    def put(self, *messages: StoreMessage) -> bool:
        """Appends messages of one topic, all or none; returns whether they were accepted."""
        self.model.sending = list(messages)
        end = self.store._log.written_offset
        with self._alone():
            results = self.store.put_messages(messages)
        self._check_together(end, [result.physical_offset for result in results])
        for message, result in zip(messages, results, strict=True):
            if result.status is PutMessageStatus.PUT_OK:
                self._place(message, result.physical_offset, result.size)
        self.model.sending = []
        return results[0].status is PutMessageStatus.PUT_OK

    def _check_together(self, before: int, offsets: list[int]) -> None:
        """Checks that an accepted batch is in one segment, and that a refused batch left no message in the log."""
        size, end = self.config.mapped_file_size_commit_log, self.store._log.written_offset
        if min(offsets) >= 0 and offsets[0] // size != offsets[-1] // size:
            raise Mismatch(f"a batch is in two segments, from {offsets[0]} to {offsets[-1]}")
        if min(offsets) < 0 and end not in (before, before - before % size + size):
            raise Mismatch(f"a batch was refused, but the log grew from {before} to {end}")

    def put_rows(self, *messages: StoreMessage) -> int:
        """Appends messages of one topic; returns how many were accepted."""
        source, table = bytearray(), new_table(len(messages))
        for row, message in enumerate(messages):
            fill_row(table, row, message, len(source))
            source += message.body + message.properties
        head = messages[0]
        self.model.sending = list(messages)
        with self._alone():
            run = RowRun(source, memoryview(source), table, 0, len(messages))
            self.store.append_rows(run, head.topic, head.born_host, AS_THEY_ARE)
        taken = 0
        for row, message in enumerate(messages):
            physical_offset = table[row * ROW_WIDTH + FrameColumn.PHYSICAL_OFFSET]
            if physical_offset >= 0:
                self._place(message, physical_offset, table[row * ROW_WIDTH + FrameColumn.RECORD_SIZE])
                taken += 1
        self.model.sending = []
        return taken

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Within the block, a sync does not call the disk's ``meanwhile``: ``meanwhile`` appends messages, but the
        only thread that may append is waiting for the sync.
        """
        self._refuses = self._io_error
        meanwhile, self.disk.meanwhile = self.disk.meanwhile, None
        yield
        self.disk.meanwhile = meanwhile

    def flush(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Does the work of the flush thread. ``meanwhile`` is called while that thread waits for the disk; with an
        interleaver, ``meanwhile`` is called when the thread has paused or ended.
        """
        if self.interleaver is None:
            self.disk.meanwhile = meanwhile
        self._flush.run()
        if self.interleaver is not None and meanwhile is not None:
            meanwhile()

    def commit(self) -> None:
        """Does the work of the commit thread, if there is one."""
        if self._commit is not None:
            self._commit.run()

    def allocate(self) -> None:
        """Does the work of the allocation thread."""
        self._allocator.run()

    def keep(self) -> None:
        """Does one round of the work of the thread that removes old files and watches the disk space."""
        self._keeper.run()

    @property
    def _flush(self) -> ManualWorker:
        return _worker(self.store._flush._worker)

    @property
    def _commit(self) -> ManualWorker | None:
        commit = self.store._flush._commit
        return None if commit is None else _worker(commit._worker)

    @property
    def _allocator(self) -> ManualWorker:
        return _worker(self.store._log._allocator._worker)

    @property
    def _keeper(self) -> ManualWorker:
        return _worker(self.store._keeper._worker)

    def dispatch(self) -> None:
        """Dispatches like the event loop; then checks that consumers see only what they may see."""
        self.store.dispatch()
        may_see = self.promised_end if self.config.sync_flush else self.model.end
        allowed = self.model.counts(may_see)
        for topic, queue_id in self.model.counts(self.model.end):
            seen = self.store.max_queue_offset(topic, queue_id)
            if seen > allowed.get((topic, queue_id), 0):
                raise Mismatch(
                    f"queue {topic!r} {queue_id} shows {seen} messages, {allowed.get((topic, queue_id), 0)} may be seen"
                )
        if self.interleaver is not None:
            self._pull(self.interleaver)

    def _pull(self, interleaver: Interleaver) -> None:
        """Pulls like a consumer. Another thread reads content that is not in memory, and the consumer retries later."""
        if self._cold is not None and not self._cold.done:
            return
        queues = sorted(self.model.queues(self.model.end).items())
        if not queues:
            return
        (topic, queue_id), records = queues[self.pulls["found"] % len(queues)]
        low, high = self.store.min_queue_offset(topic, queue_id), self.store.max_queue_offset(topic, queue_id)
        if low >= high:
            return
        queue_offset = low + self.pulls["found"] % (high - low)
        try:
            result = self.store.get_message(topic, queue_id, queue_offset, 8, 1 << 20, may_block=False)
        except DiskError:
            if self.disk.faults is None:
                raise
            return
        if result.cold is not None:
            self.pulls["cold"] += 1
            self._cold = interleaver.start("cold read", result.cold)
        elif result.status is GetMessageStatus.FOUND:
            self.pulls["found"] += 1
            # After a failed read the minimum offset may be too low: a pull then skips the records that have expired.
            first = next(n for n in range(queue_offset, high) if records[n].physical_offset >= self.store.min_offset)
            if first > queue_offset and self.disk.faults is None:
                raise Mismatch(f"queue {topic!r} {queue_id} begins at {low}, but its messages begin at {first}")
            wanted = [record.record for record in records[first : first + result.message_count]]
            if b"".join(map(bytes, result.views)) != b"".join(wanted):
                raise Mismatch(
                    f"a pull of queue {topic!r} {queue_id} at {queue_offset} returns bytes that differ from those sent"
                )

    def begin_to_expire(self, passes: int) -> None:
        """Simulates low disk space while the clean-up of old files runs ``passes`` times. Afterwards, the store's lists
        of segments no longer contain the expired ones, but some of their files may remain.
        """
        self._full_segments_may_expire()
        self.disk.used_percent = _SHORT_OF_SPACE
        for _ in range(passes):
            self._clock.advance(_FIRST_LOOK_MS)
            self.keep()
            self.dispatch()
        self.disk.used_percent = 0

    def expire(self) -> None:
        """Simulates low disk space for some time, so that the store removes the oldest segments that may expire."""
        self._full_segments_may_expire()
        self.disk.used_percent = _SHORT_OF_SPACE
        for _ in range(2):
            self._clock.advance(_FIRST_LOOK_MS)
            for _ in range(3):
                self.keep()
                self.dispatch()
        self.keep()
        self.disk.used_percent = 0

    def _full_segments_may_expire(self) -> None:
        """Allows full segments to expire: those that end at or before the log's end.

        The log's end may lie beyond the newest message: a blank record may have filled this message's segment although
        the next message could not be written.
        """
        end, size = self.store.max_offset, self.model.segment_bytes
        self.model.may_expire = end - end % size

    def delete(self, topic: bytes) -> None:
        """Deletes a topic.

        Raises:
            StartRefused: a disk call failed. Only the next start shows which files were deleted.
        """
        self.model.deleting[topic] = self.store.max_offset
        try:
            self.store.delete_topic(topic)
        except DiskError as error:
            raise StartRefused from error
        self.model.deleted.update(self.model.deleting)
        self.model.deleting.clear()
        self.disk.step("deleted", ROOT)

    def turn(self) -> None:
        """Allocates, commits, flushes and dispatches once."""
        self.allocate()
        self.commit()
        self.flush()
        self.dispatch()

    def _place(self, message: StoreMessage, physical_offset: int, size: int) -> None:
        # ``_refuses`` is the state before the call: if a write of the call itself fails midway, the store may have
        # accepted the call's first messages.
        if self._refuses:
            raise Mismatch("a message was accepted after a failed write or sync")
        file = self.store._log.segments.find(physical_offset)
        assert file is not None
        position = physical_offset - file.start
        self.model.sending.remove(message)
        self.model.place(message, physical_offset, bytes(file.target.view[position : position + size]))

    def _flushed(self) -> None:
        """Acknowledges, as the broker does, the messages whose senders wait for the disk."""
        store = self.store
        self._io_error = self._io_error or store.state is StoreState.IO_ERROR
        logs = _log_directories(self.config)
        if self._failed_at < 0 and any(path[:-21] in logs for path in self.disk.failed_syncs):
            self._failed_at = store.flushed_offset
        if 0 <= self._failed_at < store.flushed_offset:
            raise Mismatch(f"flushed offset rose from {self._failed_at} after a failed sync")
        self.model.acked_end = max(self.model.acked_end, store.flushed_offset)
        self.disk.step("ack", ROOT)


def _worker(worker: object) -> ManualWorker:
    assert isinstance(worker, ManualWorker)
    return worker


# -- after a recovery --------------------------------------------------------------------------------------------------


def check_recovered(life: StoreLife) -> StoreModel:
    """Compares a store that was just loaded with its model.

    Returns:
        The model up to the recovered end, including unacknowledged messages that survived.

    Raises:
        Mismatch: the store breaks a promise.
    """
    failing = life.disk.faults is not None
    with life.disk.sound():
        return _check_recovered(life, failing)


def _check_recovered(life: StoreLife, failing: bool) -> StoreModel:
    store, disk, config = life.store, life.disk, life.config
    end = store.max_offset
    log = {int(path[-20:]): content for path, content in _log_files(disk.seen(), config).items()}
    model = life.model.adopted(end, log)
    check_log(model, end, log)
    if config.message_index_enable:
        behind = store.index_behind_bytes > 0
        if behind and not failing:
            raise Mismatch(f"the index is {store.index_behind_bytes} bytes behind although space is available")
        check_index(model, end, _index_entries(disk, config), store.min_offset, behind)
    _check_synced(life, failing)
    mismatch = Mismatch("")
    for outcome in model.outcomes():
        try:
            check_queues(outcome, end, _queue_units(disk), store.min_offset)
            recovered = outcome.copy()
            recovered.cut(end)
            _check_reads(store, recovered)
        except Mismatch as error:
            mismatch = error
        else:
            return recovered
    raise mismatch


def check_kept_aside(life: StoreLife, image: Image) -> None:
    """Checks that the quarantine holds what a recovery of ``image`` removed.

    If power failed during an earlier recovery, the quarantine may hold more: data that was only in the page cache, or
    data that the earlier recovery had already zeroed in the log.

    Raises:
        Mismatch: data is missing.
    """
    end = life.store.max_offset
    for path, content in _log_files(image, life.config).items():
        start = int(path[-20:])
        tail = content[max(end - start, 0) :].rstrip(b"\0")
        blank = len(tail) <= BLANK.size and tail[4:] == BLANK.pack(0, MAGIC_BLANK)[4:]
        cut = max(end, start)
        kept = _files(life.disk, f"{ROOT}/quarantine/{cut:020d}").values()
        if tail and not blank and not any(_holds(whole, tail, cut) for whole in kept):
            raise Mismatch(f"{len(tail)} bytes removed from {path} are not in the quarantine")


def _holds(kept: bytes, tail: bytes, offset: int) -> bool:
    """Whether each sector of ``tail`` is zero or equal to the same sector of ``kept``. ``tail`` and ``kept`` begin at
    log offset ``offset``.
    """
    borders = [0, *range(-offset % SECTOR, len(tail), SECTOR), len(tail)]
    return all(tail[a:b] == kept[a:b] or not any(tail[a:b]) for a, b in pairwise(borders))


def quarantine(disk: SimulatedDisk) -> dict[str, bytes]:
    """All files in the quarantine."""
    return _files(disk, f"{ROOT}/quarantine/")


def _files(disk: SimulatedDisk, prefix: str) -> dict[str, bytes]:
    return {
        path: bytes(node.data)
        for path, node in disk.names.items()
        if isinstance(node, Inode) and path.startswith(prefix)
    }


def _log_files(image: Image, config: MessageStoreConfig) -> dict[str, bytes]:
    """The content of the log's segments in all directories, by path.

    Raises:
        Mismatch: a segment exists twice.
    """
    directories = _log_directories(config)
    found = {
        path: content
        for path, content in image.items()
        if content is not None and path.rpartition("/")[0] in directories
    }
    if len({path[-20:] for path in found}) < len(found):
        raise Mismatch(f"a segment exists twice: {sorted(found)}")
    return found


def _log_directories(config: MessageStoreConfig) -> list[str]:
    return split_paths(config.store_path_commit_log) or [f"{ROOT}/commitlog"]


def _queue_units(disk: SimulatedDisk) -> dict[QueueName, tuple[int, bytes]]:
    units: dict[QueueName, tuple[int, bytes]] = {}
    for path, content in sorted(_files(disk, f"{ROOT}/consumequeue/").items()):
        if path.endswith(".tmp"):
            continue  # a new segment under construction, beside the directory of its queue
        topic, queue_id, name = path.split("/")[-3:]
        queue = topic.encode(), int(queue_id)
        begin, before = units.get(queue, (int(name), b""))
        if int(name) != begin + len(before):
            raise Mismatch(f"{path} has the wrong start: {len(before)} bytes of its queue come before it")
        units[queue] = begin, before + content
    return units


def _check_counts(disk: SimulatedDisk) -> None:
    """Checks that the watermark's counts match the files after a clean stop; the next start relies on the counts."""
    files: Counter[str] = Counter()
    for kind in ("consumequeue", "batchconsumequeue"):
        files.update(path[:-21] for path in _files(disk, f"{ROOT}/{kind}/") if not path.endswith(".tmp"))
    watermark = WatermarkFile(files_on(disk), ROOT).read()
    later_files = files.total() - len(files)
    if watermark is None or (watermark.queue_count, watermark.later_files) != (len(files), later_files):
        raise Mismatch(
            f"{watermark}, but there are {len(files)} queues, and {later_files} files besides the first of each queue"
        )


def _index_entries(disk: SimulatedDisk, config: MessageStoreConfig) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    start = INDEX_HEADER.size + INDEX_SLOT.size * config.max_hash_slot_num + INDEX_ENTRY.size
    for _, content in sorted(_files(disk, f"{ROOT}/index/").items()):
        count = max(IndexHeader.decode(content).index_count - 1, 0)
        found = _ENTRY.iter_unpack(content[start : start + INDEX_ENTRY.size * count])
        entries += [(key, physical_offset) for key, physical_offset, _, _ in found]
    return entries


def _check_reads(store: MessageStore, model: StoreModel) -> None:
    """Pulls each queue from its beginning, and compares every byte."""
    queues = model.queues(model.end)
    for (topic, queue_id), records in queues.items():
        alive = [record.record for record in records if record.physical_offset >= store.min_offset]
        begin = len(records) - len(alive)
        low, high = store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)
        if (low, high) != (begin, len(records)):
            raise Mismatch(
                f"queue {topic!r} {queue_id} has offsets from {low} up to {high}, expected {begin} up to {len(records)}"
            )
        if not alive:
            continue
        result = store.get_message(topic, queue_id, low, 32, 1 << 20)
        wanted = b"".join(alive[: result.message_count])
        if result.status is not GetMessageStatus.FOUND or b"".join(map(bytes, result.views)) != wanted:
            raise Mismatch(f"a pull of queue {topic!r} {queue_id} returns bytes that differ from those sent")
    for topic, queue_id in store.queue_names():
        if (topic, queue_id) not in queues and store.max_queue_offset(topic, queue_id):
            raise Mismatch(f"queue {topic!r} {queue_id} shows messages, but should have none")


def _check_synced(life: StoreLife, failing: bool) -> None:
    """Checks that everything a recovered store serves is on disk, not only in memory."""
    disk, config = life.disk, life.config
    disk.capture()
    directories = [*_log_directories(config), f"{ROOT}/consumequeue", f"{ROOT}/index"]
    parts = tuple(f"{directory}/" for directory in directories)
    for path, inode in disk.inodes():
        served = path.startswith(parts) and path in disk.names and not path.endswith(".tmp")
        if served and (inode.pages or inode.sizes):
            raise Mismatch(f"{path} is served but not synced (pages {sorted(inode.pages)})")
    for change in disk.changes:
        # It does not matter if the name now belongs to a different file, or was removed with its directory. The store
        # does not use files that were removed before the recovery began; states in which they reappear are explored
        # separately.
        gone = not any(change.names.values()) and (failing or id(change) in life.known_changes)
        names = [path for path, node in change.names.items() if disk.names.get(path) is node]
        if not gone and any(path.startswith(parts) and not path.endswith((".tmp", "/allocating")) for path in names):
            raise Mismatch(f"{change.kind} {' '.join(change.names)} is not durable after the recovery")
