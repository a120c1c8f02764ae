"""A simple consumer at scripted brokers: pops that the test answers when it wants to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.unit.client.conftest import ScriptedBroker
from tests.unit.client.consuming import record

from rucola import SimpleConsumer, SimpleConsumerConfig
from rucola.protocol.command import RemotingCommand
from rucola.testing.event_loop import advance, settle

POP, ACK, CHANGE = 200050, 200051, 200053
INVISIBLE_MS = 20_000


def popped(*queue_offsets: int, **properties: str) -> Callable[[RemotingCommand], RemotingCommand]:
    """The answer to a pop: messages of one queue."""
    body = b"".join(record(offset, **properties) for offset in queue_offsets)

    def answer(command: RemotingCommand) -> RemotingCommand:
        fields = {
            "popTime": "1700",
            "invisibleTime": command.ext_fields["invisibleTime"],
            "reviveQid": "3",
            "restNum": "0",
            "startOffsetInfo": "0 1 5",
        }
        return command.answer(0, ext_fields=fields, body=body)

    return answer


def nothing(command: RemotingCommand) -> RemotingCommand:
    """The answer to a pop that found no message."""
    return command.answer(210, "NO_MESSAGE_IN_QUEUE")


def refused(code: int, remark: str = "refused") -> Callable[[RemotingCommand], RemotingCommand]:
    return lambda command: command.answer(code, remark)


class PoppingBroker:
    """A scripted broker that holds pops until the test answers them, and carries out changes and acknowledgements.

    Attributes:
        held: pops without an answer, oldest first.
        ready: answers for the next pops, which are then not held.
        refusals: refusals of the next changes.
        hidden: queue offset and invisible time of each change.
        acked: queue offset of each acknowledgement.
        hold_all: whether to hold also pops that do not want to wait.
        hold_changes: whether to hold the next changes.
        changes: changes without an answer, oldest first.
    """

    def __init__(self, script: ScriptedBroker) -> None:
        self.script = script
        self.held: list[RemotingCommand] = []
        self.ready: list[Callable[[RemotingCommand], RemotingCommand]] = []
        self.refusals: list[Callable[[RemotingCommand], RemotingCommand]] = []
        self.hidden: list[tuple[int, int]] = []
        self.acked: list[int] = []
        self.hold_all = self.hold_changes = False
        self.changes: list[RemotingCommand] = []
        self.pops: list[dict[str, str]] = []
        for code, carry_out in ((POP, self._pop), (CHANGE, self._change), (ACK, self._ack)):
            script.scripts[code] = [carry_out] * 1_000

    def answer(self, answer: Callable[[RemotingCommand], RemotingCommand], number: int = 0) -> None:
        """Answers a held pop."""
        command = self.held.pop(number)
        self.script.channels[-1].send(answer(command).encode())

    def answer_change(self) -> None:
        """Carries out a held change."""
        self.script.channels[-1].send(self._changed(self.changes.pop(0)).encode())

    async def until(self, reached: Callable[[], bool]) -> None:
        for _ in range(20_000):
            if reached():
                break
            await asyncio.sleep(0)
        assert reached()
        await settle()

    async def pops_held(self, count: int) -> None:
        await self.until(lambda: len(self.held) >= count)
        assert len(self.held) == count

    def _pop(self, command: RemotingCommand) -> RemotingCommand | None:
        self.pops.append(dict(command.ext_fields))
        if self.ready:
            return self.ready.pop(0)(command)
        if command.ext_fields["pollTime"] == "0" and not self.hold_all:
            return nothing(command)
        self.held.append(command)
        return None

    def _change(self, command: RemotingCommand) -> RemotingCommand | None:
        fields = command.ext_fields
        self.hidden.append((int(fields["offset"]), int(fields["invisibleTime"])))
        if self.refusals:
            return self.refusals.pop(0)(command)
        if self.hold_changes:
            self.changes.append(command)
            return None
        return self._changed(command)

    def _changed(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.ext_fields
        time = str(1_800 + len(self.hidden))
        return command.answer(
            0, ext_fields={"popTime": time, "invisibleTime": fields["invisibleTime"], "reviveQid": "4"}
        )

    def _ack(self, command: RemotingCommand) -> RemotingCommand:
        self.acked.append(int(command.ext_fields["offset"]))
        return command.answer(0)


@asynccontextmanager
async def popping(topic: str = "T", expression: str = "*", **options: Any) -> AsyncIterator[tuple[Any, PoppingBroker]]:
    """A consumer and its broker."""
    async with ScriptedBroker(topics={"T": 2, "U": 1}) as script:
        broker = PoppingBroker(script)
        options = {"invisible_duration_ms": INVISIBLE_MS, **options}
        consumer = SimpleConsumer("cg", script.address, SimpleConsumerConfig(**options))
        if topic:
            await consumer.subscribe(topic, expression)
        async with consumer:
            yield consumer, broker


@asynccontextmanager
async def popping_from_two(**options: Any) -> AsyncIterator[tuple[Any, PoppingBroker, PoppingBroker]]:
    """A consumer of a topic with queues at two brokers."""
    async with popping(**options) as (consumer, first), ScriptedBroker("broker-b", {"T": 1}) as script:
        first.script.peers.append(script)
        yield consumer, first, PoppingBroker(script)


async def pass_by(seconds: float, turns: int = 60) -> None:
    """Moves the loop's time, and lets everything happen that is due then."""
    advance(seconds)
    await settle(turns)
