"""Connections within one process: what the server sees, and what its client gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rucola.common.columns import ROW_WIDTH
from rucola.common.kernel_columns import FRAME_FLAG
from rucola.errors import RemotingClosedError, RemotingTimeoutError
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameBatch, FrameReader
from rucola.protocol.shared_reader import ReadSpace
from rucola.remoting.memory_link import MemoryLink, Peer
from rucola.remoting.server import Channel, RemotingServer, ServerOptions
from rucola.testing.event_loop import advance, run_stepped, settle

ECHO, SILENT, CLOSE, POSTPONE, MANY = range(1, 6)


SPACE = ReadSpace()
"""All links of the tests share it."""


class Handler:
    """Echoes bodies; what it sees is in the attributes."""

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.closed: list[Channel] = []
        self.served: list[int] = []
        self.postponed = 0

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        self.serve_rows(channel, batch, 0)

    def serve_rows(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        if channel not in self.channels:
            self.channels.append(channel)
        for row in range(first, batch.count):
            if batch.table[row * ROW_WIDTH + FRAME_FLAG] & FLAG_RESPONSE:
                continue
            command = batch.command(row)
            if command.code == POSTPONE and self.postponed:
                self.postponed -= 1
                channel.postpone(batch, row)
                return
            self.served.append(command.opaque)
            if command.code == CLOSE:
                channel.close()
            elif command.code != SILENT:
                for _ in range(10 if command.code == MANY else 1):
                    channel.send(command.answer(0, body=bytes(command.body)).encode())

    def channel_closed(self, channel: Channel) -> None:
        self.closed.append(channel)


class Owner:
    """The owner of a link; answers the server's requests with their body, or fails."""

    def __init__(self) -> None:
        self.lost = self.resumed = 0
        self.fails = False
        self.asked: list[bytes] = []

    def request_received(self, command: RemotingCommand) -> Any:
        self.asked.append(bytes(command.body))
        if self.fails:
            raise ValueError("a defect")
        return command.answer(0, body=b"answer")

    def link_resumed(self) -> None:
        self.resumed += 1

    def link_lost(self) -> None:
        self.lost += 1


@asynccontextmanager
async def linked(
    options: ServerOptions | None = None,
) -> AsyncIterator[tuple[MemoryLink, Handler, Owner, RemotingServer]]:
    handler, owner = Handler(), Owner()
    server = RemotingServer(handler, "127.0.0.1", 0, options)
    await server.start()
    link = MemoryLink(server, Peer("10.1.2.3", 4567, secure=True), owner, SPACE)
    try:
        yield link, handler, owner, server
    finally:
        await server.close()


async def ask(link: MemoryLink, code: int, body: bytes = b"") -> RemotingCommand:
    return await link.invoke("", RemotingCommand(code, body=body), 5_000)


def test_requests_and_responses() -> None:
    async def play() -> None:
        async with linked() as (link, handler, owner, server):
            answers = await asyncio.gather(*(ask(link, ECHO, b"%d" % number) for number in range(50)))
            assert [bytes(answer.body) for answer in answers] == [b"%d" % number for number in range(50)]
            (channel,) = handler.channels
            assert (channel.remote_address, channel.secure) == ("10.1.2.3:4567", True)
            assert channel.host == bytes((10, 1, 2, 3)) + (4567).to_bytes(4, "big")
            assert server.channels == {channel} and not owner.asked

    run_stepped(play())


@pytest.mark.parametrize("size", [100_000, 300_000, 5_000_000])
def test_large_frames_both_ways(size: int) -> None:
    async def play() -> None:
        async with linked() as (link, *_):
            body = bytes(range(256)) * (size // 256)
            assert bytes((await ask(link, ECHO, body)).body) == body
            assert bytes((await ask(link, ECHO, b"after")).body) == b"after"

    run_stepped(play())


def test_many_responses_to_one_request_reach_only_one_waiter() -> None:
    async def play() -> None:
        async with linked() as (link, *_):
            assert bytes((await ask(link, MANY, b"x")).body) == b"x"
            assert bytes((await ask(link, ECHO, b"y")).body) == b"y"

    run_stepped(play())


def test_postponed_requests_keep_their_order() -> None:
    async def play() -> None:
        async with linked() as (link, handler, owner, _):
            handler.postponed = 2
            first = asyncio.ensure_future(ask(link, POSTPONE, b"1"))
            while not link.is_paused:
                await asyncio.sleep(0)
            second = asyncio.ensure_future(ask(link, ECHO, b"2"))
            await asyncio.gather(first, second)
            assert handler.served == [1, 2] and not link.is_paused and owner.resumed == 1

    run_stepped(play())


def test_a_request_without_a_response() -> None:
    async def play() -> None:
        async with linked() as (link, *_):
            waiting = asyncio.ensure_future(ask(link, SILENT))
            await settle()
            advance(5.1)
            with pytest.raises(RemotingTimeoutError):
                await waiting

    run_stepped(play())


@pytest.mark.parametrize("who", ["client", "server", "stop"])
def test_the_end_of_a_connection(who: str) -> None:
    async def play() -> None:
        async with linked() as (link, handler, owner, server):
            waiting = asyncio.ensure_future(ask(link, SILENT))
            await settle()
            if who == "client":
                link.close()
                link.close()
            elif who == "server":
                closing = asyncio.ensure_future(ask(link, CLOSE))
                with pytest.raises(RemotingClosedError):
                    await closing
            else:
                await server.close()
            with pytest.raises(RemotingClosedError):
                await waiting
            await settle()
            assert owner.lost == 1 and len(handler.closed) == 1 and not server.channels and link.is_closed
            with pytest.raises(RemotingClosedError):
                await ask(link, ECHO)
            link.close()
            await settle()
            assert owner.lost == 1

    run_stepped(play())


def test_requests_of_the_server() -> None:
    async def play() -> None:
        async with linked() as (link, handler, owner, _):
            await ask(link, ECHO)
            (channel,) = handler.channels
            answer = await channel.invoke(RemotingCommand(9, body=b"question"), 5_000)
            assert (bytes(answer.body), answer.code) == (b"answer", 0)
            channel.invoke_oneway(RemotingCommand(9, body=b"oneway"))
            await settle()
            owner.fails = True
            answer = await channel.invoke(RemotingCommand(9), 5_000)
            assert answer.code == 1 and "a defect" in (answer.remark or "")
            assert owner.asked == [b"question", b"oneway", b""]

    run_stepped(play())


def test_too_many_connections() -> None:
    async def play() -> None:
        async with linked(ServerOptions(connections_max=1)) as (link, _, _, server):
            owner = Owner()
            more = MemoryLink(server, Peer("10.1.2.4", 1), owner, SPACE)
            with pytest.raises(RemotingClosedError):
                await ask(more, ECHO)
            await settle()
            assert owner.lost == 1 and server.refused_connections == 1
            assert (await ask(link, ECHO)).code == 0

    run_stepped(play())


def test_batches_that_the_server_keeps() -> None:
    """A batch whose rows are postponed must not be overwritten."""

    async def play() -> None:
        async with linked() as (link, handler, *_):
            frames = [RemotingCommand(POSTPONE, number, body=b"%d" % number).encode() for number in (1, 2)]
            reader = FrameReader()
            data = b"".join(frames)
            reader.buffer()[: len(data)] = data
            batch = reader.received(len(data))
            assert batch is not None
            handler.postponed = 1
            assert not link.serve(batch) and link.is_paused
            await settle()
            assert handler.served == [1, 2] and not link.is_paused
            assert link.serve(batch)
            assert handler.served == [1, 2, 1, 2]

    run_stepped(play())
