"""A broker with a gRPC door, and a client whose frames are made by the package ``h2``."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
from tests.brokers import Cluster

from rucola.broker.broker import Broker
from rucola.common.message import StoreMessage
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.formats.message import decode_messages
from rucola.proxy import messages
from rucola.proxy.access import DoorAccess
from rucola.proxy.door import DoorConfig, GrpcDoor
from rucola.proxy.local import LocalBrokers
from rucola.proxy.schema import V2
from rucola.store.results import PutMessageStatus

METHODS = {rpc.name: rpc for rpc in V2.rpcs}


class Call:
    """One call.

    Attributes:
        status: the code of gRPC; None as long as the call is open. ``"reset"`` if the server has reset it.
        text: the text of the status.
    """

    def __init__(self, client: DoorClient, stream: int, response_class: Any) -> None:
        self._client, self.stream, self._class = client, stream, response_class
        self._data = bytearray()
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self.status: int | str | None = None
        self.text = ""

    def data(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 5 and len(self._data) >= 5 + (size := int.from_bytes(self._data[1:5], "big")):
            self._arrived.put_nowait(self._class.FromString(bytes(self._data[5 : 5 + size])))
            del self._data[: 5 + size]

    def ended(self, status: int | str, text: str = "") -> None:
        self.status, self.text = status, text
        self._arrived.put_nowait(None)

    async def next(self) -> Any:
        """The next response; None if the call has ended."""
        return await asyncio.wait_for(self._arrived.get(), 20)

    @property
    def is_ended(self) -> bool:
        """Whether the call has ended."""
        return self.status is not None

    def is_empty(self) -> bool:
        """Whether no response waits."""
        return self._arrived.empty()

    async def all(self) -> list[Any]:
        """All responses to the end of the call."""
        found = []
        while (response := await self.next()) is not None:
            found.append(response)
        return found

    def send(self, request: Any, end: bool = False) -> None:
        data = request.SerializeToString()
        self._client.send(self.stream, b"\0" + len(data).to_bytes(4, "big") + data, end)

    def cancel(self) -> None:
        self._client.reset(self.stream)


class DoorClient(asyncio.Protocol):
    """A connection to a door.

    Args:
        client_id: sent with each call.
        secret: access key and secret key that sign each call; None for none.
        opens_windows: whether received data is acknowledged.
    """

    def __init__(
        self, client_id: str = "c1", secret: tuple[str, str] | None = None, opens_windows: bool = True
    ) -> None:
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._calls: dict[int, Call] = {}
        self._opens = opens_windows
        self._unsent: list[tuple[int, bytes, bool]] = []
        self.client_id, self.secret = client_id, secret
        self.lost = asyncio.Event()

    async def connect(self, address: str, own: str = "127.0.0.1") -> DoorClient:
        """Connects, from an address of the loopback interface."""
        host, _, port = address.rpartition(":")
        await asyncio.get_running_loop().create_connection(lambda: self, host, int(port), local_addr=(own, 0))
        return self

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        for call in self._calls.values():
            if call.status is None:
                call.ended("lost")

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            call = self._calls.get(getattr(event, "stream_id", 0) or 0)
            if isinstance(event, h2.events.DataReceived) and call is not None:
                call.data(event.data)
                if self._opens and event.flow_controlled_length:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived) and call is not None:
                fields = dict(event.headers)
                if "grpc-status" in fields:
                    call.ended(int(fields["grpc-status"]), fields.get("grpc-message", ""))
            elif isinstance(event, h2.events.StreamReset) and call is not None and call.status is None:
                call.ended("reset")
        self._send()

    def begin(self, name: str, *requests: Any, end: bool = True, timeout: str = "30S", **fields: str) -> Call:
        """Begins a call of the method ``name``."""
        stream = self._h2.get_next_available_stream_id()
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": V2.path(name).decode(),
            ":authority": "door",
            "content-type": "application/grpc",
            "te": "trailers",
            "grpc-timeout": timeout,
            "x-mq-client-id": self.client_id,
            "x-mq-language": "PYTHON",
            "x-mq-client-version": "5.1.2",
            "x-mq-date-time": "20261130T000000Z",
        }
        if self.secret is not None:
            key, secret = self.secret
            signature = hmac.new(secret.encode(), headers["x-mq-date-time"].encode(), "sha1").hexdigest()
            headers["authorization"] = (
                f"MQv2-HMAC-SHA1 Credential={key}/region/service, SignedHeaders=x-mq-date-time, Signature={signature}"
            )
        headers |= {name.replace("_", "-"): value for name, value in fields.items()}
        self._h2.send_headers(stream, [(name, value) for name, value in headers.items() if value])
        call = self._calls[stream] = Call(self, stream, V2.message_class(METHODS[name].response))
        for number, request in enumerate(requests):
            call.send(request, end and number == len(requests) - 1)
        self._flush()
        return call

    async def call(self, name: str, request: Any, **options: Any) -> Any:
        """Makes a unary call; returns its response."""
        call = self.begin(name, request, **options)
        found = await call.all()
        assert (call.status, len(found)) == (0, 1), (call.status, call.text, found)
        return found[0]

    def send(self, stream: int, data: bytes, end: bool) -> None:
        """Sends data as far as the windows allow, and the rest when they open."""
        self._unsent.append((stream, data, end))
        self._send()

    def _send(self) -> None:
        while self._unsent:
            stream, data, end = self._unsent.pop(0)
            size = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(data))
            if not size and data:
                self._unsent.insert(0, (stream, data, end))
                break
            self._h2.send_data(stream, data[:size], end and size == len(data))
            if size < len(data):
                self._unsent.insert(0, (stream, data[size:], end))
        self._flush()

    def reset(self, stream: int) -> None:
        self._h2.reset_stream(stream, 8)
        self._flush()

    def close(self) -> None:
        self._transport.abort()

    def _flush(self) -> None:
        self._transport.write(self._h2.data_to_send())

    # --- what the tests do often

    def settings(self, **fields: Any) -> Call:
        """Opens a telemetry stream with settings."""
        return self.begin(
            "Telemetry", messages.TelemetryCommand(settings=messages.Settings(**fields)), end=False, timeout=""
        )

    async def produces(self, *topics: str) -> Call:
        """Becomes a producer."""
        topics_ = [messages.Resource(name=topic) for topic in topics]
        call = self.settings(client_type=messages.PRODUCER, publishing=messages.Publishing(topics=topics_))
        assert (await call.next()).status.code == messages.OK
        return call

    async def consumes(self, group: str, *topics: str, client_type: int | None = None) -> Call:
        """Becomes a consumer."""
        entries = [
            messages.SubscriptionEntry(
                topic=messages.Resource(name=topic), expression=messages.FilterExpression(type=1, expression="*")
            )
            for topic in topics
        ]
        subscription = messages.Subscription(group=messages.Resource(name=group), subscriptions=entries)
        kind = messages.SIMPLE_CONSUMER if client_type is None else client_type
        call = self.settings(client_type=kind, subscription=subscription)
        assert (await call.next()).status.code == messages.OK
        return call

    async def sent(self, topic: str, body: bytes = b"body", **system: Any) -> Any:
        """Sends a message; returns the response."""
        return await self.call("SendMessage", send_request(topic, body, **system))

    def receive(self, group: str, topic: str, **fields: Any) -> Call:
        """Begins to receive."""
        options = {"timeout": fields.pop("timeout", "30S"), **fields.pop("headers", {})}
        request = messages.ReceiveMessageRequest(
            group=messages.Resource(name=group),
            message_queue=messages.MessageQueue(
                topic=messages.Resource(name=topic), broker=messages.Broker(name=fields.pop("broker", ""))
            ),
            batch_size=fields.pop("batch_size", 32),
            **fields,
        )
        if not request.auto_renew and not request.HasField("invisible_duration"):
            request.invisible_duration.seconds = 30
        return self.begin("ReceiveMessage", request, **options)

    async def received(self, group: str, topic: str, **fields: Any) -> list[Any]:
        """The messages of one poll."""
        status, *rest = await self.receive(group, topic, **fields).all()
        assert status.WhichOneof("content") == "status" and rest[-1].WhichOneof("content") == "delivery_timestamp"
        found = [response.message for response in rest[:-1]]
        assert status.status.code == (messages.OK if found else messages.MESSAGE_NOT_FOUND), status
        return found

    async def ack(self, group: str, topic: str, *found: Any) -> Any:
        """Acknowledges messages; returns the response."""
        entries = [
            messages.AckMessageEntry(
                message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
            )
            for one in found
        ]
        request = messages.AckMessageRequest(
            group=messages.Resource(name=group), topic=messages.Resource(name=topic), entries=entries
        )
        return await self.call("AckMessage", request)


def send_request(topic: str, body: bytes = b"body", user: dict[str, str] | None = None, **system: Any) -> Any:
    """A request with one message."""
    system.setdefault("message_id", f"id-{body[:20].hex()}")
    system.setdefault("message_type", messages.NORMAL)
    if "born_timestamp" not in system:
        system["born_timestamp"] = {"seconds": 1_700_000_000}
    message = messages.Message(
        topic=messages.Resource(name=topic),
        body=body,
        user_properties=user or {},
        system_properties=messages.SystemProperties(**system),
    )
    return messages.SendMessageRequest(messages=[message])


class Door:
    """A running broker with a door.

    Attributes:
        cluster: the broker and its name server.
        door: the door.
    """

    def __init__(self, cluster: Cluster, door: GrpcDoor) -> None:
        self.cluster, self.door = cluster, door
        self.clients: list[DoorClient] = []

    @property
    def broker(self) -> Broker:
        return self.cluster.broker

    async def client(self, client_id: str = "c1", **options: Any) -> DoorClient:
        """A connected client."""
        client = await DoorClient(client_id, **options).connect(self.door.address)
        self.clients.append(client)
        return client

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """The bodies in a queue, read from the store."""
        store = self.broker.store
        store.dispatch()
        bodies: list[bytes] = []
        while len(bodies) < store.max_queue_offset(topic.encode(), queue_id):  # a read ends at 256 KiB
            found = store.get_message(topic.encode(), queue_id, len(bodies), 32, 1 << 20)
            assert found.views
            bodies += [one.body for view in found.views for one in decode_messages(view)]
        return bodies

    def put(self, topic: str, body: bytes) -> None:
        """Stores a message that no client has sent."""
        message = StoreMessage(topic.encode(), 0, body, b"", self.broker.store.now_ms(), bytes(8))
        assert self.broker.store.put_message(message).status is PutMessageStatus.PUT_OK
        self.broker.store.dispatch()

    async def until_held(self, count: int) -> None:
        """Waits until so many polls wait at the broker."""
        while self.broker.services.pops.waiting != count:
            await asyncio.sleep(0)

    def topic(self, name: str, queues: int = 2, kind: str = "", **options: Any) -> None:
        """Creates or changes a topic."""
        attributes = {"message.type": kind} if kind else {}
        self.broker.topics.table[name] = TopicConfig(
            name, options.pop("read", queues), options.pop("write", queues), attributes=attributes, **options
        )

    def group(self, name: str, **options: Any) -> None:
        """Creates or changes a group."""
        self.broker.groups.table[name] = SubscriptionGroupConfig(name, **options)


class LoopClock:
    """A clock with the time of the running event loop, so that ``advance`` moves it, too."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun_ms = time.time_ns() // 1_000_000 - int(self._loop.time() * 1000)

    def wall_ms(self) -> int:
        return self._begun_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


@asynccontextmanager
async def opened(
    store: Path,
    access: Callable[[Broker], DoorAccess] = lambda _: DoorAccess(),
    advertised: str = "",
    **broker: Any,
) -> AsyncIterator[Door]:
    """A broker with a door on a free port."""
    async with Cluster(store, max_body=4 << 20, clock=LoopClock(), **broker) as cluster:
        services = cluster.broker.services
        door = GrpcDoor(
            DoorConfig("127.0.0.1", 0, advertised),
            lambda asked: LocalBrokers(cluster.broker, asked),
            services.clock,
            services.supervisor,
            access(cluster.broker),
        )
        await door.start()
        opened_door = Door(cluster, door)
        try:
            yield opened_door
        finally:
            for client in opened_door.clients:
                client.close()
            await door.stop()
