"""A scripted client over raw gRPC: what clients that cannot be had here do, and requests that no client sends.
Arguments as for ``python_client.py``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import socket
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from tests.conformance.grpc.scenarios import ACCOUNT, GUEST

from rucola.proxy import messages as m
from rucola.proxy.schema import V2

TIMEOUT_S = 10.0
POLL_S = 5
INVISIBLE_S = 10
DATE = "20261130T054200Z"
Saw = dict[str, Any]


class Peer:
    """The environment of a scenario: a channel, a topic and a group."""

    def __init__(self, endpoints: str, prefix: str, name: str) -> None:
        self.endpoints, self.prefix = endpoints, prefix
        self.topic, self.group = f"T_{prefix}{name}", f"G_{prefix}{name}"
        self.client = f"client@{uuid.uuid4()}"
        self.channel = grpc.insecure_channel(endpoints)

    def topic_of(self, kind: str) -> Any:
        """A topic for one kind of messages."""
        return m.Resource(name=f"{self.topic}_{kind}")

    def headers(self, **changes: str) -> list[tuple[str, str]]:
        """The headers of a call; an empty text takes one out."""
        found = {
            "x-mq-client-id": self.client,
            "x-mq-language": "CPP",
            "x-mq-client-version": "5.0.7",
            "x-mq-protocol": "v2",
            "x-mq-request-id": str(uuid.uuid4()),
            "x-mq-date-time": DATE,
        }
        found |= {key.replace("_", "-"): value for key, value in changes.items()}
        return [(key, value) for key, value in found.items() if value]

    def call(self, rpc: str, request: Any, **headers: str) -> Any:
        """Makes a unary call; returns the response, or the gRPC code in place of one."""
        method = self.channel.unary_unary(
            V2.path(rpc).decode(),
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=V2.message_class(f"{rpc}Response").FromString,
        )
        return method(request, timeout=TIMEOUT_S, metadata=self.headers(**headers))

    def code(self, rpc: str, request: Any, **headers: str) -> int | str:
        """The code of a response, or the name of the gRPC status of a call that failed."""
        try:
            return int(self.call(rpc, request, **headers).status.code)
        except grpc.RpcError as error:
            return str(error.code().name)

    def receive(self, timeout_s: float = TIMEOUT_S, **fields: Any) -> list[Any]:
        """Receives; returns the items of the stream."""
        fields = {
            "group": m.Resource(name=self.group),
            "message_queue": m.MessageQueue(topic=self.topic_of("NORMAL")),
            "filter_expression": m.FilterExpression(type=m.TAG, expression="*"),
            "batch_size": 16,
            "invisible_duration": duration(INVISIBLE_S),
            "long_polling_timeout": duration(POLL_S),
        } | fields
        method = self.channel.unary_stream(
            V2.path("ReceiveMessage").decode(),
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=m.ReceiveMessageResponse.FromString,
        )
        request = m.ReceiveMessageRequest(**{name: value for name, value in fields.items() if value is not None})
        return list(method(request, timeout=timeout_s, metadata=self.headers()))

    def receive_code(self, timeout_s: float = TIMEOUT_S, **fields: Any) -> int | str:
        """The code of a receive."""
        try:
            items = self.receive(timeout_s, **fields)
        except grpc.RpcError as error:
            return str(error.code().name)
        return next((int(item.status.code) for item in items if item.WhichOneof("content") == "status"), 0)

    def message(self, kind: str = "NORMAL", body: bytes = b"body", **fields: Any) -> Any:
        """A message; ``fields`` are its system properties, ``topic`` and ``user_properties``."""
        topic = fields.pop("topic", self.topic_of(kind))
        properties = fields.pop("user_properties", {})
        system = {
            "message_id": f"01{uuid.uuid4().hex[:32].upper()}",
            "body_encoding": m.IDENTITY,
            "message_type": m.NORMAL if kind == "MIXED" else getattr(m, kind),
            "born_host": "somewhere",
            "born_timestamp": timestamp(time.time()),
        }
        system |= fields
        return m.Message(
            topic=topic, user_properties=properties, system_properties=m.SystemProperties(**system), body=body
        )

    def send(self, *messages: Any) -> Any:
        """Sends; returns the response."""
        return self.call("SendMessage", m.SendMessageRequest(messages=messages))

    def send_code(self, *messages: Any, **headers: str) -> int | str:
        """The code of a send."""
        return self.code("SendMessage", m.SendMessageRequest(messages=messages), **headers)

    def close(self) -> None:
        """Closes the channel."""
        self.channel.close()


class Telemetry:
    """One telemetry stream."""

    def __init__(self, peer: Peer, **headers: str) -> None:
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        method = peer.channel.stream_stream(
            V2.path("Telemetry").decode(),
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=m.TelemetryCommand.FromString,
        )
        self._call = method(iter(self._sent.get, None), timeout=TIMEOUT_S, metadata=peer.headers(**headers))

    def settings(self, settings: Any) -> Any:
        """Sends settings; returns the answer, or the name of the gRPC status with which the stream ended."""
        self._sent.put(m.TelemetryCommand(settings=settings))
        return self.next()

    def next(self) -> Any:
        """Waits for a command of the server."""
        try:
            return next(self._call)
        except StopIteration:
            return "ended"
        except grpc.RpcError as error:
            return str(error.code().name)

    def close(self) -> None:
        """Ends the stream."""
        self._sent.put(None)


def duration(seconds: float) -> Any:
    """What protobuf takes for a duration."""
    return timedelta(seconds=seconds)


def timestamp(seconds: float) -> Any:
    """What protobuf takes for a time."""
    return datetime.fromtimestamp(seconds, UTC)


def producer_settings(*topics: Any) -> Any:
    """Settings of a producer as clients send them."""
    return m.Settings(
        client_type=m.PRODUCER,
        request_timeout=duration(3),
        publishing=m.Publishing(topics=topics),
        user_agent=m.UA(language=m.CPP, version="5.0.7", platform="Linux", hostname="host"),
    )


def consumer_settings(peer: Peer, kind: int, topic: Any, group: str = "") -> Any:
    """Settings of a consumer as clients send them."""
    entry = m.SubscriptionEntry(topic=topic, expression=m.FilterExpression(type=m.TAG, expression="*"))
    return m.Settings(
        client_type=kind,
        request_timeout=duration(3),
        subscription=m.Subscription(
            group=m.Resource(name=group or peer.group), subscriptions=[entry], long_polling_timeout=duration(30)
        ),
        user_agent=m.UA(language=m.CPP, version="5.0.7", platform="Linux", hostname="host"),
    )


def seconds_of(value: Any) -> float:
    """Seconds of a protobuf duration."""
    return float(value.seconds + value.nanos / 1e9)


def merged(answer: Any) -> Any:
    """What is compared of an answer to settings."""
    if isinstance(answer, str):
        return answer
    settings, policy = answer.settings, answer.settings.backoff_policy
    found: Saw = {
        "status": answer.status.code,
        "client_type": settings.client_type,
        "request_timeout_s": seconds_of(settings.request_timeout),
        "user_agent": settings.user_agent.version,
        "metric": settings.metric.on,
        "max_attempts": policy.max_attempts,
    }
    if policy.WhichOneof("strategy") == "exponential_backoff":
        steps = policy.exponential_backoff
        found["exponential"] = [seconds_of(steps.initial), seconds_of(steps.max), steps.multiplier]
    elif policy.WhichOneof("strategy") == "customized_backoff":
        found["customized"] = [seconds_of(step) for step in policy.customized_backoff.next]
    if settings.WhichOneof("pub_sub") == "publishing":
        publishing = settings.publishing
        found |= {
            "topics": [topic.name for topic in publishing.topics],
            "max_body_size": publishing.max_body_size,
            "validate_message_type": publishing.validate_message_type,
        }
    else:
        subscription = settings.subscription
        found |= {
            "group": subscription.group.name,
            "topics": [[entry.topic.name, entry.expression.expression] for entry in subscription.subscriptions],
            "fifo": subscription.fifo if subscription.HasField("fifo") else None,
            "receive_batch_size": subscription.receive_batch_size,
            "long_polling_timeout_s": seconds_of(subscription.long_polling_timeout),
        }
    return found


def raw_settings(peer: Peer) -> Saw:
    heartbeat = m.HeartbeatRequest(client_type=m.PRODUCER)
    saw: Saw = {"heartbeat_before_settings": peer.code("Heartbeat", heartbeat)}
    saw["termination_before_settings"] = peer.code("NotifyClientTermination", m.NotifyClientTerminationRequest())
    normal, orderly = peer.topic_of("NORMAL"), f"{peer.group}_orderly"
    cases = {
        "producer": producer_settings(normal),
        "producer_without_topics": producer_settings(),
        "producer_of_unknown_topic": producer_settings(m.Resource(name=f"{peer.topic}_missing")),
        "producer_of_bad_topic": producer_settings(m.Resource(name="bad topic")),
        "push_consumer": consumer_settings(peer, m.PUSH_CONSUMER, normal),
        "push_consumer_orderly": consumer_settings(peer, m.PUSH_CONSUMER, peer.topic_of("FIFO"), orderly),
        "push_consumer_of_new_group": consumer_settings(peer, m.PUSH_CONSUMER, normal, f"{peer.group}_new"),
        "push_consumer_of_bad_group": consumer_settings(peer, m.PUSH_CONSUMER, normal, "bad group"),
        "simple_consumer": consumer_settings(peer, m.SIMPLE_CONSUMER, normal),
        "neither": m.Settings(client_type=m.PRODUCER),
    }
    for name, settings in cases.items():
        one = Peer(peer.endpoints, peer.prefix, "raw_settings")
        stream = Telemetry(one)
        saw[name] = merged(stream.settings(settings))
        group = settings.subscription.group if settings.HasField("subscription") else None
        request = m.HeartbeatRequest(client_type=settings.client_type, group=group)
        saw[f"{name}_heartbeat"] = one.code("Heartbeat", request)
        saw[f"{name}_termination"] = one.code("NotifyClientTermination", m.NotifyClientTerminationRequest(group=group))
        saw[f"{name}_heartbeat_afterwards"] = one.code("Heartbeat", request)
        stream.close()
        one.close()
    return saw


def route(peer: Peer, topic: Any) -> Any:
    """What is compared of a route."""
    host, _, port = peer.endpoints.rpartition(":")
    access = m.Endpoints(scheme=m.IPv4, addresses=[m.Address(host=host, port=int(port))])
    answer = peer.call("QueryRoute", m.QueryRouteRequest(topic=topic, endpoints=access))
    queues = answer.message_queues
    return {
        "code": answer.status.code,
        "queues": [[queue.id, queue.permission, list(queue.accept_message_types)] for queue in queues],
        "topics": sorted({queue.topic.name == topic.name for queue in queues}),
        "broker_ids": sorted({queue.broker.id for queue in queues}),
        "schemes": sorted({queue.broker.endpoints.scheme for queue in queues}),
        "reachable": sorted({queue.broker.endpoints.addresses == access.addresses for queue in queues}),
    }


def raw_route(peer: Peer) -> Saw:
    kinds = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "missing")
    saw: Saw = {kind: route(peer, peer.topic_of(kind)) for kind in kinds}
    for name, topic in {"bad": "bad topic", "empty": "", "system": "SCHEDULE_TOPIC_XXXX", "long": "t" * 128}.items():
        saw[name] = peer.code("QueryRoute", m.QueryRouteRequest(topic=m.Resource(name=topic)))
    request = m.QueryRouteRequest(topic=peer.topic_of("NORMAL"))
    saw["without_endpoints"] = peer.code("QueryRoute", request)
    saw["without_client_id"] = peer.code("QueryRoute", request, x_mq_client_id="")
    saw["without_language"] = peer.code("QueryRoute", request, x_mq_language="")
    saw["without_any_header"] = peer.code(
        "QueryRoute", request, **dict.fromkeys((name.replace("-", "_") for name, _ in peer.headers()), "")
    )
    group = m.Resource(name=peer.group)
    for name, topic, who in (
        ("assignment", "NORMAL", peer.group),
        ("assignment_orderly", "FIFO", f"{peer.group}_orderly"),
        ("assignment_missing", "missing", peer.group),
    ):
        answer = peer.call(
            "QueryAssignment", m.QueryAssignmentRequest(topic=peer.topic_of(topic), group=m.Resource(name=who))
        )
        queues = [one.message_queue for one in answer.assignments]
        saw[name] = [answer.status.code, [[one.id, one.permission, one.broker.id] for one in queues]]
    saw["assignment_of_bad_group"] = peer.code(
        "QueryAssignment",
        m.QueryAssignmentRequest(topic=peer.topic_of("NORMAL"), group=m.Resource(name="bad group")),
    )
    saw["assignment_of_no_topic"] = peer.code("QueryAssignment", m.QueryAssignmentRequest(group=group))
    return saw


def raw_refusals(peer: Peer) -> Saw:
    Telemetry(peer).settings(producer_settings(peer.topic_of("NORMAL")))
    one = peer.message
    now = time.time()
    cases: dict[str, list[Any]] = {
        "nothing": [],
        "good": [one()],
        "two": [one(), one()],
        "two_topics": [one(), one(topic=peer.topic_of("MIXED"))],
        "no_topic": [one(topic=m.Resource())],
        "bad_topic": [one(topic=m.Resource(name="bad topic"))],
        "system_topic": [one(topic=m.Resource(name="SCHEDULE_TOPIC_XXXX"))],
        "unknown_topic": [one(topic=peer.topic_of("missing"))],
        "empty_body": [one(body=b"")],
        "large_body": [one(body=bytes(4 * 1024 * 1024 + 1))],
        "largest_body": [one(body=bytes(4 * 1024 * 1024))],
        "properties_129": [one(user_properties={f"key{i}": "v" for i in range(129)})],
        "properties_128": [one(user_properties={f"key{i}": "v" for i in range(128)})],
        "properties_of_17_KiB": [one(user_properties={"key": "v" * 17 * 1024})],
        "reserved_key": [one(user_properties={"TAGS": "v"})],
        "sharding_key": [one(user_properties={"__SHARDINGKEY": "v"})],
        "control_character_in_key": [one(user_properties={"a\x01b": "v"})],
        "control_character_in_value": [one(user_properties={"a": "v\x02"})],
        "empty_key": [one(user_properties={"": "v"})],
        "empty_value": [one(user_properties={"a": ""})],
        "blank_tag": [one(tag=" ")],
        "empty_tag": [one(tag="")],
        "tag_with_bar": [one(tag="a|b")],
        "tag_with_control_character": [one(tag="a\x01")],
        "blank_key": [one(keys=[" "])],
        "key_with_space": [one(keys=["a b"])],
        "key_with_control_character": [one(keys=["a\x01"])],
        "no_id": [one(message_id="")],
        "blank_id": [one(message_id=" ")],
        "recovery_of_2_h": [one("TRANSACTION", orphaned_transaction_recovery_duration=duration(7200))],
        "delay_of_25_h": [one("DELAY", delivery_timestamp=timestamp(now + 25 * 3600))],
        "delay_without_time": [one("DELAY")],
        "blank_group": [one("FIFO", message_group=" ")],
        "empty_group": [one("FIFO", message_group="")],
        "group_of_64": [one("FIFO", message_group="g" * 64)],
        "group_of_63": [one("FIFO", message_group="g" * 63)],
        "group_with_control_character": [one("FIFO", message_group="g\x01")],
        "fifo_without_group": [one("FIFO")],
        "normal_to_fifo": [one(topic=peer.topic_of("FIFO"))],
        "fifo_to_normal": [one("FIFO", topic=peer.topic_of("NORMAL"), message_group="g")],
        "delay_to_normal": [one("DELAY", topic=peer.topic_of("NORMAL"), delivery_timestamp=timestamp(now + 1))],
        "transaction_to_normal": [one("TRANSACTION", topic=peer.topic_of("NORMAL"))],
        "normal_with_group_to_mixed": [one("MIXED", message_group="g")],
        "group_and_delay_to_mixed": [one("MIXED", message_group="g", delivery_timestamp=timestamp(now + 1))],
        "unspecified_to_normal": [one(message_type=0)],
        "unspecified_to_mixed": [one("MIXED", message_type=0)],
        "two_fifo_of_two_groups": [one("FIFO", message_group="a"), one("FIFO", message_group="b")],
        "two_one_bad": [one(), one(tag="a|b")],
    }
    saw: Saw = {name: peer.send_code(*messages) for name, messages in cases.items()}
    saw["entries_of_two"] = [entry.status.code for entry in peer.send(one(), one()).entries]
    saw["without_client_id"] = peer.send_code(one(), x_mq_client_id="")
    return saw


def items_of(items: list[Any]) -> list[Any]:
    """Kinds of the items of a stream, with the code of a status."""
    return [
        [item.WhichOneof("content"), item.status.code]
        if item.WhichOneof("content") == "status"
        else [item.WhichOneof("content")]
        for item in items
    ]


def handles(items: list[Any]) -> list[Any]:
    """The messages of a stream."""
    return [item.message for item in items if item.WhichOneof("content") == "message"]


def delivered(message: Any, body: bytes) -> Saw:
    """What is compared of a delivered message."""
    system = message.system_properties
    return {
        "fields": sorted(field.name for field, _ in system.ListFields() if field.name != "queue_id"),
        "topic": bool(message.topic.name),
        "namespace": message.topic.resource_namespace,
        "body": message.body == body,
        "user_properties": dict(message.user_properties),
        "digest_type": system.body_digest.type,
        "digest": system.body_digest.checksum == hashlib.md5(message.body).hexdigest().upper(),
        "encoding": system.body_encoding,
        "type": system.message_type,
        "attempt": system.delivery_attempt,
        "born_host": system.born_host,
        "invisible_s": seconds_of(system.invisible_duration),
        "handle_fields": len(system.receipt_handle.split(" ")),
    }


def raw_receive(peer: Peer) -> Saw:
    Telemetry(peer).settings(consumer_settings(peer, m.SIMPLE_CONSUMER, peer.topic_of("NORMAL")))
    saw: Saw = {"empty": items_of(peer.receive())}
    peer.send(peer.message(tag="TagA", keys=["k1", "k2"], user_properties={"a": "b"}, trace_context="00-trace"))
    items = peer.receive()
    saw["one"] = items_of(items)
    saw["message"] = delivered(handles(items)[0], b"body")
    bounds = {
        "invisible_none": {"invisible_duration": None},
        "invisible_9_s": {"invisible_duration": duration(9)},
        "invisible_13_h": {"invisible_duration": duration(13 * 3600)},
        "batch_0": {"batch_size": 0},
        "batch_33": {"batch_size": 33},
        "polling_1_s": {"long_polling_timeout": duration(1)},
        "polling_none": {"long_polling_timeout": None},
        "unknown_topic": {"message_queue": m.MessageQueue(topic=peer.topic_of("missing"))},
        "bad_topic": {"message_queue": m.MessageQueue(topic=m.Resource(name="bad topic"))},
        "bad_group": {"group": m.Resource(name="bad group")},
        "system_group": {"group": m.Resource(name="CID_RMQ_SYS_TRANS")},
        "new_group": {"group": m.Resource(name=f"{peer.group}_new")},
        "sql_bad": {"filter_expression": m.FilterExpression(type=m.SQL, expression="a >")},
        "sql_good": {"filter_expression": m.FilterExpression(type=m.SQL, expression="a = 'x'")},
        "unknown_broker": {"message_queue": m.MessageQueue(topic=peer.topic_of("NORMAL"), broker=m.Broker(name="no"))},
    }
    for name, fields in bounds.items():
        saw[name] = peer.receive_code(**fields)
    saw["deadline_2_s"] = peer.receive_code(2.0)
    saw["deadline_2_s_without_polling"] = peer.receive_code(2.0, long_polling_timeout=None)
    stranger = Peer(peer.endpoints, peer.prefix, "raw_receive")
    saw["without_settings"] = stranger.receive_code()
    stranger.close()
    return saw


def entry_code(peer: Peer, handle: str, message_id: str = "id") -> Any:
    """Codes of an acknowledgement and of its entry."""
    entry = m.AckMessageEntry(message_id=message_id, receipt_handle=handle)
    answer = peer.call(
        "AckMessage",
        m.AckMessageRequest(group=m.Resource(name=peer.group), topic=peer.topic_of("NORMAL"), entries=[entry]),
    )
    return [answer.status.code, [one.status.code for one in answer.entries]]


def change(peer: Peer, handle: str, message_id: str, seconds: float) -> Any:
    """Changes an invisible duration."""
    return peer.call(
        "ChangeInvisibleDuration",
        m.ChangeInvisibleDurationRequest(
            group=m.Resource(name=peer.group),
            topic=peer.topic_of("NORMAL"),
            receipt_handle=handle,
            message_id=message_id,
            invisible_duration=duration(seconds),
        ),
    )


def raw_handles(peer: Peer) -> Saw:
    Telemetry(peer).settings(consumer_settings(peer, m.SIMPLE_CONSUMER, peer.topic_of("NORMAL")))
    peer.receive()
    for i in range(4):
        peer.send(peer.message(body=f"body {i}".encode()))
    found: list[Any] = []
    for _ in range(5):
        found += handles(peer.receive()) if len(found) < 4 else []
    acked, changed, dead, forwarded = found
    ids = [message.system_properties.message_id for message in found]
    handle = acked.system_properties.receipt_handle
    saw: Saw = {"ack": entry_code(peer, handle, ids[0]), "ack_again": entry_code(peer, handle, ids[0])}
    saw["ack_nothing"] = peer.code(
        "AckMessage", m.AckMessageRequest(group=m.Resource(name=peer.group), topic=peer.topic_of("NORMAL"))
    )
    saw["ack_text"] = entry_code(peer, "no handle")
    saw["ack_empty"] = entry_code(peer, "")
    words = handle.split(" ")
    saw["ack_expired"] = entry_code(peer, " ".join([words[0], "1600000000000", *words[2:]]))
    saw["ack_wrong_offset"] = entry_code(peer, " ".join([*words[:7], "999999", *words[8:]]))
    saw["ack_wrong_broker"] = entry_code(peer, " ".join([*words[:5], "no", *words[6:]]))
    old = changed.system_properties.receipt_handle
    answer = change(peer, old, ids[1], 20)
    saw["change"] = [answer.status.code, answer.receipt_handle not in ("", old)]
    saw["change_old"] = change(peer, old, ids[1], 20).status.code
    saw["ack_old"] = entry_code(peer, old, ids[1])
    saw["change_13_h"] = change(peer, answer.receipt_handle, ids[1], 13 * 3600).status.code
    saw["change_negative"] = change(peer, answer.receipt_handle, ids[1], -1).status.code
    saw["change_text"] = change(peer, "no handle", ids[1], 20).status.code
    saw["change_0"] = change(peer, dead.system_properties.receipt_handle, ids[2], 0).status.code
    request = m.ForwardMessageToDeadLetterQueueRequest(
        group=m.Resource(name=peer.group),
        topic=peer.topic_of("NORMAL"),
        receipt_handle=forwarded.system_properties.receipt_handle,
        message_id=ids[3],
        delivery_attempt=1,
        max_delivery_attempts=1,
    )
    saw["forward"] = peer.code("ForwardMessageToDeadLetterQueue", request)
    saw["forward_again"] = peer.code("ForwardMessageToDeadLetterQueue", request)
    request.receipt_handle = "no handle"
    saw["forward_text"] = peer.code("ForwardMessageToDeadLetterQueue", request)
    return saw


def raw_orders(peer: Peer) -> Saw:
    topic, group = peer.topic_of("FIFO"), m.Resource(name=f"{peer.group}_orderly")
    settings = consumer_settings(peer, m.PUSH_CONSUMER, topic, group.name)
    Telemetry(peer).settings(settings)
    for i in range(3):
        peer.send(peer.message("FIFO", body=f"body {i}".encode(), message_group="one"))
    fields: dict[str, Any] = {"group": group, "message_queue": m.MessageQueue(topic=topic)}

    def bodies(attempt: str, batch: int) -> list[Any]:
        found = handles(peer.receive(attempt_id=attempt, batch_size=batch, **fields))
        return [[one.body.decode(), one.system_properties.delivery_attempt] for one in found]

    return {
        "first": bodies("attempt-1", 2),
        "other_attempt": bodies("attempt-2", 2),
        "same_attempt": bodies("attempt-1", 2),
    }


def raw_transaction(peer: Peer) -> Saw:
    topic = peer.topic_of("TRANSACTION")
    stream = Telemetry(peer)
    stream.settings(producer_settings(topic))

    def end(message_id: str, transaction_id: str, resolution: int, source: int = m.SOURCE_CLIENT) -> int | str:
        return peer.code(
            "EndTransaction",
            m.EndTransactionRequest(
                topic=topic,
                message_id=message_id,
                transaction_id=transaction_id,
                resolution=resolution,
                source=source,
            ),
        )

    entries = [peer.send(peer.message("TRANSACTION", tag="TagA")).entries[0] for _ in range(3)]
    first, second, third = [(entry.message_id, entry.transaction_id) for entry in entries]
    saw: Saw = {
        "transaction_id": [bool(one) for _, one in (first, second, third)],
        "id_is_message_id": first[0] == first[1],
        "commit": end(*first, m.COMMIT),
        "commit_again": end(*first, m.COMMIT),
        "empty_id": end(first[0], "", m.COMMIT),
        "unknown_id": end(first[0], "unknown", m.COMMIT),
        "rollback": end(*second, m.ROLLBACK),
        "unspecified": end(*third, 0),
    }
    command = stream.next()
    if not isinstance(command, str):
        asked = command.recover_orphaned_transaction_command
        saw["asked"] = asked.transaction_id == third[1]
        saw["asked_message"] = delivered(asked.message, b"body")
        saw["answer"] = end(asked.message.system_properties.message_id, asked.transaction_id, m.COMMIT, 2)
    else:
        saw["asked"] = command
    return saw


def raw_digest(peer: Peer) -> Saw:
    body = b"a body"
    upper = hashlib.md5(body).hexdigest().upper()
    digests = {
        "md5_upper": m.Digest(type=m.MD5, checksum=upper),
        "md5_lower": m.Digest(type=m.MD5, checksum=upper.lower()),
        "md5_wrong": m.Digest(type=m.MD5, checksum="0" * 32),
        "crc32": m.Digest(type=m.CRC32, checksum="1"),
    }
    saw: Saw = {name: peer.send_code(peer.message(body=body, body_digest=one)) for name, one in digests.items()}
    saw["encoding_unspecified"] = peer.send_code(peer.message(body=body, body_encoding=0))
    saw["encoding_gzip"] = peer.send_code(peer.message(body=body, body_encoding=m.GZIP))
    return saw


def raw_authorization(peer: Peer) -> Saw:
    words = {
        "plain": "MQv2-HMAC-SHA1 Credential=key, SignedHeaders=x-mq-date-time, Signature=00",
        "region": "MQv2-HMAC-SHA1 Credential=key/region/service, SignedHeaders=x-mq-date-time, Signature=00",
        "empty": "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=00",
        "malformed": "no authorization",
    }
    saw: Saw = {name: peer.send_code(peer.message(), authorization=text) for name, text in words.items()}
    saw["no_date"] = peer.send_code(peer.message(), authorization=words["plain"], x_mq_date_time="")
    return saw


def raw_tls(peer: Peer) -> Saw:
    host, _, port = peer.endpoints.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        return {"alpn": wrapped.selected_alpn_protocol(), "version": wrapped.version()}


def raw_methods(peer: Peer) -> Saw:
    def status(path: str, request: bytes = b"") -> str:
        try:
            peer.channel.unary_unary(path)(request, timeout=TIMEOUT_S, metadata=peer.headers())
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    service = V2.path("Heartbeat").decode().rpartition("/")[0]
    saw: Saw = {
        "unknown_method": status(f"{service}/NoSuchMethod"),
        "unknown_service": status("/no.such.Service/Method"),
        "broken_request": status(f"{service}/Heartbeat", b"\xff\xff\xff"),
    }
    for rpc in ("GetOffset", "QueryOffset", "UpdateOffset", "PullMessage", "SyncLiteSubscription"):
        saw[rpc] = status(f"{service}/{rpc}")
    return saw


def raw_accounts(peer: Peer) -> Saw:
    """The official clients write a signature in upper or lower case, and some name a region and a service with the
    access key.
    """
    signature = hmac.new(ACCOUNT.secret.encode(), DATE.encode(), hashlib.sha1).hexdigest()

    def header(credential: str, signature: str = signature) -> str:
        return f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signature}"

    name, topic = ACCOUNT.name, peer.topic_of("NORMAL")
    forms = {
        "upper": header(name, signature.upper()),
        "lower": header(name),
        "region": header(f"{name}/region/service"),
        "slashes": header(f"{name}//"),
        "guest": header(GUEST.name),
        "wrong": header(name, "00"),
        "unknown": header("nobody"),
        "empty": header(""),
        "malformed": "nothing",
        "no_date": header(name),
        "none": "",
    }
    saw: Saw = {}
    for form, text in forms.items():
        headers = {"authorization": text, "x_mq_date_time": "" if form == "no_date" else DATE}
        saw[form] = [
            peer.send_code(peer.message(), **headers),
            peer.code("QueryRoute", m.QueryRouteRequest(topic=topic), **headers),
            peer.code("Heartbeat", m.HeartbeatRequest(client_type=m.PRODUCER), **headers),
        ]
    for form in ("upper", "guest", "wrong", "none"):
        stream = Telemetry(peer, authorization=forms[form])
        answer = stream.settings(producer_settings(topic))
        saw[f"telemetry_{form}"] = (
            answer if isinstance(answer, str) else [answer.status.code, answer.HasField("settings")]
        )
        if form != "upper":
            saw[f"telemetry_{form}_then"] = stream.next()
    return saw


SCENARIOS: dict[str, Callable[[Peer], Saw]] = {
    scenario.__name__: scenario
    for scenario in (
        *(raw_settings, raw_route, raw_refusals, raw_receive, raw_handles, raw_orders),
        *(raw_transaction, raw_digest, raw_authorization, raw_tls, raw_methods, raw_accounts),
    )
}


def main(endpoints: str, prefix: str, names: list[str]) -> None:
    """Runs the scenarios."""
    for name, saw in played(endpoints, prefix, names):
        print(json.dumps({"name": name, "saw": saw}, ensure_ascii=False), flush=True)


def played(endpoints: str, prefix: str, names: list[str]) -> Iterator[tuple[str, Saw]]:
    """Yields names and outcomes."""
    for name in names:
        peer = Peer(endpoints, prefix, name)
        try:
            saw = SCENARIOS[name](peer)
        except Exception as error:  # noqa: BLE001  # a scenario that breaks off is an outcome
            saw = {"broken": type(error).__name__, "text": str(error)}
        yield name, saw
        peer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
