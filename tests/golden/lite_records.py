"""The recordings of lite topics in ``tests/golden/lite``: what each line is, and all of them."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).with_name("lite")
NAMES = sorted(str(path.relative_to(DIRECTORY)).removesuffix(".jsonl.xz") for path in DIRECTORY.rglob("*.jsonl.xz"))


@dataclass(frozen=True)
class Line:
    """A record that has bytes: a remoting frame, or a gRPC message.

    Attributes:
        name: of the recording.
        record: as it was written.
        data: the frame or the message.
    """

    name: str
    record: dict[str, Any]
    data: bytes


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the facts about a scenario, and its records."""
    facts, *records = [json.loads(line) for line in lzma.decompress(path.read_bytes()).decode().splitlines()]
    return facts, records


@cache
def scenario(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The facts and records of a recording, by its name: ``rocksdb/send``."""
    return read(DIRECTORY / f"{name}.jsonl.xz")


def frames(name: str = "") -> Iterator[Line]:
    """The remoting frames of a recording, or of all."""
    return _lines(name, "frame")


def messages(name: str = "") -> Iterator[Line]:
    """The gRPC messages of a recording, or of all."""
    return _lines(name, "message")


def _lines(name: str, member: str) -> Iterator[Line]:
    for one in [name] if name else NAMES:
        for record in scenario(one)[1]:
            if member in record:
                yield Line(one, record, base64.b64decode(record[member]))
