"""The shop's tests, a hundred of them, each with its own broker: ``pytest examples/shop``.

The fixture ``rocketmq`` comes with ``pip install 'rucola-mq[testing]'``, or ``'.[testing]'`` in a checkout.
"""

from __future__ import annotations

import json
from collections import Counter as Counts
from datetime import timedelta
from queue import SimpleQueue

import pytest
from shop import CHARGES_MAX, FETCH_WITHIN, ORDERS, REMINDERS, Counter, Till

from rucola.testing.rocketmq import RocketMQ

MENU = {"espresso": 250, "macchiato": 300, "cappuccino": 350, "latte": 390, "filter": 280}
CUSTOMERS = ("Ada", "Grace", "Edsger", "Barbara", "Tony")


class Card:
    """A card that is refused several times before it works."""

    def __init__(self, refusals: int = 0) -> None:
        self.charged: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self.tries: Counts[str] = Counts()
        self._refusals = refusals

    def charge(self, customer: str, cents: int) -> None:
        self.tries[customer] += 1
        if self.tries[customer] <= self._refusals:
            raise RuntimeError(f"the card of {customer} is refused")
        self.charged.put((customer, cents))


@pytest.mark.parametrize("item", MENU)
@pytest.mark.parametrize("customer", CUSTOMERS)
def test_an_order_is_published_and_charged(rocketmq: RocketMQ, customer: str, item: str) -> None:
    rocketmq.create_topic(ORDERS)
    card = Card()
    with Till(rocketmq.namesrv, card.charge), Counter(rocketmq.namesrv) as counter:
        rocketmq.consumers("shop-till", count=1)
        counter.order(customer, item, MENU[item])
        assert card.charged.get(timeout=10) == (customer, MENU[item])
    (order,) = rocketmq.messages(ORDERS)
    assert (order.tags, order.keys) == (item, customer)


@pytest.mark.parametrize("refusals", range(CHARGES_MAX + 1))
@pytest.mark.parametrize("customer", CUSTOMERS)
def test_a_refused_card_is_tried_again_after_longer_and_longer_pauses(
    rocketmq: RocketMQ, customer: str, refusals: int
) -> None:
    rocketmq.create_topic(ORDERS)
    card = Card(refusals)
    with Till(rocketmq.namesrv, card.charge), Counter(rocketmq.namesrv) as counter:
        rocketmq.consumers("shop-till", count=1)
        counter.order(customer, "latte", 390)
        for _ in range(refusals):
            assert card.charged.empty()
            rocketmq.retries("shop-till", count=1)
            rocketmq.clock.advance(hours=1)
        assert card.charged.get(timeout=10) == (customer, 390)
    assert rocketmq.dead_letters("shop-till") == []


@pytest.mark.parametrize("customer", CUSTOMERS)
def test_an_order_that_is_never_charged_is_a_dead_letter(rocketmq: RocketMQ, customer: str) -> None:
    rocketmq.create_topic(ORDERS)
    card = Card(refusals=99)
    with Till(rocketmq.namesrv, card.charge), Counter(rocketmq.namesrv) as counter:
        rocketmq.consumers("shop-till", count=1)
        counter.order(customer, "latte", 390)
        (letter,) = rocketmq.exhaust_retries("shop-till")
    assert json.loads(letter.body)["customer"] == customer
    assert card.charged.empty()


@pytest.mark.parametrize("early", [timedelta(minutes=minutes) for minutes in range(1, 16)])
def test_a_reminder_comes_after_its_time_and_no_earlier(rocketmq: RocketMQ, early: timedelta) -> None:
    with Counter(rocketmq.namesrv) as counter:
        order_id = counter.order("Ada", "filter", 280)
    rocketmq.clock.advance(FETCH_WITHIN - early)
    assert rocketmq.messages(REMINDERS) == []
    rocketmq.clock.advance(early + timedelta(seconds=2))
    (reminder,) = rocketmq.wait_for_messages(REMINDERS, count=1)
    assert reminder.keys == order_id


@pytest.mark.parametrize("refused", range(1, 3))
@pytest.mark.parametrize("item", MENU)
def test_a_busy_broker_costs_no_order(rocketmq: RocketMQ, item: str, refused: int) -> None:
    with Counter(rocketmq.namesrv) as counter:
        rocketmq.faults.refuse("send", times=refused)
        counter.order("Grace", item, MENU[item])
    assert [order.tags for order in rocketmq.messages(ORDERS)] == [item]


@pytest.mark.parametrize("orders", range(1, 16))
def test_orders_of_a_customer_stay_in_order_over_a_killed_broker(rocketmq: RocketMQ, orders: int) -> None:
    with Counter(rocketmq.namesrv) as counter:
        ids = [counter.order("Tony", "espresso", 250) for _ in range(orders)]
        rocketmq.kill()
        rocketmq.start()
        ids.append(counter.order("Tony", "espresso", 250))
    stored = rocketmq.messages(ORDERS)
    assert [order.msg_id for order in stored] == ids
    assert len({order.queue_id for order in stored}) == 1


@pytest.mark.parametrize("item", MENU)
@pytest.mark.parametrize("customer", CUSTOMERS[:3])
def test_a_till_that_comes_later_charges_what_was_ordered_before(rocketmq: RocketMQ, customer: str, item: str) -> None:
    card = Card()
    with Counter(rocketmq.namesrv) as counter:
        counter.order(customer, item, MENU[item])
    with Till(rocketmq.namesrv, card.charge):
        assert card.charged.get(timeout=10) == (customer, MENU[item])
