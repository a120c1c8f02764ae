"""Calls of every public method of a client from inside of its application, generated from the class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tests.scenario.matrix.desk import Desk, Member
from tests.scenario.matrix.table import Use

from rucola import Message, MessageExt, MessageQueue
from rucola.errors import RucolaError

CALL_S = 120.0
"""Longest time of a call in virtual seconds: longer than any time limit in the options."""


def arguments(method: Callable[..., Any], values: dict[str, Any]) -> list[Any]:
    """The required arguments of ``method``, by their names.

    Raises:
        KeyError: the table of values lacks a name.
    """
    return [
        values[name]
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]


def values_for(desk: Desk, message: MessageExt) -> dict[str, Any]:
    """Values for the parameters of a consumer's methods, all of them about the current message."""
    queue = MessageQueue(desk.world.topic, desk.world.broker_name, message.queue_id)
    return {
        "topic": desk.world.topic,
        "lite_topic": desk.world.lite_topics[0],
        "duration": timedelta(seconds=1),
        "listener": lambda _: None,
        "queue": queue,
        "queues": desk.world.message_queues(),
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "consumer_offset": message.queue_offset,
        "timestamp_ms": message.store_timestamp_ms,
        "message": message,
        "invisible_duration_ms": 10_000,
        "key": "key",
        "unique_key": message.uniq_key or "",
        "broker_name": desk.world.broker_name,
        "max_messages": 1,
        "offset_msg_id": message.offset_msg_id,
    }


def values_for_producer(message: Message) -> dict[str, Any]:
    """Values for the parameters of a producer's methods; they concern another topic."""
    return {
        "topic": "Other",
        "message": Message("Other", b"from inside"),
        "messages": [Message("Other", b"from inside")],
        "body": b"",
        "recall_handle": "no handle",
        "request": message,
    }


@contextmanager
def judged_call(desk: Desk, client: Any, name: str, values: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yields a function and its arguments; records how the call in the block ended.

    A call may return, or raise one of the client's errors; anything else is a fault. It must end in ``CALL_S``.
    """
    began = desk.loop.time()
    try:
        if isinstance(inspect.getattr_static(type(client), name), property):
            yield (lambda: getattr(client, name),)
        else:
            method = getattr(client, name)
            yield (method, *arguments(method, values))
        desk.calls.append(f"{name} returned")
    except RucolaError as error:
        desk.calls.append(f"{name} raised {error!r}")
    except Exception as error:  # noqa: BLE001 - the finding
        desk.fault(f"{name} called from inside raised {error!r}")
    if desk.loop.time() - began > CALL_S:
        desk.fault(f"{name} called from inside took {desk.loop.time() - began:.0f} s")


def take_outcome(desk: Desk, member: Member, outcome: Any) -> None:
    """Messages that a call has returned are in the application's hands too."""
    if isinstance(outcome, list) and desk.row.use is not Use.PULL:
        for message in outcome:
            if isinstance(message, MessageExt):
                given, _ = desk.given(member, message)
                desk.ledger.finished(given)
                desk.ledger.closed(given)


def judged_consumer_call(desk: Desk, member: Member, name: str, message: MessageExt) -> Any:
    """``judged_call`` for a member's consumer."""
    if name == "shutdown":
        member.stop()  # the application's loops end by its own will
    return judged_call(desk, member.consumer, name, values_for(desk, message))


def judged_producer_call(desk: Desk, member: Member, name: str, message: Message) -> Any:
    """``judged_call`` for a member's producer."""
    if name == "shutdown":
        member.stop()
    return judged_call(desk, member.consumer, name, values_for_producer(message))
