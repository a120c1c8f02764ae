"""The curve of a broker's age: mixed work for an hour, measured in slices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tools.peers.servers import Servers

from bench.growth_curves import Growth, Point, point_of
from bench.growth_live import of_one_queue, running, sends
from bench.program import Program, Round, python_load

TURN_S = 2.0
SENT, POPPED, DELIVERED, GROUPS, CLIENTS = 10_000, 800, 320, 10, 50
"""What happens every ``TURN_S``: messages are sent, others are popped and acknowledged, others go to all groups; and
every ``CLIENTS_S``, clients connect, send a heartbeat and leave.
"""
CLIENTS_S = 15.0


def age(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Works for an hour; yields a point for each slice, with its end in seconds as size. The costs are those of all
    messages together, and of the pauses between turns; the latency is that of sends.
    """
    slice_s = growth.age_minutes * 60 / len(sizes)
    with ExitStack() as stack:
        pair, sending = stack.enter_context(running(growth, server))
        popping = stack.enter_context(of_one_queue("load_pop", pair))
        delivering = stack.enter_context(of_one_queue("load_groups", pair))
        mixed = [(sending, sends(SENT, body=128)), (popping, f"{POPPED} 1"), (delivering, f"{DELIVERED} {GROUPS}")]
        for program, line in mixed * 3:
            program.round(line)
        begin = time.monotonic()
        for number in range(1, len(sizes) + 1):
            growth.show(f"age: {server}, slice {number} of {len(sizes)}, {slice_s / 60:g} minutes each")
            whole = _slice(pair, mixed, begin + number * slice_s)
            yield point_of(round(number * slice_s), [whole], pair)


def _slice(pair: Servers, mixed: Sequence[tuple[Program, str]], end: float) -> Round:
    """Works until ``end``; returns all rounds as one."""
    begin, used, messages, p99_us = time.monotonic(), pair.cpu_seconds(), 0, []
    clients_at = begin
    while (now := time.monotonic()) < end:
        if now >= clients_at:
            with python_load("load_crowd", pair.broker, str(CLIENTS), "0", "5", servers=pair):
                clients_at = now + CLIENTS_S
        done = [program.round(line) for program, line in mixed]
        messages += sum(each.messages for each in done)
        p99_us.append(done[0].extra["p99_us"])
        time.sleep(max(0.0, min(now + TURN_S, end) - time.monotonic()))
    middle = sorted(p99_us)[len(p99_us) // 2]
    return Round(messages, time.monotonic() - begin, 0.0, pair.cpu_seconds() - used, {"p99_us": middle})
