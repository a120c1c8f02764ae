"""All consume queues of a store, opened when they are first needed: a start does not depend on how many there are.

Where a queue's files are, and of which kind it is, is told by ``queue_factory``. Names of topics come from clients;
each was checked against the alphabet of topics before it got here, and is checked again against leaving the directory.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Iterator

from rucola.errors import DiskError
from rucola.formats.segment_name import segment_name
from rucola.runtime.files import Files
from rucola.store.log.log_reader import LogReader
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.queue.queue_factory import QueueFactory, QueueOptions

QUEUE_ID_MAX = 1 << 16
"""Messages are appended to queues with smaller ids only; foreign stores may hold others."""

MAPS_MAX = 4096
"""Segments of queues that are mapped at a time: each takes two of the process's descriptors, and a map."""

_HELD_MAX = 4096
"""Segments whose map was given up before they were synced: each keeps a descriptor until then."""

_INT32_MAX = 0x7FFFFFFF
_PARKED_SHARE = 4


class ConsumeQueueStore:
    """The queues of a store. Used from the event loop's thread; ``sync`` from the keeper's thread.

    What is synced goes through the descriptor it was written with: a path may lead to another file by then, or to none,
    and a file that is opened anew may not tell of an error that its pages had before. ``_lock`` keeps a queue from
    being parked while it is synced, and guards the count of descriptors that are held.

    Attributes:
        factory: knows the kinds of queues.
        queue_count: number of queues with at least one file.
        later_files: number of files of all queues, without the first of each.
        lengths_right: ``load`` met no segment with another length than the configured one.
        next_offset_tables: what ``next_offsets`` has answered so far, by topic.
        first_counts: the sum of each of those tables when it was made.
        maps_max: when more segments are mapped, queues that have been mapped for long give up their maps.
        held_max: so many descriptors of unsynced segments outlive their maps; beyond, a queue is synced on the spot.

    Args:
        files: door to the disk.
        root: the store's directory.
        options: of the kinds of queues.
        log: what the units point into.
        writable: False = look only.
    """

    def __init__(self, files: Files, root: str, options: QueueOptions, log: LogReader, writable: bool = True) -> None:
        self.factory = QueueFactory(files, root, log, options, writable)
        self.queue_count = self.later_files = 0
        self.lengths_right = True
        self._files = files
        self._topics: dict[bytes, dict[int, ConsumeQueue]] = {}
        self.next_offset_tables: dict[bytes, array[int]] = {}
        self.first_counts: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._syncing: ConsumeQueue | None = None
        self._error: DiskError | None = None
        self.maps_max = MAPS_MAX
        self.held_max = _HELD_MAX
        self._maps: dict[ConsumeQueue, int] = {}
        self._map_count = 0
        self._held: dict[ConsumeQueue, int] = {}
        self._held_count = 0
        self._looks_left = 0
        self._unseen: list[ConsumeQueue] = []

    def limit_descriptors(self, limit: int) -> None:
        """Of ``limit`` descriptors that the process may have, half stay for connections and the log."""
        self.maps_max = max(min(MAPS_MAX, limit // 6), 1)
        self.held_max = max(limit // 2 - 2 * self.maps_max, 1)

    def names(self) -> Iterator[tuple[bytes, int]]:
        """Topic and queue id of every queue directory."""
        return self.factory.names()

    def ids(self, topic: bytes) -> list[int]:
        """Queue ids of the directories of ``topic``."""
        return [int(name) for name in self.factory.queue_directories(self.factory.topic_directory(topic))]

    def directories(self) -> Iterator[str]:
        """Every directory of the queues, outer ones first."""
        return self.factory.directories()

    def load(self, several: bool = True) -> None:
        """Counts the queues that have a file, and looks at the length of one file of each, without opening any.

        Args:
            several: counts the files of those that have several, too; False when there is none for sure.

        Raises:
            StoreDamagedError: a topic has queues of another kind than its type says.
        """
        self.factory.check_types()
        files, first = self._files, segment_name(0)
        self.queue_count, self.later_files, self.lengths_right = 0, 0, True
        for topic, directory, names in self.factory.topics():
            expected = self.factory.segment_bytes(topic)
            second = segment_name(expected)
            for name in names:
                # Most queues still have their first segment, and asking for it takes a third of the time of a list.
                length = files.length(f"{directory}/{name}/{first}")
                if length < 0 or (several and files.exists(f"{directory}/{name}/{second}")):
                    sizes = files.list_sizes(f"{directory}/{name}")
                    length = next(iter(sizes.values()), -1)
                    self.later_files += max(sum(map(bool, sizes.values())) - 1, 0)
                self.queue_count += length >= 0
                self.lengths_right = self.lengths_right and length in (expected, -1)

    def check(self) -> None:
        """Looks at the names and lengths of all queue files, without opening or changing one.

        Raises:
            StoreDamagedError: one of them is not a segment.
        """
        self.factory.check()

    def queues_of(self, topic: bytes) -> dict[int, ConsumeQueue]:
        """The queues of ``topic`` that are open, by id; the dispatcher keeps this dictionary over a run of records."""
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._topics[topic] = {}
        return queues

    def get(self, topic: bytes, queue_id: int) -> ConsumeQueue:
        """The queue, opened now if need be; an unknown one is empty and has no file until something is put into it."""
        queues = self.queues_of(topic)
        queue = queues.get(queue_id)
        if queue is None:
            if not 0 <= queue_id <= _INT32_MAX:
                raise ValueError(f"queue id {queue_id} is out of range")
            queue = self.factory.make(topic, queue_id)
            if type(queue) is ConsumeQueue:
                # The other kinds are few, and know more of their maps than that they are there.
                queue.on_map = self._mapped
            queue.open()
            queues[queue_id] = queue
        return queue

    def find(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        """The queue if it is open or has a directory, else None; for readers, who must not fill the table."""
        queue = self._topics.get(topic, {}).get(queue_id)
        if queue is not None:
            return queue
        if not 0 <= queue_id <= _INT32_MAX or not self._files.exists(self.factory.directory(topic, queue_id)):
            return None
        return self.get(topic, queue_id)

    def first_offset(self, topic: bytes, queue_id: int) -> int:
        """Offset of the oldest message of a queue, as clients are told: -1 for an empty one of type BatchCQ, else 0."""
        queue = self.find(topic, queue_id)
        if queue is not None and queue.max_offset > 0:
            return queue.min_offset
        return -1 if self.factory.is_batch(topic) else 0

    def next_offsets(self, topic: bytes, queue_count: int = 0) -> array[int]:
        """Next queue offset of each queue of ``topic``, by queue id; the append advances it.

        Args:
            queue_count: the table has at least so many entries afterwards.
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
            # Now that it is complete: a queue that cannot be opened at the moment must not count as one that is empty.
            self.next_offset_tables[topic] = offsets
            self.first_counts[topic] = sum(offsets)
        self._grow(offsets, queue_count)
        return offsets

    def directory(self, topic: bytes, queue_id: int) -> str:
        """Where the files of a queue are, or would be."""
        return self.factory.directory(topic, queue_id)

    def detach_topic(self, topic: bytes) -> list[ConsumeQueue]:
        """Takes the queues of ``topic`` out of all tables: they count as not there. Their files stay.

        Returns:
            Those that are open, for whoever closes them.
        """
        opened = self._topics.pop(topic, {})
        self.next_offset_tables.pop(topic, None)
        self.first_counts.pop(topic, None)
        for queue in opened.values():
            self._count(queue, 0)
        for name in self._files.list_directories(self.factory.topic_directory(topic)):
            known = not (name.isascii() and name.isdigit()) or int(name) in opened
            if not known and (count := len(self._files.list_files(self.directory(topic, int(name))))):
                self.queue_count -= 1
                self.later_files -= count - 1
        with self._lock:
            for queue in opened.values():
                self._map_count -= self._maps.pop(queue, 0)
                self._held_count -= self._held.pop(queue, 0)
        self.factory.forget(topic)
        return list(opened.values())

    def open_queues(self) -> Iterator[ConsumeQueue]:
        """Every queue that is open."""
        for queues in list(self._topics.values()):
            yield from list(queues.values())

    def written(self, queues: list[ConsumeQueue]) -> None:
        """Says that units were put into ``queues``, which may have made files."""
        for queue in queues:
            queue.used = True
            if len(queue.files.segments) != queue.counted:
                self.recount(queue)

    def recount(self, queue: ConsumeQueue) -> None:
        """Says that ``queue`` may have more files than before, or fewer."""
        self._count(queue, len(queue.files.segments))

    def _count(self, queue: ConsumeQueue, count: int) -> None:
        self.queue_count += bool(count) - bool(queue.counted)
        self.later_files += max(count - 1, 0) - max(queue.counted - 1, 0)
        queue.counted = count

    def fail(self, error: DiskError) -> None:
        """No sync follows any more, as nothing that it says would be believed: no descriptor is kept for one."""
        self._error = error

    @property
    def wants_sync(self) -> bool:
        """Whether so many descriptors wait for a sync that the next queues might have to wait for it themselves."""
        return self._error is not None or self._held_count > self.held_max // 2

    def sync(self, queues: Iterable[ConsumeQueue]) -> None:
        """Syncs queues that were written; called by the keeper's thread, or when it has ended.

        Raises:
            DiskError: units may not be on the disk.
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
        """Forgets all queues and gives up their maps; those that are asked for later are opened again."""
        for queue in self.open_queues():
            self.recount(queue)
            queue.close()
        self._topics.clear()
        self.next_offset_tables.clear()
        self.first_counts.clear()
        self._maps.clear()
        self._held.clear()
        self._map_count = self._held_count = self._looks_left = 0
        self._unseen.clear()

    def _mapped(self, queue: ConsumeQueue) -> None:
        self._maps[queue] = self._maps.get(queue, 0) + 1
        self._map_count += 1
        if self._map_count > self.maps_max:
            self._park(queue)

    def _park(self, busy: ConsumeQueue) -> None:
        """Those mapped first give up their maps, some at once; whichever is in use soon has them again.

        Descriptors of what is not synced are kept. When there are too many, no more queues than needed are parked, and
        each waits for its sync first.
        """
        enough = self.maps_max - self.maps_max // _PARKED_SHARE
        for queue in list(self._maps):
            if self._map_count <= enough:
                break
            if queue is busy:
                continue
            with self._lock:
                if queue is self._syncing:
                    continue
                if self._error is None and queue.unsynced and self._held_count + self._maps[queue] > self.held_max:
                    if self._map_count <= self.maps_max:
                        break
                    self._sync_now(queue)
                self._park_one(queue)

    def park_idle(self, shares: int) -> None:
        """One of the ``shares`` calls of a round, in which each queue that is mapped is looked at once: those not used
        since the round before give up their maps, and so their descriptors.

        A queue that waits for its sync keeps them until the next round.
        """
        if self._looks_left == 0:
            self._looks_left, self._unseen = shares, list(reversed(self._maps))
        for _ in range(-(-len(self._unseen) // self._looks_left)):
            queue = self._unseen.pop()
            if queue not in self._maps:
                continue
            with self._lock:
                if queue.used or queue is self._syncing or (queue.unsynced and self._error is None):
                    queue.used = False
                    self._maps[queue] = self._maps.pop(queue)
                else:
                    self._park_one(queue)
        self._looks_left -= 1

    def _park_one(self, queue: ConsumeQueue) -> None:
        """The lock is taken, and the queue is not being synced."""
        before = self._held.pop(queue, 0)
        if held := queue.park(keep_unsynced=self._error is None):
            self._held[queue] = held
        self._held_count += held - before
        self._map_count -= self._maps.pop(queue)

    def _sync_now(self, queue: ConsumeQueue) -> None:
        """In the loop's thread, the lock taken. A failure is the keeper's to tell: nothing is recorded any more."""
        try:
            queue.sync()
        except DiskError as error:
            self._error = error

    def _grow(self, offsets: array[int], queue_count: int) -> None:
        if queue_count > len(offsets):
            offsets.extend([0] * (queue_count - len(offsets)))
