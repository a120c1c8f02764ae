"""A listener that is called only once for all messages with the same key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rucola.client.listener import ConsumeConcurrentlyStatus, Listener, ReconsumeLater
from rucola.client.repeats import drop_repeats
from rucola.common.message import MessageExt
from rucola.errors import ClientError
from rucola.testing.clock import ManualClock
from rucola.testing.event_loop import run_stepped

MINUTE = timedelta(minutes=1)


def message(key: str | None, topic: str = "T", physical_offset: int = 0) -> MessageExt:
    return MessageExt(
        topic,
        b"x",
        flag=0,
        properties={} if key is None else {"UNIQ_KEY": key},
        queue_id=0,
        queue_offset=0,
        physical_offset=physical_offset,
        store_size=0,
        body_crc=0,
        sys_flag=0,
        born_timestamp_ms=0,
        born_host=bytes(8),
        store_timestamp_ms=0,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


class Calls:
    """A listener that records its calls and returns the given results."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        self.seen: list[str | None] = []
        self._answers = list(answers)
        self.listener = drop_repeats(self._listen, **{"within": MINUTE, **options})

    def _listen(self, one: MessageExt) -> Any:
        self.seen.append(one.uniq_key)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_consumed_message_does_not_come_again() -> None:
    calls = Calls()
    for key, topic in (("A", "T"), ("B", "T"), ("A", "T"), ("A", "other"), ("B", "T")):
        assert calls.listener(message(key, topic)) is None
    assert calls.seen == ["A", "B", "A"]


def test_a_message_on_which_the_listener_failed_comes_again() -> None:
    calls = Calls(
        ConsumeConcurrentlyStatus.RECONSUME_LATER, ValueError("no"), ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    )
    assert calls.listener(message("A")) is ConsumeConcurrentlyStatus.RECONSUME_LATER
    with pytest.raises(ValueError, match="no"):
        calls.listener(message("A"))
    for _ in range(2):
        calls.listener(message("A"))
    assert calls.seen == ["A"] * 3


def test_keys_are_kept_for_a_time_and_up_to_a_number() -> None:
    clock = ManualClock()
    calls = Calls(clock=clock)
    calls.listener(message("A"))
    clock.advance(59_000)
    calls.listener(message("A"))
    clock.advance(1_000)
    calls.listener(message("A"))
    assert calls.seen == ["A", "A"]
    few = Calls(keys_max=2)
    for key in ("A", "B", "C", "A"):
        few.listener(message(key))
    assert few.seen == ["A", "B", "C", "A"]


def test_messages_without_a_key_are_told_apart_by_their_place() -> None:
    calls = Calls()
    for place in (1, 2, 1):
        calls.listener(message(None, physical_offset=place))
    assert len(calls.seen) == 2


def test_a_repeat_of_a_message_that_is_being_consumed_waits() -> None:
    waiting: Callable[[MessageExt], Any]
    seen: list[str | None] = []

    async def listen(one: MessageExt) -> None:
        seen.append(one.uniq_key)
        await asyncio.sleep(0)

    waiting = drop_repeats(listen, within=MINUTE)
    assert Listener(waiting, batch=False).on_loop

    async def both() -> None:
        first = asyncio.ensure_future(waiting(message("A")))
        await asyncio.sleep(0)
        with pytest.raises(ReconsumeLater):
            await waiting(message("A"))
        await first
        await waiting(message("A"))

    run_stepped(both())
    assert seen == ["A"]


def test_a_time_that_is_none() -> None:
    with pytest.raises(ClientError, match="positive"):
        drop_repeats(lambda _: None, within=timedelta(0))


def test_a_function_that_returns_a_coroutine_is_done_when_the_coroutine_is() -> None:
    seen: list[str | None] = []

    async def work(one: MessageExt) -> Any:
        seen.append(one.uniq_key)
        await asyncio.sleep(0)
        return False if len(seen) == 1 else None

    listener = drop_repeats(lambda one, *others: work(one), within=MINUTE)
    assert not Listener(listener, batch=False).on_loop

    async def scene() -> None:
        first = asyncio.ensure_future(listener(message("A")))
        await asyncio.sleep(0)
        with pytest.raises(ReconsumeLater):
            listener(message("A"))
        assert await first is False  # it failed, so the next one is no repeat
        assert await listener(message("A")) is None
        assert listener(message("A")) is None

    run_stepped(scene())
    assert seen == ["A", "A"]


def test_results_of_any_kind_are_remembered_as_consumed() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise ValueError("arrays do this")

    calls = Calls(Odd(), True, False, SystemExit())
    for key in ("A", "B"):
        for _ in range(2):
            calls.listener(message(key))
    for _ in range(2):
        calls.listener(message("C"))
    assert calls.seen == ["A", "B", "C", "C"]


def test_a_call_that_was_given_up_keeps_its_message_away_only_for_a_time() -> None:
    class Pending:
        def __await__(self) -> Any:
            yield

    clock = ManualClock()
    listener = drop_repeats(lambda one: Pending(), within=MINUTE, clock=clock)
    listener(message("A")).close()  # as for a worker that was cancelled
    with pytest.raises(ReconsumeLater):
        listener(message("A"))
    clock.advance(60_000)
    listener(message("A")).close()
