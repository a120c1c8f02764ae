"""Answers requests when what they have written is synced; for processors that answer one request at a time.

Clients take only sends as stored although a slave is missing. All others wait for slaves, too, and then succeed.
"""

from __future__ import annotations

from rucola.broker.flush_waiters import Confirmation
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel


class WhenSafe:
    """Processors call it with each answer.

    Args:
        confirmation: what they wait for; None without SYNC_FLUSH and SYNC_MASTER.
    """

    def __init__(self, confirmation: Confirmation | None) -> None:
        self._confirmation = confirmation

    def __call__(self, channel: Channel, command: RemotingCommand, answer: RemotingCommand, end: int) -> Answer:
        """Returns ``answer``, or None if it is sent later: when the log is safe up to ``end``, or cannot be."""
        confirmation = self._confirmation
        if confirmation is None or command.is_oneway or confirmation.passed(end):
            return answer
        confirmation.add(end, channel, answer.encode(), lenient=True)
        return None
