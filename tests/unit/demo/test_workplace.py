"""The job's working directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo.flights.processes import DemoError
from demo.flights.workplace import MARKER, workplace


def test_a_directory_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    treasure = tmp_path / "thesis.tex"
    treasure.write_text("ten years of work")
    with pytest.raises(DemoError, match="this job did not make"), workplace(tmp_path):
        pass
    assert treasure.read_text() == "ten years of work"
    assert not (tmp_path / MARKER).exists()


@pytest.mark.parametrize("exists", [True, False])
def test_its_own_directory_is_emptied(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path / ".demo"
    if exists:
        with workplace(directory):
            (directory / "store").mkdir()
            (directory / "store" / "abort").touch()
            (directory / "flights.png").touch()
        assert (directory / "flights.png").exists(), "what a run made is there after its end"
    with workplace(directory):
        assert [path.name for path in directory.iterdir()] == [MARKER]


def test_a_second_run_is_kept_out_and_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / ".demo"
    with workplace(directory):
        (directory / "store").mkdir()
        with pytest.raises(DemoError, match="another run works in"), workplace(directory):
            pass
        assert (directory / "store").exists()
    with workplace(directory):
        assert not (directory / "store").exists()


def test_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    directory = tmp_path / ".demo"
    with workplace(directory):
        (directory / "store").symlink_to(elsewhere)
    with workplace(directory):
        assert not (directory / "store").exists()
    assert (elsewhere / "kept").exists()
