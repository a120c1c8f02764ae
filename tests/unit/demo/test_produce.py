"""The demo's producer: at what rate it sends, when it sends again, and when it gives up; the client is scripted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from demo.flights import produce
from demo.flights.data import FlightMessage
from demo.flights.produce import IN_FLIGHT_MAX, Publisher, StalledError

from rucola.errors import BrokerError, ClientError, RemotingClosedError

MESSAGES = [FlightMessage(f"key-{number}", "UA", b"{}", {"origin": "EWR"}) for number in range(2000)]


class ScriptedProducer:
    """Responds to each send in a later iteration of the loop, with the result of ``answer(key, attempt)``."""

    def __init__(self, answer: Callable[[str, int], Exception | None]) -> None:
        self._answer = answer
        self.attempts: Counter[str] = Counter()
        self.in_flight_max = 0
        self._in_flight = 0

    def submit(self, message: object, selector: object) -> asyncio.Future[None]:
        key = message.keys  # type: ignore[attr-defined]
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        attempt = self.attempts[key]
        self.attempts[key] += 1
        self._in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self._in_flight)
        loop.call_later(0.001, self._finish, future, self._answer(key, attempt))
        return future

    def _finish(self, future: asyncio.Future[None], error: Exception | None) -> None:
        self._in_flight -= 1
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _publish(producer: ScriptedProducer, messages: list[FlightMessage], rate: float = 0.0) -> Publisher:
    publisher = Publisher(producer, rate)  # type: ignore[arg-type]
    asyncio.run(publisher.publish(messages))
    return publisher


def test_every_message_is_sent_once_and_the_window_is_kept() -> None:
    producer = ScriptedProducer(lambda key, attempt: None)
    publisher = _publish(producer, MESSAGES)
    assert set(producer.attempts.values()) == {1}
    assert (publisher.acknowledged, publisher.resent) == (2000, 0)
    assert producer.in_flight_max == IN_FLIGHT_MAX


def test_unknown_answers_are_sent_again_until_acknowledged() -> None:
    def answer(key: str, attempt: int) -> Exception | None:
        errors = (RemotingClosedError("127.0.0.1:1"), ClientError("no route to topic flights: no broker has it"))
        return errors[attempt] if key.endswith("7") and attempt < 2 else None

    producer = ScriptedProducer(answer)
    publisher = _publish(producer, MESSAGES[:100])
    assert publisher.acknowledged == 100
    assert publisher.resent == 20
    assert {key for key, count in producer.attempts.items() if count == 3} == {f"key-{n}" for n in range(7, 100, 10)}


@pytest.mark.parametrize("error", [BrokerError(13, "message too large"), ValueError("bug")])
def test_an_error_that_repeating_cannot_help_ends_it(error: Exception) -> None:
    producer = ScriptedProducer(lambda key, attempt: error if key == "key-5" else None)
    with pytest.raises(type(error)):
        _publish(producer, MESSAGES[:100])
    assert producer.attempts["key-5"] == 1


def test_it_gives_up_when_nothing_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "STALL_TIMEOUT_S", 0.3)
    producer = ScriptedProducer(lambda key, attempt: RemotingClosedError("127.0.0.1:1"))
    with pytest.raises(StalledError, match="RemotingClosedError"):
        _publish(producer, MESSAGES[:10])


def test_the_rate_is_kept() -> None:
    async def run() -> float:
        publisher = Publisher(ScriptedProducer(lambda key, attempt: None), 1000.0)  # type: ignore[arg-type]
        begin_s = asyncio.get_running_loop().time()
        await publisher.publish(MESSAGES[:300])
        return asyncio.get_running_loop().time() - begin_s

    assert asyncio.run(run()) >= 0.299


def test_a_pause_between_two_calls_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "STALL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(produce, "PACE_INTERVAL_S", 0.0)  # so that it checks before the first response comes

    async def run() -> int:
        publisher = Publisher(ScriptedProducer(lambda key, attempt: None), 0.0)  # type: ignore[arg-type]
        await publisher.publish(MESSAGES[:10])
        await asyncio.sleep(0.3)
        await publisher.publish(MESSAGES[10:20])
        return publisher.acknowledged

    assert asyncio.run(run()) == 20
