"""Bounds from two brokers, one of which is slow or away, on a clock that only the requests advance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from rucola.arrow.broker_answers import ANSWER_PATIENCE_S, AWAY_PAUSE_S, DOUBT_PATIENCE_S, BrokerAnswers
from rucola.arrow.broker_link import BrokerLink
from rucola.arrow.catalog import Bounds
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, RemotingError

GOOD, OTHER = MessageQueue("T", "good", 0), MessageQueue("T", "other", 0)
TIMEOUT_S = 3.0


class Brokers:
    """Stands in for connections to brokers: responses arrive when the clock reaches their time. Broker ``other`` needs
    ``takes_s`` seconds, or fails.
    """

    def __init__(self) -> None:
        self.now_s = 100.0
        self.takes_s = 0.0
        self.error: Exception | None = None
        self.asked: list[str] = []
        self.offset = 0
        self._due: list[tuple[float, Future[Any], Any]] = []

    def seconds(self) -> float:
        return self.now_s

    async def bounds_of(self, _consumer: object, queue: MessageQueue) -> Bounds:
        self.asked.append(queue.broker_name)
        if queue == OTHER and self.error:
            raise self.error
        return Bounds(0, self.offset)

    def begin(self, question: Callable[[Any], Awaitable[Any]]) -> Future[Any]:
        async def asked() -> object:
            return await question(None)

        answers, future = asyncio.run(asked()), Future[Any]()
        self._due.append((self.now_s + (self.takes_s if self.asked[-1] == "other" else 0.0), future, answers))
        self.wait_for([], 0)
        return future

    def wait_for(self, futures: Sequence[Future[Any]], seconds: float) -> None:
        until_s = self.now_s + seconds
        for due_s, future, answers in sorted(self._due, key=lambda one: one[0]):
            if all(one.done() for one in futures) and futures:
                return
            if due_s <= until_s and not future.done():
                self.now_s = max(self.now_s, due_s)
                future.set_result(answers)
        if not all(one.done() for one in futures):
            self.now_s = until_s


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def answers(brokers: Brokers) -> BrokerAnswers:
    return BrokerAnswers(cast(BrokerLink, brokers), brokers.bounds_of)


def look(answers: BrokerAnswers, brokers: Brokers) -> tuple[set[str], float]:
    """Requests the bounds; returns the brokers whose bounds came, and the seconds that it took."""
    began_s = brokers.now_s
    found = answers.look([GOOD, OTHER])
    assert found.waiting == {GOOD, OTHER} - found.bounds.keys()
    return {queue.broker_name for queue in found.bounds}, brokers.now_s - began_s


def test_brokers_that_answer(answers: BrokerAnswers, brokers: Brokers) -> None:
    brokers.takes_s = ANSWER_PATIENCE_S * 0.9
    for _ in range(3):
        assert look(answers, brokers) == ({"good", "other"}, pytest.approx(brokers.takes_s))
    assert not answers.is_away("other")
    assert answers.error_of("other") is None


def test_a_slow_broker_is_late_but_its_rows_come(answers: BrokerAnswers, brokers: Brokers) -> None:
    """Each response is used, however slow the broker is, and a broker never gets a request before it has answered the
    previous one.
    """
    brokers.takes_s = TIMEOUT_S * 0.9
    seen = []
    for brokers.offset in range(40):
        names, seconds = look(answers, brokers)
        assert "good" in names
        assert seconds <= ANSWER_PATIENCE_S + DOUBT_PATIENCE_S
        if "other" in names:
            seen.append(brokers.offset)
        assert answers.is_away("other") == ("other" not in names)
        brokers.now_s += 0.1
        brokers.wait_for([], 0)
    assert len(seen) >= 2
    assert brokers.asked.count("other") in (len(seen), len(seen) + 1)


def test_a_broker_that_never_answers_holds_up_the_others_once(answers: BrokerAnswers, brokers: Brokers) -> None:
    brokers.takes_s, brokers.error = TIMEOUT_S, RemotingError("did not answer")
    assert look(answers, brokers) == ({"good"}, pytest.approx(ANSWER_PATIENCE_S))
    for _ in range(50):
        names, seconds = look(answers, brokers)
        assert names == {"good"}
        assert seconds <= DOUBT_PATIENCE_S * 1.01
        brokers.now_s += 0.5
        brokers.wait_for([], 0)
    assert str(answers.error_of("other")) == "did not answer"
    assert 25 / (TIMEOUT_S + 1) <= brokers.asked.count("other") <= 25 / TIMEOUT_S + 1
    brokers.takes_s, brokers.error = DOUBT_PATIENCE_S / 2, None
    brokers.now_s += TIMEOUT_S
    brokers.wait_for([], 0)
    while look(answers, brokers)[0] != {"good", "other"}:
        brokers.now_s += 0.1
        assert brokers.now_s < 200
    assert answers.error_of("other") is None


def test_a_broker_that_refuses_is_asked_again_after_a_pause(answers: BrokerAnswers, brokers: Brokers) -> None:
    brokers.error = RemotingError("refused")
    assert look(answers, brokers) == ({"good"}, 0.0)
    assert answers.is_away("other")
    look(answers, brokers)
    assert brokers.asked.count("other") == 1
    brokers.error = None
    brokers.now_s += AWAY_PAUSE_S
    assert look(answers, brokers) == ({"good", "other"}, 0.0)


def test_other_errors_are_raised(answers: BrokerAnswers, brokers: Brokers) -> None:
    brokers.error = ConfigError("topic", "x", "y")
    with pytest.raises(ConfigError):
        look(answers, brokers)
