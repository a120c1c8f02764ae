"""A cluster in which something is going on: a healthy group, one that stands still, one that gives up on messages.

The brokers are ours or RocketMQ's; everything is sent and received by our clients.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rucola import Message, Producer, PushConsumer, PushConsumerConfig, ReconsumeLater
from rucola.client.admin import AdminClient
from rucola.client.listener import MessageListener
from rucola.common.message import MessageExt
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.console.history import History
from rucola.protocol.bodies.heartbeat import ConsumeFromWhere
from rucola.runtime.clock import SystemClock

ORDERS: Final = 200
TOPICS: Final = {"orders": 4, "payments": 4, "shipping": 2, "returns-europe-central": 8}
HEALTHY: Final = "billing"
STOPPED: Final = "analytics"
FAILING: Final = "invoices"
FAILED: Final = 12
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
        for name in (HEALTHY, STOPPED, FAILING):
            await admin.api.change_group(broker, SubscriptionGroupConfig(name))
        async with Producer("shop", namesrv) as producer:
            await producer.send_many([_order(number) for number in range(ORDERS // 2)])
            await _stop_half_way(namesrv)
            await producer.send_many([_order(number) for number in range(ORDERS // 2, ORDERS)])
            await producer.send(Message("shipping", "label für Zürich\n包裹\n".encode() * 40, keys="label-1"))
            await producer.send(Message("shipping", bytes(range(256)) * 300, keys="scan-1"))
            for number in range(FAILED):
                await producer.send(Message("payments", _payment(number), tags="card", keys=f"payment-{number}"))
            async with (
                _consumer(HEALTHY, "orders", namesrv, _accept),
                _consumer(FAILING, "payments", namesrv, _refuse, retries=0),
            ):
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
    finally:
        history.close()


def _order(number: int) -> Message:
    body = {"order": 9_007_199_254_740_993 + number, "table": number % 30, "items": ["espresso", "tarte"], "paid": True}
    return Message("orders", json.dumps(body).encode(), tags="new" if number % 3 else "changed", keys=f"order-{number}")


def _payment(number: int) -> bytes:
    return json.dumps({"payment": number, "amount": "12.50", "currency": "EUR"}).encode()


def _consumer(group: str, topic: str, namesrv: str, listener: MessageListener, retries: int = 16) -> PushConsumer:
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    options = PushConsumerConfig(consume_from_where=first, max_reconsume_times=retries)
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
            offsets = (await admin.api.topic_stats(broker, f"%DLQ%{FAILING}")).offset_table.values()
        except Exception:  # noqa: BLE001 - there is no such topic yet
            offsets = ()
        if sum(one.max_offset for one in offsets) >= FAILED:
            return
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError(f"{FAILING} has given up on too few messages")


async def _traffic(producer: Producer) -> None:
    number = ORDERS
    while True:
        await producer.send(_order(number))
        number += 1
        await asyncio.sleep(_PAUSE_S / 4)
