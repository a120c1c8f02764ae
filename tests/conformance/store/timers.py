"""Directories with messages that wait for a time, handed over: ``python -m tests.conformance.store.timers``.

Our broker takes timed messages, delivers some, and is stopped or killed; the official broker opens the directory and
delivers the rest. Then the other way round. Exit status: 0 all passed, 1 one failed, 2 set-up failed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from tools.peers.packages import PeerError
from tools.peers.servers import JavaServers, RucolaServers, Servers
from tools.peers.wire import SEND_MESSAGE_V2, call, make_topic

from rucola import PullConsumer
from rucola.common.message import MessageExt

TOPIC = "handed_over"
KINDS: dict[str, type[Servers]] = {"rucola": RucolaServers, "java": JavaServers}
PENDING_MS = 20_000
"""From the sends until the pending messages are due: the second broker runs by then."""
PATIENCE_S = 60.0


def main() -> int:
    """Run both directions, each after a clean stop and after a kill."""
    console = Console()
    failed = 0
    try:
        for first, second in (("rucola", "java"), ("java", "rucola")):
            for killed in (False, True):
                problems = list(hand_over(first, second, killed))
                name = f"{first}, {'killed' if killed else 'stopped'}, then {second}"
                console.print(f"{name}: {'; '.join(problems) or 'passed'}", highlight=False)
                failed += bool(problems)
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def hand_over(first: str, second: str, killed: bool) -> Iterator[str]:
    """What is wrong with the messages that the second broker has in the end."""
    with TemporaryDirectory(prefix="rucola-timers-") as directory:
        store = Path(directory) / "store"
        with KINDS[first](store=store) as servers:
            make_topic(servers.namesrv, servers.broker, TOPIC, 1)
            due_ms = {"delivered before": int(time.time() * 1000) + 1500}
            pending_ms = int(time.time() * 1000) + PENDING_MS
            due_ms.update({"same second one": pending_ms, "same second two": pending_ms, "later": pending_ms + 3000})
            for body, time_ms in due_ms.items():
                send(servers, body, time_ms)
            send(servers, "withdrawn", pending_ms)
            send(servers, "withdraws", pending_ms, TIMER_DEL_UNIQKEY=f"{TOPIC}+key of withdrawn")
            found = wait_for(servers, {"delivered before"})
            if "delivered before" not in [message.body.decode() for message in found]:
                yield f"{first} did not deliver"
            time.sleep(3)  # its progress is on the disk
            if killed:
                for pid in servers.pids:
                    os.kill(pid, signal.SIGKILL)
        with KINDS[second](store=store) as servers:
            found = wait_for(servers, set(due_ms))
            time.sleep(2)
            found = wait_for(servers, set(due_ms))
        bodies = [message.body.decode() for message in found if message.tags != "Setup"]
        if sorted(bodies) != sorted(due_ms):
            yield f"{second} has {bodies}"
        for message in found:
            early_ms = due_ms.get(message.body.decode(), 0) - message.store_timestamp_ms
            if early_ms > 0:
                yield f"{message.body!r} came {early_ms} ms early"


def send(servers: Servers, body: str, due_ms: int, **more: str) -> None:
    """A message by hand, due at a wall-clock time."""
    properties = {"UNIQ_KEY": f"key of {body}", "TAGS": "TagA", "TIMER_DELIVER_MS": str(due_ms), **more}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {"a": "sender", "b": TOPIC, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": int(time.time() * 1000),
              "h": 0, "i": text, "j": 0, "k": "false", "m": "false"}  # fmt: skip
    answer = call(servers.broker, SEND_MESSAGE_V2, dict(fields), body.encode())
    if answer["code"] != 0:
        raise PeerError(f"{body} was refused: {answer}")


def wait_for(servers: Servers, bodies: set[str]) -> list[MessageExt]:
    """All messages of the topic, once all of ``bodies`` are among them or patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = asyncio.run(read(servers.namesrv))
        if bodies <= {message.body.decode() for message in found} or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


async def read(namesrv: str) -> list[MessageExt]:
    """All messages of the topic."""
    found: list[MessageExt] = []
    async with PullConsumer("handed_over_reader", namesrv) as consumer:
        for queue in await consumer.message_queues(TOPIC):
            queue_offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while queue_offset < end:
                result = await consumer.pull(queue, queue_offset)
                found += result.messages
                queue_offset = result.next_begin_offset
    return found


if __name__ == "__main__":
    sys.exit(main())
