"""How long a Python client takes from the start of its process until its first message, compared with Java's client.

The times are medians of new processes. Each client talks to both brokers on this machine; the name server is known, and
nothing else runs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tools.peers.packages import ROOT, PeerError
from tools.peers.servers import OURS, Servers
from tools.peers.wire import make_topic

from bench.context import Context
from bench.figure import Budget, Figure, share
from bench.program import java_command

IMPORT_GROUP = "import in a new Python process, more than an empty process needs"
SEND_GROUP = "first send of a new process, to its acknowledgement"
PUSH_GROUP = "push consumer of a new group, alone"
STATEMENTS = (
    "import rucola",
    "from rucola import Message, Producer",
    "from rucola.sync import Message, Producer",
    "from rucola import PushConsumer",
)
TOPIC = "bench_first"
PROCESSES = 7
JAVA_PROCESSES = 3
IMPORT_BUDGET_MS = 120.0
ACKNOWLEDGED_BUDGET_MS = 50.0
ARRIVED_BUDGET_MS = 50.0
FIRST_S = 60.0


class Cost(NamedTuple):
    """What a process took, in ms."""

    wall_ms: float
    cpu_ms: float


def measure(context: Context) -> Iterator[Figure]:
    """Measures imports, then first sends and first messages with our servers and the official ones."""
    yield from _imports(context)
    for pair in context.both():
        make_topic(pair.namesrv, pair.broker, TOPIC)
        broker = "our broker" if pair.name == "rucola" else "Java's broker"
        for what, created in (("topic exists", False), ("topic is created", True)):
            yield from _sends(context, pair, f"{broker}, {what}", created)
        yield from _first_messages(context, pair, broker)


def _imports(context: Context) -> Iterator[Figure]:
    context.show("start of a client: imports")
    for cached in (True, False):
        empty = _import("pass", cached)
        for statement in STATEMENTS:
            cost = _import(statement, cached)
            what = statement if cached else f"{statement}, without bytecode files"
            budgets = (Budget("ours", "max", IMPORT_BUDGET_MS),) if cached else ()
            yield Figure(IMPORT_GROUP, what, "ms", cost.wall_ms - empty.wall_ms, budgets=budgets)
            yield Figure(IMPORT_GROUP, f"{what}: CPU", "ms", cost.cpu_ms - empty.cpu_ms)


def _import(statement: str, cached: bool) -> Cost:
    """Runs a statement in new processes; returns the smallest wall time and CPU time. Without ``cached``, Python finds
    no bytecode, its own modules' included, and writes none.
    """
    with TemporaryDirectory() as nothing:
        options = [] if cached else ["-B", "-X", f"pycache_prefix={nothing}"]
        command = [sys.executable, *options, "-c", statement]
        costs = [_run(command) for _ in range(PROCESSES + 1)][1:]  # the first one may write bytecode
    return Cost(min(cost.wall_ms for cost in costs), min(cost.cpu_ms for cost in costs))


def _run(command: Sequence[str]) -> Cost:
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **OURS})
    _, status, usage = os.wait4(process.pid, 0)
    wall_ms = (time.perf_counter() - begin) * 1e3
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise PeerError(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(wall_ms, (usage.ru_utime + usage.ru_stime) * 1e3)


def _sends(context: Context, pair: Servers, where: str, created: bool) -> Iterator[Figure]:
    def topic() -> str:
        return f"{TOPIC}_{time.time_ns()}" if created else TOPIC

    context.show(f"start of a client: first send, {where}")
    java = _median(lambda: _first(_java("send", pair, topic())), JAVA_PROCESSES)
    for kind, face in (("send", "async"), ("send-sync", "sync")):
        ours = _median(partial(_send, kind, pair, topic), PROCESSES)
        # How long Java's broker takes to create a topic is not the client's doing.
        budgets = (Budget("ours", "max", ACKNOWLEDGED_BUDGET_MS),) if pair.name == "rucola" else ()
        yield share(SEND_GROUP, f"{where}, {face}: process and import", ours["imported"], java["imported"], "Java")
        what = f"{where}, {face}: from Producer(...) on"
        yield share(SEND_GROUP, what, ours["acknowledged"], java["acknowledged"], "Java", *budgets)


def _send(kind: str, pair: Servers, topic: Callable[[], str]) -> dict[str, float]:
    return _first(_python(kind, pair, topic()))


def _first_messages(context: Context, pair: Servers, broker: str) -> Iterator[Figure]:
    context.show(f"start of a client: first message, {broker}")

    def group() -> str:
        return f"first_{time.time_ns()}"

    ours = _median(lambda: _first(_python("push", pair, TOPIC, group())), PROCESSES)
    java = _median(lambda: _first(_java("push", pair, TOPIC, group())), JAVA_PROCESSES)
    yield share(PUSH_GROUP, f"{broker}: start", ours["joined"], java["joined"], "Java")
    budget = Budget("ours", "max", ARRIVED_BUDGET_MS)
    what = f"{broker}: from the return of start to the listener, message sent at once"
    yield share(PUSH_GROUP, what, ours["arrived"], java["arrived"], "Java", budget)


def _python(kind: str, pair: Servers, topic: str, *rest: str) -> Callable[[int], list[str]]:
    return lambda begin_ns: [sys.executable, "-m", "bench.load_first", kind, pair.namesrv, topic, str(begin_ns), *rest]


def _java(kind: str, pair: Servers, topic: str, *rest: str) -> Callable[[int], list[str]]:
    return lambda begin_ns: java_command("FirstLoad", kind, pair.namesrv, topic, str(begin_ns), *rest)


def _first(command: Callable[[int], list[str]]) -> dict[str, float]:
    """Runs a program that works once; returns its result."""
    command(0)  # compiles the Java program if needed
    environment = {**os.environ, **OURS, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    arguments = command(time.time_ns())
    done = subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=FIRST_S, check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            answer: dict[str, float] = json.loads(line)
            return answer
    raise PeerError(f"{' '.join(arguments)} printed no result: {done.stderr[-2000:]}")


def _median(run: Callable[[], dict[str, float]], times: int) -> dict[str, float]:
    answers = [run() for _ in range(times)]
    return {name: statistics.median(answer[name] for answer in answers) for name in answers[0]}
