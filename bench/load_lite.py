"""Load program of ``bench.lite``. Arguments: name server address, broker address.

Each line on standard input starts one round, which prints one JSON line. The lite topics are numbered from 0 on.

- ``fill NAMES``: sends a message to each of the first lite topics.
- ``subscribe CLIENTS EACH``: each consumer subscribes to its share of the first lite topics, from their ends on. The
  consumers stay.
- ``echo MESSAGES RATE NAMES``: sends ``RATE`` messages per second to random ones of the first lite topics. A latency is
  the time from the call of the producer until the call of the consumer's listener.
- ``limit GROUP CLIENTS EACH``: clients of a group subscribe in steps of 1,000 lite topics, until a step is refused;
  ``messages`` is the number of subscriptions that were accepted. Then the clients leave.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from array import array
from contextlib import AsyncExitStack, closing, suppress

import uvloop

from bench.load_client import REST_S, quantiles, say
from bench.lockstep import BROKER_NAME, Lockstep
from bench.samples import body_of
from bench.soak_record import HEAD, MAGIC
from rucola import (
    BrokerError,
    LiteConsumer,
    LiteConsumerConfig,
    LiteOffset,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    SendResult,
)
from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.protocol.bodies.lite import LiteSubscriptionAction, LiteSubscriptionDTO
from rucola.protocol.codes import RequestCode
from rucola.protocol.send_request import encode_send_head, header_head, properties_json, properties_text
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.remoting.consumer_api import ConsumerApi

PARENT, QUEUES = "agents", 4
GROUP, GROUP_OF_DEFAULTS = "gateway", "gateway_of_defaults"
QUOTA = 10_000
TTL_MINUTES = 1440
BODY_BYTES = 256
WINDOW = 64
STEP = 1000
_BODY = body_of(BODY_BYTES)


def name_of(number: int) -> str:
    """Returns the name of a lite topic: a UUID."""
    return f"{number * 2654435761 % (1 << 32):08x}-1b9d-4bad-9bdd-{number:012x}"


async def set_up(broker: str) -> None:
    """Creates the parent and two groups: one that lets a client have ``QUOTA`` lite topics, one with the default."""
    client = RemotingClient(ClientOptions())
    try:
        admin = AdminApi(client)
        attributes = f"+message.type=LITE,+lite.topic.expiration={TTL_MINUTES}"
        await admin.change_topic(broker, TopicConfig(PARENT, QUEUES, QUEUES), attributes)
        for group, more in ((GROUP, {"+lite.sub.client.quota": str(QUOTA)}), (GROUP_OF_DEFAULTS, {})):
            await admin.change_group(
                broker, SubscriptionGroupConfig(group, attributes={"+lite.bind.topic": PARENT} | more)
            )
    finally:
        await client.close()


def fill(broker: str, names: int) -> dict[str, float]:
    """Sends a message to each of the first lite topics, ``WINDOW`` at once."""
    heads = [
        header_head(RequestCode.SEND_MESSAGE_V2, "bench", MessageQueue(PARENT, BROKER_NAME, queue), "TBW102", QUEUES)
        for queue in range(QUEUES)
    ]
    start, born_ms = time.perf_counter(), time.time_ns() // 1_000_000
    with closing(Lockstep(broker)) as connection:
        for first in range(0, names, WINDOW):
            frames = []
            for number in range(first, min(first + WINDOW, names)):
                properties = {"__LITE_TOPIC": name_of(number), "UNIQ_KEY": f"7F000001000A{number:020X}", "WAIT": "true"}
                text = properties_json(properties_text(properties))
                head = encode_send_head(heads[number % QUEUES], 0, born_ms, 0, text, 0, number + 1, BODY_BYTES)
                frames.append(head + _BODY)
            connection.send(b"".join(frames), len(frames))
    return {"messages": names, "failed": connection.failed, "seconds": time.perf_counter() - start}


class LiteEcho:
    """Messages on their way from the producer to the consumers.

    Args:
        first: number of the first message; messages of earlier rounds have smaller numbers.
        targets: the lite topic of each message.
        subscribed: number of the lite topics that have a consumer.
    """

    def __init__(self, first: int, targets: list[int], subscribed: int) -> None:
        self._first = first
        self._targets = targets
        self._wanted = sum(target < subscribed for target in targets)
        self._seen = bytearray(len(targets))
        self._done = asyncio.get_running_loop().create_future()
        self._latencies_ns = array("q")
        self._failed = self._repeated = 0

    async def run(self, producer: Producer, rate: float) -> dict[str, float]:
        """Sends ``rate`` messages per second; returns when the last one has arrived or a time limit is reached."""
        start = time.monotonic()
        for sent, target in enumerate(self._targets):
            while (wait := start + sent / rate - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            body = HEAD.pack(MAGIC, self._first + sent, time.monotonic_ns()) + _BODY[HEAD.size :]
            producer.submit(Message(PARENT, body, lite_topic=name_of(target))).add_done_callback(self._answered)
        if self._wanted:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._done, REST_S)
        return {
            "messages": len(self._targets),
            "failed": self._failed + self._wanted - len(self._latencies_ns),
            "seconds": time.monotonic() - start,
            "delivered": len(self._latencies_ns),
            "repeated": self._repeated,
        } | quantiles(self._latencies_ns or array("q", [0]))

    async def listen(self, message: MessageExt) -> None:
        """The listener of the consumers."""
        now_ns = time.monotonic_ns()
        if len(message.body) < HEAD.size:
            return
        magic, number, sent_ns = HEAD.unpack_from(message.body)
        place = number - self._first
        if magic != MAGIC or not 0 <= place < len(self._seen):
            return
        self._repeated += self._seen[place]
        if not self._seen[place]:
            self._seen[place] = 1
            self._latencies_ns.append(now_ns - sent_ns)
            if len(self._latencies_ns) == self._wanted and not self._done.done():
                self._done.set_result(None)

    def _answered(self, answer: asyncio.Future[SendResult]) -> None:
        if answer.exception() is not None:
            if not self._failed:
                print(repr(answer.exception()), file=sys.stderr)
            self._failed += 1


class Load:
    """A producer, and the consumers that have subscribed.

    Args:
        stack: ends them.
    """

    def __init__(self, namesrv: str, broker: str, stack: AsyncExitStack) -> None:
        self._namesrv, self._broker, self._stack = namesrv, broker, stack
        self._producer: Producer | None = None
        self._random = random.Random(1)
        self._subscribed = self._sent = 0
        self._echo = LiteEcho(0, [], 0)

    async def round(self, kind: str, *arguments: str) -> dict[str, float]:
        """Runs one round; returns what is printed."""
        if kind == "fill":
            return await asyncio.to_thread(fill, self._broker, int(arguments[0]))
        if kind == "subscribe":
            return await self._subscribe(int(arguments[0]), int(arguments[1]))
        if kind == "limit":
            return await self._limit(arguments[0], int(arguments[1]), int(arguments[2]))
        return await self._send(int(arguments[0]), float(arguments[1]), int(arguments[2]))

    async def _subscribe(self, clients: int, each: int) -> dict[str, float]:
        start = time.perf_counter()
        config = LiteConsumerConfig(lite_subscription_quota=QUOTA)
        for client in range(clients):
            consumer = LiteConsumer(GROUP, self._namesrv, PARENT, config)
            consumer.register_message_listener(self._listen)
            await self._stack.enter_async_context(consumer)
            names = [name_of(number) for number in range(client * each, (client + 1) * each)]
            for first in range(0, each, STEP):
                await consumer.subscribe_lite(names[first : first + STEP], LiteOffset.MAX)
        self._subscribed = clients * each
        return {"messages": self._subscribed, "failed": 0, "seconds": time.perf_counter() - start}

    async def _listen(self, message: MessageExt) -> None:
        await self._echo.listen(message)

    async def _send(self, messages: int, rate: float, names: int) -> dict[str, float]:
        if self._producer is None:
            config = ProducerConfig(retry_times_when_send_async_failed=0, send_msg_timeout_ms=20_000)
            self._producer = await self._stack.enter_async_context(Producer("lite_load", self._namesrv, config))
        targets = self._random.choices(range(names), k=messages)
        self._echo = LiteEcho(self._sent, targets, self._subscribed)
        self._sent += messages
        return await self._echo.run(self._producer, rate)

    async def _limit(self, group: str, clients: int, each: int) -> dict[str, float]:
        start, accepted = time.perf_counter(), 0
        remoting = RemotingClient(ClientOptions())
        self._stack.push_async_callback(remoting.close)
        api = ConsumerApi(remoting)
        for client in range(clients):
            for first in range(client * each, (client + 1) * each, STEP):
                names = frozenset(name_of(number) for number in range(first, min(first + STEP, (client + 1) * each)))
                change = LiteSubscriptionDTO(LiteSubscriptionAction.PARTIAL_ADD, f"limit{client}", group, PARENT, names)
                try:
                    await api.change_lite_subscriptions(self._broker, [change])
                except BrokerError:
                    break
                accepted += len(names)
        for client in range(clients):
            leave = LiteSubscriptionDTO(LiteSubscriptionAction.COMPLETE_REMOVE, f"limit{client}", group, PARENT)
            await api.change_lite_subscriptions(self._broker, [leave])
        return {"messages": accepted, "failed": 0, "seconds": time.perf_counter() - start}


async def main(namesrv: str, broker: str) -> None:
    """Runs rounds until the input ends."""
    async with AsyncExitStack() as stack:
        load = Load(namesrv, broker, stack)
        say({"ready": 1})
        while line := await asyncio.to_thread(sys.stdin.readline):
            say(await load.round(*line.split()))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
