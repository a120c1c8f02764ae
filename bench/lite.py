"""``python -m bench.lite [--names N] [--official KIND ...]``: a broker with very many lite topics.

A broker gets N lite topics with one message each and is killed. Then 20 consumers subscribe to 5,000 of them each, as
far as there are so many, and 1,000 messages a second go to random ones: first of all, then of those with a consumer.
The broker is stopped and started again, and looks for expired ones. Another one, with the default limits, shows which
subscriptions it refuses. The official broker does the same with as many lite topics as its kind of queues is made for:
``file`` or ``rocksdb``. Ours then does so, too, for the comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from tools.peers.packages import PeerError
from tools.peers.servers import JavaServers, RucolaServers, Servers
from tools.peers.wire import wait_for_route

from bench.context import Context
from bench.figure import Budget, Figure, at_least, cost, share
from bench.load_lite import GROUP, GROUP_OF_DEFAULTS, PARENT, set_up
from bench.program import Program, Round, own_bytes, python_load, scratch_directory
from bench.report import machine, table
from bench.steady import longest_s

NAMES = 1_000_000
VERSION = "5.5.0"
OFFICIAL = {"file": ("default", 10_000), "rocksdb": ("defaultRocksDB", 100_000)}
"""For each kind of queues of the official broker: its ``storeType``, and how many lite topics it gets."""
CLIENTS, EACH, RATE = 20, 5_000, 1_000
ECHO_S, QUICK_ECHO_S = 20, 3
IDLE_S, QUICK_IDLE_S = 130, 10
"""How long the looks for expired lite topics are watched. The metric of the longest iteration covers up to two minutes,
which the start must not be part of.
"""
LOOK_EVERY_S = 5
FILL_TIMEOUT_S = 3600.0
SETTINGS: dict[str, object] = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "maxLmqConsumeQueueNum": 2_000_000,
}
MANY: dict[str, object] = {"maxLiteSubscriptionCount": 1_000_000}
PATIENT: dict[str, object] = {"waitTimeMillsInSendQueue": 20_000, "osPageCacheBusyTimeOutMills": 20_000}
"""The official broker would refuse sends that wait for 200 ms, as they do while Java is not warm."""
LOOKING: dict[str, object] = {"liteTtlCheckInterval": LOOK_EVERY_S * 1000, "minLiteTTl": 1000}
Facts = dict[str, float]


def measure(context: Context) -> Iterator[Figure]:
    """The measurement of ``bench.run``: all sizes, or with ``--quick`` small ones."""
    if context.quick:
        yield from measure_ours(context, 10_000)
        yield from measure_beside(context, "file", 1_000)
    else:
        yield from measure_ours(context, NAMES)
        for kind, (_, names) in OFFICIAL.items():
            yield from measure_beside(context, kind, names)


def measure_ours(context: Context, names: int) -> Iterator[Figure]:
    """Our broker with so many lite topics, and the limits of a broker without options."""
    group = f"broker with {names:,} lite topics"
    with scratch_directory() as scratch:
        facts = life_of(context, _ours, names, Path(scratch) / "store")
        facts |= looks(context, names, Path(scratch) / "store")
    for what, key, unit, limit in (
        ("memory of a lite topic with one message: filling", "memory_bytes", "B", 200),
        ("memory of a lite topic with one message: after a start", "open_memory_bytes", "B", 200),
        ("disk of a lite topic, besides its record", "disk_bytes", "B", 100),
        ("start after SIGKILL, behind the last message", "open_killed_s", "s", 30),
        ("start after a stop", "open_clean_s", "s", 10),
        ("a look for expired lite topics: CPU", "look_s", "s", 1),
        ("a look for expired lite topics: longest iteration of the loop, CPU", "turn_ms", "ms", 5),
        (f"{RATE:,}/s to any: p99 from producer to listener", "any_p99_ms", "ms", 50),
        (f"{RATE:,}/s to subscribed ones: p99 from producer to listener", "subscribed_p99_ms", "ms", 50),
    ):
        yield Figure(group, what, unit, facts[key], budgets=(Budget("ours", "max", limit),))
    for what, key in (
        ("the first message of each: broker CPU", "fill_us"),
        (f"subscribing {facts['subscriptions']:,.0f} times: broker CPU per subscription", "subscribe_us"),
        (f"{RATE:,}/s to any, {facts['any_delivered']:.0%} delivered: broker CPU per message", "any_us"),
        (f"{RATE:,}/s to subscribed ones: broker CPU per message", "subscribed_us"),
        (f"{RATE:,}/s to subscribed ones: CPU of producer and consumers per message", "subscribed_load_us"),
    ):
        yield Figure(group, what, "µs", facts[key])
    yield Figure(group, f"{RATE:,}/s to subscribed ones: p50", "ms", facts["subscribed_p50_ms"])
    yield from limits(context, _ours)


def measure_beside(context: Context, kind: str, names: int) -> Iterator[Figure]:
    """Both brokers with so many lite topics; the official one has queues of this kind."""
    group = f"{names:,} lite topics, beside RocketMQ {VERSION} with {kind} queues"
    with scratch_directory() as scratch:
        ours = life_of(context, _ours, names, Path(scratch) / "ours")
        theirs = life_of(context, _official(kind), names, Path(scratch) / "theirs")
    peer = "Java broker"
    for what, key, unit in (
        ("memory of a lite topic with one message", "memory_bytes", "B"),
        ("disk of a lite topic, besides its record", "disk_bytes", "B"),
        ("start after SIGKILL, behind the last message", "open_killed_s", "s"),
        ("start after a stop", "open_clean_s", "s"),
        ("the first message of each: broker CPU", "fill_us", "µs"),
        ("subscribing: broker CPU per subscription", "subscribe_us", "µs"),
    ):
        if theirs[key] > 0:
            yield cost(group, what, ours[key], theirs[key], peer, unit=unit)
    what = f"{RATE:,}/s to subscribed ones"
    yield cost(
        group, f"{what}: broker CPU per message", ours["subscribed_us"], theirs["subscribed_us"], peer, at_least(4)
    )
    for quantile in ("p50", "p99"):
        key = f"subscribed_{quantile}_ms"
        yield share(group, f"{what}: {quantile} from producer to listener", ours[key], theirs[key], peer)


# -- brokers ----------------------------------------------------------------------------------------------------------

Make = Callable[[Path, dict[str, object]], Servers]
"""Makes servers, from a store and further lines of ``broker.conf``."""


def _ours(store: Path, settings: dict[str, object]) -> Servers:
    return RucolaServers(store=store, settings={**SETTINGS, **settings})


def _official(kind: str) -> Make:
    store_type, _ = OFFICIAL[kind]

    def make(store: Path, settings: dict[str, object]) -> Servers:
        more = {"storeType": store_type, "autoCreateTopicEnable": "true", **PATIENT, **settings}
        return JavaServers(store=store, version=VERSION, settings={**SETTINGS, **more})

    return make


def _started(servers: Servers, stack: ExitStack) -> float:
    """Starts servers; returns the seconds until they are ready."""
    begin = time.perf_counter()
    stack.enter_context(servers)
    return time.perf_counter() - begin


def _prepare(servers: Servers) -> None:
    """Creates parent and groups."""
    asyncio.run(set_up(servers.broker))
    wait_for_route(servers.namesrv, PARENT)


# -- what is measured -------------------------------------------------------------------------------------------------


def life_of(context: Context, make: Make, names: int, store: Path) -> Facts:
    """A broker gets its lite topics, is killed, stopped and started, and serves them."""
    facts: Facts = {}
    with ExitStack() as stack:
        servers = make(store, MANY)
        _started(servers, stack)
        _prepare(servers)
        before = own_bytes(servers.pids)
        context.show(f"lite: {servers.name} gets {names:,} lite topics")
        with _load(servers) as load:
            filled = load.round(f"fill {names}", FILL_TIMEOUT_S)
        facts["fill_us"] = filled.server_us
        facts["memory_bytes"] = (own_bytes(servers.pids) - before) / names
        context.show(f"lite: killing {servers.name}")
        begin = time.perf_counter()
        servers.restart()
        facts["open_killed_s"] = time.perf_counter() - begin
        wait_for_route(servers.namesrv, PARENT)
        context.show(f"lite: stopping {servers.name}")
    facts["disk_bytes"] = disk_bytes(store) / names
    with ExitStack() as stack:
        servers = make(store, MANY)
        facts["open_clean_s"] = _started(servers, stack)
        wait_for_route(servers.namesrv, PARENT)
        facts["open_memory_bytes"] = (own_bytes(servers.pids) - before) / names
        return facts | _served(context, servers, names)


def _served(context: Context, servers: Servers, names: int) -> Facts:
    """Consumers subscribe, and get messages."""
    facts: Facts = {}
    each = min(EACH, names // CLIENTS)
    messages = RATE * (QUICK_ECHO_S if context.quick else ECHO_S)
    with _load(servers) as load:
        context.show(f"lite: {CLIENTS} consumers subscribe to {each:,} lite topics each")
        subscribed = load.round(f"subscribe {CLIENTS} {each}", FILL_TIMEOUT_S)
        facts |= {"subscribe_us": subscribed.server_us, "subscriptions": subscribed.messages}
        for rate in (RATE // 10, RATE):  # warms up
            load.round(f"echo {messages // 4} {rate} {CLIENTS * each}")
        for key, targets in (("any", names), ("subscribed", CLIENTS * each)):
            context.show(f"lite: {RATE:,} messages a second to {targets:,} lite topics of {servers.name}")
            facts |= _echo_facts(key, load.round(f"echo {messages} {RATE} {targets}"))
    return facts


def _echo_facts(key: str, done: Round) -> Facts:
    return {
        f"{key}_us": done.server_us,
        f"{key}_load_us": done.load_us,
        f"{key}_p50_ms": done.extra["p50_us"] / 1000,
        f"{key}_p99_ms": done.extra["p99_us"] / 1000,
        f"{key}_delivered": done.extra["delivered"] / done.messages,
    }


def looks(context: Context, names: int, store: Path) -> Facts:
    """Looks for expired lite topics, of which there are none, on a broker without clients."""
    idle_s = QUICK_IDLE_S if context.quick else IDLE_S
    with RucolaServers(store=store, settings={**SETTINGS, **LOOKING}) as servers:
        context.show(f"lite: watching looks through {names:,} lite topics for {idle_s} s")
        before = servers.cpu_seconds()
        time.sleep(idle_s)
        spent = servers.cpu_seconds() - before
        turn_s = longest_s(servers.http, "turn_cpu")
    return {"look_s": spent / (idle_s / LOOK_EVERY_S), "turn_ms": turn_s * 1000}


def limits(context: Context, make: Make) -> Iterator[Figure]:
    """How many subscriptions a broker with the default limits accepts: of 20 clients of a group with the default limit,
    and of 21 clients of a group without it.
    """
    group = "subscriptions that a broker with the default limits accepts"
    context.show("lite: the default limits")
    with scratch_directory() as scratch, make(Path(scratch) / "store", {}) as servers:
        _prepare(servers)
        for name, clients, accepted in ((GROUP_OF_DEFAULTS, CLIENTS, CLIENTS * 2_000), (GROUP, CLIENTS + 1, 100_000)):
            with _load(servers) as load:
                done = load.round(f"limit {name} {clients} {EACH}")
            what = f"{clients} clients, {EACH:,} each, of a group " + (
                "with lite.sub.client.quota=10000" if name == GROUP else "without attributes"
            )
            budgets = (Budget("ours", "min", accepted), Budget("ours", "max", accepted))
            yield Figure(group, what, "", done.messages, budgets=budgets)


def disk_bytes(store: Path) -> int:
    """Returns what a stopped broker has on the disk besides records, index, and the queues of the parent."""
    leave = [store / "commitlog", store / "index", store / "consumequeue" / PARENT]
    files = (path for path in store.rglob("*") if path.is_file() and not any(each in path.parents for each in leave))
    return sum(path.stat().st_blocks * 512 for path in files)


def _load(servers: Servers) -> Program:
    return python_load("load_lite", servers.namesrv, servers.broker, servers=servers)


def main(arguments: Sequence[str]) -> int:
    """Prints the figures; returns 1 if a budget is missed, 2 if something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.lite", description=__doc__)
    parser.add_argument("--names", type=int, default=NAMES, help="number of lite topics of our broker; 0 for none")
    parser.add_argument("--official", nargs="*", choices=OFFICIAL, default=(), metavar="KIND", help="file, rocksdb")
    parser.add_argument("--official-names", type=int, help="number of lite topics of both brokers")
    parser.add_argument("--quick", action="store_true", help="shorter rounds")
    options = parser.parse_args(arguments)
    where = machine()
    figures: list[Figure] = []
    with ExitStack() as stack:
        context = Context(options.quick, stack, lambda text: print(text, file=sys.stderr, flush=True))
        try:
            if options.names:
                figures += measure_ours(context, options.names)
            for kind in options.official:
                figures += measure_beside(context, kind, options.official_names or OFFICIAL[kind][1])
        except PeerError as error:
            print(error, file=sys.stderr)
            return 2
    console = Console(width=150)
    console.print(where)
    console.print(table(figures))
    return int(any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
