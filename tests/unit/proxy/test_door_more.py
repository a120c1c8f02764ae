"""Transactions, delays, renewals, sessions and commands of the gRPC door."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run
from tests.unit.proxy.doors import Door, opened

from rucola.broker.processor.client_manage import ClientManageProcessor
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.proxy import messages, telemetry
from rucola.proxy.receipt import TransactionId
from rucola.testing.event_loop import advance, run_stepped, settle


def resource(name: str) -> Any:
    return messages.Resource(name=name)


def now(door: Door, seconds: int = 0) -> dict[str, int]:
    return {"seconds": door.broker.store.now_ms() // 1000 + seconds}


async def passes(seconds: float) -> None:
    """Lets time pass in small steps, as work follows work."""
    for _ in range(int(seconds * 4)):
        advance(0.25)
        await settle()


# -- delays ------------------------------------------------------------------------------------------------------------


def test_delay_and_recall(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path, recall_message_enable=True) as door:
            client = await door.client()
            door.topic("D", queues=1, kind="DELAY")
            handles = {}
            for body, seconds in ((b"recalled", 5), (b"kept", 5), (b"past", -5)):
                answer = await client.sent(
                    "D", body, message_type=messages.DELAY, delivery_timestamp=now(door, seconds)
                )
                assert answer.status.code == messages.OK
                handles[body] = answer.entries[0].recall_handle
            assert handles[b"recalled"] and handles[b"kept"]
            request = messages.RecallMessageRequest(topic=resource("D"), recall_handle=handles[b"recalled"])
            recalled = await client.call("RecallMessage", request)
            assert (recalled.status.code, recalled.message_id) == (messages.OK, f"id-{b'recalled'.hex()}")
            await passes(8)
            found = await client.received("G", "D", long_polling_timeout={"seconds": 5})
            assert sorted(one.body for one in found) == [b"kept", b"past"]
            kept = next(one for one in found if one.body == b"kept")
            assert kept.system_properties.message_type == messages.DELAY
            assert kept.system_properties.HasField("delivery_timestamp")

    run_stepped(play())


def test_refused_recalls(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path, recall_message_enable=True) as door:
            client = await door.client()
            door.topic("D", kind="DELAY")
            door.topic("E", kind="DELAY")
            door.topic("T")
            answer = await client.sent("D", message_type=messages.DELAY, delivery_timestamp=now(door, 60))
            handle = answer.entries[0].recall_handle
            for topic, text, code in (
                ("D", "x", messages.INTERNAL_SERVER_ERROR),
                ("E", handle, messages.INTERNAL_SERVER_ERROR),
                ("T", handle, messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
                ("U", handle, messages.TOPIC_NOT_FOUND),
            ):
                request = messages.RecallMessageRequest(topic=resource(topic), recall_handle=text)
                answer = await client.call("RecallMessage", request)
                assert answer.status.code == code and answer.status.message

    run(play())


# -- transactions ------------------------------------------------------------------------------------------------------


async def half(client: Any, body: bytes) -> str:
    """Sends a half message; returns the id of its transaction."""
    answer = await client.sent("X", body, message_type=messages.TRANSACTION)
    assert answer.status.code == messages.OK
    text: str = answer.entries[0].transaction_id
    return text


async def end(client: Any, transaction_id: str, resolution: int, **fields: Any) -> Any:
    request = messages.EndTransactionRequest(
        topic=resource("X"), message_id="m", transaction_id=transaction_id, resolution=resolution, **fields
    )
    return await client.call("EndTransaction", request)


def test_transactions(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("X", queues=1, kind="TRANSACTION")
            committed, rolled_back = await half(client, b"yes"), await half(client, b"no")
            assert TransactionId.decode(committed).broker_name == "broker-a"
            assert await door.cluster.bodies("X") == []
            assert (await end(client, committed, messages.COMMIT)).status.code == messages.OK
            assert (await end(client, rolled_back, messages.ROLLBACK)).status.code == messages.OK
            (found,) = await client.received("G", "X")
            assert (found.body, found.system_properties.message_type) == (b"yes", messages.TRANSACTION)
            assert await door.cluster.bodies("X") == [b"yes"]

    run(play())


def test_a_transaction_is_ended_by_its_unique_key_for_a_while(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("X", queues=1, kind="TRANSACTION")
            await half(client, b"1")
            await half(client, b"2")
            assert (await end(client, f"id-{b'1'.hex()}", messages.COMMIT)).status.code == messages.OK
            assert await door.cluster.bodies("X") == [b"1"]
            advance(31)
            answer = await end(client, f"id-{b'2'.hex()}", messages.COMMIT)
            assert answer.status.code == messages.INTERNAL_SERVER_ERROR
            for text in ("", " ", "T1.x"):
                answer = await end(client, text, messages.COMMIT)
                assert answer.status.code == messages.INVALID_TRANSACTION_ID
            assert await door.cluster.bodies("X") == [b"1"]

    run_stepped(play())


def test_recovery_of_an_orphaned_transaction(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("X", queues=1, kind="TRANSACTION")
            stream = await client.produces("X")
            transaction_id = await half(client, b"orphan")
            asked = None
            while asked is None:
                await passes(1)
                if not stream.is_empty():
                    asked = await stream.next()
            command = asked.recover_orphaned_transaction_command
            assert command.message.body == b"orphan" and command.message.topic.name == "X"
            assert command.message.system_properties.message_id == f"id-{b'orphan'.hex()}"
            assert TransactionId.decode(command.transaction_id)[:2] == TransactionId.decode(transaction_id)[:2]
            answer = await end(client, command.transaction_id, messages.COMMIT, source=messages.SOURCE_SERVER_CHECK)
            assert answer.status.code == messages.OK
            assert await door.cluster.bodies("X") == [b"orphan"]

    run_stepped(play())


# -- renewals ----------------------------------------------------------------------------------------------------------


def test_handles_of_push_consumers_are_renewed(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            await client.sent("T", b"slow")
            (found,) = await client.received("G", "T", auto_renew=True)
            assert len(door.door.renewals) == 1
            for _ in range(8):  # four minutes, in which the first 60 s and the first renewals pass
                await passes(30)
                heartbeat = messages.HeartbeatRequest(group=resource("G"), client_type=messages.PUSH_CONSUMER)
                assert (await client.call("Heartbeat", heartbeat)).status.code == messages.OK
            other = await door.client("c2")
            call = other.receive("G", "T", long_polling_timeout={"seconds": 5})
            await passes(6)
            status, _ = await call.all()
            assert status.status.code == messages.MESSAGE_NOT_FOUND, "the message is still hidden"
            answer = await client.ack("G", "T", found)
            assert answer.status.code == messages.OK, "the first handle stands for the newest"
            assert not len(door.door.renewals)
            await passes(400)
            other = await door.client("c2")
            call = other.receive("G", "T", long_polling_timeout={"seconds": 5})
            await passes(6)
            assert (await call.all())[0].status.code == messages.MESSAGE_NOT_FOUND, "and was acknowledged"

    run_stepped(play())


@pytest.mark.parametrize("how", ["terminates", "is silent", "simple consumer is silent"])
def test_messages_of_a_client_that_ends_are_visible_soon(tmp_path: Path, how: str) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            await client.sent("T", b"m")
            renewed = not how.startswith("simple")
            assert len(await client.received("G", "T", **({"auto_renew": True} if renewed else {}))) == 1
            if how == "terminates":
                request = messages.NotifyClientTerminationRequest(group=resource("G"))
                assert (await client.call("NotifyClientTermination", request)).status.code == messages.OK
                await passes(4)
            else:
                await passes(125)
            assert not len(door.door.renewals) and not [one for one in door.door.sessions if one.client_id == "c1"]
            other = await door.client("c2")
            (again,) = await other.received("G", "T", long_polling_timeout={"seconds": 5})
            assert again.body == b"m" and again.system_properties.delivery_attempt == 2

    run_stepped(play())


def test_a_handed_back_message_is_renewed_no_longer(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            await client.sent("T", b"m")
            (found,) = await client.received("G", "T", auto_renew=True)
            request = messages.ChangeInvisibleDurationRequest(
                group=resource("G"),
                topic=resource("T"),
                receipt_handle=found.system_properties.receipt_handle,
                invisible_duration={"seconds": 2},
            )
            assert (await client.call("ChangeInvisibleDuration", request)).status.code == messages.OK
            assert not len(door.door.renewals)
            await passes(6)
            (again,) = await client.received("G", "T")
            assert again.system_properties.delivery_attempt == 2

    run_stepped(play())


# -- sessions and commands ---------------------------------------------------------------------------------------------


def test_silent_clients_are_forgotten(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client, other = await door.client(), await door.client("c2")
            door.topic("T")
            await client.consumes("G", "T")
            await other.consumes("G", "T")
            group = door.broker.services.consumers.group("G")
            assert group is not None and sorted(group.client_ids()) == ["c1", "c2"]
            for _ in range(13):
                await passes(10)
                request = messages.HeartbeatRequest(group=resource("G"), client_type=messages.SIMPLE_CONSUMER)
                assert (await other.call("Heartbeat", request)).status.code == messages.OK
            assert [one.client_id for one in door.door.sessions] == ["c2"]
            assert group.client_ids() == ["c2"]
            assert client.lost.is_set(), "its connection was silent, too"
            client = await door.client()
            answer = await client.call("Heartbeat", messages.HeartbeatRequest(group=resource("G")))
            assert answer.status.code == messages.UNRECOGNIZED_CLIENT_TYPE, "so it sends its settings again"

    run_stepped(play())


def test_commands_go_to_the_newest_stream(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client, again = await door.client(), await door.client()
            door.topic("T")
            first = await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            second = await again.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            (session,) = door.door.sessions
            first.cancel()
            await settle()
            info = asyncio.ensure_future(running_info(door, jstack="true"))
            command = await second.next()
            nonce = command.print_thread_stack_trace_command.nonce
            trace = messages.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waits")
            second.send(messages.TelemetryCommand(status={"code": messages.OK}, thread_stack_trace=trace))
            answer = await info
            assert answer.code == ResponseCode.SUCCESS and b"main: waits" in bytes(answer.body)
            assert b'"PROP_CLIENT_VERSION":"5.1.2"' in bytes(answer.body)
            second.cancel()
            await settle()
            assert session.stream is None
            answer = await running_info(door, jstack="true")
            assert answer.code == ResponseCode.SUCCESS and b"no telemetry stream" in bytes(answer.body)

    run(play())


async def running_info(door: Door, jstack: str) -> Any:
    fields = {"consumerGroup": "G", "clientId": "c1", "jstackEnable": jstack}
    return await door.cluster.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)


def test_a_client_that_does_not_answer_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_ANSWER_S", 0.01)

    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            answer = await running_info(door, jstack="true")
            assert answer.code == ResponseCode.SUCCESS and b"in time" in bytes(answer.body)

    run(play())


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (messages.OK, b"CR_SUCCESS"),
        (messages.FAILED_TO_CONSUME_MESSAGE, b"CR_LATER"),
        (messages.MESSAGE_CORRUPTED, b"CR_RETURN_NULL"),
        (messages.INTERNAL_ERROR, b"CR_THROW_EXCEPTION"),
        (messages.VERIFY_FIFO_MESSAGE_UNSUPPORTED, b""),
    ],
)
def test_one_message_to_try(tmp_path: Path, code: int, result: bytes) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            stream = await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            sent = await door.cluster.send("T", b"try me")
            fields = {"consumerGroup": "G", "clientId": "c1", "msgId": sent.ext_fields["msgId"]}
            trying = asyncio.ensure_future(door.cluster.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields))
            command = (await stream.next()).verify_message_command
            assert command.message.body == b"try me" and command.message.topic.name == "T"
            stream.send(
                messages.TelemetryCommand(
                    status={"code": code}, verify_message_result=messages.VerifyMessageResult(nonce=command.nonce)
                )
            )
            answer = await trying
            assert (answer.code == ResponseCode.SUCCESS) is bool(result)
            assert result in bytes(answer.body)

    run(play())


def test_a_door_that_stops_tells_its_clients(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            stream = await client.consumes("G", "T", client_type=messages.PUSH_CONSUMER)
            await client.sent("T", b"m")
            await client.received("G", "T", auto_renew=True)
            await door.door.stop()
            command = await stream.next()
            assert command.WhichOneof("command") == "reconnect_endpoints_command"
            assert await stream.next() is None and stream.status == 0
            await client.lost.wait()
            answer = await door.cluster.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
            assert answer.code != ResponseCode.SUCCESS, "the broker has forgotten the client"

    run(play())


def test_a_changed_handle_acknowledges_its_message(tmp_path: Path) -> None:
    """The second message of a pop moves to a checkpoint of its own, which the new handle names."""

    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T", queues=1)
            for body in (b"1", b"2"):
                await client.sent("T", body)
            first, second = await client.received("G", "T", invisible_duration={"seconds": 10})
            request = messages.ChangeInvisibleDurationRequest(
                group=resource("G"),
                topic=resource("T"),
                receipt_handle=second.system_properties.receipt_handle,
                invisible_duration={"seconds": 5},
            )
            changed = await client.call("ChangeInvisibleDuration", request)
            second.system_properties.receipt_handle = changed.receipt_handle
            assert (await client.ack("G", "T", first, second)).status.code == messages.OK
            await passes(20)
            call = client.receive("G", "T", long_polling_timeout={"seconds": 5})
            await passes(6)
            assert (await call.all())[0].status.code == messages.MESSAGE_NOT_FOUND

    run_stepped(play())


def test_settings_are_answered_one_after_another(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            stream = await client.produces("T")
            topics = messages.Publishing(topics=[resource("T")])
            commands = [
                messages.TelemetryCommand(
                    settings=messages.Settings(publishing=topics, client_properties={"n": f"{n}"})
                )
                for n in range(40)
            ]
            for command in commands[:10]:
                stream.send(command)
            answers = [(await stream.next()).settings.client_properties["n"] for _ in range(10)]
            assert answers == [f"{n}" for n in range(10)]
            for command in commands:
                stream.send(command)
            while await stream.next() is not None:
                pass
            assert stream.status == 8 and "16" in stream.text, "too many at once"
            assert (await client.sent("T")).status.code == messages.OK

    run(play())


@pytest.mark.parametrize(
    ("said", "known"),
    [("JAVA", "JAVA"), ("GOLANG", "GO"), ("HTTP", "HTTP"), ("RUST", "RUST"), ("X", "OTHER"), ("", "OTHER")],
)
def test_brokers_know_the_language_of_a_client(tmp_path: Path, said: str, known: str) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            request = messages.HeartbeatRequest(group=resource("G"))
            await client.call("Heartbeat", request, x_mq_language=said)
            await client.consumes("G", "T")
            answer = await door.cluster.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
            assert f'"language":"{known}"'.encode() in bytes(answer.body)

    run(play())


def test_heartbeats_cost_the_broker_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat that is equal to the last one is not processed again."""
    processed: list[str] = []
    register = ClientManageProcessor._register

    def counted(self: Any, channel: Any, command: Any, data: Any, *rest: Any) -> Any:
        processed.append(data.client_id)
        return register(self, channel, command, data, *rest)

    monkeypatch.setattr(ClientManageProcessor, "_register", counted)

    async def play() -> None:
        async with opened(tmp_path) as door:
            client = await door.client()
            door.topic("T")
            await client.consumes("G", "T")
            for _ in range(3):
                await passes(1)
                request = messages.HeartbeatRequest(group=resource("G"))
                assert (await client.call("Heartbeat", request)).status.code == messages.OK
            assert processed == ["c1"]
            await client.consumes("G", "T")
            assert processed == ["c1", "c1"], "settings that come again may be others"

    run_stepped(play())


def test_idle_clients_hold_no_memory_for_sends(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            door.topic("T", queues=1)
            clients = [await door.client(f"c{number}") for number in range(5)]
            for client in clients:
                assert (await client.sent("T", b"x" * 1000)).status.code == messages.OK
                assert (await client.sent("T", b"x" * 1_000_000)).status.code == messages.OK
            links: list[Any] = [link for session in door.door.sessions for link in session.links.values()]
            assert len(links) == 5 and not any(link._rows or link._full for link in links)
            assert len(links[0]._shared._free) == 1, "one after another, they have used the same"
            assert door.bodies("T") == [b"x" * 1000, b"x" * 1_000_000] * 5

    run(play())
