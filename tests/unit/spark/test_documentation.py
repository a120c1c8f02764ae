"""The page about the Spark source agrees with the source's options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rucola.arrow.schema import ROCKETMQ_COLUMNS
from rucola.spark.option_values import SparkOption
from rucola.spark.options import OPTIONS
from rucola.spark.sink_options import COLUMN_TYPES, SINK_OPTIONS

DOCS = Path(__file__).parents[3] / "docs"


def options_table(options: tuple[SparkOption, ...]) -> str:
    """Returns the table of options that the page must contain."""
    rows = [
        f"| `{option.name}` | {f'`{option.default}`' if option.default else ''} | {option.meaning} |"
        for option in options
    ]
    return "\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows])


@pytest.mark.parametrize(("name", "options"), [("spark", OPTIONS), ("spark-writing", SINK_OPTIONS)])
def test_the_page_has_every_option(name: str, options: tuple[SparkOption, ...]) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- options.*: begin -->\n(.*)\n<!-- options.*: end -->", page, re.DOTALL)
    assert found is not None
    assert found.group(1) == options_table(options)


@pytest.mark.parametrize(
    ("name", "columns"), [("spark", [column.name for column in ROCKETMQ_COLUMNS]), ("spark-writing", [*COLUMN_TYPES])]
)
def test_the_page_names_every_column(name: str, columns: list[str]) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert [column for column in columns if f"`{column}`" not in page] == []
