"""Answers that grow with what exists: gathered in pieces, others are served in between, and encoded in a thread.

One answer at a time: however many are asked for, they take one piece of a turn together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rucola.broker.longpolling.cold_reads import ColdReads
from rucola.protocol.bodies import Body
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.turn import Steps, in_turns
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError


class Pieces:
    """The answers of one group of requests. Event loop only.

    Args:
        cold_reads: fetches what is not in memory; the steps are done again from their beginning after that.
    """

    def __init__(self, cold_reads: ColdReads) -> None:
        self._cold_reads = cold_reads
        self._one = asyncio.Lock()

    async def answer(self, command: RemotingCommand, steps: Callable[[ColdRecords], Steps[Body]]) -> RemotingCommand:
        """The answer to ``command`` with the body that ``steps`` returns.

        Raises:
            BrokerError: too many requests wait for the disk; and whatever ``steps`` raises.
        """
        cold = ColdRecords()
        while True:
            try:
                async with self._one:
                    body = await in_turns(steps(cold))
                    cold.check()
                    encoded = await asyncio.to_thread(body.encode)
                    return command.answer(ResponseCode.SUCCESS, body=encoded)
            except NotInMemoryError:
                await self._cold_reads.fetched(cold)
