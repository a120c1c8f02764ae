"""Directories with waiting messages, passed from one broker to another: ``python -m tests.conformance.store.pending``.

Our broker accepts messages that wait for a delay level or a time, half messages, a message that a consumer sent back,
and popped messages; then it is stopped or killed. The official broker then opens the directory and must complete all
of them. Then the roles are reversed. Exit status: 0 if all passed, 1 if one failed, 2 if the set-up failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from tools.peers.packages import PeerError
from tools.peers.servers import JavaServers, RucolaServers, Servers
from tools.peers.wire import SEND_MESSAGE_V2, Link, call, make_topic

from rucola import PullConsumer
from rucola.common.message import MessageExt
from rucola.errors import RucolaError

TOPIC, GROUP, PRODUCERS = "handed_over", "handed_over_group", "handed_over_producers"
POPPED_TOPIC = "handed_over_popped"
KINDS: dict[str, type[Servers]] = {"rucola": RucolaServers, "java": JavaServers}
PENDING_MS = 25_000
"""Time from the sends until waiting messages are due; long enough for the second broker to start."""
PENDING_LEVEL = 2
SETTINGS = {
    "messageDelayLevel": f"1s {PENDING_MS // 1000}s",
    "transactionTimeOut": PENDING_MS,
    "transactionCheckInterval": 2000,
    "transactionOpBatchInterval": 300,
    "reviveInterval": 1000,
}
SETTLED_S = 6.0
"""Time after which the progress of either broker is on the disk, because both write offsets every 5 s and outcomes of
transactions every 0.3 s.
"""
PATIENCE_S = 90.0
HALF, COMMIT, ROLLBACK = 4, 8, 12
PULL_OFFSET, UPDATE_OFFSET, SEND_BACK, HEART_BEAT, END_TRANSACTION, CHECK_TRANSACTION = 14, 15, 36, 34, 37, 39
UPDATE_GROUP, POP_MESSAGE, ACK_MESSAGE = 200, 200050, 200051
AT_ONCE = "delayed, came before"
"""Body of the message that may be delivered again after a kill, because the progress of delay levels is written only
every 10 s.
"""


@dataclass
class Expected:
    """The messages that the second broker must have at the end: their bodies by topic, the earliest delivery time of
    each body, and the bodies that must never arrive.
    """

    bodies: dict[str, list[str]] = field(default_factory=dict)
    due_ms: dict[str, int] = field(default_factory=dict)
    never: list[str] = field(default_factory=list)

    def add(self, body: str, due_ms: int = 0, topic: str = TOPIC) -> None:
        """Adds a message that must be delivered once."""
        self.bodies.setdefault(topic, []).append(body)
        self.due_ms[body] = due_ms


def main() -> int:
    """Runs both directions, each after a clean stop and after a kill; two run at a time, because they mostly wait."""
    console = Console()
    runs = [(*direction, killed) for direction in (("rucola", "java"), ("java", "rucola")) for killed in (False, True)]
    failed = 0
    try:
        with ThreadPoolExecutor(2) as pool:
            for (first, second, killed), problems in zip(
                runs, pool.map(lambda run: list(hand_over(*run)), runs), strict=True
            ):
                name = f"{first}, {'killed' if killed else 'stopped'}, then {second}"
                console.print(f"{name}: {'; '.join(problems) or 'passed'}", highlight=False)
                failed += bool(problems)
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def hand_over(first: str, second: str, killed: bool) -> Iterator[str]:
    """Starts a broker of the second kind on the directory of a broker of the first kind; yields the differences between
    the delivered and the expected messages.
    """
    with TemporaryDirectory(prefix="rucola-pending-") as directory:
        store = Path(directory) / "store"
        with KINDS[first](store=store, settings=SETTINGS) as servers:
            expected = prepare(servers)
            yield from (f"{first}: {problem}" for problem in differences(servers, expected, before(expected), killed))
            time.sleep(SETTLED_S)
            if killed:
                for pid in servers.pids:
                    os.kill(pid, signal.SIGKILL)
        with KINDS[second](store=store, settings=SETTINGS) as servers:
            asked = decide(servers, expected)
            yield from differences(servers, expected, expected.bodies, killed)
            if asked != ["half, asked and committed", "half, asked and rolled back"]:
                yield f"{second} asked about {asked}"
            offset = fields(servers, PULL_OFFSET, consumerGroup=GROUP, topic=TOPIC, queueId=0).get("offset")
            if offset != "2":
                yield f"{second} has the consumer offset {offset}"


def before(expected: Expected) -> dict[str, list[str]]:
    """Returns the messages that must be delivered before the second broker gets the directory: those without delay."""
    return {TOPIC: [body for body in expected.bodies[TOPIC] if not expected.due_ms[body]]}


def prepare(servers: Servers) -> Expected:
    """Sends messages that wait in every possible way (delayed, half, popped, ...); returns the expected deliveries."""
    expected = Expected()
    for topic in (TOPIC, POPPED_TOPIC):
        make_topic(servers.namesrv, servers.broker, topic, 1)
    call(servers.broker, UPDATE_GROUP, {}, json.dumps({"groupName": GROUP, "retryMaxTimes": 5}).encode())
    now_ms = int(time.time() * 1000)
    due_ms = now_ms + PENDING_MS
    for body, properties, body_due_ms in (
        ("consumed and sent back", {}, 0),
        (AT_ONCE, {"DELAY": "1"}, 0),
        ("timed, came before", {"TIMER_DELIVER_MS": str(now_ms + 1500)}, 0),
        ("delayed", {"DELAY": str(PENDING_LEVEL)}, due_ms),
        ("delayed, of the highest level", {"DELAY": "9"}, due_ms),
        ("timed, one", {"TIMER_DELIVER_MS": str(due_ms)}, due_ms),
        ("timed, two in the same second", {"TIMER_DELIVER_MS": str(due_ms)}, due_ms),
        ("timed, later", {"TIMER_DELIVER_MS": str(due_ms + 3000)}, due_ms + 3000),
    ):
        sent = send(servers, body, properties)
        expected.add(body, body_due_ms)
        if body == "consumed and sent back":
            origin = int(sent["msgId"][-16:], 16)
    send(servers, "withdrawn", {"TIMER_DELIVER_MS": str(due_ms)})
    withdrawal = {"TIMER_DELIVER_MS": str(due_ms), "TIMER_DEL_UNIQKEY": f"{TOPIC}+key of withdrawn"}
    send(servers, "withdraws", withdrawal)
    expected.never += ["withdrawn", "withdraws"]
    send_back(servers, origin)
    expected.add("consumed and sent back", due_ms, f"%RETRY%{GROUP}")
    expected.due_ms["consumed and sent back"] = 0
    fields(servers, UPDATE_OFFSET, consumerGroup=GROUP, topic=TOPIC, queueId=0, commitOffset=2)
    prepare_halves(servers, expected)
    pop(servers, expected)
    return expected


def prepare_halves(servers: Servers, expected: Expected) -> None:
    """Sends four half messages: two are committed or rolled back now, the others when the broker checks them."""
    for body, decision in (
        ("half, committed", COMMIT),
        ("half, rolled back", ROLLBACK),
        ("half, asked and committed", 0),
        ("half, asked and rolled back", 0),
    ):
        sent = send(servers, body, {"TRAN_MSG": "true", "PGROUP": PRODUCERS}, flag=HALF)
        if decision:
            place = int(sent["msgId"][-16:], 16)
            end_transaction(
                lambda code, names: fields(servers, code, **names), body, place, sent["queueOffset"], decision
            )
    expected.add("half, committed")
    expected.add("half, asked and committed", 1)
    expected.never += ["half, rolled back", "half, asked and rolled back"]


def pop(servers: Servers, expected: Expected) -> None:
    """Sends two messages, pops both and acknowledges one of them."""
    for body in ("popped and acknowledged", "popped"):
        send(servers, body, {}, topic=POPPED_TOPIC)
    fields(servers, UPDATE_OFFSET, consumerGroup=GROUP, topic=POPPED_TOPIC, queueId=0, commitOffset=1)
    answer = fields(
        servers, POP_MESSAGE, consumerGroup=GROUP, topic=POPPED_TOPIC, queueId=0, maxMsgNums=2,
        invisibleTime=PENDING_MS, pollTime=0, bornTime=int(time.time() * 1000), initMode=0, order="false",
    )  # fmt: skip
    start = answer["startOffsetInfo"].split(" ")[2]
    words = [start, answer["popTime"], answer["invisibleTime"], answer["reviveQid"], "0", "broker-a", "0", "1"]
    fields(
        servers, ACK_MESSAGE, consumerGroup=GROUP, topic=POPPED_TOPIC, queueId=0, extraInfo=" ".join(words), offset=1
    )
    expected.add("popped", int(answer["popTime"]) + PENDING_MS, f"%RETRY%{GROUP}_{POPPED_TOPIC}")
    expected.never.append("popped and acknowledged")


def decide(servers: Servers, expected: Expected) -> list[str]:
    """Runs a producer that responds to transaction checks; returns the body of each checked message once."""
    keys = {f"key of {body}": body for body in expected.bodies[TOPIC] + expected.never}
    asked: set[str] = set()
    beat = {"clientID": "producer@1", "producerDataSet": [{"groupName": PRODUCERS}], "consumerDataSet": []}
    deadline = time.monotonic() + PATIENCE_S
    with Link(servers.broker) as link:
        while len(asked) < 2 and time.monotonic() < deadline:
            link.request(HEART_BEAT, {}, json.dumps(beat).encode())
            for question in link.asked(1.0):
                names = question["extFields"]
                body = keys[names["msgId"]]
                asked.add(body)
                decision = ROLLBACK if body.endswith("rolled back") else COMMIT
                place, half_offset = int(names["commitLogOffset"]), names["tranStateTableOffset"]
                end_transaction(link.request, body, place, half_offset, decision, asked=True)
    return sorted(asked)


def end_transaction(
    request: Callable[[int, dict[str, Any]], object], body: str, place: int, half_offset: str, decision: int,
    asked: bool = False,
) -> None:  # fmt: skip
    """Commits or rolls back a half message."""
    names = {"producerGroup": PRODUCERS, "topic": TOPIC, "tranStateTableOffset": half_offset, "commitLogOffset": place,
             "commitOrRollback": decision, "fromTransactionCheck": str(asked).lower(), "msgId": f"key of {body}",
             "transactionId": f"key of {body}"}  # fmt: skip
    request(END_TRANSACTION, names)


def send_back(servers: Servers, physical_offset: int) -> None:
    """Sends a message back, like a consumer that failed to consume it; it is then delayed by ``PENDING_LEVEL``."""
    fields(
        servers, SEND_BACK, offset=physical_offset, group=GROUP, delayLevel=PENDING_LEVEL, originMsgId="key",
        originTopic=TOPIC, unitMode="false", maxReconsumeTimes=5,
    )  # fmt: skip


def send(servers: Servers, body: str, properties: dict[str, str], flag: int = 0, topic: str = TOPIC) -> dict[str, str]:
    """Sends a message without a client library; returns the fields of the response."""
    properties = {"UNIQ_KEY": f"key of {body}", "TAGS": "TagA", **properties}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return fields(
        servers, SEND_MESSAGE_V2, body.encode(), a=PRODUCERS, b=topic, c="TBW102", d=1, e=0, f=flag,
        g=int(time.time() * 1000), h=0, i=text, j=0, k="false", m="false",
    )  # fmt: skip


def fields(servers: Servers, code: int, body: bytes = b"", /, **names: object) -> dict[str, str]:
    """Sends a request that must succeed; returns the fields of the response."""
    answer: dict[str, Any] = call(servers.broker, code, names, body)
    if answer["code"] != 0:
        raise PeerError(f"{servers.name}: request {code} was refused: {answer}")
    return answer.get("extFields") or {}


def differences(servers: Servers, expected: Expected, wanted: dict[str, list[str]], killed: bool) -> Iterator[str]:
    """Waits until the topics have all messages in ``wanted``, or for a limited time; yields the differences."""
    deadline = time.monotonic() + PATIENCE_S
    for topic, bodies in wanted.items():
        while True:
            found = asyncio.run(read(servers.namesrv, topic))
            if set(bodies) <= {message.body.decode() for message in found} or time.monotonic() > deadline:
                break
            time.sleep(0.3)
    time.sleep(2.5)  # an extra message would arrive within this time
    for topic, bodies in wanted.items():
        found = [message for message in asyncio.run(read(servers.namesrv, topic)) if message.tags != "Setup"]
        counts = Counter(message.body.decode() for message in found)
        for body in {*counts, *bodies}:
            again = killed and body == AT_ONCE and counts[body] > 1
            if counts[body] != bodies.count(body) and not again:
                yield f"{servers.name}: {topic} has {body!r} {counts[body]} times"
        for message in found:
            early_ms = expected.due_ms.get(message.body.decode(), 0) - message.store_timestamp_ms
            if early_ms > 0:
                yield f"{servers.name}: {message.body!r} came {early_ms} ms early"
            if topic.startswith("%RETRY%") and message.reconsume_times != 1:
                yield f"{servers.name}: {message.body!r} was tried {message.reconsume_times} times"


async def read(namesrv: str, topic: str) -> list[MessageExt]:
    """Returns all messages of a topic; an empty list while there is no route."""
    found: list[MessageExt] = []
    async with PullConsumer("handed_over_reader", namesrv) as consumer:
        try:
            queues = await consumer.message_queues(topic)
        except RucolaError:
            return []
        for queue in queues:
            queue_offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while queue_offset < end:
                result = await consumer.pull(queue, queue_offset)
                found += result.messages
                queue_offset = result.next_begin_offset
    return found


if __name__ == "__main__":
    sys.exit(main())
