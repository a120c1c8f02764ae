"""Rebuilds of our own stores: interrupted at any step, with several attempts of a task, while brokers run, and of
damaged logs.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from shutil import copytree, rmtree

import pytest
from tests.kernels import kernel
from tests.unit.store.stores import SEGMENT, SMALL, fill, message, opened, with_topics
from tests.unit.store.test_dispatch_kernels import BASE, log

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.options import options_of
from rucola.errors import DiskError, StoreDamagedError, StoreLockedError
from rucola.formats.consume_queue import UNIT, CollectedColumn, QueueColumn
from rucola.formats.index_file import KEY, index_file_bytes
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.doctor.publish import PARTS
from rucola.store.doctor.rebuild import INDEX, QUEUES, SCAN, rebuild
from rucola.store.doctor.staged import Phase, run_serially
from rucola.store.log.segment_list import REBUILD_MARK
from rucola.store.recovery.watermark import WatermarkFile
from rucola.store.verify.check import verify
from rucola.testing.clock import ManualClock

KEYS_OF = {entry.name: entry.key for entry in options_of(MessageStoreConfig)}
OPTIONS = {KEYS_OF[name]: str(value) for name, value in SMALL.items()}


def contents(root: Path) -> dict[str, bytes]:
    """Returns the queue files by path, and the index files by number."""
    found = {
        str(path.relative_to(root)): path.read_bytes()
        for part in PARTS[:-1]
        for path in (root / part).rglob("*")
        if path.is_file()
    }
    return found | {str(number): path.read_bytes() for number, path in enumerate(sorted((root / "index").iterdir()))}


@pytest.fixture(autouse=True)
def _without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns off syncs: these tests simulate no power cut, and write many files."""
    monkeypatch.setattr(Files, "data_sync", staticmethod(lambda _descriptor: None))
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a store with several segments, queue files and index files."""
    path = tmp_path_factory.mktemp("written") / "store"
    store = opened(path)
    fill(store, 900, topics=3, queues=2)
    store.shutdown()
    return path


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Path:
    """Returns a copy of the written store."""
    return Path(copytree(written, tmp_path / "store"))


def test_queues_and_index_come_back(store: Path) -> None:
    before = contents(store)
    for part in ("consumequeue", "index"):
        rmtree(store / part)
    seen: list[tuple[str, int, int]] = []
    report = rebuild(str(store), options=OPTIONS, progress=lambda *step: seen.append(step))
    assert contents(store) == before
    assert (report.records, report.units, report.keys, report.queues) == (900, 900, 2700, 6)
    assert report.segments > 2 and report.index_files > 2
    assert seen[0] == (SCAN, 0, report.segments) and seen[-1] == (INDEX, report.index_files, report.index_files)
    assert not (store / "rebuild").exists()
    assert verify(with_topics(store)).clean


def test_the_next_start_takes_the_queues_as_they_are(store: Path) -> None:
    rmtree(store / "consumequeue")
    rebuild(str(store), options=OPTIONS)
    opened_again = opened(store)
    assert not opened_again.recovered
    opened_again.shutdown()
    assert WatermarkFile(Files(), str(store)).read().clean  # type: ignore[union-attr]


def test_a_dry_run_changes_nothing(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    report = rebuild(str(store), dry_run=True)
    assert not report.published and report.segments > 2
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_store_in_use_is_left_alone(store: Path) -> None:
    broker = opened(store)
    with pytest.raises(StoreLockedError):
        rebuild(str(store))
    broker.shutdown()


def test_a_damaged_log_is_refused_with_its_place(store: Path) -> None:
    before = contents(store)
    segment = store / "commitlog" / f"{SEGMENT:020d}"
    data = bytearray(segment.read_bytes())
    data[4:8] = b"\0\0\0\0"
    segment.write_bytes(data)
    with pytest.raises(StoreDamagedError) as caught:
        rebuild(str(store), options=OPTIONS)
    assert (caught.value.path, caught.value.position) == (str(segment), 0)
    assert contents(store) == before


@pytest.mark.parametrize("whole", [True, False])
def test_a_log_that_ends_before_its_synced_end_is_refused(whole: bool, store: Path) -> None:
    segment = max((store / "commitlog").iterdir())
    if whole:
        segment.unlink()
    else:
        segment.write_bytes(bytes(SEGMENT))
    before = contents(store)
    with pytest.raises(StoreDamagedError, match=r"were synced|cannot be read"):
        rebuild(str(store), options=OPTIONS)
    assert contents(store) == before


@pytest.mark.parametrize("record", [0, 1])
def test_entries_of_whole_records_behind_a_damaged_one_stay_without_a_watermark(record: int, store: Path) -> None:
    """RocketMQ stopped cleanly; then a record was damaged. Its own recovery would not look there."""
    (store / "rucola-watermark").unlink()
    segment = max((store / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    at = int.from_bytes(data[:4], "big") * record
    data[at + 4] ^= 1
    segment.write_bytes(data)
    before = contents(store)
    with pytest.raises(StoreDamagedError, match="with a queue entry"):
        rebuild(str(store), options=OPTIONS)
    assert contents(store) == before
    rmtree(store / "consumequeue")  # nothing says that the records behind were not cut off
    assert rebuild(str(store), options=OPTIONS).published


class Killed(BaseException):
    """Raised at the point at which a real process would be killed."""


class KilledAt(Files):
    """Ends the process at the n-th change of the disk.

    Attributes:
        changes: number of changes so far.
        mark_at: number of changes before the creation of the file that marks the exchange of the directories.
    """

    def __init__(self, last: int) -> None:
        self.changes = self.mark_at = 0
        self._last = last

    def _change(self) -> None:
        self.changes += 1
        if self.changes > self._last:
            raise Killed

    def rename(self, path: str, new_path: str) -> None:
        self._change()
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        self._change()
        super().remove(path)

    def replace_file(self, path: str, *args: object, **options: object) -> None:  # type: ignore[override]
        if path.endswith(REBUILD_MARK):
            self.mark_at = self.changes
        self._change()
        super().replace_file(path, *args, **options)  # type: ignore[arg-type]

    def make_directory(self, path: str) -> None:
        self._change()
        super().make_directory(path)

    def remove_tree(self, path: str) -> None:
        self._change()
        super().remove_tree(path)


def test_a_kill_anywhere_leaves_old_or_new_files_or_a_store_that_no_broker_opens(written: Path, tmp_path: Path) -> None:
    right = contents(written)
    damaged = Path(copytree(written, tmp_path / "damaged"))
    (unit_file,) = (damaged / "consumequeue/T0/0").glob("*0000")
    unit_file.write_bytes(bytes(2000))
    old, refused = contents(damaged), 0
    unharmed = KilledAt(1 << 30)
    rebuild(str(copytree(damaged, tmp_path / "unharmed")), options=OPTIONS, files=unharmed)
    first, end = unharmed.mark_at - 2, unharmed.changes
    for last in (0, 12, *range(first, first + 9), end - 1):
        path = Path(copytree(damaged, tmp_path / str(last)))
        with pytest.raises(Killed):
            rebuild(str(path), options=OPTIONS, files=KilledAt(last))
        found = contents(path) if (path / "index").exists() and (path / "consumequeue").exists() else {}
        if (path / "commitlog" / REBUILD_MARK).exists():
            for quarantine in (False, True):
                with pytest.raises(StoreDamagedError, match="finish it: rucola store rebuild"):
                    opened(path, quarantine=quarantine)
            refused += 1
        else:
            assert found in (old, right)
        rebuild(str(path), options=OPTIONS)
        assert contents(path) == right
        assert not (path / "rebuild").exists()
        rmtree(path)
    assert refused > 2


def test_a_restart_skips_finished_tasks(store: Path) -> None:
    before = contents(store)

    def until_queues(phase: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        run_serially(phase, numbers[:2] if phase.name == QUEUES else numbers, look)
        if phase.name == QUEUES:
            raise DiskError(phase.staging, "write", "no")

    with pytest.raises(DiskError):
        rebuild(str(store), until_queues, options=OPTIONS)
    report = rebuild(str(store), options=OPTIONS)
    assert report.resumed == report.segments + 2
    assert contents(store) == before


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", [SCAN, QUEUES, INDEX])
def test_results_that_lost_their_bytes_do_not_count(phase: str, store: Path) -> None:
    """A power cut, a bad disk or somebody else changed what an interrupted rebuild had written."""
    before, seen = contents(store), 0

    def after(this: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        run_serially(this, numbers, look)
        if this.name == phase:
            raise DiskError(this.staging, "write", "no")

    for change in (lambda data: bytes(len(data)), lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:]):
        for kind in (".units", ".keys", ".json", ""):
            with pytest.raises(DiskError):
                rebuild(str(store), after, options=OPTIONS)
            names = sorted(path for path in (store / "rebuild").rglob("*") if path.is_file())
            wanted = [path for path in names if path.relative_to(store / "rebuild").parts[0].startswith(f"{phase}-")]
            for path in [path for path in wanted if path.suffix == kind][:1]:
                path.write_bytes(change(path.read_bytes()))
                seen += 1
            report = rebuild(str(store), options=OPTIONS)
            assert report.published
            assert contents(store) == before
    assert seen >= 6


def test_every_attempt_of_a_task_may_count(store: Path) -> None:
    before, random = contents(store), Random(3)

    def twice(phase: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        for number in sorted(numbers, key=lambda _: random.random()):
            for attempt in sorted(("first", "second"), key=lambda _: random.random()):
                phase.run(number, attempt)
        unfinished = Path(phase.staging) / f"{phase.name}-0.third"
        (unfinished.with_name(unfinished.name + ".units")).write_bytes(b"half")
        look()

    rebuild(str(store), twice, options=OPTIONS)
    assert contents(store) == before
    assert not (store / "rebuild").exists()


def test_results_of_another_log_do_not_count(store: Path) -> None:
    def first_step(phase: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        if phase.name != SCAN:
            raise DiskError(phase.staging, "write", "no")
        run_serially(phase, numbers, look)

    with pytest.raises(DiskError):
        rebuild(str(store), first_step, options=OPTIONS)
    broker = opened(store)
    broker.put_message(message(901, b"T0"))
    broker.dispatch()
    broker.shutdown()
    before = contents(store)
    assert rebuild(str(store), options=OPTIONS).resumed == 0
    assert contents(store) == before


def test_deleted_topics_stay_deleted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    fill(store, 60)
    store.delete_topic(b"T1")
    fill(store, 20, first=60)
    store.shutdown()
    before = contents(path)
    rebuild(str(path), options=OPTIONS)
    assert contents(path) == before


def test_tasks_say_what_they_made(store: Path) -> None:
    kept: dict[str, list[dict[str, object]]] = {phase: [] for phase in (SCAN, QUEUES, INDEX)}

    def keep(phase: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        run_serially(phase, numbers, look)
        texts = [json.loads(path.read_text())[1] for path in Path(phase.staging).glob(f"{phase.name}-*.json")]
        kept[phase.name] = [json.loads(text)["result"] for text in texts]

    rebuild(str(store), keep, options=OPTIONS)
    assert sum(int(scan["records"]) for scan in kept[SCAN]) == 900  # type: ignore[call-overload]
    assert sum(int(made["units"]) for made in kept[QUEUES]) == 900  # type: ignore[call-overload]
    assert sum(int(made["keys"]) for made in kept[INDEX]) == 2700  # type: ignore[call-overload]


# -- kernels ----------------------------------------------------------------------------------------------------------


def test_units_are_collected_and_sorted(form: str) -> None:
    queue = kernel("formats._queue_cy", form)
    data, table, facts = log(200, 5)
    codes: dict[int, list[int]] = {}
    for at in range(0, 200 * ROW_WIDTH, ROW_WIDTH):
        if not table[at + RecordColumn.SYS_FLAG] & 4:
            codes.setdefault(table[at + RecordColumn.QUEUE_ID], []).append(table[at + RecordColumn.TAGS_CODE])
    wanted: dict[int, list[tuple[int, int, int]]] = {}
    for queue_id, queue_offset, position, size, sys_flag in facts:
        if not sys_flag & 4:
            wanted.setdefault(queue_id, []).append((queue_offset, BASE + position, size))
    slots, queues = array("q", bytes(8 * 16)), array("q", bytes(8 * 8 * len(QueueColumn)))
    collected = array("q", bytes(8 * 200 * len(CollectedColumn)))
    done, count, units = queue.collect_units(data, table, 90, BASE, slots, queues, 0, collected, 0)
    assert done == 90
    rest = memoryview(table)[90 * ROW_WIDTH :]
    done, count, units = queue.collect_units(data, rest, 110, BASE, slots, queues, count, collected, units)
    assert (done, count, units) == (110, len(wanted), sum(map(len, wanted.values())))
    ends, out, offsets = array("q", bytes(8 * 8)), bytearray(20 * units), array("q", bytes(8 * units))
    queue.sort_units(collected, units, queues, count, ends, out, offsets)
    begin = 0
    for number in range(count):
        row = queues[number * len(QueueColumn) : (number + 1) * len(QueueColumn)]
        found = [(offsets[at], *UNIT.unpack(out, 20 * at)[:2]) for at in range(begin, ends[number])]
        assert found == wanted[row[QueueColumn.QUEUE_ID]]
        assert row[QueueColumn.BREAKS] == 0 and row[QueueColumn.FIRST] == found[0][0]
        first, *others = codes[row[QueueColumn.QUEUE_ID]]
        assert row[QueueColumn.TAGS_CODE] == first and row[QueueColumn.OTHER_TAGS] == sum(map(first.__ne__, others))
        begin = ends[number]
    with pytest.raises(ValueError, match="slots do not suffice"):
        queue.collect_units(data, table, 1, BASE, slots[:8], queues, 0, collected, 0)
    few = array("q", bytes(8 * 2 * len(QueueColumn)))
    assert queue.collect_units(data, table, 200, BASE, array("q", bytes(8 * 4)), few, 0, collected, 0)[0] < 200


def test_gathered_keys_make_the_same_file(form: str) -> None:
    index = kernel("formats._index_cy", form)
    data, table, _ = log(200, 3)
    one, other = bytearray(index_file_bytes(50, 400)), bytearray(index_file_bytes(50, 400))
    row, _ = index.put_rows(one, 50, 400, data, table, 0, 200, BASE, 0)
    assert row < 200
    keys = bytearray(KEY.size * 1000)
    row, end = index.gather_keys(data, table, 0, 120, BASE, keys, 0)
    assert row == 120
    row, end = index.gather_keys(data, table, 120, 200, BASE, keys, end)
    assert row == 200
    assert index.put_keys(other, 50, 400, keys, 0, end // KEY.size) == 399
    assert other == one
    assert index.gather_keys(data, table, 0, 200, BASE, bytearray(KEY.size * 10), 0)[0] < 10
    with pytest.raises(ValueError, match="outside"):
        index.put_keys(other, 50, 400, keys, 0, 1001)
    table[RecordColumn.TOPIC_POS] = len(data)
    with pytest.raises(ValueError, match="outside"):
        index.gather_keys(data, table, 0, 1, BASE, keys, 0)


def test_a_clock_that_stepped_back_gives_names_in_order(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path, clock=ManualClock(1_700_000_000_000))
    fill(store, 400)
    store.shutdown()
    before = contents(path)
    report = rebuild(str(path), options=OPTIONS)
    assert report.index_files > 2 and contents(path) == before
