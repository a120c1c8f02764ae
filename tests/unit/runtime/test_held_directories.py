"""Paths in a held directory: they lead through no link and not out of it, and only files are opened as files."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rucola.errors import DiskError, ForeignEntryError
from rucola.runtime import files as files_module
from rucola.runtime import held_directories
from rucola.runtime.files import Files


@pytest.fixture(params=["by descriptor", "by name"])
def tree(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Files, Path, Path]:
    """A held directory with a file and a directory, and a directory beside it that nothing may touch."""
    if request.param == "by name":  # as on a system that cannot open files below a descriptor
        monkeypatch.setattr(held_directories, "BY_DESCRIPTOR", False)
        monkeypatch.setattr(files_module, "BY_DESCRIPTOR", False)
    root, victim = tmp_path / "held", tmp_path / "victim"
    for path in (root / "inside/file", victim / "sub/precious", victim / "precious"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")
    files = Files()
    files.hold(str(root))
    return files, root, victim


def seen(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


OPERATIONS: dict[str, Callable[[Files, str], object]] = {
    "read_file": lambda files, path: files.read_file(path),
    "open_to_read": lambda files, path: files.open_to_read(path).close(),
    "read_at": lambda files, path: files.read_at(path, 0, 4),
    "write_file": lambda files, path: files.write_file(path, b"x"),
    "write_at": lambda files, path: files.write_at(path, 0, b"x"),
    "replace_file": lambda files, path: files.replace_file(path, b"x"),
    "map_file": lambda files, path: files.map_file(path, 7),
    "map_file to read": lambda files, path: files.map_file(path, 7, writable=False),
    "sync_file": lambda files, path: files.sync_file(path),
    "size": lambda files, path: files.size(path),
    "length": lambda files, path: files.length(path),
}


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


STRANGERS: dict[str, Callable[[Path, Path], None]] = {
    "a symbolic link": lambda path, victim: path.symlink_to(victim / "precious"),
    "a FIFO": lambda path, _: put_fifo(path),
    "a socket": lambda path, _: put_socket(path),
    "a directory": lambda path, _: path.mkdir(),
}


@pytest.mark.few
@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_only_files_are_opened(operation: str, kind: str, tree: tuple[Files, Path, Path]) -> None:
    files, root, victim = tree
    STRANGERS[kind](root / "inside/it", victim)
    before = seen(victim)
    caught: list[BaseException] = []

    def attempt() -> None:
        try:
            OPERATIONS[operation](files, f"{root}/inside/it")
        except ForeignEntryError as error:
            caught.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()  # the open of a FIFO would wait for its other end
    assert f"{root}/inside/it is {kind}, not a file" in str(caught[0])
    assert seen(victim) == before
    assert files.exists(f"{root}/inside/it")


@pytest.mark.few
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", ["../victim/precious", "inside/../../victim/precious", "inside/./file", "/inside/file"])
def test_no_path_leads_out(way: str, operation: str, tree: tuple[Files, Path, Path]) -> None:
    files, root, victim = tree
    before = seen(victim) | seen(root)
    with pytest.raises(ForeignEntryError, match="leaves"):
        OPERATIONS[operation](files, f"{root}/{way}")
    assert seen(victim) | seen(root) == before


CHANGES: dict[str, Callable[[Files, str], object]] = OPERATIONS | {
    "remove": lambda files, path: files.remove(path),
    "open_new": lambda files, path: files.open_new(f"{path}2").close(),
    "link from": lambda files, path: files.link(path, f"{path.partition('/held/')[0]}/held/taken"),
    "link to": lambda files, path: files.link(f"{path.partition('/held/')[0]}/held/inside/file", f"{path}2"),
    "list_lengths": lambda files, path: files.list_lengths(path, None),
    "remove_tree": lambda files, path: files.remove_tree(path),
    "make_directory": lambda files, path: files.make_directory(f"{path}/new"),
    "rename from": lambda files, path: files.rename(path, f"{path.partition('/held/')[0]}/held/taken"),
    "rename to": lambda files, path: files.rename(f"{path.partition('/held/')[0]}/held/inside/file", path),
    "publish_directory": lambda files, path: files.publish_directory(path, f"{path}2"),
    "create_segment": lambda files, path: files.create_segment(path, f"{path}.tmp", 4096),
    "list_files": lambda files, path: files.list_files(path),
    "list_directories": lambda files, path: files.list_directories(path),
    "list_sizes": lambda files, path: files.list_sizes(path),
    "exists": lambda files, path: files.exists(path),
    "sync_directory": lambda files, path: files.sync_directory(path),
    "modified_ms": lambda files, path: files.modified_ms(path),
    "lock_directory": lambda files, path: files.lock_directory(path.rpartition("/")[0]),
}


@pytest.mark.parametrize("operation", CHANGES)
def test_no_operation_goes_through_a_link(operation: str, tree: tuple[Files, Path, Path]) -> None:
    files, root, victim = tree
    (root / "link").symlink_to(victim)
    before = seen(victim)
    with pytest.raises(ForeignEntryError, match=r"/held/link is a symbolic link, not a directory"):
        CHANGES[operation](files, f"{root}/link/sub")
    assert seen(victim) == before


def test_links_are_removed_and_never_entered(tree: tuple[Files, Path, Path]) -> None:
    files, root, victim = tree
    before = seen(victim)
    (root / "inside/link").symlink_to(victim)
    (root / "inside/deep").mkdir()
    (root / "inside/deep/link").symlink_to(victim / "sub")
    (root / "inside/itself").symlink_to("itself")
    put_fifo(root / "inside/fifo")
    files.remove_tree(f"{root}/inside")
    (root / "whole").symlink_to(victim)
    files.remove_tree(f"{root}/whole")
    files.remove_tree(f"{root}/nothing/below")
    assert list(root.iterdir()) == []
    assert seen(victim) == before


def test_a_tree_outside_of_held_directories_is_removed_without_its_links(tree: tuple[Files, Path, Path]) -> None:
    _, root, victim = tree
    before = seen(victim)
    (root / "inside/link").symlink_to(victim)
    Files().remove_tree(f"{root}/inside")
    assert not (root / "inside").exists() and seen(victim) == before


def test_a_tree_that_is_too_deep_is_left(tree: tuple[Files, Path, Path]) -> None:
    files, root, _ = tree
    deep = root.joinpath(*["d"] * 80)
    deep.mkdir(parents=True)
    with pytest.raises(ForeignEntryError, match="more than 64 levels"):
        files.remove_tree(f"{root}/d")
    assert deep.exists()


@pytest.mark.parametrize("made", STRANGERS)
def test_an_entry_at_the_path_of_a_temporary_is_never_written_to(made: str, tree: tuple[Files, Path, Path]) -> None:
    files, root, victim = tree
    before = seen(victim)
    STRANGERS[made](root / "inside/file.tmp", victim)
    if made == "a directory":
        with pytest.raises(DiskError):
            files.replace_file(f"{root}/inside/file", b"new")
        assert (root / "inside/file").read_bytes() == b"content"
    else:
        files.replace_file(f"{root}/inside/file", b"new")
        assert (root / "inside/file").read_bytes() == b"new"
        STRANGERS[made](root / "inside/making", victim)
        files.create_segment(f"{root}/inside/segment", f"{root}/inside/making", 4096)
        assert (root / "inside/segment").read_bytes() == bytes(4096)
    assert seen(victim) == before


def test_lists_do_not_follow_links_in_circles(tree: tuple[Files, Path, Path]) -> None:
    files, root, victim = tree
    (root / "itself").symlink_to("itself")
    (root / "nothing").symlink_to("missing")
    (root / "directory").symlink_to(victim)
    put_fifo(root / "fifo")
    assert files.list_files(str(root)) == ["fifo", "itself", "nothing"]
    assert files.list_directories(str(root)) == ["directory", "inside"]
    assert files.list_sizes(f"{root}", lambda name: name == "none") == {}
    with pytest.raises(ForeignEntryError, match="a FIFO"):
        files.list_sizes(str(root))
    assert all(map(files.exists, (f"{root}/itself", f"{root}/nothing")))
    assert not files.exists(f"{root}/absent") and not files.exists(f"{root}/absent/below")
    with pytest.raises(ForeignEntryError, match="inside/file is a file, not a directory"):
        files.exists(f"{root}/inside/file/below")
    assert files.is_link(f"{root}/directory") and not files.is_link(f"{root}/inside")
    assert not files.is_link(f"{root}/absent/below")


def test_a_held_directory_that_is_a_link_was_followed_once(tmp_path: Path) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    for directory in (first, second):
        directory.mkdir()
    link.symlink_to(first)
    files = Files()
    files.hold(str(link))
    link.unlink()
    link.symlink_to(second)
    if held_directories.BY_DESCRIPTOR:
        files.write_file(f"{link}/file", b"x")
        assert seen(first) == {"file": b"x"} and seen(second) == {}
    files.hold(str(link))
    files.write_file(f"{link}/other", b"y")
    assert seen(second) == {"other": b"y"}


def test_a_held_directory_can_be_renamed_and_the_old_name_used_again(tree: tuple[Files, Path, Path]) -> None:
    files, root, _ = tree
    files.hold(f"{root}/inside")
    files.rename(f"{root}/inside", f"{root}/moved")
    files.make_directory(f"{root}/inside")
    files.write_file(f"{root}/inside/file", b"new")
    assert seen(root) == {"moved/file": b"content", "inside/file": b"new"}
    files.hold(f"{root}/inside")
    assert files.publish_directory(f"{root}/inside", f"{root}/published")
    files.hold(f"{root}/published")
    files.remove_tree(f"{root}/published")
    assert seen(root) == {"moved/file": b"content"}


def test_no_descriptor_stays_open(tree: tuple[Files, Path, Path]) -> None:
    files, root, victim = tree
    (root / "link").symlink_to(victim)
    put_fifo(root / "inside/fifo")
    before = open_descriptors()
    operations = [operation for name, operation in CHANGES.items() if name != "lock_directory"]
    for operation in operations:
        for path in ("inside/fifo", "link/sub", "absent/below", "../victim", "inside/file/below"):
            try:
                operation(files, f"{root}/{path}")
            except DiskError:
                continue
    assert open_descriptors() == before
    again = Files()
    again.hold(str(root))
    del again
    assert open_descriptors() == before


@pytest.mark.parametrize("held", [True, False])
def test_a_file_that_is_too_long_is_not_read(held: bool, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b"")
    os.truncate(path, 8 << 30)
    files = Files()
    if held:
        files.hold(str(tmp_path))
    with pytest.raises(ForeignEntryError, match="has 8589934592 bytes, and at most 268435456 are expected"):
        files.read_file(str(path))
    path.write_bytes(b"12345")
    assert files.read_file(str(path), 5) == b"12345"
    with pytest.raises(ForeignEntryError, match="5 bytes, and at most 4"):
        files.read_file(str(path), 4)


def test_a_configuration_file_may_be_a_link_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"name=value")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert Files().read_file(f"{tmp_path}/link") == b"name=value"
    reader, writer = os.pipe()
    os.write(writer, b"name=value")
    os.close(writer)
    assert Files().read_file(f"/dev/fd/{reader}") == b"name=value"
    os.close(reader)


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    files = Files()
    files.write_file(f"{tmp_path}/secret", b"x", private=True)
    files.write_file(f"{tmp_path}/open", b"x")
    assert files.is_private(f"{tmp_path}/secret") and not files.is_private(f"{tmp_path}/open")
    assert not files.is_private(f"{tmp_path}/absent")


@pytest.mark.parametrize("kind", ["a symbolic link", "a FIFO"])
@pytest.mark.parametrize("operation", ["read_file", "read_at", "write_at", "write_file", "map_file"])
def test_an_entry_that_replaces_a_file_after_the_look_is_not_used(
    operation: str, kind: str, tree: tuple[Files, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, root, victim = tree
    before, path = seen(victim), root / "inside/file"
    look = held_directories.HeldPath.file_status

    def look_and_lose(place: held_directories.HeldPath) -> os.stat_result:
        status = look(place)
        path.unlink()
        STRANGERS[kind](path, victim)
        return status

    monkeypatch.setattr(held_directories.HeldPath, "file_status", look_and_lose)
    ended = threading.Event()

    def attempt() -> None:
        with contextlib.suppress(DiskError, ValueError):  # a FIFO has no bytes to map
            OPERATIONS[operation](files, str(path))
        ended.set()

    threading.Thread(target=attempt, daemon=True).start()
    assert ended.wait(10)
    assert seen(victim) == before


def test_a_temporary_is_never_one_that_somebody_made_meanwhile(
    tree: tuple[Files, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, root, victim = tree
    before, remove = seen(victim), os.remove
    (root / "inside/file.tmp").write_bytes(b"left by a killed process")

    def remove_and_lose(name: str, *, dir_fd: int | None = None) -> None:
        remove(name, dir_fd=dir_fd)
        (root / "inside/file.tmp").hardlink_to(victim / "precious")

    monkeypatch.setattr(os, "remove", remove_and_lose)
    with pytest.raises(DiskError, match="File exists"):
        files.replace_file(f"{root}/inside/file", b"new")
    assert seen(victim) == before and (root / "inside/file").read_bytes() == b"content"


def test_directories_of_a_locked_store_are_those_that_have_the_names(tmp_path: Path) -> None:
    """While a store is locked, directories below it stay open between operations."""
    files = Files()
    files.hold(str(tmp_path))
    lock = files.lock_directory(str(tmp_path))
    queue = f"{tmp_path}/consumequeue/T/0"
    files.make_directory(queue)
    files.write_file(f"{queue}/file", b"old")
    files.rename(f"{tmp_path}/consumequeue/T", f"{tmp_path}/away")
    files.make_directory(queue)
    files.write_file(f"{queue}/file", b"new")
    assert (seen(tmp_path / "away"), seen(tmp_path / "consumequeue")) == ({"0/file": b"old"}, {"T/0/file": b"new"})
    files.remove_tree(f"{tmp_path}/consumequeue")
    files.make_directory(queue)
    files.write_file(f"{queue}/file", b"newer")
    shutil.rmtree(tmp_path / "consumequeue")  # by somebody else
    (tmp_path / "consumequeue/T/0").mkdir(parents=True)
    (tmp_path / "consumequeue/T/0/file").write_bytes(b"theirs")
    assert files.length(f"{queue}/file") == -1  # it looked into a directory that is gone, and notices it
    assert files.read_file(f"{queue}/file") == b"theirs"
    shutil.rmtree(tmp_path / "consumequeue")
    assert not files.exists(f"{queue}/file")
    files.make_directory(queue)
    files.write_file(f"{queue}/file", b"newest")
    assert seen(tmp_path / "consumequeue") == {"T/0/file": b"newest"}
    before = open_descriptors()
    for number in range(100):
        files.make_directory(f"{tmp_path}/consumequeue/T/{number}")
        files.write_file(f"{tmp_path}/consumequeue/T/{number}/file", b"")
    assert open_descriptors() < before + 20
    lock.release()
    assert open_descriptors() < before


@pytest.mark.skipif(not held_directories.BY_DESCRIPTOR, reason="cannot open files below a directory")
def test_the_directory_of_a_topic_stays_open_while_its_queues_are_visited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    open_below = held_directories.HeldDirectory.open_below

    def noted(self: held_directories.HeldDirectory, name: str, path: str, operation: str) -> object:
        opened.append(name)
        return open_below(self, name, path, operation)

    for number in range(100):
        (tmp_path / f"consumequeue/T/{number}").mkdir(parents=True)
        (tmp_path / f"consumequeue/T/{number}/file").touch()
    files = Files()
    files.hold(str(tmp_path))
    lock = files.lock_directory(str(tmp_path))
    monkeypatch.setattr(held_directories.HeldDirectory, "open_below", noted)
    for number in range(100):
        assert files.length(f"{tmp_path}/consumequeue/T/{number}/file") == 0
    lock.release()
    assert opened.count("T") == 1


def test_another_process_opens_its_own_descriptors(tree: tuple[Files, Path, Path]) -> None:
    """Access to files goes to tasks of Spark. Before the fix, they used and closed descriptors by numbers of the
    driver.
    """
    files, root, victim = tree
    before = open_descriptors()
    copy = pickle.loads(pickle.dumps(files))
    if held_directories.BY_DESCRIPTOR:
        assert open_descriptors() == before + 1
    (root / "link").symlink_to(victim)
    assert copy.read_file(f"{root}/inside/file") == b"content"
    with pytest.raises(ForeignEntryError, match="link is a symbolic link"):
        copy.read_file(f"{root}/link/precious")
    del copy
    assert open_descriptors() == before
    assert files.read_file(f"{root}/inside/file") == b"content"
    with pytest.raises(TypeError, match="in this process only"):
        pickle.dumps(files.held.find(f"{root}/inside/file"))
