"""The text that tells people where the servers of a command listen."""

from __future__ import annotations

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rucola.cli.terminal import Terminal


def ready_text(title: str, lines: dict[str, str]) -> str:
    """Returns a box with a title and a line for each name and value, followed by "ready"."""
    grid = Table.grid(padding=(0, 2))
    for name, value in lines.items():
        grid.add_row(f"[dim]{name}", Text(value))
    console = Terminal()
    with console.capture() as captured:
        console.print(Panel(grid, title=title, expand=False))
        console.print("ready", end="")
    return captured.get()
