"""Expiry: which files expire and when, which messages stay readable, and how a store works with too little space."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import SEGMENT, contents, everything, fill, message, opened, snapshot, with_topics

from rucola.errors import DiskError
from rucola.formats.message import BLANK, MAGIC_BLANK, MAGIC_V1
from rucola.runtime.clock import local_time_digits
from rucola.runtime.files import Files
from rucola.store.keep_rule import KeepRule, ages_by_records
from rucola.store.log.mapped_file import MappedFile
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageStatus, PutMessageStatus, StoreState
from rucola.store.verify.check import verify
from rucola.testing.clock import ManualClock
from rucola.testing.manual_worker import ManualWorker, manual_workers

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
HERE = str(int(local_time_digits(NOW_MS)[8:10]))
ELSEWHERE = str((int(HERE) + 5) % 24)


class Space(Files):
    """A disk with ``used`` percent of it in use; ``refused`` paths cannot be removed."""

    used = 10
    refused = ""

    def disk_usage(self, path: str) -> tuple[int, int]:
        return self.used * 1000 - 999, 100_000 - self.used * 1000 + 999

    def remove(self, path: str) -> None:
        if self.refused and path.endswith(self.refused):
            raise DiskError(path, "remove", "no")
        super().remove(path)


class Life:
    """A store whose maintenance thread works only when the test runs it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.files = Space()
        self.clock = ManualClock(NOW_MS)
        with manual_workers("rucola.store.keeper"):
            self.store: MessageStore = opened(path, self.files, self.clock, **({"delete_when": HERE} | options))

    def keep(self, seconds: int = 61) -> None:
        """Lets time pass; the maintenance thread checks, the event loop reacts, and the thread removes files."""
        worker = self.store._keeper._worker
        assert isinstance(worker, ManualWorker)
        self.clock.advance(seconds * 1000)
        for _ in range(4):
            worker.run()
            self.store.dispatch()
        worker.run()

    def age(self, segments: int, hours: int = 73) -> None:
        """Makes the oldest segments look old, and all others new."""
        for number, path in enumerate(self.segments()):
            seconds = (self.clock.wall_ms() - (hours * HOUR_MS if number < segments else 0)) / 1000
            os.utime(path, (seconds, seconds))

    def segments(self) -> list[Path]:
        """Returns the segments of the log with messages, oldest first."""
        paths = sorted((self.path / "commitlog").iterdir())
        return [path for path in paths if int(path.name) < self.store.max_offset]

    def synced(self) -> None:
        self.store._flush.flush()
        self.store._keeper.sync_queues()


@pytest.fixture
def life(tmp_path: Path) -> Life:
    life = Life(tmp_path / "store")
    fill(life.store, 1500)
    life.synced()
    assert len(life.segments()) > 4
    return life


def starts_at(life: Life, segments: int, count: int) -> bool:
    """Whether exactly the first ``segments`` of ``count`` segments were removed."""
    assert life.store.min_offset == segments * SEGMENT
    return [int(path.name) for path in life.segments()] == [n * SEGMENT for n in range(segments, count)]


def test_expired_segments_go_and_the_rest_reads_as_before(life: Life) -> None:
    before, count = everything(life.store), len(life.segments())
    queue_files = len(list(life.path.glob("consumequeue/*/*/*")))
    index_files = len(list(life.path.glob("index/*")))
    life.age(3)
    life.keep()
    assert starts_at(life, 3, count)
    life.keep()
    assert len(list(life.path.glob("consumequeue/*/*/*"))) < queue_files
    assert len(list(life.path.glob("index/*"))) < index_files
    kept = {name: [entry for entry in entries if entry[0] >= life.store.min_offset] for name, entries in before.items()}
    assert everything(life.store) == kept
    for name, entries in before.items():
        low, high = life.store.min_queue_offset(*name), life.store.max_queue_offset(*name)
        assert (low, high) == (len(entries) - len(kept[name]), len(entries))
        early = life.store.get_message(*name, 0, 32, 1 << 20)
        assert (early.status, early.next_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, low)
    assert not life.store.query_by_key(b"T0", b"key-0").views
    assert len(life.store.query_by_key(b"T0", b"key-1498").views) == 1
    assert life.store.stats.expired_segments == 3 and life.store.stats.forced_segments == 0
    life.store.shutdown()
    assert verify(with_topics(life.path)).clean
    store = opened(life.path)
    assert not store.recovered
    assert everything(store) == kept
    fill(store, 10, first=1500)
    assert store.max_queue_offset(b"T0", 0) == len(before[b"T0", 0]) + 3
    store.shutdown()


def test_a_crash_before_and_after_the_removal_leaves_a_store_that_opens(life: Life, tmp_path: Path) -> None:
    before, count = everything(life.store), len(life.segments())
    life.age(3)
    life.files.refused = f"{SEGMENT:020d}"
    life.keep()
    assert [int(path.name) // SEGMENT for path in life.segments()] == list(range(1, count))
    snapshot(life.path, tmp_path / "between")
    life.files.refused = ""
    life.keep()
    snapshot(life.path, tmp_path / "after")
    life.store.shutdown()
    for directory, gone in (("between", 1), ("after", 3)):
        store = opened(tmp_path / directory)
        assert store.min_offset == gone * SEGMENT
        assert everything(store) == {
            name: [entry for entry in entries if entry[0] >= gone * SEGMENT] for name, entries in before.items()
        }
        store.shutdown()


def test_a_removal_that_fails_is_tried_again_and_leaves_no_hole(life: Life) -> None:
    count = len(life.segments())
    life.age(3)
    life.files.refused = f"{SEGMENT:020d}"
    life.keep()
    assert life.store.min_offset == 3 * SEGMENT
    assert [int(path.name) // SEGMENT for path in life.segments()] == list(range(1, count))
    life.files.refused = ""
    life.keep(1)
    assert starts_at(life, 3, count)
    life.store.shutdown()


@pytest.mark.few
@pytest.mark.parametrize(
    ("hour", "used", "hours", "gone"),
    [
        (HERE, 10, 73, 2),
        (f"{ELSEWHERE};{HERE}", 10, 73, 2),
        (HERE, 10, 71, 0),
        (ELSEWHERE, 10, 73, 0),
        (ELSEWHERE, 75, 73, 0),
        (ELSEWHERE, 76, 73, 2),
        (ELSEWHERE, 76, 71, 0),
    ],
)
def test_hours_ages_and_the_first_ratio(tmp_path: Path, hour: str, used: int, hours: int, gone: int) -> None:
    life = Life(tmp_path, delete_when=hour)
    fill(life.store, 1500)
    life.synced()
    count = len(life.segments())
    life.age(2, hours)
    life.files.used = used
    life.keep(59)
    assert starts_at(life, 0, count)
    life.keep(2)
    assert starts_at(life, gone, count)
    life.store.shutdown()


@pytest.mark.parametrize(("used", "allowed", "gone"), [(85, True, 0), (86, True, 2), (86, False, 0), (95, True, 2)])
def test_want_of_space_removes_segments_before_their_time(tmp_path: Path, used: int, allowed: bool, gone: int) -> None:
    life = Life(tmp_path, delete_when=ELSEWHERE, delete_file_batch_max=2, clean_file_forcibly_enable=allowed)
    fill(life.store, 1500)
    life.store._flush.flush()  # the keeper syncs the queues before it removes segments
    count = len(life.segments())
    life.files.used = used
    life.keep()
    assert starts_at(life, gone, count)
    assert life.store.stats.forced_segments == gone
    life.store.shutdown()


def test_the_newest_segment_and_what_is_not_safe_stay(life: Life) -> None:
    count = len(life.segments())
    life.age(count)
    fill(life.store, 3, first=1500)
    life.files.used = 86
    for _ in range(3):
        life.keep()
    assert starts_at(life, count - 1, count)
    assert life.store.put_message(message(1503)).status is PutMessageStatus.PUT_OK
    life.store.shutdown()


def test_segments_wait_until_their_queues_are_on_the_disk(tmp_path: Path) -> None:
    life = Life(tmp_path, flush_consume_queue_thorough_interval_ms=600_000)
    fill(life.store, 1500)
    life.store._flush.flush()
    count = len(life.segments())
    life.age(3)
    life.keep()
    assert starts_at(life, 0, count)
    life.synced()
    life.keep()
    assert starts_at(life, 3, count)
    life.store.shutdown()


def test_a_reader_keeps_what_it_holds(life: Life) -> None:
    held = life.store.get_message(b"T0", 0, 0, 32, 1 << 20)
    record = life.store.message_at(0)
    assert record is not None
    copies = [bytes(view) for view in (*held.views, record)]
    life.age(3)
    life.keep()
    assert not (life.path / "commitlog" / f"{0:020d}").exists()
    assert [bytes(view) for view in (*held.views, record)] == copies
    assert life.store.message_at(0) is None
    life.store.shutdown()


def test_too_little_space_refuses_messages_until_there_is_some_again(life: Life) -> None:
    for used, state in (
        (90, StoreState.RUNNING),
        (91, StoreState.DISK_FULL),
        (86, StoreState.DISK_FULL),
        (85, StoreState.RUNNING),
        (91, StoreState.DISK_FULL),
        (50, StoreState.RUNNING),
    ):
        life.files.used = used
        life.keep()
        assert life.store.state is state, used
        taken = life.store.put_message(message(1)).status is PutMessageStatus.PUT_OK
        assert taken is (state is StoreState.RUNNING)
    life.store.shutdown()


def test_a_wall_clock_that_jumps_ahead_removes_nothing_for_ten_minutes(life: Life) -> None:
    count = len(life.segments())
    life.age(count, hours=0)
    life.keep()
    life.clock.set_wall_ms(life.clock.wall_ms() + 30 * 24 * HOUR_MS)
    for _ in range(9):
        life.keep()
        assert starts_at(life, 0, count)
    life.keep()
    life.keep()
    assert life.store.min_offset > 0
    life.store.shutdown()


def test_a_store_whose_log_lost_its_begin_and_whose_queue_ends_with_an_empty_segment_opens(tmp_path: Path) -> None:
    """Known defect 5 (9728, 10108): RocketMQ cannot open a store whose log lost its beginning and whose queue ends with
    an empty segment.
    """
    life = Life(tmp_path / "store")
    fill(life.store, 400, topics=1, queues=1)
    before = everything(life.store)
    life.store.shutdown()
    queue = tmp_path / "store/consumequeue/T0/0"
    names = sorted(path.name for path in queue.iterdir())
    (queue / f"{400 * 20:020d}").write_bytes(bytes(2000))
    assert names[-1] == f"{399 * 20 // 2000 * 2000:020d}"
    (tmp_path / "store/commitlog" / f"{0:020d}").unlink()
    store = opened(tmp_path / "store")
    assert store.min_queue_offset(b"T0", 0) > 0
    assert everything(store)[b"T0", 0] == [entry for entry in before[b"T0", 0] if entry[0] >= SEGMENT]
    assert store.max_queue_offset(b"T0", 0) == 400
    store.shutdown()


def test_a_look_changes_nothing_that_is_younger(life: Life) -> None:
    life.store.shutdown()
    before = contents(life.path / "commitlog")
    again = Life(life.path)
    again.keep()
    again.store.shutdown()
    assert contents(life.path / "commitlog") == before


def test_expiry_on_request_does_not_wait_for_its_hour(tmp_path: Path) -> None:
    life = Life(tmp_path / "store", delete_when=ELSEWHERE)
    fill(life.store, 1500)
    life.synced()
    life.age(2)
    before = len(life.segments())
    assert before > 3
    life.keep()
    assert len(life.segments()) == before
    life.store.expire_now()
    life.keep(1)
    assert len(life.segments()) == before - 2
    life.store.shutdown()


@contextmanager
def kept(path: Path, rule: KeepRule, **options: Any) -> Iterator[Life]:
    """A store that follows ``rule``, with more than four segments. An hour passes after each 100 messages; all files
    are new.
    """
    life = Life(path, **options)
    life.store.keep_only(rule)
    for number in range(15):
        life.clock.advance(HOUR_MS)
        fill(life.store, 100, first=number * 100)
    life.synced()
    assert len(life.segments()) > 4
    yield life
    life.store.shutdown()


def newest_ms(life: Life) -> list[int]:
    """Store time of the newest record of each segment."""
    times: dict[int, int] = {}
    for entries in everything(life.store).values():
        for entry in entries:
            start = entry[0] - entry[0] % SEGMENT
            times[start] = max(times.get(start, 0), life.store._log.store_timestamp(entry[0]))
    return [times[start] for start in sorted(times)]


@pytest.mark.parametrize("hour", [HERE, ELSEWHERE])
def test_a_copy_keeps_records_by_their_store_times(tmp_path: Path, hour: str) -> None:
    with kept(tmp_path / "store", KeepRule(age_ms=8 * HOUR_MS), delete_when=hour) as life:
        times, count = newest_ms(life), len(life.segments())
        gone = sum(time_ms <= life.clock.wall_ms() + 61_000 - 8 * HOUR_MS for time_ms in times)
        assert 0 < gone < count
        life.keep()
        assert starts_at(life, gone, count)
        life.clock.advance(100 * HOUR_MS)
        life.keep()
        assert starts_at(life, count - 1, count)


def test_the_age_of_files_does_not_count_for_a_copy(tmp_path: Path) -> None:
    with kept(tmp_path / "store", KeepRule(age_ms=80 * HOUR_MS)) as life:
        count = len(life.segments())
        life.age(count, hours=100)
        life.keep()
        assert starts_at(life, 0, count)


def test_a_copy_keeps_so_many_bytes(tmp_path: Path) -> None:
    with kept(tmp_path / "store", KeepRule(size_bytes=3 * SEGMENT), delete_when=ELSEWHERE) as life:
        count = len(life.segments())
        life.keep()
        assert starts_at(life, count - 3, count)


def test_a_copy_keeps_its_newest_segment_however_little_it_may_keep(tmp_path: Path) -> None:
    with kept(tmp_path / "store", KeepRule(size_bytes=1)) as life:
        count = len(life.segments())
        life.keep()
        assert starts_at(life, count - 1, count)
        assert life.store.get_message(b"T0", 0, life.store.min_queue_offset(b"T0", 0), 1, 1 << 20).views


def test_a_jump_of_the_clock_removes_nothing_of_a_copy_by_age_but_by_size(tmp_path: Path) -> None:
    with kept(tmp_path / "store", KeepRule(age_ms=80 * HOUR_MS, size_bytes=4 * SEGMENT)) as life:
        count = len(life.segments())
        life.clock.set_wall_ms(life.clock.wall_ms() + 100 * HOUR_MS)
        life.keep()
        assert starts_at(life, count - 4, count)


def test_a_full_disk_takes_segments_of_a_copy_before_their_time(tmp_path: Path) -> None:
    with kept(tmp_path / "store", KeepRule(age_ms=80 * HOUR_MS), delete_file_batch_max=2) as life:
        life.files.used = 86
        count = len(life.segments())
        life.keep()
        assert starts_at(life, 2, count)


def test_a_segment_is_as_old_as_the_next_record_tells(tmp_path: Path) -> None:
    """No record in the next segment: one behind it tells; and if none does, the segment stays."""
    (tmp_path / "commitlog").mkdir()
    times = [0, 5000, -1, 7000, -1]
    segments = []
    for number, time_ms in enumerate(times):
        path = tmp_path / "commitlog" / f"{number * 100:020d}"
        head = bytearray(100)
        if time_ms >= 0:
            head[:8] = (90).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big", signed=True)
            head[56:64] = time_ms.to_bytes(8, "big")
        elif number == 2:
            head[:8] = BLANK.pack(100, MAGIC_BLANK)
        path.write_bytes(head)
        segments.append(MappedFile(Files(), str(path), number * 100, 100, False, 0))
    assert ages_by_records(Files(), segments, 10_000) == [5000, 3000, 3000, -1]
    assert ages_by_records(Files(), segments[:1], 10_000) == ages_by_records(Files(), [], 10_000) == []
    assert not KeepRule(age_ms=1).is_expired(-1, 100, True)
