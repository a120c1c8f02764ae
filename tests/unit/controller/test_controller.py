"""The controller over loopback TCP, on a model of etcd, in virtual time: it answers what the official one answered."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.brokers import run_virtual
from tests.unit.controller.etcd_model import unanswered
from tests.unit.controller.scene import Scene

from rucola.protocol import fastjson
from rucola.protocol.command import RemotingCommand

GOLDEN = Path(__file__).parents[2] / "golden" / "ha" / "controller"
BOTH: dict[str, Any] = {"clusterName": "c", "brokerName": "a"}
GROUP_KEY = "/rucola/controller/groups/a"


def recorded(name: str) -> list[dict[str, Any]]:
    return [each for each in orjson.loads((GOLDEN / f"{name}.json").read_bytes())["events"] if "request" in each]


def shown(answer: RemotingCommand) -> tuple[object, ...]:
    body = fastjson.loads(answer.body) if answer.body else None
    return answer.code, answer.remark or None, answer.ext_fields, body


def test_a_group_registers_as_at_the_official_controller() -> None:
    events = recorded("register")
    begun, rest = events[1:5], events[5:-1]
    assert rest[0]["t"] > 6000, "here broker 1 had registered"

    async def check(scene: Scene, steps: list[dict[str, Any]], addresses: dict[str, str]) -> None:
        for step in steps:
            fields = {key: addresses.get(str(value), value) for key, value in (step["ext"] or {}).items()}
            answer = await scene.ask(step["request"], step["body"], **fields)
            expected = orjson.dumps([step["response"], step["remark"], step["header"] or {}, step["reply"]]).decode()
            for theirs, ours in addresses.items():
                expected = expected.replace(theirs, ours)
            assert list(shown(answer)) == orjson.loads(expected), step

    async def scene() -> None:
        async with Scene() as scene:
            await check(scene, begun, {})
            one = await scene.broker(1)
            await one.elect()
            addresses = {"127.0.0.1:20610": one.address}
            # A new leader takes nobody for dead; the recorded one led for long.
            await asyncio.sleep(11)
            before_2 = [step for step in rest if step["t"] < 7000]
            await check(scene, before_2, addresses)
            fields: dict[str, Any] = {
                **BOTH,
                "brokerId": "2",
                "brokerAddr": "127.0.0.1:20650",
                "heartbeatTimeoutMills": "10000",
            }
            assert (await scene.ask(904, **fields)).code == 0
            await check(scene, [step for step in rest if step["t"] > 7000], addresses)

    run_virtual(scene())


def test_elections_and_sets_are_as_at_the_official_controller() -> None:
    """The calls of the recordings ``failover`` and ``three_epochs``."""
    notice = next(
        each for each in orjson.loads((GOLDEN / "failover.json").read_bytes())["events"] if each.get("we_got") == 1008
    )
    _, altered, elected = recorded("three_epochs")[:3]

    async def scene() -> None:
        async with Scene() as scene:
            one, two = await scene.broker(1), await scene.broker(2)
            assert (await one.elect()).code == 0
            body = {"syncStateSet": [1, 2], "syncStateSetEpoch": 1}
            answer = await scene.ask(1001, body, brokerName="a", masterBrokerId=1, masterEpoch=1)
            assert (answer.code, answer.ext_fields) == (0, {"newSyncStateSetEpoch": "2"})
            await asyncio.sleep(11)
            await one.stop()
            await scene.until(lambda: two.told_epoch == 2)
            fields, found = two.notices[-1]
            named = {**notice["header"]["extFields"], "masterAddress": two.address, "syncStateSetEpoch": "3"}
            assert fields == named
            assert found == {**orjson.loads(notice["body"]), "syncStateSetEpoch": 3}
            assert await scene.master() == ("2", "2", [2], 3)
            one = await scene.broker(1)
            body = {"syncStateSet": [1, 2], "syncStateSetEpoch": 3}
            answer = await scene.ask(1001, body, **altered["ext"])
            assert shown(answer)[:3] == (0, None, {"newSyncStateSetEpoch": "4"})
            answer = await scene.ask(1002, **elected["ext"])
            theirs = {"masterAddress": one.address, "syncStateSetEpoch": "5"}
            assert (answer.code, answer.ext_fields) == (0, {**elected["header"], **theirs})
            found = fastjson.loads(answer.body)
            expected = fastjson.loads(elected["reply"].encode())
            assert found["syncStateSet"] == expected["syncStateSet"] == [1]
            members = found["brokerMemberGroup"]
            assert members == {"cluster": "c", "brokerName": "a", "brokerAddrs": {"1": one.address, "2": two.address}}
            assert list(members) == list(expected["brokerMemberGroup"])

    run_virtual(scene())


def test_only_the_leader_answers_and_the_others_name_it() -> None:
    async def scene() -> None:
        async with Scene(2) as scene:
            first, second = scene.controllers
            await scene.until(lambda: len(first.leadership.peers) == 2 and second.leadership.leader is not None)
            for code in (1001, 1002, 1003, 1004, 1006, 1011, 1012, 1013):
                fields: dict[str, Any] = {
                    **BOTH,
                    "masterBrokerId": 1,
                    "masterEpoch": 1,
                    "brokerId": 1,
                    "brokerAddress": "x:1",
                }
                fields |= {"appliedBrokerId": 1, "registerCheckCode": "x:1;1"}
                body = (
                    {"syncStateSet": [1], "syncStateSetEpoch": 1} if code == 1001 else ["a"] if code == 1006 else None
                )
                answer = await scene.ask(code, body, to=second, **fields)
                assert (answer.code, answer.remark) == (2007, "The controller is not in leader state"), code
            fields = (await scene.ask(1005, to=second)).ext_fields
            peers = "".join(f"{address};" for address in sorted((first.address, second.address)))
            named = {"controllerLeaderAddress": first.address, "controllerLeaderId": first.address, "peers": peers}
            assert fields == {"group": "/rucola/controller", "isLeader": "false", **named}
            assert (await scene.ask(1005, to=first)).ext_fields["isLeader"] == "true"
            assert (await scene.ask(904, to=second, **BOTH, brokerAddr="x", brokerId=1)).code == 0

    run_virtual(scene())


def test_a_controller_that_stops_hands_over_at_once_and_brokers_keep_their_master() -> None:
    async def scene() -> None:
        async with Scene(2) as scene:
            first, second = scene.controllers
            one = await scene.broker(1)
            await one.elect()
            begun = asyncio.get_running_loop().time()
            await scene.stop(first)
            await scene.until(lambda: second.leadership.term is not None)
            assert asyncio.get_running_loop().time() - begun < 2
            assert (await scene.ask(1004, to=second, brokerName="a")).ext_fields["masterBrokerId"] == "1"
            assert (await scene.ask(1002, to=second, **BOTH, brokerId=1)).code == 2011

    run_virtual(scene())


def test_a_new_leader_declares_nobody_dead_before_a_heartbeat_was_due() -> None:
    """The brokers of the old leader may not have found the new one yet."""

    async def scene() -> None:
        async with Scene(2) as scene:
            first, second = scene.controllers
            one, two = await scene.broker(1), await scene.broker(2)
            await one.elect()
            body = {"syncStateSet": [1, 2], "syncStateSetEpoch": 1}
            assert (await scene.ask(1001, body, brokerName="a", masterBrokerId=1, masterEpoch=1)).code == 0
            await scene.stop(first)
            await one.stop()
            await scene.until(lambda: second.leadership.term is not None)
            began = asyncio.get_running_loop().time()
            assert (await two.elect()).code == 2011, "the master may live"
            await scene.until(lambda: two.told_epoch == 2)
            assert 10 <= asyncio.get_running_loop().time() - began < 16
            assert (await scene.master())[:3] == ("2", "2", [2])

    run_virtual(scene())


def test_a_silent_master_is_replaced_and_one_whose_old_connection_ends_late_is_not() -> None:
    async def scene() -> None:
        async with Scene() as scene:
            one, two = await scene.broker(1), await scene.broker(2)
            await one.elect()
            body = {"syncStateSet": [1, 2], "syncStateSetEpoch": 1}
            assert (await scene.ask(1001, body, brokerName="a", masterBrokerId=1, masterEpoch=1)).code == 0
            await asyncio.sleep(11)
            old, one.client = one.client, type(one.client)()
            await one.beat()
            await asyncio.sleep(0.5)
            await old.close()
            await asyncio.sleep(8)
            assert (await scene.master())[0] == "1"
            await one.fall_silent()
            began = asyncio.get_running_loop().time()
            await scene.until(lambda: two.told_epoch == 2)
            assert 9 <= asyncio.get_running_loop().time() - began <= 16
            assert (await scene.master())[0] == "2"

    run_virtual(scene())


def test_without_a_broker_in_sync_there_is_no_master_until_one_is_back() -> None:
    async def scene() -> None:
        async with Scene() as scene:
            one, two = await scene.broker(1), await scene.broker(2)
            await one.elect()
            await asyncio.sleep(11)
            await one.stop()
            await asyncio.sleep(1)
            assert await scene.master() == (None, "2", [1], 1)
            refused = await two.elect()
            assert (refused.code, refused.remark) == (2012, "Failed to elect a new master")
            one = await scene.broker(1)
            assert (await one.elect()).code == 0 and (await scene.master())[:3] == ("1", "3", [1])
            assert scene.leader.processor.elections == {
                "new_master_elected": 2, "keep_current_master": 0, "no_master_elected": 2,
            }  # fmt: skip

    run_virtual(scene())


def test_an_option_changes_by_request_and_an_unclean_election_takes_anyone() -> None:
    async def scene() -> None:
        async with Scene() as scene:
            one, two = await scene.broker(1), await scene.broker(2)
            await one.elect()
            await asyncio.sleep(11)
            await one.stop()
            await asyncio.sleep(1)
            assert (await two.elect()).code == 2012
            command = RemotingCommand(1009, body=b"enableElectUncleanMaster=true")
            assert (await scene.client.invoke(scene.leader.address, command)).code == 0
            assert b"enableElectUncleanMaster=true" in (await scene.ask(1010)).body
            assert (await two.elect()).code == 0
            assert (await scene.master())[:3] == ("2", "3", [2])
            refused = await scene.client.invoke(scene.leader.address, RemotingCommand(1009, body=b"listenPort=1"))
            assert refused.code == 16 and "scanInactiveMasterInterval" in refused.remark

    run_virtual(scene())


def test_a_write_whose_answer_was_lost_is_looked_up() -> None:
    async def scene() -> None:
        async with Scene() as scene:
            one = await scene.broker(1)
            lost = [True]

            def after(path: str) -> None:
                if path == "/v3/kv/txn" and lost.pop():
                    raise unanswered(path)

            groups = scene.gateways[0][1]
            groups.after = after
            refused = await one.elect()
            assert refused.code == 1 and "etcd http://etcd:2379 did not answer /v3/kv/txn" in refused.remark
            groups.after = lambda _path: None
            answer = await one.elect()
            assert (answer.code, answer.ext_fields["masterEpoch"]) == (2011, "1")
            await scene.until(lambda: one.told_epoch == 1)

    run_virtual(scene())


def test_a_stuck_etcd_is_an_error_after_five_seconds_and_other_groups_do_not_wait() -> None:
    async def scene() -> None:
        async with Scene() as scene:
            one, other = await scene.broker(1), await scene.broker(1, name="b")
            stuck = asyncio.Event()
            held = [True]

            def before(path: str) -> Any:
                return stuck.wait() if path == "/v3/kv/txn" and held and held.pop() else None

            scene.gateways[0][1].before = before
            waiting = asyncio.ensure_future(one.elect())
            await asyncio.sleep(0.1)
            assert (await other.elect()).code == 0
            refused = await waiting
            assert (refused.code, refused.remark) == (1, "etcd has not confirmed the change within 5 s")
            assert (await one.elect()).code == 0, "the write was not made"

    run_virtual(scene())


def test_without_etcd_the_leader_serves_until_its_lease_may_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scene() -> None:
        async with Scene() as scene:
            one = await scene.broker(1)
            await one.elect()
            leadership = scene.controllers[0].leadership

            def gone(path: str) -> None:
                raise unanswered(path)

            for gateway in scene.gateways[0]:
                gateway.before = gone
            began = asyncio.get_running_loop().time()
            assert (await scene.ask(1004, brokerName="a")).code == 0
            await scene.until(lambda: leadership.term is None)
            assert 3.5 < asyncio.get_running_loop().time() - began < 5.1
            assert (await scene.ask(1004, brokerName="a")).code == 2007
            assert "did not answer" in leadership.error
            await asyncio.sleep(30)
            for gateway in scene.gateways[0]:
                gateway.before = lambda _path: None
            await scene.until(lambda: leadership.term is not None)
            assert leadership.error == ""
            assert (await scene.ask(1004, brokerName="a")).ext_fields["masterBrokerId"] == "1"
            texts = [record.getMessage().partition(";")[0] for record in caplog.records]
            assert sum("etcd cannot be used" in text for text in texts) == 1

    run_virtual(scene())


def test_what_is_not_a_group_is_left_alone_and_the_other_groups_go_on() -> None:
    async def scene() -> None:
        async with Scene() as scene:
            other = await scene.broker(1, name="b")
            scene.etcd.put(GROUP_KEY, b'{"of": "another program"}')
            fields: dict[str, Any] = {**BOTH, "appliedBrokerId": 1, "registerCheckCode": "x:1;1"}
            for _ in range(2):
                answer = await scene.ask(1013, **fields)
                assert answer.code == 1 and "etcd's key /rucola/controller/groups/a is not a group" in answer.remark
            assert (await scene.ask(1004, brokerName="a")).code == 1
            assert (await other.elect()).code == 0
            assert scene.etcd.value(GROUP_KEY) == b'{"of": "another program"}'

    run_virtual(scene())


def test_a_group_that_somebody_changed_in_etcd_is_decided_anew() -> None:
    async def scene() -> None:
        async with Scene() as scene:
            one = await scene.broker(1)
            await one.elect()
            scene.etcd.delete(GROUP_KEY)
            answer = await scene.ask(1013, **BOTH, appliedBrokerId=2, registerCheckCode="x:1;1")
            assert (answer.code, "hasn't been registered" in answer.remark) == (2014, True)
            assert (await scene.ask(1004, brokerName="a")).code == 2008

    run_virtual(scene())


def test_an_etcd_that_was_brought_back_from_a_copy_does_not_reuse_epochs() -> None:
    """Its group has an older epoch than the logs of the brokers, which would refuse it."""

    async def scene() -> None:
        async with Scene() as scene:
            one = await scene.broker(1, epoch=7)
            answer = await one.elect()
            assert (answer.code, answer.ext_fields["masterEpoch"]) == (0, "8")

    run_virtual(scene())


def test_brokers_are_removed() -> None:
    async def scene() -> None:
        async with Scene() as scene:
            one, two = await scene.broker(1), await scene.broker(2)
            await one.elect()
            body = {"syncStateSet": [1, 2], "syncStateSetEpoch": 1}
            assert (await scene.ask(1001, body, brokerName="a", masterBrokerId=1, masterEpoch=1)).code == 0
            await asyncio.sleep(11)

            async def clean(living: bool = False, **fields: Any) -> tuple[int, str]:
                answer = await scene.ask(1011, **BOTH, isCleanLivingBroker=str(living).lower(), **fields)
                return answer.code, answer.remark

            assert await clean() == (2009, "Broker a is still alive, clean up failure")
            ids: dict[str, Any] = {"brokerControllerIdsToClean": "2"}
            assert await clean(**ids) == (2009, "Broker [a,  2] is still alive, clean up failure")
            await two.stop()
            await asyncio.sleep(0.5)
            assert sum(scene.leader.processor.elections.values()) == 1, "the master lives"
            assert await clean(brokerControllerIdsToClean="two") == (
                2009, "Please set the option <brokerControllerIdsToClean> according to the format: 'two'",
            )  # fmt: skip
            assert await clean(**ids) == (0, "")
            assert await scene.master() == ("1", "1", [1], 3)
            assert (await scene.ask(1012, **BOTH)).ext_fields["nextBrokerId"] == "3", "an id is given once"
            again = await scene.ask(1013, **BOTH, appliedBrokerId=2, registerCheckCode=two.check_code)
            assert again.code == 2014
            assert await clean(living=True) == (0, "")
            assert (await scene.ask(1004, brokerName="a")).code == 2008
            assert scene.etcd.value(GROUP_KEY) is None
            assert await clean() == (2009, "Broker a is not existed,clean broker data failure.")

    run_virtual(scene())


def test_limits() -> None:
    async def scene() -> None:
        async with Scene(groups_max=1, brokers_max=1) as scene:
            await scene.broker(1)
            fields: dict[str, Any] = {
                "clusterName": "c",
                "brokerName": "b",
                "appliedBrokerId": 1,
                "registerCheckCode": "x:1;1",
            }
            answer = await scene.ask(1013, **fields)
            assert (answer.code, answer.remark) == (1, "there are 1 groups already (groupsMax)")
            answer = await scene.ask(904, **BOTH, brokerId=2, brokerAddr="x")
            assert (answer.code, answer.remark) == (1, "1 brokers send heartbeats already (brokersMax)")
            answer = await scene.ask(904, **BOTH, brokerId=1, brokerAddr="x", heartbeatTimeoutMills=1 << 40)
            assert answer.code == 2005
            answer = await scene.ask(
                1013, **{**BOTH, "brokerName": "n" * 256}, appliedBrokerId=1, registerCheckCode="x"
            )
            assert answer.code == 2014
            answer = await scene.ask(1013, **BOTH, appliedBrokerId=1 << 60, registerCheckCode="x")
            assert answer.code == 2014
            answer = await scene.ask(1003, clusterName="d", brokerName="a", brokerId=1, brokerAddress="x:1")
            assert (answer.code, answer.remark) == (2010, "Broker-set: a belongs to the cluster c")

    run_virtual(scene())


@pytest.mark.parametrize(
    ("code", "body"),
    [(1001, b"[]"), (1001, b"{"), (1006, b""), (1006, b"{}"), (1006, b"[1]"), (1004, b""), (1013, b"")],
)
def test_malformed_requests_are_refused(code: int, body: bytes) -> None:
    async def scene() -> None:
        async with Scene() as scene:
            fields = {"brokerName": "a", "masterBrokerId": "1", "masterEpoch": "1"} if code == 1001 else {}
            command = RemotingCommand(code, ext_fields=fields, body=body)
            answer = await scene.client.invoke(scene.leader.address, command)
            assert answer.code == 1 and "Format" in answer.remark

    run_virtual(scene())
