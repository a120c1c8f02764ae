"""Scenarios with the official Python client. Arguments: ``host:port`` of the server, prefix of topics and groups, names
of scenarios. Prints one JSON line for each: name, saw.

The program is independent of Rucola. The runner creates topics and groups, see ``scenarios.py``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
from rocketmq.grpc_protocol import FilterType

PATIENCE_S = 30.0
RESTART_PATIENCE_S = 150.0
"""A gRPC channel may wait 120 s before it connects again."""
POLL_S = 5
NUDGE_S = 3
INVISIBLE_S = 10
"""The shortest time that the official server accepts."""
ACCOUNT = (os.environ.get("ACCOUNT_NAME", ""), os.environ.get("ACCOUNT_SECRET", ""))
"""An account that may do everything; that of ``guest`` has the same secret and may do nothing."""
Saw = dict[str, Any]


class Peer:
    """The environment of a scenario: its topic and group, and clients that are shut down at its end."""

    def __init__(self, endpoints: str, prefix: str, name: str, stack: ExitStack) -> None:
        self._endpoints, self._credentials, self._tls = endpoints, Credentials(), False
        self.topic, self.group, self._stack = f"T_{prefix}{name}", f"G_{prefix}{name}", stack

    def over_tls(self) -> Peer:
        """The same, for clients that use TLS."""
        other = copy.copy(self)
        other._tls = True
        return other

    def signed_by(self, name: str, secret: str) -> Peer:
        """The same, for clients that use an account."""
        other = copy.copy(self)
        other._credentials = Credentials(name, secret)
        return other

    @property
    def _configuration(self) -> ClientConfiguration:
        return ClientConfiguration(self._endpoints, self._credentials)

    def producer(self, *topics: str, checker: TransactionChecker | None = None) -> Producer:
        return self._started(Producer(self._configuration, topics or (self.topic,), checker, tls_enable=self._tls))

    def simple_consumer(self, expression: FilterExpression | None = None, topic: str = "") -> SimpleConsumer:
        subscription = {topic or self.topic: expression or FilterExpression()}
        return self._started(
            SimpleConsumer(self._configuration, self.group, subscription, POLL_S, tls_enable=self._tls)
        )

    def push_consumer(self, listener: MessageListener) -> PushConsumer:
        subscription = {self.topic: FilterExpression()}
        return self._started(
            PushConsumer(self._configuration, self.group, listener, subscription, tls_enable=self._tls)
        )

    def message(self, body: str, **fields: Any) -> Message:
        message = Message()
        message.topic, message.body = self.topic, body.encode()
        for name, value in fields.items():
            setattr(message, name, value)
        return message

    def _started(self, client: Any) -> Any:
        client.startup()
        self._stack.callback(client.shutdown)
        return client


class Listener(MessageListener):  # type: ignore[misc]  # the client has no types
    """Records messages; ``fails`` says which deliveries are not consumed."""

    def __init__(self, fails: Callable[[Message, int], bool] = lambda message, times: False) -> None:
        self.seen: list[Message] = []
        self._fails, self._lock = fails, threading.Lock()

    def consume(self, message: Message) -> ConsumeResult:
        with self._lock:
            self.seen.append(message)
            times = sum(other.body == message.body for other in self.seen)
        return ConsumeResult.FAILURE if self._fails(message, times) else ConsumeResult.SUCCESS

    def without(self, body: str) -> list[Message]:
        return [message for message in list(self.seen) if message.body.decode() != body]

    def wait(self, count: int, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while len(self.seen) < count and time.monotonic() < deadline:
            time.sleep(0.05)


def receive(consumer: SimpleConsumer, count: int, seconds: float = PATIENCE_S) -> Iterator[Message]:
    """Yields messages until there are ``count`` of them or the time is over."""
    deadline = time.monotonic() + seconds
    while count > 0 and time.monotonic() < deadline:
        try:
            messages = consumer.receive(16, INVISIBLE_S)
        except Exception:  # noqa: BLE001  # the server may be away
            time.sleep(0.5)
            continue
        count -= len(messages)
        yield from messages


def received(consumer: SimpleConsumer, count: int, seconds: float = PATIENCE_S) -> list[Message]:
    """Receives and acknowledges messages."""
    messages = []
    for message in receive(consumer, count, seconds):
        consumer.ack(message)
        messages.append(message)
    return messages


def shown(message: Message) -> Saw:
    """What a consumer sees of a message, except ids and times."""
    body = bytes(message.body)
    return {
        "body": body.decode() if len(body) < 100 else [len(body), hashlib.md5(body).hexdigest()],
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(sorted(message.properties.items())),
        "group": message.message_group,
        "delivery_timestamp": message.delivery_timestamp is not None and message.delivery_timestamp > 0,
        "attempt": message.delivery_attempt,
        "type": message.message_type,
        "born_host": bool(message.born_host),
        "corrupted": message.corrupted,
    }


def bodies(messages: list[Message]) -> list[str]:
    return [message.body.decode() for message in messages]


def attempts(messages: list[Message]) -> list[list[Any]]:
    return [[message.body.decode(), message.delivery_attempt] for message in messages]


def outcome(work: Callable[[], Any]) -> Saw:
    """Whether a call succeeded; its code if it failed."""
    try:
        work()
    except Exception as error:  # noqa: BLE001  # what it fails with is the outcome
        return {"error": type(error).__name__, "code": getattr(error, "code", None), "text": str(error)}
    return {"ok": True}


def send_normal(peer: Peer) -> Saw:
    producer, consumer = peer.producer(), peer.simple_consumer()
    message = peer.message("plain", tag="TagA", keys="key1")
    message.keys = "key2"
    message.add_property("colour", "green")
    message.add_property("größe", "très grand 大")
    receipts = [producer.send(message), producer.send(peer.message("bare"))]
    receipts += [producer.send(peer.message("x" * 3_000_000))]
    receipts += [producer.send_async(peer.message("later", tag="TagB")).result(PATIENCE_S)]
    messages = received(consumer, 4)
    ids = {receipt.message_id for receipt in receipts} == {message.message_id for message in messages}
    return {"ids": ids, "messages": sorted((shown(message) for message in messages), key=str)}


def send_fifo(peer: Peer) -> Saw:
    producer = peer.producer()
    for i in range(6):
        for group in ("one", "two"):
            producer.send(peer.message(f"{group} {i}", message_group=group))
    messages = received(peer.simple_consumer(), 12)
    orders = {
        group: bodies([message for message in messages if message.message_group == group]) for group in ("one", "two")
    }
    return {"orders": orders, "first": shown(min(messages, key=lambda message: message.body))}


def send_delay(peer: Peer) -> Saw:
    producer, consumer = peer.producer(), peer.simple_consumer()
    due = int(time.time()) + 4  # this client takes seconds, although it says milliseconds
    receipt = producer.send(peer.message("due", delivery_timestamp=due))
    producer.send(peer.message("past", delivery_timestamp=due - 60))
    early, messages = 0, []
    for message in receive(consumer, 2):
        early += message.body == b"due" and time.time() < due - 0.5
        consumer.ack(message)
        messages.append(message)
    exact = [message.delivery_timestamp == due * 1000 for message in messages if message.body == b"due"]
    return {
        "early": early,
        "exact": exact,
        "recall_handle": bool(receipt.recall_handle),
        "messages": [shown(message) for message in messages],
    }


def recall(peer: Peer) -> Saw:
    producer, consumer = peer.producer(), peer.simple_consumer()
    due = int(time.time()) + 7
    first = producer.send(peer.message("recalled", delivery_timestamp=due))
    second = producer.send(peer.message("kept", delivery_timestamp=due))
    same = producer.recall_message(peer.topic, first.recall_handle) if first.recall_handle else None
    saw: Saw = {"same": same == first.message_id, "kept": bool(second.recall_handle)}
    saw["messages"] = bodies(received(consumer, 2, 14))
    saw["late"] = outcome(lambda: producer.recall_message(peer.topic, second.recall_handle))
    saw["wrong"] = outcome(lambda: producer.recall_message(peer.topic, "no-handle"))
    return saw


def priority(peer: Peer) -> Saw:
    producer = peer.producer()
    for number in (1, 3, 2, 5):
        producer.send(peer.message(f"priority {number}", priority=number))
    messages = received(peer.simple_consumer(), 4)
    return {"messages": [[message.body.decode(), message.priority] for message in messages]}


def transaction(peer: Peer) -> Saw:
    asked: set[str] = set()

    class Checker(TransactionChecker):  # type: ignore[misc]
        def check(self, message: Message) -> TransactionResolution:
            asked.add(message.body.decode())
            return TransactionResolution.COMMIT if b"commit" in message.body else TransactionResolution.ROLLBACK

    producer, consumer = peer.producer(checker=Checker()), peer.simple_consumer()
    ends = []
    for body in ("commit now", "roll back now", "commit later", "roll back later"):
        begun = producer.begin_transaction()
        producer.send(peer.message(body, tag="TagA"), begun)
        if body == "commit now":
            ends.append(outcome(begun.commit))
        elif body == "roll back now":
            ends.append(outcome(begun.rollback))
    messages = received(consumer, 2)
    deadline = time.monotonic() + PATIENCE_S
    while len(asked) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    messages += received(consumer, 1, 5)
    return {
        "ends": ends,
        "asked": sorted(asked),
        "messages": sorted((shown(message) for message in messages), key=str),
    }


def redelivery(peer: Peer) -> Saw:
    producer, consumer = peer.producer(), peer.simple_consumer()
    for body in ("kept", "done"):
        producer.send(peer.message(body, tag="TagA"))
    first = list(receive(consumer, 2))
    for message in first:
        if message.body == b"done":
            consumer.ack(message)
    began = time.monotonic()
    again = list(receive(consumer, 1))
    early = time.monotonic() - began < INVISIBLE_S - 3
    late = outcome(lambda: consumer.ack(next(message for message in first if message.body == b"kept")))
    return {
        "first": sorted(attempts(first)),
        "again": attempts(received_again(consumer, again)),
        "early": early,
        "ack_of_expired_handle": late,
    }


def received_again(consumer: SimpleConsumer, messages: list[Message]) -> list[Message]:
    """Acknowledges messages and returns them."""
    for message in messages:
        consumer.ack(message)
    return messages


def change_invisible(peer: Peer) -> Saw:
    producer, consumer = peer.producer(), peer.simple_consumer()
    producer.send(peer.message("changed"))
    saw: Saw = {"attempts": []}
    for _ in range(2):
        for message in receive(consumer, 1):
            old = message.receipt_handle
            consumer.change_invisible_duration(message, 1)
            saw["attempts"] += attempts([message])
            saw["new_handle"] = message.receipt_handle != old
    last = received(consumer, 1)
    saw["attempts"] += attempts(last)
    saw["ack_again"] = outcome(lambda: consumer.ack(last[0]))
    saw["left"] = len(list(receive(consumer, 1, 6)))
    return saw


def push(peer: Peer) -> Saw:
    producer, listener = peer.producer(), Listener()
    peer.push_consumer(listener)
    for i in range(20):
        producer.send(peer.message(f"message {i:02}", tag="TagA"))
    listener.wait(20)
    time.sleep(1)
    return {"messages": sorted(attempts(listener.seen)), "first": shown(min(listener.seen, key=lambda one: one.body))}


def push_share(peer: Peer) -> Saw:
    producer, listeners = peer.producer(), [Listener(), Listener()]
    for listener in listeners:
        peer.push_consumer(listener)
    for i in range(40):
        producer.send(peer.message(f"message {i:02}"))
    deadline = time.monotonic() + PATIENCE_S
    while sum(len(listener.seen) for listener in listeners) < 40 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    found = [message for listener in listeners for message in listener.seen]
    return {"distinct": len(set(bodies(found))), "deliveries": len(found)}


def push_retry(peer: Peer) -> Saw:
    return failing(peer, Listener(lambda message, times: message.body == b"bad" and times < 3), 4, 0)


def push_dead(peer: Peer) -> Saw:
    # The third delivery goes to the dead letters, which the runner counts.
    return failing(peer, Listener(lambda message, times: message.body == b"bad"), 3, 4)


def failing(peer: Peer, listener: Listener, wanted: int, afterwards: int) -> Saw:
    """Consumes with a listener that fails. The official server may leave a waiting consumer asleep when a message
    becomes visible again; further messages wake it.
    """
    producer = peer.producer()
    peer.push_consumer(listener)
    for body in ("good", "bad"):
        producer.send(peer.message(body))
    for _ in range(20):
        if len(listener.without("more")) >= wanted:
            break
        time.sleep(NUDGE_S)
        producer.send(peer.message("more"))
    for _ in range(afterwards):
        time.sleep(NUDGE_S)
        producer.send(peer.message("more"))
    time.sleep(1)
    return {"messages": sorted(attempts(listener.without("more")))}


def push_fifo(peer: Peer) -> Saw:
    producer, listener = peer.producer(), Listener(lambda message, times: message.body == b"one 1")
    for i in range(3):
        for group in ("one", "two"):
            producer.send(peer.message(f"{group} {i}", message_group=group))
    peer.push_consumer(listener)
    listener.wait(7)
    time.sleep(2)
    groups = {
        group: bodies([message for message in listener.seen if message.message_group == group])
        for group in ("one", "two")
    }
    return {"orders": groups}


def filter_tag(peer: Peer) -> Saw:
    return filtered(peer, FilterExpression("TagA || TagC"))


def filter_sql(peer: Peer) -> Saw:
    return filtered(peer, FilterExpression("number > 1 AND colour = 'red'", FilterType.SQL))


def filtered(peer: Peer, expression: FilterExpression) -> Saw:
    consumer, producer = peer.simple_consumer(expression), peer.producer()
    list(receive(consumer, 1, 1))  # makes the subscription known before the messages are sent
    for i in range(6):
        message = peer.message(f"message {i}", tag=f"Tag{'ABC'[i % 3]}")
        message.add_property("number", str(i))
        message.add_property("colour", "red" if i % 2 else "blue")
        producer.send(message)
    wanted = 4 if expression.filter_type == FilterType.TAG else 2
    return {"messages": sorted(bodies(received(consumer, wanted))), "more": bodies(received(consumer, 1, 4))}


def unknown_topic(peer: Peer) -> Saw:
    missing = f"{peer.topic}_missing"
    message = Message()
    message.topic, message.body = missing, b"lost"
    producer = peer.producer()

    def consume() -> None:
        peer.simple_consumer(topic=missing).receive(1, INVISIBLE_S)

    return {"send": outcome(lambda: producer.send(message)), "receive": outcome(consume)}


def wrong_type(peer: Peer) -> Saw:
    producer = peer.producer()
    due = int(time.time()) + 1
    return {
        "fifo": outcome(lambda: producer.send(peer.message("a", message_group="one"))),
        "delay": outcome(lambda: producer.send(peer.message("b", delivery_timestamp=due))),
        "normal": outcome(lambda: producer.send(peer.message("c"))),
    }


def too_large(peer: Peer) -> Saw:
    producer = peer.producer()
    properties = peer.message("many")
    for i in range(129):
        properties.add_property(f"key{i}", "value")
    reserved = peer.message("reserved")
    reserved.add_property("UNIQ_KEY", "value")
    return {
        "body": outcome(lambda: producer.send(peer.message("x" * (4 * 1024 * 1024 + 1)))),
        "properties": outcome(lambda: producer.send(properties)),
        "reserved": outcome(lambda: producer.send(reserved)),
    }


def restart(peer: Peer) -> Saw:
    producer, sent = peer.producer(), set()

    def sent_soon(body: str) -> bool:
        deadline = time.monotonic() + RESTART_PATIENCE_S
        while "ok" not in outcome(lambda: producer.send(peer.message(body))):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def send(first: int, last: int) -> None:
        for i in range(first, last):
            body = f"message {i:02}"
            if not sent_soon(body):
                return
            sent.add(body)

    send(0, 20)
    consumer = peer.simple_consumer()
    early = set(bodies(received(consumer, 5)))
    during = threading.Thread(target=send, args=(20, 40))
    print(json.dumps({"restart": True}), flush=True)
    during.start()
    sys.stdin.readline()
    during.join()
    found = early
    deadline = time.monotonic() + RESTART_PATIENCE_S
    while not sent <= found and time.monotonic() < deadline:
        found |= set(bodies(received(consumer, 1, 10)))
    lost = sorted(sent - found)
    return {"sent": len(sent), "lost": bool(lost), "unknown": sorted(found - sent), "text": f"lost: {lost}"}


def tls(peer: Peer) -> Saw:
    peer = peer.over_tls()
    producer, consumer = peer.producer(), peer.simple_consumer()
    producer.send(peer.message("received"))
    saw: Saw = {"received": bodies(received(consumer, 1))}
    listener = Listener()
    peer.push_consumer(listener)
    producer.send(peer.message("pushed"))
    listener.wait(1)
    return saw | {"pushed": bodies(listener.seen)}


def accounts(peer: Peer) -> Saw:
    name, secret = ACCOUNT
    mine = peer.signed_by(name, secret)
    mine.producer().send(peer.message("body"))
    saw: Saw = {"right": bodies(received(mine.simple_consumer(), 1))}
    cases = {
        "wrong_secret": peer.signed_by(name, f"not-{secret}"),
        "unknown": peer.signed_by("nobody", secret),
        "guest": peer.signed_by("guest", secret),
        "none": peer,
    }
    return saw | {case: refused(other) for case, other in cases.items()}


def refused(peer: Peer) -> Saw:
    """What a client without the right account sees."""
    return {
        "send": outcome(lambda: peer.producer().send(peer.message("body"))),
        "receive": outcome(lambda: peer.simple_consumer().receive(1, INVISIBLE_S)),
    }


SCENARIOS: dict[str, Callable[[Peer], Saw]] = {
    scenario.__name__: scenario
    for scenario in (
        *(send_normal, send_fifo, send_delay, recall, priority, transaction, redelivery, change_invisible),
        *(push, push_share, push_retry, push_dead, push_fifo, filter_tag, filter_sql),
        *(unknown_topic, wrong_type, too_large, restart, tls, accounts),
    )
}


def main(endpoints: str, prefix: str, names: list[str]) -> None:
    for name in names:
        with ExitStack() as stack:
            try:
                saw = SCENARIOS[name](Peer(endpoints, prefix, name, stack))
            except Exception as error:  # noqa: BLE001  # a scenario that breaks off is an outcome
                saw = {"broken": type(error).__name__, "code": getattr(error, "code", None), "text": str(error)}
        print(json.dumps({"name": name, "saw": saw}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["names"]:
        print("\n".join(SCENARIOS))
    else:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
