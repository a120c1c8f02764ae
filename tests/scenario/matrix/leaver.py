"""An application in a process of its own, which ends without closing its client, or is killed.

``python -m tests.scenario.matrix.leaver ROW HOW FACTS``: FACTS is JSON with the addresses and names of the cell. HOW is
``body`` (the program ends while it handles a message), ``abandoned`` (its client was never in a ``with`` block) or
``killed`` (it goes on until somebody kills it). Each line of its output is a JSON list: what the application got,
finished or sent. It runs in real time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.scenario.matrix.desk import BODY_S, Act, Desk, Member
from tests.scenario.matrix.faces import blocking_hands, blocking_sending, blocking_transactions
from tests.scenario.matrix.hands import Hands
from tests.scenario.matrix.ledger import Given, Ledger
from tests.scenario.matrix.make import make_consumer, make_producer
from tests.scenario.matrix.sending import Sender
from tests.scenario.matrix.table import Row, Use, row_named
from tests.scenario.matrix.transactions import Commits
from tests.scenario.matrix.world import World

import rucola
import rucola.sync
from rucola import MessageQueue
from rucola.testing.queue_checker import Outcome

AT = 5
"""The program ends while it handles this message, or after this send."""
AWAIT_TERMINATION_MS = 3_000
_FOREVER_S = 3_600.0


def _say(*facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class _World:
    """The part of ``World`` that an application knows."""

    visible_s = World.visible_s

    def __init__(self, facts: dict[str, Any]) -> None:
        self.topic, self.group, self.namesrv = facts["topic"], facts["group"], facts["namesrv"]
        self.broker_name, self.queues, self.home = facts["broker"], facts["queues"], Path(facts["home"])
        self.guarded = False
        self.lite_topics = facts["lite_topics"]
        self._number = 0

    def message_queues(self) -> list[MessageQueue]:
        return [MessageQueue(self.topic, self.broker_name, number) for number in range(self.queues)]

    def queue_name(self, _value: str, queue_id: int) -> str:
        return str(queue_id)

    def new_values(self, count: int) -> list[str]:
        self._number += count
        values = [f"0.9{number:03d}" for number in range(self._number - count, self._number)]
        for value in values:  # the process may end before it knows more
            _say("sent", value, self.queue_for(values[0]).queue_id, Outcome.UNKNOWN.value)
        return values

    def queue_for(self, value: str) -> MessageQueue:
        return self.message_queues()[int(value[2:]) % self.queues]


class _Telling(Ledger):
    """A ledger that tells the parent process."""

    def given(self, given: Given) -> Given:
        _say("given", given.value, given.queue, given.queue_offset, given.retried)
        return super().given(given)

    def finished(self, given: Given) -> None:
        super().finished(given)
        _say("finished", given.value)

    def sent(self, value: str, queue: str, offset: int | None, outcome: Outcome, began: float) -> None:
        super().sent(value, queue, offset, outcome, began)
        _say("sent", value, queue, outcome.value)


class _Loop:
    """Real time for a ``Desk``."""

    def time(self) -> float:
        return time.monotonic()

    def call_soon_threadsafe(self, _function: object) -> None:
        """Nobody waits here."""


class _AsyncFace:
    """Asynchronous, in real time."""

    def make(self, desk: Desk, member: Member) -> Any:
        return make_consumer(rucola, desk, member)

    def make_producer(self, desk: Desk, member: Member, transactions: Any) -> Any:
        return make_producer(rucola, desk, member, transactions)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, future: Future[Any]) -> Any:
        return await asyncio.shield(asyncio.wrap_future(future))

    async def result(self, future: asyncio.Future[Any]) -> Any:
        return await future


class _SyncFace:
    """Blocking, in real time."""

    def make(self, desk: Desk, member: Member) -> Any:
        return make_consumer(rucola.sync, desk, member)

    def make_producer(self, desk: Desk, member: Member, transactions: Any) -> Any:
        return make_producer(rucola.sync, desk, member, transactions)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, future: Future[Any]) -> Any:
        return future.result()

    def result(self, future: Future[Any]) -> Any:
        return future.result()


class _Program:
    """The application.

    Args:
        row: what it uses.
        how: how it ends.
        facts: addresses and names.
    """

    def __init__(self, row: Row, how: str, facts: dict[str, Any]) -> None:
        self.row = row
        loop: Any = _Loop()
        world: Any = _World(facts)
        self.desk = Desk(row, _Telling(loop.time), world, loop)
        self.desk.acts[AT] = Act(slow_s=_FOREVER_S)
        self.desk.body_s = BODY_S
        self.desk.await_termination_ms = AWAIT_TERMINATION_MS
        self.member = Member(facts["member"], abandons=how == "abandoned")

    def application(self) -> Any:
        face: Any = _SyncFace() if self.row.sync else _AsyncFace()
        if self.row.is_producer:
            sender: Any = blocking_sending.Sender if self.row.sync else Sender
            commits = blocking_transactions.Commits if self.row.sync else Commits
            return sender(self.desk, self.member, face, commits(self.desk, self.member, face))
        hands: Any = blocking_hands.Hands if self.row.sync else Hands
        return hands(self.desk, self.member, face, self._listens())

    def _listens(self) -> Any:
        if self.row.use is Use.PLAIN_LISTENER:
            blocking = blocking_hands.Hands(self.desk, self.member, _SyncFace())
            return lambda message: blocking.body(message) and None
        hands = Hands(self.desk, self.member, _AsyncFace())

        async def listen(message: Any) -> None:
            await hands.body(message)

        return listen

    def is_at_its_end(self) -> bool:
        return self.desk.count >= AT


def main(name: str, how: str, facts: dict[str, Any]) -> None:
    """Runs the program until its end."""
    program = _Program(row_named(name), how, facts)
    if program.row.sync:
        threading.Thread(target=program.application().run, daemon=True).start()
        while how == "killed" or not program.is_at_its_end():
            time.sleep(0.01)
        return

    async def run() -> None:
        task = asyncio.ensure_future(program.application().run())
        while how == "killed" or not program.is_at_its_end():
            await asyncio.sleep(0.01)
            if task.done():
                await task

    asyncio.run(run())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
