"""Which clients are remembered, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rucola.grpc.call import GrpcPeer
from rucola.proxy import messages, sessions
from rucola.proxy.access import DoorAccess
from rucola.proxy.refusal import RefusedError
from rucola.proxy.sessions import CROWDED_SILENCE_S, ELSEWHERE_S, SILENCE_S, Sessions
from rucola.testing.clock import ManualClock

PEER = GrpcPeer("10.0.0.1:5")


class Call:
    """A call of a client."""

    def __init__(self, client_id: bytes, peer: GrpcPeer | None = None) -> None:
        self.peer = peer or PEER
        self.metadata = [client_id, b"5.0.7", b"JAVA", None, None, None]


class Accounts(DoorAccess):
    """Everybody is the account that is set."""

    name = ""

    def account_of(self, call: Any) -> str:
        return self.name


class World:
    """Sessions with a clock."""

    def __init__(self) -> None:
        self.clock, self.access = ManualClock(0), Accounts()
        self.ended: list[str] = []
        self.sessions = Sessions(
            self.access, self.clock.monotonic, lambda session, _: self.ended.append(session.client_id)
        )

    def call(self, client_id: str, peer: GrpcPeer | None = None) -> Any:
        return self.sessions.of(Call(client_id.encode(), peer))  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))
        self.sessions.forget_silent()


def test_a_client_is_the_same_until_it_is_silent() -> None:
    world = World()
    first = world.call("a")
    assert (first.language, first.version, first.address) == ("JAVA", "5.0.7", "10.0.0.1:5")
    world.wait(SILENCE_S - 1)
    assert world.call("a") is first
    world.wait(SILENCE_S - 1)
    assert world.ended == []
    world.wait(1)
    assert world.ended == ["a"] and len(world.sessions) == 0
    assert world.call("a") is not first


def test_a_client_has_the_address_of_its_latest_call() -> None:
    world = World()
    first = world.call("a")
    assert world.call("a", GrpcPeer("10.0.0.2:6", True)) is first and first.secure
    assert (first.address, first.host) == ("10.0.0.2:6", b"10.0.0.2:6")


@pytest.mark.parametrize("away_s", [1.0, ELSEWHERE_S + 1])
def test_a_client_that_was_away_for_long_may_have_been_elsewhere(away_s: float) -> None:
    world, peer = World(), GrpcPeer("10.0.0.2:6")
    first = world.call("a", peer)
    assert not first.is_away
    peer.ended_s = world.clock.monotonic()
    world.wait(away_s)
    assert first.is_away
    assert world.call("a") is first and not first.is_away
    assert (first.here_since_s > 0) == (away_s > ELSEWHERE_S)


def test_a_client_with_two_connections_is_here() -> None:
    world = World()
    first = world.call("a", GrpcPeer("10.0.0.2:6"))
    world.wait(ELSEWHERE_S + 1)
    world.call("a", GrpcPeer("10.0.0.2:7"))
    assert not first.is_away and first.here_since_s == 0


def test_all_are_forgotten_in_many_turns() -> None:
    world = World()
    for number in range(300):
        world.call(f"c{number}")
    counts = set()

    async def play() -> None:
        closing = asyncio.ensure_future(world.sessions.close())
        while not closing.done():
            await asyncio.sleep(0)
            counts.add(len(world.sessions))

    asyncio.run(play())
    assert counts == {236, 172, 108, 44, 0} and len(world.ended) == 300


@pytest.mark.parametrize("active", ["a", "b", "c"])
def test_the_silence_of_one_is_not_that_of_others(active: str) -> None:
    world = World()
    for client_id in "abc":
        world.call(client_id)
    for _ in range(3):
        world.wait(SILENCE_S / 2)
        world.call(active)
    assert sorted([*world.ended, active]) == ["a", "b", "c"]
    assert [session.client_id for session in world.sessions] == [active]


def test_a_client_of_an_account_is_another_one_elsewhere() -> None:
    """Rules may name the addresses of an account; they are judged by the address of the session."""
    world = World()
    anybody = world.call("a")
    world.access.name = "alice"
    here = world.call("a")
    assert world.call("a", GrpcPeer("10.0.0.1:6")) is here, "a client may have several connections"
    elsewhere = world.call("a", other := GrpcPeer("10.0.0.2:5"))
    assert (here.address, elsewhere.address) == ("10.0.0.1:6", "10.0.0.2:5")
    world.sessions.forget(here)
    assert world.call("a", other) is elsewhere
    world.access.name = ""
    assert world.call("a", other) is anybody, "without accounts, a client is known by its id"


def test_an_id_is_that_of_its_account() -> None:
    world = World()
    first = world.call("a")
    world.access.name = "alice"
    other = world.call("a")
    assert other is not first and (other.account, first.account) == ("alice", "")
    world.sessions.forget(other)
    assert list(world.sessions) == [first] and world.ended == ["a"]
    world.sessions.forget(other)
    assert world.ended == ["a"], "it ends once"
    asyncio.run(world.sessions.close())
    assert len(world.sessions) == 0 and world.ended == ["a", "a"]


def test_new_clients_take_the_places_of_silent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 3)
    world = World()
    for client_id in "abc":
        world.call(client_id)
    with pytest.raises(RefusedError, match="more than 3 clients") as refused:
        world.call("d")
    assert refused.value.code == messages.TOO_MANY_REQUESTS
    world.wait(CROWDED_SILENCE_S)
    world.call("a")
    world.call("d")
    assert world.ended == ["b"]
    world.call("e")
    assert world.ended == ["b", "c"]
    with pytest.raises(RefusedError):
        world.call("f")
    world.call("a")
