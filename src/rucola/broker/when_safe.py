"""Answers requests when what they have written is synced; for processors that answer one request at a time."""

from __future__ import annotations

from rucola.broker.flush_waiters import FlushWaiters
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore


class WhenSafe:
    """Processors call it with each answer.

    Args:
        waiters: the responses that wait for a sync; None without SYNC_FLUSH.
    """

    def __init__(self, store: MessageStore, waiters: FlushWaiters | None) -> None:
        self._store = store
        self._waiters = waiters

    def __call__(self, channel: Channel, command: RemotingCommand, answer: RemotingCommand, end: int) -> Answer:
        """Returns ``answer``, or None if it is sent later: when the log is synced up to ``end``, or when the sync has
        failed.
        """
        if self._waiters is None or command.is_oneway or end <= self._store.flushed_offset:
            return answer
        self._waiters.add(end, channel, answer.encode())
        return None
