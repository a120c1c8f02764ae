"""The transaction listener of a cell: it commits everything, and does what the plan says in between."""

from __future__ import annotations

from typing import Any

from tests.scenario.matrix.desk import Act, Desk, Member

from rucola import LocalTransactionState, Message, MessageExt


class Commits:
    """Loaded twice, as ``hands`` is; the blocking copy's methods run in threads.

    Args:
        desk: tells what to do.
        member: whose producer it is.
        face: how this copy waits and calls.
    """

    def __init__(self, desk: Desk, member: Member, face: Any) -> None:
        self._desk, self._member, self._face = desk, member, face

    async def execute_local_transaction(self, message: Message, act: Act) -> LocalTransactionState:
        """Commits, unless the plan says otherwise."""
        if act.slow_s:
            await self._face.sleep(act.slow_s)
        if act.call:
            await self._face.call_producer_from_inside(self._desk, self._member, act.call, message)
        if act.error is not None:
            raise self._desk.error(act, message.body.decode())
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Commits."""
        return LocalTransactionState.COMMIT_MESSAGE
