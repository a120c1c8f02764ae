"""Two doors behind a TCP balancer, killed in turn: ``python -m tests.conformance.grpc.two_doors [--seconds 60]``.

Official clients, unmodified, send and consume through a balancer that moves their connections at random between two
``rucola proxy`` in front of two brokers. Every ten seconds one of the proxies is killed with SIGKILL and started again.
The Python client sends plain messages and transactions, and consumes with acknowledgements, changes of the invisible
time, and by push, in order, too; the Java client sends transactions, answers the brokers' checks and consumes by push.

Every confirmed message must reach every group, what was committed must arrive, what was rolled back must never arrive,
no transaction may stay undecided or be given up, and no message may overtake one of its message group. It is told how
many messages came again, and how long messages stayed hidden beyond their invisible time. Exit status: 0 if all of that
holds, 1 if not, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from tests.conformance.grpc.balancer import Balancer
from tests.conformance.grpc.client_process import START_S, ClientProcess
from tests.conformance.grpc.ledger import ORDERED, GroupLedger, Ledger, rolls_back, spread
from tests.conformance.grpc.scenarios import SETTINGS, Admin
from tools.peers.packages import PEERS, PeerError, java_program, need
from tools.peers.servers import OURS, JavaServers, Servers, facts_of, port_of
from tools.peers.wire import call

HERE = Path(__file__).resolve().parent
JAVA_VERSION = "5.2.0"
PLAIN, TRANSACTIONS, FIFO = "T_plain", "T_transactions", "T_fifo"
SIMPLE, PUSH, JAVA, IN_ORDER = "G_simple", "G_push", "G_java", "G_in_order"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
QUEUES, SENDERS, RECEIVERS = 4, 4, 8
FATES = ("commit", "rollback", "commit-later", "rollback-later")
INVISIBLE_S, SHORT_S = 10, 3
SHOWN = 10
KILL_S, CUT_S, PATIENCE_S = 10.0, 1.5, 150.0
UPDATE_CONSUMER_OFFSET, GET_MAX_OFFSET = 15, 30


class TwoDoors(Servers):
    """Two proxies of ours, in front of a name server and two brokers of ours, or of official servers.

    Attributes:
        brokers: addresses of the brokers.
        doors: addresses of the proxies.
    """

    name = "two doors"

    def __init__(self, official: Servers | None) -> None:
        super().__init__(settings=SETTINGS)
        self._official = official
        self.brokers: list[str] = []
        self.doors: list[str] = []
        self._metrics: list[str] = []
        self._running: list[subprocess.Popen[bytes]] = []

    def _start(self) -> None:
        if self._official is None:
            self._start_brokers()
        else:
            self.namesrv, self.brokers = self._official.namesrv, [self._official.broker]
        for number in range(2):
            self.doors.append("")
            self._running.append(self._open(number))

    def _start_brokers(self) -> None:
        self.namesrv = self._rucola("namesrv", "--port", "0")[1]["namesrv"]
        for name in "ab":
            self._configure(
                f"{name}.conf",
                brokerName=name,
                listenPort=0,
                namesrvAddr=self.namesrv,
                storePathRootDir=self._temporary / name,
                **self.settings,
            )
            facts = self._rucola("broker", "--config", f"{name}.conf", "--http-port", "0")[1]
            self.brokers.append(facts["brokers"][0])
            self._metrics.append(facts["http"])

    def replace(self, number: int) -> None:
        """Kills a proxy and starts it again, on the same port."""
        killed = self._running[number]
        killed.kill()
        killed.wait()
        assert killed.stdout is not None
        killed.stdout.close()
        self._processes.remove(killed)
        self._running[number] = self._open(number)

    def undecided(self) -> int:
        """Half messages without an outcome; official brokers do not say."""
        total = 0.0
        for address in self._metrics:
            with urllib.request.urlopen(f"http://{address}/metrics") as answer:
                lines = answer.read().decode().splitlines()
            total += sum(float(line.split()[-1]) for line in lines if line.startswith("rocketmq_half_messages"))
        return int(total)

    def given_up(self) -> int:
        """Half messages of which the brokers have stopped to ask."""
        answers = (call(broker, GET_MAX_OFFSET, {"topic": GIVEN_UP, "queueId": 0}) for broker in self.brokers)
        return sum(int(answer.get("extFields", {}).get("offset", 0)) for answer in answers)

    def _open(self, number: int) -> subprocess.Popen[bytes]:
        port = str(port_of(self.doors[number]))
        process, facts = self._rucola("proxy", "-n", self.namesrv, "--port", port, log=f"door-{number}")
        self.doors[number] = facts["grpc"]
        return process

    def _rucola(self, *command: str, log: str = "servers") -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        whole = [sys.executable, "-m", "rucola", *command, "--json"]
        process = self._spawn(whole, f"{log}.log", OURS, capture=True)
        return process, facts_of(process, self)


class PythonClients:
    """The official Python client in all its kinds."""

    def __init__(self, endpoints: str, ledger: Ledger, rate: int) -> None:
        configuration = ClientConfiguration(endpoints, Credentials())
        subscription = {PLAIN: FilterExpression(), TRANSACTIONS: FilterExpression()}
        self._ledger, self._pause_s = ledger, SENDERS / rate
        self._is_sending = self._is_receiving = True
        self._producer = Producer(configuration, (PLAIN, TRANSACTIONS, FIFO), _Checker(ledger))
        self._simple = SimpleConsumer(configuration, SIMPLE, dict(subscription), 5)
        push = PushConsumer(configuration, PUSH, _Listener(ledger, PUSH), dict(subscription))
        in_order = PushConsumer(configuration, IN_ORDER, _Listener(ledger, IN_ORDER), {FIFO: FilterExpression()})
        self._clients = (self._producer, self._simple, push, in_order)
        self._senders = [threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)]
        self._senders += [threading.Thread(target=self._send_in_order, args=(f"{ORDERED}{name}",)) for name in "abc"]
        self._receivers = [threading.Thread(target=self._receive) for _ in range(RECEIVERS)]

    def start(self) -> None:
        """Starts clients and threads."""
        for client in self._clients:
            client.startup()
        for thread in (*self._senders, *self._receivers):
            thread.start()

    def stop_sending(self) -> None:
        """Returns when nothing more is sent."""
        self._is_sending = False
        for thread in self._senders:
            thread.join()

    def stop(self) -> None:
        """Ends all."""
        self._is_sending = self._is_receiving = False
        for thread in (*self._senders, *self._receivers):
            thread.join()
        for client in self._clients:
            client.shutdown()

    def _send(self, sender: int) -> None:
        """Three plain messages, then a transaction."""
        number = sender
        while self._is_sending:
            if number // SENDERS % 4:
                self._confirmed(PLAIN, f"python-{number}-plain")
            else:
                self._transact(f"python-{number}-{FATES[number // SENDERS // 4 % len(FATES)]}")
            number += SENDERS
            time.sleep(self._pause_s)

    def _send_in_order(self, name: str) -> None:
        """The messages of a message group, each when the one before it is confirmed."""
        number = 0
        while self._is_sending and self._confirmed(FIFO, f"{name}-{number}", name):
            number += 1
            time.sleep(self._pause_s)

    def _confirmed(self, topic: str, body: str, message_group: str = "") -> bool:
        message = Message()
        message.topic, message.body = topic, body.encode()
        if message_group:
            message.message_group = message_group
        is_sent = self._tried("send", lambda: self._producer.send(message))
        if is_sent:
            self._ledger.sent(body)
        return is_sent

    def _transact(self, body: str) -> None:
        transaction = self._producer.begin_transaction()
        message = Message()
        message.topic, message.body = TRANSACTIONS, body.encode()
        try:
            self._producer.send(message, transaction)
        except Exception as error:  # noqa: BLE001 - the door may be down
            self._ledger.failed("half message", error)
            return
        self._ledger.sent(body)
        if body.endswith("later"):
            return
        end = transaction.rollback if rolls_back(body) else transaction.commit
        if self._tried("end", end):
            self._ledger.ended.add(body)

    def _receive(self) -> None:
        while self._is_receiving:
            try:
                found = self._simple.receive(16, INVISIBLE_S)
            except Exception as error:  # noqa: BLE001 - the door may be down
                self._ledger.failed("receive", error)
                time.sleep(0.2)
                continue
            for message in found:
                self._handle(message)

    def _handle(self, message: Message) -> None:
        """Acknowledges a message, or does it at the second delivery, or changes its time before."""
        body = message.body.decode()
        is_first, group = self._ledger.delivered(SIMPLE, body, message.delivery_attempt), self._ledger.groups[SIMPLE]
        group.note(body, f"attempt {message.delivery_attempt}, {message.receipt_handle}")
        kind = int(body.split("-")[1]) % 20 if is_first else 0
        if kind == 7:
            group.hidden(body, INVISIBLE_S)
            return
        if kind in (13, 17):
            seconds = SHORT_S if kind == 13 else 2 * INVISIBLE_S
            if not self._changed(message, seconds):
                return
            group.note(body, f"changed: {message.receipt_handle}")
            if kind == 13:
                group.hidden(body, seconds)
                return
        if self._tried("ack", lambda: self._simple.ack(message), INVISIBLE_S / 2):
            group.acked(body)
            group.note(body, f"acknowledged: {message.receipt_handle}")
        else:
            group.note(body, "not acknowledged")

    def _changed(self, message: Message, seconds: int) -> bool:
        handle, tries = message.receipt_handle, itertools.count()

        def change() -> None:
            if next(tries):
                self._ledger.groups[SIMPLE].repeated.add(message.body.decode())
            message.receipt_handle = handle  # a call that fails takes it away
            self._simple.change_invisible_duration(message, seconds)

        return self._tried("change", change, INVISIBLE_S / 2)

    def _tried(self, what: str, act: Callable[[], object], patience_s: float = 30.0) -> bool:
        """Tries until it succeeds; returns False if it does not."""
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - the door may be down
                self._ledger.failed(what, error)
                time.sleep(0.2)
            else:
                return True
        return False


class _Checker(TransactionChecker):  # type: ignore[misc]  # the client has no types
    """Decides as the name of the message says."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def check(self, message: Message) -> TransactionResolution:
        body = message.body.decode()
        self._ledger.asked["Python"] += 1
        return TransactionResolution.ROLLBACK if rolls_back(body) else TransactionResolution.COMMIT


class _Listener(MessageListener):  # type: ignore[misc]  # the client has no types
    """Consumes everything."""

    def __init__(self, ledger: Ledger, group: str) -> None:
        self._ledger, self._group = ledger, group

    def consume(self, message: Message) -> ConsumeResult:
        self._ledger.delivered(self._group, message.body.decode(), message.delivery_attempt)
        return ConsumeResult.SUCCESS


class JavaClient(ClientProcess):
    """The official Java client, see ``Moving.java``."""

    def __init__(self, endpoints: str, ledger: Ledger, rate: int) -> None:
        java, classpath = need("java", "install Java 17"), java_program(HERE / "java", JAVA_VERSION)
        program = [java, "-Xmx256m", f"-Duser.home={PEERS}", "-cp", classpath, "scenarios.Moving"]
        super().__init__("Java client", [*program, endpoints, TRANSACTIONS, PLAIN, JAVA, str(rate)])
        self._ledger = ledger
        self._quiet = threading.Event()

    def stop_sending(self) -> None:
        """Returns when nothing more is sent."""
        self.say("")
        self._quiet.wait(START_S)

    def heard(self, kind: str, rest: str) -> None:
        """See ``ClientProcess``."""
        if kind == "Q":
            self._quiet.set()
        elif kind == "H":
            self._ledger.sent(rest)
        elif kind == "E":
            self._ledger.ended.add(rest)
        elif kind == "K":
            self._ledger.asked["Java"] += 1
        elif kind == "G":
            body, attempt = rest.split()
            self._ledger.delivered(JAVA, body, int(attempt))
        elif kind == "F":
            self._ledger.failures[f"Java: {rest}"] += 1


def prepare(servers: TwoDoors) -> None:
    """Creates topics and groups; all groups begin at the first message."""
    for broker in servers.brokers:
        admin = Admin(broker)
        admin.topic(PLAIN, "NORMAL", QUEUES)
        admin.topic(TRANSACTIONS, "TRANSACTION", QUEUES)
        admin.topic(FIFO, "FIFO", QUEUES)
        for group in (SIMPLE, PUSH, JAVA, IN_ORDER):
            admin.group(group, group == IN_ORDER, 16)
            for topic in (FIFO,) if group == IN_ORDER else (PLAIN, TRANSACTIONS):
                for queue in range(QUEUES):
                    fields = {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": 0}
                    call(broker, UPDATE_CONSUMER_OFFSET, fields)


def play(servers: TwoDoors, balancer: Balancer, ledger: Ledger, options: argparse.Namespace) -> int:
    """Sends while doors are killed, then waits until all is settled; returns the number of kills."""
    python = PythonClients(balancer.address, ledger, options.rate)
    java = JavaClient(balancer.address, ledger, max(1, options.rate // 4))
    balancer.cutting = False  # clients give up if their start is disturbed too often
    java.start()
    kills = 0
    try:
        python.start()
        balancer.cutting = True
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + options.seconds:
            time.sleep(options.kill_s)
            servers.replace(kills % 2)
            kills += 1
            print(
                f"{time.monotonic() - begun_s:5.0f} s: {kills} kills, {len(ledger.confirmed):,} confirmed", flush=True
            )
        python.stop_sending()
        java.stop_sending()
        balancer.cutting = False
        print(f"nothing more is sent; {servers.undecided()} transactions are open", flush=True)
        settle(servers, ledger)
    finally:
        java.kill()
        python.stop()
    return kills


def settle(servers: TwoDoors, ledger: Ledger) -> None:
    """Waits until every group has everything, and every transaction an outcome."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        open_ends = [ledger.missing(name) or group.still_hidden() for name, group in ledger.groups.items()]
        if not any(open_ends) and not servers.undecided():
            return
        time.sleep(0.5)


def report(servers: TwoDoors, balancer: Balancer, ledger: Ledger, kills: int) -> bool:
    """Prints what was seen; returns whether all promises were kept."""
    undecided, given_up = servers.undecided(), servers.given_up()
    kept = not undecided and not given_up
    print(f"{kills} kills, {balancer.cuts} cut connections, connections by door: {list(balancer.taken.values())}")
    for name, group in ledger.groups.items():
        missing, wrong, hidden = ledger.missing(name), ledger.wrong(name), group.still_hidden()
        after_ack = group.after_ack()
        kept &= not (missing or wrong or hidden or group.overtaken)
        again = sum(count - 1 for count in group.seen.values()) - len(group.copies)
        print(
            f"{name}: {len(group.seen):,} messages, {len(missing)} lost, {len(wrong)} rolled back and delivered, "
            f"{len(hidden)} hidden for ever, {len(group.overtaken)} out of order, {len(group.copies)} sent twice, "
            f"{again} came again, "
            f"{len(after_ack)} of them after a confirmed acknowledgement"
        )
        print(f"  hidden beyond the time (median / p99 / longest): {spread(group.late_s)} ({len(group.late_s)} times)")
        print(f"  from send to first delivery: {spread(group.first_s)}")
        found = {"lost": missing, "wrong": wrong, "hidden": hidden, "overtaken": group.overtaken}
        for what, bodies in {**found, "after ack": after_ack}.items():
            if bodies:
                print(f"  {what}: {' '.join(bodies)}")
                for body in bodies[:SHOWN]:
                    print(f"    {body}: {'; '.join(group.history[body])}")
    halves = [body for body in ledger.confirmed if "commit" in body or rolls_back(body)]
    print(
        f"{len(halves):,} transactions, {len(ledger.ended):,} ended by their producers, {undecided} undecided, "
        f"{given_up} given up; asked: {dict(ledger.asked)}"
    )
    print(f"failed calls: {dict(sorted(ledger.failures.items()))}")
    return kept


def main(arguments: list[str]) -> int:
    """Runs it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.grpc.two_doors", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long messages are sent")
    parser.add_argument("--rate", type=int, default=40, help="messages a second of the Python client")
    parser.add_argument("--kill-s", type=float, default=KILL_S, help="seconds between two kills")
    parser.add_argument("--cut-s", type=float, default=CUT_S, help="mean seconds between two cut connections")
    parser.add_argument("--official", action="store_true", help="in front of an official broker")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args(arguments)
    ledger = Ledger(*map(GroupLedger, (SIMPLE, PUSH, JAVA)), GroupLedger(IN_ORDER, in_order=True))
    try:
        with ExitStack() as stack:
            official = stack.enter_context(JavaServers(settings=SETTINGS)) if options.official else None
            servers = stack.enter_context(TwoDoors(official))
            prepare(servers)
            ports = [port_of(door) for door in servers.doors]
            with Balancer(ports, options.cut_s, options.seed) as balancer:
                print(f"seed {options.seed}; doors {servers.doors}, balancer {balancer.address}", flush=True)
                kills = play(servers, balancer, ledger, options)
                return 0 if report(servers, balancer, ledger, kills) else 1
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
