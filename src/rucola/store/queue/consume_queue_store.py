"""All consume queues of a store. Queues are opened when first needed, so the duration of start-up does not depend on
their number.

``queue_factory`` knows the kind of a queue and where its files are. Topic names come from clients. Each name has been
checked against the alphabet of topics. ``queue_factory`` checks the names again, so that no path can lead out of the
store's directory.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from rucola.common.numbers import INT32_MAX
from rucola.errors import DiskError
from rucola.formats.light_queue import is_lite
from rucola.formats.segment_name import is_segment_name, segment_name
from rucola.runtime.files import Files
from rucola.store.log.log_reader import LogReader
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.queue.queue_factory import QueueFactory, QueueOptions, is_queue_directory
from rucola.store.queue.readable_queue import ReadableQueue

if TYPE_CHECKING:
    from rucola.store.lite.lite_topics import LiteTopics

QUEUE_ID_MAX = 1 << 16
"""Limit of queue ids: messages are appended only to queues with smaller ids. Stores that Rucola did not write may have
queues with larger ids.
"""

MAPS_MAX = 24_576
"""Largest number of queue segments that are mapped at the same time. Each of them takes two of the process's
descriptors and one of its memory maps, of which Linux allows 65,530 unless vm.max_map_count says otherwise. If more
queues than this get messages in turn, each message maps a segment again, which costs ten times as much as the rest.
"""

_HELD_MAX = 4096
"""Initial ``held_max``: how many segments may be unmapped but unsynced. Each keeps a descriptor until its sync."""

_LISTED_MAX = 4096
"""Number of topics whose directories are remembered."""
_LOOKS_MAX = 342
"""Largest number of queues that one call of ``park_idle`` checks, and may have to unmap."""
_NO_QUEUES: dict[int, ConsumeQueue] = {}
_PARKED_AT_ONCE = 2
"""If too many segments are mapped, about this many queues are unmapped in one step. Unmapping hundreds in one step
would delay requests.
"""


class ConsumeQueueStore:
    """The queues of a store. The maintenance thread uses ``sync``, ``fail`` and ``wants_sync``; the event loop's thread
    uses all other methods.

    A sync uses the descriptor with which the data was written. A newly opened descriptor may not report an earlier
    write error, and the path may meanwhile lead to a different file or to none. ``_lock`` prevents a queue from being
    unmapped during its sync, and protects the count of kept descriptors.

    Attributes:
        factory: creates the queues of all kinds.
        lite: the queues of lite topics; None unless the store keeps light queues.
        queue_count: number of queues with at least one file.
        later_files: number of files of all queues, not counting the first file of each.
        lengths_right: whether ``load`` found only segments with the configured length.
        next_offset_tables: the tables that ``next_offsets`` has returned so far, by topic.
        first_counts: for each of those tables, the sum of its offsets when the table was created.
        maps_max: largest number of mapped segments. Beyond this number, queues are unmapped in the order in which they
            were mapped; ``park_idle`` moves a queue that it has checked to the end of this order.
        used: the queues that were written or read since ``park_idle`` looked at them.
        maps_made: number of segments mapped so far.
        maps_awaited: whether the next dispatch must map a segment to put appended messages. Each dispatch sets
            ``maps_awaited`` to False, unless the dispatch is paused (``Dispatcher.paused``).
        held_max: largest number of descriptors of unsynced segments that may outlive their maps; beyond this number, a
            queue is synced before it is unmapped.

    Args:
        files: access to the disk.
        root: the store's directory.
        options: options for each kind of queue.
        log: the log to which the units point.
        writable: False opens for reading only.
    """

    def __init__(self, files: Files, root: str, options: QueueOptions, log: LogReader, writable: bool = True) -> None:
        self.factory = QueueFactory(files, root, log, options, writable, self._mapped)
        self.lite: LiteTopics | None = None
        self.queue_count = self.later_files = 0
        self.lengths_right = True
        self._files = files
        self._topics: dict[bytes, dict[int, ConsumeQueue]] = {}
        self.next_offset_tables: dict[bytes, array[int]] = {}
        self.first_counts: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._syncing: ConsumeQueue | None = None
        self._error: DiskError | None = None
        self.maps_max = self._maps_limit = MAPS_MAX
        self.held_max = _HELD_MAX
        self._maps: OrderedDict[ConsumeQueue, int] = OrderedDict()
        self._map_count = 0
        self.maps_made = 0
        self.maps_awaited = False
        self.used: set[ConsumeQueue] = set()
        self._held: dict[ConsumeQueue, int] = {}
        self._held_count = 0
        self._looks_left = 0
        self._unseen: list[ConsumeQueue] = []
        self._listed: dict[bytes, frozenset[int]] = {}

    def limit_descriptors(self, limit: int) -> None:
        """Derives the limits of maps and kept descriptors from ``limit``, the process's limit on descriptors. Queues
        may use three eighths of the descriptors, connections nine sixteenths; the rest is for the log and the index.
        """
        self.maps_max = self._maps_limit = max(min(MAPS_MAX, limit // 8), 1)
        self.held_max = max(limit * 3 // 8 - 2 * self.maps_max, 1)

    def free_descriptors(self) -> None:
        """Frees descriptors when the process has none left: lowers ``maps_max`` to half the number of mapped segments
        and unmaps the segments beyond this limit. The next round of ``park_idle`` restores ``maps_max`` when it begins.
        """
        self.maps_max = max(self._map_count // 2, 1)
        self._park(len(self._maps), None)

    def names(self) -> Iterator[tuple[bytes, int]]:
        """Yields topic and queue id of every queue directory."""
        return self.factory.names()

    def topics(self) -> set[bytes]:
        """Returns every topic that has an open queue or a directory."""
        return self._topics.keys() | self.factory.topic_names()

    def ids(self, topic: bytes) -> list[int]:
        """Returns the queue ids of the directories of ``topic``."""
        return [int(name) for name in self.factory.queue_directories(self.factory.topic_directory(topic))]

    def directories(self) -> Iterator[str]:
        """Yields every directory of the queues, outer directories first."""
        return self.factory.directories()

    def load(self, several: bool = True) -> None:
        """Counts the queues that have a file, and checks the length of one file of each, without opening any.

        Args:
            several: whether to look for further files of each queue; pass False only if no queue has more than one
                file.

        Raises:
            StoreDamagedError: a topic has queues of a kind that does not match its type.
        """
        self.factory.forget_checked()
        self.factory.check_types()
        files, first = self._files, segment_name(0)
        self.queue_count, self.later_files, self.lengths_right = 0, 0, True
        for topic, directory in self.factory.topics():
            expected = self.factory.segment_bytes(topic)
            # Most queues still have their first segment. Looking for that file takes a third of the time of listing the
            # directory.
            wanted = (first, segment_name(expected)) if several else (first,)
            for name, lengths in files.lengths_below(directory, is_queue_directory, wanted).items():
                length = lengths[0]
                if length < 0 or (lengths[-1] >= 0 and several):
                    sizes = files.list_sizes(f"{directory}/{name}", is_segment_name)
                    length = next(iter(sizes.values()), -1)
                    self.later_files += max(sum(map(bool, sizes.values())) - 1, 0)
                self.queue_count += length >= 0
                self.lengths_right = self.lengths_right and length in (expected, -1)

    def check(self) -> None:
        """Checks the names and lengths of all queue files, without opening or changing one.

        Raises:
            StoreDamagedError: one of these files is not a segment.
        """
        self.factory.check()

    def queues_of(self, topic: bytes) -> dict[int, ConsumeQueue]:
        """Returns the open queues of ``topic``, by id. The dispatcher keeps this dictionary while it puts consecutive
        records of the same topic.
        """
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._topics[topic] = {}
        return queues

    def get(self, topic: bytes, queue_id: int) -> ConsumeQueue:
        """Returns the queue; opens it if it is not open. An unknown queue is empty and has no file until something is
        put into it.
        """
        queues = self.queues_of(topic)
        queue = queues.get(queue_id)
        if queue is None:
            if not 0 <= queue_id <= INT32_MAX:
                raise ValueError(f"queue id {queue_id} is out of range")
            queue = self.factory.make(topic, queue_id)
            queue.open()
            queues[queue_id] = queue
        return queue

    def find(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        """Returns the queue if it is open or has a directory, else None. Readers use this method, because they must not
        add queues to the table.
        """
        queue = self._topics.get(topic, {}).get(queue_id)
        if queue is not None:
            return queue
        return self.get(topic, queue_id) if queue_id in self._directories_of(topic) else None

    def readable(self, topic: bytes, queue_id: int) -> ReadableQueue | None:
        """Returns a queue from which messages may be read; None if there is none. A lite topic has its queue in
        ``lite``, also if RocketMQ has left a directory for it.
        """
        if self.lite is not None and queue_id == 0 and is_lite(topic):
            return self.lite.queue(topic)
        return self.find(topic, queue_id)

    def note_read(self, queue: ReadableQueue) -> None:
        """Notes that a queue was read."""
        if isinstance(queue, ConsumeQueue):
            self.used.add(queue)

    def _directories_of(self, topic: bytes) -> frozenset[int]:
        """Ids of the queues that had a directory when this was last asked for the first time. A directory that was made
        since belongs to an open queue. Without this memory, each pop of a topic would look up all its empty queues on
        the disk.
        """
        ids = self._listed.get(topic)
        if ids is None:
            if len(self._listed) >= _LISTED_MAX:
                self._listed.clear()
            ids = self._listed[topic] = frozenset(self.ids(topic))
        return ids

    def appended(self, topic: bytes, queue_id: int) -> None:
        """Notes that a message was appended but is not in its queue yet."""
        if not self.maps_awaited:
            queue = self._topics.get(topic, _NO_QUEUES).get(queue_id)
            self.maps_awaited = queue is None or (queue not in self._maps and type(queue) is ConsumeQueue)

    def unmapped(self, queues: Iterable[ConsumeQueue | None]) -> int:
        """Number of these queues that need a newly mapped segment before something can be put into them; None stands
        for a queue that is not open.
        """
        return sum([queue not in self._maps for queue in queues])

    def first_offset(self, topic: bytes, queue_id: int) -> int:
        """Returns the queue offset of the oldest message of a queue as reported to clients. For a queue that never had
        a message, it is -1 if the queue is of type BatchCQ, otherwise 0.
        """
        queue = self.readable(topic, queue_id)
        if queue is not None and queue.max_offset > 0:
            return queue.min_offset
        return -1 if self.factory.is_batch(topic) else 0

    def next_offsets(self, topic: bytes, queue_count: int = 0) -> array[int]:
        """Returns the next queue offset of each queue of ``topic``, indexed by queue id. Appends advance the offsets in
        this table.

        Args:
            queue_count: smallest number of entries in the returned table.
        """
        offsets = self.next_offset_tables.get(topic)
        if offsets is None:
            ids = self.ids(topic)
            offsets = array("q", [0])
            queue_count = max(queue_count, 1 + max((i for i in ids if i < QUEUE_ID_MAX), default=0))
            for queue_id in ids:
                self._grow(offsets, queue_count)
                if queue_id < QUEUE_ID_MAX:
                    offsets[queue_id] = self.get(topic, queue_id).max_offset
            # ``offsets`` is stored only after the queues were opened, because a queue that cannot be opened at the
            # moment must not count as empty.
            self.next_offset_tables[topic] = offsets
            self.first_counts[topic] = sum(offsets)
        self._grow(offsets, queue_count)
        return offsets

    def directory(self, topic: bytes, queue_id: int) -> str:
        """Returns the path of a queue's files, whether they exist or not."""
        return self.factory.directory(topic, queue_id)

    def detach_topic(self, topic: bytes) -> list[ConsumeQueue]:
        """Removes the queues of ``topic`` from all tables in memory. Their files stay.

        Returns:
            The queues that were open; the caller must close them.
        """
        opened = self._topics.pop(topic, {})
        self.next_offset_tables.pop(topic, None)
        self.first_counts.pop(topic, None)
        for queue in opened.values():
            self._count(queue, 0)
        for name in self._files.list_directories(self.factory.topic_directory(topic)):
            known = not (name.isascii() and name.isdigit()) or int(name) in opened
            if not known and (count := len(self._files.list_sizes(self.directory(topic, int(name)), is_segment_name))):
                self.queue_count -= 1
                self.later_files -= count - 1
        self.used.difference_update(opened.values())
        with self._lock:
            for queue in opened.values():
                self._map_count -= self._maps.pop(queue, 0)
                self._held_count -= self._held.pop(queue, 0)
        self._listed.pop(topic, None)
        self.factory.forget(topic)
        return list(opened.values())

    def open_queues(self) -> Iterator[ConsumeQueue]:
        """Yields all open queues."""
        for queues in list(self._topics.values()):
            yield from list(queues.values())

    def names_of_files(self) -> set[tuple[bytes, int]]:
        """Returns topic and queue id of the open queues that have files."""
        return {(queue.topic, queue.queue_id) for queue in self.open_queues() if queue.segments.files}

    def written(self, queues: Collection[ConsumeQueue]) -> None:
        """Notes that units were put into ``queues``, which may have created files."""
        self.used.update(queues)
        for queue in queues:
            if len(queue.segments.files) != queue.counted:
                self.recount(queue)

    def recount(self, queue: ConsumeQueue) -> None:
        """Notes that ``queue`` may have gained or lost files."""
        self._count(queue, len(queue.segments.files))

    def _count(self, queue: ConsumeQueue, count: int) -> None:
        self.queue_count += bool(count) - bool(queue.counted)
        self.later_files += max(count - 1, 0) - max(queue.counted - 1, 0)
        queue.counted = count

    def fail(self, error: DiskError) -> None:
        """Stops keeping descriptors for syncs. Called when a sync by the maintenance thread has failed: no queue is
        synced again, because a later success would prove nothing.
        """
        self._error = error

    @property
    def wants_sync(self) -> bool:
        """True if more than half of ``held_max`` descriptors are kept for the next sync, or if a sync has failed. If
        the sync failed on the event loop's thread, the maintenance thread's next ``sync`` raises that error.
        """
        return self._error is not None or self._held_count > self.held_max // 2

    def sync(self, queues: Iterable[ConsumeQueue]) -> None:
        """Syncs queues that were written. Runs on the maintenance thread, or after that thread has ended.

        Raises:
            DiskError: some units may not be on disk.
        """
        try:
            for queue in queues:
                with self._lock:
                    self._syncing = queue
                queue.sync()
                with self._lock:
                    self._syncing = None
                    self._held_count -= self._held.pop(queue, 0)
        finally:
            self._syncing = None
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Closes all queues. Queues that are used later are opened again."""
        for queue in self.open_queues():
            self.recount(queue)
            queue.close()
        self.factory.forget_checked()
        self._topics.clear()
        self.next_offset_tables.clear()
        self.first_counts.clear()
        self._maps.clear()
        self._held.clear()
        self._map_count = self._held_count = self._looks_left = 0
        self._unseen.clear()
        self.used.clear()
        self._listed.clear()

    def _mapped(self, queue: ConsumeQueue) -> None:
        self._maps[queue] = self._maps.get(queue, 0) + 1
        self._map_count += 1
        self.maps_made += 1
        if self._map_count > self.maps_max:
            self._park(_PARKED_AT_ONCE, queue)

    def _park(self, count: int, busy: ConsumeQueue | None) -> None:
        """Unmaps queues, in the order described at ``maps_max``, until no more than ``maps_max`` segments are mapped;
        looks at ``count + 2`` queues at most. Queues that are still in use are soon mapped again.

        The descriptors of unsynced segments are kept. If too many would be kept, a queue is synced before it is
        unmapped.
        """
        for queue in list(islice(self._maps, count + 2)):
            if self._map_count <= self.maps_max:
                break
            if queue is busy:
                continue
            with self._lock:
                if queue is self._syncing:
                    continue
                if self._error is None and queue.unsynced and self._held_count + self._maps[queue] > self.held_max:
                    self._sync_now(queue)
                self._park_one(queue)

    def park_idle(self, shares: int) -> None:
        """Checks the next part of the mapped queues. A round checks each mapped queue once. It takes ``shares`` calls,
        or more if there are very many mapped queues, so that no call takes long. A queue that was not used since the
        previous round is unmapped, and its descriptors are closed.

        A queue that waits for a sync stays mapped until a later round.
        """
        if self._looks_left == 0:
            self._unseen = list(reversed(self._maps))
            self._looks_left = max(shares, -(-len(self._unseen) // _LOOKS_MAX))
            self.maps_max = self._maps_limit
        for _ in range(-(-len(self._unseen) // self._looks_left)):
            queue = self._unseen.pop()
            if queue not in self._maps:
                continue
            with self._lock:
                if queue in self.used or queue is self._syncing or (queue.unsynced and self._error is None):
                    self.used.discard(queue)
                    self._maps[queue] = self._maps.pop(queue)
                else:
                    self._park_one(queue)
        self._looks_left -= 1

    def _park_one(self, queue: ConsumeQueue) -> None:
        """Unmaps a queue and closes the descriptors that no sync needs. The caller holds ``_lock``, and the queue is
        not being synced.
        """
        before = self._held.pop(queue, 0)
        if held := queue.park(keep_unsynced=self._error is None):
            self._held[queue] = held
        self._held_count += held - before
        self.used.discard(queue)
        self._map_count -= self._maps.pop(queue)

    def _sync_now(self, queue: ConsumeQueue) -> None:
        """Syncs a queue on the event loop's thread; the caller holds ``_lock``. If the sync fails, the maintenance
        thread reports the failure, and no progress is recorded any more.
        """
        try:
            queue.sync()
        except DiskError as error:
            self._error = error

    def _grow(self, offsets: array[int], queue_count: int) -> None:
        if queue_count > len(offsets):
            offsets.extend([0] * (queue_count - len(offsets)))
