"""Nothing that is planted to lose a wake-up passes the world of ``delivery_world``."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any
from unittest.mock import patch

import pytest
from tests.sizes import size
from tests.unit.broker.lite.delivery_world import World, WorldError, run

from rucola.broker.lite import event_dispatcher
from rucola.broker.lite.event_dispatcher import LiteEventDispatcher
from rucola.broker.lite.leases import LiteLeases
from rucola.broker.lite.order_block import OrderBlock
from rucola.broker.lite.reading_group import LiteClient, ReadingGroup
from rucola.broker.lite.subscriptions import LiteSubscriptions

STEPS = 2500
PLANTED_STEPS, PLANTED_SEEDS = 800, 5


@pytest.mark.parametrize("seed", range(size(2, 25)))
def test_everything_is_delivered_in_order_and_nothing_twice_without_a_reason(seed: int) -> None:
    assert run(seed, STEPS).deliveries > 200


@pytest.mark.parametrize("seed", range(size(1, 25)))
def test_a_wildcard_group_with_room_for_few_events(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_dispatcher, "READY_MAX", 8)
    monkeypatch.setattr(event_dispatcher, "_FOUND_A_STEP", 3)
    assert run(seed, STEPS).deliveries > 200


def _replace(name: str, function: Callable[..., Any]) -> Callable[[World], None]:
    """Replaces a method of the dispatcher; ``function`` gets the dispatcher as well."""
    return lambda world: setattr(world.dispatcher, name, MethodType(function, world.dispatcher))


def _nothing(*_: Any) -> None:
    """A step that is left out."""


def _arrived_if_somebody_waits(self: LiteEventDispatcher, name: bytes, now_ms: int) -> None:
    for group in self._groups.of_parent(name.partition(b"$")[0]):
        if any(client.waiters for client in group.clients.values()):
            self.ready(group, name, now_ms)


def _block_changed_without_a_look(self: LiteEventDispatcher, group: ReadingGroup, name: bytes, now_ms: int) -> None:
    block = group.blocks[name]
    if block.is_over():
        self.unblock(group, name)
    elif block.free_ms > now_ms:
        self._leases.set((group, name), block.free_ms)


def _leases_end_silently(self: LiteEventDispatcher, now_ms: int, count_max: int = 256) -> None:
    while self._leases.take(now_ms) is not None:
        pass


def _subscribed_without_a_look(self: LiteEventDispatcher, client: LiteClient, name: bytes, now_ms: int) -> None:
    client.group.add_holder(name, client)


def _unsubscribed_keeps_the_event(self: LiteEventDispatcher, client: LiteClient, name: bytes, now_ms: int) -> None:
    group = client.group
    group.remove_holder(name, client)
    if group.owners.get(name) is client:
        del group.owners[name], client.events[name]


def _lease_not_noted(self: LiteEventDispatcher, group: ReadingGroup, name: bytes, block: OrderBlock) -> None:
    group.blocks[name] = block


def _event_without_a_wake(
    self: LiteEventDispatcher, group: ReadingGroup, name: bytes, before: LiteClient | None, client: LiteClient
) -> None:
    if before is not None:
        before.events.pop(name, None)
    client.events[name] = None
    group.owners[name] = client


def _takes_and_forgets(self: LiteEventDispatcher, client: LiteClient, now_ms: int) -> bytes | None:
    first = LiteEventDispatcher.take(self, client, now_ms)
    return LiteEventDispatcher.take(self, client, now_ms) if client.events else first


def _put_back_nowhere(self: LiteEventDispatcher, client: LiteClient, name: bytes) -> None:
    pass


def _joined_without_a_scan(self: LiteEventDispatcher, client: LiteClient) -> None:
    client.is_subscribed = True
    if client.waiters:
        client.group.waiting[client] = None


def _moved_without_a_look(world: World) -> None:
    def move_to(self: LiteLeases, group: ReadingGroup, name: bytes, queue_offset: int, now_ms: int) -> None:
        with patch.object(world.dispatcher, "ready_if_unread"):
            LiteLeases.move_to(self, group, name, queue_offset, now_ms)

    world.rules.move_to = MethodType(move_to, world.rules)  # type: ignore[method-assign]


def _ends_with_its_events(world: World) -> None:
    def complete_remove(self: LiteSubscriptions, client: LiteClient, now_ms: int) -> Any:
        yield from LiteSubscriptions.complete_remove(self, client, now_ms)
        for name in client.group.holders:
            client.group.owners.pop(name, None)

    world.subscriptions.complete_remove = MethodType(complete_remove, world.subscriptions)  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[World], None]] = {
    "an arrival counts only if somebody waits": _replace("arrived", _arrived_if_somebody_waits),
    "no look after an acknowledgement": _replace("block_changed", _block_changed_without_a_look),
    "no look after the end of a lease": _replace("end_leases", _leases_end_silently),
    "no look after a subscription": _replace("subscribed", _subscribed_without_a_look),
    "the event of who unsubscribes is lost": _replace("unsubscribed", _unsubscribed_keeps_the_event),
    "the end of a lease is not noted": _replace("block", _lease_not_noted),
    "an event wakes nobody": _replace("_give", _event_without_a_wake),
    "an event of a wildcard group wakes nobody": _replace("_wake_any", _nothing),
    "a second event is taken with the first": _replace("take", _takes_and_forgets),
    "no scan for the first client of a wildcard group": _replace("joined", _joined_without_a_scan),
    "an event whose messages are on the disk is lost": _replace("put_back", _put_back_nowhere),
    "no look after a new offset": _moved_without_a_look,
    "the end of a client takes events of others along": _ends_with_its_events,
    "nobody looks for silent clients": _replace("move", lambda *_: iter(())),
    "the next waiting pop is not woken": _replace("settle", _nothing),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_a_planted_loss_is_found(plant: Callable[[World], None]) -> None:
    with pytest.raises(WorldError):
        for seed in range(PLANTED_SEEDS):
            run(seed, PLANTED_STEPS, plant)
