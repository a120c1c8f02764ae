"""Every advice in an error of the source, the sink, replays and archives is followed here, and works.

A case makes the error and then does what the error says. The last test finds the errors that no case makes.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.arrow.stores import open_store, put
from tests.unit.spark.advice import CASES

from rucola import errors
from rucola.errors import ConfigError, RucolaError

TREE = Path(errors.__file__).parent


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("advice")
    for name, first, count in (("store", 0, 60), ("other", 4, 100), ("short", 0, 20)):
        store = open_store(path / name)
        put(store, first, count)
        store.shutdown()
    return path


@pytest.mark.parametrize("name", CASES)
def test_the_advice_of_an_error_works(directory: Path, name: str) -> None:
    case = CASES[name]
    with pytest.raises(RucolaError, match=case.advice):
        case.wrong(directory)
    case.right(directory)


CHECKED = (
    "spark/options.py", "spark/option_values.py", "spark/sink_options.py", "spark/source.py", "spark/stream.py",
    "spark/schema.py", "spark/replay_rows.py", "spark/replay_source.py", "spark/archive/__init__.py",
    "lake/archiver.py", "lake/columns.py", "lake/maintenance.py", "lake/restore.py", "lake/table_formats.py",
    "lake/iceberg_catalog.py", "arrow/access.py", "arrow/catalog.py", "arrow/offsets.py", "arrow/expression.py",
    "arrow/schema.py", "arrow/store_catalog.py", "arrow/stores_catalog.py", "arrow/topic_dataset.py",
    "arrow/virtual_dataset.py", "spark/body_decoders.py", "cli/replay_request.py", "cli/spark_replay.py",
    "cli/spark_archive.py",
)  # fmt: skip
ELSEWHERE = {
    ("arrow/access.py", "caCertificate", "error.allowed"): "the client's own words, with the name of the option",
}
"""Errors that other tests make, or that repeat the advice of others."""


def test_no_advice_is_left_out(directory: Path) -> None:
    with recorded() as made:
        for case in CASES.values():
            with pytest.raises(RucolaError):
                case.wrong(directory)
    missed = []
    for name in CHECKED:
        text = (TREE / name).read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "ConfigError":
                continue
            source = ast.get_source_segment(text, node) or ""
            known = any(name == place and key in source and word in source for place, key, word in ELSEWHERE)
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if not known and not any((str(TREE / name), line) in made for line in lines):
                missed.append(f"{name}:{node.lineno} {' '.join(source.split())}")
    assert missed == []


@contextmanager
def recorded() -> Iterator[set[tuple[str, int]]]:
    """Within the block, notes the places in the code that make a ``ConfigError``."""
    made: set[tuple[str, int]] = set()
    original = ConfigError.__init__

    def noted(self: ConfigError, *arguments: Any, **more: Any) -> None:
        frame = sys._getframe(1)
        made.add((frame.f_code.co_filename, frame.f_lineno))
        original(self, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigError, "__init__", noted)
        yield made
