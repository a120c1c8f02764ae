"""A sector that the disk cannot read: the store refuses to start and names the position, or serves the rest; the
process never dies.

A file that is truncated while it is mapped behaves like such a sector: access to the mapped memory raises SIGBUS, and a
read call fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.store.stores import fill, opened, snapshot, with_topics

from rucola.errors import DiskError, StoreDamagedError
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.queue.consume_queue_ext import ExtendedConsumeQueue
from rucola.store.results import GetMessageStatus
from rucola.store.verify.check import verify
from rucola.store.verify.findings import FindingKind

COUNT = 600
T = b"T0"
_PAGE = 4096
SCRIPT = """
import json, os, sys
from rucola.errors import DiskError, StoreDamagedError
from rucola.runtime.files import Files
from tests.unit.store.stores import message, opened, read
path, part, position, quarantine = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1"

class Short(Files):
    def map_file(self, name, size=None, writable=True):
        segment = super().map_file(name, size, writable)
        if part in name and "/quarantine/" not in name:
            os.truncate(name, position)
        return segment

try:
    store = opened(path, Short(), quarantine=quarantine)
except (DiskError, StoreDamagedError) as error:
    print(json.dumps({"refused": str(error), "path": error.path, "position": error.position}))
    raise SystemExit
print(json.dumps({str(name): store.max_queue_offset(*name) for name in store.queue_names()}))
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a killed store that is read completely at start-up, because it has no watermark."""
    path = tmp_path_factory.mktemp("image")
    store = opened(path / "live")
    fill(store, COUNT, topics=1, queues=1)
    snapshot(path / "live", path / "store")
    store.shutdown()
    (path / "store" / "rucola-watermark").unlink()
    return path / "store"


@pytest.mark.parametrize(
    ("part", "position"),
    [(f"commitlog/{0:020d}", 3 * _PAGE), ("consumequeue/T0/0/", 0), ("/index/", 0)],
)
def test_a_start_refuses_with_the_place_and_is_not_killed(
    part: str, position: int, image: Path, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    snapshot(image, path)
    command = [sys.executable, "-c", SCRIPT, str(path), part, str(position), "0"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode != -signal.SIGBUS
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert part in answer["path"]
    assert f"position {answer['position']}" in answer["refused"]
    assert answer["position"] <= position


class BadPage(Files):
    """A disk that cannot read the page at ``position`` of the first file whose path contains ``part``, until the page
    is overwritten.
    """

    def __init__(self, part: str, position: int) -> None:
        self.part, self.position, self.asked, self.inode = part, position, 0, 0

    def map_file(self, path: str, size: int | None = None, writable: bool = True) -> FileMap:
        segment = super().map_file(path, size, writable)
        if self.part in path and "/quarantine/" not in path:
            inode = Path(path).stat().st_ino
            self.inode = self.inode or inode
            if self.inode == inode:
                segment.__class__ = BadSegment
        return segment


class BadSegment(FileMap):
    """See ``BadPage``."""

    def readable_end(self, position: int, end: int) -> int:
        files = self._calls
        assert isinstance(files, BadPage)
        bad = files.position
        if bad >= 0 and position < bad + _PAGE and bad < end:
            files.asked += 1
            return max(position, bad)
        return super().readable_end(position, end)

    def write(self, position: int, content: bytes | memoryview) -> None:
        files = self._calls
        assert isinstance(files, BadPage)
        if position <= files.position and files.position + _PAGE <= position + len(content):
            files.position = -1
        super().write(position, content)


@pytest.mark.parametrize(
    ("part", "position"),
    [
        (f"commitlog/{0:020d}", 3 * _PAGE),
        (f"commitlog/{0:020d}", 0),
        (f"consumequeue/T0/0/{2000:020d}", 0),
        ("/index/", 0),
    ],
)
def test_quarantine_serves_around_it(part: str, position: int, image: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    snapshot(image, path)
    with pytest.raises(StoreDamagedError) as caught:
        opened(path, BadPage(part, position))
    assert part in caught.value.path
    assert caught.value.position <= position
    bad = BadPage(part, position)
    store = opened(path, bad, quarantine=True)
    assert bad.asked
    assert store.max_queue_offset(T, 0) == COUNT
    found, at = 0, store.min_queue_offset(T, 0)
    while at < COUNT:
        result = store.get_message(T, 0, at, 32, 1 << 20)
        found += result.message_count
        at = result.next_offset
    # A record has 250 bytes on average.
    assert found == COUNT if "commitlog" not in part else COUNT - 40 < found < COUNT - 10
    store.shutdown()
    again = opened(path)
    assert again.max_queue_offset(T, 0) == COUNT
    again.shutdown()


def test_entries_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    """A pull skips unreadable queue entries, which were not read at start-up because the store was stopped cleanly."""
    store = opened(tmp_path, mapped_file_size_consume_queue=200_000)
    fill(store, 4000, topics=1, queues=1)
    store.shutdown()
    bad = BadPage("consumequeue/T0/0/", 8 * _PAGE)
    bad.position = -1
    store = opened(tmp_path, bad, mapped_file_size_consume_queue=200_000)
    assert store.max_queue_offset(T, 0) == 4000
    file = store._queues.get(T, 0).segments.files[0]
    file._readable = None
    bad.position = 8 * _PAGE
    first, behind = 8 * _PAGE // 20, 9 * _PAGE // 20 + 1
    result = store.get_message(T, 0, first, 32, 1 << 20)
    assert result.status is GetMessageStatus.MESSAGE_WAS_REMOVING
    assert result.next_offset == behind
    bad.position = -1
    assert store.get_message(T, 0, behind, 32, 1 << 20).message_count == 32
    store.shutdown()


def test_expiry_goes_on_when_entries_of_a_queue_cannot_be_read(tmp_path: Path) -> None:
    """Expiry continues if entries of a queue cannot be read; the smallest offset of this queue is corrected later."""
    store = opened(tmp_path)
    fill(store, 100, topics=1, queues=1)
    queue = store._queues.get(T, 0)
    file = queue.segments.files[0]
    file._readable, file.map.__class__ = None, BadSegment
    file.map._calls = bad = BadPage("consumequeue/", 0)
    for correction in (store._retention._uncorrected.append, lambda _: store._retention._shorten.append((T, 0))):
        bad.asked = 0
        correction(queue)
        store._retention.waiting = True
        fill(store, 1, topics=1, queues=1, first=100)
        assert bad.asked
    assert store.max_queue_offset(T, 0) == 102
    bad.position = -1
    store.shutdown()


def test_a_key_whose_entry_cannot_be_read_is_not_found_and_nothing_else(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 20, topics=1, queues=1)
    index = store._index
    assert index is not None
    file = index.files[-1]._file
    file._readable = None
    files = BadPage("/index/", 0)
    file.map.__class__ = BadSegment
    file.map._calls = files
    result = store.query_by_key(T, b"key-3")
    assert (result.views, result.partial) == ([], True)
    files.position = -1
    assert len(store.query_by_key(T, b"key-3").views) == 1
    store.shutdown()


def test_keys_go_on_in_a_new_file_when_slots_of_the_last_one_cannot_be_read(tmp_path: Path) -> None:
    """Putting a key reads its slot from the mapped file; with an unreadable sector, this would end the process."""
    options = {"max_hash_slot_num": 40_000, "max_index_num": 1000}
    store = opened(tmp_path, **options)
    fill(store, 20, topics=1, queues=1)
    store.shutdown()
    bad = BadPage("/index/", 30 * _PAGE)
    store = opened(tmp_path, bad, **options)
    assert bad.asked
    fill(store, 20, topics=1, queues=1, first=20)
    assert store._index is not None
    assert [file.header().index_count > 1 for file in store._index.files] == [True, True]
    assert len(store.query_by_key(T, b"key-23").views) == 1
    store.shutdown()
    store = opened(tmp_path, **options)
    assert [len(store.query_by_key(T, b"key-%d" % number).views) for number in (3, 23)] == [1, 1]
    store.shutdown()


def test_a_unit_of_an_extension_that_cannot_be_read_is_an_error_and_no_signal(tmp_path: Path) -> None:
    store = opened(tmp_path, enable_consume_queue_ext=True)
    fill(store, 20, topics=1, queues=1)
    queue = store._queues.get(T, 0)
    assert isinstance(queue, ExtendedConsumeQueue)
    ext, address = queue._ext, queue.unit(3)[2]
    segment = ext.segments.files[0].map
    segment.__class__, segment._calls = BadSegment, BadPage("consumequeue_ext/", 0)
    with pytest.raises(DiskError, match="cannot read position 0"):
        ext.read(address)
    with pytest.raises(DiskError, match="cannot read position 0"):
        ext.find_end()
    segment._calls.position = -1
    assert ext.read(address) is not None
    store.shutdown()


@pytest.mark.parametrize(
    ("part", "position", "others"),
    [
        (f"commitlog/{0:020d}", 3 * _PAGE, {FindingKind.RECORD}),
        ("consumequeue/T0/0/", 0, {FindingKind.RECORD_WITHOUT_UNIT, FindingKind.QUEUE_HOLE}),
        ("/index/", _PAGE, {FindingKind.INDEX_HEADER, FindingKind.INDEX_CHAIN, FindingKind.INDEX_ENTRY}),
    ],
)
def test_a_check_names_it_and_goes_on(
    part: str, position: int, others: set[FindingKind], image: Path, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    snapshot(image, path)
    report = verify(with_topics(path), BadPage(part, position))
    (unreadable,) = [finding for finding in report.findings if finding.kind is FindingKind.UNREADABLE]
    assert (part in f"/{unreadable.file}", unreadable.position) == (True, position)
    assert unreadable.detail == f"the disk cannot read {min(_PAGE, (path / unreadable.file).stat().st_size)} bytes"
    assert set(report.counts) - {FindingKind.UNREADABLE} <= others
    assert report.records > COUNT - 40


def test_a_check_is_not_killed_by_it(image: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    snapshot(image, path)

    class Short(Files):
        def map_file(self, name: str, size: int | None = None, writable: bool = True) -> FileMap:
            if f"commitlog/{0:020d}" in name:
                os.truncate(name, size or 0)
            segment = super().map_file(name, size, writable)
            if f"commitlog/{0:020d}" in name:
                os.truncate(name, 3 * _PAGE)
            return segment

    report = verify(str(path), Short())
    assert report.counts[FindingKind.UNREADABLE] == 1
