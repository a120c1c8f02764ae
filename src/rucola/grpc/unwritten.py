"""Answers that were handed over, and that their client has not taken yet. Event loop only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.http2.connection import Http2Connection

logger = logging.getLogger(__name__)


class _Answer:
    """The last responses of one call.

    Attributes:
        lost: called with the number of bytes that the client did not take.
        unwritten: how many these are, as known after the last write.
    """

    __slots__ = ("lost", "unwritten")

    def __init__(self, lost: Callable[[int], None], size: int) -> None:
        self.lost, self.unwritten = lost, size


class UnwrittenAnswers:
    """The answers of one connection of which somebody wants to know whether the client takes them."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[int, _Answer] = {}

    def add(self, stream: int, size: int, lost: Callable[[int], None]) -> None:
        """Watches the answer of a stream.

        Args:
            stream: number of the stream.
            size: bytes of its last responses.
            lost: called with the number of bytes that were not written, if the stream or the connection ends first.
        """
        self._answers[stream] = _Answer(lost, size)

    def written(self, http2: Http2Connection) -> None:
        """Called after a write: forgets the answers that the client's windows and its socket have taken."""
        if not self._answers:
            return
        for stream, answer in list(self._answers.items()):
            answer.unwritten = min(http2.queued_bytes(stream) + http2.ready_bytes, answer.unwritten)
            if not answer.unwritten:
                del self._answers[stream]

    def ended(self, stream: int) -> None:
        """Called when the stream was reset."""
        answer = self._answers.pop(stream, None)
        if answer is not None:
            try:
                answer.lost(answer.unwritten)
            except Exception as error:  # noqa: BLE001 - a defect of a handler must not keep other answers from ending
                event(logger, logging.ERROR, "lost gRPC answer not noted", error, stream=stream)

    def close(self) -> None:
        """Called when the connection is lost."""
        for stream in list(self._answers):
            self.ended(stream)
