"""One process of ``tests.crash.threads``: a store with real threads that may be killed at any moment.

Usage: ``python -m tests.crash.thread_life DIRECTORY CONFIG SEED``. It first checks the earlier promises, then uses the
store until a line comes on standard input, and then stops it. After a broken promise, the exit code is 3 and the last
line describes it.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.crash.thread_ledger import HOST, Ledger, Place, message_of
from tests.crash.thread_watch import Broken, SyncWatch

from rucola.common.columns import ROW_WIDTH, FrameColumn, new_table
from rucola.common.message import MessageExt, StoreMessage
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.message import decode_message, decode_messages, fill_row
from rucola.runtime.clock import SystemClock
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.results import GetMessageStatus, PutMessageStatus, StoreState
from rucola.store.row_run import AS_THEY_ARE, RowRun

READY = "ready"
"""First line of output; by then the store has been checked and accepts messages."""
TOPICS = (b"A", b"B", b"C")
QUEUES = 3
_ANSWER_S = 20.0
_SEGMENT_BYTES = 65536
_BASE = MessageStoreConfig(
    mapped_file_size_commit_log=_SEGMENT_BYTES,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=100,
    max_index_num=60,
    flush_disk_type=FlushDiskType.ASYNC_FLUSH,
    flush_interval_commit_log_ms=1,
    flush_commit_log_least_pages=0,
    flush_interval_consume_queue_ms=1,
    flush_consume_queue_thorough_interval_ms=1,
    commit_interval_commit_log_ms=1,
    commit_commit_log_least_pages=0,
    clean_resource_interval_ms=1,
    file_reserved_time_h=1,
    disk_max_used_space_ratio=95,
)
_SYNC = replace(_BASE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
CONFIGS = {
    "sync": _SYNC,
    "async": _BASE,
    "pool": replace(_BASE, transient_store_pool_enable=True, transient_store_pool_size=3),
    "calls": replace(_BASE, write_without_mmap=True),
    "plain": replace(_SYNC, message_index_enable=False),
    "syncpool": replace(_SYNC, transient_store_pool_enable=True, transient_store_pool_size=3),
}


class ThreadLife:
    """Uses one store from the thread that owns it, while the store's own threads work.

    Attributes:
        counts: how often each action was done.
    """

    def __init__(self, directory: Path, config: MessageStoreConfig, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._config = replace(config, store_path_root_dir=str(directory / "store"))
        self._root = directory / "store"
        self._random = Random(seed)
        self._ledger = Ledger(directory / "ledger")
        self._watch = SyncWatch(self._root, self._config)
        self._flushed = threading.Event()
        self._stopping = threading.Event()
        self._tail = 0
        self._number = seed * 10_000_000
        self._visible: dict[tuple[bytes, int], dict[int, int]] = {}
        self._told: dict[tuple[bytes, int], int] = {}
        self._waiting: list[tuple[float, int, dict[int, Place]]] = []
        self._store = MessageStore(self._config, self._watch.files(), SystemClock(), is_batch_topic=None)
        self._store.listen(on_flushed=self._on_flushed)
        self._watch.is_deleted = self._store.is_deleted

    def run(self, ended: Callable[[], bool]) -> None:
        """Opens the store, checks it, and uses it until ``ended`` returns true; then stops it."""
        store = self._store
        store.load()
        self._check_all()
        self._watch.loaded(store.max_offset)
        self._watch.watch(store._marks.watermark)
        store.start()
        print(READY, flush=True)
        helpers = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._read_in_place, self._fetch)]
        for helper in helpers:
            helper.start()
        try:
            self._work(ended)
        finally:
            self._stopping.set()
            for helper in helpers:
                helper.join(30)
        store.shutdown()
        self._answer(store.max_offset)
        self._fail_if_broken()

    def _work(self, ended: Callable[[], bool]) -> None:
        random = self._random
        actions: list[Callable[[], None]] = [
            *([self._put] * 12),
            *([self._put_batch] * 4),
            *([self._put_rows] * 6),
            *([self._dispatch] * 12),
            *([self._read] * 12),
            *([self._query] * 4),
            self._pause,
            self._pause,
        ]
        at = 0
        while not ended():
            for _ in range(20):
                random.choice(actions)()
                at += 1
                if at % 400 == 0:
                    self._delete()
                if at % 150 == 0:
                    self._expire()
                self._check_now()
        self._dispatch()

    # -- appends ------------------------------------------------------------------------------------------------------

    def _put(self) -> None:
        self._append(1, together=False)

    def _put_batch(self) -> None:
        self._append(self._random.randrange(2, 6), together=True)

    def _put_rows(self) -> None:
        self._append(self._random.randrange(2, 20), together=False)

    def _append(self, count: int, together: bool) -> None:
        topic = self._random.choice(TOPICS)
        numbers = range(self._number, self._number + count)
        self._number += count
        queue_ids = [self._random.randrange(QUEUES) for _ in numbers]
        self._ledger.sends([(number, topic, queue_id) for number, queue_id in zip(numbers, queue_ids, strict=True)])
        messages = [message_of(number, topic, queue_id) for number, queue_id in zip(numbers, queue_ids, strict=True)]
        places = self._put_messages(messages) if together or count == 1 else self._put_table(messages)
        self.counts["appended"] += len(places)
        found = {number: place for number, place in zip(numbers, places, strict=True) if place is not None}
        for number, queue_id in zip(numbers, queue_ids, strict=True):
            place = found.get(number)
            if place is None:
                if self._store.state is StoreState.RUNNING and not self._config.pooled:
                    raise Broken(f"message {number} was refused while the store runs")
                continue
            known = self._visible.setdefault((topic, queue_id), {})
            expected = max(known, default=-1) + 1
            if known and place.queue_offset != expected:
                raise Broken(f"{topic!r} {queue_id} gives queue offset {place.queue_offset}, not {expected}")
            known[place.queue_offset] = number
        end = max((place.end for place in found.values()), default=0)
        self._waiting.append((time.monotonic(), end, found))

    def _put_messages(self, messages: list[StoreMessage]) -> list[Place | None]:
        results = self._store.put_messages(messages)
        return [
            Place(r.physical_offset, r.size, r.queue_offset) if r.status is PutMessageStatus.PUT_OK else None
            for r in results
        ]

    def _put_table(self, messages: list[StoreMessage]) -> list[Place | None]:
        source, table = bytearray(), new_table(len(messages))
        for row, message in enumerate(messages):
            fill_row(table, row, message, len(source))
            source += message.body + message.properties
        view = memoryview(source)
        self._store.append_rows(RowRun(source, view, table, 0, len(messages)), messages[0].topic, HOST, AS_THEY_ARE)
        places: list[Place | None] = []
        for base in range(0, len(messages) * ROW_WIDTH, ROW_WIDTH):
            offset = table[base + FrameColumn.PHYSICAL_OFFSET]
            size, queue_offset = table[base + FrameColumn.RECORD_SIZE], table[base + FrameColumn.QUEUE_OFFSET]
            places.append(Place(offset, size, queue_offset) if offset >= 0 else None)
        return places

    def _on_flushed(self) -> None:
        """Checks the flushed offset; is called in a thread of the store."""
        self._flushed.set()
        if self._store.state is StoreState.RUNNING:
            self._guarded(lambda: self._watch.check_log(self._store.flushed_offset))

    def _answer(self, reached: int) -> None:
        """Acknowledges the messages that wait for ``reached`` or a lower offset."""
        while self._waiting and self._waiting[0][1] <= reached:
            self._ledger.acknowledged(self._waiting.pop(0)[2])

    # -- consumers ----------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        store = self._store
        store.dispatch()
        for topic, queue_id, max_offset, _ in store.take_arrivals():
            self._told[topic, queue_id] = max_offset
        for (topic, queue_id), told in self._told.items():
            seen = store.max_queue_offset(topic, queue_id)
            if seen != told:
                raise Broken(f"{topic!r} {queue_id} has {seen} messages, {told} were told of")
        self.counts["dispatched"] += 1

    def _read(self) -> None:
        topic, queue_id = self._random.choice(TOPICS), self._random.randrange(QUEUES)
        store = self._store
        low, high = store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)
        if low >= high:
            return
        begin = self._random.randrange(low, high)
        result = store.get_message(topic, queue_id, begin, 16, 1 << 16, may_block=False)
        if result.cold is not None:
            fetching = threading.Thread(target=result.cold)
            fetching.start()
            self._put()
            fetching.join()
            result = store.get_message(topic, queue_id, begin, 16, 1 << 16)
        if result.status is not GetMessageStatus.FOUND:
            raise Broken(f"{topic!r} {queue_id} from {begin} of {low} to {high}: {result.status}")
        for view in result.views:
            for found in decode_messages(view):
                self._compare(found, topic, queue_id)
        self.counts["read"] += result.message_count

    def _compare(self, found: MessageExt, topic: bytes, queue_id: int) -> int:
        """Checks that the message read is the message sent; returns its number."""
        number = int(found.properties["KEYS"][1:])
        sent = message_of(number, topic, queue_id)
        if (found.body, found.queue_id) != (sent.body, queue_id) or self._ledger.sent.get(number) != (topic, queue_id):
            raise Broken(f"message {number} of {topic!r} {queue_id} is not what was sent")
        known = self._visible.get((topic, queue_id), {}).get(found.queue_offset)
        if known not in (None, number):
            raise Broken(f"{topic!r} {queue_id} has message {number} where {known} was put")
        end = found.physical_offset + found.store_size
        if end > self._store.confirm_offset:
            raise Broken(f"message {number} is shown before it may be seen")
        return number

    def _query(self) -> None:
        if self._config.message_index_enable and self._ledger.places:
            number = self._random.choice(self._recent())
            self._find(number)

    def _recent(self) -> list[int]:
        return list(self._ledger.places)[-200:]

    def _find(self, number: int) -> None:
        topic, _ = self._ledger.sent[number]
        place = self._ledger.places[number]
        if place.physical_offset < self._store.min_offset or place.end > self._store._dispatcher.position:
            return
        cold = ColdRecords()
        for _ in range(50):
            try:
                views = self._store.query_by_key(topic, b"U%d" % number, cold=cold).views
                break
            except NotInMemoryError:
                cold.fetch()
        if [decode_message(view).physical_offset for view in views] != [place.physical_offset]:
            raise Broken(f"message {number} is not found by its key")
        self.counts["queried"] += 1

    # -- deletion and expiry ------------------------------------------------------------------------------------------

    def _delete(self) -> None:
        topic = self._random.choice(TOPICS)
        end = self._store.max_offset
        self._ledger.deletes(topic, end)
        self._store.delete_topic(topic)
        self._ledger.deletion_done(topic, end)
        for queue_id in range(QUEUES):
            self._visible.pop((topic, queue_id), None)
            self._told.pop((topic, queue_id), None)
            if self._store.max_queue_offset(topic, queue_id):
                raise Broken(f"{topic!r} was deleted and has messages")
        self.counts["deleted"] += 1

    def _expire(self) -> None:
        """Makes all segments except the newest three count as old; the maintenance thread may then remove them."""
        old = time.time() - 7200
        for path in sorted(self._root.glob("commitlog/*"))[:-3]:
            with suppress(FileNotFoundError):
                os.utime(path, (old, old))
        self._store.expire_now()
        self.counts["expired"] = self._store.stats.expired_segments

    def _pause(self) -> None:
        self._flushed.wait(0.002)
        self._flushed.clear()

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check_now(self) -> None:
        store = self._store
        self._answer(store.flushed_offset if self._config.sync_flush else store._log.max_offset)
        if self._waiting and time.monotonic() - self._waiting[0][0] > _ANSWER_S:
            raise Broken(f"a sender waits for {self._waiting[0][1]}, the disk has {store.flushed_offset}")
        starts = [file.start for file in store._log.segments.files]
        if starts != list(range(starts[0], starts[0] + len(starts) * _SEGMENT_BYTES, _SEGMENT_BYTES)):
            raise Broken(f"segments are {starts}")
        if store.state is not StoreState.RUNNING:
            raise Broken(f"the store is {store.state}")
        if store._keeper.failed:
            raise Broken("the keeper gave up")
        self._fail_if_broken()

    def _fail_if_broken(self) -> None:
        if self._watch.broken is not None:
            raise self._watch.broken

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by the thread that owns the store
            self._watch.broken = self._watch.broken or error

    def _fetch(self) -> None:
        """Reads old records of the log in a separate thread, as a cold read does."""
        random = Random(1)
        while not self._stopping.is_set():
            segments = list(self._store._log.segments.files)
            file = random.choice(segments)
            try:
                file.map.read(random.randrange(file.size - 4096), 4096)
            except Exception as error:
                if file in self._store._log.segments.files:
                    raise Broken(f"a part of {file.path} cannot be read") from error
            self._stopping.wait(0.001)

    def _read_in_place(self) -> None:
        """Reads the directory of the running store: bytes that were read must never change."""
        known: dict[int, bytes] = {}
        while not self._stopping.is_set():
            try:
                reader = OfflineStore(str(self._root))
            except (StoreDamagedError, DiskError):
                self._stopping.wait(0.001)  # a segment expired while the directory was read
                continue
            begin, end = reader.min_offset(), reader.end_offset()
            for physical_offset, record in list(known.items()):
                again = _record(reader, physical_offset)
                if again is None or physical_offset < begin:
                    del known[physical_offset]
                    if self._is_there(physical_offset):
                        raise Broken(f"a reader in place does not see the record at {physical_offset} any more")
                elif again != record:
                    place = f"at {physical_offset}, in the log from {begin} to {end}"
                    raise Broken(f"a reader in place was given a record {place} that changed: {record!r} to {again!r}")
            # Read on from the last position: a recovery might still remove the newest records.
            position = self._tail if self._tail >= begin else begin
            while position < end and (record := _record(reader, position)) is not None:
                known[position] = record
                position += len(record)
            if position < end and self._is_there(position):
                position += -position % _SEGMENT_BYTES  # a blank fills the rest of the segment
            self._tail = position
            reader.log.segments.close()
            self.counts["looked"] += 1
            while len(known) > 100:
                del known[next(iter(known))]
            self._stopping.wait(0.003)

    def _is_there(self, physical_offset: int) -> bool:
        return physical_offset >= self._store.min_offset + _SEGMENT_BYTES

    def _check_all(self) -> None:
        """Checks after start-up that every acknowledged message exists once and unchanged, and that no message exists
        that was not sent.
        """
        store, ledger = self._store, self._ledger
        seen: dict[int, Place] = {}
        for topic, queue_id in store.queue_names():
            offset = store.min_queue_offset(topic, queue_id)
            known = self._visible.setdefault((topic, queue_id), {})
            while offset < store.max_queue_offset(topic, queue_id):
                result = store.get_message(topic, queue_id, offset, 32, 1 << 20)
                if result.status is not GetMessageStatus.FOUND:
                    raise Broken(f"after a start {topic!r} {queue_id} at {offset}: {result.status}")
                for found in [found for view in result.views for found in decode_messages(view)]:
                    number = self._compare(found, topic, queue_id)
                    if number in seen or found.queue_offset != offset:
                        raise Broken(f"message {number} is there twice, or at queue offset {offset}")
                    seen[number] = Place(found.physical_offset, found.store_size, offset)
                    known[offset] = number
                    offset += 1
            self._told[topic, queue_id] = store.max_queue_offset(topic, queue_id)
        for number, place in ledger.places.items():
            topic, queue_id = ledger.sent[number]
            gone = place.physical_offset < store.min_offset or place.physical_offset < ledger.deleted.get(topic, 0)
            maybe = place.physical_offset < ledger.deleting.get(topic, 0)
            if seen.get(number, place) != place or (number in seen and gone):
                raise Broken(f"message {number} lies at {seen.get(number)}, it was put at {place}; gone: {gone}")
            if number not in seen and not gone and not maybe:
                raise Broken(f"message {number} of {topic!r} {queue_id} at {place} was acknowledged and is lost")
        for topic, offset in list(ledger.deleting.items()):
            there = any(ledger.sent[n][0] == topic and p.physical_offset < offset for n, p in seen.items())
            if not there:
                ledger.deletion_done(topic, offset)
            else:
                del ledger.deleting[topic]
        ledger.acknowledged({number: place for number, place in seen.items() if number not in ledger.places})
        ledger.lost([number for number in ledger.sent if number not in ledger.places])
        if self._config.message_index_enable:
            for number in self._recent()[::10]:
                if number in seen:
                    self._find(number)
        self.counts["checked"] += len(seen)


def _record(reader: OfflineStore, physical_offset: int) -> bytes | None:
    """Returns a record as read from the directory of the running store; None if there is none or it has expired."""
    try:
        record = reader.record_at(physical_offset)
    except DiskError:
        return None
    return None if record is None else bytes(record)


def main() -> int:
    directory, config, seed = Path(sys.argv[1]), CONFIGS[sys.argv[2]], int(sys.argv[3])
    logging.disable(logging.CRITICAL)
    sys.setswitchinterval(1e-6)
    life = ThreadLife(directory, config, seed)
    try:
        life.run(lambda: bool(select.select([sys.stdin], [], [], 0)[0]))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what broke
        traceback.print_exception(error)
        print(f"{type(error).__name__}: {error}", flush=True)
        return 3
    print(" ".join(f"{name}={count}" for name, count in {**life.counts, "compared": life._watch.checks}.items()))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
