"""Random faults break no promise of the controllers, and each planted defect breaks one."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.sizes import size
from tests.unit.controller.explorer import explore

from rucola.controller import elect, group_store, leadership, replicas_info
from rucola.controller.etcd import ETCD_ERRORS, Compare, Etcd, TxnResult
from rucola.controller.group import BrokerGroup
from rucola.controller.group_store import GroupStore
from rucola.controller.heartbeat import BrokerHeartbeatManager
from rucola.controller.leadership import Leadership

Patch = pytest.MonkeyPatch
SEEDS_MAX = 60
"""Each planted defect breaks a promise in one of so many seeds."""


@pytest.fixture(autouse=True)
def silent() -> Any:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(size(6, 400)))
def test_no_promise_is_broken(seed: int) -> None:
    world = explore(seed, controllers=2 + seed % 2)
    assert world.judge.elections > 0


def without_condition(target: str) -> Callable[[Patch], None]:
    """Transactions that write a group without one of their conditions."""

    def plant(patch: Patch) -> None:
        true_txn = Etcd.txn

        async def txn(it: Etcd, conditions: Sequence[Compare], writes: Any, otherwise: Any) -> TxnResult:
            if len(conditions) == 2:
                conditions = [one for one in conditions if one.target != target]
            return await true_txn(it, conditions, writes, otherwise)

        patch.setattr(Etcd, "txn", txn)

    return plant


def campaigns_over_a_leader(patch: Patch) -> None:
    true_txn = Etcd.txn

    async def txn(it: Etcd, conditions: Sequence[Compare], writes: Any, otherwise: Any) -> TxnResult:
        return await true_txn(it, conditions if len(conditions) == 2 else (), writes, otherwise)

    patch.setattr(Etcd, "txn", txn)


def leads_without_end(patch: Patch) -> None:
    """A leader that does not look at the time."""
    patch.setattr(Leadership, "term", property(lambda it: it._term if it._is_prepared else None))


def counts_from_the_answer(patch: Patch) -> None:
    """The lease is taken to begin when the answer came."""
    true_keep = Leadership._keep_lease

    async def keep(it: Leadership) -> None:
        await true_keep(it)
        it._lease_ends_s = it._monotonic() + leadership.TTL_S
        if it._term is not None:
            it._term.ends_s = it._lease_ends_s

    patch.setattr(Leadership, "_keep_lease", keep)


def believes_in_a_longer_lease(patch: Patch) -> None:
    true_keep = Leadership._keep_lease

    async def keep(it: Leadership) -> None:
        await true_keep(it)
        it._lease_ends_s += 3
        if it._term is not None:
            it._term.ends_s = it._lease_ends_s

    patch.setattr(Leadership, "_keep_lease", keep)


def serves_before_it_has_read(patch: Patch) -> None:
    """A new leader takes what it knew from an earlier term for what there is."""

    async def load(_it: GroupStore, _term: object) -> None:
        await asyncio.sleep(0)

    patch.setattr(GroupStore, "load", load)


def declares_dead_at_once(patch: Patch) -> None:
    def begin(it: BrokerHeartbeatManager) -> None:
        it._leading_since_s = -math.inf

    patch.setattr(BrokerHeartbeatManager, "begin_to_lead", begin)


def keeps_the_epoch(patch: Patch) -> None:
    patch.setattr(replicas_info, "epoch_after", lambda group, _live: max(group.master_epoch, 1))


def elects_anybody(patch: Patch) -> None:
    true_elect = elect.elect
    patch.setattr(replicas_info, "elect", lambda group, live, preferred, _: true_elect(group, live, preferred, True))


def keeps_the_set(patch: Patch) -> None:
    """The members of the old set stay in it, although nobody knows whether they have the new master's log."""

    def with_master(it: BrokerGroup, broker_id: int, epoch: int) -> BrokerGroup:
        values = it.to_dict() | {"masterBrokerId": broker_id, "masterEpoch": epoch}
        values["syncStateSet"] = sorted({*it.sync_state_set, broker_id})
        return BrokerGroup.from_dict(values)

    patch.setattr(BrokerGroup, "with_master", with_master)


def takes_a_write_without_answer_for_made(patch: Patch) -> None:
    true_write = GroupStore._write

    async def write(it: GroupStore, term: Any, name: str, known: Any, group: Any) -> bool:
        try:
            return await true_write(it, term, name, known, group)
        except ETCD_ERRORS:
            it._know(name, group_store._Known(group, known.revision if known else 0))
            it._doubtful.discard(name)
            return True

    patch.setattr(GroupStore, "_write", write)


def goes_on_after_another_has_led(patch: Patch) -> None:
    """A term that has ended lives on, and its writes go under the key of whoever leads."""
    patch.setattr(Leadership, "_end_late_term", lambda _it: None)
    patch.setattr(Leadership, "term", property(lambda it: it._term if it._is_prepared else None))
    without_condition("CREATE")(patch)


DEFECTS: list[tuple[Callable[[Patch], None], int]] = [
    (without_condition("CREATE"), 12),
    (without_condition("MOD"), 1),
    (campaigns_over_a_leader, 0),
    (leads_without_end, 1),
    (counts_from_the_answer, 12),
    (believes_in_a_longer_lease, 0),
    (serves_before_it_has_read, 0),
    (declares_dead_at_once, 0),
    (keeps_the_epoch, 0),
    (elects_anybody, 0),
    (keeps_the_set, 0),
    (takes_a_write_without_answer_for_made, 0),
    (goes_on_after_another_has_led, 0),
]
"""Each with the seed that is tried first."""


@pytest.mark.few(4)
@pytest.mark.parametrize("number", range(len(DEFECTS)))
def test_a_planted_defect_is_found(number: int, monkeypatch: Patch) -> None:
    plant, first = DEFECTS[number]
    plant(monkeypatch)
    for seed in range(first, first + SEEDS_MAX):
        try:
            explore(seed, controllers=2 + seed % 2)
        except Exception as error:  # noqa: BLE001 - also what a defect breaks in the code itself
            print(f"seed {seed}: {error}")
            return
    raise AssertionError("the explorer does not see this defect")
