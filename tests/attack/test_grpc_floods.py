"""Attacks S-65 and S-66: floods of frames and hostile header blocks on a gRPC port.

``unit/http2/test_limits.py`` shows where each limit is. Here the attack goes on until the server ends it: a canary is
served after each part, the memory is bounded, and nothing of the connection remains.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.attack.grpc_peers import MIB, Attacker, assault, attacked, forgotten, memory
from tests.sizes import size
from tests.unit.http2.wire import ACK, data, frame, headers, settings, word

from rucola.http2.frames import ErrorCode, FrameType, Setting
from rucola.testing.event_loop import run_stepped

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = FrameType
Part = Callable[[int], bytes]
MANY = 100


def standing() -> float:
    """A clock without motion: what a limit adds with time does not depend on the speed of the machine."""
    return 0.0


def repeated(one: bytes) -> Callable[[Attacker], Part]:
    return lambda attacker: lambda number: one * MANY


def each(one: Callable[[Attacker], bytes]) -> Callable[[Attacker], Part]:
    """A part of requests; each is made anew."""
    return lambda attacker: lambda number: b"".join(one(attacker) for _ in range(MANY))


def on_an_open_stream(one: Callable[[int], bytes]) -> Callable[[Attacker], Part]:
    def prepared(attacker: Attacker) -> Part:
        attacker.send(attacker.request(body=None))
        return lambda number: one(attacker.stream) * MANY

    return prepared


def rapid_reset(attacker: Attacker) -> bytes:
    return attacker.request() + word(RST, attacker.stream, ErrorCode.CANCEL)


def made_you_reset(attacker: Attacker) -> bytes:
    return attacker.request() + word(WINDOW, attacker.stream, 0)


def made_you_reset_by_data(attacker: Attacker) -> bytes:
    return attacker.request() + data(attacker.stream, b"x")


def nameless(attacker: Attacker) -> bytes:
    attacker.stream += 2
    return headers(attacker.stream, b"\x83\x86\x84\0\0\0", True)


def thrash(attacker: Attacker) -> bytes:
    """Each block resizes the table to nothing and back, and fills it with one entry."""
    attacker.stream += 2
    return headers(attacker.stream, b"\x20\x3f\xe1\x1f\x83\x86\x84\x40\x01x\x7f\x81\x1e" + b"v" * 3968, True)


def bomb(attacker: Attacker) -> Part:
    """One entry of 4 KB, then blocks that name it 16,000 times: 64 MB of fields in each frame."""
    attacker.stream += 2
    attacker.send(headers(attacker.stream, b"\x83\x86\x84\x40\x01x\x7f\x81\x1e" + b"v" * 3968, True))

    def part(number: int) -> bytes:
        attacker.stream += 2
        return headers(attacker.stream, b"\x83\x86\x84" + b"\xbe" * 16_000, True)

    return part


def continuations(attacker: Attacker) -> Part:
    attacker.stream += 2
    attacker.send(headers(attacker.stream, b"\x83", flags=0))
    return lambda number: frame(CONTINUATION, b"", 0, attacker.stream) * 3


def long_block(attacker: Attacker) -> Part:
    """A block without end, whose table entries push each other out."""
    attacker.stream += 2
    attacker.send(headers(attacker.stream, b"\x83\x86\x84", flags=0))
    return lambda number: frame(CONTINUATION, b"\x40\x01x\x7f\x81\x1e" + b"v" * 3968, 0, attacker.stream)


def dribble(attacker: Attacker) -> Part:
    attacker.send(attacker.request(body=None) + data(attacker.stream, b"\0" + MIB.to_bytes(4, "big")))
    return lambda number: data(attacker.stream, b"x") * 2000


ATTACKS = {
    "rapid reset": each(rapid_reset),
    "MadeYouReset by WINDOW_UPDATE": each(made_you_reset),
    "MadeYouReset by DATA": each(made_you_reset_by_data),
    "fields without a name": each(nameless),
    "table thrash": each(thrash),
    "HPACK bomb": bomb,
    "CONTINUATION": continuations,
    "a long block": long_block,
    "SETTINGS": repeated(settings((Setting.INITIAL_WINDOW_SIZE, 1000))),
    "answers to SETTINGS": repeated(frame(SETTINGS, b"", ACK)),
    "PING": repeated(frame(PING, bytes(8))),
    "PRIORITY": repeated(frame(PRIORITY, bytes(5), 0, 1)),
    "WINDOW_UPDATE": repeated(word(WINDOW, 0, 1)),
    "unknown frames": repeated(frame(77, bytes(100))),
    "RST_STREAM": on_an_open_stream(lambda stream: word(RST, stream, ErrorCode.CANCEL)),
    "empty DATA": on_an_open_stream(data),
    "WINDOW_UPDATE of a stream": on_an_open_stream(lambda stream: word(WINDOW, stream, 1)),
    "DATA of a byte": dribble,
    "DATA of a byte on a stream that was reset": on_an_open_stream(lambda stream: data(stream, b"\1") * 20),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_s65_floods_of_frames(name: str) -> None:
    async def scene() -> None:
        async with attacked(clock=standing) as (server, service, canary):
            attackers = [await Attacker.open(server) for _ in range(size(1, 20))]
            with memory(6 * MIB):
                for attacker in attackers:
                    part = ATTACKS[name](attacker)
                    most = 1000
                    assert await assault(attacker, canary, part, most) < most
                    assert attacker.goaway == ErrorCode.ENHANCE_YOUR_CALM
            await forgotten(server, *attackers)
            assert service.waiting == []

    run_stepped(scene())


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
