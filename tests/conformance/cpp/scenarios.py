"""Scenarios with the official C++ client 1.2 (librocketmq), as the PyPI package ``rocketmq`` ships and binds it.

Arguments: folder with the package, then the arguments of every program, see run.py. The library calls listeners in its
own threads.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

sys.path.insert(0, sys.argv[1])

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage, SendStatus
from rocketmq.exceptions import RocketMQException
from rocketmq.ffi import MessageModel

PATIENCE_S = 60.0
"""Time limit in seconds: longer than the 30 s after which the client asks again for the route of a retry topic."""


class Peer:
    """The environment of a scenario: its own topic and group, and clients that are shut down at the end."""

    def __init__(self, namesrv: str, prefix: str, name: str) -> None:
        self.namesrv = namesrv
        self.topic = f"T_{prefix}{name}"
        self.group = f"G_{prefix}{name}"
        self.clients: list[Producer | PushConsumer | PullConsumer] = []

    def close(self) -> None:
        while self.clients:
            self.clients.pop().shutdown()

    def producer(self) -> Producer:
        return self._started(Producer(f"{self.group}_producer", timeout=10_000))

    def pull_consumer(self) -> PullConsumer:
        return self._started(PullConsumer(f"{self.group}_reader"))

    def consume(
        self, seen: list[Seen], tags: str = "*", refuse: Callable[[Seen], bool] = lambda _: False, **options: object
    ) -> PushConsumer:
        """Starts a push consumer that adds messages to ``seen``; it refuses messages for which ``refuse`` is true, so
        that they are delivered again.
        """
        instance = options.pop("instance", "one")
        consumer = PushConsumer(self.group, **options)
        consumer.set_instance_name(f"{self.group}_{instance}")

        def take(received: RecvMessage) -> None:
            message = Seen(received)
            if message.tags == b"Setup":  # the runner's message, which created the topic
                return
            seen.append(message)
            if refuse(message):
                raise Refused

        consumer.subscribe(self.topic, take, tags)
        return self._started(consumer)

    def message(self, i: int, tags: str | None = None) -> Message:
        message = Message(self.topic)
        message.set_body(f"message {i}")
        message.set_tags(tags or ("TagA", "TagB")[i % 2])
        message.set_keys(f"key{i}")
        return message

    def send(self, producer: Producer, first: int, last: int) -> None:
        for i in range(first, last):
            assert producer.send_sync(self.message(i)).status == SendStatus.OK

    def _started(self, client: Producer) -> Producer:
        client.set_namesrv_addr(self.namesrv)
        client.start()
        self.clients.append(client)
        return client


class Refused(Exception):  # noqa: N818 - no error
    """Raised in a listener, so that the library sends the message back to the broker."""


class Seen:
    """A copy of a received message, because the library frees the original when the callback returns."""

    def __init__(self, message: RecvMessage) -> None:
        self.body, self.tags, self.keys = bytes(message.body), message.tags, message.keys
        self.queue_id, self.queue_offset = message.queue_id, message.queue_offset
        self.reconsume_times, self.stored_bytes = message.reconsume_times, message.store_size
        self.waited_ms = message.store_timestamp - message.born_timestamp
        self.mine = message.get_property("mine")


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.05)


def expect(seen: list[Seen], wanted: range | list[int]) -> None:
    """Checks that exactly these messages arrive: none twice, and no others within a short time."""
    until(f"{len(wanted)} messages", lambda: len(seen) >= len(wanted))
    time.sleep(0.5)
    bodies = sorted(message.body for message in seen)
    equal("bodies", sorted(b"message %d" % i for i in wanted), bodies)


def equal(what: str, expected: object, got: object) -> None:
    if expected != got:
        raise AssertionError(f"{what}: expected {expected}, got {got}")


def send_sync(peer: Peer) -> dict[str, object]:
    producer = peer.producer()
    ids = {producer.send_sync(peer.message(i)).msg_id for i in range(40)}
    equal("different ids", 40, len(ids))
    seen: list[Seen] = []
    peer.consume(seen)
    expect(seen, range(40))
    for message in seen:
        equal("keys", b"key" + message.body.removeprefix(b"message "), message.keys)
    return {"messages": len(seen), "queues": len({message.queue_id for message in seen})}


def send_async(peer: Peer) -> dict[str, object]:
    producer = peer.producer()
    done: list[object] = []
    kept = [peer.message(i) for i in range(50)]  # keeps the texts alive, because the library reads them later
    for message in kept:
        producer.send_async(message, done.append, done.append)
    until("50 answers", lambda: len(done) >= 50)
    for result in done:
        assert not isinstance(result, Exception), result
        equal("status", SendStatus.OK, result.status)
    seen: list[Seen] = []
    peer.consume(seen)
    expect(seen, range(50))
    return {"messages": len(seen)}


def send_oneway(peer: Peer) -> dict[str, object]:
    producer = peer.producer()
    for i in range(50):
        producer.send_oneway(peer.message(i))
    seen: list[Seen] = []
    peer.consume(seen)
    expect(seen, range(50))
    return {"messages": len(seen)}


def send_batch(peer: Peer) -> dict[str, object]:
    """Sends a batch. This client writes ``batch=1`` instead of ``true``, so servers store a single message whose body
    contains all messages of the batch.
    """
    result = peer.producer().send_batch([peer.message(i) for i in range(64)])
    equal("status", SendStatus.OK, result.status)
    seen: list[Seen] = []
    peer.consume(seen)
    until("the message", lambda: bool(seen))
    time.sleep(0.5)
    equal("messages", 1, len(seen))
    assert seen[0].stored_bytes > 600, seen[
        0
    ].stored_bytes  # the body is compressed; the binding cuts it at its first zero
    return {"stored_bytes": seen[0].stored_bytes}


def send_large(peer: Peer) -> dict[str, object]:
    """Sends a body above 4 KiB, which is compressed; the message also has a property."""
    message = Message(peer.topic)
    message.set_body("abcdefgh" * 16_000)
    message.set_property("mine", "值")
    peer.producer().send_sync(message)
    seen: list[Seen] = []
    peer.consume(seen)
    until("the message", lambda: bool(seen))
    equal("body", b"abcdefgh" * 16_000, seen[0].body)
    equal("property", "值".encode(), seen[0].mine)
    return {"bytes": len(seen[0].body)}


def send_selector(peer: Peer) -> dict[str, object]:
    """Sends each number to one queue; the order inside each queue is kept."""
    producer = peer.producer()
    for i in range(40):
        producer.send_orderly(peer.message(i), i % 5)
    seen: list[Seen] = []
    peer.consume(seen, orderly=True)
    expect(seen, range(40))
    numbers = {queue: [_number(one) for one in seen if one.queue_id == queue] for queue in range(4)}
    for queue, mine in numbers.items():
        equal(f"order in queue {queue}", sorted(mine), mine)
        equal(f"numbers of queue {queue}", [i for i in range(40) if i % 5 % 4 == queue], mine)
    return {"queues": len(numbers)}


def pull_all(peer: Peer) -> dict[str, object]:
    peer.send(peer.producer(), 0, 40)
    found = [message.body for message in peer.pull_consumer().pull(peer.topic, "TagB || TagX")]
    equal("bodies", sorted(b"message %d" % i for i in range(1, 40, 2)), sorted(found))
    return {"messages": len(found)}


def push_concurrent(peer: Peer) -> dict[str, object]:
    producer = peer.producer()
    peer.send(producer, 0, 50)
    seen: list[Seen] = []
    peer.consume(seen)
    expect(seen, range(50))
    peer.send(producer, 50, 100)
    expect(seen, range(100))
    return {"messages": len(seen)}


def push_tags(peer: Peer) -> dict[str, object]:
    producer = peer.producer()
    for i in range(60):
        producer.send_sync(peer.message(i, ("TagA", "TagB", "TagC")[i % 3]))
    seen: list[Seen] = []
    peer.consume(seen, "TagA || TagC")
    expect(seen, [i for i in range(60) if i % 3 != 1])
    return {"messages": len(seen)}


def push_orderly(peer: Peer) -> dict[str, object]:
    """Consumes in order, which needs the broker's queue locks; the order inside each queue is kept."""
    peer.send(peer.producer(), 0, 60)
    seen: list[Seen] = []
    peer.consume(seen, orderly=True)
    expect(seen, range(60))
    for queue in {message.queue_id for message in seen}:
        offsets = [message.queue_offset for message in seen if message.queue_id == queue]
        equal(f"offsets of queue {queue}", list(range(offsets[0], offsets[0] + len(offsets))), offsets)
    return {"queues": len({message.queue_id for message in seen})}


def push_resume(peer: Peer) -> dict[str, object]:
    """The next start of a consumer continues at the offset stored at shutdown."""
    producer = peer.producer()
    peer.send(producer, 0, 30)
    before: list[Seen] = []
    consumer = peer.consume(before)
    expect(before, range(30))
    peer.clients.remove(consumer)
    consumer.shutdown()
    peer.send(producer, 30, 60)
    after: list[Seen] = []
    peer.consume(after, instance="two")
    expect(after, range(30, 60))
    return {"messages": 60}


def retry_later(peer: Peer) -> dict[str, object]:
    """A message for which the listener raises is sent back to the broker and delivered again."""
    peer.send(peer.producer(), 0, 3)
    seen: list[Seen] = []
    peer.consume(seen, refuse=lambda message: message.body == b"message 1" and message.reconsume_times == 0)
    until("the second try", lambda: len(seen) >= 4)
    again = seen[-1]
    equal("body", b"message 1", again.body)
    equal("reconsume times", 1, again.reconsume_times)
    return {"tries": len(seen)}


def group_broadcast(peer: Peer) -> dict[str, object]:
    """Each member of a broadcast group gets every message."""
    members: list[list[Seen]] = [[], []]
    for number, seen in enumerate(members):
        instance = f"{number}_{time.time_ns()}"  # the name of the offset file: it must not exist from an earlier run
        peer.consume(seen, instance=instance, message_model=MessageModel.BROADCASTING)
    peer.send(peer.producer(), 0, 40)
    for seen in members:
        expect(seen, range(40))
    return {"members": len(members)}


def delay_levels(peer: Peer) -> dict[str, object]:
    """Delays messages by the first three levels, which are 1 s, 2 s and 2 s at the broker under test."""
    producer = peer.producer()
    seen: list[Seen] = []
    peer.consume(seen)
    for level in (1, 2, 3):
        message = peer.message(level)
        message.set_delay_time_level(level)
        producer.send_sync(message)
    expect(seen, [1, 2, 3])
    for received in seen:
        due_ms = (1000, 2000, 2000)[_number(received) - 1]
        assert received.waited_ms >= due_ms - 50, f"{received.body!r} came after {received.waited_ms} ms"
    return {"levels": 3}


def _number(message: Seen) -> int:
    return int(message.body.removeprefix(b"message "))


SCENARIOS = (
    *(send_sync, send_async, send_oneway, send_batch, send_large, send_selector),
    *(pull_all, push_concurrent, push_tags, push_orderly, push_resume),
    *(retry_later, group_broadcast, delay_levels),
)


def main(arguments: list[str]) -> int:
    """Runs the named scenarios, or all."""
    if arguments == ["names"]:
        print("\n".join(scenario.__name__ for scenario in SCENARIOS))
        return 0
    namesrv, prefix, *wanted = arguments
    threading.excepthook = sys.unraisablehook = lambda _: None  # hides Refused, which the binding raises in a callback
    failed = False
    for scenario in SCENARIOS:
        if wanted and scenario.__name__ not in wanted:
            continue
        peer = Peer(namesrv, prefix, scenario.__name__)
        line: dict[str, object] = {"name": scenario.__name__}
        try:
            line |= {"ok": True, "details": scenario(peer)}
        except (AssertionError, RocketMQException) as error:
            line |= {"ok": False, "details": {"error": f"{type(error).__name__}: {error}"}}
            failed = True
        print(json.dumps(line), flush=True)
        peer.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
