"""``python -m bench.run [--quick] [NAME ...]``: measures, and prints each figure with its ratio and budget.

Results also go to ``.bench/results.json``. A missed budget is shown as missed. The exit status is 0 unless something
could not be measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.status import Status
from tools.peers.packages import ROOT, PeerError

from bench import (
    archive,
    catch_up,
    delay,
    fixture,
    floor,
    gather,
    grpc_proxy,
    http2,
    idle,
    kernels,
    lite,
    memory,
    receive,
    replication,
    scan,
    send,
    spark_large,
    spark_scan,
    spark_sink,
    sql,
    start,
    start_client,
    store,
)
from bench import filter as sql_filter
from bench.context import Context
from bench.figure import Figure, at_least
from bench.fill_memory import fill_memory
from bench.program import scratch_directory
from bench.report import machine, publish, table

BEFORE = ("store", "send", "send-frames", "send-java", "send-java-small", "batch", "end-to-end", "pull", "push")
"""Measurements that ``--before`` can compare: they run the same load on both sides."""
BEFORE_MIN = 0.97
"""A rate or a cost counts as worse if its ratio to the earlier version is below this value."""
RESULTS = ROOT / ".bench" / "results.json"
WIDTH = 150
"""Width of the report in columns if there is no terminal."""
MEASUREMENTS: dict[str, Callable[[Context], Iterator[Figure]]] = {
    "kernels": kernels.measure,
    "http2": http2.measure,
    "scan": scan.measure,
    "spark": spark_scan.measure,
    "spark-sink": spark_sink.measure,
    "spark-large": spark_large.measure,
    "sql": sql.measure,
    "archive": archive.measure,
    "filter": sql_filter.measure,
    "start": start.measure,
    "start-client": start_client.measure,
    "idle": idle.measure,
    "delay": delay.measure,
    "store": store.measure,
    "store-sync": store.measure_sync,
    "open": store.measure_opening,
    "send": send.measure_client,
    "send-frames": send.measure_frames,
    "send-java": send.measure_java,
    "send-java-limited": send.measure_limited,
    "send-java-small": send.measure_java_small,
    "batch": send.measure_batch,
    "end-to-end": send.measure_end_to_end,
    "pull": receive.measure,
    "push": receive.measure_push,
    "gather": gather.measure,
    "send-sync": send.measure_sync,
    "replication": replication.measure_cost,
    "replication-sync": replication.measure_waiting,
    "replication-catch-up": catch_up.measure,
    "floor": floor.measure,
    "floor-paced": floor.measure_paced,
    "floor-sync": floor.measure_sync,
    "grpc": grpc_proxy.measure,
    "grpc-receive": grpc_proxy.measure_receives,
    "grpc-python": grpc_proxy.measure_python,
    "grpc-beside": grpc_proxy.measure_beside,
    "fixture": fixture.measure,
    "lite": lite.measure,
    "memory": memory.measure,
    "queues": memory.measure_queues,
}


def main(arguments: list[str]) -> int:
    """Runs the requested measurements."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few short rounds, for a rough look")
    parser.add_argument(
        "--gib", type=float, default=2.0, metavar="N", help="size of the store for archive; the goal is stated for 20"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds for each side; usually 3, with Spark 7")
    parser.add_argument(
        "--before",
        type=lambda text: Path(text).resolve(),
        metavar="DIRECTORY",
        help="compare with the servers and the store of an earlier version, a worktree of this repository with its own "
        "environment",
    )
    parser.add_argument("name", nargs="*", help=f"measurements to run: {', '.join(MEASUREMENTS)}; all by default")
    parser.add_argument("--publish", action="store_true", help="also rewrite the figures in docs/figures.md")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.name if name not in MEASUREMENTS]:
        parser.error(f"no measurement {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    if options.before and (wrong := [name for name in options.name if name not in BEFORE]):
        parser.error(f"--before cannot compare {', '.join(wrong)}; it compares {', '.join(BEFORE)}")
    if options.before and options.publish:
        parser.error("--publish is for figures beside the official programs, not for --before")
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    where = machine()
    console.print(f"[bold]{where}[/]")
    failed: list[str] = []
    figures: list[Figure] = []
    begin = time.monotonic()
    signal.signal(signal.SIGTERM, terminated)
    with console.status("starting") as status, scratch_directory() as scratch, ExitStack() as stack:
        show = shower(console, status)
        context = Context(options.quick, stack, show, options.gib, options.before, options.rounds)
        for name in options.name or (BEFORE if options.before else MEASUREMENTS):
            context.show("filling free memory with page cache")
            context.show(fill_memory(scratch))
            try:
                figures.extend(MEASUREMENTS[name](context))
            except PeerError as error:
                failed.append(f"{name}: {error}{context.ended_servers()}")
        status.update("stopping the servers")
    if options.before:
        figures = [beside_before(figure) for figure in figures]
    console.print(table(figures))
    missed = [figure for figure in figures if figure.met is False]
    for figure in missed:
        console.print(f"[red]budget missed:[/] {figure.group}: {figure.what}")
    kept = sum(figure.met is True for figure in figures)
    console.print(f"{kept} budgets kept, {len(missed)} missed, in {time.monotonic() - begin:.0f} s")
    save(figures, where, options.quick)
    if options.publish:
        publish(figures, where, some=bool(options.name))
    for text in failed:
        print(f"bench: {text}", file=sys.stderr)
    return 1 if failed else 0


def beside_before(figure: Figure) -> Figure:
    """Replaces the budgets of a figure by the limit for the comparison with an earlier version. Latencies have no
    limit, because they vary by more than 3 % between rounds.
    """
    budgets = (at_least(BEFORE_MIN),) if figure.unit in ("/s", "µs") else ()
    return replace(figure, peer_name="before", budgets=budgets)


def save(figures: list[Figure], where: str, quick: bool) -> None:
    """Writes the results for later comparison."""
    content = {"machine": where, "quick": quick, "figures": [figure.as_json() for figure in figures]}
    RESULTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def terminated(number: int, _frame: FrameType | None) -> None:
    """Handles SIGTERM: ends the run, which removes servers, stores and control groups as at a normal end."""
    sys.exit(128 + number)


def shower(console: Console, status: Status) -> Callable[[str], None]:
    """Returns a function that shows progress: a status line on a terminal, otherwise one line for each step."""
    begin = time.monotonic()

    def show(text: str) -> None:
        if console.is_terminal:
            status.update(text)
        else:
            print(f"{time.monotonic() - begin:4.0f} s  {text}", file=sys.stderr)

    return show


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
