"""Index files of a store with unknown history are kept only if all their significant bytes equal those that would be
built from the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.golden.loader import Case, load
from tests.golden.opening import config_of
from tests.sizes import size

from rucola.common.columns import RecordColumn
from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, IndexHeader, index_file_bytes, put_key
from rucola.runtime.files import Files
from rucola.store.index.index_audit import sound_files
from rucola.store.index.index_service import IndexService
from rucola.store.log.log_reader import LogReader
from rucola.store.log.segment_list import SegmentList
from rucola.testing.clock import ManualClock


@pytest.fixture(params=["index_chains", "tags", "rolling"])
def case(request: pytest.FixtureRequest) -> Case:
    return load(request.param)


@contextmanager
def log_of(case: Case, path: Path) -> Iterator[LogReader]:
    for name, data in case.below("commitlog").items():
        (path / "commitlog").mkdir(exist_ok=True)
        (path / "commitlog" / name).write_bytes(data)
    queue = SegmentList(Files(), str(path / "commitlog"), case.config("mappedFileSizeCommitLog", 0))
    queue.load()
    log = LogReader(queue)
    log.max_offset = case.expect["store"]["maxPhyOffset"]
    yield log
    queue.close()


def kept(case: Case, log: LogReader, path: Path, files: dict[str, bytes]) -> list[str]:
    """Returns the names of the index files that the audit finds correct."""
    (path / "index").mkdir(exist_ok=True)
    for old in (path / "index").iterdir():
        old.unlink()
    for name, data in files.items():
        (path / "index" / name).write_bytes(data)
    index = IndexService(Files(), ManualClock(), str(path / "index"), config_of(case, path))
    index.load()
    names = [file.name for file in sound_files(index.files, log)]
    index.close()
    return names


def test_every_byte_in_use_is_looked_at(case: Case, tmp_path: Path) -> None:
    """The audit compares every used byte of an index file except the number of used slots: old versions counted them
    differently, and nothing reads this number.
    """
    files = dict(sorted(case.below("index").items()))
    slots_at = INDEX_HEADER.position("hash_slot_count")
    with log_of(case, tmp_path) as log:
        assert kept(case, log, tmp_path, files) == list(files)
        for place, (name, data) in enumerate(files.items()):
            count = IndexHeader.decode(data).index_count
            first = INDEX_HEADER.size + 4 * case.config("maxHashSlotNum", 0)
            header = [at for at in range(INDEX_HEADER.size) if not slots_at <= at < slots_at + 4]
            slots = range(INDEX_HEADER.size, first, size(61, 7))
            # The step has no common divisor with the length of an entry, so each byte of an entry gets its turn.
            entries = range(first + INDEX_ENTRY.size, first + INDEX_ENTRY.size * count, size(53, 13))
            for at in (*header, *slots, *entries):
                wrong = bytearray(data)
                wrong[at] ^= 0x11
                found = kept(case, log, tmp_path, files | {name: bytes(wrong)})
                assert found == list(files)[:place], f"{name}: byte {at}"


def test_a_file_that_lacks_a_key_or_knows_more_than_the_log(case: Case, tmp_path: Path) -> None:
    files = case.below("index")
    slots, entries = case.config("maxHashSlotNum", 0), case.config("maxIndexNum", 0)
    newest = max(files)
    with log_of(case, tmp_path) as log:
        more = bytearray(files[newest])
        header = IndexHeader.decode(more)
        put_key(more, slots, entries, b"T", b"k", 0, 1, header.end_physical_offset, header.end_timestamp_ms)
        assert newest not in kept(case, log, tmp_path, files | {newest: bytes(more)})
        less = bytearray(index_file_bytes(slots, entries))
        row = log.row_at(case.expect["log"][0]["physicalOffset"])
        assert row is not None
        put_key(less, slots, entries, b"T", b"k", 0, 1, 0, row[RecordColumn.STORE_TIMESTAMP])
        assert kept(case, log, tmp_path, {min(files): bytes(less)}) == []
        if len(files) > 1:
            assert kept(case, log, tmp_path, {newest: files[newest]}) == []


def test_a_key_for_the_tags_is_right_too(tmp_path: Path) -> None:
    """An index entry for the tags is correct, too: RocketMQ adds it since 5.4.0; older messages do not have one."""
    case = load("tags")
    (name,) = case.below("index")
    slots, entries = case.config("maxHashSlotNum", 0), case.config("maxIndexNum", 0)
    for since in (0, 3, 5):
        file = bytearray(index_file_bytes(slots, entries))
        for number, entry in enumerate(case.expect["log"]):
            properties, topic = entry["properties"], entry["topic"].encode()
            keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
            if number >= since and properties.get("TAGS"):
                keys.append("T#" + properties["TAGS"])
            for key in filter(None, keys):
                text = key.encode()
                place = entry["physicalOffset"], entry["storeTimestamp"]
                assert put_key(file, slots, entries, topic, text, 0, len(text), *place)
        with log_of(case, tmp_path) as log:
            assert kept(case, log, tmp_path, {name: bytes(file)}) == [name]
