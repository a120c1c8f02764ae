"""Salvage of records whose places are doubtful, and what it puts between records."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from shutil import copytree

import pytest
from tests.unit.store.stores import HOST, SEGMENT, fill, message, opened
from tests.unit.store.test_rebuild import OPTIONS
from tests.unit.store.test_salvage import bodies, log_of

from rucola.errors import ConfigError
from rucola.formats.message import encode_message
from rucola.formats.segment_name import segment_name
from rucola.runtime.files import Files
from rucola.store.doctor import salvage as module
from rucola.store.doctor import salvage_choice
from rucola.store.doctor.salvage import SalvageReport, salvage
from rucola.store.recovery.repair import FILLER_BYTES_MIN

TIME_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "data_sync", staticmethod(lambda _descriptor: None))
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    one = opened(path)
    fill(one, 500)
    one.shutdown()
    return path


def record(number: int, physical_offset: int, time_ms: int = TIME_MS) -> bytes:
    return encode_message(message(number), physical_offset, number, time_ms, HOST)


SIZE = len(record(0, 0))


def salvaged(tmp_path: Path, *parts: bytes, segment_bytes: int = SEGMENT) -> SalvageReport:
    (tmp_path / "image").write_bytes(b"".join(parts))
    return salvage([str(tmp_path / "image")], str(tmp_path / "new"), segment_bytes, options=OPTIONS)


def times(path: Path) -> list[int]:
    """Returns the store times of all records, fillers included."""
    found = []
    for data in log_of(path).values():
        at = 0
        while data[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
            found.append(int.from_bytes(data[at + 56 : at + 64], "big") - TIME_MS)
            at += int.from_bytes(data[at : at + 4], "big")
    return found


def test_of_two_records_at_one_place_the_later_one_stays(tmp_path: Path) -> None:
    report = salvaged(tmp_path, record(0, 0, TIME_MS + 1), record(0, 0, TIME_MS + 2), record(0, 0))
    assert (report.found, report.saved, report.misplaced, report.copies) == (3, 1, 2, 0)
    assert times(tmp_path / "new") == [2]


@pytest.mark.parametrize(("rest", "saved"), [(8, 1), (7, 0)])
def test_a_record_leaves_room_for_the_end_of_its_segment(rest: int, saved: int, tmp_path: Path) -> None:
    report = salvaged(tmp_path, record(0, 4096 - SIZE - rest), segment_bytes=4096)
    assert (report.saved, report.misplaced) == (saved, 1 - saved)


@pytest.mark.parametrize(("space", "saved"), [(0, 2), (1, 1), (FILLER_BYTES_MIN - 1, 1), (FILLER_BYTES_MIN, 2)])
def test_space_between_records_must_hold_a_filler(space: int, saved: int, tmp_path: Path) -> None:
    report = salvaged(tmp_path, record(0, 0), record(1, SIZE + space))
    assert (report.saved, report.misplaced, report.gaps) == (saved, 2 - saved, int(space == FILLER_BYTES_MIN))


@pytest.mark.parametrize("space", [300, 301, 300 + FILLER_BYTES_MIN, 301 + FILLER_BYTES_MIN, 1000])
def test_a_long_gap_gets_several_fillers(space: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FILLER_BYTES_MAX", 300)
    salvaged(tmp_path, record(0, 0), record(1, SIZE + space))
    assert len(times(tmp_path / "new")) == 2 + -(-max(space - FILLER_BYTES_MIN, 1) // 300)
    assert len(bodies(tmp_path / "new")) == 2


def test_an_impossible_offset_makes_no_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage_choice, "_SEGMENTS_MAX", 2)
    report = salvaged(tmp_path, record(0, 0), record(1, 3 * SEGMENT))
    assert (report.saved, report.misplaced) == (1, 1)


def test_fillers_have_the_latest_store_time(tmp_path: Path) -> None:
    places = (0, 2 * SIZE, 4 * SIZE, SEGMENT + 2 * SIZE)
    parts = [record(number, place, TIME_MS + 10 * (number % 3)) for number, place in enumerate(places)]
    salvaged(tmp_path, *parts)
    assert times(tmp_path / "new") == [0, 0, 10, 10, 20, 20, 0]


def test_a_record_is_found_one_byte_after_others(tmp_path: Path) -> None:
    assert salvaged(tmp_path, b"x", record(0, 0), b"xx", record(1, SIZE)).saved == 2


def test_a_segment_under_another_name_is_searched_without_torn_records(store: Path, tmp_path: Path) -> None:
    other = tmp_path / f"{7 * SEGMENT:020d}"
    other.write_bytes(log_of(store)[f"{SEGMENT:020d}"])
    report = salvage([str(other)], str(tmp_path / "new"), options=OPTIONS)
    assert report.saved == report.found > 0 and report.torn == 0


def test_a_record_within_a_damaged_message_is_no_message(tmp_path: Path) -> None:
    path = tmp_path / "store"
    one, outer = opened(path), message(1)
    outer.body = b"before" + record(2, 1 << 20) + b"after"
    one.put_message(outer)
    one.put_message(message(3))
    one.shutdown()
    log = path / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes().replace(b"before", b"BEFORE"))
    assert salvage([str(path)], str(tmp_path / "new"), options=OPTIONS).saved == 1


def test_a_salvaged_store_is_salvaged_again(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WRITE_BYTES", 1000)  # a segment is written in many parts
    (store / "commitlog" / f"{0:020d}").unlink()
    log = store / "commitlog" / f"{SEGMENT:020d}"
    log.write_bytes(log.read_bytes()[:4] + b"\0" + log.read_bytes()[5:])
    first = salvage([str(store)], str(tmp_path / "new"), options=OPTIONS)
    second = salvage([str(tmp_path / "new")], str(tmp_path / "again"), options=OPTIONS)
    assert (second.found, second.saved, second.topics) == (first.saved, first.saved, first.topics)
    assert second.gaps == first.gaps == 1
    assert log_of(tmp_path / "again") == log_of(tmp_path / "new")


def test_tables_are_those_of_the_first_source_that_has_some(store: Path, tmp_path: Path) -> None:
    bare, other = copytree(store, tmp_path / "bare"), copytree(store, tmp_path / "other")
    for path, text in ((store, "{}"), (other, "[]")):
        (path / "config").mkdir()
        (path / "config" / "topics.json").write_text(text)
    (bare / "quarantine").mkdir()
    (bare / "quarantine" / "gaps.json").write_text("[]")
    sources = [str(path) for path in (bare, store, other)]
    report = salvage(sources, str(tmp_path / "new"), options=OPTIONS)
    assert report.files == 3 * len(log_of(store))
    assert (tmp_path / "new" / "config" / "topics.json").read_text() == "{}"


@pytest.mark.parametrize("below", ["new", "commitlog/new", "link/new"])
def test_an_output_in_a_source_is_refused(below: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "commitlog").mkdir(parents=True)
    (source / "commitlog" / segment_name(0)).write_bytes(record(0, 0))
    (tmp_path / "link").symlink_to(source)
    output = tmp_path / below if below.startswith("link") else source / below
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="outside of the source"):
        salvage([str(source)], str(output), SEGMENT)
    assert sorted(tmp_path.rglob("*")) == before


def test_impossible_outputs_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(record(0, 0))
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    for source, name in (("image", "dangling"), ("image", "\udcff"), ("fifo", "new"), ("/dev/zero", "new")):
        with pytest.raises(ConfigError, match="not allowed"):
            salvage([str(tmp_path / source)], str(tmp_path / name), SEGMENT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "fifo", "image"]


@pytest.mark.parametrize("what", ["store", "segment"])
def test_a_copy_of_what_others_may_not_read_is_closed_to_them(what: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "commitlog").mkdir(parents=True)
    segment = source / "commitlog" / segment_name(0)
    segment.write_bytes(record(0, 0))
    given = source if what == "store" else segment
    given.chmod(0o755)
    salvage([str(given)], str(tmp_path / "open"), SEGMENT)
    assert (tmp_path / "open").stat().st_mode & 0o005 == 0o005
    given.chmod(0o750)
    salvage([str(given)], str(tmp_path / "closed"), SEGMENT)
    assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o700


def test_holes_of_an_image_take_neither_time_nor_memory(tmp_path: Path) -> None:
    image, peak = tmp_path / "image", peak_mib()
    with image.open("wb") as file:
        for number, place in enumerate((4090, 1 << 39, (1 << 40) - 3 * SIZE)):
            file.seek(place)
            file.write(record(number, number * SIZE))
        file.truncate(1 << 40)
    report = salvage([str(image)], str(tmp_path / "new"), SEGMENT)
    assert report.saved == 3
    assert peak_mib() < peak + 100, "nothing in memory has the size of the image"


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
