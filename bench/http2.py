"""HTTP/2: CPU per request and answer, without sockets, compared with the library h2.

A request is what the official Java client sends for a message: HEADERS with 17 fields, of which five change each time,
and DATA that ends the stream. The answer is HEADERS, DATA, and HEADERS with the trailers. The server finds the frames,
decodes the fields, takes the ones it wants, acknowledges the data, and builds the answer.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import h2.config
import h2.connection
import h2.events
import hpack
from tools.peers.packages import ROOT

from bench.context import Context
from bench.figure import Budget, Figure, cost
from rucola.http2.columns import ROW_COLUMNS, ROW_END, ROW_FIELDS, ROW_KIND, ROW_LENGTH, ROW_STREAM, EventKind
from rucola.http2.frames import PREFACE, FrameType, frame_head, headers_frames, settings_frame, window_update
from rucola.http2.hpack import encode_block
from rucola.http2.limits import Http2Limits

GROUP = "HTTP/2, CPU per request and answer"
WANTED = (b":path", b"authorization", b"grpc-timeout", b"x-mq-client-id", b"x-mq-date-time", b"x-mq-language")
LIMITS = Http2Limits()
BODY_BYTES, ANSWER_BYTES = 200, 120
ANSWER = [(b":status", b"200"), (b"content-type", b"application/grpc")]
TRAILERS = [(b"grpc-status", b"0")]
COUNTS = {"compiled": 20_000, "interpreted": 300, "h2": 500}
_REQUEST = int(EventKind.REQUEST)
OPENED_EVERY = 500
"""After so many requests the client opens the window of the connection, as its answers have used it up."""


def request_fields(number: int) -> list[tuple[str, str]]:
    """The fields that grpc-java and the client of RocketMQ send."""
    signature = f"{number * 0x9E3779B97F4A7C15F39CC060:040x}"
    return [
        (":authority", "127.0.0.1:8081"),
        (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
        (":method", "POST"),
        (":scheme", "http"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "grpc-java-netty/1.53.0"),
        ("x-mq-language", "JAVA"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.0.7"),
        ("x-mq-namespace", ""),
        ("x-mq-date-time", f"20261130T02{number // 60 % 60:02d}{number % 60:02d}Z"),
        ("x-mq-request-id", f"f81d4fae-7dec-11d0-a765-{number:012x}"),
        ("x-mq-client-id", "host@1234@1@abc"),
        ("authorization", f"MQv2-HMAC-SHA1 Credential=key, SignedHeaders=x-mq-date-time, Signature={signature}"),
        ("grpc-accept-encoding", "gzip"),
        ("grpc-timeout", f"{3000 - number % 100}m"),
    ]


def requests(count: int) -> list[bytes]:
    """Returns the frames of each request; the blocks use one table."""
    encoder, found = hpack.Encoder(), []
    for number in range(count):
        stream = 2 * number + 1
        sent = headers_frames(stream, encoder.encode(request_fields(number)), False, 16384)
        sent += frame_head(BODY_BYTES, FrameType.DATA, 1, stream) + bytes(BODY_BYTES)
        if number % OPENED_EVERY == OPENED_EVERY - 1:
            sent += window_update(0, OPENED_EVERY * ANSWER_BYTES)
        found.append(sent)
    return found


def modules(compiled: bool) -> tuple[ModuleType, ModuleType]:
    """Returns the modules of spaces and of connections, over kernels in one form."""
    folder, loaded = ROOT / "src" / "rucola" / "http2", dict[str, ModuleType]()
    kernels = () if compiled else ("_hpack_cy", "_frames_cy", "_exchange_cy", "hpack")
    with ExitStack() as stack:
        for name in (*kernels, "event_space", "connection"):
            module = _load(folder / f"{name}.py")
            stack.enter_context(patch.dict(sys.modules, {f"rucola.http2.{name}": module}))
            assert module.__spec__ is not None and module.__spec__.loader is not None
            module.__spec__.loader.exec_module(module)
            loaded[name] = module
    return loaded["event_space"], loaded["connection"]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"rucola.http2.{path.stem}", path)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


def ours(compiled: bool, per_read: int) -> Callable[[list[bytes]], float]:
    """Returns what serves requests, so many per read, and returns the µs of CPU that each took."""
    spaces, connections = modules(compiled)
    answer, trailers, body = encode_block(ANSWER), encode_block(TRAILERS), bytes(ANSWER_BYTES)

    def run(sent: list[bytes]) -> float:
        reads = [b"".join(sent[at : at + per_read]) for at in range(0, len(sent), per_read)]
        space = spaces.EventSpace(WANTED, LIMITS)
        connection = connections.Http2Connection(space, LIMITS)
        rows: array[int] = space.rows
        begun = time.process_time()
        for now_ms, received in enumerate([PREFACE + settings_frame([]), *reads]):
            at = 0
            while at < len(received):
                buffer = connection.buffer()
                size = min(len(buffer), len(received) - at)
                buffer[:size] = received[at : at + size]
                at += size
                count = connection.received(size, now_ms)
                while count:
                    for base in range(0, count * ROW_COLUMNS, ROW_COLUMNS):
                        if rows[base + ROW_KIND] == _REQUEST:
                            space.value(rows[base + ROW_FIELDS], 3)
                        elif rows[base + ROW_END]:
                            stream = rows[base + ROW_STREAM]
                            connection.acknowledge(stream, rows[base + ROW_LENGTH])
                            connection.send_headers(stream, answer)
                            connection.send_data(stream, body)
                            connection.send_headers(stream, trailers, True)
                    count = connection.more(now_ms)
                connection.data_to_send()
        spent = time.process_time() - begun
        assert connection.last == 2 * len(sent) - 1 and not connection.stream_count and not connection.is_over
        return spent / len(sent) * 1e6

    return run


def theirs(sent: list[bytes]) -> float:
    """Serves requests with h2, one per read; returns the µs of CPU that each took."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
    connection.initiate_connection()
    begun = time.process_time()
    for received in [PREFACE + settings_frame([]), *sent]:
        for event in connection.receive_data(received):
            if isinstance(event, h2.events.DataReceived):
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                connection.send_headers(event.stream_id, ANSWER)
                connection.send_data(event.stream_id, bytes(ANSWER_BYTES))
                connection.send_headers(event.stream_id, TRAILERS, True)
        connection.data_to_send()
    return (time.process_time() - begun) / len(sent) * 1e6


def measure(context: Context) -> Iterator[Figure]:
    """Yields the cost of a request that comes alone, of one among 32, and of one over interpreted kernels."""
    sent = requests(COUNTS["compiled"])
    context.show("http2: h2")
    peer = min(theirs(sent[: COUNTS["h2"]]) for _ in range(context.rounds))
    context.show("http2: ours")
    for what, compiled, per_read in (
        ("one request per read", True, 1),
        ("32 requests per read", True, 32),
        ("one request per read, interpreted", False, 1),
    ):
        some = sent[: COUNTS["compiled" if compiled else "interpreted"]]
        run = ours(compiled, per_read)
        least = min(run(some) for _ in range(context.rounds))
        budgets = (Budget("ours", "max", 6),) if compiled and per_read > 1 else ()
        yield cost(GROUP, what, least, peer, "h2", *budgets)
