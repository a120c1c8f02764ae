"""Processes on the simulated network: what arrives, in which pieces, and who learns of an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest

from rucola.testing.clock import ManualClock
from rucola.testing.simulated_loop import SimulatedLoop
from rucola.testing.simulated_network import Direction, SimulatedNetwork, SimulatedTransport

ADDRESS = ("10.0.0.1", 1)


class Peer(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.got = b""
        self.events: list[str] = []
        self.transport: asyncio.Transport
        self._buffer = bytearray(7)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost" if exc is None else type(exc).__name__)


class Net(NamedTuple):
    network: SimulatedNetwork
    clock: ManualClock
    here: SimulatedLoop
    there: SimulatedLoop
    client: Peer
    server: Peer
    out: Direction
    back: Direction

    def run(self) -> None:
        for loop in (self.here, self.there) * 2:
            if loop.alive:
                loop.run_due()


@pytest.fixture
def net() -> Iterator[Net]:
    clock, network, server, client = ManualClock(), SimulatedNetwork(), Peer(), Peer()
    there, here = SimulatedLoop("server", clock, network), SimulatedLoop("client", clock, network)
    there.complete(there.create_server(lambda: server, *ADDRESS))
    here.complete(here.create_connection(lambda: client, *ADDRESS))
    there.run_due()
    yield Net(network, clock, here, there, client, server, *network.connections[0])
    here.kill()
    there.kill()


def test_bytes_arrive_in_the_pieces_that_the_test_delivers(net: Net) -> None:
    net.client.transport.writelines([b"0123456789", b"abcdef"])
    net.run()
    assert net.server.got == b""
    net.out.deliver(11)
    net.run()
    assert net.server.got == b"0123456789a"
    net.out.is_held = True
    net.out.deliver(100)
    net.run()
    assert net.server.got == b"0123456789a"


def test_a_writer_pauses_and_goes_on(net: Net) -> None:
    net.client.transport.write(bytes(10_000))
    assert net.client.events == ["pause"]
    net.out.deliver(5000)
    net.run()
    assert net.client.events == ["pause"]
    net.out.deliver(5000)
    net.run()
    assert net.client.events == ["pause", "resume"]


def test_a_killed_process_has_sent_what_lies_in_its_system(net: Net) -> None:
    net.client.transport.write(bytes(10_000))
    net.here.kill()
    net.out.deliver(1000)
    net.run()
    assert (len(net.server.got), net.server.events) == (1000, [])
    net.out.deliver(1 << 20)
    net.run()
    assert (len(net.server.got), net.server.events) == (2048, ["ConnectionResetError"])
    assert net.client.events == ["pause"]


def test_a_connection_ends_at_any_byte_and_what_follows_is_lost(net: Net) -> None:
    net.client.transport.write(bytes(100))
    net.network.cut((net.out, net.back), Random(1))
    kept = len(net.out.waiting)
    assert 0 < kept < 100
    net.client.transport.write(b"more")
    net.out.deliver(1 << 20)
    net.back.deliver(1 << 20)
    net.run()
    assert (len(net.server.got), net.server.events) == (kept, ["ConnectionResetError"])
    assert net.client.events == ["ConnectionResetError"]
    assert net.client.transport.is_closing()


def test_after_a_power_cut_a_peer_learns_nothing_until_it_writes(net: Net) -> None:
    net.network.lost_power(net.here, Random(1))
    net.here.kill()
    for direction in (net.out, net.back):
        direction.deliver(100)
    net.network.restore_power("client")
    net.run()
    assert net.server.events == []
    net.server.transport.write(b"hello")
    net.out.deliver(100)
    net.run()
    assert net.server.events == ["ConnectionResetError"]


def test_an_abort_ends_both_sides(net: Net) -> None:
    net.client.transport.write(b"last words")
    net.client.transport.abort()
    net.run()
    assert net.client.events == ["lost"]
    net.out.deliver(100)
    net.run()
    assert (net.server.got, net.server.events) == (b"last words", ["ConnectionResetError"])


def test_nobody_listens(net: Net) -> None:
    net.there.kill()
    with pytest.raises(ConnectionRefusedError):
        net.here.complete(net.here.create_connection(Peer, *ADDRESS))


def test_time_passes_only_by_the_clock(net: Net) -> None:
    async def wait() -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(3)
        net.client.events.append("awake")

    task = net.here.create_task(wait())
    net.run()
    assert net.here.next_s == 3
    net.clock.advance(2999)
    net.run()
    assert net.client.events == []
    net.clock.advance(1)
    net.run()
    assert net.client.events == ["awake"] and task.done()


def test_a_killed_process_runs_no_further_callback(net: Net) -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            net.client.events.append("task ended")

    net.here.create_task(work())
    net.run()
    net.here.call_soon(net.client.events.append, "callback")
    net.here.call_later(0, net.client.events.append, "timer")
    net.here.kill()
    assert net.client.events == ["task ended"]


def test_a_process_that_never_rests_is_noticed(net: Net) -> None:
    def again() -> None:
        net.here.call_soon(again)

    again()
    with pytest.raises(RuntimeError, match="client has done something in 10000 iterations"):
        net.here.run_due()
