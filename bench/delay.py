"""A broker with many delayed messages: how long it takes to start, how much memory it needs, how late it delivers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

from tools.peers.servers import RucolaServers
from tools.peers.wire import make_topic

from bench.context import Context
from bench.figure import Budget, Figure
from bench.program import scratch_directory
from rucola import PullConsumer
from rucola.broker.timer.timer_message_service import TimerMessageService
from rucola.common.message import StoreMessage
from rucola.common.message_queue import MessageQueue
from rucola.formats.message import decode_messages
from rucola.formats.properties import encode_properties
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.timer.timer_store import TimerGeometry, TimerStore

GROUP = "delayed messages, 128 B, 5,000 due each second"
TOPIC = "bench_delay"
QUEUES = 4
PER_SECOND = 5_000
STEP_MS = 1000
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
START_S_MAX, MEMORY_MB_MAX, LATE_MS_MAX = 2.0, 100.0, 100.0


def measure(context: Context) -> Iterator[Figure]:
    """Measures a broker with one million waiting messages (100,000 with ``--quick``), and some seconds of their
    delivery.
    """
    count = 100_000 if context.quick else 1_000_000
    seconds = 4 if context.quick else 10
    with scratch_directory() as scratch:
        store = Path(scratch) / "store"
        with RucolaServers(store=store) as empty:
            make_topic(empty.namesrv, empty.broker, TOPIC, QUEUES)
            time.sleep(1)
            idle_bytes = _own_bytes(empty)
        context.show(f"delay: {count:,} messages that wait")
        first_ms = fill_delayed(store, count)
        begin = time.perf_counter()
        with RucolaServers(store=store) as servers:
            make_topic(servers.namesrv, servers.broker, TOPIC, QUEUES)
            start_s = time.perf_counter() - begin
            time.sleep(2)
            more_mb = (_own_bytes(servers) - idle_bytes) / 1e6
            context.show("delay: waiting for the first to be due")
            stored_ms, arrived_ms = asyncio.run(_lateness(servers.namesrv, first_ms, seconds))
    what = f"{count:,} waiting"
    yield _own(f"{what}: start until the first acknowledged send", "s", start_s, START_S_MAX)
    yield _own(
        f"{what}: additional memory compared with an idle broker, without pages of the log",
        "MB",
        more_mb,
        MEMORY_MB_MAX,
    )
    yield _own(f"{what}: from the due time until stored for consumers, p99", "ms", _share(stored_ms, 0.99), LATE_MS_MAX)
    yield _own(f"{what}: from the due time until received, p50", "ms", _share(arrived_ms, 0.50))
    yield _own(f"{what}: from the due time until received, p99", "ms", _share(arrived_ms, 0.99), LATE_MS_MAX)


def _own(what: str, unit: str, value: float, limit: float | None = None) -> Figure:
    budgets = () if limit is None else (Budget("ours", "max", limit),)
    return Figure(GROUP, what, unit, value, budgets=budgets)


def _share(values: list[int], share: float) -> float:
    return float(sorted(values)[int(share * (len(values) - 1))])


def _own_bytes(servers: RucolaServers) -> int:
    """Returns the resident memory in bytes without pages of the commit log, because every start reads those pages."""
    kib, counts = 0, True
    for pid in servers.pids:
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            first, _, rest = line.partition(" ")
            if not first.endswith(":"):
                counts = "/commitlog/" not in rest
            elif first == "Rss:" and counts:
                kib += int(rest.split()[0])
    return kib * 1024


def fill_delayed(directory: Path, count: int, wait_s: int = 20) -> int:
    """Fills a store with delayed messages; returns the time when the first one is due, in milliseconds since 1970. It
    is due ``wait_s`` seconds after the filling, at the earliest.
    """
    clock = SystemClock()
    store = MessageStore(MessageStoreConfig(store_path_root_dir=str(directory)), Files(), clock)
    store.load()
    store.start()
    timers = TimerStore(Files(), store.root, TimerGeometry(store.config.mapped_file_size_timer_log))
    service = TimerMessageService(store, timers, 172_800_000, clock.wall_ms, lambda _, queue_id: queue_id)
    service.load()
    # Filling takes up to 140 us per message, and start-up some seconds; both must end before the first message is due.
    first_ms = (clock.wall_ms() // STEP_MS + wait_s + count // 7_000) * STEP_MS
    body = random.Random(1).randbytes(128)
    for start in range(0, count, 64):
        messages = [_message(number, first_ms, body) for number in range(start, min(start + 64, count))]
        store.put_messages(messages)
        if start % 4096 == 0:
            _settle(store, service)
    _settle(store, service)
    store.shutdown()
    changes = timers.changes(store.flushed_offset, clock.wall_ms())
    assert changes is not None
    timers.write(changes)
    timers.close()
    return first_ms


def _settle(store: MessageStore, service: TimerMessageService) -> None:
    store.dispatch()
    while service.work() == 0:
        pass


def _message(number: int, first_ms: int, body: bytes) -> StoreMessage:
    properties = {
        "UNIQ_KEY": f"7F000001000A{number:020X}",
        "TAGS": "TagA",
        "WAIT": "true",
        "TIMER_DELAY_SEC": "60",
        "TIMER_OUT_MS": str(first_ms + number // PER_SECOND * STEP_MS - STEP_MS),
        "REAL_TOPIC": TOPIC,
        "REAL_QID": str(number % QUEUES),
    }
    text = encode_properties(properties)
    return StoreMessage(b"rmq_sys_wheel_timer", 0, body, text, 0, HOST, store_host=HOST)


async def _lateness(namesrv: str, first_ms: int, seconds: int) -> tuple[list[int], list[int]]:
    """Returns, for each message, the milliseconds from its due time until it was stored for consumers, and until a
    consumer got it.
    """
    end_ms = first_ms + seconds * STEP_MS
    pulled: list[tuple[int, bytes]] = []

    async def follow(consumer: PullConsumer, queue: MessageQueue) -> None:
        queue_offset = await consumer.max_offset(queue)
        while time.time() * 1000 < end_ms:
            result = await consumer.pull_raw(queue, queue_offset, suspend_timeout_ms=1000)
            if result.body:
                pulled.append((int(time.time() * 1000), bytes(result.body)))
            queue_offset = result.next_begin_offset

    async with PullConsumer("bench_delay_group", namesrv) as consumer:
        await asyncio.gather(*(follow(consumer, queue) for queue in await consumer.message_queues(TOPIC)))
    stored_ms, arrived_ms = [], []
    for at_ms, body in pulled:
        for message in decode_messages(body):
            due_ms = int(message.properties.get("TIMER_OUT_MS", "0")) + STEP_MS
            if first_ms <= due_ms < end_ms:
                stored_ms.append(message.store_timestamp_ms - due_ms)
                arrived_ms.append(at_ms - due_ms)
    return stored_ms, arrived_ms
