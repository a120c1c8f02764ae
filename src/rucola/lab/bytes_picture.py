"""Bytes of files as rows of boxes, one for each field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rucola.lab.picture import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BYTES_A_ROW = 44
_HEX_MAX = 12


def draw_fields(axes: Axes, parts: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> None:
    """Draws the fields of each part as boxes, one part below the other.

    Args:
        parts: title and fields of each; a field is its position, name, bytes in hexadecimal, and value.
    """
    line = 0.0
    for title, fields in parts:
        axes.text(0, line - 0.25, title, fontweight="bold", fontsize=10, va="bottom")
        column = 0
        for place, (position, name, data, _) in enumerate(fields):
            width = max(len(data) // 2, 4)
            if column + width > _BYTES_A_ROW:
                column, line = 0, line + 1.5
            _box(axes, column, line, width, COLORS[place % 5], f"{name}\n{_hex(data, width)}", position)
            column += width
        line += 2.3
    axes.set_xlim(0, _BYTES_A_ROW)
    axes.set_ylim(line - 0.9, -0.8)
    axes.axis("off")


def _box(axes: Axes, column: int, line: float, width: int, color: str, text: str, position: str) -> None:
    axes.barh(line + 0.5, width - 0.12, 1, column, color=color, alpha=0.22, edgecolor=color)
    axes.text(column + width / 2, line + 0.5, text, ha="center", va="center", fontsize=6.6)
    axes.text(column, line + 1.05, position, ha="left", va="top", fontsize=6, color="#555555")


def _hex(data: str, width: int) -> str:
    shown = min(width, _HEX_MAX) * 2
    return data[:shown] + ("..." if len(data) > shown else "")
