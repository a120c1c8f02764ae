"""A lite consumer at brokers that play lite topics: one batch in flight, leases, offsets, subscriptions.

Each broker is a ``ScriptedBroker``, so a test may put a failure before any request. Times pass on the loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.unit.client.conftest import Answer, ScriptedBroker
from tests.unit.client.consuming import HOST

from rucola.client.consumer_config import LiteConsumerConfig
from rucola.client.lite_consumer import LiteConsumer
from rucola.common.message import StoreMessage
from rucola.formats.message import encode_message
from rucola.formats.properties import encode_properties
from rucola.protocol.bodies.lite import LiteSubscriptionCtlRequestBody, LiteSubscriptionDTO
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.remoting.server import Channel
from rucola.testing.event_loop import advance, settle

POP, CTL, NOTIFY, ACK, CHANGE, OFFSET, RENEW_S = 200070, 200071, 200073, 200051, 200053, 14, 30.0
ADD, REMOVE, ALL, NONE = "PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE"
PARENT, GROUP = "agents", "gateway"
INVISIBLE_MS = 20_000
MIN = ("POLICY", 1)


def lite_record(lite_topic: str, lite_offset: int, body: bytes, queue_offset: int, **properties: str) -> bytes:
    own = {
        "UNIQ_KEY": f"{lite_topic}-{lite_offset}",
        "__LITE_TOPIC": lite_topic,
        "INNER_MULTI_DISPATCH": f"%LMQ%${PARENT}${lite_topic}",
        "INNER_MULTI_QUEUE_OFFSET": str(lite_offset),
        **properties,
    }
    message = StoreMessage(PARENT.encode(), 1, body, encode_properties(own), 1_699_999_999_000, HOST)
    return encode_message(message, 1000 + queue_offset, queue_offset, 1_700_000_000_000, HOST)


@dataclass
class Batch:
    """Messages in flight: when each is visible again; acknowledged ones are left out."""

    pop_time: int
    offsets: list[int]
    visible: dict[int, float]


@dataclass
class Lite:
    """One lite topic."""

    records: list[bytes] = field(default_factory=list)
    committed: int | None = None
    batch: Batch | None = None
    counts: dict[int, int] = field(default_factory=dict)


class LiteBroker(ScriptedBroker):
    """Plays lite topics of one parent for one group.

    Attributes:
        lite: lite topics by name.
        subscriptions: lite topics of each client.
        changes: action, sorted names and option of each change of a subscription.
        log: acknowledgements and changes of invisible times, in order.
        exclusive: whether a lite topic has one client.
        keep_offsets: whether the option for the minimum is ignored, so that a group never goes back.
        wildcard: whether clients get all lite topics.
        held: pops without an answer.
        pops: the fields of each pop.
    """

    def __init__(self, name: str = "broker-a", topics: dict[str, int] | None = None) -> None:
        super().__init__(name, topics if topics is not None else {PARENT: 4, f"%RETRY%{GROUP}": 1})
        self.lite: dict[str, Lite] = {}
        self.subscriptions: dict[str, set[str]] = {}
        self.changes: list[tuple[str, list[str], tuple[str, int] | None]] = []
        self.log: list[tuple[Any, ...]] = []
        self.exclusive = False
        self.wildcard = self.keep_offsets = False
        self.held: list[tuple[RemotingCommand, Channel]] = []
        self.pops: list[dict[str, str]] = []
        self._clients: dict[str, Channel] = {}
        self._channel: Channel | None = None
        self._pop_time = 1_700
        self._stored = 0

    def send(self, lite_topic: str, *bodies: bytes) -> None:
        for body in bodies:
            lite = self.lite.setdefault(lite_topic, Lite())
            lite.records.append(lite_record(lite_topic, len(lite.records), body, self._stored))
            self._stored += 1
        self.wake()

    def wake(self) -> None:
        for command, channel in list(self.held):
            answer = self._popped(command)
            if answer is not None:
                self.held.remove((command, channel))
                channel.send(answer.encode())

    def evict(self, client_id: str, lite_topic: str) -> None:
        self.subscriptions[client_id].discard(lite_topic)
        fields = {"liteTopic": lite_topic, "consumerGroup": GROUP, "clientId": client_id}
        command = RemotingCommand(NOTIFY, ext_fields=fields, flag=2)
        self._clients[client_id].send(command.encode())

    def end_pops(self) -> None:
        """Answers the pops that are held, as after their time."""
        for held in list(self.held):
            self._end_pop(held)

    async def until(self, reached: Callable[[], bool]) -> None:
        for _ in range(20_000):
            if reached():
                break
            await asyncio.sleep(0)
        assert reached()
        await settle()

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        self._channel = channel
        super().frames_received(channel, batch)

    def channel_closed(self, channel: Channel) -> None:
        self.held = [one for one in self.held if one[1] is not channel]
        super().channel_closed(channel)

    def _ordinary(self, command: RemotingCommand) -> Answer:
        if command.code == POP:
            return self._pop(command)
        if command.code == CTL:
            return self._ctl(command)
        if command.code == OFFSET:
            topic = command.ext_fields["topic"].rpartition("$")[2]
            committed = self.lite[topic].committed if topic in self.lite else None
            return command.answer(22 if committed is None else 0, ext_fields={"offset": str(committed or 0)})
        if command.code in (ACK, CHANGE):
            return self._settle(command)
        return super()._ordinary(command)

    def _ctl(self, command: RemotingCommand) -> RemotingCommand:
        for change in LiteSubscriptionCtlRequestBody.decode(command.body).subscription_set:
            names = sorted(change.lite_topic_set or ())
            option = change.offset_option
            self.changes.append((str(change.action), names, (str(option.type), option.value) if option else None))
            self._carry_out(change, names)
        self.wake()
        return command.answer(0)

    def _carry_out(self, change: LiteSubscriptionDTO, names: list[str]) -> None:
        assert self._channel is not None
        self._clients[change.client_id] = self._channel
        mine = self.subscriptions.setdefault(change.client_id, set())
        if change.action == ALL:
            mine.clear()
        if change.action == NONE:
            del self.subscriptions[change.client_id]
        elif change.action == REMOVE:
            mine.difference_update(names)
        else:
            mine.update(names)
        if change.action == ADD:
            for name in names:
                if self.exclusive:
                    for other in [one for one, had in self.subscriptions.items() if one != change.client_id]:
                        if name in self.subscriptions[other]:
                            self.evict(other, name)
                option = change.offset_option
                if option is not None and option.type == "POLICY" and option.value == 1 and not self.keep_offsets:
                    lite = self.lite.setdefault(name, Lite())
                    lite.committed, lite.batch = 0, None

    def _pop(self, command: RemotingCommand) -> Answer:
        self.pops.append(dict(command.ext_fields))
        answer = self._popped(command)
        if answer is None and command.ext_fields["pollTime"] == "0":
            return command.answer(210, "NO_MESSAGE_IN_QUEUE")
        if answer is None:
            assert self._channel is not None
            held = command, self._channel
            self.held.append(held)
            poll_s = int(command.ext_fields["pollTime"]) / 1000
            asyncio.get_running_loop().call_later(poll_s, self._end_pop, held)
        return answer

    def _end_pop(self, held: tuple[RemotingCommand, Channel]) -> None:
        if held in self.held:
            self.held.remove(held)
            held[1].send(held[0].answer(210, "NO_MESSAGE_IN_QUEUE").encode())

    def _popped(self, command: RemotingCommand) -> Answer:
        fields = command.ext_fields
        now, invisible_ms = asyncio.get_running_loop().time(), int(fields["invisibleTime"])
        mine = self.subscriptions.get(fields["clientId"], set())
        self._pop_time += 1
        body, counts, room = b"", [], int(fields["maxMsgNum"])
        for name, lite in self.lite.items():
            if name not in mine and not self.wildcard:
                continue
            if lite.batch is not None and any(at > now for at in lite.batch.visible.values()):
                continue
            offsets = list(range(lite.committed or 0, len(lite.records)))[: room - len(counts)]
            if not offsets:
                continue
            visible = dict.fromkeys(offsets, now + invisible_ms / 1000)
            lite.batch = Batch(self._pop_time, offsets, visible)
            asyncio.get_running_loop().call_at(now + invisible_ms / 1000 + 0.01, self.wake)
            for offset in offsets:
                counts.append(lite.counts.get(offset, 0))
                lite.counts[offset] = counts[-1] + 1
                body += lite.records[offset]
        if not body:
            return None
        told = {
            "popTime": str(self._pop_time),
            "invisibleTime": fields["invisibleTime"],
            "reviveQid": "999",
            "orderCountInfo": ";".join(map(str, counts)),
        }
        return command.answer(0, "FOUND", ext_fields=told, body=body)

    def _settle(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.ext_fields
        lite, offset = self.lite[fields["liteTopic"]], int(fields["offset"])
        pop_time = int(fields["extraInfo"].split(" ")[1])
        assert (fields["queueId"], fields["topic"], fields["consumerGroup"]) == ("0", PARENT, GROUP)
        assert fields["extraInfo"].split(" ")[3:] == ["999", "0", self.name, "0", fields["offset"]]
        if command.code == ACK:
            self.log.append(("ack", fields["liteTopic"], offset))
            self._acked(lite, offset, pop_time)
            return command.answer(0)
        suspend, invisible_ms = fields["suspend"] == "true", int(fields["invisibleTime"])
        self.log.append(("suspend" if suspend else "hide", fields["liteTopic"], offset, invisible_ms))
        batch, loop = lite.batch, asyncio.get_running_loop()
        if batch is not None and batch.pop_time == pop_time:
            at = loop.time() + invisible_ms / 1000
            if suspend:
                batch.visible = dict.fromkeys(batch.visible, at)
                lite.counts = {one: max(count - 1, 0) for one, count in lite.counts.items()}
            elif offset in batch.visible:
                batch.visible[offset] = at
            loop.call_at(at + 0.01, self.wake)
        told = {"popTime": str(pop_time), "invisibleTime": fields["invisibleTime"], "reviveQid": "999"}
        return command.answer(0, ext_fields=told)

    def _acked(self, lite: Lite, offset: int, pop_time: int) -> None:
        batch = lite.batch
        if batch is None or batch.pop_time != pop_time:
            return
        batch.visible.pop(offset, None)
        lite.committed = min(batch.visible, default=batch.offsets[-1] + 1)
        if not batch.visible:
            lite.batch = None
            asyncio.get_running_loop().call_soon(self.wake)


class Seen:
    """A listener that notes what it gets. ``outcomes`` has results, or exceptions to raise, by body."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.attempts: list[int] = []
        self.outcomes: dict[bytes, list[Any]] = {}
        self.gates: dict[bytes, asyncio.Event] = {}

    async def __call__(self, message: Any) -> Any:
        self.messages.append(message)
        self.attempts.append(message.reconsume_times)
        if message.body in self.gates:
            await self.gates[message.body].wait()
        outcomes = self.outcomes.get(message.body)
        outcome = outcomes.pop(0) if outcomes else None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    def hold(self, body: bytes) -> asyncio.Event:
        return self.gates.setdefault(body, asyncio.Event())


def acked(broker: LiteBroker) -> list[tuple[str, int]]:
    return [one[1:] for one in broker.log if one[0] == "ack"]


def refused(code: int, remark: str = "refused") -> Callable[[RemotingCommand], RemotingCommand]:
    return lambda command: command.answer(code, remark)


def lost(command: RemotingCommand) -> None:
    """Never answers."""


def lite_consumer(broker: ScriptedBroker, **options: Any) -> LiteConsumer:
    lite_topics = options.pop("lite_topics", ())
    options = {"invisible_duration_ms": INVISIBLE_MS, **options}
    return LiteConsumer(GROUP, broker.address, PARENT, LiteConsumerConfig(**options), lite_topics=lite_topics)


@asynccontextmanager
async def liting(
    listener: Callable[[Any], Any] | None = None, **options: Any
) -> AsyncIterator[tuple[LiteConsumer, LiteBroker]]:
    """A started consumer and its broker."""
    async with LiteBroker() as broker:
        consumer = lite_consumer(broker, **options)
        if listener is not None:
            consumer.register_message_listener(listener)
        async with consumer:
            yield consumer, broker


async def pass_by(seconds: float, turns: int = 60) -> None:
    """Moves the loop's time, and lets everything happen that is due meanwhile. No step is so long that an answer of the
    broker and the end of the client's patience are due together.
    """
    while seconds > 0:
        advance(min(seconds, 2.0))
        await settle(turns)
        seconds -= 2.0
