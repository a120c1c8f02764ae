"""The journal of a repair: after any interruption, it holds what is needed to take back each change that was made."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from struct import pack
from zlib import crc32

import pytest

from rucola.errors import DiskError, ForeignEntryError, StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.doctor import journal as module
from rucola.store.doctor.journal import Journal


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "index" / name).write_bytes(b"0123456789" + name.encode())
    return tmp_path


def contents(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / "index").iterdir()}


def newest(store: Path) -> Journal:
    found = Journal.newest(Files(), str(store))
    assert found is not None
    return found


def test_changes_in_several_pieces_and_of_the_same_bytes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 3)
    before, journal = contents(store), Journal.begin(Files(), str(store))
    journal.write("index/a", 1, b"abcdefgh")
    journal.write("index/a", 2, b"ABCD")
    assert contents(store)["a"] == b"0aABCDfgh9a"
    assert (journal.changes, journal.changed_bytes) == (5, 12)
    assert newest(store).undo() == 5
    assert contents(store) == before


def test_files_that_were_moved_away_come_back(store: Path) -> None:
    before, journal = contents(store), Journal.begin(Files(), str(store))
    journal.move_away("index/a")
    journal.move_away("index/b")
    newest(store).move_away("index/c")
    assert contents(store) == {}
    assert newest(store).moved() == {"index/a", "index/b", "index/c"}
    newest(store).undo()
    assert contents(store) == before


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_an_entry_that_was_not_written_whole_is_none(damage: str, store: Path) -> None:
    before, journal = contents(store), Journal.begin(Files(), str(store))
    journal.write("index/a", 0, b"x")
    whole = Path(journal.path).read_bytes()
    journal.write("index/b", 0, b"y")
    (store / "index/b").write_bytes(before["b"])  # the process was killed before it changed the file
    torn = bytearray(Path(journal.path).read_bytes())
    torn[-1] ^= damage == "changed"
    Path(journal.path).write_bytes(torn[: len(torn) - (damage == "cut")])
    continued = Journal.begin(Files(), str(store))
    continued.write("index/a", 5, b"z")
    assert Path(journal.path).read_bytes().startswith(whole)
    assert continued.undo() == 2
    assert contents(store) == before


def test_bytes_after_the_end_of_a_file_are_never_written(store: Path) -> None:
    before, journal = contents(store), Journal.begin(Files(), str(store))
    with pytest.raises(StoreDamagedError, match="the file is too short"):
        journal.write("index/a", 8, b"xxxx")
    assert contents(store) == before


def forged(kind: int, path: str, position: int = 0, old: bytes = b"") -> bytes:
    head = pack(">4sBHQQ", b"RUJ2", kind, len(path), position, len(old))
    rest = path.encode() + old * (2 if kind == 1 else 1)
    return head + pack(">I", crc32(head + rest)) + rest


@pytest.mark.parametrize(
    "entry",
    [
        forged(1, "../victim/precious", 0, b"X"),
        forged(1, "/victim/precious", 0, b"X"),
        forged(1, "index/../../victim/precious", 0, b"X"),
        forged(1, "index/link/precious", 0, b"X"),
        forged(1, "config/topics.json", 0, b"X"),
        forged(2, "../victim"),
        forged(2, "lock"),
        forged(2, "index/./a"),
        forged(3, "index/stolen", 0, b"../victim/precious"),
        forged(3, "index/stolen", 0, b"repair/0001.files/../../../victim/precious"),
        forged(3, "index/stolen", 0, b"config/topics.json"),
        forged(3, "../victim/new", 0, b"repair/0001.files/0"),
    ],
)
def test_an_entry_that_names_what_no_repair_changes_changes_nothing(entry: bytes, tmp_path: Path) -> None:
    store, victim = tmp_path / "store", tmp_path / "victim"
    for path in (store / "index/a", store / "config/topics.json", store / "lock", victim / "precious"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not to be touched")
    (store / "index/link").symlink_to(victim)
    (store / "repair/0001.files").mkdir(parents=True)
    (store / "repair/0001.files/0").write_bytes(b"moved away")
    (store / "repair/0001.journal").write_bytes(forged(1, "index/a", 0, b"N") + entry)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    files = Files()
    files.hold(str(store))
    journal = Journal.newest(files, str(store))
    assert journal is not None
    with pytest.raises((StoreDamagedError, ForeignEntryError)):
        journal.undo()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_damaged_entry_among_others_ends_the_undo_before_its_first_change(store: Path) -> None:
    journal = Journal.begin(Files(), str(store))
    for name in "abc":
        journal.write(f"index/{name}", 0, b"x")
    path = Path(journal.path)
    content, changed = bytearray(path.read_bytes()), contents(store)
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreDamagedError, match="an entry of the journal is damaged"):
        newest(store)
    assert contents(store) == changed


def test_a_file_that_became_shorter_is_not_extended(store: Path) -> None:
    journal = Journal.begin(Files(), str(store))
    journal.write("index/a", 8, b"x")
    (store / "index/a").write_bytes(b"0123")
    with pytest.raises(StoreDamagedError, match="4 bytes"):
        newest(store).undo()
    assert contents(store)["a"] == b"0123"


def test_a_closed_journal_is_never_undone_and_its_number_not_used_again(store: Path) -> None:
    journal = Journal.begin(Files(), str(store))
    journal.write("index/a", 0, b"x")
    assert Journal.close(Files(), str(store)) == [f"{store}/repair/0001.closed"]
    assert Journal.newest(Files(), str(store)) is None
    assert Journal.begin(Files(), str(store)).path == f"{store}/repair/0002.journal"
    assert contents(store)["a"].startswith(b"x")


@pytest.mark.parametrize("size", [0, 4096, 8 << 30])
def test_a_journal_of_zeros_has_no_entries(size: int, store: Path) -> None:
    (store / "repair").mkdir()
    path = store / "repair/0001.journal"
    path.write_bytes(b"")
    os.truncate(path, size)
    assert newest(store).undo() == 0


def test_every_bit_of_an_entry_is_checked(store: Path) -> None:
    journal = Journal.begin(Files(), str(store))
    for name in "abc":
        journal.write(f"index/{name}", 2, b"xy")
    path, changed = Path(journal.path), contents(store)
    content = path.read_bytes()
    for bit in range(len(content) * 8 * 2 // 3):  # not the last entry, which would count as torn
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(StoreDamagedError):
            newest(store).undo()
        assert contents(store) == changed


@pytest.mark.parametrize("changed", ["index/b", "index/c"])
def test_a_file_that_somebody_else_changed_ends_the_undo_before_its_first_change(changed: str, store: Path) -> None:
    journal = Journal.begin(Files(), str(store))
    for name in "abc":
        journal.write(f"index/{name}", 2, b"xyz")
    (store / changed).write_bytes(b"01x-z56789c")
    before = contents(store)
    with pytest.raises(StoreDamagedError, match=f"{changed} has changed since the repair, at 3"):
        newest(store).undo()
    assert contents(store) == before


@pytest.mark.parametrize("is_changed", [False, True])
def test_bytes_of_a_file_that_was_moved_away_afterwards(is_changed: bool, store: Path) -> None:
    before, journal = contents(store), Journal.begin(Files(), str(store))
    journal.write("index/a", 1, b"xyz")
    journal.move_away("index/a")
    (store / "index/new").write_bytes(b"another")
    journal.take(f"{store}/index/new", "index/a")
    if is_changed:
        (store / "repair/0001.files/0").write_bytes(b"0xy-456789a")
        changed = contents(store)
        with pytest.raises(StoreDamagedError, match="has changed since the repair, at 3"):
            newest(store).undo()
        assert contents(store) == changed
    else:
        newest(store).undo()
        assert contents(store) == before


def test_an_undo_that_was_interrupted_anywhere_ends_with_the_same_files(store: Path) -> None:
    """Every call of an undo fails once; the next undo does what is left."""
    (store / "checkpoint").write_bytes(b"0" * 16)
    tree = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for number in range(1, 60):
        journal = Journal.begin(Files(), str(store))
        journal.write("checkpoint", 0, b"12")
        journal.move_away("index")
        (store / "new").mkdir()
        (store / "new/d").write_bytes(b"new")
        journal.take(f"{store}/new", "index")
        journal.write("checkpoint", 1, b"34")
        files = _FailingOnce(number)
        interrupted = Journal.newest(files, str(store))
        assert interrupted is not None
        files.counting = True
        with contextlib.suppress(DiskError):
            interrupted.undo()
        if files.left > 0:
            break
        if Journal.newest(Files(), str(store)) is not None:
            newest(store).undo()
        assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == tree, number
    else:
        raise AssertionError("the undo never came to its end")


class _FailingOnce(Files):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.left, self.counting = number, False

    def _count(self, path: str) -> None:
        self.left -= self.counting
        if self.counting and self.left == 0:
            self.counting = False
            raise DiskError(path, "test", "interrupted")

    def rename(self, source: str, target: str) -> None:
        self._count(source)
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self._count(path)
        super().sync_directory(path)

    def write_at(self, path: str, position: int, content: bytes) -> None:
        self._count(path)
        super().write_at(path, position, content)

    def remove(self, path: str) -> None:
        self._count(path)
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._count(path)
        super().remove_tree(path)


def test_a_journal_of_an_earlier_version_is_refused(store: Path) -> None:
    (store / "repair").mkdir()
    (store / "repair/0001.journal").write_bytes(b"RUJ1" + bytes(40))
    with pytest.raises(StoreDamagedError, match="an earlier version"):
        newest(store)
    assert (store / "repair/0001.journal").exists()
