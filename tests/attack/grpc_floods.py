"""Floods of frames and hostile header blocks, for any connection that can send bytes."""

from __future__ import annotations

from collections.abc import Callable

from tests.attack.grpc_peers import MIB, Attacker
from tests.unit.http2.wire import ACK, data, frame, headers, settings, word

from rucola.http2.frames import ErrorCode, FrameType, Setting

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = FrameType
Part = Callable[[int], bytes]
MANY = 100


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


FLOODS = {
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
