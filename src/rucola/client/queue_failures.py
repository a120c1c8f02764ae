"""Counts failed requests about queues, so that a broker that is away is not logged at each try and for each queue."""

from __future__ import annotations

from rucola.common.message_queue import MessageQueue
from rucola.errors import RemotingError
from rucola.runtime.logs import Recurring


class QueueFailures:
    """The failures of one kind of request. If a broker cannot be reached, its queues fail alike and count as one."""

    def __init__(self) -> None:
        self._recurring = Recurring()

    def note(self, queue: MessageQueue, error: Exception) -> int:
        """Counts a failure; returns its number if it is worth a line (``Recurring``), otherwise 0."""
        return self._recurring.note(queue.broker_name if isinstance(error, RemotingError) else queue, error)

    def end(self, queue: MessageQueue) -> None:
        """Notes a success: the next failure begins anew."""
        self._recurring.end(queue)
        self._recurring.end(queue.broker_name)
