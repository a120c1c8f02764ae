"""Clients by hand, for what no official client asks: over gRPC, with the official client's messages, and remoting."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import grpc
from rocketmq.grpc_protocol import definition_pb2, service_pb2, service_pb2_grpc
from tools.peers.wire import Link

TIMEOUT_S = 10.0
COMMAND_S = 5.0
"""How long a client waits for a command of the server."""
INVISIBLE_S = 10
POLL_S = 3
POP_LITE, CTL, ACK, CHANGE = 200070, 200071, 200051, 200053
"""Request codes: POP_LITE_MESSAGE, LITE_SUBSCRIPTION_CTL, ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME."""
REVIVE_QUEUE = 999
Resource = definition_pb2.Resource


class Door:
    """A gRPC client of one group, with its telemetry stream; use it with ``with``.

    Attributes:
        commands: what the server sent over the telemetry stream.
    """

    def __init__(self, endpoints: str, client_id: str, group: str, topic: str, client_type: str) -> None:
        self._channel = grpc.insecure_channel(endpoints)
        self._stub = service_pb2_grpc.MessagingServiceStub(self._channel)
        self._client_id, self._client_type = client_id, client_type
        self._address = endpoints.split(":")
        self.group, self.topic = Resource(name=group), Resource(name=topic)
        self._outgoing: queue.Queue[Any] = queue.Queue()
        self._incoming: queue.Queue[Any] = queue.Queue()
        self.commands: list[Any] = []

    def __enter__(self) -> Door:
        self._stream = self._stub.Telemetry(iter(self._outgoing.get, None), metadata=self._metadata())
        entry = definition_pb2.SubscriptionEntry(
            topic=self.topic, expression=definition_pb2.FilterExpression(type="TAG", expression="*")
        )
        settings = definition_pb2.Settings(
            client_type=self._client_type,
            subscription=definition_pb2.Subscription(group=self.group, subscriptions=[entry]),
        )
        self._outgoing.put(service_pb2.TelemetryCommand(settings=settings))
        threading.Thread(target=self._listen, name="commands", daemon=True).start()
        self.read_command()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._outgoing.put(None)
        self._channel.close()

    def read_command(self) -> Any:
        """The next command of the telemetry stream; None if none comes, or the stream has ended."""
        try:
            command = self._incoming.get(timeout=COMMAND_S)
        except queue.Empty:
            return None
        if command is not None:
            self.commands.append(command)
        return command

    def _listen(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for command in self._stream:
                self._incoming.put(command)
        self._incoming.put(None)

    def heartbeat(self) -> Any:
        """Sends a heartbeat; returns the code of the response."""
        return self.call("Heartbeat", service_pb2.HeartbeatRequest(group=self.group, client_type=self._client_type))

    def call(self, method: str, request: Any) -> Any:
        """Makes a unary call; returns the code of the response, or the name of the gRPC status."""
        try:
            return getattr(self._stub, method)(request, timeout=TIMEOUT_S, metadata=self._metadata()).status.code
        except grpc.RpcError as error:
            return error.code().name

    def sync(self, action: str, *lite_topics: str, **fields: Any) -> Any:
        """Changes the subscription; returns the code of the response."""
        request = service_pb2.SyncLiteSubscriptionRequest(
            action=action,
            topic=fields.pop("topic", self.topic),
            group=fields.pop("group", self.group),
            lite_topic_set=lite_topics,
            **fields,
        )
        return self.call("SyncLiteSubscription", request)

    def receive(self, batch: int = 16, poll_s: int = POLL_S, **fields: Any) -> tuple[int, list[Any]]:
        """Receives; returns the code and the messages."""
        host, port = self._address
        endpoints = definition_pb2.Endpoints(
            scheme="IPv4", addresses=[definition_pb2.Address(host=host, port=int(port))]
        )
        queue_ = definition_pb2.MessageQueue(
            topic=self.topic, id=0, permission="READ_WRITE",
            broker=definition_pb2.Broker(name="broker-a", id=0, endpoints=endpoints),
        )  # fmt: skip
        request = service_pb2.ReceiveMessageRequest(
            group=self.group, message_queue=queue_, batch_size=batch,
            filter_expression=definition_pb2.FilterExpression(type="TAG", expression="*"), **fields,
        )  # fmt: skip
        request.invisible_duration.seconds = INVISIBLE_S
        request.long_polling_timeout.seconds = poll_s
        code, found = 0, []
        try:
            for item in self._stub.ReceiveMessage(request, timeout=TIMEOUT_S + poll_s, metadata=self._metadata()):
                if item.HasField("status"):
                    code = item.status.code
                elif item.HasField("message"):
                    found.append(item.message)
        except grpc.RpcError as error:
            return -1, [error.code().name]
        return code, found

    def ack(self, *messages: Any) -> Any:
        """Acknowledges messages in one request."""
        entries = [
            service_pb2.AckMessageEntry(
                message_id=one.system_properties.message_id,
                receipt_handle=one.system_properties.receipt_handle,
                lite_topic=one.system_properties.lite_topic,
            )
            for one in messages
        ]
        return self.call(
            "AckMessage", service_pb2.AckMessageRequest(group=self.group, topic=self.topic, entries=entries)
        )

    def change(self, message: Any, seconds: int, suspend: bool | None = None) -> Any:
        """Changes the invisible duration; returns the code."""
        known = message.system_properties
        request = service_pb2.ChangeInvisibleDurationRequest(
            group=self.group, topic=self.topic, receipt_handle=known.receipt_handle,
            message_id=known.message_id, lite_topic=known.lite_topic,
        )  # fmt: skip
        request.invisible_duration.seconds = seconds
        if suspend is not None:
            request.suspend = suspend
        return self.call("ChangeInvisibleDuration", request)

    def send(self, body: str, topic: str = "", **properties: Any) -> Any:
        """Sends a message; returns the code."""
        system = definition_pb2.SystemProperties(
            message_id=f"01{time.time_ns():030X}", message_type=properties.pop("message_type", "LITE"),
            body_encoding="IDENTITY", **properties,
        )  # fmt: skip
        system.born_timestamp.GetCurrentTime()
        message = definition_pb2.Message(
            topic=Resource(name=topic) if topic else self.topic, system_properties=system, body=body.encode()
        )
        return self.call("SendMessage", service_pb2.SendMessageRequest(messages=[message]))

    def _metadata(self) -> list[tuple[str, str]]:
        return [
            ("x-mq-client-id", self._client_id), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"),
            ("x-mq-protocol", "v2"), ("x-mq-request-id", f"{time.time_ns()}"), ("x-mq-date-time", "20261130T054200Z"),
        ]  # fmt: skip


@dataclass(frozen=True)
class Lease:
    """What a batch was popped from."""

    group: str
    topic: str
    lite_topic: str


class Remote(Link):
    """A remoting connection that asks for lite things."""

    def subscription(self, *entries: dict[str, Any], body: bytes | None = None) -> int:
        """Sends LITE_SUBSCRIPTION_CTL; returns the code of the response."""
        content = json.dumps({"subscriptionSet": list(entries)}).encode() if body is None else body
        return int(self.request(CTL, {}, content)["code"])

    def pop(self, client_id: str, group: str, topic: str, **changes: Any) -> dict[str, Any]:
        """Sends POP_LITE_MESSAGE; returns the header of the response."""
        fields = {"clientId": client_id, "consumerGroup": group, "topic": topic, "maxMsgNum": 16,
                  "invisibleTime": 3000, "pollTime": 0, "bornTime": int(time.time() * 1000)}  # fmt: skip
        fields |= changes
        return self.request(POP_LITE, {key: value for key, value in fields.items() if value is not None})

    def settle(self, code: int, answer: dict[str, Any], lease: Lease, offset: int, **changes: Any) -> int:
        """Sends ACK_MESSAGE or CHANGE_MESSAGE_INVISIBLETIME for an offset of a pop's answer; returns the code. A change
        to None takes a field out.
        """
        told = answer["extFields"]
        extra = f"{offset} {told['popTime']} {told['invisibleTime']} {told['reviveQid']} 0 broker-a 0"
        fields = {"consumerGroup": lease.group, "topic": lease.topic, "queueId": 0, "extraInfo": extra,
                  "offset": offset, "liteTopic": lease.lite_topic, **changes}  # fmt: skip
        return int(self.request(code, {key: value for key, value in fields.items() if value is not None})["code"])


def entry(action: str, client_id: str, group: str, topic: str, *lite_topics: str, **more: Any) -> dict[str, Any]:
    """One entry of LITE_SUBSCRIPTION_CTL."""
    return {"action": action, "clientId": client_id, "group": group, "topic": topic,
            "liteTopicSet": list(lite_topics), "version": 0, **more}  # fmt: skip
