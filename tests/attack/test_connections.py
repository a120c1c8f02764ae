"""Attacks S-01 to S-04, S-07 to S-09, S-12: damage that a peer can do to a server with bytes and connections alone."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import pytest

from rucola.protocol.codes import RequestCode
from rucola.protocol.command import FRAME_BYTES_MAX, RemotingCommand, decode_frame
from rucola.protocol.frame import FrameBatch
from rucola.remoting.fairness.connection_count import ConnectionCount
from rucola.remoting.fairness.read_pauses import OWED
from rucola.remoting.server import Channel, RemotingServer, ServerOptions
from rucola.testing.event_loop import advance, run_stepped, settle

REQUEST = RemotingCommand(RequestCode.HEART_BEAT, 7, body=b"x").encode()
ANSWER_BYTES = 64 * 1024


class Echo:
    """Responds to every frame with a body of ``ANSWER_BYTES``."""

    def __init__(self) -> None:
        self.served = 0

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        for row in range(batch.count):
            self.served += 1
            channel.send(batch.command(row).answer(0, body=bytes(ANSWER_BYTES)).encode())

    def channel_closed(self, channel: Channel) -> None:
        """Keeps nothing about a channel."""


async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the server serves this connection: a response arrives before the connection ends."""
    writer.write(REQUEST)
    try:
        head = await reader.readexactly(4)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return decode_frame(head + await reader.readexactly(int.from_bytes(head, "big"))).opaque == 7


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server ends this connection without a response; waits for the end."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def frame_head(length: int, header_length: int, serialize: int = 0) -> bytes:
    return (length & 0xFFFFFFFF).to_bytes(4, "big") + bytes([serialize]) + header_length.to_bytes(3, "big")


@pytest.mark.parametrize(
    "rubbish",
    [
        *(frame_head(length, 1) for length in (0, -1, -(2**31), 1, 2, 3, FRAME_BYTES_MAX - 3, 2**31 - 1)),
        *(frame_head(100, header_length) + bytes(96) for header_length in (0, 97, 2**24 - 1)),
        *(frame_head(100, 10, serialize) + bytes(96) for serialize in (2, 3, 255)),
        b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"SSH-2.0-x\r\n",
        bytes(range(255, -1, -1)) * 8,
    ],
)
def test_s01_s03_s04_s12_what_is_no_frame_ends_the_connection_without_a_word(rubbish: bytes) -> None:
    async def scene() -> None:
        handler = Echo()
        server = RemotingServer(handler, "127.0.0.1", 0)
        await server.start()
        other = await asyncio.open_connection("127.0.0.1", server.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST + rubbish)
        assert await ended(reader)
        assert handler.served == 0
        assert await served(*other)
        other[1].close()
        writer.close()
        await server.close()

    run_stepped(scene())


def test_s02_a_length_and_then_silence_costs_no_memory_and_ends() -> None:
    async def scene() -> None:
        server = RemotingServer(Echo(), "127.0.0.1", 0)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frame_head(FRAME_BYTES_MAX - 4, 1000) + bytes(100_000))
        while not (server.channels and next(iter(server.channels)).begun_bytes == 100_008):
            await settle()
        (channel,) = server.channels
        assert len(channel.inbound._reader._source) <= 4 * 100_008
        advance(14)
        await settle()
        assert not channel.closed
        for _ in range(3):
            advance(6)
            await settle()
        assert await ended(reader)
        writer.close()
        await server.close()

    run_stepped(scene())


def test_s08_a_byte_now_and_then_is_not_enough_to_stay(caplog: pytest.LogCaptureFixture) -> None:
    """A connection that only now and then sends a byte of a frame is closed. A connection that sends whole frames at
    these intervals, or a large frame fast enough, stays open.
    """

    async def scene() -> None:
        server = RemotingServer(Echo(), "127.0.0.1", 0)
        await server.start()
        slow, steady, large = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        body = RemotingCommand(RequestCode.HEART_BEAT, 8, body=bytes(2_000_000)).encode()
        for second in range(40):
            if len(server.channels) == 3:
                slow[1].write(REQUEST[:-1][second : second + 1])
            large[1].write(body[second * 40_000 : (second + 1) * 40_000])
            if second % 12 == 0:
                assert await served(*steady)
            advance(1)
            await settle(60)
        assert await ended(slow[0])
        assert len(server.channels) == 2
        large[1].write(body[40 * 40_000 :])
        head = await large[0].readexactly(4)
        assert decode_frame(head + await large[0].readexactly(int.from_bytes(head, "big"))).opaque == 8
        for _, writer in (slow, steady, large):
            writer.close()
        await server.close()

    with caplog.at_level(logging.WARNING, "rucola.remoting"):
        run_stepped(scene())
    (record,) = caplog.records
    assert "of a frame in" in record.rucola_fields["reason"]  # type: ignore[attr-defined]


def test_s07_requests_without_reading_their_answers() -> None:
    """A peer sends 100,000 requests and reads no responses. The server stops reading when the unsent responses reach a
    limit, and closes the connection when the peer has read nothing for 30 s.
    """

    async def scene() -> None:
        handler = Echo()
        server = RemotingServer(handler, "127.0.0.1", 0, ServerOptions(receive_bytes=4096))
        await server.start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(REQUEST * 100_000)
        while not (server.channels and next(iter(server.channels)).unread_bytes):
            await settle()
        (channel,) = server.channels
        await settle(200)
        waiting = channel.unread_bytes
        assert waiting < server.options.outbound_bytes_high + 4096 // len(REQUEST) * (ANSWER_BYTES + 200)
        assert handler.served < 1000
        advance(29)
        await settle()
        assert not channel.closed
        for _ in range(3):
            advance(6)
            await settle()
        assert channel.closed
        assert handler.served < 1000
        writer.transport.abort()
        await server.close()

    run_stepped(scene())


def test_s07_a_slow_reader_that_reads_on_stays() -> None:
    async def scene() -> None:
        server = RemotingServer(Echo(), "127.0.0.1", 0, ServerOptions(receive_bytes=4096))
        await server.start()
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ANSWER_BYTES)  # else the system buffers unread bytes
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", server.port))
        reader, writer = await asyncio.open_connection(sock=plain, limit=ANSWER_BYTES)
        writer.write(REQUEST * 300)
        while not (server.channels and next(iter(server.channels)).unread_bytes):
            await settle()
        for _ in range(300):
            head = await reader.readexactly(4)
            await reader.readexactly(int.from_bytes(head, "big"))
            advance(0.5)
            await settle()
        assert len(server.channels) == 1
        writer.close()
        await server.close()

    run_stepped(scene())


def test_s07_who_is_not_read_is_not_slow() -> None:
    """While too many responses to a peer are unsent, the server reads nothing from this peer, even if a frame is only
    half read. The peer stays connected, and reading continues afterwards.
    """
    owed = 2 * ServerOptions().outbound_bytes_high

    class Owing(Echo):
        def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
            channel.owe(owed)
            super().frames_received(channel, batch)

    run_stepped(
        rest_of_a_frame_waits(
            Owing(), lambda channel: channel.inbound.reasons == OWED, lambda channel: channel.settle(owed)
        )
    )


def test_s07_who_waits_for_a_turn_is_not_slow() -> None:
    """The server reads nothing from a peer whose earlier requests wait to be served. Before the fix, it counted such a
    peer as slow if the next request was still half read after 15 s.
    """
    busy = True

    class Busy(Echo):
        def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
            self.serve_rows(channel, batch, 0)

        def serve_rows(self, channel: Channel, batch: FrameBatch, first: int) -> None:
            if busy:
                channel.postpone(batch, first)
            else:
                super().frames_received(channel, batch)

    def serve(channel: Channel) -> None:
        nonlocal busy
        busy = False

    run_stepped(rest_of_a_frame_waits(Busy(), lambda channel: channel.begun_bytes > 0, serve))


async def rest_of_a_frame_waits(
    protocol: Echo, waits: Callable[[Channel], bool], go_on: Callable[[Channel], None]
) -> None:
    """Sends a request and most of a second one, then the last byte once ``waits`` is true. The server does not read
    this byte, and the channel is still open after 60 s. Both responses arrive after ``go_on``.
    """
    server = RemotingServer(protocol, "127.0.0.1", 0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(REQUEST + REQUEST[:-1])
    while not (server.channels and waits(next(iter(server.channels)))):
        await settle()
    (channel,) = server.channels
    writer.write(REQUEST[-1:])
    for _ in range(10):
        advance(6)
        await settle()
    assert not channel.closed
    assert channel.begun_bytes == len(REQUEST) - 1
    go_on(channel)
    for _ in range(2):
        head = await reader.readexactly(4)
        await reader.readexactly(int.from_bytes(head, "big"))
    writer.close()
    await server.close()


def test_s09_connections_leave_descriptors_for_the_store() -> None:
    """One server uses at most nine sixteenths of the descriptors; all servers together leave an eighth unused."""
    channel = bytes(8)
    count = ConnectionCount(ServerOptions(), file_limit=80)
    assert [count.opened(channel, descriptor) for descriptor in (69, 70, 3)] == [
        "",
        "the remaining file descriptors are reserved for the store",
        "",
    ]
    others = [bytes([1, 1, 1, number, 0, 0, 0, 0]) for number in range(42)]
    for other in others:
        assert not count.opened(other, 3)
    assert count.opened(others[0], 3) == "more than 45 connections"
    assert count.refused == 2
    assert ConnectionCount(ServerOptions(connections_max=7), file_limit=80).connections_max == 7
    assert ConnectionCount(ServerOptions()).connections_max == ServerOptions().connections_max


def test_s09_with_few_descriptors_one_address_does_not_take_all_connections() -> None:
    """Before the fix, 576 of 1,024 descriptors were for connections, and 4,096 connections for one address."""
    mine, other = (bytes([10, 0, 0, last, 0, 0, 0, 0]) for last in (1, 2))
    count = ConnectionCount(ServerOptions(), file_limit=1024)
    refusals = [count.opened(mine, 3) for _ in range(289)]
    assert refusals == [""] * 288 + ["more than 288 connections from one address"]
    assert count.opened(other, 3) == ""
    for options, most in (
        (ServerOptions(connections_per_address_max=5), 5),
        (ServerOptions(connections_max=100), 4096),
    ):
        assert ConnectionCount(options, file_limit=1024).per_address_max == most, "set by the administrator"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (ServerOptions(connections_max=5), "more than 5 connections"),
        (ServerOptions(connections_per_address_max=5), "more than 5 connections from one address"),
    ],
)
def test_s09_too_many_connections(options: ServerOptions, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """The sixth connection is refused, and the first five are served. When one of them ends, a new one is accepted."""

    async def scene() -> None:
        server = RemotingServer(Echo(), "127.0.0.1", 0, options)
        await server.start()
        kept = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            assert await ended(reader)
            writer.close()
        for connection in kept:
            assert await served(*connection)
        kept.pop()[1].close()
        while len(server.channels) == 5:
            await settle()
        again = await asyncio.open_connection("127.0.0.1", server.port)
        assert await served(*again)
        for _, writer in [*kept, again]:
            writer.close()
        while server.channels:
            await settle()
        assert (server._count._count, server._count._by_address) == (0, {})
        await server.close()

    with caplog.at_level(logging.WARNING, "rucola.remoting"):
        run_stepped(scene())
    (record,) = caplog.records
    assert record.rucola_fields["reason"] == reason  # type: ignore[attr-defined]
