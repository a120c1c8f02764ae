"""The application of a row: what a program does with a consumer.

The module is loaded twice. ``faces`` turns the second copy into blocking calls, so that both faces of the client meet
the same program: ``await``, ``async for`` and ``async with`` become ``for``, ``with`` and plain calls.
"""

from __future__ import annotations

from typing import Any

from tests.scenario.matrix.desk import Act, Desk, Member
from tests.scenario.matrix.ledger import Given
from tests.scenario.matrix.table import LISTENERS, Use

from rucola import MessageExt, MessageQueue
from rucola.errors import RucolaError

RECEIVED = 8
WAIT_MS = 1_000
INVISIBLE_MS = 10_000
AGAIN_S = 1.0


class Hands:
    """The application of one member.

    Args:
        desk: where it records and asks.
        member: the member.
        face: how this copy of the program waits and calls.
        listens: runs the body of a listener, which may have another face.
    """

    def __init__(self, desk: Desk, member: Member, face: Any, listens: Any = None) -> None:
        self.desk, self.member, self.face = desk, member, face
        self._listens = listens

    # -- life

    async def run(self) -> None:
        """Consumes until the member shall end; begins again with a new consumer after the application's own errors."""
        while not self.member.ending:
            try:
                await self._live()
            except BaseException as error:  # noqa: BLE001 - the application's own, or raised again
                self.desk.catch(error)

    async def _live(self) -> None:
        row = self.desk.row
        consumer = self.member.consumer = self.face.make(self.desk, self.member)
        if row.use in LISTENERS:
            consumer.register_message_listener(self._listens)
        if row.assigned:
            await consumer.assign(self.desk.world.message_queues())
        elif row.has_lite_topics:
            await consumer.subscribe_lite(self.desk.world.lite_topics)
        elif row.use is not Use.PULL:
            await consumer.subscribe(self.desk.world.topic)
        if self.member.abandons:
            await consumer.start()
            await self.work(consumer)
            return
        async with consumer:
            self.member.started = True
            if self.member.holds:
                await self.face.wait(self.member.end)
            else:
                await self.work(consumer)

    async def work(self, consumer: Any) -> None:
        """Consumes with a started consumer; a second task does the same."""
        use = self.desk.row.use
        if use in LISTENERS:
            await self.face.wait(self.member.end)
        elif use is Use.LOOP:
            await self._loops(consumer)
        elif use is Use.POLL:
            await self._polls(consumer)
        elif use is Use.RECEIVE:
            await self._receives(consumer)
        else:
            await self._pulls(consumer)

    # -- one message

    async def body(self, message: MessageExt) -> str:
        """Handles a message; returns how the loop shall be left."""
        given, act = self.desk.given(self.member, message)
        try:
            await self.face.sleep(self.desk.body_s + act.slow_s)
            await self._act(act, given, message)
            self.desk.ledger.finished(given)
            return act.leave
        finally:
            self.desk.ledger.closed(given)

    async def _act(self, act: Act, given: Given, message: MessageExt) -> None:
        if act.call:
            await self.face.call_from_inside(self.desk, self.member, act.call, message)
        if act.error is not None:
            raise self.desk.error(act, given.value)

    # -- loops

    async def _loops(self, consumer: Any) -> None:
        while not self.member.ending:
            try:
                await self._loop(consumer)
            except RucolaError as error:
                self.desk.raised(error)
                await self.face.sleep(AGAIN_S)
            except BaseException as error:
                if self.member.ending:
                    raise
                self.desk.catch(error)

    async def _loop(self, consumer: Any) -> None:
        acknowledges = self.desk.row.client == "SimpleConsumer"
        async for message in consumer:
            leave = await self.body(message)
            if acknowledges:
                await self._acknowledge(consumer, message)
            if leave == "break":
                break
            if leave == "return":
                return
        else:
            if not self.member.ending:
                self.desk.fault("the loop ended by itself")
                await self.face.wait(self.member.end)

    # -- lists

    async def _polls(self, consumer: Any) -> None:
        while not self.member.ending:
            for message in await consumer.poll(WAIT_MS):
                await self.body(message)

    async def _receives(self, consumer: Any) -> None:
        while not self.member.ending:
            try:
                messages = await consumer.receive(RECEIVED)
            except RucolaError as error:
                if not self.member.ending:
                    self.desk.caught.append(repr(error))
                    await self.face.sleep(AGAIN_S)
                continue
            for message in messages:
                try:
                    await self.body(message)
                except BaseException as error:  # noqa: BLE001 - the application's own, or raised again
                    self.desk.catch(error)
                    continue
                await self._acknowledge(consumer, message)

    async def _acknowledge(self, consumer: Any, message: MessageExt) -> None:
        """Acknowledges a message; a program may repeat the failed call."""
        try:
            await consumer.ack(message)
        except RucolaError as error:
            self.desk.caught.append(repr(error))

    async def _pulls(self, consumer: Any) -> None:
        while not self.member.ending:
            for queue in self.desk.world.message_queues():
                if not self.member.ending and self.member.claims.setdefault(queue, self) is self:
                    try:
                        await self._pull(consumer, queue)
                    finally:
                        self.member.claims.pop(queue)
            await self.face.sleep(self.desk.body_s)

    async def _pull(self, consumer: Any, queue: MessageQueue) -> None:
        try:
            if queue not in self.member.positions:
                self.member.positions[queue] = await consumer.committed(queue) or 0
            found = await consumer.pull(queue, self.member.positions[queue], RECEIVED, suspend_timeout_ms=WAIT_MS)
            for message in found.messages:
                try:
                    await self.body(message)
                except BaseException as error:  # noqa: BLE001 - the application's own, or raised again
                    self.desk.catch(error)
                    return
                self.member.positions[queue] = message.queue_offset + 1
            if found.next_begin_offset != self.member.positions[queue] or found.messages:
                self.member.positions[queue] = found.next_begin_offset
                await consumer.commit(queue, found.next_begin_offset)
        except (TimeoutError, RucolaError) as error:
            if not self.member.ending:
                self.desk.caught.append(repr(error))
                await self.face.sleep(AGAIN_S)
