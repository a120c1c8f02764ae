"""The relays of the lite recordings pass everything on unchanged, and note it."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
import types
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketmq.grpc_protocol import definition_pb2, service_pb2, service_pb2_grpc
from tests.conformance.lite.recording import Recording, write
from tests.conformance.lite.relays import FAREWELL_S, GrpcRelay, Relays
from tests.golden.lite_records import read
from tools.peers.servers import free_port

from rucola.protocol.command import RemotingCommand, decode_frame

TIMEOUT_S = 10.0


class Proxy(service_pb2_grpc.MessagingServiceServicer):  # type: ignore[misc]
    """Answers telemetry twice per request, refuses heartbeats, and streams two items."""

    def Telemetry(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        for _ in requests:
            yield service_pb2.TelemetryCommand(status=definition_pb2.Status(code="OK", message="first"))
            yield service_pb2.TelemetryCommand(status=definition_pb2.Status(code="OK", message="second"))

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


class Upstream:
    """A channel with one call that never answers, and notes what the relay does with it."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def stream_stream(self, path: str) -> Any:
        return lambda **options: self

    async def write(self, message: bytes) -> None:
        self.did.append("write")

    async def done_writing(self) -> None:
        self.did.append("end")

    async def read(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    def cancel(self) -> None:
        self.did.append("cancel")


class Context:
    """The context of a call, as far as the relay asks it."""

    def peer(self) -> str:
        return "somebody"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("x-mq-client-id", "c"), ("user-agent", "u")]

    def time_remaining(self) -> None:
        return None


@pytest.mark.parametrize(("method", "wanted"), [("Telemetry", ["write", "cancel"]), ("Heartbeat", ["write", "end"])])
def test_the_proxy_sees_a_client_that_is_gone_and_no_farewell(
    method: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests of a client that is gone end, and a moment later its call is cancelled."""
    upstream = Upstream()
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda target, options: upstream)

    async def one_request() -> AsyncIterator[bytes]:
        yield service_pb2.TelemetryCommand().SerializeToString()

    async def work() -> None:
        relay = GrpcRelay(Recording(), "", "")
        details = types.SimpleNamespace(method=f"/apache.rocketmq.v2.MessagingService/{method}")
        handling = asyncio.create_task(relay.service(details).stream_stream(one_request(), Context()))
        await asyncio.sleep(FAREWELL_S / 4)
        handling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handling
        await asyncio.sleep(FAREWELL_S * 2)

    asyncio.run(work())
    assert upstream.did[:2] == wanted


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
