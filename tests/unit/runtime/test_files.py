"""Access to the disk, with Linux's calls and with their portable replacements."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rucola.errors import DiskError, DiskFullError, ForeignEntryError, StoreLockedError
from rucola.runtime import directory_listing, file_map
from rucola.runtime.extents import has_blocks
from rucola.runtime.files import Files


class Portable(Files):
    """Files on a system without the calls that only Linux has."""

    fallocate = None
    data_sync = staticmethod(os.fsync)
    populate_write = False


class Refusing(Files):
    """A file system that does not support ``posix_fallocate``."""

    @staticmethod
    def fallocate(descriptor: int, position: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")


class Full(Files):
    """A full disk."""

    @staticmethod
    def fallocate(descriptor: int, position: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(params=[Files, Portable, Refusing])
def files(request: pytest.FixtureRequest) -> Files:
    made: Files = request.param()
    return made


def test_a_segment_is_zero_and_has_all_its_blocks(files: Files, tmp_path: Path) -> None:
    path = f"{tmp_path}/segment"
    files.create_segment(path, f"{tmp_path}/making", 3 << 20)
    assert Path(path).read_bytes() == bytes(3 << 20)
    assert Path(path).stat().st_blocks * 512 >= 3 << 20
    assert [entry.name for entry in tmp_path.iterdir()] == ["segment"]


def test_a_segment_can_get_its_blocks_piece_by_piece(files: Files, tmp_path: Path) -> None:
    path = f"{tmp_path}/segment"
    files.create_segment(path, f"{tmp_path}/making", 1 << 20, allocated=0)
    before = Path(path).stat().st_blocks
    segment = files.map_file(path)
    segment.buffer[:5] = b"known"
    segment.allocate(65536, 65536)
    segment.sync()
    segment.close()
    assert Path(path).stat().st_size == 1 << 20
    assert Path(path).stat().st_blocks - before >= 65536 // 512
    assert Path(path).read_bytes()[:5] == b"known"


def test_stores_reach_the_file_and_slices_outlive_the_segment(files: Files, tmp_path: Path) -> None:
    path = f"{tmp_path}/segment"
    files.create_segment(path, f"{tmp_path}/making", 8192)
    segment = files.map_file(path)
    segment.populate(0, 8192)
    segment.buffer[4096:4101] = b"hello"
    segment.sync()
    part = segment.view[4096:4101]
    assert Path(path).read_bytes()[4096:4101] == b"hello"
    segment.close()
    segment.close()
    assert part == b"hello"


def test_data_ranges_cover_everything_that_is_set(files: Files, tmp_path: Path) -> None:
    path = f"{tmp_path}/segment"
    files.create_segment(path, f"{tmp_path}/making", 1 << 20)
    segment = files.map_file(path)
    for position in (0, 70_000, (1 << 20) - 1):
        segment.buffer[position] = 1
    for start in (0, 1, 70_000, 70_001):
        ranges = segment.data_ranges(start)
        assert all(start <= first < last <= 1 << 20 for first, last in ranges)
        for position in (0, 70_000, (1 << 20) - 1):
            assert position < start or any(first <= position < last for first, last in ranges)
    segment.close()


def test_a_close_during_a_read_does_not_give_its_descriptor_to_another_file(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "segment", tmp_path / "other"
    path.write_bytes(b"mine" * 1024)
    other.write_bytes(b"else" * 1024)
    segment = files.map_file(str(path))
    read_at, used, opened = file_map.read_at, [], []

    def closed_meanwhile(descriptor: int, length: int, position: int) -> bytes:
        used.append(descriptor)
        segment.close()
        opened.append(os.open(other, os.O_RDONLY))
        return read_at(descriptor, length, position)

    monkeypatch.setattr(file_map, "read_at", closed_meanwhile)
    try:
        assert segment.read(0, 8) == b"minemine"
    finally:
        for descriptor in opened:
            os.close(descriptor)
    with pytest.raises(DiskError, match="closed"):
        segment.read(0, 8)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(used[0])


def test_read_only_segments_cannot_be_stored_to(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 100)
    segment = Files().map_file(str(path), writable=False)
    with pytest.raises(TypeError):
        segment.buffer[0] = 1
    segment.close()


def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="segment: allocate failed: No space"):
        Full().create_segment(f"{tmp_path}/segment", f"{tmp_path}/making", 4096)
    assert list(tmp_path.iterdir()) == []


def test_replace_file_leaves_old_or_new(tmp_path: Path) -> None:
    files, path = Files(), f"{tmp_path}/table.json"
    files.replace_file(path, b"old")

    class Stuck(Files):
        def sync_directory(self, path: str) -> None:
            raise DiskError(path, "sync directory", "Input/output error")

    with pytest.raises(DiskError):
        Stuck().replace_file(path, b"new")
    assert files.read_file(path) in (b"old", b"new")
    files.replace_file(path, b"newer")
    assert files.read_file(path) == b"newer"
    assert files.list_files(str(tmp_path)) == ["table.json"]


def test_a_directory_without_a_parent_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Files().make_directory("made/here")
    Files().make_directory("too")
    assert Files().list_directories(".") == ["made", "too"] and Files().list_directories("made") == ["here"]
    with pytest.raises(DiskError):
        Files().make_directory("")


def test_parts_and_names(tmp_path: Path) -> None:
    files = Files()
    files.make_directory(f"{tmp_path}/a/b/c")
    files.write_file(f"{tmp_path}/a/file", b"0123456789")
    files.write_at(f"{tmp_path}/a/file", 4, b"xy")
    assert files.read_at(f"{tmp_path}/a/file", 3, 100) == b"3xy6789"
    assert files.size(f"{tmp_path}/a/file") == 10
    assert files.list_files(f"{tmp_path}/a") == ["file"]
    assert files.list_directories(f"{tmp_path}/a") == ["b"]
    assert files.list_files(f"{tmp_path}/nothing") == []
    assert files.read_file(f"{tmp_path}/nothing") is None
    files.rename(f"{tmp_path}/a/file", f"{tmp_path}/a/b/moved")
    files.remove(f"{tmp_path}/a/b/moved")
    assert not files.exists(f"{tmp_path}/a/b/moved")


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (lambda files, path: files.size(path), "stat"),
        (lambda files, path: files.remove(path), "remove"),
        (lambda files, path: files.read_at(path, 0, 1), "read"),
        (lambda files, path: files.map_file(path), "map"),
        (lambda files, path: files.sync_directory(path), "sync directory"),
        (lambda files, path: files.read_file(path.rpartition("/")[0]), "read"),
    ],
)
def test_errors_name_path_operation_and_reason(call, operation: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DiskError) as caught:
        call(Files(), f"{tmp_path}/none")
    assert caught.value.operation == operation
    assert caught.value.path.startswith(str(tmp_path))
    assert not isinstance(caught.value, DiskFullError)


def test_a_link_is_not_opened_as_a_segment(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x" * 16)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(DiskError):
        Files().map_file(f"{tmp_path}/link")


LOCKER = """
import sys
from rucola.errors import StoreLockedError
from rucola.runtime.files import Files
try:
    Files().lock_directory(sys.argv[1])
except StoreLockedError:
    sys.exit(4)
"""


def locked_elsewhere(path: Path) -> bool:
    return subprocess.run([sys.executable, "-c", LOCKER, str(path)], timeout=60, check=False).returncode == 4


def open_descriptors(path: Path) -> list[Path]:
    """Returns the descriptors of this process that have the file ``path`` open."""
    return [entry for entry in Path("/proc/self/fd").iterdir() if os.path.realpath(entry) == os.path.realpath(path)]


def test_a_lock_file_that_cannot_be_written_is_given_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to the lock file fails. Before the fix, the next attempt found the lock of this process, and reported
    that another process had it.
    """

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for operation in ("pwrite", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, operation, refuse)
            with pytest.raises(DiskFullError):
                Files().lock_directory(str(tmp_path))
        assert not open_descriptors(tmp_path / "lock")
        (tmp_path / "lock").write_bytes(b"")
    lock = Files().lock_directory(str(tmp_path))
    assert locked_elsewhere(tmp_path)
    lock.release()


def test_the_lock_holds_within_and_between_processes(tmp_path: Path) -> None:
    files = Files()
    lock = files.lock_directory(str(tmp_path))
    with pytest.raises(StoreLockedError):
        files.lock_directory(str(tmp_path))
    assert locked_elsewhere(tmp_path)
    lock.release()
    lock.release()
    assert not locked_elsewhere(tmp_path)
    files.lock_directory(str(tmp_path)).release()
    # The file is read only at the end, because closing any descriptor of it would release a lock that is held.
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_copies_of_parts_of_a_file(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(100)))
    segment = files.map_file(str(path))
    assert segment.read(10, 5) == bytes(range(10, 15))
    with pytest.raises(DiskError, match="the file ends at 100"):
        segment.read(90, 11)
    into = bytearray(5)
    if segment.read_resident(20, memoryview(into)):
        assert into == bytes(range(20, 25))
    assert not segment.read_resident(98, memoryview(into))
    segment.close()
    with pytest.raises(DiskError):
        segment.read(0, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell which pages are in memory")
def test_fresh_bytes_are_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"written")
    with path.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(7)], 0, os.RWF_NOWAIT)
        except OSError as error:
            pytest.skip(f"this file system does not tell which pages are in memory: {error}")
    into = bytearray(7)
    segment = Files().map_file(str(path))
    assert segment.read_resident(0, memoryview(into))
    assert into == b"written"
    segment.close()


@pytest.mark.parametrize("is_held", [False, True])
def test_a_file_that_goes_while_a_directory_is_listed_is_left_out(
    is_held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = directory_listing.names_in

    def listed_then_gone(*arguments: Any, **options: Any) -> list[str]:
        names = listed(*arguments, **options)
        (tmp_path / "gone").unlink()
        return names

    for name in ("a", "gone", "z"):
        (tmp_path / name).write_bytes(name.encode())
    files = Files()
    if is_held:
        files.hold(str(tmp_path))
    monkeypatch.setattr(directory_listing, "names_in", listed_then_gone)
    assert files.list_sizes(str(tmp_path)) == {"a": 1, "z": 1}


@pytest.mark.parametrize("is_held", [False, True])
def test_lengths_of_the_wanted_files(is_held: bool, tmp_path: Path) -> None:
    """A link to a file outside has a length only where links are followed."""
    (tmp_path / "b").write_bytes(b"bb")
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to("b")
    files = Files()
    if is_held:
        files.hold(str(tmp_path))
    assert list(files.list_lengths(str(tmp_path), lambda name: name == "b").items()) == [
        ("a", -1),
        ("b", 2),
        ("link", -1),
    ]
    assert files.list_lengths(str(tmp_path / "none"), None) == {}
    if is_held:
        with pytest.raises(ForeignEntryError, match="link is a symbolic link, not a file"):
            files.list_sizes(str(tmp_path))
    else:
        assert files.list_sizes(str(tmp_path)) == {"a": 1, "b": 2, "link": 2}


def test_whether_bytes_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(100))
    segment = Files().map_file(str(path))
    if not hasattr(os, "RWF_NOWAIT"):
        assert segment.is_resident(90, 20)
        return
    answers: dict[int, bool] = {errno.EAGAIN: False, errno.EIO: False, errno.EOPNOTSUPP: True}
    for number, resident in answers.items():

        def refuse(*_: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "preadv", refuse)
        assert segment.is_resident(0, 50) is resident
    monkeypatch.setattr(os, "preadv", lambda _descriptor, buffers, _position, _flags: len(buffers[0]) - 1)
    assert not segment.is_resident(0, 50)
    monkeypatch.setattr(os, "preadv", lambda _descriptor, buffers, position, _flags: 10 * (position == 90))
    assert segment.is_resident(90, 20)
    segment.close()


class Recorded(Files):
    """Notes what is allocated."""

    ends: ClassVar[list[int]] = []

    @staticmethod
    def fallocate(descriptor: int, position: int, length: int) -> None:
        Recorded.ends.append(position + length)
        os.posix_fallocate(descriptor, position, length)


def test_blocks_are_allocated_up_to_the_end_of_a_page_because_a_write_to_a_map_needs_them(tmp_path: Path) -> None:
    page, files = mmap.PAGESIZE, Recorded()
    Recorded.ends.clear()
    files.create_segment(f"{tmp_path}/segment", f"{tmp_path}/making", 3 * page + 7, allocated=5)
    segment = files.map_file(f"{tmp_path}/segment")
    segment.allocate(5, page)
    segment.fill_holes(0, 2 * page)
    segment.allocate(2 * page, page + 1)
    segment.close()
    assert Recorded.ends == [page, 2 * page, 2 * page, 3 * page + 7]


def test_a_disk_that_refuses_to_allocate_what_has_blocks_is_not_full(tmp_path: Path) -> None:
    Files().create_segment(f"{tmp_path}/whole", f"{tmp_path}/making", 1 << 20)
    Files().create_segment(f"{tmp_path}/half", f"{tmp_path}/making", 1 << 20, allocated=1 << 19)
    with (tmp_path / "whole").open("rb") as whole, (tmp_path / "half").open("rb") as half:
        if not has_blocks(whole.fileno(), 0, 1 << 20):
            pytest.skip("this file system does not tell which blocks a file has")
        assert has_blocks(half.fileno(), 0, 1 << 19)
        assert not has_blocks(half.fileno(), 0, (1 << 19) + 1)
        assert not has_blocks(half.fileno(), 1 << 19, 1)
        assert not has_blocks(half.fileno(), 1 << 20, 1)
    whole_segment, half_segment = Full().map_file(f"{tmp_path}/whole"), Full().map_file(f"{tmp_path}/half")
    whole_segment.allocate(0, 1 << 20)
    whole_segment.fill_holes(0, 1 << 20)
    half_segment.allocate(0, 1 << 19)
    with pytest.raises(DiskFullError):
        half_segment.allocate(1 << 19, 1 << 19)
    with pytest.raises(DiskFullError):
        half_segment.fill_holes(0, 1 << 20)
    whole_segment.close()
    half_segment.close()


def test_a_file_of_many_pieces_is_looked_through_to_its_end(tmp_path: Path) -> None:
    path, piece = tmp_path / "pieces", 64 << 10
    with path.open("w+b") as file:
        for number in range(200):
            file.seek(2 * number * piece)
            file.write(b"x" * piece)
        file.flush()
        os.fsync(file.fileno())
        assert not has_blocks(file.fileno(), 0, 399 * piece)
        for number in range(200):
            file.seek((2 * number + 1) * piece)
            file.write(b"x" * piece)
        file.flush()
        os.fsync(file.fileno())
        if not has_blocks(file.fileno(), 0, piece):
            pytest.skip("this file system does not tell which blocks a file has")
        assert has_blocks(file.fileno(), 0, 400 * piece)
        assert has_blocks(file.fileno(), 7, 150 * piece + 1)


class Failing(Files):
    """A disk that fails."""

    @staticmethod
    def fallocate(descriptor: int, position: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")


def test_an_error_of_the_disk_is_one_also_where_there_are_blocks(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(b"x" * 10_000)
    segment = Failing().map_file(f"{tmp_path}/segment")
    with pytest.raises(DiskError):
        segment.allocate(0, 10_000)
    segment.close()


@pytest.mark.parametrize("kind", [Portable, Refusing])
def test_holes_stay_where_the_system_cannot_fill_them_without_writing(kind: type[Files], tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 10_000)
    segment = kind().map_file(str(path))
    segment.fill_holes(0, 10_000)
    segment.close()
    assert path.read_bytes() == b"x" * 10_000
