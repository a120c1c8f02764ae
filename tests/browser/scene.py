"""A cluster in which something is going on: a healthy group, one that stands still, one that gives up on messages; and
messages that wait for everything that a message can wait for.

The brokers are ours or RocketMQ's; everything is sent and received by our clients.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from rucola import (
    LocalTransactionState,
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReconsumeLater,
    SimpleConsumer,
    TransactionProducer,
)
from rucola.client.admin import AdminClient
from rucola.client.listener import MessageListener
from rucola.common.message import MessageExt
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.console.history import History
from rucola.console.memberships import packed
from rucola.errors import BrokerError
from rucola.protocol.bodies.heartbeat import ConsumeFromWhere
from rucola.runtime.clock import SystemClock

ORDERS: Final = 200
TOPICS: Final = {"orders": 4, "payments": 4, "shipping": 2, "returns-europe-central": 8, "reminders": 2}
SETTINGS: Final = {"recallMessageEnable": "true", "traceTopicEnable": "true"}
"""Options of the broker."""
HEALTHY: Final = "billing"
STOPPED: Final = "analytics"
FAILING: Final = "invoices"
FAILED: Final = 12
POPPING: Final = "packing"
WAITING: Final = 3
"""Messages that wait, of each kind."""
_PAUSE_S: Final = 0.2
_TRIES: Final = 300


@asynccontextmanager
async def scene(namesrv: str, broker: str) -> AsyncIterator[None]:
    """Fills the cluster, then keeps a producer and two consumers alive.

    Raises:
        AssertionError: what must happen does not.
    """
    async with AdminClient(namesrv) as admin:
        for name, queues in TOPICS.items():
            await admin.api.change_topic(broker, TopicConfig(name, queues, queues, 6))
        for name in (HEALTHY, STOPPED, FAILING, POPPING):
            await admin.api.change_group(broker, SubscriptionGroupConfig(name))
        async with Producer("shop", namesrv, ProducerConfig(enable_trace=True)) as producer:
            await producer.send_many([_order(number) for number in range(ORDERS // 2)])
            await _stop_half_way(namesrv)
            await producer.send_many([_order(number) for number in range(ORDERS // 2, ORDERS)])
            await producer.send(Message("shipping", "label für Zürich\n包裹\n".encode() * 40, keys="label-1"))
            await producer.send(Message("shipping", bytes(range(256)) * 300, keys="scan-1"))
            for number in range(FAILED):
                await producer.send(Message("payments", _payment(number), tags="card", keys=f"payment-{number}"))
            await _wait(producer, namesrv)
            async with (
                _consumer(HEALTHY, "orders", namesrv, _accept),
                _consumer(FAILING, "payments", namesrv, _refuse, retries=0),
                SimpleConsumer(POPPING, namesrv, topics=["shipping"]) as popping,
            ):
                await _pop(popping)
                await _until_dead(admin, broker)
                traffic = asyncio.ensure_future(_traffic(producer))
                try:
                    yield
                finally:
                    traffic.cancel()
                    await asyncio.wait([traffic])


def write_history(directory: Path, cluster: str, broker: str) -> None:
    """Writes figures of the last day, so that charts have something to show."""
    directory.mkdir(parents=True, exist_ok=True)
    history = History(str(directory))
    now = SystemClock().wall_ms() // 60_000
    try:
        for at in range(now - 24 * 60, now - 2):
            day = math.sin((at % 1440) / 1440 * 2 * math.pi - 2)
            wave = 240 + 160 * day + 16 * math.sin(at / 7) + 9 * math.sin(at * 1.7)
            lag = max(0.0, 300 * math.sin(at / 95) ** 5) + 60 + 20 * math.sin(at / 3)
            values = {"cluster/in": wave, "cluster/out": wave * 1.8, "cluster/lag": lag, "topic/orders/in": wave * 0.7}
            values |= {f"group/{STOPPED}/lag": lag, f"group/{HEALTHY}/lag": lag / 9, f"group/{HEALTHY}/out": wave}
            values |= {f"broker/{broker}/in": wave, f"broker/{broker}/out": wave * 1.8, f"group/{FAILING}/dead": 2.0}
            values[f"broker/{broker}/disk"] = 0.38 + (at - now) / 1440 * 0.05
            history.add(f"{cluster}\n", at * 60_000, values)
        reads = tuple(f"orders broker-a {queue}" for queue in range(TOPICS["orders"]))
        owner = f"{cluster}\n"
        for minutes, members in (
            (50, {"till-1@17": reads}),
            (32, {"till-1@17": reads[:2], "till-2@4": reads[2:]}),
            (14, {"till-2@4": reads}),
        ):
            for at in range(now - minutes, now - minutes + 12):
                history.members.add(owner, at * 60_000, {HEALTHY: packed(members)} if at == now - minutes else {})
    finally:
        history.close()


async def _wait(producer: Producer, namesrv: str) -> None:
    """Messages that wait for a delay level, a time and a decision."""
    for number in range(WAITING):
        await producer.send(Message("reminders", b"late", keys=f"late-{number}", delay_level=18 - number))
        timed = timedelta(hours=2, minutes=number)
        await producer.send(Message("reminders", b"timed", keys=f"timed-{number}", delay=timed))
    async with TransactionProducer("shop-orders", namesrv, _Undecided()) as undecided:
        for number in range(WAITING):
            message = Message("reminders", f"half {number}".encode(), keys=f"half-{number}")
            await undecided.send_message_in_transaction(message)


class _Undecided:
    """A producer that never knows."""

    def execute_local_transaction(self, _message: Message, _argument: object) -> LocalTransactionState:
        """Does not decide."""
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, _message: MessageExt) -> LocalTransactionState:
        """Does not know either."""
        return LocalTransactionState.UNKNOW


async def _pop(consumer: SimpleConsumer) -> None:
    """Takes messages and never acknowledges them."""
    for _ in range(_TRIES):
        if await consumer.receive(1, invisible_duration_ms=3_600_000, await_duration_ms=1_000):
            return
    raise AssertionError(f"{POPPING} gets no message")


def _order(number: int) -> Message:
    body = {"order": 9_007_199_254_740_993 + number, "table": number % 30, "items": ["espresso", "tarte"], "paid": True}
    return Message("orders", json.dumps(body).encode(), tags="new" if number % 3 else "changed", keys=f"order-{number}")


def _payment(number: int) -> bytes:
    return json.dumps({"payment": number, "amount": "12.50", "currency": "EUR"}).encode()


def _consumer(group: str, topic: str, namesrv: str, listener: MessageListener, retries: int = 16) -> PushConsumer:
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    options = PushConsumerConfig(consume_from_where=first, max_reconsume_times=retries, enable_trace=True)
    consumer = PushConsumer(group, namesrv, options, topics=[topic])
    consumer.register_message_listener(listener)
    return consumer


async def _accept(_message: MessageExt) -> None:
    """A listener that does its work."""


async def _refuse(_message: MessageExt) -> None:
    """A listener that always fails."""
    raise ReconsumeLater


async def _stop_half_way(namesrv: str) -> None:
    """A group that read the first half of the orders, and whose members are gone."""
    seen: list[str] = []

    async def count(message: MessageExt) -> None:
        seen.append(message.msg_id)

    async with _consumer(STOPPED, "orders", namesrv, count):
        for _ in range(_TRIES):
            if len(seen) >= ORDERS // 2:
                return
            await asyncio.sleep(_PAUSE_S)
    raise AssertionError(f"{STOPPED} has read {len(seen)} messages only")


async def _until_dead(admin: AdminClient, broker: str) -> None:
    for _ in range(_TRIES):
        try:
            table = (await admin.api.topic_stats(broker, f"%DLQ%{FAILING}")).offset_table
            if sum(one.max_offset for one in table.values()) >= FAILED:
                return
        except BrokerError:
            pass  # there is no such topic yet
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError(f"{FAILING} has given up on too few messages")


async def _traffic(producer: Producer) -> None:
    number = ORDERS
    while True:
        await producer.send(_order(number))
        number += 1
        await asyncio.sleep(_PAUSE_S / 4)
