"""The application of a producer's row: it sends one message after the other, and notes what became of each.

Loaded twice, as ``hands`` is.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.scenario.matrix.desk import NORMAL, Act, Desk, Member

from rucola import Message, MessageQueue
from rucola.errors import BrokerError, RucolaError
from rucola.testing.queue_checker import Outcome

PAUSE_S = 0.4
AGAIN_S = 1.0
DELAY_S = 5.0
RECALL_SHARE = 0.8
BATCH = 3
REQUEST_MS = 10_000


class Sender:
    """The application of one producer.

    Args:
        desk: where it records and asks.
        member: the member.
        face: how this copy of the program waits and calls.
        transactions: the listener of a ``TransactionProducer``.
    """

    def __init__(self, desk: Desk, member: Member, face: Any, transactions: Any = None) -> None:
        self.desk, self.member, self.face = desk, member, face
        self._transactions = transactions

    async def run(self) -> None:
        """Sends until the member shall end."""
        producer = self.member.consumer = self.face.make_producer(self.desk, self.member, self._transactions)
        if self.member.abandons:
            await producer.start()
            await self.work(producer)
            return
        async with producer:
            self.member.started = True
            if self.member.holds:
                await self.face.wait(self.member.end)
            else:
                await self.work(producer)

    async def work(self, producer: Any) -> None:
        """Sends with a started producer; a second task does the same."""
        while not self.member.ending:
            await self._step(producer)
            await self.face.sleep(PAUSE_S)

    async def _step(self, producer: Any) -> None:
        act = self.desk.next_act(self.member)
        values = self.desk.world.new_values(BATCH if self.desk.row.base == "batch" else 1)
        queue = self.desk.world.queue_for(values[0])
        began = self.desk.loop.time()
        outcome = Outcome.UNKNOWN
        try:
            outcome = await getattr(self, f"_{self.desk.row.base}")(producer, values, queue, act)
        except BrokerError as error:
            self.desk.caught.append(repr(error))
            await self.face.sleep(AGAIN_S)
        except RucolaError as error:
            self.desk.caught.append(repr(error))
            await self.face.sleep(AGAIN_S)
        except BaseException as error:  # noqa: BLE001 - the application's own, or raised again
            self.desk.catch(error)
            outcome = self._refused(error)
        finally:
            for value in values:
                self.desk.ledger.sent(value, self.desk.world.queue_name(value, queue.queue_id), None, outcome, began)

    def _refused(self, error: BaseException) -> Outcome:
        """What became of a message if the application's own code has raised."""
        if self.desk.row.base == "transaction":
            self.desk.fault(f"the transaction listener's error came out of the send: {error!r}")
        stored = self.desk.row.base in ("transaction", "submit")
        return Outcome.UNKNOWN if stored else Outcome.FAILED

    def _messages(self, values: list[str], **options: Any) -> list[Message]:
        return [Message(self.desk.world.topic, value.encode(), **options) for value in values]

    def _selector(self, producer: Any, queue: MessageQueue, act: Act) -> Any:
        """Chooses the queue; the application's own code, which may fail or call the producer."""

        def choose(_queues: list[MessageQueue], message: Message) -> MessageQueue:
            if act.call:
                self.face.call_in_callback(self.desk, self.member, act.call, message)
            if act.error is not None:
                raise self.desk.error(act, message.body.decode())
            return queue

        return choose

    async def _send(self, producer: Any, values: list[str], queue: MessageQueue, act: Act) -> Outcome:
        [message] = self._messages(values)
        await producer.send(message, selector=self._selector(producer, queue, act))
        return Outcome.OK

    async def _submit(self, producer: Any, values: list[str], queue: MessageQueue, act: Act) -> Outcome:
        [message] = self._messages(values)
        await producer.ready()
        future = producer.submit(message, queue)

        def done(_future: Any) -> None:
            if act.call:
                self.face.call_in_callback(self.desk, self.member, act.call, message)
            if act.error is not None:
                raise self.desk.error(act, values[0])

        if act is not NORMAL:
            future.add_done_callback(done)
        await self.face.result(future)
        return Outcome.OK

    async def _oneway(self, producer: Any, values: list[str], queue: MessageQueue, act: Act) -> Outcome:
        [message] = self._messages(values)
        await producer.send_oneway(message, selector=self._selector(producer, queue, act))
        return Outcome.OK

    async def _batch(self, producer: Any, values: list[str], queue: MessageQueue, act: Act) -> Outcome:
        await producer.send_batch(self._messages(values), queue)
        return Outcome.OK

    async def _transaction(self, producer: Any, values: list[str], queue: MessageQueue, act: Act) -> Outcome:
        [message] = self._messages(values)
        await producer.send_message_in_transaction(message, act)
        return Outcome.OK  # the listener commits, at the latest when the broker asks

    async def _request(self, producer: Any, values: list[str], queue: MessageQueue, act: Act) -> Outcome:
        [message] = self._messages(values)
        choose = self._selector(producer, queue, act)
        reply = await producer.request(message, selector=choose, timeout_ms=REQUEST_MS)
        if reply.body != values[0].encode():
            self.desk.fault(f"the reply to {values[0]} is {reply.body!r}")
        return Outcome.OK

    async def _delayed(self, producer: Any, values: list[str], queue: MessageQueue, act: Act) -> Outcome:
        [message] = self._messages(values, delay=timedelta(seconds=DELAY_S))
        await producer.send(message, selector=self._selector(producer, queue, act))
        return Outcome.OK

    async def _recall(self, producer: Any, values: list[str], queue: MessageQueue, act: Act) -> Outcome:
        [message] = self._messages(values, delay=timedelta(seconds=self.desk.world.visible_s * RECALL_SHARE))
        result = await producer.send(message, queue)
        await producer.recall(self.desk.world.topic, result.recall_handle)
        return Outcome.FAILED  # it must not be delivered


__all__ = ["Sender", "asyncio"]
