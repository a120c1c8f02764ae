"""Comparison of two store directories."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import SEGMENT, config, fill, opened, with_topics

from rucola.cli.main import main
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.message import BLANK, MAGIC_BLANK
from rucola.runtime.files import Files
from rucola.store.inspect.compare import StoreComparison, TableDifference, compare
from rucola.store.inspect.compare_logs import LogComparison, Part
from rucola.store.log.log_reader import Gap
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.recovery.quarantine import Quarantine
from rucola.testing.clock import ManualClock


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A store with 900 messages in five segments, and its copy."""
    first, second = tmp_path / "first", tmp_path / "second"
    store = opened(first)
    fill(store, 900)
    store.shutdown()
    with_topics(first)
    shutil.copytree(first, second)
    return first, second


def compared(pair: tuple[Path, Path]) -> StoreComparison:
    return compare((str(pair[0]), str(pair[1])), Files())


def grown(path: Path, count: int, first: int = 900) -> None:
    store = opened(path)
    fill(store, count, first=first)
    store.shutdown()


def end_of(path: Path) -> int:
    store = OfflineStore(str(path))
    try:
        return store.end_offset()
    finally:
        store.close()


def overwrite(path: Path, physical_offset: int, content: bytes) -> None:
    start = physical_offset - physical_offset % SEGMENT
    with (path / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(physical_offset - start)
        file.write(content)


def record_starts(path: Path) -> list[int]:
    """Physical offsets of all records, blank ones included."""
    content = b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))
    found, at, end = [], 0, end_of(path)
    while at < end:
        found.append(at)
        at += BLANK.unpack(content[at : at + BLANK.size])[0]
    return found


def blanks(path: Path) -> list[tuple[int, int]]:
    """Physical offset and size of each blank record."""
    content = b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))
    heads = [(at, *BLANK.unpack(content[at : at + BLANK.size])) for at in record_starts(path)]
    return [(at, size) for at, size, magic in heads if magic == MAGIC_BLANK]


def test_copies_are_equal(pair: tuple[Path, Path]) -> None:
    found = compared(pair)
    assert (found.same, found.difference, found.meaningless, found.tables) == (True, None, 0, [])
    assert (found.equal_from, found.equal_to) == (0, end_of(pair[0]))
    for copy in (found.first, found.second):
        assert copy.lacks_before == copy.lacks_behind == Part()
        assert (copy.segment_bytes, copy.in_use) == (SEGMENT, False)


def test_what_a_copy_lacks_at_its_end(pair: tuple[Path, Path]) -> None:
    before = end_of(pair[0])
    grown(pair[0], 400)
    found = compared(pair)
    assert found.same
    assert found.equal_to == before
    assert found.first.lacks_behind == Part()
    # From inside a segment up to inside the next but one.
    assert found.second.lacks_behind == Part(end_of(pair[0]) - before, 400, 1)


def test_what_a_copy_lacks_at_its_beginning(pair: tuple[Path, Path]) -> None:
    for number in range(2):
        (pair[1] / "commitlog" / f"{number * SEGMENT:020d}").unlink()
    found = compared(pair)
    assert found.same
    assert (found.equal_from, found.second.min_offset) == (2 * SEGMENT, 2 * SEGMENT)
    starts, skipped = record_starts(pair[0]), {at for at, _ in blanks(pair[0])}
    messages = sum(at < 2 * SEGMENT and at not in skipped for at in starts)
    assert found.second.lacks_before == Part(2 * SEGMENT, messages, 2)
    assert found.first.lacks_before == Part()


def test_the_first_difference(pair: tuple[Path, Path]) -> None:
    before = end_of(pair[0])
    grown(pair[0], 30)
    grown(pair[1], 40, first=1000)
    found = compared(pair)
    assert not found.same
    assert (found.equal_from, found.equal_to) == (0, before)
    assert found.difference is not None
    first, second = found.difference.first, found.difference.second
    for path, there in zip(pair, (first, second), strict=True):
        content = b"".join(file.read_bytes() for file in sorted((path / "commitlog").iterdir()))
        size, _ = BLANK.unpack(content[before : before + BLANK.size])
        assert (there.kind, there.physical_offset, there.size) == ("message", before, size)
        assert there.sha256 == hashlib.sha256(content[before : before + size]).hexdigest()
    assert (first.topic, first.queue_id, first.queue_offset) == ("T0", 0, 225)
    assert before < found.difference.physical_offset < before + 200
    assert found.first.lacks_behind == Part(end_of(pair[1]) - before, 40, 0)
    assert found.second.lacks_behind == Part(end_of(pair[0]) - before, 30, 0)


def test_a_changed_byte_in_the_middle(pair: tuple[Path, Path]) -> None:
    start, following = record_starts(pair[0])[300:302]
    overwrite(pair[1], following - 7, b"?")
    found = compared(pair)
    assert found.difference is not None
    assert (found.difference.physical_offset, found.equal_to) == (following - 7, start)
    assert found.difference.first.size == found.difference.second.size == following - start
    assert found.difference.first.sha256 != found.difference.second.sha256


def test_no_record_where_the_other_log_has_one(pair: tuple[Path, Path]) -> None:
    start, following = record_starts(pair[0])[300:302]
    overwrite(pair[1], start, bytes(following - start))
    found = compared(pair)
    assert found.difference is not None
    assert (found.difference.first.kind, found.difference.second.kind) == ("message", "no record")
    assert (found.difference.physical_offset, found.equal_to) == (start + 2, start)


def test_a_blank_record_where_the_other_log_has_a_message(pair: tuple[Path, Path]) -> None:
    start = record_starts(pair[0])[10]
    overwrite(pair[1], start, BLANK.pack(SEGMENT - start, MAGIC_BLANK))
    found = compared(pair)
    assert found.difference is not None
    assert (found.difference.first.kind, found.difference.second.kind) == ("message", "blank")
    assert found.difference.second.size == SEGMENT - start


def test_bytes_behind_blank_records_mean_nothing(pair: tuple[Path, Path]) -> None:
    (at, size), (other_at, _), *_ = blanks(pair[0])
    assert size > 12
    overwrite(pair[1], at + BLANK.size, b"left")
    overwrite(pair[0], other_at + BLANK.size, b"\1")
    found = compared(pair)
    assert (found.same, found.meaningless) == (True, 2)
    # Their headers are compared, and what follows them too.
    overwrite(pair[1], SEGMENT + 30, b"?")
    changed = compared(pair).difference
    assert changed is not None and changed.physical_offset == SEGMENT + 30
    overwrite(pair[1], at + 3, b"?")
    changed = compared(pair).difference
    assert changed is not None and changed.physical_offset == at + 3


def test_gaps_are_listed_and_not_compared(pair: tuple[Path, Path]) -> None:
    start, following = record_starts(pair[0])[20:22]
    overwrite(pair[1], start + 8, bytes(following - start - 8))
    assert not compared(pair).same
    Quarantine(Files(), str(pair[1])).record_gap(Gap(start, following))
    found = compared(pair)
    assert found.same
    assert (found.first.gaps, found.second.gaps) == ([], [Gap(start, following)])
    overwrite(pair[1], following + 2, b"\x7f")
    changed = compared(pair).difference
    assert changed is not None and changed.physical_offset == following + 2


def test_a_blank_record_behind_a_gap(pair: tuple[Path, Path]) -> None:
    """Where the first log is damaged, the second one tells where the bytes begin that mean nothing."""
    start, following = record_starts(pair[0])[20:22]
    overwrite(pair[0], start + 4, b"none")
    Quarantine(Files(), str(pair[1])).record_gap(Gap(start, following))
    (at, _), *_ = blanks(pair[1])
    overwrite(pair[1], at + BLANK.size, b"left")
    for one, other in (pair, pair[::-1]):
        found = compared((one, other))
        assert (found.same, found.meaningless) == (True, 1)
    later = record_starts(pair[1])[50]
    overwrite(pair[1], later + 30, b"?")
    for one, other in (pair, pair[::-1]):
        assert compared((one, other)).equal_to == later


def test_segments_of_different_lengths(pair: tuple[Path, Path]) -> None:
    """The same bytes in files of another length."""
    content = b"".join(file.read_bytes() for file in sorted((pair[1] / "commitlog").iterdir()))
    shutil.rmtree(pair[1] / "commitlog")
    (pair[1] / "commitlog").mkdir()
    (pair[1] / "rucola-watermark").unlink()
    half = SEGMENT // 2
    # The log up to the middle of its first segment.
    border = max(start for start in record_starts(pair[0]) if start < half)
    first = content[:border] + BLANK.pack(half - border, MAGIC_BLANK)
    (pair[1] / "commitlog" / f"{0:020d}").write_bytes(first.ljust(half, b"\0"))
    (pair[1] / "commitlog" / f"{half:020d}").write_bytes(bytes(half))
    found = compared(pair)
    assert (found.first.segment_bytes, found.second.segment_bytes) == (SEGMENT, half)
    assert found.equal_to == border
    # Each file has two segments of the other log.
    shutil.rmtree(pair[1] / "commitlog")
    (pair[1] / "commitlog").mkdir()
    for number in range(0, len(content), 2 * SEGMENT):
        part = content[number : number + 2 * SEGMENT].ljust(2 * SEGMENT, b"\0")
        (pair[1] / "commitlog" / f"{number:020d}").write_bytes(part)
    found = compared(pair)
    assert found.second.segment_bytes == 2 * SEGMENT
    assert found.difference is None
    assert found.equal_to == found.second.end_offset == end_of(pair[0])


def test_logs_that_have_no_part_in_common(pair: tuple[Path, Path]) -> None:
    for number in range(3):
        (pair[1] / "commitlog" / f"{number * SEGMENT:020d}").unlink()
    for file in sorted((pair[0] / "commitlog").iterdir())[2:]:
        file.unlink()
    (pair[0] / "rucola-watermark").unlink()
    found = compared(pair)
    assert not found.same and found.difference is None
    assert found.first.lacks_behind.size_bytes == found.second.end_offset - 3 * SEGMENT
    assert found.second.lacks_before.size_bytes == found.first.end_offset


def test_empty_stores(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    for name in ("a", "b"):
        opened(tmp_path / name).shutdown()
    found = compared((tmp_path / "a", tmp_path / "b"))
    assert found.same
    found = compared((tmp_path / "a", pair[0]))
    assert not found.same
    assert found.first.lacks_behind.messages == 900


def test_a_store_in_use_is_compared_up_to_where_it_stood(pair: tuple[Path, Path]) -> None:
    store = MessageStore(config(pair[0]), Files(), ManualClock(step_ms=1))
    store.load()
    store.start()
    looked: list[tuple[int, int]] = []

    def look(done: int, total: int) -> None:
        if not looked:
            fill(store, 50, first=900)
        looked.append((done, total))

    before = end_of(pair[0])
    try:
        found = compare((str(pair[0]), str(pair[1])), Files(), look)
        assert (found.same, found.first.in_use, found.second.in_use) == (True, True, False)
        assert found.first.end_offset == found.equal_to == before
        assert looked[-1] == (before, before)
        assert compared(pair).second.lacks_behind.messages == 50
    finally:
        store.shutdown()


def test_segments_that_expire_meanwhile(pair: tuple[Path, Path]) -> None:
    stores = [OfflineStore(str(path)) for path in pair]
    for number in range(2):
        (pair[1] / "commitlog" / f"{number * SEGMENT:020d}").unlink()
    found = LogComparison((stores[0].log, stores[1].log), lambda _: None)
    found.run()
    assert (found.start, found.end, found.different_at) == (2 * SEGMENT, end_of(pair[0]), -1)
    for store in stores:
        store.close()


def test_a_byte_that_cannot_be_read(pair: tuple[Path, Path]) -> None:
    stores = [OfflineStore(str(path)) for path in pair]
    found = LogComparison((stores[0].log, stores[1].log), lambda _: None)
    for store in stores:
        for file in store.log.segments.files:
            _ = file.map
    with (pair[1] / "commitlog" / f"{SEGMENT:020d}").open("r+b") as cut:
        cut.truncate(100)
    with pytest.raises(DiskError):
        found.run()
    for store in stores:
        store.close()


def test_tables(pair: tuple[Path, Path]) -> None:
    (pair[0] / "config/topics.json").write_text(
        '{"dataVersion":{"counter":1},"topicConfigTable":{"A":{"perm":6},"B":{"perm":6},"C":{}}}'
    )
    (pair[1] / "config/topics.json").write_text(
        '{"dataVersion":{"counter":2},"topicConfigTable":{"B":{"perm":4},"C":{},"D":{}}}'
    )
    (pair[1] / "config/consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:5}}}')
    (pair[1] / "config/delayOffset.json").write_text("{")
    (pair[1] / "config/subscriptionGroup.json").write_text('{"subscriptionGroupTable":[]}')
    found = compared(pair)
    assert found.same
    assert found.tables[0] == TableDifference("topics.json", 1, 1, 1, ["A", "D", "B"])
    assert found.tables[1] == TableDifference("consumerOffset.json", 0, 1, 0, ["T@g"])
    assert found.tables[2].name == "delayOffset.json" and "delayOffset.json" in found.tables[2].names[0]
    assert len(found.tables) == 3  # an empty list has no entries either


def test_nothing_is_changed(pair: tuple[Path, Path]) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        files = [file for path in pair for file in path.rglob("*") if file.is_file()]
        return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}

    grown(pair[0], 20)
    before = state()
    assert compared(pair).same
    assert state() == before


def test_a_directory_without_a_store(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(StoreDamagedError, match="no store here"):
        compared((pair[0], tmp_path))


def test_a_list_of_gaps_that_cannot_be_read(pair: tuple[Path, Path]) -> None:
    (pair[0] / "quarantine").mkdir()
    (pair[0] / "quarantine/gaps.json").write_text("[[")
    with pytest.raises(StoreDamagedError, match="not a list of gaps"):
        compared(pair)


def run(*arguments: str | Path) -> int:
    return main(["store", "compare", *map(str, arguments)])


def test_the_command(pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*pair) == 0
    assert "yes, equal from 0 to" in capsys.readouterr().out
    grown(pair[0], 30)
    (pair[0] / "config/topics.json").write_text('{"topicConfigTable":{"\\u001b[31m":{}}}')
    assert run(*pair) == 0
    shown = capsys.readouterr().out
    assert "30 messages" in shown and "1 only in A" in shown and "\x1b" not in shown
    grown(pair[1], 40, first=1000)
    assert run(*pair) == 1
    shown = capsys.readouterr().out
    assert "offset 225 of T0/0" in shown and "first difference" in shown
    assert run(*pair, "--json") == 1
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert facts["same"] is False
    assert facts["difference"]["second"]["kind"] == "message"
    assert facts["second"]["lacks_behind"] == {
        "size_bytes": facts["first"]["end_offset"] - facts["equal_to"],
        "messages": 30,
        "segments": 0,
    }


def test_exit_codes(pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(pair[0]) == 2
    assert run(pair[0], tmp_path / "none") == 2
    (tmp_path / "empty").mkdir()
    assert run(pair[0], tmp_path / "empty") == 5
    start = record_starts(pair[0])[3]
    Quarantine(Files(), str(pair[0])).record_gap(Gap(start, start + 300))
    capsys.readouterr()
    assert run(*pair) == 0
    assert f"{start} to {start + 300}" in capsys.readouterr().out
    (pair[0] / "commitlog" / f"{SEGMENT:020d}").unlink()
    assert run(*pair) == 5
