"""A steady producer and consumer that measure how an attacked broker serves others: 50 messages per second.

Producer and consumer have one connection each. The producer sends at fixed times, even if the previous response has not
come yet, like independent users. Each message must be acknowledged, and each acknowledged message must reach the
consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field

from tests.attack.guarded import ADMIN, signed
from tests.attack.siege.target import Addresses

from rucola.errors import RucolaError
from rucola.formats.message import decode_messages
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient

PERIOD_S = 0.02
TIMEOUT_MS = 20_000
_GATHER_S = 60.0
_SUSPEND, _SUBSCRIPTION = 2, 4


@dataclass
class Span:
    """Observations between two moments."""

    sends_ms: list[float] = field(default_factory=list)
    gap_s: float = 0.0

    def p99_ms(self) -> float:
        """Returns the 99th percentile of the time in milliseconds from a message's due time to its acknowledgement."""
        ordered = sorted(self.sends_ms)
        return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] if ordered else float("nan")


class Canary:
    """A steady client: call ``start``, then ``span`` at the beginning of each part of the test, then ``finish``."""

    def __init__(self, addresses: Addresses, number: int = 0) -> None:
        self._addresses = addresses
        self._topic = f"Canary{number}"
        self._group = f"canary-group-{number}"
        self._clients = [RemotingClient(), RemotingClient()]
        self._span = Span()
        self._acknowledged: set[int] = set()
        self._came: set[int] = set()
        self._sends: dict[asyncio.Task[None], float] = {}
        """The sends under way, and the due times of their messages."""
        self._last_s = time.monotonic()
        self.refused: list[str] = []

    async def start(self) -> None:
        """Creates the topic, and begins to send and pull."""
        fields = {"topic": self._topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        answer = await self._ask(0, RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields))
        assert answer.code == 0, answer.remark
        body = json.dumps({"groupName": self._group}).encode()
        answer = await self._ask(0, RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
        assert answer.code == 0, answer.remark
        self._last_s = time.monotonic()
        self._tasks = [asyncio.create_task(self._produce()), asyncio.create_task(self._consume())]

    def span(self) -> Span:
        """Returns the observations since the previous call."""
        self._note_gap()
        now = time.monotonic()
        seen, self._span = self._span, Span()
        # Requests without a response count with the time they have waited so far, and again when the response comes.
        seen.sends_ms += [(now - due) * 1000 for due in self._sends.values()]
        return seen

    async def finish(self) -> int:
        """Stops sending and waits for messages in flight; returns how many acknowledged messages did not arrive."""
        self._tasks[0].cancel()
        if self._sends:
            await asyncio.wait(self._sends)
        deadline = time.monotonic() + _GATHER_S
        while self._acknowledged - self._came and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        await self.abandon()
        return len(self._acknowledged - self._came)

    async def abandon(self) -> None:
        """Stops at once, without waiting for messages."""
        for task in (*self._tasks, *self._sends):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._sends, return_exceptions=True)
        for client in self._clients:
            await client.close()

    async def _ask(self, client: int, command: RemotingCommand) -> RemotingCommand:
        if self._addresses.guarded:
            command = signed(command, ADMIN)
        return await self._clients[client].invoke(self._addresses.broker, command, TIMEOUT_MS)

    async def _produce(self) -> None:
        due, number = time.monotonic(), 0
        while True:
            task = asyncio.create_task(self._send(number, due))
            self._sends[task] = due
            task.add_done_callback(self._sends.pop)
            number += 1
            due += PERIOD_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _send(self, number: int, due: float) -> None:
        header = SendMessageRequestHeaderV2("canary", self._topic, "TBW102", 1, 0, 0, 1_700_000_000_000, 0, "")
        command = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2, ext_fields=header.to_ext_fields(), body=number.to_bytes(8, "big")
        )
        try:
            answer = await self._ask(0, command)
        except RucolaError as error:
            self.refused.append(str(error))
        else:
            if answer.code == 0:
                self._acknowledged.add(number)
            else:
                self.refused.append(f"{answer.code} {answer.remark}")
        self._span.sends_ms.append((time.monotonic() - due) * 1000)

    async def _consume(self) -> None:
        offset = 0
        while True:
            header = PullMessageRequestHeader(
                self._group, self._topic, 0, offset, 32, _SUSPEND | _SUBSCRIPTION, 0, 5_000, 0, "*", "TAG"
            )
            try:
                answer = await self._ask(
                    1, RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.to_ext_fields())
                )
            except RucolaError as error:
                self.refused.append(str(error))
                await asyncio.sleep(0.05)
                continue
            if answer.code not in (0, 19, 20):
                self.refused.append(f"pull: {answer.code} {answer.remark}")
                await asyncio.sleep(0.05)
            elif answer.code == 0:
                self._came.update(int.from_bytes(message.body, "big") for message in decode_messages(answer.body))
                offset = int(answer.ext_fields["nextBeginOffset"])
                self._note_gap()
                self._last_s = time.monotonic()

    def _note_gap(self) -> None:
        with contextlib.suppress(AttributeError):
            self._span.gap_s = max(self._span.gap_s, time.monotonic() - self._last_s)
