"""Runs ``rucola mqadmin`` in tests, with a broker, a live consumer and a live producer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run
from tests.unit.broker.administered import CLIENT_ID, Administered, administered

from rucola.cli.main import main

Capture = pytest.CaptureFixture[str]


class Shell:
    """Runs commands in a thread, while the event loop serves their requests."""

    def __init__(self, there: Administered, capture: Capture) -> None:
        self._there = there
        self._capture = capture
        self.namesrv = there.cluster.namesrv.address
        self.broker = there.cluster.broker.address

    async def __call__(self, command: str, *words: str, json: bool = False, code: int = 0) -> str:
        """Runs a command that must end with ``code``; returns its output or, if it fails, its standard error."""
        names = {"NS": self.namesrv, "BROKER": self.broker, "ID": self._there.message_id, "CLIENT": CLIENT_ID}
        arguments = [names.get(word, word) for word in command.split()] + list(words)
        arguments[1:1] = ["-n", self.namesrv]
        found = await asyncio.to_thread(main, ["mqadmin", *(["--json"] if json else []), *arguments])
        printed = self._capture.readouterr()
        assert found == code, (command, printed.err)
        assert bool(printed.err) == bool(code) and "Traceback" not in printed.err
        return printed.err if code else printed.out

    async def rows(self, command: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (await self(command, json=True)).splitlines()]


def scene(tmp_path: Path, capture: Capture, work: Callable[[Shell, Administered], Any], **options: Any) -> None:
    async def play() -> None:
        async with administered(tmp_path, **options) as there:
            await work(Shell(there, capture), there)

    run(play())
