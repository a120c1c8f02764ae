"""Events that take a process: an application that ends with an open client, or is killed.

The process runs in real time; virtual time stands still meanwhile, so that the servers wait for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from tests.scenario.matrix.ledger import Given

from rucola.testing.queue_checker import Outcome

if TYPE_CHECKING:
    from tests.scenario.matrix.cell import Cell

ENDS_S = 15.0
"""Real seconds in which the process must have ended."""
LINES = 5
_NOISE = ("Traceback", "Exception ignored", "never awaited", "was destroyed", "Fatal")


async def in_process(cell: Cell, how: str) -> None:
    """Runs a process, takes its ledger, and starts an heir in this process."""
    if not cell.row.is_producer:
        await cell.world.send(16)
    process = await cell.loop.run_in_executor(None, _start, cell, how)
    await cell.loop.run_in_executor(None, _follow, cell, process, how)
    if not cell.row.is_producer:
        await cell.more(8)
    await cell.start("a" if cell.row.broadcasting else "b")


def _start(cell: Cell, how: str) -> subprocess.Popen[str]:
    world = cell.world
    facts = {"topic": world.topic, "group": world.group, "namesrv": world.namesrv, "broker": world.broker_name}
    facts |= {"queues": world.queues, "home": str(world.home), "member": "a", "lite_topics": world.lite_topics}
    cell.ledger.joined("a")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.scenario.matrix.leaver", cell.row.name, how, json.dumps(facts)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def _follow(cell: Cell, process: subprocess.Popen[str], how: str) -> None:
    """Copies what the process tells into the ledger; ends when the process has ended."""
    timer = threading.Timer(ENDS_S, process.kill)
    timer.start()
    errors: list[str] = []
    assert process.stdout is not None and process.stderr is not None
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read() if process.stderr else ""))
    reader.start()
    open_: dict[str, Given] = {}
    told = 0
    for line in process.stdout:
        kind, value, *rest = json.loads(line)
        _take(cell, open_, kind, value, rest)
        told += kind == "given" or (kind == "sent" and rest[1] != Outcome.UNKNOWN.value)
        if how == "killed" and told >= LINES:
            process.kill()
    code = process.wait()
    timer.cancel()
    reader.join()
    process.stdout.close()
    process.stderr.close()
    for given in open_.values():
        cell.ledger.closed(given)
    if how == "killed":
        return
    if code != 0:
        cell.desk.fault(f"the process ended with {code}")
    noise = [line for line in errors[0].splitlines() if any(word in line for word in _NOISE)]
    if noise:
        cell.desk.fault(f"the process complained: {noise[:3]} {errors[0][-300:]!r}")


def _take(cell: Cell, open_: dict[str, Given], kind: str, value: str, rest: list[Any]) -> None:
    ledger, at = cell.ledger, cell.loop.time()
    if kind == "given":
        queue, offset, retried = rest
        given = Given(value, cell.world.queue_name(value, int(queue)), offset, "a", at, retried)
        open_[value] = ledger.given(given)
    elif kind == "finished":
        given = open_.pop(value)
        ledger.finished(given)
        ledger.closed(given)
    else:
        queue, outcome = rest
        ledger.sent(value, cell.world.queue_name(value, int(queue)), None, Outcome(outcome), at)
