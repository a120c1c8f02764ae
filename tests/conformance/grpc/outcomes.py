"""Comparison of what clients saw of two servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MASKED = ("text", "__transactionId__", "TRANSACTION_CHECK_TIMES")
"""Fields that may differ: texts of ``status.message`` and of errors, an id, and how often a slow client was asked.
Programs do not print other ids, handles and times; they print whether these are there and agree.
"""
PREFIX = re.compile(r"(?<=[TG]_)c[0-9a-f]+_[0-9]+_")
"""The part of the names of topics and groups that differs in each run, see ``run.py``."""
ABSENT = "absent"
Outcomes = dict[str, dict[str, Any]]
"""Client -> scenario -> what it saw."""


def masked(value: Any) -> Any:
    """Returns an outcome without what may differ."""
    if isinstance(value, dict):
        return {key: "masked" if key in MASKED else masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return PREFIX.sub("", value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Difference:
    """A place in which two outcomes differ.

    Attributes:
        path: names of the fields, with dots between them; of a list, the field that has it.
        expected: what the first server gave; ``ABSENT`` if it has no such field.
        found: what the second gave.
    """

    path: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        left, right = (json.dumps(value, ensure_ascii=False) for value in (self.expected, self.found))
        return f"{self.path}: {left} became {right}"


def differences(expected: Any, found: Any, path: str = "") -> Iterator[Difference]:
    """Yields the places in which two outcomes differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(expected.keys() | found.keys()):
            place = f"{path}.{key}" if path else key
            yield from differences(expected.get(key, ABSENT), found.get(key, ABSENT), place)
    elif expected != found:
        yield Difference(path, expected, found)


def read(path: Path) -> Outcomes:
    """Returns the outcomes in a file; none if it does not exist."""
    outcomes: Outcomes = json.loads(path.read_text()) if path.exists() else {}
    return outcomes


def write(path: Path, outcomes: Outcomes) -> None:
    """Writes outcomes, one line for each scenario."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clients = []
    for client, found in sorted(outcomes.items()):
        lines = [
            f"    {json.dumps(name)}: {json.dumps(saw, ensure_ascii=False, sort_keys=True)}"
            for name, saw in sorted(found.items())
        ]
        clients.append(f"  {json.dumps(client)}: {{\n" + ",\n".join(lines) + "\n  }")
    path.write_text("{\n" + ",\n".join(clients) + "\n}\n")
