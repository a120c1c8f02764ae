"""The rules of events, blocks and due times, one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.unit.broker.lite.delivery_world import FakeStore, Waiter

from rucola.broker.lite.attributes import LiteGroup
from rucola.broker.lite.event_dispatcher import SILENT_MS, LiteEventDispatcher
from rucola.broker.lite.leases import LiteLeases
from rucola.broker.lite.order_block import OrderBlock
from rucola.broker.lite.reading_group import LiteClient, ReadingGroup, ReadingGroups
from rucola.broker.lite.subscriptions import LiteSubscriptions, Start
from rucola.broker.shares import Shares
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.remoting.fairness.steps import at_once

ONE, TWO = b"p$1", b"p$2"


class Rules:
    """A group with clients, over a store with messages."""

    def __init__(self, settings: LiteGroup | None = None, check_holder: Callable[..., None] = lambda *_: None) -> None:
        self.groups, self.store = ReadingGroups(), FakeStore(random.Random(0))
        self.dispatcher = LiteEventDispatcher(self.groups, self.store, lambda _: 0, 2)
        self.leases = LiteLeases(self.dispatcher, self.store)
        self.names, self.clients = Shares(8, 4, 1), Shares(3, 3, 0)
        self.subscriptions = LiteSubscriptions(
            self.groups, self.dispatcher, self.leases, self.store, self.clients, self.names, check_holder, lambda: 1
        )
        self.group: ReadingGroup = self.groups.make("g", settings or LiteGroup("p"))

    def client(self, client_id: str, *names: bytes, account: str = "", now_ms: int = 0) -> LiteClient:
        client = self.subscriptions.client(self.group, client_id, account, now_ms)
        at_once(self.subscriptions.partial_add(client, names, Start(), now_ms))
        return client

    def send(self, name: bytes, now_ms: int = 0) -> None:
        self.store.put(name)
        self.dispatcher.arrived(name, now_ms)

    def wait(self, client: LiteClient) -> Any:
        waiter = cast("Any", Waiter(client, cast("Any", None)))
        self.dispatcher.wait(client, waiter)
        return waiter


def test_an_event_goes_to_who_waits_then_to_who_has_room() -> None:
    rules = Rules()
    first, second = rules.client("a", b"p$0", ONE, TWO), rules.client("b", b"p$0", ONE, TWO, account="x")
    waiter = rules.wait(second)
    rules.send(ONE)
    assert (rules.dispatcher.woken, list(second.events), list(first.events)) == ([waiter], [ONE], [])
    rules.send(ONE)
    assert rules.dispatcher.woken == [waiter], "there is an event already"
    rules.send(TWO)
    rules.send(b"p$0")
    assert list(first.events) == [TWO, b"p$0"]
    rules.dispatcher.take(second, 0)
    rules.send(ONE)
    assert list(second.events) == [ONE], "the other one has as many events as it may"


def test_a_new_message_finds_who_polls() -> None:
    rules = Rules()
    silent, other = rules.client("a", ONE), rules.client("b", ONE)
    rules.send(ONE)
    assert list(silent.events) == [ONE]
    rules.dispatcher.polled(other, SILENT_MS - 1)
    at_once(rules.dispatcher.move_from_silent(SILENT_MS))
    assert (silent.is_aside, list(silent.events), list(other.events)) == (True, [], [ONE])
    rules.dispatcher.take(other, SILENT_MS)
    other.is_aside = True
    rules.send(ONE, SILENT_MS)
    rules.dispatcher.polled(silent, SILENT_MS)
    rules.send(ONE, SILENT_MS)
    assert list(silent.events) == [ONE], "who polls again gets events again"


def test_an_event_that_is_given_back_finds_another_subscriber() -> None:
    rules = Rules()
    first, second = rules.client("a", ONE), rules.client("b", ONE)
    rules.send(ONE)
    assert rules.dispatcher.take(first, 0) == ONE
    waiter = rules.wait(second)
    at_once(rules.subscriptions.partial_remove(first, [ONE], 0))
    rules.dispatcher.put_back(first, ONE)
    assert (rules.dispatcher.woken, list(second.events)) == ([waiter], [ONE])


def test_what_ended_while_long_steps_ran_stays_ended() -> None:
    """The steps of a subscription began at 0; meanwhile a lease ended at 100, when nobody subscribed."""
    rules = Rules(LiteGroup("p", quota=-1))
    rules.send(ONE)
    rules.dispatcher.block(rules.group, ONE, OrderBlock(None, 1, 100, [0]))
    rules.dispatcher.end_leases(100)
    late = rules.subscriptions.client(rules.group, "a", "", 0)
    at_once(rules.subscriptions.partial_add(late, [ONE], Start(), 0))
    assert list(late.events) == [ONE]


def test_a_lease_of_nobody_is_dropped() -> None:
    rules = Rules()
    rules.dispatcher.block(rules.group, ONE, OrderBlock(None, 1, 100, [0]))
    assert (rules.dispatcher.next_ms(), rules.dispatcher.block_count) == (100, 1)
    rules.dispatcher.end_leases(99)
    assert rules.dispatcher.block_count == 1
    rules.dispatcher.end_leases(100)
    assert (rules.dispatcher.next_ms(), rules.dispatcher.block_count) == (None, 0)


def test_messages_that_cannot_be_read_are_looked_at_again() -> None:
    rules = Rules()
    client = rules.client("a", ONE)
    rules.send(ONE)
    assert rules.dispatcher.take(client, 0) == ONE
    rules.dispatcher.look_again(rules.group, ONE, 1000)
    rules.dispatcher.end_leases(999)
    assert not client.events
    rules.dispatcher.end_leases(1000)
    assert list(client.events) == [ONE]


def test_shares_of_accounts() -> None:
    def refuse(client_id: str, holder: str, account: str) -> None:
        raise BrokerError(ResponseCode.NO_PERMISSION, f"{client_id} is {holder}'s")

    rules = Rules(check_holder=refuse)
    rules.client("a", *(b"p$%d" % number for number in range(4)), account="one")
    with pytest.raises(BrokerError) as refused:
        rules.client("b", ONE, account="one")
    assert refused.value.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    rules.client("c", *(b"p$%d" % number for number in range(4)), account="two")
    with pytest.raises(BrokerError) as refused:
        rules.client("d", account="three")
    assert refused.value.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, "too many clients"
    with pytest.raises(BrokerError) as refused:
        rules.client("a", account="two")
    assert refused.value.code == ResponseCode.NO_PERMISSION
    for client in list(rules.group.clients.values()):
        at_once(rules.subscriptions.complete_remove(client, 0))
    assert (rules.names.count, rules.clients.count, rules.group.holders) == (0, 0, {})


def test_taken_names_count_until_they_are_noted() -> None:
    rules = Rules(LiteGroup("p", exclusive=True))
    loser = rules.client("a", ONE, TWO)
    rules.client("b", ONE)
    assert (loser.names, loser.taken, rules.names.count) == ({TWO}, {ONE}, 3)
    at_once(rules.subscriptions.complete_add(loser, [TWO], 0))
    assert (loser.taken, rules.names.count) == (set(), 2)
    rules.subscriptions.drop(rules.group)
    assert (rules.names.count, rules.clients.count) == (0, 0)


def test_counts_of_a_block() -> None:
    first = OrderBlock("x", 1, 10, [3, 5])
    repeated = OrderBlock("x", 2, 10, [3, 5, 6], first)
    again = OrderBlock("y", 3, 10, [3, 5, 6], repeated)
    assert (first.counts, repeated.counts, again.counts) == ((0, 0), (0, 0, 0), (1, 1, 1))
    again.suspend(20)
    assert (OrderBlock(None, 4, 10, [3, 9], again).counts, again.free_ms) == ((1, 0), 20)
    again.hide(5, 90)
    again.acknowledge(3)
    assert (again.free_ms, again.next_offset(), again.is_over()) == (90, 5, False)
    again.acknowledge(5)
    again.acknowledge(6)
    assert (again.free_ms, again.next_offset(), again.is_over()) == (0, 7, True)
    assert not OrderBlock(None, 1, 1, [1]).is_of(None)
