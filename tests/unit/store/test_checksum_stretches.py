"""Inside the stretches that Rucola wrote with checksums, a record without one has lost its end."""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path

import pyarrow as pa
import pytest
from tests.kernels import kernel
from tests.unit.store.stores import HOST, SEGMENT, opened, with_topics

from rucola.arrow.ranges import QueueRange
from rucola.arrow.read_options import ReadOptions, ScanOrder, Subscription
from rucola.arrow.reading import open_catalog, read_range
from rucola.common.columns import WalkStop, new_table
from rucola.common.message import StoreMessage
from rucola.errors import FormatError, StoreDamagedError
from rucola.formats.checksum import crc32
from rucola.formats.message import decode_messages, encode_message
from rucola.runtime.files import Files
from rucola.store.doctor.salvage import salvage
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.recovery.watermark import WRITER_MARKS_MAX, Watermark, WatermarkFile, Writer, WriterMark
from rucola.store.results import GetMessageStatus
from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind

TOPIC = b"T0"
UNFINISHED = shutil.ignore_patterns("*.tmp")
KINDS = ("zeros", "checksum", "garbage")


def put(store: MessageStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        text = b"KEYS\x01k%d\x02account\x01%d\x02note\x01%s\x02currency\x01EUR\x02" % (number, number, b"n" * 500)
        store.put_message(StoreMessage(TOPIC, 0, b"body", text, 1, HOST))
    store.dispatch()


def written(path: Path, count: int, **options: object) -> int:
    """Opens the store, puts messages and stops it cleanly; returns the end of the log."""
    store = opened(path, **options)
    put(store, count)
    store.shutdown()
    return store._log.max_offset


def java(path: Path, count: int) -> int:
    """Like ``written``, as RocketMQ does it: records without checksum, and the watermark stays as it is."""
    kept = path / "kept"
    mark = path / "rucola-watermark"
    if mark.exists():
        mark.rename(kept)
    end = written(path, count, enabled_append_prop_crc=False)
    mark.unlink()
    if kept.exists():
        kept.rename(mark)
    return end


def places(path: Path) -> list[tuple[int, int]]:
    """Physical offset and size of all records of the queue."""
    store = OfflineStore(str(path))
    found = [(unit[1], unit[2]) for unit in store.units(TOPIC.decode(), 0, 0, 1 << 40)]
    store.close()
    return found


def stretches(path: Path) -> list[int]:
    store = OfflineStore(str(path))
    found = list(store.log.stretches or ())
    store.close()
    return found


def lose_end(path: Path, place: tuple[int, int], kind: str = "zeros") -> None:
    """Overwrites the end of a record, its checksum included."""
    offset, size = place
    lost = {"zeros": bytes(60), "checksum": bytes(20), "garbage": b"\xa5" * 60}[kind]
    with (path / "commitlog" / f"{offset - offset % SEGMENT:020d}").open("r+b") as file:
        file.seek(offset % SEGMENT + size - len(lost))
        file.write(lost)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_lost_its_end_is_withheld_and_reported(tmp_path: Path, kind: str) -> None:
    written(tmp_path, 200)
    place = places(tmp_path)[7]
    lose_end(tmp_path, place, kind)
    store = opened(tmp_path)
    result = store.get_message(TOPIC, 0, 7, 1, 1 << 20)
    assert (result.status, result.next_offset) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 8)
    assert store.stats.damaged_messages == 1
    assert store.message_at(place[0]) is None
    assert store.query_by_key(TOPIC, b"k7").views == []
    assert len(store.query_by_key(TOPIC, b"k8").views) == 1
    store.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_the_tools_find_it(tmp_path: Path, kind: str) -> None:
    store_path = tmp_path / "store"
    written(store_path, 200)
    place = places(store_path)[7]
    lose_end(store_path, place, kind)
    offline = OfflineStore(str(store_path))
    assert offline.message_at(place[0]) is None
    assert offline.rows_at(place[0]) is None
    with pytest.raises(StoreDamagedError):
        list(offline.messages("T0", 0, 7, 8))
    with pytest.raises(StoreDamagedError):
        list(offline.rows("T0", 0, 7, 8))
    assert len(list(offline.messages("T0", 0, 8, 200))) == 192
    offline.close()
    report = verify(with_topics(store_path))
    assert report.counts == {FindingKind.RECORD_CRC: 1}
    assert report.findings[0].position == place[0]
    assert "has lost it" in report.findings[0].detail
    found = salvage([str(store_path)], str(tmp_path / "saved"))
    assert (found.saved, found.torn) == (199, 1)


def test_the_last_segment_with_such_a_record_refuses_the_start(tmp_path: Path) -> None:
    written(tmp_path, 190)
    lose_end(tmp_path, places(tmp_path)[-7], "garbage")
    with pytest.raises(StoreDamagedError, match="were synced"):
        opened(tmp_path)
    store = opened(tmp_path, quarantine=True)
    result = store.get_message(TOPIC, 0, 184, 32, 1 << 20)
    assert [m.queue_offset for view in result.views for m in decode_messages(view)] == [184, 185, 186, 187, 188, 189]
    put(store, 3, 190)
    store.shutdown()
    assert not [kind for kind in verify(with_topics(tmp_path)).counts if kind is FindingKind.RECORD_CRC]
    assert stretches(tmp_path)[0] == 0, "the filled gap does not end the stretch"


def test_java_ours_java_ours_with_switches_between(tmp_path: Path) -> None:
    ends = [java(tmp_path, 50)]
    assert stretches(tmp_path) == []
    ends.append(written(tmp_path, 50))
    assert stretches(tmp_path) == [ends[0], ends[1]]
    ends.append(java(tmp_path, 50))
    assert stretches(tmp_path) == [ends[0], ends[1]], "the log is longer than the mark: not ours"
    ends.append(written(tmp_path, 50))
    ends.append(written(tmp_path, 50))
    assert stretches(tmp_path) == [ends[0], ends[1], ends[2], ends[4]]
    ends.append(written(tmp_path, 50, enabled_append_prop_crc=False))
    ends.append(written(tmp_path, 50, enabled_append_prop_crc=False))
    ends.append(written(tmp_path, 50))
    assert stretches(tmp_path) == [ends[0], ends[1], ends[2], ends[4], ends[6], ends[7]]
    store = opened(tmp_path)
    read = 0
    while (result := store.get_message(TOPIC, 0, read, 32, 1 << 20)).status is GetMessageStatus.FOUND:
        read = result.next_offset
    assert (read, store.stats.damaged_messages) == (400, 0)
    store.shutdown()
    assert verify(with_topics(tmp_path)).clean
    record = places(tmp_path)
    for number in (10, 60, 110, 160, 260, 360):
        lose_end(tmp_path, record[number])
    damaged = {finding.position for finding in verify(with_topics(tmp_path)).findings}
    assert damaged == {record[number][0] % SEGMENT for number in (60, 160, 360)}


def test_a_crash_neither_loses_the_stretch_nor_claims_more(tmp_path: Path) -> None:
    path, image = tmp_path / "store", tmp_path / "image"
    first = java(path, 50)
    store = opened(path)
    put(store, 50)
    shutil.copytree(path, image, ignore=UNFINISHED)  # no mark was written since the start
    store.shutdown()
    assert stretches(image) == [], "up to the mark, nothing was written"
    end = written(image, 10)
    assert stretches(image) == [first, end], "records with checksums behind the mark belong to the stretch"
    image2 = tmp_path / "image2"
    store = opened(image)
    put(store, 10)
    middle = store._log.max_offset
    shutil.copytree(image, image2, ignore=UNFINISHED)
    store.shutdown()
    java(image2, 10)  # recovers, and appends behind what was not marked
    end = written(image2, 10)
    begin = places(image2)[-10][0]
    assert stretches(image2) == [first, middle, begin, end]


def test_a_log_that_was_cut_below_the_mark_and_written_on(tmp_path: Path) -> None:
    written(tmp_path, 200)
    mark = (tmp_path / "rucola-watermark").read_bytes()
    record = places(tmp_path)
    cut, _ = record[90]
    name = tmp_path / "commitlog" / f"{cut - cut % SEGMENT:020d}"
    for later in sorted((tmp_path / "commitlog").iterdir()):
        if later.name > name.name:
            later.unlink()
    content = name.read_bytes()
    name.write_bytes(content[: cut % SEGMENT].ljust(SEGMENT, b"\0"))
    (tmp_path / "rucola-watermark").unlink()
    (tmp_path / "abort").touch()
    java(tmp_path, 250)
    (tmp_path / "rucola-watermark").write_bytes(mark)
    found = stretches(tmp_path)
    assert found == [0, cut]
    offline = OfflineStore(str(tmp_path))
    assert len(list(offline.messages("T0", 0, 0, 1000))) > 100
    offline.close()
    assert FindingKind.RECORD_CRC not in verify(with_topics(tmp_path)).counts


def test_an_older_version_knows_no_stretches(tmp_path: Path) -> None:
    end = written(tmp_path, 50)
    path = tmp_path / "rucola-watermark"
    content = bytearray(path.read_bytes())
    for slot in (0, 512):
        content[slot + 52 : slot + 512] = bytes(460)
    path.write_bytes(content)
    assert WatermarkFile(Files(), str(tmp_path)).read() is not None
    assert stretches(tmp_path) == []
    later = written(tmp_path, 50)
    assert stretches(tmp_path) == [end, later]


def test_expired_stretches_leave_the_list(tmp_path: Path) -> None:
    for _ in range(WRITER_MARKS_MAX):
        java(tmp_path, 2)
        written(tmp_path, 2)
    marks = WatermarkFile(Files(), str(tmp_path)).read()
    assert marks is not None
    assert len(marks.writers) == WRITER_MARKS_MAX - 1
    starts = stretches(tmp_path)[::2]
    assert len(starts) == WRITER_MARKS_MAX // 2
    assert starts == [place for place, _ in places(tmp_path)[2::4]][-len(starts) :], "the oldest ones are forgotten"
    for name in sorted((tmp_path / "commitlog").iterdir())[:-1]:
        name.unlink()
    floor = int(sorted((tmp_path / "commitlog").iterdir())[0].name)
    assert floor
    written(tmp_path, 2)
    assert stretches(tmp_path)[1] > floor


@pytest.mark.parametrize("at", [0, 20, 52, 60, 300, 508, 511])
def test_a_damaged_slot_is_not_used(tmp_path: Path, at: int) -> None:
    file = WatermarkFile(Files(), str(tmp_path))
    marks = (WriterMark(0, Writer.RUCOLA), WriterMark(100, Writer.UNKNOWN), WriterMark(300, Writer.RUCOLA))
    file.write(Watermark(500, 400, writers=marks))
    file.write(Watermark(700, 600, writers=marks))
    path = tmp_path / "rucola-watermark"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert WatermarkFile(Files(), str(tmp_path)).read() == Watermark(500, 400, writers=marks)


def test_walk_records_asks_for_the_checksum_inside_stretches_only(form: str) -> None:
    walk_records = kernel("formats._message_cy", form).walk_records
    record = encode_message(StoreMessage(b"T", 0, b"b", b"a\x01b\x02", 1, HOST), 1000, 0, 1, HOST)
    table = new_table(1)

    def walk(stretches: list[int] | None, check: int = 0, flag: int = 0) -> int:
        data = bytearray(record)
        data[39] |= flag
        pairs = None if stretches is None else array("q", stretches)
        rows, _, stop = walk_records(data, memoryview(data), 0, len(data), 1000, table, 1, crc32, check, pairs)
        assert (rows, stop) in ((1, WalkStop.LIMIT), (0, WalkStop.TORN))
        return int(rows)

    for check in (0, 2, 7):
        assert walk(None, check) == walk([], check) == 1
        assert walk([0, 1000], check) == walk([1001, 2000], check) == 1
        assert walk([0, 10, 1000, 1001], check) == walk([0, 2000], check) == 0
    assert walk([0, 2000], 0, 12) == 1, "a filled gap is no lost end"
    assert walk([0, 2000], 0, 4) == walk([0, 2000], 0, 8) == 0


@pytest.mark.parametrize("order", [ScanOrder.LOG, ScanOrder.QUEUE])
def test_scans_stop_at_a_record_that_lost_its_end(tmp_path: Path, order: ScanOrder) -> None:
    first = java(tmp_path, 50)
    written(tmp_path, 50)
    record = places(tmp_path)
    lose_end(tmp_path, record[20], "checksum")
    assert record[50][0] == first
    subscription = Subscription(topics=("T0",))
    options = ReadOptions(store_path=str(tmp_path), subscription=subscription, scan_order=order, partitions_min=8)
    schema = pa.schema([("queueOffset", pa.int64())])

    def read() -> tuple[list[int], int]:
        catalog = open_catalog(options)
        bounds = catalog.bounds(catalog.queues(all_needed=True))
        found, failed = [], 0
        for piece in catalog.plan([QueueRange(queue, least, most) for queue, (least, most) in bounds.items()]):
            try:
                found += [
                    row for batch in read_range(options, schema, piece) for row in batch["queueOffset"].to_pylist()
                ]
            except FormatError:
                failed += 1
        catalog.close()
        return found, failed

    assert read() == (list(range(100)), 0), "outside of stretches all stays as it was"
    lose_end(tmp_path, record[70], "checksum")
    found, failed = read()
    assert failed == 1
    assert 70 not in found
    assert set(range(50)) < set(found)
