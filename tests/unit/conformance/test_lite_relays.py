"""The relays of the lite recordings pass everything on unchanged, and note it."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketmq.grpc_protocol import definition_pb2, service_pb2, service_pb2_grpc
from tests.conformance.lite.recording import Recording, write
from tests.conformance.lite.relays import Relays
from tests.golden.lite_records import read
from tools.peers.servers import free_port

from rucola.protocol.command import RemotingCommand, decode_frame

TIMEOUT_S = 10.0


GONE = threading.Event()
"""Whether the server has seen that a telemetry stream was cancelled."""


class Proxy(service_pb2_grpc.MessagingServiceServicer):  # type: ignore[misc]
    """Answers telemetry twice per request, refuses heartbeats, and streams two items."""

    def Telemetry(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        ended = threading.Event()
        context.add_callback(lambda: None if ended.is_set() else GONE.set())
        for _ in requests:
            yield service_pb2.TelemetryCommand(status=definition_pb2.Status(code="OK", message="first"))
            yield service_pb2.TelemetryCommand(status=definition_pb2.Status(code="OK", message="second"))
        ended.set()

    def Heartbeat(self, request: Any, context: Any) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")

    def ReceiveMessage(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        assert dict(context.invocation_metadata())["x-mq-client-id"] == "c"
        assert context.time_remaining() < TIMEOUT_S + 1  # gRPC rounds up
        yield service_pb2.ReceiveMessageResponse(status=definition_pb2.Status(code="OK"))
        yield service_pb2.ReceiveMessageResponse(message=definition_pb2.Message(body=bytes(range(256))))


@contextmanager
def relayed_stub(relays: Relays) -> Iterator[Any]:
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_MessagingServiceServicer_to_server(Proxy(), server)
    port, listen = server.add_insecure_port("127.0.0.1:0"), f"127.0.0.1:{free_port()}"
    server.start()
    relays.grpc(listen, f"127.0.0.1:{port}")
    with grpc.insecure_channel(listen) as channel:
        yield service_pb2_grpc.MessagingServiceStub(channel)
    server.stop(0)


def test_grpc_calls(tmp_path: Path) -> None:
    recording = Recording()
    metadata = [("x-mq-client-id", "c")]
    with Relays(recording) as relays, relayed_stub(relays) as stub:
        told = stub.Telemetry(iter([service_pb2.TelemetryCommand()]), metadata=metadata, timeout=TIMEOUT_S)
        assert [command.status.message for command in told] == ["first", "second"]
        with pytest.raises(grpc.RpcError) as refused:
            stub.Heartbeat(service_pb2.HeartbeatRequest(), metadata=metadata, timeout=TIMEOUT_S)
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.PERMISSION_DENIED, "no")
        request = service_pb2.ReceiveMessageRequest(batch_size=7)
        items = list(stub.ReceiveMessage(request, metadata=metadata, timeout=TIMEOUT_S))
        assert items[1].message.body == bytes(range(256))
    write(tmp_path / "calls.jsonl.xz", recording.take(), {"scenario": "calls"})
    facts, records = read(tmp_path / "calls.jsonl.xz")
    assert facts == {"scenario": "calls"}
    shown = [(record["method"], record["kind"]) for record in records]
    assert shown[:5] == [("Telemetry", kind) for kind in ("call", "request", "response", "response", "end")]
    assert shown[5:8] == [("Heartbeat", kind) for kind in ("call", "request", "end")]
    assert (records[7]["status"], records[7]["details"]) == ("PERMISSION_DENIED", "no")
    assert shown[8:] == [("ReceiveMessage", kind) for kind in ("call", "request", "response", "response", "end")]
    assert records[8]["client"] == "c" and 0 < records[8]["timeout_ms"] <= (TIMEOUT_S + 1) * 1000
    assert records[9]["view"] == {"batch_size": 7}
    assert base64.b64decode(records[11]["message"]) == items[1].SerializeToString()
    assert {record["conn"] for record in records} == {"client1"} and recording.client_ids == ["c"]


def test_a_client_may_connect_again_after_its_connections_were_ended() -> None:
    recording = Recording()
    with Relays(recording) as relays, relayed_stub(relays) as stub:
        for _ in range(2):
            request = service_pb2.ReceiveMessageRequest()
            metadata = [("x-mq-client-id", "c")]
            assert list(stub.ReceiveMessage(request, metadata=metadata, timeout=TIMEOUT_S, wait_for_ready=True))
            relays.cut_grpc()
    assert {record["conn"] for record in recording.take() if "conn" in record} == {"client1", "client2"}


def test_a_client_that_is_gone_says_no_farewell() -> None:
    GONE.clear()
    said = threading.Event()
    with Relays(Recording()) as relays, relayed_stub(relays) as stub:
        told = stub.Telemetry(said_once(said), metadata=[("x-mq-client-id", "c")], timeout=TIMEOUT_S)
        assert next(told).status.message == "first"
        told.cancel()
        assert GONE.wait(TIMEOUT_S)
        said.set()


def said_once(end: threading.Event) -> Iterator[Any]:
    yield service_pb2.TelemetryCommand()
    end.wait(TIMEOUT_S)


def serve_frames(listener: socket.socket) -> None:
    """Answers one request with its own body, in pieces."""
    connection, _ = listener.accept()
    with connection:
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += connection.recv(3)
        asked = decode_frame(data)
        answer = RemotingCommand(0, opaque=asked.opaque, flag=1, body=asked.body).encode()
        for position in range(0, len(answer), 5):
            connection.sendall(answer[position : position + 5])


def test_remoting_frames() -> None:
    recording = Recording()
    with socket.create_server(("127.0.0.1", 0)) as listener, Relays(recording) as relays:
        serving = threading.Thread(target=serve_frames, args=(listener,))
        serving.start()
        listen = f"127.0.0.1:{free_port()}"
        relays.remoting(listen, f"127.0.0.1:{listener.getsockname()[1]}", "near", "far")
        request = RemotingCommand(200070, opaque=5, ext_fields={"a": "b"}, body=b'{"x":1}')
        answer = asyncio.run(asked(listen, request.encode()))
        serving.join()
    assert decode_frame(answer).body == request.body
    records = [record for record in recording.take() if "frame" in record]
    assert [(one["dir"], one["kind"], one["code"]) for one in records] == [
        ("near->far", "request", 200070), ("far->near", "response", 0),
    ]  # fmt: skip
    assert [base64.b64decode(one["frame"]) for one in records] == [request.encode(), answer]
    assert records[1]["request_code"] == 200070 and records[0]["body"] == '{"x":1}'
    assert records[0]["header"]["extFields"] == {"a": "b"}


async def asked(address: str, frame: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for position in range(0, len(frame), 2):
        writer.write(frame[position : position + 2])
        await writer.drain()
    head = await reader.readexactly(4)
    answer = head + await reader.readexactly(int.from_bytes(head, "big"))
    writer.close()
    return answer
