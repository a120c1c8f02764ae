"""Tables on a terminal that is too narrow for them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from rucola.cli.fitted_table import print_fitted
from rucola.cli.mqadmin import output

CELLS = ("a-topic-of-some-length", "1234567890123456789", "2026-01-01 00:00:00.000")


def printed(width: int) -> list[str]:
    table = Table(box=None, pad_edge=False)
    table.add_column("topic", overflow="fold")
    table.add_column("offset", justify="right", overflow="fold")
    table.add_column("stored", no_wrap=True)
    table.add_row(*CELLS)
    console = Console(width=width, file=io.StringIO())
    print_fitted(console, table)
    assert console.width == width
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [1, 20, 45])
def test_numbers_and_times_are_never_broken_and_texts_are_folded(width: int) -> None:
    lines = printed(width)
    assert any(CELLS[1] in line and CELLS[2] in line for line in lines)
    assert "".join(line[:12].strip() for line in lines[1:]).startswith(CELLS[0][:12])
    assert CELLS[0] not in "\n".join(lines)


def test_a_terminal_that_is_wide_enough_is_not_exceeded() -> None:
    assert [len(line) <= 70 for line in printed(70)] == [True, True]


def test_figures_of_the_administration_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_PIPE_COLUMNS", 30)
    output.table(("topic", "offset", "rate", "stored"), [(CELLS[0], 1234567890123, 12.5, CELLS[2])])
    assert "1234567890123  12.50  2026-01-01 00:00:00.000" in capsys.readouterr().out
