"""The page about the source and the source agree."""

from __future__ import annotations

from pathlib import Path

from rucola.spark.options import OPTIONS
from rucola.spark.schema import ROCKETMQ_COLUMNS

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def options_table() -> str:
    """The table as it must be in the page; paste it there after a change of the options."""
    rows = [
        f"| `{option.name}` | {f'`{option.default}`' if option.default else ''} | {option.meaning} |"
        for option in OPTIONS
    ]
    return "\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows])


def test_the_page_has_every_option() -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- options: begin -->\n", "\n<!-- options: end -->"
    assert page[page.index(begin) + len(begin) : page.index(end)] == options_table()


def test_the_page_names_every_column() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [column.name for column in ROCKETMQ_COLUMNS if f"`{column.name}`" not in page] == []
