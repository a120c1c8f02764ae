"""Lite topics through the gRPC door: who may subscribe, what brokers are asked, and what clients get."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.brokers import run, run_virtual
from tests.unit.proxy.doors import send_request
from tests.unit.proxy.lite_doors import GROUP, PARENT, QUEUES, LiteDoor, lite_door, record

from rucola.common.lite_door_config import LiteDoorConfig
from rucola.common.numbers import INT32_MAX
from rucola.protocol.bodies.lite import LiteSubscriptionAction, OffsetOption, OffsetOptionType
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.proxy import messages
from rucola.proxy.access import DoorAccess
from rucola.proxy.lite_subscriptions import ABOVE_QUOTA
from rucola.proxy.receipt import ReceiptHandle
from rucola.proxy.refusal import RefusedError
from rucola.testing.event_loop import advance, run_stepped, settle

ADD, REMOVE, ALL, NONE = LiteSubscriptionAction
POP, ACK, CHANGE, BACK = (
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)
TURNS_MAX = 20_000
LITE_KINDS = (messages.LITE_PUSH_CONSUMER, messages.LITE_SIMPLE_CONSUMER)


async def eventually(check: Any) -> None:
    for _ in range(TURNS_MAX):
        if check():
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing more happens")


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LITE_KINDS)
def test_what_a_consumer_is_told(kind: int) -> None:
    async def play() -> None:
        async with lite_door(config=LiteDoorConfig(max_lite_topic_size=32)) as door:
            door.brokers.lite_group("S", attributes={"lite.sub.client.quota": "2"}, consume_message_orderly=True)
            door.brokers.lite_group("U", attributes={"lite.sub.client.quota": "-1"}, retry_max_times=2)
            client = await door.client()
            _, told = await client.joins(kind=kind)
            assert (told.client_type, told.subscription.lite_subscription_quota) == (kind, 2000)
            assert (told.subscription.fifo, told.subscription.max_lite_topic_size) == (False, 32)
            assert (told.subscription.receive_batch_size, told.subscription.long_polling_timeout.seconds) == (32, 20)
            _, told = await client.joins("S")
            assert (told.subscription.fifo, told.subscription.lite_subscription_quota) == (True, 2)
            _, told = await client.joins("U")
            assert (told.subscription.lite_subscription_quota, told.backoff_policy.max_attempts) == (INT32_MAX, 3)
            heartbeat = messages.HeartbeatRequest(group=messages.Resource(name=GROUP), client_type=kind)
            assert (await client.call("Heartbeat", heartbeat)).status.code == messages.OK

    run(play())


@pytest.mark.parametrize(
    ("kind", "group", "topics", "text"),
    [
        *((kind, "ordinary", (PARENT,), "bound%20to%20no%20topic") for kind in LITE_KINDS),
        (messages.LITE_PUSH_CONSUMER, "nobody", (PARENT,), "does%20not%20exist"),
        (messages.LITE_PUSH_CONSUMER, GROUP, ("plain",), "is%20bound%20to%20topic%20agents"),
        (messages.LITE_PUSH_CONSUMER, GROUP, (PARENT, "plain"), "named%20is%20agents,%20plain"),
        (messages.LITE_PUSH_CONSUMER, GROUP, (), "named%20is%20none"),
        (messages.PUSH_CONSUMER, GROUP, (PARENT,), "lite%20consumers"),
        (messages.SIMPLE_CONSUMER, GROUP, (PARENT,), "lite%20consumers"),
    ],
)
def test_settings_of_another_kind_than_the_group(kind: int, group: str, topics: tuple[str, ...], text: str) -> None:
    async def play() -> None:
        async with lite_door() as door:
            door.brokers.groups["ordinary"] = type(door.brokers.groups[GROUP])("ordinary")
            client = await door.client()
            stream = client.consumer(group, *topics, kind=kind)
            assert await stream.all() == [] and stream.status == 3 and text in stream.text, stream.text
            heartbeat = messages.HeartbeatRequest(group=messages.Resource(name=group), client_type=kind)
            assert (await client.call("Heartbeat", heartbeat)).status.code == messages.UNRECOGNIZED_CLIENT_TYPE

    run(play())


# -- SyncLiteSubscription ----------------------------------------------------------------------------------------------


def test_every_broker_learns_each_change() -> None:
    async def play() -> None:
        async with lite_door("a", "b") as door:
            client = await door.client()
            for action in LiteSubscriptionAction:
                assert await client.sync(str(action), "x", "y", version=7) == messages.OK
                for broker in door.brokers.all.values():
                    (entry,) = broker.changes()
                    assert (entry.action, entry.client_id, entry.group, entry.topic) == (action, "c1", GROUP, PARENT)
                    assert (entry.lite_topic_set, entry.version, entry.offset_option) == ({"x", "y"}, 7, None)

    run(play())


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"policy": 0}, OffsetOption(OffsetOptionType.POLICY, 0)),
        ({"policy": 2}, OffsetOption(OffsetOptionType.POLICY, 2)),
        ({"offset": 5}, OffsetOption(OffsetOptionType.OFFSET, 5)),
        ({"tail_n": 3}, OffsetOption(OffsetOptionType.TAIL_N, 3)),
        ({"timestamp": 1_700_000_000_000}, OffsetOption(OffsetOptionType.TIMESTAMP, 1_700_000_000_000)),
        ({"policy": 3}, messages.ILLEGAL_OFFSET),
        ({"offset": -1}, messages.ILLEGAL_OFFSET),
        ({"tail_n": -1}, messages.ILLEGAL_OFFSET),
        ({"timestamp": -1}, messages.ILLEGAL_OFFSET),
    ],
)
def test_offset_options(option: dict[str, int], told: OffsetOption | int) -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            code = await client.sync("PARTIAL_ADD", "x", offset_option=option)
            if isinstance(told, OffsetOption):
                assert code == messages.OK and [one.offset_option for one in door.broker.changes()] == [told]
            else:
                assert code == told and door.broker.changes() == []
            assert await client.sync("COMPLETE_ADD", "x", offset_option=option) == messages.OK
            assert [one.offset_option for one in door.broker.changes()] == [None], "only a new subscription has one"

    run(play())


@pytest.mark.parametrize("name", ["", " ", "x" * 65, "ü" * 33, "a.b", "a$b", "a/b", "..", "a\n", "\u0663"])
def test_names_that_no_lite_topic_has(name: str) -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            assert await client.sync("PARTIAL_ADD", "fine", name) == messages.ILLEGAL_LITE_TOPIC
            assert door.broker.changes() == []
            is_long = len(name) == 65
            for action in ("PARTIAL_REMOVE", "COMPLETE_ADD"):
                assert await client.sync(action, "fine", name) == messages.OK, "others are renewed"
                (entry,) = door.broker.changes()
                assert entry.lite_topic_set == {"fine"} | ({name} if is_long else set())

    run(play())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "plain"}, messages.ILLEGAL_TOPIC),
        ({"topic": "a b"}, messages.ILLEGAL_TOPIC),
        ({"group": "nobody"}, messages.ILLEGAL_CONSUMER_GROUP),
        ({"group": "a b"}, messages.ILLEGAL_CONSUMER_GROUP),
        ({"group": "ordinary"}, messages.ILLEGAL_TOPIC),
        ({"group": "of-a-lost-parent", "topic": "lost"}, messages.TOPIC_NOT_FOUND),
    ],
)
def test_refused_subscriptions(fields: dict[str, str], code: int) -> None:
    async def play() -> None:
        async with lite_door() as door:
            door.brokers.groups["ordinary"] = type(door.brokers.groups[GROUP])("ordinary")
            door.brokers.lite_group("of-a-lost-parent", "lost")
            client = await door.client()
            for action in LiteSubscriptionAction:
                assert await client.sync(str(action), "x", **fields) == code  # type: ignore[arg-type]
            assert door.broker.changes() == []

    run(play())


def test_an_action_that_does_not_exist() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            for action in (4, -1):
                assert await client.sync(action, "x") == messages.BAD_REQUEST
            assert door.broker.changes() == []

    run(play())


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, messages.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
        (ResponseCode.ILLEGAL_OPERATION, messages.INTERNAL_SERVER_ERROR),
        (ResponseCode.NO_PERMISSION, messages.FORBIDDEN),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, messages.NOT_IMPLEMENTED),
    ],
)
def test_all_brokers_must_take_it(code: int, told: int) -> None:
    async def play() -> None:
        async with lite_door("a", "b") as door:
            door.brokers.all["b"].codes[RequestCode.LITE_SUBSCRIPTION_CTL] = code, "no"
            client = await door.client()
            assert await client.sync("PARTIAL_ADD", "x") == told
            assert len(door.brokers.all["a"].changes()) == 1, "the others are told all the same"
            door.brokers.all["b"].is_gone = True
            assert await client.sync("PARTIAL_ADD", "x") == messages.INTERNAL_SERVER_ERROR

    run(play())


def test_the_quota_has_a_margin_because_clients_keep_it_themselves() -> None:
    async def play() -> None:
        async with lite_door() as door:
            door.brokers.lite_group("S", attributes={"lite.sub.client.quota": "2"})
            door.brokers.lite_group("U", attributes={"lite.sub.client.quota": "-1"})
            client = await door.client()
            names = [f"n{number}" for number in range(2 + ABOVE_QUOTA + 1)]
            for action in LiteSubscriptionAction:
                refused = messages.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
                assert await client.sync(str(action), *names, group="S") == refused
                assert door.broker.changes() == []
                assert await client.sync(str(action), *names, group="U") == messages.OK
                door.broker.changes()
            assert await client.sync("COMPLETE_ADD", *names[:-1], group="S") == messages.OK
            assert await client.sync("PARTIAL_ADD", "more", group="S") == refused, "one after the other does not help"
            assert await client.sync("PARTIAL_REMOVE", "n0", group="S") == messages.OK
            assert await client.sync("PARTIAL_ADD", "more", group="S") == messages.OK
            assert await client.sync("PARTIAL_ADD", "more", group="S") == refused, "a name that it has counts, too"

    run(play())


def test_the_rate_of_subscriptions() -> None:
    async def play() -> None:
        async with lite_door(config=LiteDoorConfig(max_sync_lite_subscription_rate=4)) as door:
            greedy, other, third = [await door.client(name) for name in ("greedy", "other", "third")]
            advance(1.0 - asyncio.get_running_loop().time() % 1.0)
            codes = [await greedy.sync("PARTIAL_ADD", "x") for _ in range(3)]
            assert codes == [messages.OK, messages.OK, messages.TOO_MANY_REQUESTS], "half is for others"
            assert [await other.sync("PARTIAL_ADD", "x") for _ in range(2)] == [messages.OK] * 2
            assert await third.sync("PARTIAL_ADD", "x") == messages.TOO_MANY_REQUESTS
            assert await greedy.sync("COMPLETE_ADD", "x") == messages.OK, "renewals are not counted"
            assert len(door.broker.changes()) == 5
            advance(1.0)
            assert await third.sync("PARTIAL_ADD", "x") == messages.OK

    run_stepped(play())


class Rights(DoorAccess):
    """Lets clients read what is named."""

    def __init__(self, *allowed: str) -> None:
        super().__init__()
        self.allowed = allowed

    def check_subscribe(self, account: str, address: str, topic: str, group: str) -> None:
        for name in filter(None, (topic, group)):
            if name not in self.allowed:
                raise RefusedError(messages.FORBIDDEN, f"no right to {name}")


@pytest.mark.parametrize("allowed", [(PARENT,), (GROUP,), ()])
def test_a_subscription_needs_the_right_to_group_and_parent(allowed: tuple[str, ...]) -> None:
    async def play() -> None:
        async with lite_door(access=Rights(*allowed)) as door:
            client = await door.client()
            for action in LiteSubscriptionAction:
                for names in (("x",), ()):
                    assert await client.sync(str(action), *names) == messages.FORBIDDEN
            status, *_ = await client.receive(GROUP, PARENT, auto_renew=True).all()
            assert status.status.code == messages.FORBIDDEN and door.broker.asked == []

    run(play())


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_message_of_a_lite_topic_is_sent_to_its_queue() -> None:
    async def play() -> None:
        async with lite_door("a", "b") as door:
            door.brokers.topic_is("plain")
            client = await door.client()
            for name, queue in (("session-1", 3), ("user_42", 0), ("abc", 7), ("polygenelubricants", 2)):
                answer = await client.sent(PARENT, lite_topic=name, message_type=messages.LITE)
                assert answer.status.code == messages.OK and answer.entries[0].offset == 7
                sent = {one: broker.of(RequestCode.SEND_MESSAGE_V2) for one, broker in door.brokers.all.items()}
                assert not sent["ba"[queue // QUEUES]], "as jump hash says"
                (fields,) = sent["ab"[queue // QUEUES]]
                assert fields["e"] == str(queue % QUEUES)
                assert f"\2__LITE_TOPIC\1{name}\2" in fields["i"]
            for fields, code in (
                ({"lite_topic": "x", "message_type": messages.NORMAL}, messages.OK),
                ({"lite_topic": ""}, messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
                ({"lite_topic": "x", "message_group": "g"}, messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
                ({"lite_topic": "x", "priority": 1}, messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
                ({"lite_topic": "a/b"}, messages.ILLEGAL_LITE_TOPIC),
            ):
                assert (await client.sent(PARENT, **fields)).status.code == code
            refused = await client.sent("plain", lite_topic="x")
            assert refused.status.code == messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
            for broker in door.brokers.all.values():
                broker.codes[RequestCode.SEND_MESSAGE_V2] = ResponseCode.LMQ_QUOTA_EXCEEDED, "too many"
            refused = await client.call("SendMessage", send_request(PARENT, lite_topic="new"))
            assert refused.status.code == messages.LITE_TOPIC_QUOTA_EXCEEDED

    run(play())


def test_receiving_and_acknowledging() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            await client.joins()
            await client.sync("PARTIAL_ADD", "x", "y")
            door.broker.gives(record("x", 0), record("y", 4, TAGS="t"), counts="0;2")
            poll = client.receive(GROUP, PARENT, auto_renew=True, attempt_id="a1", batch_size=99)
            _, first, second, _ = await poll.all()
            (pop,) = door.broker.of(POP)
            assert 19_000 < int(pop.pop("pollTime")) <= 20_000 and int(pop.pop("bornTime")) > 0
            assert pop == {
                "clientId": "c1",
                "consumerGroup": GROUP,
                "topic": PARENT,
                "maxMsgNum": "32",
                "invisibleTime": "60000",
                "attemptId": "a1",
            }
            found = [one.message.system_properties for one in (first, second)]
            assert [one.lite_topic for one in found] == ["x", "y"]
            assert [one.delivery_attempt for one in found] == [1, 3]
            assert [(one.queue_id, one.queue_offset) for one in found] == [(3, 0), (3, 4)], "offset of the lite topic"
            assert [one.message_type for one in found] == [messages.LITE] * 2 and found[1].tag == "t"
            handles = [ReceiptHandle.decode(one.receipt_handle) for one in found]
            assert [(one.start_offset, one.queue_id, one.queue_offset) for one in handles] == [(0, 0, 0), (0, 0, 4)]
            assert [(one.revive_queue_id, one.physical_offset) for one in handles] == [(999, 1000), (999, 1004)]
            answer = await client.ack(GROUP, PARENT, first.message, second.message)
            assert [entry.status.code for entry in answer.entries] == [messages.OK] * 2
            assert door.broker.of(ACK) == [ack_fields(handle) for handle in handles], "one by one"
            answer = await client.ack(GROUP, PARENT, first.message)
            assert answer.status.code == messages.OK and door.broker.of(ACK) == [ack_fields(handles[0])]
            assert len(door.door.renewals) == 0

    run(play())


def ack_fields(handle: ReceiptHandle) -> dict[str, str]:
    return {
        "consumerGroup": GROUP,
        "topic": PARENT,
        "queueId": "0",
        "extraInfo": handle.extra_info,
        "offset": str(handle.queue_offset),
        "liteTopic": handle.lite_topic,
    }


def test_handles_of_official_proxies() -> None:
    """They do not have the lite topic: the client says it."""

    async def play() -> None:
        async with lite_door() as door:
            door.brokers.groups["ordinary"] = type(door.brokers.groups[GROUP])("ordinary")
            client = await door.client()
            now_ms = door.broker.now_ms()
            for revive_queue, group, told in ((999, GROUP, "x"), (3, GROUP, None), (999, "ordinary", None)):
                text = f"0 {now_ms} 60000 {revive_queue} 0 broker-a 0 7 4096"
                entries = [messages.AckMessageEntry(message_id="m", receipt_handle=text, lite_topic="x")]
                request = messages.AckMessageRequest(
                    group=messages.Resource(name=group), topic=messages.Resource(name=PARENT), entries=entries
                )
                assert (await client.call("AckMessage", request)).status.code == messages.OK
                assert [one.get("liteTopic") for one in door.broker.of(ACK)] == [told], (revive_queue, group)
                request.entries[0].lite_topic = "a/b"
                code = (await client.call("AckMessage", request)).status.code
                assert code == (messages.INVALID_RECEIPT_HANDLE if told else messages.OK)
                door.broker.of(ACK)

    run(play())


@pytest.mark.parametrize("suspend", [None, False, True])
def test_changes_of_the_invisible_time(suspend: bool | None) -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            door.broker.gives(record("x", 5))
            (one,) = await client.gets()
            answer = await client.changes(one, 3, suspend=suspend)  # Java's client does not say the lite topic here
            assert answer.status.code == messages.OK
            (change,) = door.broker.of(CHANGE)
            before = ReceiptHandle.decode(one.system_properties.receipt_handle)
            assert change == ack_fields(before) | {"invisibleTime": "3000"} | ({"suspend": "true"} if suspend else {})
            after = ReceiptHandle.decode(answer.receipt_handle)
            assert (after.start_offset, after.invisible_ms, after.lite_topic) == (5, 3000, "x")
            assert after.physical_offset == 1005

    run(play())


def test_dead_letters() -> None:
    async def play() -> None:
        async with lite_door() as door:
            door.brokers.lite_group(GROUP, retry_max_times=1)
            client = await door.client()
            door.broker.gives(record("x", 5), record("x", 6), counts="2;1")
            (one,) = await client.gets()
            assert one.system_properties.queue_offset == 6
            back, ack = door.broker.of(BACK), door.broker.of(ACK)
            assert [(sent["offset"], sent["delayLevel"], sent["originTopic"]) for sent in back] == [
                ("1005", "-1", PARENT)
            ]
            assert [(sent["offset"], sent["liteTopic"]) for sent in ack] == [("5", "x")]
            request = messages.ForwardMessageToDeadLetterQueueRequest(
                group=messages.Resource(name=GROUP),
                topic=messages.Resource(name=PARENT),
                receipt_handle=one.system_properties.receipt_handle,
                message_id=one.system_properties.message_id,
                lite_topic="x",
            )
            answer = await client.call("ForwardMessageToDeadLetterQueue", request)
            assert answer.status.code == messages.OK
            assert [sent["offset"] for sent in door.broker.of(BACK)] == ["1006"]
            assert [(sent["offset"], sent["liteTopic"]) for sent in door.broker.of(ACK)] == [("6", "x")]

    run(play())


def test_messages_with_other_tags_are_acknowledged() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            door.broker.gives(record("x", 0, TAGS="a"), record("x", 1, TAGS="b"))
            (one,) = await client.gets(filter_expression={"type": messages.TAG, "expression": "b"})
            assert one.system_properties.tag == "b"
            assert [(sent["offset"], sent["liteTopic"]) for sent in door.broker.of(ACK)] == [("0", "x")]
            by_sql = {"type": messages.SQL, "expression": "TAGS = 'b'"}
            status, *_ = await client.receive(GROUP, PARENT, auto_renew=True, filter_expression=by_sql).all()
            assert status.status.code == messages.ILLEGAL_FILTER_EXPRESSION

    run(play())


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        ("plain", GROUP, messages.ILLEGAL_TOPIC),
        (PARENT, "nobody", messages.CONSUMER_GROUP_NOT_FOUND),
    ],
)
def test_refused_receives(topic: str, group: str, code: int) -> None:
    async def play() -> None:
        async with lite_door() as door:
            door.brokers.topic_is("plain")
            client = await door.client()
            status, *_ = await client.receive(group, topic, auto_renew=True).all()
            assert status.status.code == code and door.broker.of(POP) == []

    run(play())


def test_a_group_that_changes_its_kind() -> None:
    async def play() -> None:
        async with lite_door() as door:
            config = type(door.brokers.groups[GROUP])
            door.brokers.groups["G"] = config("G")
            lite, other = await door.client("lite"), await door.client("other")
            await lite.joins()
            await other.consumes("G", PARENT)
            door.brokers.groups[GROUP] = config(GROUP)
            door.brokers.lite_group("G")
            for client, group, code in (
                (lite, GROUP, messages.ILLEGAL_TOPIC),
                (other, "G", messages.ILLEGAL_CONSUMER_GROUP),
            ):
                status, *_ = await client.receive(group, PARENT, auto_renew=True).all()
                assert status.status.code == code
            assert door.broker.of(POP) == []

    run(play())


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ResponseCode.POLLING_TIMEOUT, messages.MESSAGE_NOT_FOUND),
        (ResponseCode.POLLING_FULL, messages.TOO_MANY_REQUESTS),
        (ResponseCode.INVALID_PARAMETER, messages.INTERNAL_SERVER_ERROR),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, messages.CONSUMER_GROUP_NOT_FOUND),
    ],
)
def test_answers_without_messages(code: int, told: int) -> None:
    async def play() -> None:
        async with lite_door() as door:
            door.broker.codes[POP] = code, "no"
            client = await door.client()
            status, _ = await client.receive(GROUP, PARENT, auto_renew=True).all()
            assert status.status.code == told

    run(play())


def test_records_that_nobody_could_acknowledge_are_left_out() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            other = {"INNER_MULTI_DISPATCH": "%LMQ%$agents$x,%LMQ%$agents$y", "INNER_MULTI_QUEUE_OFFSET": "8,9"}
            door.broker.gives(
                record("x", 0, __LITE_TOPIC=""),
                record("x", 0, INNER_MULTI_DISPATCH="%LMQ%$agents$other"),
                record("x", 0, INNER_MULTI_QUEUE_OFFSET="1,2"),
                record("x", 0, INNER_MULTI_QUEUE_OFFSET="-1"),
                record("a/b", 0),
                record("y", 0, **other),
                record("x", 1),
                counts="0;0;0;0;0;4;1",
            )
            found = [one.system_properties for one in await client.gets()]
            assert [(one.lite_topic, one.queue_offset, one.delivery_attempt) for one in found] == [
                ("y", 9, 5),
                ("x", 1, 2),
            ]

    run(play())


def test_counts_of_brokers_that_leave_new_messages_out() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            batch = record("x", 4), record("x", 5), record("y", 4), record("y", 6)
            for counts, attempts in (
                ("0 qo0%4 1;0 qo0%5 2;0 qo0%4 3;0", [2, 3, 4, 1]),
                ("0 qo0%5 2;0 qo0%6 1", [1, 3, 1, 2]),
                ("0 qo0%4 2", [1, 1, 1, 1]),
                ("", [1, 1, 1, 1]),
                ("x;0 qo0%5 x;-1;99999999999999999999", [1, 1, 1, 1]),
            ):
                door.broker.gives(*batch, counts=counts)
                found = [one.system_properties.delivery_attempt for one in await client.gets()]
                assert found == attempts, counts

    run(play())


def test_an_answer_that_is_not_readable() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            for damaged in (record("x", 0)[:-1], b"\0" * 40):
                door.broker.gives(damaged)
                status, _ = await client.receive(GROUP, PARENT, auto_renew=True).all()
                assert status.status.code == messages.INTERNAL_SERVER_ERROR

    run(play())


def test_what_nobody_waits_for_comes_again_soon() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            poll = client.receive(GROUP, PARENT, auto_renew=True)
            await eventually(lambda: door.broker.waiting)
            poll.cancel()
            await eventually(lambda: not door.door.figures().polls)
            door.broker.gives(record("x", 0), record("x", 1), record("y", 0))
            await eventually(lambda: len(door.broker.asked) >= 3)
            changes = [(one["liteTopic"], one["invisibleTime"], one["suspend"]) for one in door.broker.of(CHANGE)]
            assert changes == [("x", "1000", "true"), ("y", "1000", "true")], "each batch, and no attempt is lost"
            assert not len(door.door.renewals)

    run_virtual(play())


def test_a_client_that_goes_in_the_middle_of_a_batch() -> None:
    async def play() -> None:
        async with lite_door() as door:
            slow = await door.client("slow", opens_windows=False)
            poll = slow.receive(GROUP, PARENT, auto_renew=True)
            await eventually(lambda: door.broker.waiting)
            big = b"b" * 40_000
            door.broker.gives(record("x", 0, big), record("x", 1, big), record("y", 0, big), record("y", 1, big))
            await eventually(lambda: not poll.is_empty())
            for _ in range(100):
                await asyncio.sleep(0)
            slow.close()
            await eventually(lambda: len(door.broker.asked) >= 2)
            for _ in range(100):
                await asyncio.sleep(0)
            changes = [(one["liteTopic"], one["offset"], one.get("suspend")) for one in door.broker.of(CHANGE)]
            assert changes == [("y", "0", "true"), ("x", "1", None)], "the client has the first message of x"

    run_virtual(play())


def test_leases_are_renewed_each_with_its_lite_topic() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            await client.joins()
            door.broker.gives(record("x", 0), record("y", 0))
            found = await client.gets()
            assert len(door.door.renewals) == 2, "of two lite topics, at the same offset"
            for _ in range(52):
                advance(1.0)
                await settle()
            changes = door.broker.of(CHANGE)
            assert sorted((one["liteTopic"], one["invisibleTime"]) for one in changes) == [
                ("x", "60000"),
                ("y", "60000"),
            ]
            assert (await client.ack(GROUP, PARENT, found[0])).status.code == messages.OK
            (ack,) = door.broker.of(ACK)
            renewed = ReceiptHandle.decode(f"{ack['extraInfo']} 1")
            assert renewed.pop_time_ms > ReceiptHandle.decode(found[0].system_properties.receipt_handle).pop_time_ms
            assert len(door.door.renewals) == 1

    run_stepped(play())


def test_a_client_with_too_many_unacknowledged_messages() -> None:
    async def play() -> None:
        async with lite_door(config=LiteDoorConfig(max_lite_renew_num_per_channel=2)) as door:
            client, other = await door.client(), await door.client("c2")
            door.broker.gives(*(record("x", number) for number in range(3)))
            found = await client.gets()
            status, *_ = await client.receive(GROUP, PARENT, auto_renew=True).all()
            assert status.status.code == messages.FORBIDDEN and "3 messages" in status.status.message
            door.broker.gives(record("y", 0))
            assert len(await other.gets()) == 1, "others are served on"
            door.broker.gives(record("z", 0))
            assert len(await client.gets(auto_renew=False)) == 1, "a simple consumer keeps its leases itself"
            await client.ack(GROUP, PARENT, found[0])
            door.broker.gives(record("y", 1))
            assert len(await client.gets()) == 1

    run(play())


# -- clients that go and come ------------------------------------------------------------------------------------------


def test_a_client_that_loses_its_stream() -> None:
    async def play() -> None:
        async with lite_door("a", "b") as door:
            client = await door.client()
            stream, _ = await client.joins()
            await client.sync("COMPLETE_ADD", "x", "y", "gone")
            await client.sync("PARTIAL_ADD", "z")
            await client.sync("PARTIAL_REMOVE", "gone", "never")
            for broker in door.brokers.all.values():
                broker.asked.clear()
            stream.cancel()
            await eventually(lambda: door.brokers.all["a"].asked and door.brokers.all["b"].asked)
            for broker in door.brokers.all.values():
                (entry,) = broker.changes()
                assert (entry.action, entry.client_id, entry.topic) == (NONE, "c1", PARENT)
                assert entry.lite_topic_set is None
            await client.joins()
            for broker in door.brokers.all.values():
                (entry,) = broker.changes()
                assert (entry.action, entry.lite_topic_set) == (ALL, {"x", "y", "z"})
            door.broker.gives(record("x", 0))
            await client.gets()
            assert door.broker.changes() == [], "only once"

    run(play())


@pytest.mark.parametrize("call", ["receive", "sync"])
def test_a_client_that_comes_back_without_its_settings(call: str) -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            stream, _ = await client.joins()
            await client.sync("COMPLETE_ADD", "x")
            stream.cancel()
            await eventually(lambda: not door.door.sessions or door.session().stream is None)
            await eventually(lambda: any(entry.action is NONE for entry in door.broker.changes()))
            broker = door.broker
            broker.codes[RequestCode.LITE_SUBSCRIPTION_CTL] = ResponseCode.SYSTEM_ERROR, "not now"
            broker.gives(record("x", 0))
            assert len(await client.gets()) == 1, "a broker that refuses it does not keep others from being asked"
            del broker.codes[RequestCode.LITE_SUBSCRIPTION_CTL]
            broker.changes()
            if call == "receive":
                broker.gives(record("x", 1))
                await client.gets()
            else:
                await client.sync("PARTIAL_ADD", "y")
            first, *rest = broker.changes()
            assert (first.action, first.lite_topic_set) == (ALL, {"x"})
            assert [entry.action for entry in rest] == ([] if call == "receive" else [ADD])

    run(play())


def test_a_broker_that_was_away() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            await client.joins()
            await client.sync("COMPLETE_ADD", "x", "y")
            door.broker.changes()
            door.broker.is_gone = True
            status, *_ = await client.receive(GROUP, PARENT, auto_renew=True).all()
            assert status.status.code == messages.INTERNAL_SERVER_ERROR
            door.broker.is_gone = False
            for number in range(2):
                door.broker.gives(record("x", number))
                await client.gets()
            assert [(one.action, one.lite_topic_set) for one in door.broker.changes()] == [(ALL, {"x", "y"})]
            door.broker.is_gone = True
            await client.receive(GROUP, PARENT, auto_renew=True).all()
            door.broker.is_gone = False
            request = messages.NotifyClientTerminationRequest(group=messages.Resource(name=GROUP))
            await client.call("NotifyClientTermination", request)
            await eventually(lambda: any(entry.action is NONE for entry in door.broker.changes()))

    run(play())


def test_a_client_that_says_that_it_ends() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            await client.joins()
            await client.sync("PARTIAL_ADD", "x")
            door.broker.gives(record("x", 0))
            await client.gets()
            door.broker.changes()
            request = messages.NotifyClientTerminationRequest(group=messages.Resource(name=GROUP))
            assert (await client.call("NotifyClientTermination", request)).status.code == messages.OK
            await eventually(lambda: any(one.code == CHANGE for one in door.broker.asked))
            codes = [one.code for one in door.broker.asked if one.code in (CHANGE, RequestCode.LITE_SUBSCRIPTION_CTL)]
            assert codes == [RequestCode.LITE_SUBSCRIPTION_CTL, CHANGE], "its messages go to others"
            assert [entry.action for entry in door.broker.changes()] == [NONE]
            assert [one["liteTopic"] for one in door.broker.of(CHANGE)] == ["x"]

    run(play())


@pytest.mark.parametrize("how", ["loses its stream", "says that it ends"])
def test_a_broker_that_is_gone_when_a_client_leaves(how: str) -> None:
    async def play() -> None:
        async with lite_door("a", "b") as door:
            client = await door.client()
            stream, _ = await client.joins()
            await client.sync("PARTIAL_ADD", "x")
            door.brokers.all["a"].is_gone = True
            door.brokers.all["b"].asked.clear()
            if how == "loses its stream":
                stream.cancel()
            else:
                request = messages.NotifyClientTerminationRequest(group=messages.Resource(name=GROUP))
                assert (await client.call("NotifyClientTermination", request)).status.code == messages.OK
            other = door.brokers.all["b"]
            await eventually(lambda: len(other.asked) >= (2 if how == "loses its stream" else 1))
            assert other.asked[0].code == RequestCode.LITE_SUBSCRIPTION_CTL
            if how == "loses its stream":
                assert other.asked[1].code == RequestCode.UNREGISTER_CLIENT, "the rest is done all the same"

    run(play())


def test_a_client_that_ends_without_settings() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            await client.sync("PARTIAL_ADD", "x")
            door.broker.changes()
            request = messages.NotifyClientTerminationRequest(group=messages.Resource(name=GROUP))
            code = (await client.call("NotifyClientTermination", request)).status.code
            assert code == messages.UNRECOGNIZED_CLIENT_TYPE
            await eventually(lambda: door.broker.asked)
            assert [entry.action for entry in door.broker.changes()] == [NONE]

    run(play())


def test_a_client_that_is_silent_may_have_moved_to_another_door() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            await client.sync("PARTIAL_ADD", "x")
            door.broker.changes()
            session = door.session()
            for _ in range(130):
                advance(1.0)
                await settle()
            assert not len(door.door.sessions) and door.broker.changes() == []
            await (await door.client()).joins()
            assert door.session() is not session and door.broker.changes() == [], "what it had is not remembered"

    run_stepped(play())


def test_a_lite_topic_that_another_client_takes_over() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            stream, _ = await client.joins()
            await client.sync("COMPLETE_ADD", "x", "y")
            session = door.session()
            fields = {"liteTopic": "x", "consumerGroup": GROUP, "clientId": "c1"}
            code = RequestCode.NOTIFY_UNSUBSCRIBE_LITE
            assert door.asks(session, RemotingCommand(code, ext_fields=fields)) is None
            told = await stream.next()
            assert told.notify_unsubscribe_lite_command.lite_topic == "x"
            assert (
                door.asks(session, RemotingCommand(code, ext_fields=fields | {"clientId": "c2", "liteTopic": "y"}))
                is None
            )
            door.broker.changes()
            stream.cancel()
            await eventually(lambda: any(entry.action is NONE for entry in door.broker.changes()))
            await client.joins()
            assert [entry.lite_topic_set for entry in door.broker.changes()] == [{"y"}]

    run(play())


def test_remembered_names_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with lite_door() as door:
            monkeypatch.setattr("rucola.proxy.lite_subscriptions.NAMES_BYTES_MAX", 40)
            first, second = await door.client("c1"), await door.client("c2")
            streams = [(await client.joins())[0] for client in (first, second)]
            await first.sync("COMPLETE_ADD", *("n" * 10 + str(number) for number in range(3)))
            await second.sync("COMPLETE_ADD", "x")
            await second.sync("PARTIAL_ADD", "y" * 60)
            await leaves(door, streams)
            await first.joins()
            assert len(door.broker.changes()) == 1
            await second.joins()
            assert door.broker.changes() == [], "it waits for its next complete set"
            stream, _ = await second.joins()
            await second.sync("COMPLETE_ADD", "x")
            door.broker.changes()
            await leaves(door, [stream])
            await second.joins()
            assert [entry.lite_topic_set for entry in door.broker.changes()] == [{"x"}]

    async def leaves(door: LiteDoor, streams: list[Any]) -> None:
        left = 0
        for stream in streams:
            stream.cancel()
        while left < len(streams):
            await asyncio.sleep(0)
            left += sum(entry.action is NONE for entry in door.broker.changes())

    run(play())


def test_a_huge_set_is_refused_before_brokers_are_asked() -> None:
    async def play() -> None:
        async with lite_door() as door:
            client = await door.client()
            names = [f"{number}" for number in range(300_000)]
            assert await client.sync("COMPLETE_ADD", *names) == messages.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
            assert door.broker.changes() == []

    run(play())
