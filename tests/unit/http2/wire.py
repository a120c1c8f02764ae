"""A client for tests: frames as bytes, blocks from the library ``hpack``, and connections in both forms."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import hpack
from tests.kernels import kernel

import rucola.http2
from rucola.http2 import columns
from rucola.http2.columns import EventKind
from rucola.http2.frames import PREFACE, FrameType, frame_head
from rucola.http2.limits import Http2Limits

WANTED = (b":method", b":path", b"x-id", b"content-length")
REQUEST = ((":method", "POST"), (":scheme", "http"), (":path", "/send"), (":authority", "broker"))
LIMITS = Http2Limits()
END_STREAM, END_HEADERS, PADDED, PRIORITY_FLAG, ACK = 0x1, 0x4, 0x8, 0x20, 0x1


@cache
def modules(form: str) -> dict[str, ModuleType]:
    """The modules of ``http2`` over its kernels in a form."""
    names = ("_hpack_cy", "_frames_cy", "_exchange_cy")
    loaded = {f"rucola.http2.{name}": kernel(f"http2.{name}", form) for name in names}
    folder = Path(rucola.http2.__file__).parent
    for name in ("hpack", "event_space", "connection"):
        spec = importlib.util.spec_from_file_location(f"rucola.http2.{name}", folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with patch.dict(sys.modules, loaded | {spec.name: module}):
            spec.loader.exec_module(module)
        loaded[spec.name] = module
    return {name.rpartition(".")[2]: module for name, module in loaded.items()}


class Event(NamedTuple):
    """A row that means something, with what it points to."""

    kind: EventKind
    stream: int
    is_end: bool = False
    code: int = 0
    data: bytes = b""
    fields: tuple[bytes | None, ...] = ()
    length: int = 0


class Peer:
    """A connection and the client's half of its header compression.

    Args:
        form: form of the kernels.
        limits: limits of the connection.
        greeted: whether the preface has been exchanged.
    """

    def __init__(self, form: str, limits: Http2Limits = LIMITS, greeted: bool = True) -> None:
        self.space = modules(form)["event_space"].EventSpace(WANTED, limits)
        self.connection = modules(form)["connection"].Http2Connection(self.space, limits)
        self.encoder = hpack.Encoder()
        self.now_ms = 1000
        if greeted:
            assert self.feed(PREFACE + frame(FrameType.SETTINGS)) == []
            self.sent()

    def feed(self, data: bytes) -> list[Event]:
        """Gives bytes to the connection, as many at a time as it takes; returns the events."""
        events = []
        while data:
            buffer = self.connection.buffer()
            count = min(len(buffer), len(data))
            buffer[:count], data = data[:count], data[count:]
            rows = self.connection.received(count, self.now_ms)
            while rows:
                events += self.events(rows)
                rows = self.connection.more(self.now_ms)
        return events

    def events(self, count: int) -> list[Event]:
        """Reads the rows of a read."""
        found = []
        rows = self.space.rows
        for base in range(0, count * columns.ROW_COLUMNS, columns.ROW_COLUMNS):
            kind = EventKind(rows[base + columns.ROW_KIND])
            number, is_end = rows[base + columns.ROW_STREAM], bool(rows[base + columns.ROW_END])
            start, length = rows[base + columns.ROW_POSITION], rows[base + columns.ROW_LENGTH]
            code = rows[base + columns.ROW_CODE]
            if kind == EventKind.DATA:
                data = bytes(self.connection.source[start : start + length])
                found.append(Event(kind, number, is_end, data=data))
            elif kind in (EventKind.REQUEST, EventKind.TRAILERS):
                fields = rows[base + columns.ROW_FIELDS]
                values = tuple(self.space.value(fields, place) for place in range(len(WANTED)))
                found.append(Event(kind, number, is_end, fields=values))
            elif kind == EventKind.WINDOW:
                found.append(Event(kind, number, is_end))
            elif kind in (EventKind.GOAWAY, EventKind.NOT_HTTP2):
                found.append(Event(kind, number, code=code, length=length))
            elif kind:
                found.append(Event(kind, number, code=code))
        return found

    def sent(self) -> list[tuple[int, int, int, bytes]]:
        """Takes what goes out, as type, flags, stream and payload of each frame."""
        return split(self.connection.data_to_send())

    def request(
        self, stream: int = 1, end: bool = False, more: Sequence[tuple[str, str]] = (), flags: int = END_HEADERS
    ) -> bytes:
        """A frame HEADERS with a request."""
        return headers(stream, self.encoder.encode([*REQUEST, *more]), end, flags)


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """A frame of any kind."""
    return frame_head(len(payload), kind, flags, stream) + payload


def headers(stream: int, block: bytes, end: bool = False, flags: int = END_HEADERS) -> bytes:
    """A frame HEADERS."""
    return frame(FrameType.HEADERS, block, flags | (END_STREAM if end else 0), stream)


def data(stream: int, payload: bytes = b"", end: bool = False) -> bytes:
    """A frame DATA."""
    return frame(FrameType.DATA, payload, END_STREAM if end else 0, stream)


def word(kind: int, stream: int, value: int) -> bytes:
    """A frame RST_STREAM or WINDOW_UPDATE."""
    return frame(kind, value.to_bytes(4, "big"), 0, stream)


def settings(*pairs: tuple[int, int]) -> bytes:
    """A frame SETTINGS."""
    return frame(
        FrameType.SETTINGS, b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in pairs)
    )


def split(sent: bytes) -> list[tuple[int, int, int, bytes]]:
    """Splits bytes into frames: type, flags, stream and payload."""
    found: list[tuple[int, int, int, bytes]] = []
    while sent:
        length = int.from_bytes(sent[:3], "big")
        found.append((sent[3], sent[4], int.from_bytes(sent[5:9], "big"), sent[9 : 9 + length]))
        sent = sent[9 + length :]
    return found


def code_of(sent: Sequence[tuple[int, int, int, bytes]], kind: int) -> int:
    """The error code of the first RST_STREAM or GOAWAY in what was sent; -1 without one."""
    for found, _, _, payload in sent:
        if found == kind:
            return int.from_bytes(payload[:4] if kind == FrameType.RST_STREAM else payload[4:8], "big")
    return -1


def decoder(form: str, wanted: Sequence[bytes] = WANTED, table: int = 4096, list_max: int = 16384) -> Any:
    """A decoder with a text and fields of its own, which are its attributes in ``Decoded``."""
    return Decoded(form, wanted, table, list_max)


class Decoded:
    """A decoder, and what it has found.

    Attributes:
        decoder: the decoder.
        status: what the last block gave.
    """

    def __init__(self, form: str, wanted: Sequence[bytes], table: int, list_max: int) -> None:
        from array import array

        module = kernel("http2._hpack_cy", form)
        names = module.WantedNames(wanted)
        self.wanted, self.text = wanted, bytearray(6 * max(table, 4096, list_max))
        self.fields = array("q", bytes(8 * names.width))
        self.decoder = module.HeaderDecoder(names, table, list_max, self.text, self.fields)
        self.status = 0

    def decode(self, block: bytes, trailers: bool = False) -> dict[bytes, bytes]:
        """Decodes a block; returns the wanted fields that it has."""
        self.status = self.decoder.decode(bytearray(block), 0, len(block), 0, 0, trailers)
        found = {}
        for place, name in enumerate(self.wanted):
            column = columns.FIELDS_WANTED + place * columns.FIELD_COLUMNS
            start, length = self.fields[column : column + 2]
            if length >= 0:
                found[name] = bytes(self.text[start : start + length])
        return found

    def entry(self, name: bytes) -> int:
        """The number of the entry that a wanted field came from."""
        place = self.wanted.index(name)
        return self.fields[columns.FIELDS_WANTED + place * columns.FIELD_COLUMNS + columns.FIELD_ENTRY]
