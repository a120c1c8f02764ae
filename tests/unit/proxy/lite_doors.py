"""A door of lite topics whose brokers follow a script, so that tests see what it asks them and choose what they say."""

from __future__ import annotations

import asyncio
import base64
import json
import lzma
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.proxy.doors import DoorClient, LoopClock

from rucola.common.columns import ROW_WIDTH
from rucola.common.kernel_columns import FRAME_PROPERTIES_LEN, FRAME_PROPERTIES_POS, FRAME_QUEUE_ID
from rucola.common.lite_door_config import LiteDoorConfig
from rucola.common.message import StoreMessage
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.errors import RemotingClosedError
from rucola.formats.message import encode_message
from rucola.protocol.bodies.lite import LiteSubscriptionCtlRequestBody, LiteSubscriptionDTO
from rucola.protocol.bodies.route import QueueData
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameReader
from rucola.protocol.headers.lite import PopLiteMessageResponseHeader
from rucola.protocol.headers.pop import ChangeInvisibleTimeResponseHeader
from rucola.proxy import messages
from rucola.proxy.access import DoorAccess
from rucola.proxy.brokers import ServerRequest, TopicView
from rucola.proxy.door import DoorConfig, GrpcDoor
from rucola.proxy.receipt import ReceiptHandle
from rucola.proxy.send_rows import SendRows
from rucola.proxy.sessions import ClientSession
from rucola.remoting.consumer_api import ConsumerApi
from rucola.remoting.response_future import ResponseFuture, Waiter
from rucola.runtime.supervision import Supervisor

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "lite"
PARENT, GROUP = "agents", "gateway"
QUEUES = 4
BORN_MS = 1_700_000_000_000


class ScriptedBroker:
    """One broker.

    Attributes:
        asked: what it was asked.
        codes: answers other than SUCCESS, by request code.
        pops: answers to pops; without one, a pop waits.
        waiting: what completes the pops that wait.
        is_gone: whether it cannot be reached.
    """

    def __init__(self, name: str, now_ms: Callable[[], int]) -> None:
        self.name, self.now_ms = name, now_ms
        self.asked: list[RemotingCommand] = []
        self.codes: dict[int, tuple[int, str]] = {}
        self.pops: list[tuple[PopLiteMessageResponseHeader, bytes]] = []
        self.waiting: list[asyncio.Future[None]] = []
        self.is_gone = False

    async def answer(self, command: RemotingCommand) -> RemotingCommand:
        """Does what the script says."""
        if self.is_gone:
            raise RemotingClosedError(self.name)
        self.asked.append(command)
        if command.code in self.codes:
            return command.answer(*self.codes[command.code])
        if command.code == RequestCode.POP_LITE_MESSAGE:
            return await self._pop(command)
        if command.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            asked_ms = int(command.ext_fields["invisibleTime"])
            header = ChangeInvisibleTimeResponseHeader(self.now_ms(), asked_ms, 999)
            return command.answer(ResponseCode.SUCCESS, ext_fields=header.to_ext_fields())
        return command.answer(ResponseCode.SUCCESS)

    async def _pop(self, command: RemotingCommand) -> RemotingCommand:
        if not self.pops:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(waiting)
            await waiting
            if not self.pops:
                return command.answer(ResponseCode.POLLING_TIMEOUT)
        header, records = self.pops.pop(0)
        return command.answer(ResponseCode.SUCCESS, "FOUND", header.to_ext_fields(), records)

    def of(self, code: RequestCode) -> list[dict[str, str]]:
        """The fields of the requests with a code, which are forgotten."""
        found = [command.ext_fields for command in self.asked if command.code == code]
        self.asked = [command for command in self.asked if command.code != code]
        return found

    def changes(self) -> list[LiteSubscriptionDTO]:
        """The changes of subscriptions, which are forgotten."""
        code = RequestCode.LITE_SUBSCRIPTION_CTL
        bodies = [command.body for command in self.asked if command.code == code]
        self.asked = [command for command in self.asked if command.code != code]
        return [entry for body in bodies for entry in LiteSubscriptionCtlRequestBody.decode(body).subscription_set]

    def gives(self, *records: bytes, counts: str | None = None, hidden_ms: int = 60_000) -> None:
        """Answers the next pop, or one that waits, with records."""
        info = ";".join("0" * len(records)) if counts is None else counts
        header = PopLiteMessageResponseHeader(self.now_ms(), hidden_ms, 999, order_count_info=info)
        self.pops.append((header, b"".join(records)))
        for waiting in self.waiting[:1]:
            self.waiting.remove(waiting)
            waiting.set_result(None)


class ScriptedLink:
    """See ``DoorLink``."""

    def __init__(self, broker: ScriptedBroker, session: ClientSession) -> None:
        self.broker_name = self.address = broker.name
        self._broker, self._session = broker, session
        self.api = self.own = ConsumerApi(self)
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent: list[tuple[int, bytes]] = []

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        return await self._broker.answer(command)

    def request(self, command: RemotingCommand, waiter: Waiter, timeout_ms: int) -> int:
        async def ask() -> None:
            try:
                frame = (await self._broker.answer(command)).encode()
            except RemotingClosedError as error:
                waiter.failed(error)
                return
            reader, batch = FrameReader(), None
            while frame:
                space = reader.buffer()
                count = min(len(space), len(frame))
                space[:count] = frame[:count]
                batch, frame = reader.received(count), frame[count:]
            assert batch is not None
            waiter.answered(batch, 0)

        task = asyncio.get_running_loop().create_task(ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return 1

    def send(self, rows: SendRows, waiter: Waiter, timeout_ms: int) -> None:
        base = (rows.count - 1) * ROW_WIDTH
        start = rows.table[base + FRAME_PROPERTIES_POS]
        properties = bytes(rows.view[start : start + rows.table[base + FRAME_PROPERTIES_LEN]])
        queue_id = rows.table[base + FRAME_QUEUE_ID]
        rows.clear()
        command = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2, ext_fields={"e": str(queue_id), "i": properties.decode()}
        )

        async def ask() -> None:
            answer = await self._broker.answer(command)
            answer.ext_fields |= {
                "msgId": "7F00000100002A9F0000000000000000",
                "queueId": str(queue_id),
                "queueOffset": "7",
            }
            assert isinstance(waiter, ResponseFuture)
            waiter.future.set_result(answer)

        task = asyncio.get_running_loop().create_task(ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def acknowledge(self, topic: str, group: str, handle: ReceiptHandle) -> bool:
        assert not handle.lite_topic, "only a request says the lite topic"
        return False

    def withdraw(self, opaque: int) -> bool:
        return False

    def close(self) -> None:
        pass


class ScriptedBrokers:
    """See ``Brokers``."""

    def __init__(self, names: Sequence[str], now_ms: Callable[[], int]) -> None:
        self.all = {name: ScriptedBroker(name, now_ms) for name in names}
        self.topics: dict[str, TopicView] = {}
        self.groups: dict[str, SubscriptionGroupConfig] = {}
        self.topic_is(PARENT, "LITE")
        self.lite_group(GROUP)

    def topic_is(self, name: str, kind: str = "") -> None:
        queues = [QueueData(broker, QUEUES, QUEUES, 6) for broker in self.all]
        self.topics[name] = TopicView(name, {"message.type": kind} if kind else {}, queues)

    def lite_group(
        self, name: str, parent: str = PARENT, attributes: dict[str, str] | None = None, **more: Any
    ) -> None:
        found = {"lite.bind.topic": parent, **(attributes or {})}
        self.groups[name] = SubscriptionGroupConfig(name, attributes=found, **more)

    def known_topic(self, name: bytes) -> TopicView | None:
        return self.topics.get(name.decode())

    async def topic(self, name: str) -> TopicView | None:
        return self.topics.get(name)

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        return self.groups.get(name)

    async def broker_names(self, topics: Iterable[str]) -> Sequence[str]:
        return list(
            dict.fromkeys(
                data.broker_name for name in topics if name in self.topics for data in self.topics[name].queues
            )
        )

    def rows(self, session: ClientSession, request_bytes: int) -> SendRows:
        return SendRows()

    async def link(self, session: ClientSession, broker_name: str) -> ScriptedLink:
        link = self.open_link(session, broker_name)
        assert link is not None
        return link

    def open_link(self, session: ClientSession, broker_name: str) -> ScriptedLink | None:
        link = session.links.get(broker_name)
        if link is None:
            link = session.links[broker_name] = ScriptedLink(self.all[broker_name], session)
        assert isinstance(link, ScriptedLink)
        return link


class LiteClient(DoorClient):
    """A client of lite topics."""

    async def joins(self, group: str = GROUP, topic: str = PARENT, kind: int = messages.LITE_PUSH_CONSUMER) -> Any:
        """Becomes a consumer; returns the stream, and the settings that it is told."""
        stream = self.consumer(group, topic, kind=kind)
        return stream, (await stream.next()).settings

    def consumer(self, group: str, *topics: str, kind: int = messages.LITE_PUSH_CONSUMER) -> Any:
        """Opens the stream of a consumer."""
        entries = [
            messages.SubscriptionEntry(
                topic=messages.Resource(name=topic), expression=messages.FilterExpression(type=1, expression="*")
            )
            for topic in topics
        ]
        subscription = messages.Subscription(group=messages.Resource(name=group), subscriptions=entries)
        return self.settings(client_type=kind, subscription=subscription)

    async def sync(self, action: str | int, *names: str, group: str = GROUP, topic: str = PARENT, **fields: Any) -> int:
        """Changes its subscription; returns the code."""
        request = messages.SyncLiteSubscriptionRequest(
            action=action,
            topic=messages.Resource(name=topic),
            group=messages.Resource(name=group),
            lite_topic_set=names,
            **fields,
        )
        code: int = (await self.call("SyncLiteSubscription", request)).status.code
        return code

    async def gets(self, group: str = GROUP, topic: str = PARENT, **fields: Any) -> list[Any]:
        """The messages of one poll."""
        return await self.received(group, topic, **{"auto_renew": True, **fields})

    async def changes(self, one: Any, seconds: int = 1, lite_topic: str = "", suspend: bool | None = None) -> Any:
        """Hides a message for another time; returns the answer."""
        request = messages.ChangeInvisibleDurationRequest(
            group=messages.Resource(name=GROUP),
            topic=messages.Resource(name=PARENT),
            receipt_handle=one.system_properties.receipt_handle,
            message_id=one.system_properties.message_id,
            invisible_duration={"seconds": seconds},
            lite_topic=lite_topic,
        )
        if suspend is not None:
            request.suspend = suspend
        return await self.call("ChangeInvisibleDuration", request)


class LiteDoor:
    """A running door with its brokers.

    Attributes:
        asks: has a broker ask the client of a session.
    """

    def __init__(self, names: Sequence[str], config: LiteDoorConfig, access: DoorAccess) -> None:
        clock = LoopClock()
        self.brokers = ScriptedBrokers(names, clock.wall_ms)

        def make(asked: ServerRequest) -> ScriptedBrokers:
            self._asked = asked
            return self.brokers

        self.door = GrpcDoor(DoorConfig("127.0.0.1", 0, lite=config), make, clock, Supervisor(), access)  # type: ignore[arg-type]
        self.clients: list[LiteClient] = []

    @property
    def broker(self) -> ScriptedBroker:
        return next(iter(self.brokers.all.values()))

    async def client(self, client_id: str = "c1", **options: Any) -> LiteClient:
        client = LiteClient(client_id, **options)
        await client.connect(self.door.address)
        self.clients.append(client)
        return client

    def session(self, client_id: str = "c1") -> ClientSession:
        return next(session for session in self.door.sessions if session.client_id == client_id)

    def asks(self, session: ClientSession, command: RemotingCommand) -> Any:
        return self._asked(session, self.broker.name, command)


@asynccontextmanager
async def lite_door(
    *names: str, config: LiteDoorConfig | None = None, access: DoorAccess | None = None
) -> AsyncIterator[LiteDoor]:
    """A door with scripted brokers; one called ``broker-a`` by default."""
    door = LiteDoor(names or ("broker-a",), config or LiteDoorConfig(), access or DoorAccess())
    await door.door.start()
    try:
        yield door
    finally:
        for client in door.clients:
            client.close()
        for broker in door.brokers.all.values():
            for waiting in broker.waiting:
                waiting.set_result(None)
        await door.door.stop()


def record(lite_topic: str, offset: int, body: bytes = b"body", parent: str = PARENT, **properties: str) -> bytes:
    """A stored message of a lite topic, as brokers keep it; its place in the log is 1000 + its offset."""
    own = {
        "UNIQ_KEY": f"id-{lite_topic}-{offset}",
        "__LITE_TOPIC": lite_topic,
        "INNER_MULTI_DISPATCH": f"%LMQ%${parent}${lite_topic}",
        "INNER_MULTI_QUEUE_OFFSET": str(offset),
    }
    text = "".join(f"{key}\1{value}\2" for key, value in (own | properties).items() if value)
    message = StoreMessage(parent.encode(), 3, body, text.encode(), BORN_MS, bytes(8))
    return encode_message(message, 1000 + offset, 50 + offset, BORN_MS, bytes(8))


def recorded(kind: str, scenario: str, *words: str) -> Iterator[dict[str, Any]]:
    """The records of a scenario of the official servers that contain one of the words."""
    with lzma.open(GOLDEN / kind / f"{scenario}.jsonl.xz", "rt") as file:
        next(file)
        for line in file:
            if any(word in line for word in words):
                yield json.loads(line)


def frame_of(found: dict[str, Any]) -> RemotingCommand:
    """The command in a recorded frame."""
    frame = base64.b64decode(found["frame"])
    head = int.from_bytes(frame[5:8], "big")
    return RemotingCommand(found["code"], ext_fields=found["header"].get("extFields") or {}, body=frame[8 + head :])
