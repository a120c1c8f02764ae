"""Responses that grow with the number of topics, groups or clients. The event loop builds the body of such a response
piece by piece and serves other requests in between. A thread then encodes the body.

Only one response is built at a time. So each iteration of the event loop builds at most one piece, however many
requests wait for their responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rucola.broker.cold_reads import ColdReads
from rucola.protocol.bodies import Body
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.fairness.steps import Steps, in_turns
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError


class Pieces:
    """Builds the responses of one processor. Event loop only.

    Args:
        cold_reads: fetches messages that are not in memory; after a fetch, the response is built anew.
    """

    def __init__(self, cold_reads: ColdReads) -> None:
        self._cold_reads = cold_reads
        self._one = asyncio.Lock()

    async def answer(self, command: RemotingCommand, steps: Callable[[ColdRecords], Steps[Body]]) -> RemotingCommand:
        """Answers ``command`` with the body that ``steps`` returns.

        Raises:
            BrokerError: too many requests wait for the disk. Also raises whatever ``steps`` raises.
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
