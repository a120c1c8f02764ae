"""Messages to lite topics that a producer sends or refuses."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from tests.unit.client.conftest import ScriptedBroker
from tests.unit.client.producing import properties_of

from rucola import Message, Producer, TransactionProducer
from rucola.errors import ClientError, SendManyError
from rucola.testing.event_loop import run_stepped


def test_a_lite_topic_leads_to_its_queue_of_the_parent():
    async def scene() -> None:
        async with ScriptedBroker(topics={"agents": 8}) as server, Producer("pg", server.address) as producer:
            for name in ("session-1", "user_42", "abc"):
                await producer.send(Message("agents", b"x", lite_topic=name))
            await producer.send_many([Message("agents", b"x", lite_topic="abc"), Message("agents", b"y")])
            await producer.send_oneway(Message("agents", b"x", lite_topic="session-1"))
            await server.until(lambda: len(server.stored) >= 6)
            found = [(properties_of(header).get("__LITE_TOPIC"), header.queue_id) for header, _ in server.stored]
            lite = [("session-1", 3), ("user_42", 0), ("abc", 7), ("abc", 7), ("session-1", 3)]
            assert [one for one in found if one[0]] == lite

    run_stepped(scene())


@pytest.mark.few
@pytest.mark.parametrize("call", ["send", "submit", "send_many", "send_oneway"])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delay_level": 3}, "delayed"),
        ({"delay": timedelta(seconds=1)}, "delayed"),
        ({"sharding_key": "k"}, "sharding key"),
        ({"properties": {"_SYS_MSG_PRIORITY_": "1"}}, "priority"),
        ({"properties": {"__LITE_TOPIC": "a/b"}, "lite_topic": None}, "characters"),
    ],
)
def test_what_a_message_of_a_lite_topic_cannot_be(call, options, error):
    async def scene() -> None:
        async with ScriptedBroker(topics={"agents": 4}) as server, Producer("pg", server.address) as producer:
            message = Message("agents", b"x", **{"lite_topic": "a", **options})
            with pytest.raises(ClientError, match=error):
                if call == "send_many":
                    try:
                        await producer.send_many([message])
                    except SendManyError as several:
                        raise several.errors[0] from None
                elif call == "submit":
                    await producer.submit(message)
                else:
                    await getattr(producer, call)(message)
            assert server.stored == []

    run_stepped(scene())


def test_a_message_of_a_lite_topic_goes_neither_to_a_chosen_queue_nor_in_a_batch_nor_in_a_transaction():
    async def scene() -> None:
        listener = SimpleNamespace(execute_local_transaction=None, check_local_transaction=None)
        async with ScriptedBroker(topics={"agents": 4}) as server:
            message = Message("agents", b"x", lite_topic="a")
            async with Producer("pg", server.address) as producer:
                queue = (await producer.message_queues("agents"))[0]
                with pytest.raises(ClientError, match="queue of its lite topic"):
                    await producer.send(message, queue)
                with pytest.raises(ClientError, match="queue of its lite topic"):
                    await producer.send(message, selector=lambda queues, _: queues[0])
                with pytest.raises(ClientError, match="send_many"):
                    await producer.send_batch([Message("agents", b"y"), message])
            async with TransactionProducer("pg", server.address, listener) as producer:
                with pytest.raises(ClientError, match="transaction"):
                    await producer.send_message_in_transaction(message)
            assert server.stored == []

    run_stepped(scene())
