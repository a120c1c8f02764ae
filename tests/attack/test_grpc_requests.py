"""Requests that are nearly right, to every method of the gRPC port: each gets an answer, none is a defect of the
server, and others are served on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run
from tests.sizes import size
from tests.unit.proxy.doors import DoorClient, opened, send_request

from rucola.proxy import messages
from rucola.proxy.door import SERVED

ROUNDS = size(500, 250_000)
AT_ONCE = 25


def resource(name: str) -> Any:
    return messages.Resource(name=name)


class Raw:
    """Bytes that are sent as a request."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self._data


async def requests(client: DoorClient) -> dict[str, list[bytes]]:
    """A right request or two for each method."""
    await client.sent("T", b"m1")
    await client.sent("T", b"m2")
    found = await client.received("G", "T")
    handle, message_id = found[0].system_properties.receipt_handle, found[0].system_properties.message_id
    half = await client.sent("X", b"half", message_type=messages.TRANSACTION)
    topic, group = resource("T"), resource("G")
    ends = messages.Endpoints(scheme=1, addresses=[messages.Address(host="127.0.0.1", port=1)])
    queue = messages.MessageQueue(topic=topic, broker=messages.Broker(name="broker-a", endpoints=ends), id=-1)
    filter_ = messages.FilterExpression(type=messages.TAG, expression="a || b")
    entry = messages.SubscriptionEntry(topic=topic, expression=filter_)
    settings = [
        messages.Settings(
            client_type=messages.PUSH_CONSUMER,
            subscription=messages.Subscription(group=group, subscriptions=[entry]),
            client_properties={"k": "v"},
        ),
        messages.Settings(client_type=messages.PRODUCER, publishing=messages.Publishing(topics=[topic])),
    ]
    made: dict[str, list[Any]] = {
        "QueryRoute": [messages.QueryRouteRequest(topic=topic, endpoints=ends)],
        "QueryAssignment": [messages.QueryAssignmentRequest(topic=topic, group=group, endpoints=ends)],
        "Heartbeat": [messages.HeartbeatRequest(group=group, client_type=messages.PUSH_CONSUMER)],
        "NotifyClientTermination": [messages.NotifyClientTerminationRequest(group=group)],
        "SendMessage": [
            send_request("T", b"body", user={"x": "1"}, tag="t", keys=["k"], trace_context="c", queue_id=1),
            send_request("X", b"b", message_type=messages.DELAY, delivery_timestamp={"seconds": 1}, message_group="g"),
        ],
        "ReceiveMessage": [
            messages.ReceiveMessageRequest(
                group=group,
                message_queue=queue,
                filter_expression=filter_,
                batch_size=2,
                invisible_duration={"seconds": 20},
                auto_renew=True,
                long_polling_timeout={"seconds": 5},
                attempt_id="a",
            )
        ],
        "AckMessage": [
            messages.AckMessageRequest(
                group=group,
                topic=topic,
                entries=[messages.AckMessageEntry(message_id=message_id, receipt_handle=handle)] * count,
            )
            for count in (1, 2)
        ],
        "ForwardMessageToDeadLetterQueue": [
            messages.ForwardMessageToDeadLetterQueueRequest(
                group=group, topic=topic, receipt_handle=handle, message_id=message_id, max_delivery_attempts=3
            )
        ],
        "ChangeInvisibleDuration": [
            messages.ChangeInvisibleDurationRequest(
                group=group,
                topic=topic,
                receipt_handle=handle,
                message_id=message_id,
                invisible_duration={"seconds": 9},
            )
        ],
        "EndTransaction": [
            messages.EndTransactionRequest(
                topic=resource("X"), transaction_id=half.entries[0].transaction_id, resolution=messages.COMMIT
            )
        ],
        "SyncLiteSubscription": [
            messages.SyncLiteSubscriptionRequest(
                action=action,
                topic=topic,
                group=group,
                lite_topic_set=["a", "b"],
                version=1,
                offset_option={"policy": 1},
            )
            for action in range(4)
        ],
        "RecallMessage": [messages.RecallMessageRequest(topic=topic, recall_handle="djEgVCBiIDEgdQ")],
        "Telemetry": [messages.TelemetryCommand(settings=one) for one in settings]
        + [messages.TelemetryCommand(verify_message_result=messages.VerifyMessageResult(nonce="1"))],
    }
    assert set(made) == SERVED
    return {name: [one.SerializeToString() for one in ones] for name, ones in made.items()}


def changed(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one to four changes."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(made) + 1)
        kind = chance.randrange(5)
        if kind == 0 and place < len(made):
            made[place] ^= 1 << chance.randrange(8)
        elif kind == 1 and place < len(made):
            made[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0x20))
        elif kind == 2:
            del made[place : place + chance.randint(1, 8)]
        elif kind == 3:
            made[place:place] = chance.randbytes(chance.randint(1, 8))
        else:
            other = chance.randrange(len(made) + 1)
            made[place:place] = made[min(place, other) : max(place, other)][:64]
    return bytes(made)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_s70_requests_that_are_nearly_right(tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed)
    caplog.set_level(logging.ERROR)

    async def play() -> None:
        async with opened(tmp_path, enable_property_filter=True) as door:
            client, canary = await door.client(), await door.client("canary")
            for topic, kind in (("T", ""), ("X", "MIXED"), ("C", "")):
                door.topic(topic, queues=2, kind=kind)
            valid = await requests(client)
            names = sorted(valid)
            for _ in range(ROUNDS // AT_ONCE):
                calls = []
                for name in (chance.choice(names) for _ in range(AT_ONCE)):
                    data = Raw(changed(chance.choice(valid[name]), chance))
                    calls.append(client.begin(name, data, timeout="6S"))
                answer = await canary.sent("C")
                assert answer.status.code == messages.OK
                for call in calls:
                    if not call.is_ended:
                        call.cancel()
            assert not client.lost.is_set(), "one connection has served all of it"
            heartbeat = await client.call("Heartbeat", messages.HeartbeatRequest())
            assert heartbeat.status.code in (
                messages.OK,
                messages.UNRECOGNIZED_CLIENT_TYPE,
                messages.ILLEGAL_CONSUMER_GROUP,
            )
            await asyncio.sleep(0)

    run(play())
    assert [record.getMessage() for record in caplog.records] == []
