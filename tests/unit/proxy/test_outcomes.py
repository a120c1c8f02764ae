"""Calls are counted by the status in their responses, whoever has made these, and by the errors of gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.brokers import run
from tests.unit.proxy.doors import opened

from rucola.grpc.status import StatusCode
from rucola.proxy import messages, wire
from rucola.proxy.outcomes import Outcomes
from rucola.proxy.rpc import ok
from rucola.proxy.schema import V2
from rucola.testing.event_loop import settle


@pytest.mark.parametrize("length", [0, 5, 127, 128, 20_000])
def test_the_code_is_read_from_the_bytes_of_a_response(length: int) -> None:
    for name, code in V2.enums["Code"].items():
        outcomes = Outcomes()
        status = messages.Status(code=code, message="x" * length)
        outcomes.answered(messages.AckMessageResponse(status=status, entries=[{}]).SerializeToString())
        assert outcomes.counts() == {name: 1}


def test_frequent_responses_and_others() -> None:
    outcomes = Outcomes()
    for response in (
        wire.sent(b"id", 7),
        wire.acknowledged(b"id", b"handle"),
        messages.ReceiveMessageResponse(status=ok()).SerializeToString(),
    ):
        outcomes.answered(response)
    for strange in (b"", b"\x0a", b"\x12\x00", b"\x0a\xff\xff", b"\x0a\x02\x12\x00", b"\xff" * 9):
        outcomes.answered(strange)
    outcomes.ended(StatusCode.CANCELLED)
    assert outcomes.counts() == {"OK": 3, "CODE_UNSPECIFIED": 6, "grpc CANCELLED": 1}


def test_each_call_is_counted_once(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            door.topic("T", queues=1)
            client = await door.client()
            stream = await client.produces("T")
            await client.sent("T")
            await client.sent("T", body_encoding=messages.GZIP)
            await client.sent("Absent")
            await client.ack("g", "T", (await client.received("g", "T"))[0])
            poll = client.receive("g", "T")
            await door.until_held(1)
            assert (door.door.figures().polls, door.door.figures().open_calls) == (1, 2)
            poll.cancel()
            while door.door.figures().polls:
                await settle()
            await client.receive("g", "T", timeout="1m").all()
            broken = client.begin("SendMessage", messages.SendMessageRequest(), x_mq_client_id="")
            await broken.all()
            client.close()
            while door.door.figures().connections:
                await settle()
            figures = door.door.figures()
            assert figures.outcomes["SendMessage"] == {"OK": 2, "TOPIC_NOT_FOUND": 1, "CLIENT_ID_REQUIRED": 1}
            assert figures.outcomes["AckMessage"] == figures.outcomes["Telemetry"] == {"OK": 1}
            assert figures.outcomes["ReceiveMessage"] == {"OK": 1, "ILLEGAL_POLLING_TIME": 1, "grpc CANCELLED": 1}
            assert stream.status == "lost" and figures.polls == figures.open_calls == 0

    run(play())


def test_connections_that_are_closed_for_what_they_did(tmp_path: Path) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            host, _, port = door.door.address.rpartition(":")
            for first in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 9):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(first)
                await reader.read()
                writer.close()
            assert door.door.figures().ends == {"not HTTP/2": 1, "PROTOCOL_ERROR": 1}

    run(play())
