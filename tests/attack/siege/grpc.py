"""Attacks on the port for clients of RocketMQ 5."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable

from tests.attack.grpc_floods import FLOODS
from tests.attack.grpc_peers import GREETING, MIB, Attacker
from tests.attack.siege.peer import attack
from tests.attack.siege.target import Addresses
from tests.unit.http2.wire import headers, settings

from rucola.http2.frames import PREFACE, Setting
from rucola.proxy import messages
from rucola.proxy.schema import V2

_PAUSE_S = 0.02
_CONNECTIONS = 40


async def _connect(addresses: Addresses, first: bytes = GREETING) -> Attacker:
    host, _, port = addresses.grpc.rpartition(":")
    _, made = await asyncio.get_running_loop().create_connection(Attacker, host, int(port))
    made.send(first)
    return made


async def _again(play: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Plays something without end, whatever becomes of its connections."""
    while True:
        with contextlib.suppress(OSError):
            await play(*arguments)
        await asyncio.sleep(_PAUSE_S)


@attack("grpc", "19 floods of frames and header blocks at the same time, each on one connection after another")
async def grpc_floods(addresses: Addresses) -> None:
    async def flood(name: str) -> None:
        attacker = await _connect(addresses)
        part = FLOODS[name](attacker)
        for number in itertools.count():
            if attacker.ended.is_set():
                break
            attacker.send(part(number))
            await asyncio.sleep(0 if attacker.unsent_bytes < MIB else _PAUSE_S)
        attacker.close()

    await asyncio.gather(*(_again(flood, name) for name in FLOODS))


def _requests() -> dict[str, bytes]:
    """A request for each method."""
    topic, group = messages.Resource(name="Canary0"), messages.Resource(name="siege")
    queue = messages.MessageQueue(topic=topic, id=-1)
    handle = "0 1700000000000 60000 1 0 siege 0 0 0"
    made = {
        "QueryRoute": messages.QueryRouteRequest(topic=topic),
        "QueryAssignment": messages.QueryAssignmentRequest(topic=topic, group=group),
        "Heartbeat": messages.HeartbeatRequest(group=group, client_type=messages.PUSH_CONSUMER),
        "SendMessage": messages.SendMessageRequest(
            messages=[
                messages.Message(
                    topic=messages.Resource(name="siege"),
                    body=b"body",
                    system_properties=messages.SystemProperties(message_id="m", message_type=messages.NORMAL),
                )
            ]
        ),
        "ReceiveMessage": messages.ReceiveMessageRequest(group=group, message_queue=queue, batch_size=32),
        "AckMessage": messages.AckMessageRequest(
            group=group, topic=topic, entries=[messages.AckMessageEntry(message_id="m", receipt_handle=handle)]
        ),
        "ChangeInvisibleDuration": messages.ChangeInvisibleDurationRequest(
            group=group, topic=topic, receipt_handle=handle, message_id="m"
        ),
        "EndTransaction": messages.EndTransactionRequest(topic=topic, transaction_id="t", message_id="m"),
        "RecallMessage": messages.RecallMessageRequest(topic=topic, recall_handle="djEgVCBiIDEgdQ"),
        "Telemetry": messages.TelemetryCommand(settings=messages.Settings(client_type=messages.PRODUCER)),
    }
    return {name: request.SerializeToString() for name, request in made.items()}


def _changed(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.randint(0, 3)):
        place = chance.randrange(len(made) + 1)
        made[place : place + chance.randint(0, 4)] = chance.randbytes(chance.randint(0, 6))
    return bytes(made)


@attack("grpc", "requests to every method, some of them changed, on 40 connections")
async def grpc_changed_requests(addresses: Addresses) -> None:
    valid = _requests()

    async def send(number: int) -> None:
        chance = random.Random(number)
        attacker = await _connect(addresses)
        while not attacker.ended.is_set():
            parts = []
            for _ in range(20):
                name = chance.choice(list(valid))
                data = _changed(valid[name], chance)
                body = b"\0" + len(data).to_bytes(4, "big") + data
                parts.append(attacker.request(V2.path(name).decode(), body, ("x-mq-client-id", f"c{number}")))
            attacker.send(b"".join(parts))
            await asyncio.sleep(_PAUSE_S)
        attacker.close()

    await asyncio.gather(*(_again(send, number) for number in range(_CONNECTIONS)))


@attack("grpc", "requests on 40 connections that never open a window for the answers")
async def grpc_closed_windows(addresses: Addresses) -> None:
    route = _requests()["QueryRoute"]
    body = b"\0" + len(route).to_bytes(4, "big") + route
    closed = PREFACE + settings((Setting.INITIAL_WINDOW_SIZE, 0))

    async def ask(number: int) -> None:
        attacker = await _connect(addresses, closed)
        while not attacker.ended.is_set():
            path, name = V2.path("QueryRoute").decode(), ("x-mq-client-id", f"w{number}")
            attacker.send(b"".join(attacker.request(path, body, name) for _ in range(20)))
            await asyncio.sleep(_PAUSE_S)
        attacker.close()

    await asyncio.gather(*(_again(ask, number) for number in range(_CONNECTIONS)))


@attack("grpc", "1,500 connections that begin a request and do not end it")
async def grpc_half_requests(addresses: Addresses) -> None:
    async def begin(number: int) -> None:
        attacker = await _connect(addresses)
        attacker.stream += 2
        attacker.send(headers(attacker.stream, b"\x83", flags=0))
        await attacker.ended.wait()

    await asyncio.gather(*(_again(begin, number) for number in range(1500)))
