"""Attacks S-65 and S-66: floods of frames and hostile header blocks on a gRPC port.

``unit/http2/test_limits.py`` shows where each limit is. Here the attack goes on until the server ends it: a canary is
served after each part, the memory is bounded, and nothing of the connection remains.
"""

from __future__ import annotations

import pytest
from tests.attack.grpc_floods import FLOODS
from tests.attack.grpc_peers import MIB, Attacker, assault, attacked, forgotten, memory
from tests.sizes import size
from tests.unit.http2.wire import frame, settings

from rucola.http2.frames import ErrorCode, FrameType
from rucola.testing.event_loop import run_stepped

CONTINUATION, HEADERS, PING = FrameType.CONTINUATION, FrameType.HEADERS, FrameType.PING


def standing() -> float:
    """A clock without motion: what a limit adds with time does not depend on the speed of the machine."""
    return 0.0


@pytest.mark.parametrize("name", FLOODS)
def test_s65_floods_of_frames(name: str) -> None:
    async def scene() -> None:
        async with attacked(clock=standing) as (server, service, canary):
            attackers = [await Attacker.open(server) for _ in range(size(1, 4))]
            with memory(size(6, 12) * MIB):
                for attacker in attackers:
                    part = FLOODS[name](attacker)
                    most = 1000
                    assert await assault(attacker, canary, part, most) < most
                    assert attacker.goaway == ErrorCode.ENHANCE_YOUR_CALM
            await forgotten(server, *attackers)
            assert service.waiting == []

    run_stepped(scene())


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["PING", "SETTINGS"])
def test_s65_answers_that_the_attacker_does_not_read(kind: str) -> None:
    """It sends requests, too, which earn it control frames, and reads nothing of all that comes."""
    one = frame(PING, bytes(8)) if kind == "PING" else settings()

    async def scene() -> None:
        async with attacked() as (server, _, canary):
            attacker = await Attacker.open(server)
            attacker.stop_reading()
            with memory(8 * MIB):
                for _ in range(size(30, 2000)):
                    attacker.send(b"".join(attacker.request("/t.T/Echo") + one for _ in range(100)))
                    await canary.served()
                    if attacker.ended.is_set():
                        break
            connection = attacker.connection()
            assert connection is None or connection.unsent_bytes < MIB
            del connection
            await forgotten(server, attacker)

    run_stepped(scene())


@pytest.mark.parametrize("length", [17_000, 60_000, 70_000, MIB])
def test_s66_metadata_that_is_too_large(length: int) -> None:
    """Fields above 16 KiB are refused; above 64 KiB, the block is not even read."""

    async def scene() -> None:
        async with attacked() as (server, service, canary):
            attacker = await Attacker.open(server)
            blocks = [in_frames(attacker.request("/t.T/Echo", None, ("x-long", "~" * length))) for _ in range(3)]
            with memory(3 * MIB):
                for block in blocks:
                    attacker.send(block)
                    await canary.served()
            if length < 64 * 1024:
                assert [fields[":status"] for fields in attacker.answers.values()] == ["431"] * 3
            else:
                assert attacker.goaway == ErrorCode.ENHANCE_YOUR_CALM
            assert service.metadata == []
            await forgotten(server, attacker)

    run_stepped(scene())


def in_frames(whole: bytes) -> bytes:
    """Splits a HEADERS frame whose block is too long for one."""
    block, stream = whole[9:], int.from_bytes(whole[5:9], "big")
    parts = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    sent = b""
    for number, part in enumerate(parts):
        flags = 0x4 if number == len(parts) - 1 else 0
        sent += frame(CONTINUATION if number else HEADERS, part, flags, stream)
    return sent
