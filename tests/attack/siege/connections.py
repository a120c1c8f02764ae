"""Attacks on resources that each connection uses: unfinished frames, headers, TLS, HTTP, and the connections
themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator

from tests.attack.siege.peer import Peer, attack, request, storm
from tests.attack.siege.target import Addresses

from rucola.protocol.codes import RequestCode as Code
from rucola.protocol.command import RemotingCommand

_MIB = 1024 * 1024


@attack("connections", "130 frames of 15 MiB each that are not completed")
async def unfinished_frames(addresses: Addresses) -> None:
    head = (15 * _MIB).to_bytes(4, "big") + (100).to_bytes(4, "big")

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                peer = await Peer.to(addresses.broker)
                await peer.put(head + bytes(14 * _MIB))
                await peer._reader.read()
            await asyncio.sleep(0.2)

    await asyncio.gather(*(one() for _ in range(130)))


@attack("connections", "frames of 15 MiB that come byte by byte, and many that are completed")
async def slow_and_whole_frames(addresses: Addresses) -> None:
    whole = request(Code.SEND_MESSAGE_V2, bytes(15 * _MIB), b="nosuch", a="pg")
    head = (15 * _MIB).to_bytes(4, "big") + (100).to_bytes(4, "big")

    async def slow() -> None:
        with contextlib.suppress(OSError):
            peer = await Peer.to(addresses.broker)
            await peer.put(head)
            while True:
                await peer.put(bytes(50_000))
                await asyncio.sleep(0.2)

    await asyncio.gather(storm(addresses.broker, itertools.repeat(whole), 3), *(slow() for _ in range(100)))


@attack("connections", "headers of 250 KB, of 127 fields, of unusual shapes")
async def large_headers(addresses: Addresses) -> None:
    def frames() -> Iterator[bytes]:
        while True:
            yield request(Code.GET_MAX_OFFSET, topic="x" * 250_000, queueId=0)
            yield request(Code.GET_MAX_OFFSET, **{f"field{number}": "y" * 1900 for number in range(126)})
            yield request(Code.GET_MAX_OFFSET, topic="\\\u2028\u0000" * 20_000, queueId=0)

    await storm(addresses.broker, frames())


@attack("connections", "connections that open and close")
async def connection_storm(addresses: Addresses) -> None:
    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                (await Peer.to(addresses.broker)).close()

    await asyncio.gather(*(one() for _ in range(50)))


@attack("connections", "6,000 connections that say nothing, then half a length")
async def silent_connections(addresses: Addresses) -> None:
    peers = []
    for _ in range(6000):
        with contextlib.suppress(OSError):
            peers.append(await Peer.to(addresses.broker))
    for peer in peers:
        with contextlib.suppress(OSError):
            await peer.put(b"\x00\x00")
    await asyncio.sleep(3600)


@attack("connections", "half handshakes of TLS on a port without it, and rubbish")
async def half_tls(addresses: Addresses) -> None:
    hello = bytes.fromhex("160301020001000 1fc0303".replace(" ", "")) + random.randbytes(100)

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                peer = await Peer.to(addresses.broker)
                await peer.put(random.choice((hello, random.randbytes(500), b"GET / HTTP/1.1\r\n\r\n")))
                await asyncio.sleep(0.01)
                peer.close()

    await asyncio.gather(*(one() for _ in range(30)))


@attack("connections", "requests with codes that nobody serves, and answers that nobody asked for")
async def unknown_codes(addresses: Addresses) -> None:
    frames = [request(code) for code in (7, 9999, 32_000, 2_000_000)]
    frames += [RemotingCommand(0, number, 1).encode() for number in range(50)]
    await storm(addresses.broker, itertools.cycle(frames))


@attack("connections", "one connection sends questions one by one as fast as it can, another never reads the answers")
async def questions_without_reading(addresses: Addresses) -> None:
    frame = request(Code.GET_BROKER_CONFIG)
    await asyncio.gather(
        storm(addresses.broker, itertools.repeat(frame), connections=50, take=False),
        storm(addresses.namesrv, itertools.repeat(request(Code.GET_NAMESRV_CONFIG)), connections=50, take=False),
    )


@attack("connections", "3,000 half HTTP requests")
async def half_http(addresses: Addresses) -> None:
    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                peer = await Peer.to(addresses.http)
                await peer.put(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-")
                await asyncio.wait_for(peer._reader.read(), 10)
            await asyncio.sleep(0.2)

    await asyncio.gather(*(one() for _ in range(3000)))


@attack("connections", "questions for all metrics over 60 connections, without a pause")
async def metrics_storm(addresses: Addresses) -> None:
    async def one() -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                peer = await Peer.to(addresses.http)
                peer.take_answers()
                while not peer.writer.is_closing():
                    await peer.put(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(one() for _ in range(60)))


@attack("connections", "HTTP with endless headers and bodies")
async def long_http(addresses: Addresses) -> None:
    async def one(data: bytes) -> None:
        while True:
            with contextlib.suppress(OSError):
                peer = await Peer.to(addresses.http)
                peer.take_answers()
                await peer.put(b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n")
                for _ in range(1000):
                    await peer.put(data)
            await asyncio.sleep(0.05)

    endless = (b"X-A: " + b"b" * 4000 + b"\r\n", b"\r\n" + b"fff\r\n" + b"c" * 4095 + b"\r\n")
    await asyncio.gather(*(one(data) for data in endless for _ in range(10)))


@attack("connections", "3,000 connections that each send 250 KB of the shortest requests once, then stay")
async def wide_reads(addresses: Addresses) -> None:
    """Tries to fill memory. Before the fix, buffers and tables of a connection kept the size of its largest read."""
    frames = request(9999) * (250_000 // len(request(9999)))

    async def one() -> None:
        with contextlib.suppress(OSError):
            peer = await Peer.to(addresses.broker)
            peer.take_answers()
            await peer.put(frames)
            await asyncio.sleep(3600)

    await asyncio.gather(*(one() for _ in range(3000)))


@attack("connections", "1,000 connections that ask for long answers and read none")
async def answers_of_many(addresses: Addresses) -> None:
    """Makes unread responses accumulate at each connection, below the limit for a single connection."""
    await storm(addresses.broker, itertools.repeat(request(Code.GET_ALL_TOPIC_CONFIG)), connections=1000, take=False)
