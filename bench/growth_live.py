"""Curves of a running broker: connections, topics, queues, groups, and messages that wait.

The broker of a curve grows while it runs. At the end, the smallest size is measured again: on the same broker if it can
shrink, otherwise on a new one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tools.peers.packages import PeerError
from tools.peers.servers import Servers, servers
from tools.peers.wire import call

from bench.growth_curves import ROUND_MAX_S, Growth, Point
from bench.load_lockstep import QUEUES_EACH
from bench.program import Program, python_load
from rucola.common.topic_config import TopicConfig
from rucola.protocol.bodies.configs import CreateTopicListRequestBody
from rucola.protocol.codes import RequestCode

PREFIX = "growth"
MEMBERS = 10
"""Number of clients that share their groups."""
TOPICS_PER_REQUEST = 2_000
FILL = 50_000
"""Number of messages that are sent before the time is looked at."""


def connections(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Sends while other clients are connected, which send a heartbeat every 30 s."""
    settings: dict[str, object] = {"connectionsMax": max(sizes) + 100} if server == "rucola" else {}
    with running(growth, server, settings) as (pair, program):
        connected = 0
        with ExitStack() as crowds:
            for size in sizes:
                growth.show(f"connections: {server}, {size:,}")
                crowds.enter_context(_crowd(pair, size - connected, connected))
                connected = size
                growth.wait_quiet(pair, f"with {size:,} connections")
                yield growth.point(pair, program, size, sends)
        with _crowd(pair, sizes[0], 0):
            growth.wait_quiet(pair, "at the end")
            yield growth.point(pair, program, sizes[0], sends)


def topics(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Sends to one topic while the broker has others, of 8 queues each."""
    for part in (sizes, sizes[:1]):
        with running(growth, server) as (pair, program):
            made = 1
            for size in part:
                growth.show(f"topics: {server}, {size:,}")
                for first in range(made, size, TOPICS_PER_REQUEST):
                    growth.check_time(f"while {size:,} topics were made")
                    names = (f"topic{number:06}" for number in range(first, min(size, first + TOPICS_PER_REQUEST)))
                    make_topics(pair.broker, [TopicConfig(name, 8, 8) for name in names])
                made = size
                growth.wait_quiet(pair, f"with {size:,} topics")
                yield growth.point(pair, program, size, sends)


def queues(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Sends to queues in turn."""
    with running(growth, server) as (pair, program):
        topics = range(1, -(-max(sizes) // QUEUES_EACH))
        make_topics(pair.broker, [TopicConfig(f"{PREFIX}{number}", QUEUES_EACH, QUEUES_EACH) for number in topics])
        for size in (*sizes, sizes[0]):
            growth.show(f"queues: {server}, {size:,}")

            def work(messages: int, size: int = size) -> str:
                return sends(messages, queues=size)

            program.round(work(size), ROUND_MAX_S)
            growth.wait_quiet(pair, f"with {size:,} queues")
            yield growth.point(pair, program, size, work, pilot=max(2_000, size))


def groups(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Delivers each message to all groups, whose pulls wait for it."""
    with (
        running(growth, server) as (pair, _),
        of_one_queue("load_groups", pair) as program,
    ):
        for size in (*sizes, sizes[0]):
            growth.show(f"groups: {server}, {size:,}")
            yield growth.point(pair, program, size, f"{{}} {size}".format, pilot=max(160, 2_000 // size))


def delayed(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Sends while delayed messages wait, which are due in 1 to 24 hours."""
    for part in (sizes, sizes[:1]):
        with running(growth, server) as (pair, program):
            waiting = 0
            for size in part:
                growth.show(f"delayed: {server}, {size:,}")
                while waiting < size:
                    growth.check_time(f"with {waiting:,} delayed messages")
                    count = min(FILL, size - waiting)
                    program.round(sends(count, delayed=True, body=128), ROUND_MAX_S)
                    waiting += count
                growth.wait_quiet(pair, f"with {size:,} delayed messages")
                yield growth.point(pair, program, size, sends)


def pops(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Sends, pops and acknowledges messages of a group that has others without an acknowledgement."""
    for part in (sizes, sizes[:1]):
        with (
            running(growth, server) as (pair, _),
            of_one_queue("load_pop", pair) as program,
        ):
            program.round("1600 1", ROUND_MAX_S)
            left = 0
            for size in part:
                growth.show(f"pops: {server}, {size:,}")
                while left < size:
                    growth.check_time(f"with {left:,} unacknowledged messages")
                    left += program.round(f"{min(FILL, size - left)} 0", ROUND_MAX_S).messages
                growth.wait_quiet(pair, f"with {size:,} unacknowledged messages")
                yield growth.point(pair, program, size, "{} 1".format, pilot=320)


@contextmanager
def running(
    growth: Growth, server: str, settings: dict[str, object] | None = None
) -> Iterator[tuple[Servers, Program]]:
    """Runs servers with the first topic, and a load program that has warmed them up."""
    with servers(server, settings=settings) as pair:
        make_topics(pair.broker, [TopicConfig(f"{PREFIX}0", QUEUES_EACH, QUEUES_EACH)])
        with python_load("load_lockstep", pair.broker, PREFIX, servers=pair) as program:
            growth.warm(pair, program, sends)
            yield pair, program


def of_one_queue(module: str, pair: Servers) -> Program:
    """Starts a load program with a topic of its own."""
    make_topics(pair.broker, [TopicConfig(f"{module}0", 1, 1)])
    return python_load(module, pair.broker, module, servers=pair)


def sends(messages: int, **changes: object) -> str:
    """Returns the input line of ``load_lockstep``: fields of its ``Work``."""
    return json.dumps({"messages": messages, **changes})


def make_topics(broker: str, configs: Sequence[TopicConfig]) -> None:
    """Makes topics.

    Raises:
        PeerError: the broker refused them.
    """
    if configs:
        body = CreateTopicListRequestBody(list(configs)).encode()
        answer = call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
        if answer["code"] != 0:
            raise PeerError(f"{len(configs)} topics could not be created: {answer}")


def _crowd(pair: Servers, clients: int, first: int) -> Program:
    return python_load("load_crowd", pair.broker, str(clients), str(first), str(MEMBERS), servers=pair)
