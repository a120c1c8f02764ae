"""The check of a store: it finds nothing in a sound store, names each kind of damage with its position, and changes no
byte.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sizes import size
from tests.unit.store.stores import HOST, contents, fill, message, opened, with_topics
from tests.unit.store.test_rebuild import OPTIONS

from rucola.errors import StoreDamagedError
from rucola.formats.consume_queue import UNIT
from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, index_file_bytes
from rucola.formats.message import RECORD_HEAD, encode_message
from rucola.runtime.files import Files
from rucola.store.doctor.repair import repair
from rucola.store.log.mapped_file import MappedFile
from rucola.store.verify.check import VerifyReport, verify
from rucola.store.verify.findings import LISTED_MAX, FindingKind, Findings
from rucola.store.verify.index import index_geometry
from rucola.store.verify.queues import QueueCheck

SMALL_SEGMENT = {"mapped_file_size_commit_log": 8192}
COUNT = 120


def made(path: Path, count: int = COUNT, **options: Any) -> Path:
    """Makes a stopped store with ``count`` synced messages."""
    store = opened(path, **(SMALL_SEGMENT | options))
    fill(store, count)
    store.shutdown()
    with_topics(path)
    return path


def found(report: VerifyReport) -> list[tuple[str, str, int, int]]:
    return [(finding.kind.value, finding.file, finding.position, finding.count) for finding in report.findings]


def segment(path: Path, number: int = 0) -> Path:
    return sorted((path / "commitlog").iterdir())[number]


def records(file: Path) -> list[int]:
    """Returns the positions of the records in a segment."""
    data, at, positions = file.read_bytes(), 0, []
    while data[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
        positions.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return positions


def overwrite(file: Path, position: int, data: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[position : position + len(data)] = data
    file.write_bytes(content)


def flip(file: Path, position: int) -> None:
    overwrite(file, position, bytes([file.read_bytes()[position] ^ 1]))


def unit_file(path: Path) -> Path:
    return path / "consumequeue" / "T0" / "0" / ("0" * 20)


def index_name(path: Path) -> Path:
    return min((path / "index").iterdir())


def entry_at(number: int) -> int:
    return INDEX_HEADER.size + INDEX_SLOT.size * 100 + INDEX_ENTRY.size * number


def test_a_store_of_ours_is_sound(tmp_path: Path) -> None:
    report = verify(str(made(tmp_path)))
    assert report.clean
    assert found(report) == []
    assert report.records == report.units == COUNT
    assert report.index_entries == 3 * COUNT
    assert report.notes == []


def test_an_empty_store_and_one_without_queues_or_index(tmp_path: Path) -> None:
    store = opened(tmp_path / "a", message_index_enable=False)
    store.shutdown()
    assert verify(str(tmp_path / "a")).clean
    assert verify(str(made(tmp_path / "b", message_index_enable=False))).index_entries == 0


def test_other_directories_are_no_stores(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no store")
    with pytest.raises(StoreDamagedError):
        verify(str(tmp_path))


def in_body(path: Path) -> None:
    flip(segment(path), records(segment(path))[3] + 90)


def in_topic(path: Path) -> None:
    file = segment(path)
    at = records(file)[3]
    flip(file, file.read_bytes().index(b"KEYS", at))


def in_magic(path: Path) -> None:
    flip(segment(path), records(segment(path))[3] + 5)


def in_physical_offset(path: Path) -> None:
    flip(segment(path), records(segment(path))[3] + RECORD_HEAD.position("physical_offset") + 7)


def in_blank(path: Path) -> None:
    file = segment(path)
    overwrite(file, file.read_bytes().index(b"\xcb\xd4\x31\x94") - 4, (8).to_bytes(4, "big"))


def cut_in_the_middle(path: Path) -> None:
    segment(path, 1).unlink()


def unit_offset(path: Path) -> None:
    flip(unit_file(path), 20 * 5 + 7)


def unit_size(path: Path) -> None:
    flip(unit_file(path), 20 * 5 + 11)


def unit_tags(path: Path) -> None:
    flip(unit_file(path), 20 * 5 + 19)


def units_zeroed(path: Path) -> None:
    overwrite(unit_file(path), 100, bytes(60))


def unit_beyond(path: Path) -> None:
    overwrite(unit_file(path), 600, UNIT.pack(1 << 40, 100, 0))


def unit_again(path: Path) -> None:
    overwrite(unit_file(path), 600, unit_file(path).read_bytes()[:20])


def entry_offset(path: Path) -> None:
    flip(index_name(path), entry_at(7) + 11)


def entry_chain(path: Path) -> None:
    overwrite(index_name(path), entry_at(7) + 16, (7).to_bytes(4, "big"))


def slot(path: Path) -> None:
    data = index_name(path).read_bytes()
    number = next(n for n in range(100) if data[INDEX_HEADER.size + 4 * n + 3])
    overwrite(index_name(path), INDEX_HEADER.size + 4 * number, bytes(4))


def slot_count(path: Path) -> None:
    flip(index_name(path), INDEX_HEADER.position("hash_slot_count") + 3)


def index_count(path: Path) -> None:
    overwrite(index_name(path), INDEX_HEADER.position("index_count"), (1000).to_bytes(4, "big"))


def short_checkpoint(path: Path) -> None:
    (path / "checkpoint").write_bytes((path / "checkpoint").read_bytes()[:40])


def checkpoint_rest(path: Path) -> None:
    overwrite(path / "checkpoint", 100, b"x")


def checkpoint_ahead(path: Path) -> None:
    overwrite(path / "checkpoint", 8, (1 << 50).to_bytes(8, "big"))


def checkpoint_negative(path: Path) -> None:
    overwrite(path / "checkpoint", 16, b"\xff" * 8)


def table(path: Path) -> None:
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / "topics.json").write_text('{"topicConfigTable":{"T0":{"perm"')


def backup_only(path: Path) -> None:
    (path / "config" / "topics.json").unlink()
    (path / "config" / "topics.json.bak").write_text("{}")


def consumer_ahead(path: Path) -> None:
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    (path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T0@g":{0:30,1:31},"gone@g":{0:5}}}')


def stray(path: Path) -> None:
    (path / "commitlog" / "notes.txt").write_text("stray")


def short_queue_file(path: Path) -> None:
    file = path / "consumequeue" / "T1" / "1" / ("0" * 20)
    file.write_bytes(file.read_bytes()[:1900])


FIRST = "commitlog/" + "0" * 20
QUEUE = "consumequeue/T0/0/" + "0" * 20
DAMAGES: list[tuple[Callable[[Path], None], list[tuple[str, str]]]] = [
    (in_body, [("body_crc", FIRST)]),
    (in_topic, [("record_crc", FIRST), ("index_entry", "index")]),
    (in_magic, [("record", FIRST)]),
    (in_physical_offset, [("record", FIRST)]),
    (in_blank, [("blank", FIRST)]),
    (cut_in_the_middle, [("segment_missing", "commitlog/00000000000000008192")]),
    (unit_offset, [("unit", QUEUE)]),
    (unit_size, [("unit", QUEUE)]),
    (unit_tags, [("unit_tags", QUEUE)]),
    (units_zeroed, [("record_without_unit", QUEUE)]),
    (unit_beyond, [("unit_without_record", QUEUE)]),
    (unit_again, [("stale_unit", QUEUE)]),
    (entry_offset, [("index_entry", "index")]),
    (entry_chain, [("index_chain", "index")]),
    (slot, [("index_chain", "index")]),
    (slot_count, [("index_header", "index")]),
    (index_count, [("index_header", "index")]),
    (short_checkpoint, [("checkpoint", "checkpoint")]),
    (checkpoint_rest, [("checkpoint", "checkpoint")]),
    (checkpoint_ahead, [("checkpoint", "checkpoint")]),
    (checkpoint_negative, [("checkpoint", "checkpoint")]),
    (table, [("table", "config/topics.json")]),
    (backup_only, [("table", "config/topics.json")]),
    (consumer_ahead, [("offset_ahead", "config/consumerOffset.json")]),
    (stray, [("stray_file", "commitlog/notes.txt")]),
    (short_queue_file, [("segment_length", "consumequeue/T1/1/" + "0" * 20)]),
]


@pytest.mark.parametrize(("damage", "expected"), DAMAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_damage_is_named(damage: Callable[[Path], None], expected: list[tuple[str, str]], tmp_path: Path) -> None:
    damage(made(tmp_path))
    report = verify(str(tmp_path))
    assert [
        (kind, file if not file.startswith("index/") else "index") for kind, file, _, _ in found(report)
    ] == expected


def test_places_and_counts(tmp_path: Path) -> None:
    file = segment(made(tmp_path))
    fourth, fifth = records(file)[3:5]
    assert file.read_bytes()[fourth + 20 : fourth + 28] == bytes(8)
    in_magic(tmp_path)
    units_zeroed(tmp_path)
    unit_beyond(tmp_path)
    report = verify(str(tmp_path))
    assert found(report) == [
        ("record", FIRST, fourth, 1),
        ("record_without_unit", QUEUE, 100, 3),
        ("unit_without_record", QUEUE, 600, 1),
    ]
    assert f"{fifth - fourth} bytes" in report.findings[0].detail
    assert report.affected == 4  # the unit and the three keys of the record that cannot be read
    assert report.records == COUNT - 1


def test_units_between_others_whose_record_is_gone(tmp_path: Path) -> None:
    made(tmp_path)
    at = records(segment(tmp_path))[4]  # entry 1 of T0/0
    flip(segment(tmp_path), at + 5)
    report = verify(str(tmp_path))
    assert (found(report), report.affected) == ([("record", FIRST, at, 1)], 4)
    overwrite(unit_file(tmp_path), 20, bytes(20))
    assert found(verify(str(tmp_path)))[1:] == [("queue_hole", QUEUE, 20, 1)]
    overwrite(unit_file(tmp_path), 20, unit_file(tmp_path).read_bytes()[:20])
    assert found(verify(str(tmp_path)))[1:] == [("unit_without_record", QUEUE, 20, 1)]


def test_an_own_offset_that_is_wrong_without_a_record_checksum(tmp_path: Path) -> None:
    in_physical_offset(made(tmp_path, enabled_append_prop_crc=False))
    assert [kind for kind, _, _, _ in found(verify(str(tmp_path)))] == ["physical_offset"]


def test_a_log_shorter_than_what_was_on_the_disk(tmp_path: Path) -> None:
    segment(made(tmp_path), -1).write_bytes(bytes(8192))
    report = verify(str(tmp_path))
    assert report.counts[FindingKind.LOG_SHORT] == 1
    assert report.counts[FindingKind.INDEX_ENTRY] == 3 * report.counts[FindingKind.UNIT_WITHOUT_RECORD] > 0


def test_a_record_cut_short_at_the_end(tmp_path: Path) -> None:
    last = records(segment(made(tmp_path), -1))[-1]
    overwrite(segment(tmp_path, -1), last + 60, bytes(500))
    report = verify(str(tmp_path))
    assert report.counts == {FindingKind.TORN_TAIL: 1, FindingKind.LOG_SHORT: 1}
    assert report.findings[0].position == last
    assert report.affected == 4


def test_old_segments_that_were_removed_are_no_finding(tmp_path: Path) -> None:
    segment(made(tmp_path)).unlink()
    report = verify(str(tmp_path))
    assert found(report) == []
    assert 0 < report.units == report.records < COUNT


def test_every_missing_queue_is_one_finding(tmp_path: Path) -> None:
    for file in sorted((made(tmp_path) / "consumequeue").rglob("0*")):
        if file.is_file():
            file.unlink()
    report = verify(str(tmp_path))
    assert [(kind, count) for kind, _, _, count in found(report)] == [("record_without_unit", COUNT // 4)] * 4


def test_nothing_is_changed_also_while_a_broker_runs(tmp_path: Path) -> None:
    store = opened(tmp_path, **SMALL_SEGMENT)
    fill(store, COUNT)
    before, times = contents(tmp_path), mtimes(tmp_path)
    report = verify(str(tmp_path))
    assert (contents(tmp_path), mtimes(tmp_path)) == (before, times)
    assert found(report) == []
    assert report.records == COUNT
    assert "a broker is using the store" in report.notes[0]
    store.shutdown()
    in_magic(tmp_path)
    before, times = contents(tmp_path), mtimes(tmp_path)
    verify(str(tmp_path))
    assert (contents(tmp_path), mtimes(tmp_path)) == (before, times)


def mtimes(path: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in [path, *path.rglob("*")]}


WRITER = """
import sys
import time
from pathlib import Path
from tests.unit.store.stores import fill, opened
store = opened(Path(sys.argv[1]), mapped_file_size_commit_log=8192)
for first in range(0, 6000, 20):
    fill(store, 20, first=first)
    print(first, flush=True)
store.shutdown()
"""


def test_a_store_that_another_process_is_writing_has_no_findings(tmp_path: Path) -> None:
    with_topics(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    with child:
        assert child.stdout is not None
        for _ in range(size(10, 30)):
            assert child.stdout.readline()
            assert found(verify(str(tmp_path))) == []
        child.stdout.read()
    report = verify(str(tmp_path))
    assert (child.returncode, report.clean, report.units) == (0, True, 6000)


def test_more_files_than_descriptors(tmp_path: Path) -> None:
    made(tmp_path, 1200, mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=100, max_index_num=100)
    assert len(list((tmp_path / "commitlog").iterdir())) > 64
    assert len(list((tmp_path / "consumequeue" / "T0" / "0").iterdir())) > 64 // 4
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32));"
        "from rucola.cli.main import main; sys.exit(main(['store', 'verify', sys.argv[1]]) or"
        " main(['store', 'grep', sys.argv[1], 'no such body']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_records_that_wait_for_their_queues_are_no_finding_in_a_store_in_use(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 40)
    for number in range(40, 60):
        store.put_message(message(number, b"T0"))
    report = verify(str(tmp_path))
    assert found(report) == []
    assert report.records == 60
    assert report.units == 40
    store.shutdown()


def test_an_entry_that_is_written_while_its_record_is_checked_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue entry is written between two checks of its record. Before the fix, ``verify`` reported the record as a
    second record with the same queue offset.
    """
    store = opened(tmp_path)
    fill(store, 40)
    for number in range(40, 60):
        store.put_message(message(number, b"T0"))
    find = QueueCheck.find

    def found_none_yet(queue: QueueCheck, place: tuple[int, int]) -> int:
        none_yet = find(queue, place)
        store.dispatch()
        return none_yet

    monkeypatch.setattr(QueueCheck, "find", found_none_yet)
    report = verify(str(tmp_path))
    assert found(report) == []
    assert report.records == 60
    store.shutdown()


def test_the_lock_of_another_process_is_seen_and_left_alone(tmp_path: Path) -> None:
    assert not Files().lock_held(str(tmp_path))
    program = (
        "import sys; from rucola.runtime.files import Files; lock = Files().lock_directory(sys.argv[1]);"
        "print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        assert Files().lock_held(str(tmp_path))
        assert Files().lock_held(str(tmp_path))
        child.communicate()
    assert not Files().lock_held(str(tmp_path))
    Files().lock_directory(str(tmp_path)).release()


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", range(30))
def test_hostile_bytes_end_in_findings(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    files = [file for file in sorted(made(tmp_path, 60).rglob("*")) if file.is_file() and file.stat().st_size]
    for file in rng.sample(files, 3):
        data = file.read_bytes()
        change = rng.randrange(4)
        if change == 0:
            file.write_bytes(rng.randbytes(len(data)))
        elif change == 1:
            file.write_bytes(data[: rng.randrange(len(data))])
        elif change == 2:
            file.write_bytes(rng.choice(files).read_bytes())
        else:
            at = rng.randrange(len(data))
            overwrite(file, at, (b"\x7f" + b"\xff" * 7)[: len(data) - at])
    report = verify(str(tmp_path))
    assert report.records <= 120
    assert report.clean is not bool(report.findings)


def test_findings_side_by_side_are_one_and_very_many_are_counted() -> None:
    collected = Findings("/s")
    for position in (0, 20, 40, 80):
        collected.add(FindingKind.UNIT, "/s/a", position, f"at {position}", 20)
        collected.add(FindingKind.UNIT, "/s/b", position, f"at {position}", 20)
    assert [(f.file, f.position, f.count, f.detail) for f in collected.listed()] == [
        ("a", 0, 3, "at 0"),
        ("b", 0, 3, "at 0"),
        ("a", 80, 1, "at 80"),
        ("b", 80, 1, "at 80"),
    ]
    for position in range(2 * LISTED_MAX):
        collected.add(FindingKind.RECORD, "/s/a", 10 * position, "")
    assert collected.counts == {FindingKind.UNIT: 8, FindingKind.RECORD: 2 * LISTED_MAX}
    assert len(collected.listed()) == 4 + LISTED_MAX


@pytest.mark.parametrize(("slots", "entries"), [(100, 400), (7, 11), (1000, 13), (5_000_000, 20_000_000)])
def test_the_geometry_of_an_index_file_is_told_from_its_entries(slots: int, entries: int, tmp_path: Path) -> None:
    path = tmp_path / "20240101000000000"
    with path.open("wb") as file:
        file.truncate(index_file_bytes(slots, entries))
        file.write(INDEX_HEADER.pack(1000, 3000, 5000, 6000, 2, 3))
        file.seek(INDEX_HEADER.size + INDEX_SLOT.size * slots + INDEX_ENTRY.size)
        file.write(INDEX_ENTRY.pack(3, 5000, 0, 0) + INDEX_ENTRY.pack(256, 6000, 2, 0))
    mapped = MappedFile(Files(), str(path), 0, path.stat().st_size, False, 0)
    assert index_geometry(mapped) == (slots, entries)
    mapped.close()


def test_a_file_that_is_far_too_long_takes_no_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 60)
    store.shutdown()
    with_topics(tmp_path)
    queue, begin = next((tmp_path / "consumequeue/T0/0").iterdir()), time.monotonic()
    os.truncate(queue, 2000 << 29)
    counts = verify(str(tmp_path)).counts
    assert counts == {FindingKind.SEGMENT_LENGTH: 1}
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("topic", [b"v" * 300, b"..", b"../../victim", b".", b"a/b", b"a\0b"])
def test_a_record_whose_topic_is_no_name_of_a_directory_does_not_end_verify_and_repair(
    topic: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    store = opened(path)
    fill(store, 6)
    store.shutdown()
    end = verify(str(path)).log_end
    (path / "rucola-watermark").unlink()
    with (path / f"commitlog/{0:020d}").open("r+b") as segment:
        segment.seek(end)
        segment.write(encode_message(message(7, topic), end, 0, 1_700_000_000_100, HOST))

    def others() -> list[Path]:
        return sorted(one for one in tmp_path.rglob("*") if not {"index", "repair"} & set(one.parts))

    tree = others()
    assert verify(str(path)).records == 7
    assert repair(str(path), options=OPTIONS).records_corrected == 0
    assert others() == tree
