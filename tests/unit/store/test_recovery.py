"""Stores that a crash left, that are damaged, or that an unknown program wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    SEGMENT,
    config,
    contents,
    crashed,
    everything,
    fill,
    opened,
    read,
    snapshot,
    with_topics,
)

from rucola.common.columns import ROW_WIDTH
from rucola.errors import DiskError, StoreDamagedError, StoreLockedError
from rucola.formats.message import CHECK_TORN_END, MAGIC_BLANK, ROWS_MAX
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.dispatch import Dispatcher
from rucola.store.log.log_end import LogEnd
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.recovery import recovery
from rucola.store.recovery.recovery import Recovery
from rucola.store.recovery.watermark import FILE_NAME, Watermark, WatermarkFile
from rucola.store.verify.check import verify
from rucola.testing.clock import ManualClock

COUNT = 700


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a store that was killed after all messages were dispatched; nothing was synced since start-up."""
    base = tmp_path_factory.mktemp("killed")
    store = opened(base / "live")
    fill(store, COUNT)
    return crashed(store, base / "live", base / "image")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a store that was stopped cleanly."""
    path = tmp_path_factory.mktemp("stopped") / "image"
    store = opened(path)
    fill(store, COUNT)
    store.shutdown()
    return path


@pytest.fixture
def image(killed: Path, tmp_path: Path) -> Path:
    snapshot(killed, tmp_path / "image")
    return tmp_path / "image"


def segment(path: Path, start: int) -> Path:
    return path / "commitlog" / f"{start:020d}"


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def log_end(path: Path) -> tuple[int, list[int]]:
    """Returns the end of the log and the start of each record; reads only sizes and magic codes."""
    starts, offset = [], 0
    while segment(path, offset - offset % SEGMENT).exists():
        data = segment(path, offset - offset % SEGMENT).read_bytes()
        position = offset % SEGMENT
        size = int.from_bytes(data[position : position + 4], "big")
        magic = int.from_bytes(data[position + 4 : position + 8], "big", signed=True)
        if size == 0:
            break
        if magic != MAGIC_BLANK:
            starts.append(offset)
        offset += size
    return offset, starts


def units(path: Path) -> dict[str, bytes]:
    """Returns the content of all queue files without the zeros at the end."""
    return {
        name: data.rstrip(b"\0")
        for name, data in contents(path).items()
        if name.startswith("consumequeue") and data.rstrip(b"\0")
    }


def recovered(path: Path) -> tuple[MessageStore, dict[tuple[bytes, int], list[tuple[int, int, bytes]]]]:
    store = opened(path)
    return store, everything(store)


def test_a_killed_store_has_everything(killed: Path, image: Path) -> None:
    end, _ = log_end(image)
    store, seen = recovered(image)
    assert store.max_offset == store.flushed_offset == end
    assert sum(map(len, seen.values())) == COUNT
    for number in (0, 350, COUNT - 1):
        assert len(store.query_by_key(b"T%d" % (number % 2), b"key-%d" % number).views) == 1
    store.shutdown()
    assert units(image) == units(killed)


def test_a_blank_record_that_lost_its_size_is_whole_again(image: Path) -> None:
    """A sector border may lie directly after the size of a blank record. After a power cut, the second sector is on the
    disk, but the first one with the size is not.
    """
    log = segment(image, 0)
    data = log.read_bytes()
    magic = data.rindex(MAGIC_BLANK.to_bytes(4, "big", signed=True))
    overwrite(log, magic - 4, bytes(4))
    store, seen = recovered(image)
    assert sum(map(len, seen.values())) == COUNT
    store.shutdown()
    assert log.read_bytes() == data
    assert verify(with_topics(image), Files()).findings == []


def test_records_that_can_be_read_once_only_are_not_cut(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery reads the end of the log twice. If the disk fails only the second time, the log is not truncated."""
    scan = recovery.scan

    def scan_again(log: LogReader, start: int, check: int, *others: Any) -> LogEnd:
        with monkeypatch.context() as patch:
            if check & CHECK_TORN_END:
                patch.setattr(FileMap, "readable_end", lambda self, position, end: position)
            return scan(log, start, check, *others)

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "scan", scan_again)
        with pytest.raises(StoreDamagedError, match="it may be there"):
            opened(image)
    store, seen = recovered(image)
    assert sum(map(len, seen.values())) == COUNT
    store.shutdown()


def test_recovery_of_recovery_ends_in_the_same_bytes(image: Path, tmp_path: Path) -> None:
    overwrite(segment(image, 0), 30_000, b"\xff" * 50)
    first = MessageStore(config(image), Files(), ManualClock())
    first.load()
    snapshot(image, tmp_path / "again")
    first.shutdown()
    second = MessageStore(config(tmp_path / "again"), Files(), ManualClock())
    second.load()
    second.shutdown()
    ours, theirs = contents(image), contents(tmp_path / "again")
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name] and not name.startswith("rucola")] == []


@pytest.mark.few(3)
@pytest.mark.parametrize("keep", [0, 1, 7, 8, 30, 100])
def test_a_half_record_is_cut_and_zeroed_and_kept_aside(keep: int, image: Path) -> None:
    end, starts = log_end(image)
    last = starts[-1]
    file = segment(image, last - last % SEGMENT)
    position = last % SEGMENT
    torn = file.read_bytes()[position : position + keep]
    overwrite(file, position, torn + bytes(end - last - keep))
    store, seen = recovered(image)
    assert store.max_offset == last
    assert sum(map(len, seen.values())) == COUNT - 1
    assert file.read_bytes()[position:] == bytes(SEGMENT - position)
    kept = torn.rstrip(b"\0")
    assert not kept or (image / "quarantine" / f"{last:020d}").read_bytes() == kept
    if kept:
        manifest = json.loads((image / "quarantine" / f"{last:020d}.json").read_bytes())
        assert (manifest["physicalOffset"], manifest["length"]) == (last, len(kept))
    (number,) = (fill(store, 1, first=5000),)
    assert number[0].physical_offset == last
    store.shutdown()


def test_damage_in_the_middle_of_a_foreign_killed_store_cuts_there(image: Path) -> None:
    _, starts = log_end(image)
    victim = starts[300]
    for name in ("rucola-watermark",):
        (image / name).unlink()
    file = segment(image, victim - victim % SEGMENT)
    overwrite(file, victim % SEGMENT + 100, b"\xff")
    store, seen = recovered(image)
    assert store.max_offset == victim
    assert sum(map(len, seen.values())) == 300
    assert len(store._log.segments.files) <= 2
    assert store.query_by_key(b"T0", b"key-300").views == []
    assert len(store.query_by_key(b"T1", b"key-299").views) == 1
    fill(store, 100, first=5000)
    for number in (5000, 5099):
        assert len(store.query_by_key(b"T%d" % (number % 2), b"key-%d" % number).views) == 1
    seen = everything(store)
    lengths = {name: store.max_queue_offset(*name) for name in store.queue_names()}
    store.shutdown()
    for (topic, queue_id), length in lengths.items():
        directory = image / "consumequeue" / topic.decode() / str(queue_id)
        data = b"".join(file.read_bytes() for file in sorted(directory.iterdir()))
        assert data[20 * length :].strip(b"\0") == b"", "units after the end of the log are left"
    store, again = recovered(image)
    assert again == seen, "queue units written before the crash came back"
    store.shutdown()
    assert sorted(file.name for file in (image / "quarantine").iterdir() if file.suffix == "")[0] == f"{victim:020d}"


def test_damage_below_the_watermark_refuses_the_start_and_changes_nothing(image: Path) -> None:
    end, starts = log_end(image)
    WatermarkFile(Files(), str(image)).write(Watermark(end, 0))
    victim = starts[300]
    overwrite(segment(image, victim - victim % SEGMENT), victim % SEGMENT + 100, b"\xff")
    before = contents(image)
    with pytest.raises(StoreDamagedError) as caught:
        opened(image)
    assert caught.value.path == str(segment(image, victim - victim % SEGMENT))
    assert caught.value.position == victim % SEGMENT
    assert contents(image) == before
    overwrite(
        segment(image, victim - victim % SEGMENT),
        victim % SEGMENT + 100,
        before["commitlog/" + segment(image, victim - victim % SEGMENT).name][
            victim % SEGMENT + 100 : victim % SEGMENT + 101
        ],
    )
    with pytest.raises(StoreDamagedError):
        opened(image)


def test_a_missing_last_segment_below_the_watermark_refuses(stopped: Path, tmp_path: Path) -> None:
    path = tmp_path / "image"
    snapshot(stopped, path)
    last = sorted((path / "commitlog").iterdir())[-1]
    last.unlink()
    with pytest.raises(StoreDamagedError, match="were synced"):
        opened(path)


@pytest.mark.parametrize("clean", [True, False])
def test_missing_queues_and_index_are_rebuilt(clean: bool, killed: Path, stopped: Path, tmp_path: Path) -> None:
    path = tmp_path / "image"
    snapshot(stopped if clean else killed, path)
    whole = units(path)
    shutil.rmtree(path / "consumequeue" / "T0" / "1")
    shutil.rmtree(path / "index")
    store, seen = recovered(path)
    assert sum(map(len, seen.values())) == COUNT
    assert len(store.query_by_key(b"T0", b"key-0").views) == 1
    store.shutdown()
    assert units(path) == whole


@pytest.mark.few(1)
@pytest.mark.parametrize("lost", [2000, 4000, 6000])
def test_a_file_of_a_queue_lost_while_the_store_was_stopped_is_noticed(
    lost: int, stopped: Path, tmp_path: Path
) -> None:
    """If a lost queue file were not noticed, its offsets would be assigned again, or the queue could not be used. The
    file may also be lost after a process has seen it at start-up.
    """
    path = tmp_path / "image"
    snapshot(stopped, path)
    store = opened(path)
    fill(store, 800, first=COUNT)
    store.shutdown()
    store = opened(path)
    assert not store.recovered
    store.shutdown()
    whole, file = units(path), path / "consumequeue" / "T1" / "1" / f"{lost:020d}"
    file.unlink()
    if lost < 6000:
        before = contents(path)
        with pytest.raises(StoreDamagedError, match=f"{lost:020d}, is missing"):
            opened(path)
        assert contents(path) == before
    store = opened(path, quarantine=True)
    assert store.recovered
    assert sum(map(len, everything(store).values())) == COUNT + 800
    store.shutdown()
    assert units(path) == whole
    store = opened(path)
    assert not store.recovered
    store.shutdown()


def test_a_damaged_queue_is_repaired(image: Path) -> None:
    whole = units(image)
    name = image / "consumequeue" / "T1" / "0" / f"{0:020d}"
    overwrite(name, 20 * 50, bytes(20 * 10))
    overwrite(name, 20 * 80 + 3, b"\x01")
    (image / "rucola-watermark").unlink()
    store, seen = recovered(image)
    assert sum(map(len, seen.values())) == COUNT
    store.shutdown()
    assert units(image) == whole


@pytest.mark.few(2)
@pytest.mark.parametrize("lost", [0, 1, 130, 349])
def test_units_that_are_there_are_written_again_many_at_once(
    lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One queue has lost none, some or nearly all of its units, and in a second queue a unit is damaged. Recovery
    cannot know which units reached the disk before the crash, so it writes all of them again.
    """
    store = opened(tmp_path / "live")
    fill(store, COUNT, topics=1)
    path = crashed(store, tmp_path / "live", tmp_path / "image")
    whole = units(path)
    end = COUNT // 2 - lost
    for number in range(end, COUNT // 2):
        overwrite(path / "consumequeue" / "T0" / "1" / f"{number // 100 * 2000:020d}", number % 100 * 20, bytes(20))
    overwrite(path / "consumequeue" / "T0" / "0" / f"{0:020d}", 20 * 80 + 3, b"\x01")
    (path / "rucola-watermark").unlink()
    stored: list[tuple[int, int]] = []
    rewriting = FileMap.rewrite

    def recorded(self: FileMap, position: int, content: bytes) -> None:
        if "T0/1" in self.path:
            stored.append((int(self.path[-20:]) + position, len(content)))
        rewriting(self, position, content)

    monkeypatch.setattr(FileMap, "rewrite", recorded)
    monkeypatch.setattr(Dispatcher, "_put_rows", lambda *_: pytest.fail("units were written record by record"))
    store, seen = recovered(path)
    assert sum(map(len, seen.values())) == COUNT
    store.shutdown()
    assert units(path) == whole
    assert {byte for start, length in stored for byte in range(start, start + length)} == set(range(20 * end))


def test_units_of_records_that_are_older_than_the_queue_are_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path / "live")
    fill(store, COUNT, topics=1)
    path = crashed(store, tmp_path / "live", tmp_path / "image")
    gone = path / "consumequeue" / "T0" / "1" / f"{0:020d}"
    gone.unlink()
    whole = units(path)
    store, seen = recovered(path)
    assert (len(seen[b"T0", 0]), len(seen[b"T0", 1])) == (COUNT // 2, COUNT // 2 - 100)
    store.shutdown()
    assert units(path) == whole


def test_only_units_that_may_be_missing_are_put_again(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is rebuilt from an earlier position in the log than the queues, but recovery writes only queue entries
    that may be missing.
    """
    starts = log_end(image)[1]
    whole, at = units(image), starts[COUNT * 3 // 4]
    put: list[int] = []
    putting = Dispatcher._put_units

    def noted(self: Dispatcher, file: MappedFile, table: array[int], rows: int) -> int:
        put.extend(file.start + table[row] for row in range(0, rows * ROW_WIDTH, ROW_WIDTH))
        return putting(self, file, table, rows)

    monkeypatch.setattr(Dispatcher, "_put_units", noted)
    for clean, expected in ((False, [start for start in starts if start >= at]), (True, [])):
        shutil.rmtree(image / "index")
        if not clean:
            WatermarkFile(Files(), str(image)).write(Watermark(at, at, queue_count=4))
        store, seen = recovered(image)
        assert sum(map(len, seen.values())) == COUNT
        for number in (0, COUNT - 1):
            assert len(store.query_by_key(b"T%d" % (number % 2), b"key-%d" % number).views) == 1
        assert expected == put[-len(expected) :] and len(put) < len(expected) + ROWS_MAX
        put.clear()
        store.shutdown()
        assert units(image) == whole


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_removal_of_index_files_that_is_cut_short_ends_the_same(removed: int, tmp_path: Path) -> None:
    """If an index file is invalid, all later index files are removed, too. If the removal is interrupted, the
    remaining files must not look like a complete index.
    """

    class CutShort(Files):
        left = removed

        def remove(self, path: str) -> None:
            self.left -= 1
            if self.left < 0:
                raise DiskError(path, "remove", "the process is killed here")
            super().remove(path)

    store = opened(tmp_path / "store")
    fill(store, 300, topics=1)
    store._keeper.sync_queues()
    store._flush.flush()
    store._keeper._record(store._keeper._reached())
    path = crashed(store, tmp_path / "store", tmp_path / "copy")
    first, _, _ = sorted((path / "index").iterdir())
    first.write_bytes(bytes(40) + first.read_bytes()[40:])
    with pytest.raises(DiskError, match="killed here"):
        opened(path, CutShort())
    assert len(list((path / "index").iterdir())) == 3 - removed
    store = opened(path)
    assert all(len(store.query_by_key(b"T0", b"key-%d" % number).views) == 1 for number in range(300))
    store.shutdown()


def test_a_watermark_that_lies_in_memory_only_is_written_again(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery lowers the watermark and is killed. The next recovery reads the lower value, but the disk still has
    the higher one, which a power failure would restore.
    """
    before = WatermarkFile(Files(), str(image)).read()
    assert before is not None
    WatermarkFile(Files(), str(image)).write(Watermark(before.flushed_offset, 0))
    written: list[Watermark] = []
    writing = WatermarkFile.write

    def noted(self: WatermarkFile, watermark: Watermark) -> None:
        if self.path == f"{image}/{FILE_NAME}":  # another store of this process may write, too
            written.append(watermark)
        writing(self, watermark)

    monkeypatch.setattr(WatermarkFile, "write", noted)
    opened(image).shutdown()
    assert written[0].queues_offset == 0 and written[-1].queues_offset > 0


def test_an_unreadable_watermark_means_that_everything_is_checked(image: Path) -> None:
    (image / "rucola-watermark").write_bytes(b"\xff" * 1024)
    store, seen = recovered(image)
    assert sum(map(len, seen.values())) == COUNT
    store.shutdown()
    assert WatermarkFile(Files(), str(image)).read() is not None


def test_recovery_itself_runs_under_the_abort_marker(stopped: Path, tmp_path: Path) -> None:
    path = tmp_path / "image"
    snapshot(stopped, path)
    (path / "rucola-watermark").unlink()
    seen: list[bool] = []

    class Watching(Files):
        def data_sync(self, descriptor: int) -> None:  # type: ignore[override]
            seen.append((path / "abort").exists())

    shutil.rmtree(path / "consumequeue")
    store = MessageStore(config(path), Watching(), ManualClock())
    store.load()
    assert seen and all(seen)
    store.shutdown()


def test_the_marker_of_a_killed_process_is_synced_before_appends(image: Path) -> None:
    """The ``abort`` file of a killed process may be only in memory. If a power cut then lost it, RocketMQ would treat
    the store as cleanly stopped.
    """
    synced: list[str] = []

    class Watching(Files):
        def sync_directory(self, path: str) -> None:
            synced.append(path)
            super().sync_directory(path)

    store = MessageStore(config(image), Watching(), ManualClock())
    store.load()
    synced.clear()
    store.start()
    assert str(image) in synced
    store.shutdown()


def test_records_above_the_watermark_are_written_again_before_they_count(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync, the system may consider pages clean that never reached the disk, so data above the watermark
    is written again.
    """
    end, starts = log_end(image)
    flushed = starts[-400]
    WatermarkFile(Files(), str(image)).write(Watermark(flushed, 0))
    stored: list[tuple[int, int]] = []

    class Recorder:
        """A view of memory that records each assignment to it."""

        def __init__(self, start: int, view: memoryview) -> None:
            self.start, self.view = start, view

        def __getitem__(self, part: slice) -> memoryview:
            return self.view[part]

        def __setitem__(self, part: slice, data: bytes) -> None:
            stored.append((self.start + part.start, self.start + part.stop))
            self.view[part] = data

    original = Recovery._write_again

    def recorded(self: Recovery, physical_end: int) -> None:
        views = {file: file.map.view for file in self._log.segments.files}
        for file, view in views.items():
            file.map.view = Recorder(file.start, view)  # type: ignore[assignment]
        original(self, physical_end)
        for file, view in views.items():
            file.map.view = view

    monkeypatch.setattr(Recovery, "_write_again", recorded)
    store = MessageStore(config(image), Files(), ManualClock())
    store.load()
    assert {offset for first, last in stored for offset in range(first, last)} == set(range(flushed, end))
    store.shutdown()


def test_a_blank_at_the_end_without_a_next_segment(image: Path) -> None:
    """The process ended after the blank record of a segment, before the first record of the next segment."""
    end, starts = log_end(image)
    first_of_last = end - end % SEGMENT
    segment(image, first_of_last).unlink()
    segment(image, first_of_last + SEGMENT).unlink(missing_ok=True)
    (image / "rucola-watermark").unlink()
    store, seen = recovered(image)
    kept = [start for start in starts if start < first_of_last]
    assert sum(map(len, seen.values())) == len(kept)
    assert kept[-1] < store.max_offset < first_of_last
    fill(store, 50, first=9000)
    store.shutdown()
    store, seen = recovered(image)
    assert sum(map(len, seen.values())) == len(kept) + 50
    store.shutdown()


def test_a_spare_zero_segment_is_accepted(image: Path) -> None:
    end, _ = log_end(image)
    spare = segment(image, end - end % SEGMENT + SEGMENT)
    if not spare.exists():
        spare.write_bytes(bytes(SEGMENT))
    store, seen = recovered(image)
    assert store.max_offset == end
    assert sum(map(len, seen.values())) == COUNT
    store.shutdown()


def test_an_empty_last_segment_is_removed(image: Path) -> None:
    end, _ = log_end(image)
    spare = segment(image, end - end % SEGMENT + SEGMENT)
    spare.write_bytes(b"")
    store, _ = recovered(image)
    assert store.max_offset == end
    store.shutdown()
    assert not spare.exists()


@pytest.mark.parametrize(
    ("name", "position"),
    [
        ("commitlog/00000000000000000000", 60_000),
        ("consumequeue/T0/0/00000000000000000000", 1999),
        ("index/20231114221320000", 40),
    ],
)
def test_a_file_of_wrong_size_refuses_the_start_and_changes_nothing(name: str, position: int, image: Path) -> None:
    path = image / name
    if name.startswith("index"):
        path.write_bytes(bytes(position))
    else:
        path.write_bytes(path.read_bytes()[:position])
    before = contents(image)
    with pytest.raises(StoreDamagedError) as caught:
        opened(image)
    assert (caught.value.path, caught.value.position) == (str(path), position)
    assert contents(image) == before


def test_a_stray_segment_or_a_hole_refuses_the_start(image: Path) -> None:
    stray = segment(image, SEGMENT + 7)
    stray.write_text("mine")
    with pytest.raises(StoreDamagedError, match=stray.name):
        opened(image)
    stray.unlink()
    segment(image, SEGMENT).unlink()
    with pytest.raises(StoreDamagedError, match="is missing"):
        opened(image)


def test_a_clean_start_reads_only_the_end(stopped: Path, tmp_path: Path) -> None:
    """After a clean stop, a starting store dispatches nothing again, and opens no queue before a request needs it."""
    path = tmp_path / "image"
    snapshot(stopped, path)
    before = contents(path)
    store = MessageStore(config(path), Files(), ManualClock())
    store.load()
    assert list(store._queues.open_queues()) == []
    store.shutdown()
    assert contents(path) == before


def test_min_offset_follows_a_log_whose_first_segments_are_gone(image: Path) -> None:
    _, starts = log_end(image)
    segment(image, 0).unlink()
    (image / "rucola-watermark").unlink()
    shutil.rmtree(image / "consumequeue" / "T0")
    gone = sum(start < SEGMENT for start in starts)
    store = opened(image)
    mins = [store.min_queue_offset(topic, queue_id) for topic, queue_id in sorted(store.queue_names())]
    assert sum(mins) == gone
    assert sum(len(read(store, *name)) for name in store.queue_names()) == COUNT - gone
    results = fill(store, 4, first=COUNT)
    assert {result.queue_offset for result in results} == {COUNT // 4}
    store.shutdown()


LOADER = """
import sys
from rucola.errors import StoreLockedError
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.recovery.recovery import Recovery
try:
    MessageStore(MessageStoreConfig(store_path_root_dir=sys.argv[1]), Files(), SystemClock()).load()
except StoreLockedError as error:
    print(error)
    sys.exit(4)
"""


def test_a_second_process_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    before = contents(tmp_path)
    other = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert other.returncode == 4, other.stderr
    assert str(tmp_path) in other.stdout
    with pytest.raises(StoreLockedError):
        opened(tmp_path)
    assert contents(tmp_path) == before
    fill(store, 1)
    store.shutdown()
    opened(tmp_path).shutdown()


def test_the_commit_log_may_lie_elsewhere(tmp_path: Path) -> None:
    options = {"store_path_commit_log": str(tmp_path / "log")}
    store = opened(tmp_path / "store", **options)
    fill(store, COUNT)
    store.shutdown()
    assert not (tmp_path / "store" / "commitlog").exists()
    store = opened(tmp_path / "store", **options)
    assert sum(map(len, everything(store).values())) == COUNT
    store.shutdown()


class Listing(Files):
    """Counts what is asked about directories."""

    def __init__(self) -> None:
        self.listed: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()

    def _listed(self, path: str, collect: Any, absent: Any) -> Any:
        self.listed[path] += 1
        return super()._listed(path, collect, absent)

    def exists(self, path: str) -> bool:
        self.asked[path] += 1
        return super().exists(path)


def test_a_start_after_a_kill_lists_the_files_of_a_queue_once(tmp_path: Path) -> None:
    """A store may have hundreds of thousands of queues, most with one file."""
    live, image, files = opened(tmp_path / "live"), tmp_path / "image", Listing()
    fill(live, 40)
    snapshot(tmp_path / "live", image)
    live.shutdown()
    opened(image, files).shutdown()
    queues = [str(path) for path in (image / "consumequeue").glob("*/*")]
    assert len(queues) > 1
    assert {files.listed[path] for path in queues} == {1}
    assert {files.asked[path] for path in queues} == {0}
    assert max(count for path, count in files.asked.items() if "consumequeue" in path) <= 3
    assert not any("consumequeue_ext/" in path for path in files.asked)


def test_reading_a_store_reads_its_watermark_once(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read = WatermarkFile.read
    monkeypatch.setattr(WatermarkFile, "read", lambda self: reads.append(self) or read(self))
    store = OfflineStore(str(image))
    assert len(reads) == 1
    store.refresh()
    assert len(reads) == 2
    store.close()
