"""A remoting and a gRPC push consumer in one group: ``python -m tests.conformance.grpc.mixed_group [--peer PEER]``.

1,000 messages are sent at a steady rate. After a third the gRPC consumer is killed and started again, after two thirds
the remoting one. Prints who received how many messages, how many came twice, and the offsets at rest. A peer that is an
address is ``GRPC/BROKER/NAMESRV``, each as ``host:port``. Exit status: 0 if no message was lost, else 1; 2 if the
set-up failed.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests.conformance.grpc.client_process import ClientProcess
from tests.conformance.grpc.scenarios import Admin
from tests.conformance.grpc.targets import Target, target_of
from tools.peers.packages import PEERS, SERVER_VERSION, PeerError, java_program, need
from tools.peers.wire import call

from rucola.sync import Message, Producer

HERE = Path(__file__).resolve().parent
QUERY_CONSUMER_OFFSET, GET_MAX_OFFSET = 14, 30
QUEUES = 4
QUIET_S, PATIENCE_S = 45.0, 300.0


class Member(ClientProcess):
    """A consumer process; ``bodies`` are the messages that it printed."""

    def __init__(self, name: str, command: list[str]) -> None:
        super().__init__(name, command)
        self.bodies: list[str] = []
        self.attempts: Counter[str] = Counter()  # gRPC: the delivery attempt, remoting: the queue
        self.killed_at = 0
        self.start()

    def heard(self, kind: str, rest: str) -> None:
        """See ``ClientProcess``."""
        if kind == "G":
            body, attempt, *_ = rest.split()
            self.bodies.append(body)
            self.attempts[attempt] += 1

    def kill(self) -> None:
        """See ``ClientProcess``."""
        super().kill()
        self.killed_at = len(self.bodies)


def main(arguments: list[str]) -> int:
    """Runs the group once."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.grpc.mixed_group", description=__doc__)
    parser.add_argument("--peer", default="official")
    parser.add_argument("--version", default=SERVER_VERSION, help="version of the official servers")
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=30, help="messages a second")
    options = parser.parse_args(arguments)
    try:
        with target_of(options.peer, options.version) as target:
            return run(target, options.messages, options.rate)
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2


def run(target: Target, messages: int, rate: int) -> int:
    """Sends, kills and waits; prints what was seen."""
    stamp = f"{int(time.time()):x}"
    topic, group = f"T_mixed_{stamp}", f"G_mixed_{stamp}"
    admin = Admin(target.broker)
    admin.topic(topic, "NORMAL", QUEUES)
    admin.group(group, False, 16)
    java = need("java", "install Java 17 to run the official Java client")
    options = ["-Xmx256m", f"-Duser.home={PEERS}", "-Drocketmq.client.logLevel=ERROR"]
    classpath = java_program(HERE.parent / "java", SERVER_VERSION)
    members = [
        Member("gRPC", [sys.executable, str(HERE / "member.py"), target.endpoints, group, topic]),
        Member(
            "remoting",
            [java, *options, "-cp", classpath, "scenarios.Sharing", target.namesrv, group, topic, "AVG", "concurrent"],
        ),
    ]
    try:
        send(target.namesrv, topic, messages, rate, members)
        wait(members, messages)
    finally:
        for member in members:
            member.kill()
    return report(target.broker, topic, group, messages, members)


def send(namesrv: str, topic: str, messages: int, rate: int, members: list[Member]) -> None:
    """Sends at a steady rate; kills and restarts each consumer once."""
    with Producer("G_mixed_producer", namesrv) as producer:
        for i in range(messages):
            producer.send(Message(topic, f"m{i:05}".encode()))
            time.sleep(1 / rate)
            for number, member in enumerate(members, 1):
                if i == number * messages // 3:
                    member.kill()
                    print(f"message {i}: {member.name} consumer killed after {member.killed_at} messages", flush=True)
                    threading.Timer(3, member.start).start()


def wait(members: list[Member], messages: int) -> None:
    """Waits until all messages came and nothing came for a while, or patience ends."""
    deadline, quiet, before = time.monotonic() + PATIENCE_S, time.monotonic(), -1
    while time.monotonic() < deadline and time.monotonic() - quiet < QUIET_S:
        count = sum(len(member.bodies) for member in members)
        if count != before or len({body for member in members for body in member.bodies}) < messages:
            quiet = time.monotonic() if count != before else quiet
            before = count
        time.sleep(0.5)


def report(broker: str, topic: str, group: str, messages: int, members: list[Member]) -> int:
    """Prints the table; returns the exit status."""
    counts = Counter(body for member in members for body in member.bodies)
    lost = messages - len(counts)
    for member in members:
        distinct = len(set(member.bodies))
        line = f"{member.name:9} {len(member.bodies):5} deliveries, {distinct:5} messages"
        what = "attempts" if member.name == "gRPC" else "queues"
        print(f"{line}; {what}: {dict(sorted(member.attempts.items()))}")
    both = len(set(members[0].bodies) & set(members[1].bodies))
    print(f"messages {messages}, lost {lost}, delivered twice or more {sum(n > 1 for n in counts.values())}, ", end="")
    print(f"by both {both}, most deliveries of one {max(counts.values(), default=0)}")
    retry = (f"%RETRY%{group}", f"%RETRY%{group}_{topic}")
    for name, queues in ((topic, QUEUES), *((name, 1) for name in retry)):
        for number in range(queues):
            largest = offset(broker, GET_MAX_OFFSET, topic=name, queueId=number)
            reached = offset(broker, QUERY_CONSUMER_OFFSET, topic=name, queueId=number, consumerGroup=group)
            print(f"{name} queue {number}: max offset {largest}, consumer offset {reached}")
    return 1 if lost else 0


def offset(broker: str, code: int, **fields: object) -> int | None:
    """An offset of the broker; None if there is none."""
    answer = call(broker, code, dict(fields))
    return int(answer["extFields"]["offset"]) if answer["code"] == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
