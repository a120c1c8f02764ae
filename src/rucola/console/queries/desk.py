"""Runs queries of visitors: one at a time for each, a few for all, each with limits and a way to end it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rucola.console.bounds import TooManyError
from rucola.console.store.child import Child, ChildError

MODULE: Final = "rucola.cli.console_query"
QUERY_S: Final = 30.0
"""Longest time of a query, in seconds."""
TOGETHER_MAX: Final = 2
"""Queries that run at a time; further ones wait."""
KEPT_MAX: Final = 32
"""Results that are kept, one for each visitor."""
OF_ACCOUNT_MAX: Final = 8
"""Queries of one account, in several sessions, that have not ended; without accounts, of all visitors."""
KEPT_S: Final = 600.0
Owner = tuple[str, str, str]
"""Cluster, account and session of a visitor."""


@dataclass(slots=True)
class Query:
    """A query, and what became of it.

    Attributes:
        text: the query itself.
        rows: largest number of rows.
        store: number of the store that it reads; -1 for the brokers.
        state: ``waiting``, ``running``, ``done``, ``failed`` or ``cancelled``.
        result: the answer of ``rucola.cli.console_query``, once it is done.
        error: why it failed.
    """

    text: str
    rows: int
    store: int
    state: str = "waiting"
    result: Any = None
    error: str = ""
    ended_s: float = 0.0
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in ("waiting", "running")


class QueryDesk:
    """All queries. Event loop only.

    Args:
        monotonic: the time in seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._queries: dict[Owner, Query] = {}
        self._gate = asyncio.Semaphore(TOGETHER_MAX)

    def of(self, owner: Owner) -> Query | None:
        """The newest query of a visitor; None if there is none, or it ended long ago."""
        self._forget()
        return self._queries.get(owner)

    def start(self, owner: Owner, query: Query, place: Mapping[str, Any]) -> Query:
        """Starts a query in place of the visitor's earlier one, which ends.

        Args:
            place: what ``rucola.cli.console_query`` reads.

        Raises:
            TooManyError: too many queries of others, or of this account, have not ended.
        """
        self._forget()
        others = {one: found for one, found in self._queries.items() if one != owner}
        ended = [one for one, found in others.items() if not found.is_open]
        of_account = sum(found.is_open for one, found in others.items() if one[:2] == owner[:2])
        is_full = len(others) >= KEPT_MAX
        if of_account >= OF_ACCOUNT_MAX or (is_full and not ended):
            raise TooManyError("There are too many queries: wait until one has ended.")
        self.cancel(owner)
        self._queries.pop(owner, None)
        if is_full:
            del self._queries[ended[0]]
        self._queries[owner] = query
        query.task = asyncio.create_task(self._run(query, {**place, "query": query.text, "rows": query.rows}))
        return query

    def cancel(self, owner: Owner) -> None:
        """Ends the visitor's query, if one runs."""
        query = self._queries.get(owner)
        if query is not None and query.is_open and query.task is not None:
            query.state = "cancelled"
            query.ended_s = self._monotonic()
            query.task.cancel()

    async def wait(self, query: Query, seconds: float | None) -> None:
        """Waits until a query has ended, but no longer than ``seconds``; a query has limits of its own."""
        if query.task is not None:
            await asyncio.wait([query.task], timeout=seconds)

    async def close(self) -> None:
        """Ends all queries."""
        tasks = [query.task for query in self._queries.values() if query.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, query: Query, question: Mapping[str, Any]) -> None:
        async with self._gate:
            query.state = "running"
            # A process that is killed leaves its files; they go with this directory.
            with tempfile.TemporaryDirectory(prefix="rucola-console-", ignore_cleanup_errors=True) as folder:
                child = Child(MODULE, {"TMPDIR": folder})
                try:
                    query.result = await child.ask(question, QUERY_S)
                    query.state = "done"
                except ChildError as error:
                    query.state, query.error = "failed", str(error)
                finally:
                    await child.close()
                    query.ended_s = self._monotonic()

    def _forget(self) -> None:
        """Forgets old results, which may hold what a visitor should not find after somebody else's sign-in."""
        now_s = self._monotonic()
        for owner in [
            owner for owner, one in self._queries.items() if not one.is_open and now_s - one.ended_s > KEPT_S
        ]:
            del self._queries[owner]
