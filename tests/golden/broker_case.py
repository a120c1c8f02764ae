"""Runs our broker over a directory that RocketMQ's broker wrote."""

from __future__ import annotations

from pathlib import Path

from tests.golden.loader import load_broker, write_files

from rucola.broker import Broker
from rucola.broker.config import broker_options
from rucola.common.java import parse_properties
from rucola.runtime.clock import SystemClock

LATER_MS = 600_000


class LaterClock(SystemClock):
    """A clock that begins ten minutes after the recording, whenever the test runs."""

    def __init__(self, ended_at_ms: int) -> None:
        self._ahead_ms = ended_at_ms + LATER_MS - super().wall_ms()

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


def broker_of(name: str, path: Path) -> tuple[Broker, LaterClock]:
    case = load_broker(name)
    write_files(case.files, path)
    ours = {"listenPort": "0", "namesrvAddr": "", "storePathRootDir": str(path), "storePathCommitLog": ""}
    values = parse_properties(case.broker_conf) | ours | {"reviveInterval": "20"}
    clock = LaterClock(case.expected["ended_at_ms"])
    known = {key: value for key, value in values.items() if key != "haListenPort"}
    return Broker(*broker_options(known), clock=clock), clock
