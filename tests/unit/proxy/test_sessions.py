"""Which clients are remembered, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from rucola.proxy import messages, sessions
from rucola.proxy.access import DoorAccess
from rucola.proxy.refusal import RefusedError
from rucola.proxy.sessions import CROWDED_SILENCE_S, SILENCE_S, Sessions
from rucola.testing.clock import ManualClock


class Call:
    """A call of a client."""

    address, secure = "10.0.0.1:5", False

    def __init__(self, client_id: bytes) -> None:
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
            self.access, self.clock.monotonic, lambda session: self.ended.append(session.client_id)
        )

    def call(self, client_id: str) -> Any:
        return self.sessions.of(Call(client_id.encode()))  # type: ignore[arg-type]

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


def test_a_client_of_an_account_is_another_one_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules may name the addresses of an account; they are judged by the address of the session."""
    world = World()
    anybody = world.call("a")
    world.access.name = "alice"
    here = world.call("a")
    monkeypatch.setattr(Call, "address", "10.0.0.1:6")
    assert world.call("a") is here, "a client may have several connections"
    monkeypatch.setattr(Call, "address", "10.0.0.2:5")
    elsewhere = world.call("a")
    assert (here.address, elsewhere.address) == ("10.0.0.1:5", "10.0.0.2:5")
    world.sessions.forget(here)
    assert world.call("a") is elsewhere
    world.access.name = ""
    assert world.call("a") is anybody, "without accounts, a client is known by its id"


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
    world.sessions.close()
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
