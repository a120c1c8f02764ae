"""The job's working directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo.flights.job import empty
from demo.flights.processes import DemoError


def test_a_directory_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    treasure = tmp_path / "thesis.tex"
    treasure.write_text("ten years of work")
    with pytest.raises(DemoError, match="not of this job"):
        empty(tmp_path)
    assert treasure.read_text() == "ten years of work"


@pytest.mark.parametrize("exists", [True, False])
def test_its_own_directory_is_emptied(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path / ".demo"
    if exists:
        empty(directory)
        (directory / "store").mkdir()
        (directory / "store" / "abort").touch()
    empty(directory)
    assert [path.name for path in directory.iterdir()] == [".made-by-flights-demo"]
