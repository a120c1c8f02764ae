"""Who leads, and what a group is after a write without answer: the parts that the explorer meets seldom."""

from __future__ import annotations

import asyncio

from tests.brokers import run_virtual
from tests.unit.controller.etcd_model import EtcdModel, ModelGateway, unanswered
from tests.unit.controller.scene import Scene

from rucola.controller.etcd import PAGE, Etcd
from rucola.testing.clock import ManualClock

LEADER_KEY = "/rucola/controller/leader"
BOTH = {"clusterName": "c", "brokerName": "a"}


def test_a_campaign_whose_answer_was_lost_was_won() -> None:
    async def play() -> None:
        scene = Scene()
        writes = 0

        def after(path: str) -> None:
            nonlocal writes
            writes += path == "/v3/kv/txn"
            if path == "/v3/kv/txn" and writes == 2:  # the first one is the controller's own key
                raise unanswered(path)

        scene.gateways[0][0].after = after
        began = asyncio.get_running_loop().time()
        async with scene:
            assert asyncio.get_running_loop().time() - began < 2, "it does not wait for the end of its own lease"
            assert scene.etcd.value(LEADER_KEY) is not None

    run_virtual(play())


def test_a_leader_whose_key_is_another_one_ends_its_term() -> None:
    async def play() -> None:
        async with Scene() as scene:
            leadership = scene.controllers[0].leadership
            scene.etcd.delete(LEADER_KEY)
            scene.etcd.put(LEADER_KEY, b'{"name": "by hand", "address": "other:1"}')
            await scene.until(lambda: leadership.term is None, 2)
            await scene.until(lambda: leadership.leader is not None, 3)
            assert leadership.leader is not None and leadership.leader.address == "other:1"
            assert (await scene.ask(1004, brokerName="a")).code == 2007
            scene.etcd.put(LEADER_KEY, b"garbage")
            await scene.until(lambda: leadership.leader is not None and leadership.leader.address == "", 3)
            scene.etcd.delete(LEADER_KEY)
            await scene.until(lambda: leadership.term is not None, 3)

    run_virtual(play())


def test_a_term_that_has_ended_does_not_come_back() -> None:
    """A write of the old term may still be on its way, and would count in a term with the same key."""

    async def play() -> None:
        async with Scene() as scene:
            leadership = scene.controllers[0].leadership
            old = leadership.term
            assert old is not None
            leadership.lost(old)
            assert leadership.term is None
            await scene.until(lambda: leadership.term is not None, 10)
            assert leadership.term is not None and leadership.term.revision > old.revision

    run_virtual(play())


def test_after_a_write_without_answer_the_group_is_read_before_it_is_shown() -> None:
    async def play() -> None:
        async with Scene() as scene:
            one = await scene.broker(1)
            groups = scene.gateways[0][1]

            def after(path: str) -> None:
                if path == "/v3/kv/txn":
                    raise unanswered(path)

            groups.after = after
            assert (await one.elect()).code == 1
            groups.after = lambda _path: None
            answer = await scene.ask(1003, **BOTH, brokerId=1, brokerAddress=one.address)
            assert (answer.code, answer.ext_fields["masterEpoch"]) == (0, "1")

    run_virtual(play())


def test_brokers_are_told_of_a_master_once() -> None:
    async def play() -> None:
        async with Scene() as scene:
            one, two = await scene.broker(1), await scene.broker(2)
            await one.elect()
            await scene.until(lambda: two.told_epoch == 1)
            body = {"syncStateSet": [1, 2], "syncStateSetEpoch": 1}
            assert (await scene.ask(1001, body, brokerName="a", masterBrokerId=1, masterEpoch=1)).code == 0
            await asyncio.sleep(1)
            assert len(two.notices) == len(one.notices) == 1

    run_virtual(play())


def test_more_keys_than_fit_in_an_answer() -> None:
    model = EtcdModel(ManualClock().monotonic)
    names = [f"/g/{number:04}" for number in range(2 * PAGE + 1)]
    for name in [*names, "/f", "/g0"]:
        model.put(name, b"x")
    gateway = ModelGateway(model)
    found = asyncio.run(Etcd(gateway).range("/g/"))
    assert [each.key for each in found] == names
    assert len(gateway.calls) == 3
