"""Questions to servers, whose answer may be that there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from rucola.errors import BrokerError, ClientError, FormatError, RemotingError
from rucola.protocol.codes import ResponseCode

T = TypeVar("T")
TOGETHER_MAX: Final = 16
"""Largest number of questions of one page or round that wait at a time."""
_TEXT_MAX: Final = 300


class Reason(StrEnum):
    """Why something is not known."""

    SILENT = "silent"
    """The server did not answer in time, or is not there."""
    FORBIDDEN = "forbidden"
    """The account has no permission, or is not known."""
    UNSUPPORTED = "unsupported"
    """The server does not know the request."""
    REFUSED = "refused"
    """The server answered something else."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """In place of an answer.

    Attributes:
        reason: why there is none.
        server: address of the server.
        text: what happened, for people.
        code: response code of the server; None if it did not answer.
    """

    reason: Reason
    server: str
    text: str
    code: int | None = None


async def asked(server: str, call: Awaitable[T]) -> T | Unknown:
    """Awaits an answer of ``server``; returns why there is none instead of raising."""
    try:
        return await call
    except BrokerError as error:
        return Unknown(_reason(error), server, str(error)[:_TEXT_MAX], error.code)
    except RemotingError as error:
        return Unknown(Reason.SILENT, server, str(error)[:_TEXT_MAX])
    except (ClientError, FormatError) as error:
        return Unknown(Reason.REFUSED, server, str(error)[:_TEXT_MAX])


async def by_deadline(
    calls: Sequence[tuple[str, Awaitable[T]]], deadline_s: float, together: int = TOGETHER_MAX
) -> list[T | Unknown]:
    """Awaits the answers of many servers, but no longer than ``deadline_s`` seconds altogether.

    Args:
        calls: server and question; all of them are awaited or closed.
        deadline_s: from now on, in seconds.
        together: largest number of questions that wait at a time.

    Returns:
        An answer for each call, in the same order. A server that was too slow is silent.
    """
    gate = asyncio.Semaphore(together)

    async def one(server: str, call: Awaitable[T]) -> T | Unknown:
        async with gate:
            return await asked(server, call)

    tasks = [asyncio.ensure_future(one(server, call)) for server, call in calls]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, timeout=deadline_s)
    finally:
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        for _, call in calls:  # a coroutine that never began would warn
            close = getattr(call, "close", None)
            if close is not None:
                close()
    text = f"no answer within {deadline_s:g} s"
    return [
        Unknown(Reason.SILENT, server, text) if task.cancelled() else task.result()
        for task, (server, _) in zip(tasks, calls, strict=True)
    ]


def known(answers: Iterable[T | Unknown]) -> list[T]:
    """The answers that are there."""
    return [answer for answer in answers if not isinstance(answer, Unknown)]


def signature_refused(unknown: Unknown) -> bool:
    """Whether a server refused an account itself, not what the account asked for."""
    if unknown.reason is not Reason.FORBIDDEN:
        return False
    text = unknown.text.lower()
    return not any(word in text for word in ("no permission", "administrator", "has no permission", "need admin"))


def _reason(error: BrokerError) -> Reason:
    if error.code == ResponseCode.NO_PERMISSION or (error.code == ResponseCode.SYSTEM_ERROR and not error.retriable):
        return Reason.FORBIDDEN
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return Reason.UNSUPPORTED
    return Reason.REFUSED
