"""A coffee shop over RocketMQ: orders, a till that charges them, and reminders for orders that nobody fetches."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from rucola import ConsumeFromWhere, Message, MessageExt, ProducerConfig, PushConsumerConfig
from rucola.sync import Producer, PushConsumer

ORDERS, REMINDERS = "shop-orders", "shop-reminders"
FETCH_WITHIN = timedelta(minutes=15)
CHARGES_MAX = 2


class Counter:
    """Takes orders; the orders of one customer stay in sequence."""

    def __init__(self, namesrv: str) -> None:
        self._producer = Producer("shop-counter", namesrv, ProducerConfig(send_msg_timeout_ms=5_000))

    def __enter__(self) -> Self:
        self._producer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.shutdown()

    def order(self, customer: str, item: str, cents: int) -> str:
        """Publishes an order and its reminder; returns the order's id."""
        body = json.dumps({"customer": customer, "item": item, "cents": cents}).encode()
        sent = self._producer.send(Message(ORDERS, body, tags=item, keys=customer, sharding_key=customer))
        self._producer.send(Message(REMINDERS, body, keys=sent.msg_id, delay=FETCH_WITHIN))
        return sent.msg_id


class Till:
    """Charges every order. An order that cannot be charged is tried again, and finally becomes a dead letter.

    Args:
        charge: function of customer and cents; raises an error if the card is refused.
    """

    def __init__(self, namesrv: str, charge: Callable[[str, int], None]) -> None:
        self._charge = charge
        # Orders that came in before the first till started are charged, too.
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        config = PushConsumerConfig(max_reconsume_times=CHARGES_MAX, consume_from_where=first)
        self._consumer = PushConsumer("shop-till", namesrv, config)
        self._consumer.register_message_listener(self._take)
        self._consumer.subscribe(ORDERS)

    def __enter__(self) -> Self:
        self._consumer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.shutdown()

    def _take(self, message: MessageExt) -> None:
        order = json.loads(message.body)
        self._charge(order["customer"], order["cents"])
