"""``python -m bench.growth [NAME ...]``: how the cost of a message grows when something else grows.

For each curve, our broker and then the official one are measured at several sizes: CPU time per message, 99th
percentile of the latency, memory. Results also go to ``.bench/growth.json``, where each series stays until it
is measured again; all of them are drawn and published. The exit status is 0 unless something of ours could not be
measured; that Java is given up after ten minutes is a result.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict

from rich.console import Console
from tools.peers.packages import ROOT, PeerError

from bench import growth_age, growth_live, growth_messages, growth_store
from bench.context import Context
from bench.growth_curves import JAVA_MAX_S, Curve, Growth, Point, Series
from bench.growth_report import draw, publish, summary, table
from bench.report import machine
from bench.run import WIDTH, shower, terminated

RESULTS = ROOT / ".bench" / "growth.json"
CURVES = (
    Curve("connections", "connections", "connections", (1, 10, 100, 1_000, 10_000), growth_live.connections),
    Curve("topics", "topics", "topics", (1, 10, 100, 1_000, 10_000, 100_000), growth_live.topics),
    Curve("queues", "queues that get messages in turn", "queues", (1, 10, 100, 1_000, 20_000), growth_live.queues),
    Curve(
        "groups", "groups that get every message", "groups", (1, 10, 50, 200), growth_live.groups, "delivered message"
    ),
    Curve("log", "size of the log", "MiB", (100, 1_000, 10_000, 100_000, 200_000), growth_store.log_size),
    Curve("backlog", "pulls of old messages, not in memory", "MiB", (100, 1_000, 10_000, 20_000), growth_store.backlog),
    Curve(
        "size",
        "size of a message",
        "bytes",
        (1, 64, 1_024, 16_384, 262_144, 1 << 20, 4 << 20),
        growth_messages.sizes,
        straight=True,
    ),
    Curve(
        "properties",
        "properties of a message",
        "properties",
        (1, 10, 50, 100, 200),
        growth_messages.properties,
        straight=True,
        linear=True,
    ),
    Curve("delayed", "delayed messages that wait", "messages", (0, 10_000, 100_000, 1_000_000), growth_live.delayed),
    Curve("pops", "unacknowledged popped messages", "messages", (0, 2_000, 20_000, 200_000), growth_live.pops),
    Curve("age", "age of the broker", "seconds", tuple(range(1, 11)), growth_age.age, linear=True),
)


def main(arguments: list[str]) -> int:
    """Measures the wanted curves, prints them, and returns the exit status."""
    options = _options(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    where = machine()
    console.print(f"[bold]{where}[/]")
    signal.signal(signal.SIGTERM, terminated)
    results: dict[str, dict[str, Series]] = {}
    wanted = [curve for curve in CURVES if not options.name or curve.name in options.name]
    with console.status("starting") as status, ExitStack() as stack:
        show = shower(console, status)
        context = Context(options.quick, stack, show, rounds_wanted=options.rounds)
        growth = Growth(context, options.max, options.age_minutes)
        for curve in wanted:
            results[curve.name] = {}
            for server in ("rucola",) if options.no_java else ("rucola", "java"):
                results[curve.name][server] = series = measure(growth, curve, server)
                show(f"{curve.name}: {server}: {summary(curve, series)}")
                save({curve.name: results[curve.name]})
    console.print(table(wanted, results))
    known = load()
    draw(str(RESULTS.with_suffix(".png")), CURVES, known)
    if options.publish:
        publish(CURVES, known, where)
    failed = [name for name, series in results.items() if series["rucola"].ended]
    for name in failed:
        print(f"growth: {name}: {results[name]['rucola'].ended}", file=sys.stderr)
    return 1 if failed else 0


def measure(growth: Growth, curve: Curve, server: str) -> Series:
    """Measures one series; if it cannot be finished, it says why."""
    series = Series()
    sizes = growth.sizes(curve)
    if not sizes:
        series.ended = "no size is small enough"
        return series
    growth.deadline = time.monotonic() + JAVA_MAX_S if server == "java" and curve.name != "age" else math.inf
    points = curve.measure(growth, server, sizes)
    try:
        for point in points:
            if len(series.points) < len(sizes):
                series.points.append(point)
            else:
                series.control = point.cpu_us / series.points[0].cpu_us
            growth.show(f"{curve.name}: {server}, {point.size:,}: {point.cpu_us:.2f} µs, {point.p99_ms:.2f} ms")
    except PeerError as error:
        series.ended = str(error).strip().partition("\n")[0]
        growth.show(f"{curve.name}: {server}: {error}")
    return series


def save(results: Mapping[str, Mapping[str, Series]]) -> None:
    """Writes the results beside the other known ones; each point is a list of size, µs, ms and MB."""
    every = {name: dict(each) for name, each in load().items()}
    for name, each in results.items():
        every[name] = {**every.get(name, {}), **each}
    content = {name: {server: asdict(series) for server, series in each.items()} for name, each in every.items()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def load() -> dict[str, Mapping[str, Series]]:
    """Reads the results of the last measurement of each series."""
    if not RESULTS.exists():
        return {}
    return {
        name: {
            server: Series([Point(*point) for point in series["points"]], series["control"], series["ended"])
            for server, series in each.items()
        }
        for name, each in json.loads(RESULTS.read_text()).items()
    }


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    names = [curve.name for curve in CURVES]
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"curves: {', '.join(names)}; all by default")
    parser.add_argument("--quick", action="store_true", help="the three smallest sizes, one short round each")
    parser.add_argument("--max", type=int, metavar="N", help="leave out larger sizes")
    parser.add_argument("--no-java", action="store_true", help="measure our broker only")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds for each size; usually 3")
    parser.add_argument("--age-minutes", type=float, default=60.0, metavar="N", help="length of age; usually 60")
    parser.add_argument("--publish", action="store_true", help="also rewrite table and picture in docs/")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.name if name not in names]:
        parser.error(f"no curve {', '.join(unknown)}; there are {', '.join(names)}")
    if options.quick and options.publish:
        parser.error("--publish needs full rounds, without --quick")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
