"""What works for all visitors, each with limits of its own: tails, exports, stores, queries, and who may do what."""

from __future__ import annotations

from typing import NamedTuple

from rucola.console.bounds import Places
from rucola.console.messages.decoding import BodyDecoders
from rucola.console.messages.tail import TailDesk
from rucola.console.queries.desk import QueryDesk
from rucola.console.store.child import Child
from rucola.console.store.explorer import StoreExplorer


class Desks(NamedTuple):
    """Call ``close`` once. Event loop only.

    Attributes:
        tails: live tails.
        exports: places of exports.
        decoders: what makes text of bodies with a schema.
        explorer: reads the stores on this machine.
        queries: runs queries.
        judge: says what an account may do; see ``rucola.broker.acl.judge``.
    """

    tails: TailDesk
    exports: Places
    decoders: BodyDecoders
    explorer: StoreExplorer
    queries: QueryDesk
    judge: Child

    async def close(self) -> None:
        """Ends queries and all processes."""
        await self.judge.close()
        await self.queries.close()
        await self.explorer.close()
