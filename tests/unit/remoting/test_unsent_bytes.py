"""Unread responses of all connections together."""

from __future__ import annotations

from typing import Any

from tests.unit.remoting.test_server import connect, read_command, request

from rucola.remoting.fairness.unsent_bytes import UnsentBytes
from rucola.remoting.server import RemotingServer, ServerOptions
from rucola.testing.event_loop import run_stepped, settle


class Unsent:
    def __init__(self, size: int) -> None:
        self.buffered_bytes = size


def test_those_with_the_most_are_closed_until_a_quarter_is_free() -> None:
    unsent: Any = UnsentBytes(100)
    channels = [Unsent(size) for size in (10, 50, 30, 5)]
    for channel in channels:
        assert unsent.grew(channel, channel.buffered_bytes) == []
    assert unsent.total_bytes == 95
    last = Unsent(20)
    assert unsent.grew(last, 20) == [channels[1]]
    unsent.ended(channels[1])
    assert unsent.total_bytes == 65
    unsent.ended(channels[1])
    assert unsent.total_bytes == 65


def test_bytes_sent_meanwhile_do_not_count() -> None:
    unsent: Any = UnsentBytes(100)
    sent, other = Unsent(90), Unsent(20)
    assert unsent.grew(sent, 90) == []
    sent.buffered_bytes = 0
    assert unsent.grew(other, 20) == [] and unsent.total_bytes == 20


def test_connections_that_read_no_answers_share_a_limit(handler: Any) -> None:
    """The unread responses of all connections together are limited, even if each connection is below its own limit."""

    async def scene() -> None:
        scripted = handler({7001: lambda command: command.answer(0, body=bytes(1 << 20))})
        options = ServerOptions(outbound_total_max=8 << 20)
        server = RemotingServer(scripted, "127.0.0.1", 0, options)
        await server.start()
        greedy = [await connect(server) for _ in range(6)]
        reader, writer = await connect(server)
        for number, (_, their_writer) in enumerate(greedy):
            their_writer.transport.pause_reading()  # type: ignore[attr-defined]
            their_writer.write(request(number) * 8)
        for _ in range(40):
            await settle()
        assert len(server.channels) < 7
        assert sum(channel.buffered_bytes for channel in server.channels) <= 8 << 20
        writer.write(request(99))
        assert (await read_command(reader)).opaque == 99
        for _, each in (*greedy, (reader, writer)):
            each.transport.abort()  # type: ignore[attr-defined]
        await server.close()

    run_stepped(scene())
