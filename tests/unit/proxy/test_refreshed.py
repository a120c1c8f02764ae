"""Values that are looked up again in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rucola.errors import RemotingConnectError, RemotingError
from rucola.proxy import refreshed
from rucola.proxy.refreshed import FAILED_S, FRESH_S, UNKNOWN_S, UNUSED_S, Refreshed
from rucola.testing.clock import ManualClock
from rucola.testing.event_loop import run_stepped


class Source:
    """What is looked up.

    Attributes:
        values: the values.
        asked: the names that were looked up.
        error: raised by each look-up, if any.
    """

    def __init__(self, missing_kept_s: float = 0.0) -> None:
        self.values: dict[str, int] = {}
        self.asked: list[str] = []
        self.error: RemotingError | None = None
        self.clock = ManualClock()
        self.gate = asyncio.Event()
        self.gate.set()
        self.kept: Refreshed[str, int] = Refreshed("number", self.look_up, self.clock.monotonic, missing_kept_s)

    async def look_up(self, name: str) -> int | None:
        self.asked.append(name)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.values.get(name)

    async def later(self, seconds: float) -> None:
        """Moves the clock, and lets look-ups end that have begun."""
        self.clock.advance(int(seconds * 1000))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(scene(), 10)

    run_stepped(run())


def test_a_value_is_looked_up_once_by_all_who_want_it() -> None:
    async def scene() -> None:
        source = Source()
        source.values["n"] = 1
        assert source.kept.known("n") is None
        assert await asyncio.gather(*(source.kept.get("n") for _ in range(10))) == [1] * 10
        assert source.kept.known("n") == 1
        assert source.asked == ["n"]

    play(scene)


def test_an_old_value_is_used_while_it_is_looked_up_again() -> None:
    async def scene() -> None:
        source = Source()
        source.values["n"] = 1
        await source.kept.get("n")
        source.values["n"] = 2
        await source.later(FRESH_S - 1)
        assert (source.kept.known("n"), len(source.asked)) == (1, 1)
        await source.later(1)
        source.gate.clear()
        assert [source.kept.known("n") for _ in range(3)] == [1] * 3
        assert await source.kept.get("n") == 1
        source.gate.set()
        await source.settle()
        assert (source.kept.known("n"), source.asked) == (2, ["n"] * 2)

    play(scene)


def test_a_look_up_that_fails_leaves_the_known_value_and_is_tried_again() -> None:
    async def scene() -> None:
        source = Source()
        source.values["n"] = 1
        await source.kept.get("n")
        source.error = RemotingConnectError("h:1", "refused")
        for number in range(2, 5):
            await source.later(FRESH_S if number == 2 else FAILED_S)
            assert source.kept.known("n") == 1
            await source.settle()
            assert len(source.asked) == number
            assert source.kept.known("n") == 1  # no look-up before the pause is over
            await source.settle()
            assert len(source.asked) == number
        with pytest.raises(RemotingConnectError):
            await source.kept.get("other")
        source.error, source.values["n"] = None, 2
        await source.later(FAILED_S)
        source.kept.known("n")
        await source.settle()
        assert source.kept.known("n") == 2

    play(scene)


def test_what_does_not_exist_is_looked_up_again_after_a_short_time() -> None:
    async def scene() -> None:
        source = Source()
        assert [await source.kept.get("n") for _ in range(3)] == [None] * 3
        source.values["n"] = 1
        assert (await source.kept.get("n"), source.asked) == (None, ["n"])
        await source.later(UNKNOWN_S)
        assert await source.kept.get("n") == 1

    play(scene)


@pytest.mark.parametrize("kept_s", [0.0, 60.0])
def test_a_value_that_is_gone_is_kept_as_long_as_asked_for(kept_s: float) -> None:
    async def scene() -> None:
        source = Source(kept_s)
        source.values["n"] = 1
        await source.kept.get("n")
        del source.values["n"]
        passed_s = 0.0
        while source.kept.known("n") is not None:
            await source.later(1)
            passed_s += 1
        assert passed_s == pytest.approx(max(FRESH_S, kept_s), abs=UNKNOWN_S + 1)
        assert await source.kept.get("n") is None

    play(scene)


def test_a_value_that_nobody_used_for_long_is_not_used() -> None:
    async def scene() -> None:
        source = Source()
        source.values["n"] = 1
        await source.kept.get("n")
        source.values["n"] = 2
        await source.later(FRESH_S + UNUSED_S)
        assert source.kept.known("n") is None
        assert await source.kept.get("n") == 2

    play(scene)


def test_a_doubt_has_all_looked_up_again_but_not_too_often() -> None:
    async def scene() -> None:
        source = Source()
        source.values |= {"n": 1, "m": 1}
        for name in ("n", "m"):
            await source.kept.get(name)
        await source.later(3)
        source.kept.doubt()
        source.kept.known("n")
        await source.settle()
        assert source.asked == ["n", "m", "n"]
        await source.later(1)
        source.kept.doubt()
        source.kept.known("n")
        await source.settle()
        assert source.asked == ["n", "m", "n"]
        source.kept.known("m")
        await source.settle()
        assert source.asked == ["n", "m", "n", "m"]

    play(scene)


def test_the_number_of_names_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        source = Source()
        source.values |= {"a": 1, "b": 2, "c": 3}
        for name in ("a", "b", "c", *(f"unknown{number}" for number in range(10))):
            await source.kept.get(name)
        assert [source.kept.known(name) for name in "abc"] == [None, 2, 3]
        await source.kept.get("unknown0")
        assert source.asked.count("unknown0") == 2
        assert source.asked.count("unknown9") == 1

    monkeypatch.setattr(refreshed, "ENTRIES_MAX", 2)
    play(scene)
