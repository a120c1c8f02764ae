"""The recorded frames of ``tests/golden/frames``."""

from __future__ import annotations

import base64
import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[2] / "golden" / "frames"
SCENARIOS = sorted(path.name.removesuffix(".jsonl.xz") for path in DIRECTORY.glob("*.jsonl.xz"))


@dataclass(frozen=True)
class Recorded:
    """One recorded frame."""

    scenario: str
    record: dict[str, Any]
    frame: bytes

    @property
    def header(self) -> dict[str, Any]:
        return self.record["header"]

    @property
    def body(self) -> bytes:
        return self.frame[8 + int.from_bytes(self.frame[5:8], "big") :]

    @property
    def is_response(self) -> bool:
        return self.record["kind"] == "response"


def records(scenario: str) -> list[dict[str, Any]]:
    """Returns all lines of a file except the first."""
    with lzma.open(DIRECTORY / f"{scenario}.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines][1:]


@cache
def frames(scenario: str) -> tuple[Recorded, ...]:
    """Returns the completely recorded frames of a scenario, in order of arrival."""
    return tuple(
        Recorded(scenario, record, base64.b64decode(record["frame"]))
        for record in records(scenario)
        if "frame" in record
    )


@cache
def all_frames() -> tuple[Recorded, ...]:
    """Returns the completely recorded frames of all scenarios."""
    return tuple(frame for scenario in SCENARIOS for frame in frames(scenario))


def texts(ext_fields: dict[str, Any] | None) -> dict[str, str]:
    """Returns the ext fields of a recorded header as texts."""
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in (ext_fields or {}).items()
        if value is not None
    }
