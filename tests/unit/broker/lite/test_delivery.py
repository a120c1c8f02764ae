"""Delivery of lite topics by a running broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.brokers import run_virtual
from tests.unit.broker.lite.lite_cluster import (
    BATCH_ACK,
    DISPATCH,
    GROUP,
    NOTIFY,
    PARENT,
    POLLING_TIMEOUT,
    SUBSCRIBE,
    SUCCESS,
    LiteCluster,
    bodies,
    counts,
)

from rucola.broker.acl.requirements import REQUIREMENTS
from rucola.common.lite_topics import lite_shard
from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.protocol import fastjson
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.lite import NotifyUnsubscribeLiteRequestHeader
from rucola.remoting.client import RemotingClient


def test_messages_arrive_in_order_and_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            await cluster.add("one", "two")
            waiting = asyncio.create_task(cluster.pop(poll_ms=60_000))
            await asyncio.sleep(1)
            assert len(cluster.delivery.hold) == 1
            cluster.put("one", "a", "b")
            first = await waiting
            assert (bodies(first), counts(first), first.remark) == (["a", "b"], "0;0", "FOUND")
            assert first.ext_fields["reviveQid"] == "999"
            cluster.put("one", "c")
            cluster.put("two", "d")
            assert await cluster.take() == ["d"]  # the first batch of ``one`` is in flight
            for offset in (1, 0):
                assert (await cluster.ack(first, "one", offset)).code == SUCCESS
            assert await cluster.take() == ["c"]
            empty = await cluster.pop(poll_ms=1000)
            assert (empty.code, empty.remark, counts(empty)) == (POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE", "")

    run_virtual(work())


def test_a_batch_in_flight_is_acknowledged_out_of_order(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "a", "b", "c")
            await cluster.add("one")
            first = await cluster.pop(invisibleTime=3000)
            for offset in (0, 2, 2):
                assert (await cluster.ack(first, "one", offset)).code == SUCCESS
            assert committed(cluster, "one") == 1
            again = await cluster.pop(poll_ms=10_000)  # woken when the lease ends
            assert (bodies(again), counts(again)) == (["b", "c"], "1;1")
            cluster.put("one", "d")
            assert (await cluster.ack(first, "one", 1)).code == SUCCESS  # of an earlier pop: nothing happens
            assert committed(cluster, "one") == 1
            for offset in (1, 2):
                await cluster.ack(again, "one", offset)
            third = await cluster.pop()
            assert (bodies(third), counts(third)) == (["d"], "0")

    run_virtual(work())


def test_a_repeated_pop_gets_its_batch_again_and_no_other_pop_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "a", "b")
            cluster.put("two", "c")
            await cluster.add("one", "two")
            first = await cluster.pop(attemptId="x")
            assert sorted(bodies(first)) == ["a", "b", "c"]
            await cluster.ack(first, "one", 0)
            assert await cluster.take(attemptId="y") == []
            again = await cluster.pop(attemptId="x")
            assert (sorted(bodies(again)), counts(again)) == (["b", "c"], "0;0")
            assert (await cluster.ack(first, "one", 1)).code == SUCCESS
            assert committed(cluster, "one") == 1, "the receipt of the lost response counts no more"
            await cluster.ack(again, "one", 1)
            assert (committed(cluster, "one"), await cluster.take(attemptId="x")) == (2, ["c"])

    run_virtual(work())


def test_a_repetition_ends_the_waiting_pop(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            await cluster.add("one")
            older = asyncio.create_task(cluster.pop(poll_ms=60_000, attemptId="x"))
            await asyncio.sleep(1)
            newer = asyncio.create_task(cluster.pop(poll_ms=60_000, attemptId="x"))
            assert (await older).code == POLLING_TIMEOUT
            cluster.put("one", "a")
            assert bodies(await newer) == ["a"]
            assert len(cluster.delivery.hold) == 0

    run_virtual(work())


def test_invisible_times_and_suspension(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "a", "b")
            await cluster.add("one")
            answer = await cluster.pop()
            for _ in range(10):
                changed = await cluster.change(answer, "one", 0, suspend="true", invisibleTime="50")
                assert changed.ext_fields["popTime"] == answer.ext_fields["popTime"]
                answer = await cluster.pop(poll_ms=10_000)
                assert (bodies(answer), counts(answer)) == (["a", "b"], "0;0"), "a suspension costs no attempt"
            await cluster.change(answer, "one", 0, invisibleTime="50")
            assert await cluster.take(poll_ms=10_000) == [], "the other message is still leased"
            await cluster.change(answer, "one", 1, invisibleTime="0")
            answer = await cluster.pop(poll_ms=1000)
            assert (bodies(answer), counts(answer)) == (["a", "b"], "1;1")
            late = await cluster.change(answer, "one", 0, extraInfo="0 1 1 999 0 broker-a 0", invisibleTime="0")
            assert (late.code, await cluster.take()) == (SUCCESS, [])

    run_virtual(work())


def test_what_an_acknowledgement_is_refused_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.parent("Other")
            cluster.put("one", "a", "b")
            cluster.put("one", "c")
            await cluster.add("one")
            answer = await cluster.pop(maxMsgNum=2)
            for changes, ack_code, change_code in (
                ({"queueId": "1"}, 29, 0),
                ({"extraInfo": "0 1 1 0 0 broker-a 0"}, 29, 0),
                ({"topic": "Other"}, 29, 0),
                ({"consumerGroup": "unknown"}, 29, 0),
                ({"topic": "nowhere"}, 17, 17),
                ({"offset": "4"}, 208, 208),
                ({"offset": "2"}, 13, 0),
                ({"liteTopic": "never"}, 0, 0),
                ({"liteTopic": "a$b"}, 29, 0),
                ({"extraInfo": "x"}, 1, 1),
            ):
                assert (await cluster.ack(answer, "one", 0, **changes)).code == ack_code, changes
                assert (await cluster.change(answer, "one", 0, **changes)).code == change_code, changes
            assert committed(cluster, "one") == 0
            assert await cluster.take() == [], "none of these changed the lease"

    run_virtual(work())


def test_a_batch_of_acknowledgements_names_the_light_queue(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "a", "b", "c")
            await cluster.add("one")
            answer = await cluster.pop()
            for topic, group, bits, expected in (
                ("%LMQ%$Parent$one", "unknown", "BQ==", 0),
                ("%LMQ%$Parent$never", GROUP, "BQ==", 0),
                ("%LMQ%$Parent$one", GROUP, "BQ==", 1),  # the first and the third
                ("%LMQ%$Parent$one", GROUP, "Ag==", 3),
            ):
                ack = {"c": group, "t": topic, "r": "0", "so": 0, "q": 0, "rq": 999, "b": bits}
                times = {"pt": int(answer.ext_fields["popTime"]), "it": 60_000}
                body = fastjson.dumps({"brokerName": "broker-a", "acks": [ack | times]})
                assert (await cluster.ask(BATCH_ACK, body=body)).code == SUCCESS
                assert committed(cluster, "one") == expected, (topic, group)

    run_virtual(work())


def test_accounts_need_the_group_and_the_parent() -> None:
    body = fastjson.dumps({"subscriptionSet": [{"group": "g", "topic": "p"}, {"group": "h", "topic": "q"}]})
    (need,) = REQUIREMENTS[SUBSCRIBE] or ()
    found = need.resources(RemotingCommand(SUBSCRIBE, body=body), lambda _: None)
    assert [(each.kind, each.name) for each in found] == [
        ("group", "g"),
        ("topic", "p"),
        ("group", "h"),
        ("topic", "q"),
    ]
    acks = fastjson.dumps({"acks": [{"c": "g", "t": "%LMQ%$p$l"}]})
    (need,) = REQUIREMENTS[BATCH_ACK] or ()
    found = need.resources(RemotingCommand(BATCH_ACK, body=acks), lambda _: None)
    assert [(each.kind, each.name) for each in found] == [("group", "g"), ("topic", "p")]


def test_what_a_pop_is_refused_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.group("elsewhere", "Elsewhere")
            cluster.group("disabled", consume_enable=False)
            cluster.broker.topics.create_for_group("Plain", 1)
            for changes, code in (
                ({"bornTime": 1}, 210),
                ({"maxMsgNum": 33}, 29),
                ({"maxMsgNum": 0}, 29),
                ({"clientId": " "}, 29),
                ({"topic": "nowhere"}, 17),
                ({"topic": "Plain"}, 29),
                ({"consumerGroup": "unknown"}, 26),
                ({"consumerGroup": "disabled"}, 16),
                ({"consumerGroup": "elsewhere"}, 29),
            ):
                answer = await cluster.pop(**changes)
                assert (answer.code, answer.body) == (code, b""), (changes, answer.remark)
            assert (await cluster.ask(200072, {})).code == 3, "reserved"

    run_virtual(work())


def test_a_group_begins_with_the_oldest_message_unless_the_client_says_otherwise(tmp_path: Path) -> None:
    def option(kind: str, value: int) -> dict[str, object]:
        return {"offsetOption": {"type": kind, "value": value}}

    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            for lite, more, expected in (
                ("last", {}, ["0", "1", "2"]),
                ("min", option("POLICY", 1), ["0", "1", "2"]),
                ("max", option("POLICY", 2), []),
                ("at", option("OFFSET", 1), ["1", "2"]),
                ("beyond", option("OFFSET", 99), []),
                ("negative", option("OFFSET", -5), ["0", "1", "2"]),
                ("tail", option("TAIL_N", 1), ["0", "1", "2"]),
                ("time", option("TIMESTAMP", 1), ["0", "1", "2"]),
                ("later", option("TIMESTAMP", 4_102_444_800_000), []),
            ):
                cluster.put(lite, "0", "1", "2")
                await cluster.add(lite, **more)
                assert await cluster.take() == expected, lite
            cluster.put("beyond", "3")
            assert await cluster.take() == ["3"]

    run_virtual(work())


def test_an_offset_that_is_set_ends_the_last_pop(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "a", "b")
            await cluster.add("one")
            first = await cluster.pop()
            await cluster.ack(first, "one", 0)
            await cluster.ack(first, "one", 1)
            await cluster.add("one", offsetOption={"type": "TAIL_N", "value": 1})
            await cluster.ack(first, "one", 1)
            assert committed(cluster, "one") == 1, "acknowledgements of former pops do not count"
            second = await cluster.pop()
            assert (bodies(second), counts(second)) == (["b"], "0")
            await cluster.ack(second, "one", 1)
            assert committed(cluster, "one") == 2

    run_virtual(work())


def test_unacknowledged_messages_come_again_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "a", "b", "c")
            await cluster.add("one")
            first = await cluster.pop()
            await cluster.ack(first, "one", 0)
        async with LiteCluster(tmp_path) as cluster:
            assert (await cluster.ack(first, "one", 2)).code == SUCCESS
            assert committed(cluster, "one") == 1, "messages before it are not skipped"
            assert (await cluster.ack(first, "one", 1)).code == SUCCESS
            assert committed(cluster, "one") == 2
            assert await cluster.take() == [], "nobody has subscribed"
            await cluster.subscribe("COMPLETE_ADD", "one")
            again = await cluster.pop()
            assert (bodies(again), counts(again)) == (["c"], "0")

    run_virtual(work())


def test_what_a_subscription_is_refused_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path, max_lite_subscription_count=3) as cluster:
            cluster.group("all", sub_wildcard="true")
            cluster.group("disabled", consume_enable=False)
            cluster.broker.topics.create_for_group("Plain", 1)
            assert (await cluster.ask(SUBSCRIBE)).code == 604
            assert (await cluster.ask(SUBSCRIBE, body=b'{"subscriptionSet":[]}')).code == 604
            for action, changes, code in (
                ("PARTIAL_ADD", {"group": "all"}, 604),
                ("PARTIAL_REMOVE", {"group": "all"}, 0),
                ("PARTIAL_ADD", {"group": "disabled"}, 604),
                ("COMPLETE_ADD", {"group": "disabled"}, 604),
                ("PARTIAL_ADD", {"group": "unknown"}, 26),
                ("PARTIAL_REMOVE", {"group": "unknown"}, 0),
                ("COMPLETE_REMOVE", {"group": "unknown"}, 0),
                ("PARTIAL_ADD", {"topic": "nowhere"}, 17),
                ("PARTIAL_ADD", {"topic": "Plain"}, 29),
                ("PARTIAL_ADD", {"group": " "}, 0),
                ("PARTIAL_ADD", {"client": ""}, 0),
            ):
                answer = await cluster.subscribe(action, "x", **changes)
                assert answer.code == code, (action, changes, answer.remark)
            assert cluster.delivery.subscription_count == 0
            await cluster.add("1", "2", "..", "a$b", "", "x" * 250)
            assert cluster.delivery.subscription_count == 3, "names that no lite topic can have are passed over"
            await cluster.subscribe("PARTIAL_REMOVE", "..")
            assert (await cluster.subscribe("PARTIAL_ADD", "3", "4")).code == 2018
            assert (await cluster.subscribe("COMPLETE_ADD", "1", "2", "3", "4")).code == 2018
            await cluster.add("1", "3")
            await cluster.add("1", "2", "3")  # known names are accepted
            assert (await cluster.subscribe("PARTIAL_ADD", "1", client="d")).code == 2018
            assert (await cluster.subscribe("COMPLETE_ADD")).code == SUCCESS
            assert cluster.delivery.subscription_count == 0

    run_virtual(work())


def test_the_quota_of_a_client_has_some_play(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.group("small", sub_client_quota="2")
            cluster.group("free", sub_client_quota="-1")
            names = [str(number) for number in range(303)]
            assert (await cluster.subscribe("PARTIAL_ADD", *names, group="small")).code == 2018
            assert (await cluster.subscribe("COMPLETE_ADD", *names[1:], group="small")).code == SUCCESS
            assert (await cluster.subscribe("PARTIAL_ADD", *names[2:], group="small")).code == SUCCESS
            assert (await cluster.subscribe("PARTIAL_ADD", *map(str, range(3000)), group="free")).code == SUCCESS

    run_virtual(work())


def test_a_take_over_is_told_and_lasts(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.group("owner", sub_model="Exclusive")
            told: list[tuple[str, str, str]] = []

            def notified(command: RemotingCommand) -> None:
                header = NotifyUnsubscribeLiteRequestHeader.from_ext_fields(command.ext_fields)
                told.append((header.client_id, header.lite_topic, header.consumer_group))

            cluster.client.processors[NOTIFY] = lambda _, command: notified(command)
            owner = {"group": "owner"}
            await cluster.add("one", client="a", **owner)
            await cluster.add("one", client="a", **owner)
            assert told == [], "nobody takes over from itself"
            cluster.put("one", "0", "1")
            first = await cluster.pop("a", consumerGroup="owner", maxMsgNum=1)
            await cluster.add("one", client="b", **owner)
            await asyncio.sleep(1)
            assert told == [("a", "one", "owner")]
            assert await cluster.take("b", consumerGroup="owner") == [], "the old batch is in flight"
            assert (await cluster.ack(first, "one", 0, consumerGroup="owner")).code == SUCCESS
            assert await cluster.take("a", consumerGroup="owner") == []
            second = await cluster.pop("b", consumerGroup="owner")
            assert bodies(second) == ["1"]
            assert (await cluster.subscribe("COMPLETE_ADD", "one", client="a", **owner)).code == SUCCESS
            await asyncio.sleep(1)
            assert told == [("a", "one", "owner")] * 2, "it does not get the name back, and is told again"
            assert cluster.delivery.readers_of(b"Parent$one") == [("b", "owner")]
            await cluster.subscribe("COMPLETE_ADD", client="a", **owner)
            await cluster.subscribe("COMPLETE_REMOVE", client="b", **owner)
            await cluster.subscribe("COMPLETE_ADD", "one", client="a", **owner)
            assert cluster.delivery.readers_of(b"Parent$one") == [("a", "owner")]
            await cluster.subscribe("COMPLETE_ADD", "one", client="b", **owner)
            assert cluster.delivery.readers_of(b"Parent$one") == [("a", "owner")], "the first one keeps it"

    run_virtual(work())


def test_offsets_go_back_where_the_group_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.group("owner", sub_model="Exclusive", sub_reset_offset_exclusive="true")
            cluster.group("again", sub_reset_offset_unsubscribe="true")
            cluster.put("one", "0")
            for client in "ab":
                await cluster.add("one", client=client, group="owner")
                answer = await cluster.pop(client, consumerGroup="owner")
                assert bodies(answer) == ["0"], client
                await cluster.ack(answer, "one", 0, consumerGroup="owner")
            for _ in range(2):
                await cluster.add("one", group="again")
                answer = await cluster.pop(consumerGroup="again")
                assert bodies(answer) == ["0"]
                await cluster.ack(answer, "one", 0, consumerGroup="again")
                await cluster.subscribe("PARTIAL_REMOVE", "one", group="again")

    run_virtual(work())


def test_a_wildcard_group_shares_all_lite_topics(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.group("all", sub_wildcard="false")  # any text makes one
            cluster.put("old", "0")
            waiting = asyncio.create_task(cluster.pop("a", poll_ms=60_000, consumerGroup="all"))
            await asyncio.sleep(1)
            assert not waiting.done(), "it has not subscribed"
            await cluster.subscribe("COMPLETE_ADD", client="a", group="all")
            assert bodies(await waiting) == ["0"]
            waiting = asyncio.create_task(cluster.pop("b", poll_ms=60_000, consumerGroup="all"))
            await cluster.subscribe("COMPLETE_ADD", client="b", group="all")
            cluster.put("new", "1")
            assert bodies(await waiting) == ["1"]
            assert cluster.delivery.readers_of(b"Parent$new") == [("*", "all")]
            await cluster.subscribe("COMPLETE_REMOVE", client="a", group="all")
            await cluster.subscribe("COMPLETE_REMOVE", client="b", group="all")
            cluster.put("new", "2")
            assert await cluster.take("b", consumerGroup="all") == []

    run_virtual(work())


def test_events_of_a_silent_client_move_and_subscriptions_expire(tmp_path: Path) -> None:
    quick = {"lite_subscription_check_interval_ms": 1000, "lite_subscription_check_timeout_ms": 40_000}

    async def work() -> None:
        async with LiteCluster(tmp_path, **quick) as cluster:
            for client in "ab":
                await cluster.add("one", client=client)
                await cluster.take(client)
            cluster.put("one", "0")  # nobody waits: chance decides
            await asyncio.sleep(12)
            assert await cluster.take("b", poll_ms=15_000) == ["0"]
            info = cluster.delivery.client_info(GROUP, "a", 10)
            assert info is not None and (info.names, info.names_count) == ([b"Parent$one"], 1)
            await asyncio.sleep(31)
            assert cluster.delivery.client_info(GROUP, "a", 10) is None
            assert cluster.delivery.subscription_count == 0
            for _ in range(2):
                await cluster.subscribe("COMPLETE_ADD", client="a")  # an empty set renews, too
                await asyncio.sleep(25)
            assert cluster.delivery.client_info(GROUP, "a", 10) is not None

    run_virtual(work())


def test_a_lost_connection_costs_no_message(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            await cluster.add("one", client="a")
            waiting = asyncio.create_task(cluster.pop("a", poll_ms=60_000))
            await asyncio.sleep(1)
            await cluster.client.close()
            await asyncio.gather(waiting, return_exceptions=True)
            cluster.client = RemotingClient()
            cluster.put("one", "0")
            assert await cluster.take("a", poll_ms=5000) == ["0"], "the subscription outlives the connection"

    run_virtual(work())


def test_deleted_lite_topics_and_groups_are_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "0")
            await cluster.add("one", "two")
            await cluster.take()
            assert (cluster.delivery.block_count, cluster.delivery.subscription_count) == (1, 2)
            lite = cluster.broker.store.lite
            assert lite is not None
            cluster.delivery.forget(lite.names.find(b"Parent$one"))
            assert (cluster.delivery.block_count, cluster.delivery.subscription_count) == (0, 1)
            waiting = asyncio.create_task(cluster.pop(poll_ms=60_000))
            await asyncio.sleep(1)
            cluster.broker.groups.delete(GROUP)
            assert (await waiting).code == 26
            assert cluster.delivery.subscription_count == 0

    run_virtual(work())


def test_a_parent_that_is_made_again_while_a_batch_is_in_flight(tmp_path: Path) -> None:
    """The old batch hides nothing of the new parent, and its acknowledgement and leases change nothing."""

    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "old-0", "old-1")
            await cluster.add("one")
            old = await cluster.pop()
            assert bodies(old) == ["old-0", "old-1"]
            assert (await cluster.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})).code == SUCCESS
            assert (await cluster.pop()).code == ResponseCode.TOPIC_NOT_EXIST
            assert (await cluster.ack(old, "one", 0)).code == ResponseCode.TOPIC_NOT_EXIST
            cluster.parent(PARENT)
            await cluster.add("one")
            cluster.put("one", "new")
            new = await cluster.pop(poll_ms=10_000)
            assert (bodies(new), counts(new)) == (["new"], "0")
            for number in (0, 1, 2):
                assert (await cluster.ack(old, "one", number)).code == SUCCESS
                assert (await cluster.change(old, "one", number, invisibleTime="0")).code == SUCCESS
            assert committed(cluster, "one") == 2 and await cluster.take() == []
            assert (await cluster.ack(new, "one", 2)).code == SUCCESS
            assert committed(cluster, "one") == 3

    run_virtual(work())


def test_clocks_that_go_back_end_no_lease_and_keep_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are measured with the monotonic clock; pop times of one lite topic always grow."""

    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.put("one", "0", "1")
            await cluster.add("one")
            first = await cluster.pop(maxMsgNum=1, invisibleTime=5000)
            clock = cluster.broker.services.clock
            monkeypatch.setattr(clock, "wall_ms", lambda: 1_600_000_000_000)
            assert await cluster.take(poll_ms=2000) == []
            again = await cluster.pop(poll_ms=10_000, maxMsgNum=1)
            assert (bodies(again), counts(again)) == (["0"], "1")
            assert int(again.ext_fields["popTime"]) > int(first.ext_fields["popTime"])
            assert (await cluster.ack(first, "one", 0)).code == SUCCESS
            assert committed(cluster, "one") == 0, "the acknowledgement of a lease that has ended counts for nothing"
            assert (await cluster.ack(again, "one", 0)).code == SUCCESS
            assert committed(cluster, "one") == 1

    run_virtual(work())


def test_a_look_through_all_lite_topics_on_demand(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.broker.topics.create_for_group("Plain", 1)
            cluster.broker.groups.update(SubscriptionGroupConfig("plain"))
            for fields, code in (({"group": "plain"}, 29), ({"group": "unknown"}, 26), ({"group": GROUP}, 0)):
                assert (await cluster.ask(DISPATCH, fields)).code == code
            assert (await cluster.ask(DISPATCH, {"group": GROUP, "clientId": "nobody"})).code == SUCCESS
            cluster.put("one", "0", "1")
            await cluster.add("one")
            answer = await cluster.pop()
            for offset in (0, 1):
                await cluster.ack(answer, "one", offset)
            lite, offsets = cluster.broker.store.lite, cluster.broker.services.lite_offsets
            assert lite is not None and offsets is not None
            offsets.commit(GROUP, lite.names.find(b"Parent$one"), 1)
            assert await cluster.take() == []
            assert (await cluster.ask(DISPATCH, {"group": GROUP, "clientId": "c"})).code == SUCCESS
            again = await cluster.pop()
            assert bodies(again) == ["1"]
            offset = {"consumerGroup": GROUP, "topic": "%LMQ%$Parent$one", "queueId": "0", "commitOffset": "0"}
            waiting = asyncio.create_task(cluster.pop(poll_ms=60_000))
            await asyncio.sleep(1)
            assert (await cluster.ask(15, offset)).code == SUCCESS
            assert bodies(await waiting) == ["0", "1"], "an offset that an administrator sets needs no look"
            await cluster.ack(again, "one", 1)
            assert committed(cluster, "one") == 0

    run_virtual(work())


def test_thousands_of_lite_topics_beyond_the_limit_of_events(tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path, max_client_event_count=10) as cluster:
            names = [f"s{number}" for number in range(1000)]
            await cluster.add(*names)
            for name in names:
                cluster.put(name, name)
            found: list[str] = []
            while len(found) < len(names):
                more = await cluster.take(poll_ms=1000)
                assert more, "nothing is stuck"
                found += more
            assert sorted(found) == sorted(names)

    run_virtual(work())


def test_lite_topics_that_another_broker_owns_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            api, name = cluster.broker.running.outer_api, cluster.broker.config.broker_name
            await cluster.broker.running.registration.register()
            own = await api.writable_queues(PARENT)
            assert own == [MessageQueue(PARENT, name, queue_id) for queue_id in range(4)]
            others = [MessageQueue(PARENT, "other", queue_id) for queue_id in range(4)]

            async def of_two(_topic: str) -> list[MessageQueue]:
                return own + others

            monkeypatch.setattr(api, "writable_queues", of_two)
            names = [f"s{number}" for number in range(100)]
            here = [name for name in names if lite_shard(name, 8) < 4]
            foreign = next(name for name in names if name not in here)
            cluster.put(foreign, "0")
            await cluster.add(*names)
            assert cluster.delivery.subscription_count == len(here) + 1, "own ones, and one with messages here"
            assert await cluster.take() == ["0"]

    run_virtual(work())


def committed(cluster: LiteCluster, lite: str, group: str = GROUP) -> int:
    offsets, topics = cluster.broker.services.lite_offsets, cluster.broker.store.lite
    assert offsets is not None and topics is not None
    return offsets.get(group, topics.names.find(f"{PARENT}${lite}".encode()))
