"""The order in which connections are served whose requests do not fit into one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.channel import Channel
from rucola.remoting.deferred_reads import SLICE_S, DeferredReads
from rucola.remoting.server import RemotingServer
from rucola.remoting.turn import TURN_S, Turn
from rucola.testing.event_loop import advance, run_stepped, settle


class Turns:
    """A loop whose time the test sets, and connections that wait on it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.turn = Turn()
        self.deferred = DeferredReads(self.turn)
        self.served: list[str] = []
        self.loop: Any = self

    def time(self) -> float:
        return self.now_s

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.calls.append((call, arguments))

    def wait(self, name: str, requests: int, request_s: float, begun: bool = True) -> None:
        """A connection that waits with ``requests`` of ``request_s`` seconds each."""

        def serve() -> None:
            nonlocal requests
            while requests:
                requests -= 1
                self.served.append(name)
                self.now_s += request_s
                if self.turn.is_over(self.loop):
                    break
            if requests:
                self.deferred.add(serve, self.loop, begun=True)

        self.deferred.add(serve, self.loop, begun)

    def run_turn(self) -> list[str]:
        """The names that one turn of the loop serves."""
        self.served = []
        self.now_s += 0.01
        calls, self.calls = self.calls, []
        for call, arguments in calls:
            call(*arguments)
        return self.served


def test_connections_with_costly_requests_are_served_in_turn() -> None:
    turns = Turns()
    for name in "abc":
        turns.wait(name, 3, 2 * TURN_S)
    assert [turns.run_turn() for _ in range(10)] == [[name] for name in "abcabcabc"] + [[]]
    assert not turns.calls


def test_a_wide_read_gets_a_slice_and_goes_to_the_end() -> None:
    turns = Turns()
    for number in range(20):
        turns.wait(str(number), 1000, SLICE_S * 0.51)
    served = turns.run_turn()
    assert [int(name) for name in dict.fromkeys(served)] == list(range(10)) and len(served) == 20
    assert [int(name) for name in dict.fromkeys(turns.run_turn())] == list(range(10, 20))


def test_one_wide_read_alone_has_the_whole_turn() -> None:
    turns = Turns()
    turns.wait("a", 100, TURN_S * 0.1)
    assert 10 <= len(turns.run_turn()) <= 12


@pytest.mark.parametrize("begun", [True, False])
def test_neither_group_takes_all_the_time_of_the_other(begun: bool) -> None:
    """A request that was put off once waited behind thousands of connections with the rest of a wide read."""
    turns = Turns()
    for number in range(1000):
        turns.wait(f"other {number}", 100, TURN_S, begun=not begun)
    turns.wait("a", 1, TURN_S, begun)
    assert "a" in turns.run_turn() + turns.run_turn()


def test_connections_of_a_server_take_turns() -> None:
    """Connections whose requests were all costly were served in the same order in each turn: the first one, alone."""
    served: list[int] = []

    class Costly:
        """Each request takes two turns."""

        def frames_received(self, channel: Channel, batch: Any) -> None:
            self.rest_received(channel, batch, 0)

        def rest_received(self, channel: Channel, batch: Any, first: int) -> None:
            for row in range(first, batch.count):
                if (row > first or channel.costly) and channel.turn_is_over():
                    channel.put_off(batch, row)
                    return
                served.append(batch.table[row * ROW_WIDTH + int(FrameColumn.OPAQUE)])
                advance(2 * TURN_S)
                channel.costly = True

        def channel_closed(self, _channel: Channel) -> None:
            pass

    async def play() -> None:
        server = RemotingServer(Costly(), "127.0.0.1", 0)
        await server.start()
        writers = [(await asyncio.open_connection("127.0.0.1", server.port))[1] for _ in range(3)]
        await settle()
        for number, writer in enumerate(writers):
            writer.write(RemotingCommand(RequestCode.HEART_BEAT, number).encode() * 20)
        await settle(200)
        assert sorted(served) == sorted([0, 1, 2] * 20)
        for end in range(60):
            counts = [served[:end].count(number) for number in range(3)]
            assert max(counts) - min(counts) <= 2
        for writer in writers:
            writer.close()
        await server.close()

    run_stepped(play())
