"""Receiving through the gRPC door: polls, handles, redeliveries, dead letters, and calls that end in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run_virtual
from tests.unit.proxy.doors import opened

from rucola.proxy import messages
from rucola.proxy.receive import Receives
from rucola.testing.event_loop import advance, run_stepped, settle


def resource(name: str) -> Any:
    return messages.Resource(name=name)


def test_a_poll_waits_for_a_message(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            call = client.receive("G", "T")
            await door.until_held(1)
            await client.sent("T", b"late")
            status, message, time = await call.all()
            assert status.status.code == messages.OK and message.message.body == b"late"
            assert abs(time.delivery_timestamp.seconds * 1000 - door.broker.store.now_ms()) < 60_000
            assert call.status == 0

    run_virtual(play())


def test_a_poll_ends_without_a_message(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            call = client.receive("G", "T", long_polling_timeout={"seconds": 1})
            await door.until_held(1)
            advance(4.0)
            await settle()
            assert call.status is None, "polls wait at least 5 s"
            advance(1.5)
            status, time = await call.all()
            assert status.status.code == messages.MESSAGE_NOT_FOUND and time.HasField("delivery_timestamp")
            assert call.status == 0

    run_stepped(play())


def test_deadlines_of_polls(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            for version, code in (("5.0.2", messages.BAD_REQUEST), ("5.0.3", messages.ILLEGAL_POLLING_TIME)):
                call = client.receive("G", "T", timeout="4S", headers={"x_mq_client_version": version})
                status, _ = await call.all()
                assert status.status.code == code
            call = client.receive("G", "T", timeout="6S", long_polling_timeout={"seconds": 20})
            await door.until_held(1)
            advance(5.97)
            status, _ = await call.all()
            assert status.status.code == messages.MESSAGE_NOT_FOUND, "answered before the deadline"

    run_stepped(play())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"invisible_duration": {"seconds": 9}}, messages.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": {"seconds": 12 * 3600 + 1}}, messages.ILLEGAL_INVISIBLE_TIME),
        ({"filter_expression": {"type": messages.TAG, "expression": "||"}}, messages.ILLEGAL_FILTER_EXPRESSION),
    ],
)
def test_refused_polls(tmp_path: Path, fields: dict[str, Any], code: int) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            status, time = await client.receive("G", "T", **fields).all()
            assert status.status.code == code and time.HasField("delivery_timestamp")

    run_virtual(play())


def test_polls_of_what_does_not_exist(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path, auto_create_subscription_group=False) as door:
            client = await door.client()
            door.topic("T")
            door.topic("W", perm=2)
            door.group("G")
            for topic, group, code in (
                ("U", "G", messages.TOPIC_NOT_FOUND),
                ("W", "G", messages.FORBIDDEN),
                ("T", "H", messages.CONSUMER_GROUP_NOT_FOUND),
                ("a b", "G", messages.ILLEGAL_TOPIC),
                ("T", "a b", messages.ILLEGAL_CONSUMER_GROUP),
            ):
                status, _ = await client.receive(group, topic).all()
                assert status.status.code == code

    run_virtual(play())


def test_filters(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path, enable_property_filter=True) as door:
            client = await door.client()
            door.topic("T", queues=1)
            # AaAa and BBBB have the same hash
            for number, tag in enumerate(("AaAa", "BBBB", "C", "AaAa")):
                assert (await client.sent("T", b"%d" % number, user={"n": f"{number}"}, tag=tag)).status.code == 20000
            by_tag = {"filter_expression": {"type": messages.TAG, "expression": "AaAa || D"}}
            found = await client.received("G", "T", **by_tag)
            assert [one.body for one in found] == [b"0", b"3"]
            by_sql = {"filter_expression": {"type": messages.SQL, "expression": "n > 1 AND TAGS <> 'AaAa'"}}
            found = await client.received("H", "T", **by_sql)
            assert [one.body for one in found] == [b"2"]

    run_virtual(play())


def test_unacknowledged_messages_come_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            door.group("G", retry_max_times=1)
            await client.sent("T", b"m", user={"x": "1"}, tag="t")
            (first,) = await client.received("G", "T", invisible_duration={"seconds": 10})
            assert first.system_properties.delivery_attempt == 1
            request = messages.ChangeInvisibleDurationRequest(
                group=resource("G"),
                topic=resource("T"),
                receipt_handle=first.system_properties.receipt_handle,
                message_id=first.system_properties.message_id,
                invisible_duration={"seconds": 1},
            )
            changed = await client.call("ChangeInvisibleDuration", request)
            assert changed.status.code == messages.OK and changed.receipt_handle
            assert changed.receipt_handle != first.system_properties.receipt_handle
            (second,) = await client.received("G", "T", invisible_duration={"seconds": 10})
            assert (second.topic.name, second.body, dict(second.user_properties)) == ("T", b"m", {"x": "1"})
            assert second.system_properties.delivery_attempt == 2
            assert second.system_properties.message_id == first.system_properties.message_id
            request.receipt_handle = second.system_properties.receipt_handle
            assert (await client.call("ChangeInvisibleDuration", request)).status.code == messages.OK
            # the third delivery would be one too many
            status, *_ = await client.receive("G", "T", long_polling_timeout={"seconds": 5}).all()
            assert status.status.code == messages.MESSAGE_NOT_FOUND
            assert await door.cluster.bodies("%DLQ%G") == [b"m"]

    run_virtual(play())


def test_dead_letters(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("F", queues=1, kind="FIFO")
            door.group("G", consume_message_orderly=True)
            for body in (b"1", b"2"):
                await client.sent("F", body, message_group="g", message_type=messages.FIFO)
            found = await client.received("G", "F", batch_size=1)
            assert [one.body for one in found] == [b"1"]
            request = messages.ForwardMessageToDeadLetterQueueRequest(
                group=resource("G"),
                topic=resource("F"),
                receipt_handle=found[0].system_properties.receipt_handle,
                message_id=found[0].system_properties.message_id,
                delivery_attempt=1,
                max_delivery_attempts=1,
            )
            assert (await client.call("ForwardMessageToDeadLetterQueue", request)).status.code == messages.OK
            (dead,) = await client.received("D", "%DLQ%G")
            assert dead.body == b"1" and dead.topic.name == "%DLQ%G"
            found = await client.received("G", "F", batch_size=1)
            assert [one.body for one in found] == [b"2"], "the group goes on"
            request.receipt_handle = " ".join(found[0].system_properties.receipt_handle.split(" ")[:8])
            answer = await client.call("ForwardMessageToDeadLetterQueue", request)
            assert answer.status.code == messages.INVALID_RECEIPT_HANDLE

    run_virtual(play())


def test_order(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("F", queues=2, kind="FIFO")
            door.group("G", consume_message_orderly=True)
            for number in range(6):
                await client.sent("F", b"%d" % number, message_group="g", message_type=messages.FIFO)
            first = await client.received("G", "F", batch_size=2, attempt_id="a1")
            assert [one.body for one in first] == [b"0", b"1"]
            again = await client.received("G", "F", batch_size=2, attempt_id="a1")
            assert [one.body for one in again] == [b"0", b"1"], "the same attempt gets the same messages"
            call = client.receive("G", "F", batch_size=2, attempt_id="a2")
            await door.until_held(1)
            answer = await client.ack("G", "F", *again)
            assert answer.status.code == messages.OK and [entry.status.code for entry in answer.entries] == [20000] * 2
            _, *found, _ = await call.all()
            assert [one.message.body for one in found] == [b"2", b"3"]

    run_virtual(play())


def test_refused_handles(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            await client.sent("T")
            (found,) = await client.received("G", "T")
            good = found.system_properties.receipt_handle
            words = good.split(" ")
            old = " ".join([words[0], "1", "1000", *words[3:]])
            elsewhere = good.replace("broker-a", "broker-b")
            for handle, code in (
                ("", messages.INVALID_RECEIPT_HANDLE),
                ("x", messages.INVALID_RECEIPT_HANDLE),
                (old, messages.INVALID_RECEIPT_HANDLE),
                (elsewhere, messages.INTERNAL_SERVER_ERROR),
            ):
                entry = messages.AckMessageEntry(message_id="m", receipt_handle=handle)
                request = messages.AckMessageRequest(topic=resource("T"), group=resource("G"), entries=[entry])
                answer = await client.call("AckMessage", request)
                assert (answer.status.code, answer.entries[0].status.code) == (code, code)
                assert (answer.entries[0].message_id, answer.entries[0].receipt_handle) == ("m", handle)
                change = messages.ChangeInvisibleDurationRequest(
                    topic=resource("T"), group=resource("G"), receipt_handle=handle, invisible_duration={"seconds": 1}
                )
                assert (await client.call("ChangeInvisibleDuration", change)).status.code == code
            answer = await client.call(
                "AckMessage", messages.AckMessageRequest(topic=resource("T"), group=resource("G"))
            )
            assert answer.status.code == messages.INTERNAL_SERVER_ERROR
            both = [messages.AckMessageEntry(receipt_handle=handle) for handle in (good, old)]
            request = messages.AckMessageRequest(topic=resource("T"), group=resource("G"), entries=both)
            answer = await client.call("AckMessage", request)
            assert answer.status.code == messages.MULTIPLE_RESULTS
            assert [entry.status.code for entry in answer.entries] == [messages.OK, messages.INVALID_RECEIPT_HANDLE]
            change = messages.ChangeInvisibleDurationRequest(
                topic=resource("T"), group=resource("G"), receipt_handle=good, invisible_duration={"seconds": 43201}
            )
            answer = await client.call("ChangeInvisibleDuration", change)
            assert answer.status.code == messages.ILLEGAL_INVISIBLE_TIME

    run_virtual(play())


# -- ends in the middle ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_poll_that_is_not_awaited_takes_nothing(tmp_path: Path, how: str) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client, other = await door.client(), await door.client("c2")
            door.topic("T", queues=1)
            call = client.receive("G", "T")
            await door.until_held(1)
            if how == "cancel":
                call.cancel()
            else:
                client.close()
            await door.until_held(0)
            await other.sent("T", b"m")
            (found,) = await other.received("G", "T")
            assert found.system_properties.delivery_attempt == 1

    run_stepped(play())


def test_a_client_that_ends_while_it_gets_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was popped for a client that is gone is visible again soon, and not only after its invisible time."""
    handle = Receives.popped

    async def play() -> None:
        async with opened(tmp_path) as door:
            client, other = await door.client(), await door.client("c2")
            door.topic("T", queues=1)
            call = client.receive("G", "T", invisible_duration={"seconds": 3600})
            await door.until_held(1)

            async def later(receives: Receives, poll: Any, answer: Any) -> None:
                call.cancel()
                while not poll.call.is_over:
                    await asyncio.sleep(0)
                handle(receives, poll, answer)

            tasks: list[Any] = []
            monkeypatch.setattr(
                Receives, "popped", lambda *arguments: tasks.append(asyncio.ensure_future(later(*arguments)))
            )
            await other.sent("T", b"m")
            while not tasks:
                await asyncio.sleep(0)
            await tasks[0]
            monkeypatch.setattr(Receives, "popped", handle)
            found: list[Any] = []
            while not found:
                found = await other.received("G", "T", long_polling_timeout={"seconds": 5})
            assert found[0].body == b"m"

    run_virtual(play())


@pytest.mark.parametrize("how", ["cancels", "goes", "takes nothing"])
def test_messages_that_the_client_does_not_take(tmp_path: Path, how: str) -> None:
    """The client's window takes three of ten messages; the others are soon there for others, those are not."""

    async def play() -> None:
        async with opened(tmp_path) as door:
            slow, other = await door.client("c1", opens_windows=False), await door.client("c2")
            door.topic("T", queues=1)
            for number in range(10):
                assert (await other.sent("T", b"%d" % number * 20_000)).status.code == messages.OK
            call = slow.receive("G", "T", invisible_duration={"seconds": 3600}, auto_renew=True)
            assert (await call.next()).status.code == messages.OK
            taken = [(await call.next()).message.body[:1] for _ in range(3)]
            assert taken == [b"0", b"1", b"2"] and call.is_empty()
            if how == "cancels":
                call.cancel()
            elif how == "goes":
                slow.close()
            else:
                await asyncio.sleep(30.0)
            found: list[bytes] = []
            async with asyncio.timeout(60):
                while len(found) < 7:
                    poll = other.receive("G", "T", long_polling_timeout={"seconds": 5})
                    found += [one.message.body[:1] for one in await poll.all() if one.HasField("message")]
            assert sorted(found) == [b"3", b"4", b"5", b"6", b"7", b"8", b"9"]
            assert len(door.door.renewals) == 3

    run_virtual(play())


def test_too_many_acknowledgements_at_once(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            entries = [messages.AckMessageEntry(receipt_handle="x")] * 1025
            request = messages.AckMessageRequest(topic=resource("T"), group=resource("G"), entries=entries)
            answer = await client.call("AckMessage", request)
            assert answer.status.code == messages.BAD_REQUEST and "1025" in answer.status.message

    run_virtual(play())
