"""Asks brokers for the lowest and highest offsets of their queues (``Bounds``), and copes with slow or unavailable
brokers. A stream does this whenever Spark requests its latest offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from rucola.arrow.broker_link import BrokerLink
from rucola.arrow.catalog import Bounds, Look
from rucola.client.pull_consumer import PullConsumer
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError, RucolaError

ANSWER_PATIENCE_S = 1.0
"""Longest time in seconds for which ``look`` waits for brokers that responded the last time."""
DOUBT_PATIENCE_S = 0.05
"""Like ``ANSWER_PATIENCE_S``, for brokers that were late or failed the last time."""
AWAY_PAUSE_S = 0.2
"""Seconds for which a broker that failed gets no request."""

T = TypeVar("T")
BoundsOf = Callable[[PullConsumer, MessageQueue], Awaitable[Bounds]]

logger = logging.getLogger(__name__)


class BrokerAnswers:
    """Asks each broker for the bounds of its queues, and waits only briefly for a slow broker.

    A request without a response stays open: the broker gets no further request meanwhile, and a later ``look`` uses the
    response. So the bounds of a slow broker arrive late, but they do arrive. A broker that never responds delays the
    first ``look`` by ``ANSWER_PATIENCE_S``, and each later one by ``DOUBT_PATIENCE_S``.

    Args:
        link: connection to the brokers.
        bounds_of: asks for the bounds of one queue.
    """

    def __init__(self, link: BrokerLink, bounds_of: BoundsOf) -> None:
        self._link = link
        self._bounds_of = bounds_of
        self._open: dict[str, _Question] = {}
        self._absences: dict[str, _Absence] = {}

    def look(self, queues: Iterable[MessageQueue]) -> Look:
        """The bounds of queues whose brokers respond.

        Raises:
            RucolaError: any error except those of an unavailable broker.
        """
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        asked = {name: question for name in by_broker if (question := self._question(name, by_broker[name]))}
        for patience_s, doubtful in ((ANSWER_PATIENCE_S, False), (DOUBT_PATIENCE_S, True)):
            names = [name for name in asked if (name in self._absences) == doubtful]
            self._link.wait_for([asked[name].answers for name in names], patience_s)
        bounds: dict[MessageQueue, Bounds] = {}
        for name, question in asked.items():
            if question.answers.done():
                bounds |= self._taken(name)
            else:
                self._absences.setdefault(name, _Absence(ClientError(f"broker {name} has not answered yet"), 0.0))
        wanted = {queue for own in by_broker.values() for queue in own}
        return Look({queue: bounds[queue] for queue in wanted & bounds.keys()}, frozenset(wanted - bounds.keys()))

    def is_away(self, broker_name: str) -> bool:
        """Whether the broker failed less than ``AWAY_PAUSE_S`` ago, or has not answered yet."""
        absence = self._absences.get(broker_name)
        return absence is not None and (broker_name in self._open or self._link.seconds() < absence.until_s)

    def error_of(self, broker_name: str) -> RucolaError | None:
        """The last failure of a broker that counts as unavailable; None if the broker is available."""
        absence = self._absences.get(broker_name)
        return None if absence is None else absence.error

    def failed(self, broker_name: str, error: BaseException) -> None:
        """Notes that a broker is unavailable if ``error`` means that; otherwise raises ``error``."""
        if not isinstance(error, RucolaError) or not (error.retriable or isinstance(error, ClientError)):
            raise error
        if broker_name not in self._absences or not self._absences[broker_name].until_s:
            logger.warning("broker %s does not respond; its queues are not read until it does: %s", broker_name, error)
        self._absences[broker_name] = _Absence(error, self._link.seconds() + AWAY_PAUSE_S)

    def close(self) -> None:
        """Cancels the requests that have no response yet."""
        for question in self._open.values():
            question.answers.cancel()
        self._open.clear()

    def _question(self, broker_name: str, queues: list[MessageQueue]) -> _Question | None:
        """The open request to a broker, or a new one; None if the broker failed less than ``AWAY_PAUSE_S`` ago."""
        if broker_name not in self._open:
            if self.is_away(broker_name):
                return None
            answers = self._link.begin(lambda consumer: each(self._bounds_of(consumer, queue) for queue in queues))
            self._open[broker_name] = _Question(queues, answers)
        return self._open[broker_name]

    def _taken(self, broker_name: str) -> Mapping[MessageQueue, Bounds]:
        """The bounds in the responses of a broker. If a response is an error, the broker counts as unavailable."""
        question = self._open.pop(broker_name)
        found = {}
        errors = []
        for queue, answer in zip(question.queues, question.answers.result(), strict=True):
            if isinstance(answer, Bounds):
                found[queue] = answer
            else:
                errors.append(answer)
        for error in errors:
            self.failed(broker_name, error)
        if not errors and broker_name in self._absences and self._absences.pop(broker_name).until_s:
            logger.info("broker %s is back", broker_name)
        return found


@dataclass(frozen=True)
class _Question:
    """A request to one broker: the queues whose bounds are requested, and a future of the broker's responses."""

    queues: list[MessageQueue]
    answers: Future[list[Bounds | BaseException]]


@dataclass(frozen=True)
class _Absence:
    """The reason why a broker counts as unavailable. ``until_s`` is the time until which the broker gets no request; 0
    if its response is only late.
    """

    error: RucolaError
    until_s: float


async def each(calls: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """Runs all calls; returns the result or the exception of each call."""
    return await asyncio.gather(*calls, return_exceptions=True)
