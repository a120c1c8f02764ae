"""A name server, two brokers, and doors in front of them, all on the test's event loop; and clients of the doors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from rucola.broker import Broker, BrokerConfig
from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.proxy import messages
from rucola.proxy.brokers import ServerRequest
from rucola.proxy.cluster import ClusterBrokers
from rucola.proxy.door import DoorConfig, GrpcDoor
from rucola.proxy.schema import V2
from rucola.proxy.timestamps import set_duration, set_milliseconds
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.runtime.clock import SystemClock
from rucola.runtime.supervision import Supervisor
from rucola.store.config import MessageStoreConfig

QUEUES = 4
LIMIT_S = 40.0


class Door:
    """One door.

    Attributes:
        brokers: its brokers.
    """

    brokers: ClusterBrokers

    def __init__(self, cluster: TwoBrokers, options: ClientOptions | None = None) -> None:
        def make(asked: ServerRequest) -> ClusterBrokers:
            self.brokers = ClusterBrokers(cluster.namesrv.address, cluster.monotonic, asked, options)
            return self.brokers

        self.door = GrpcDoor(DoorConfig("127.0.0.1", 0), make, SystemClock(), Supervisor())

    async def stop(self) -> None:
        await self.door.stop()
        await self.brokers.close()


class TwoBrokers:
    """The brokers ``a`` and ``b``; use it as ``async with``."""

    def __init__(self, path: Path, **broker: Any) -> None:
        self._path, self._options = path, broker
        self._later_s = 0.0
        self.brokers: dict[str, Broker] = {}
        self._doors: list[Door] = []
        self._clients: list[Client] = []

    def monotonic(self) -> float:
        """The clock of the doors' look-ups."""
        return time.monotonic() + self._later_s

    def later(self, seconds: float) -> None:
        """Moves this clock."""
        self._later_s += seconds

    async def __aenter__(self) -> Self:
        self.remoting = RemotingClient()
        self.api = AdminApi(self.remoting)
        self.namesrv = await self.name_server(0)
        await self.start("a")
        await self.start("b")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for client in self._clients:
            await client.channel.close()
        for door in self._doors:
            await door.stop()
        await self.remoting.close()
        for name in list(self.brokers):
            await self.stop(name)
        await self.namesrv.shutdown()

    async def name_server(self, port: int) -> NameServer:
        server = NameServer(NamesrvConfig(listen_port=port))
        await server.start()
        return server

    async def start(self, name: str, port: int = 0) -> None:
        config = BrokerConfig(namesrv_addr=self.namesrv.address, broker_name=name, listen_port=port, **self._options)
        store = MessageStoreConfig(
            store_path_root_dir=str(self._path / name),
            mapped_file_size_commit_log=4 * 1024 * 1024,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=5_000,
            max_index_num=20_000,
        )
        broker = Broker(config, store)
        await broker.start()
        self.brokers[name] = broker

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).shutdown()

    async def create(self, topic: str, kind: str = "NORMAL", names: Sequence[str] = ("a", "b")) -> None:
        for name in names:
            config = TopicConfig(topic, QUEUES, QUEUES)
            await self.api.change_topic(self.brokers[name].address, config, f"+message.type={kind}")

    async def join(self, group: str, topic: str, in_order: bool = False) -> None:
        """Creates a group whose consumption of a topic begins at its first message."""
        for broker in self.brokers.values():
            await self.api.change_group(
                broker.address, SubscriptionGroupConfig(group, consume_message_orderly=in_order)
            )
            for queue_id in range(QUEUES if topic in broker.topics.table else 0):
                queue = MessageQueue(topic, broker.config.broker_name, queue_id)
                await self.api.update_consumer_offset(broker.address, group, queue, 0)

    def waiting_polls(self, name: str) -> int:
        """Number of polls that wait at a broker."""
        return len(self.brokers[name].services.pops.get().hold)

    async def stored(self, topic: str) -> dict[str, list[int]]:
        """Number of messages in each queue of each broker."""
        return {
            name: [
                await self.api.max_offset(broker.address, MessageQueue(topic, name, queue_id))
                for queue_id in range(QUEUES)
            ]
            for name, broker in self.brokers.items()
        }

    async def door(self, options: ClientOptions | None = None) -> Door:
        door = Door(self, options)
        self._doors.append(door)
        await door.door.start()
        return door

    async def client(self, door: Door | None = None, name: str = "me") -> Client:
        client = Client((door or await self.door()).door.address, name)
        self._clients.append(client)
        return client


class Client:
    """A client of RocketMQ 5, message by message."""

    def __init__(self, address: str, name: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.name = name
        host, _, port = address.rpartition(":")
        self.endpoints = messages.Endpoints(
            scheme=messages.IPv4, addresses=[messages.Address(host=host, port=int(port))]
        )

    async def call(self, name: str, request: Message, timeout_s: float = 20.0) -> Any:
        """Calls a method with one response."""
        method = self.channel.unary_unary(
            V2.path(name).decode(),
            lambda message: message.SerializeToString(),
            V2.message_class(f"{name}Response").FromString,
        )
        return await method(request, metadata=[("x-mq-client-id", self.name)], timeout=timeout_s)

    async def send(self, topic: str, body: bytes = b"body", **system: Any) -> Any:
        """Sends a message; ``system`` are system properties, ``delay_ms`` and ``kind``."""
        message = messages.Message(topic=messages.Resource(name=topic), body=body)
        message.user_properties["k"] = "v"
        delay_ms = system.pop("delay_ms", None)
        properties = message.system_properties
        properties.message_id = system.pop("message_id", f"{time.monotonic_ns():032X}")
        properties.message_type = system.pop("kind", messages.NORMAL)
        set_milliseconds(properties.born_timestamp, time.time_ns() // 1_000_000)
        for key, value in system.items():
            setattr(properties, key, value)
        if delay_ms is not None:
            set_milliseconds(properties.delivery_timestamp, time.time_ns() // 1_000_000 + delay_ms)
        return await self.call("SendMessage", messages.SendMessageRequest(messages=[message]))

    def receive(
        self, topic: str, group: str, broker: str, batch: int = 32, poll_s: float = 5.0
    ) -> grpc.aio.UnaryStreamCall:
        """Begins a poll."""
        request = messages.ReceiveMessageRequest(
            group=messages.Resource(name=group),
            message_queue=messages.MessageQueue(
                topic=messages.Resource(name=topic), id=-1, broker=messages.Broker(name=broker)
            ),
            batch_size=batch,
        )
        request.filter_expression.expression = "*"
        set_duration(request.invisible_duration, 30_000)
        set_duration(request.long_polling_timeout, poll_s * 1000)
        method = self.channel.unary_stream(
            V2.path("ReceiveMessage").decode(),
            lambda message: message.SerializeToString(),
            messages.ReceiveMessageResponse.FromString,
        )
        return method(request, metadata=[("x-mq-client-id", self.name)], timeout=poll_s + 5)

    async def received(self, *args: Any, **options: Any) -> list[Any]:
        """The messages of a poll."""
        answers = [answer async for answer in self.receive(*args, **options)]
        status = answers[0].status
        assert status.code in (messages.OK, messages.MESSAGE_NOT_FOUND), status
        return [answer.message for answer in answers if answer.HasField("message")]

    async def ack(self, topic: str, group: str, message: Any) -> int:
        """Acknowledges a message; returns the code."""
        entry = messages.AckMessageEntry(
            message_id=message.system_properties.message_id,
            receipt_handle=message.system_properties.receipt_handle,
        )
        resource = messages.Resource
        request = messages.AckMessageRequest(topic=resource(name=topic), group=resource(name=group), entries=[entry])
        code: int = (await self.call("AckMessage", request)).status.code
        return code

    async def end(self, topic: str, transaction_id: str, message_id: str, resolution: int) -> int:
        """Ends a transaction; returns the code."""
        request = messages.EndTransactionRequest(
            topic=messages.Resource(name=topic),
            transaction_id=transaction_id,
            message_id=message_id,
            resolution=resolution,
        )
        code: int = (await self.call("EndTransaction", request)).status.code
        return code

    async def route(self, topic: str) -> Any:
        """Asks for the route of a topic."""
        request = messages.QueryRouteRequest(topic=messages.Resource(name=topic), endpoints=self.endpoints)
        return await self.call("QueryRoute", request)

    @asynccontextmanager
    async def telemetry(self, settings: Message) -> AsyncIterator[grpc.aio.StreamStreamCall]:
        """A telemetry stream whose settings the door has taken."""
        stream = self.channel.stream_stream(
            V2.path("Telemetry").decode(),
            lambda message: message.SerializeToString(),
            messages.TelemetryCommand.FromString,
        )(metadata=[("x-mq-client-id", self.name)])
        await stream.write(messages.TelemetryCommand(settings=settings))
        answer = await stream.read()
        assert answer.WhichOneof("command") == "settings"
        try:
            yield stream
        finally:
            stream.cancel()


def publishing(*topics: str) -> Message:
    """Settings of a producer."""
    settings = messages.Settings(client_type=messages.PRODUCER)
    settings.publishing.SetInParent()
    for topic in topics:
        settings.publishing.topics.add(name=topic)
    return settings


def subscribing(group: str, topic: str) -> Message:
    """Settings of a push consumer."""
    settings = messages.Settings(client_type=messages.PUSH_CONSUMER)
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = topic
    entry.expression.expression = "*"
    return settings


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Waits until ``check()`` gives True."""
    async with asyncio.timeout(LIMIT_S):
        while not await check():
            await asyncio.sleep(0.05)
