"""The journal of a repair: after any interruption, it holds what is needed to take back each change that was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.doctor import journal as module
from rucola.store.doctor.journal import Journal


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"0123456789" + name.encode())
    return tmp_path


def contents(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()}


def newest(store: Path) -> Journal:
    found = Journal.newest(Files(), str(store))
    assert found is not None
    return found


def test_changes_in_several_pieces_and_of_the_same_bytes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 3)
    before, journal = contents(store), Journal.begin(Files(), str(store))
    journal.write("a", 1, b"abcdefgh")
    journal.write("a", 2, b"ABCD")
    assert contents(store)["a"] == b"0aABCDfgh9a"
    assert (journal.changes, journal.changed_bytes) == (5, 12)
    assert newest(store).undo() == 5
    assert contents(store) == before


def test_files_that_were_moved_away_come_back(store: Path) -> None:
    before, journal = contents(store), Journal.begin(Files(), str(store))
    journal.move_away("a")
    journal.move_away("b")
    newest(store).move_away("c")
    assert contents(store) == {}
    assert newest(store).moved() == {"a", "b", "c"}
    newest(store).undo()
    assert contents(store) == before


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_an_entry_that_was_not_written_whole_is_none(damage: str, store: Path) -> None:
    before, journal = contents(store), Journal.begin(Files(), str(store))
    journal.write("a", 0, b"x")
    whole = Path(journal.path).read_bytes()
    journal.write("b", 0, b"y")
    (store / "b").write_bytes(before["b"])  # the process was killed before it changed the file
    torn = bytearray(Path(journal.path).read_bytes())
    torn[-1] ^= damage == "changed"
    Path(journal.path).write_bytes(torn[: len(torn) - (damage == "cut")])
    continued = Journal.begin(Files(), str(store))
    continued.write("a", 5, b"z")
    assert Path(journal.path).read_bytes().startswith(whole)
    assert continued.undo() == 2
    assert contents(store) == before


def test_bytes_after_the_end_of_a_file_are_never_written(store: Path) -> None:
    before, journal = contents(store), Journal.begin(Files(), str(store))
    with pytest.raises(StoreDamagedError, match="the file is too short"):
        journal.write("a", 8, b"xxxx")
    assert contents(store) == before
