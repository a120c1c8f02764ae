"""The console of all commands: the only way to print tables and styled text.

What is printed may contain names from a store. Each piece of text passes one gate just before it becomes bytes, so a
place that forgets to escape a name shows it with escapes as well; only the width of a column may then be wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from rucola.cli.closed_output import OutputClosedError
from rucola.cli.store_text import shown_lines

PIPE_COLUMNS = 160


class Terminal(Console):
    """Standard output or standard error. If the reader closes it, the command ends with exit code 0; ``rich`` alone
    would exit with 1.

    Args:
        error: whether it is standard error.
        pipe_columns: width of the output if it is not a terminal; a pipe is not limited to 80 columns.
        soft_wrap: whether long lines are left to the terminal.
    """

    def __init__(self, *, error: bool = False, pipe_columns: int = PIPE_COLUMNS, soft_wrap: bool = False) -> None:
        width = None if error or sys.stdout.isatty() else pipe_columns
        super().__init__(stderr=error, highlight=False, width=width, soft_wrap=soft_wrap)
        self.push_render_hook(_Gate())

    def on_broken_pipe(self) -> None:
        """See the class.

        Raises:
            OutputClosedError: always.
        """
        raise OutputClosedError


class _Gate(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Called by ``rich`` before it prints ``renderables``."""
        return [_Shown(renderable) for renderable in renderables]


class _Shown:
    """``renderable`` with escapes in place of characters that control the terminal. Styles stay, and so does what a
    progress bar does with the cursor.
    """

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments: Iterable[Segment] = console.render(self._renderable, options)
        for segment in segments:
            yield segment if segment.control else Segment(shown_lines(segment.text), segment.style)
