"""The smallest gRPC server that the official clients of RocketMQ 5 send to: it stores nothing.

Arguments: ``rucola|grpcio``, and if requests must be signed, access key and secret key. It prints its port as JSON. It
answers QueryRoute, Telemetry, Heartbeat, NotifyClientTermination and SendMessage on uvloop, over ``rucola.grpc`` or
over the library.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import uvloop

from rucola.grpc.call import GrpcCall
from rucola.grpc.methods import Method, StreamMethod, UnaryMethod
from rucola.grpc.server import GrpcServer
from rucola.grpc.status import GrpcError, StatusCode
from rucola.proxy import messages
from rucola.proxy.schema import V2

QUEUES = 4
BODY_BYTES_MAX = 4 * 1024 * 1024
SIGNED = (b"authorization", b"x-mq-date-time")


class Answers:
    """Responses to the requests of producers."""

    def __init__(self) -> None:
        self.port = 0
        self._number = 0

    def route(self, data: bytes) -> bytes:
        """Four queues, on this server."""
        request = messages.QueryRouteRequest.FromString(data)
        address = messages.Address(host="127.0.0.1", port=self.port)
        endpoints = messages.Endpoints(scheme=messages.IPv4, addresses=[address])
        broker = messages.Broker(name="floor", id=0, endpoints=endpoints)
        queues = [
            messages.MessageQueue(
                topic=request.topic,
                id=number,
                permission=messages.READ_WRITE,
                broker=broker,
                accept_message_types=[messages.NORMAL],
            )
            for number in range(QUEUES)
        ]
        return messages.QueryRouteResponse(status=_ok(), message_queues=queues).SerializeToString()

    def telemetry(self, data: bytes) -> bytes:
        """The settings of the client, with what it waits for."""
        command = messages.TelemetryCommand.FromString(data)
        command.status.code = messages.OK
        settings = command.settings
        settings.publishing.max_body_size = BODY_BYTES_MAX
        policy = settings.backoff_policy
        policy.max_attempts = 3
        policy.exponential_backoff.initial.nanos = 10_000_000
        policy.exponential_backoff.max.seconds = 1
        policy.exponential_backoff.multiplier = 2.0
        return command.SerializeToString()

    def send(self, data: bytes) -> bytes:
        """Every message is stored, it says."""
        request = messages.SendMessageRequest.FromString(data)
        response = messages.SendMessageResponse()
        response.status.code = messages.OK
        for message in request.messages:
            entry = response.entries.add()
            entry.status.code = messages.OK
            entry.message_id = message.system_properties.message_id
            entry.offset = self._number
            self._number += 1
        return response.SerializeToString()

    def heartbeat(self, _: bytes) -> bytes:
        """All is well."""
        return messages.HeartbeatResponse(status=_ok()).SerializeToString()

    def termination(self, _: bytes) -> bytes:
        """All is well."""
        return messages.NotifyClientTerminationResponse(status=_ok()).SerializeToString()

    def unary(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """The methods with one request, by name."""
        return {
            "QueryRoute": self.route,
            "SendMessage": self.send,
            "Heartbeat": self.heartbeat,
            "NotifyClientTermination": self.termination,
        }


class Signatures:
    """Checks ``MQv2-HMAC-SHA1``; a verdict is kept while its date does not change."""

    def __init__(self, access_key: bytes, secret_key: bytes) -> None:
        self._access_key, self._secret_key = access_key, secret_key
        self._date = b""
        self._good: set[bytes] = set()

    def check(self, authorization: bytes | None, date: bytes | None) -> None:
        """Raises ``GrpcError`` unless a request is signed."""
        if authorization is None or date is None:
            raise GrpcError(StatusCode.UNAUTHENTICATED, "the request is not signed")
        if date != self._date:
            self._date, self._good = date, set()
        if authorization not in self._good:
            self._verify(authorization, date)
            self._good.add(authorization)

    def _verify(self, authorization: bytes, date: bytes) -> None:
        parts = dict(part.strip().split(b"=", 1) for part in authorization.split(b" ", 1)[1].split(b","))
        wanted = hmac.new(self._secret_key, date, hashlib.sha1).hexdigest().encode()
        name = parts[b"Credential"].partition(b"/")[0]
        if name != self._access_key or not hmac.compare_digest(parts[b"Signature"].lower(), wanted):
            raise GrpcError(StatusCode.UNAUTHENTICATED, "the signature is wrong")


class _Telemetry:
    def __init__(self, call: GrpcCall, answers: Answers) -> None:
        self._call, self._answers = call, answers

    def received(self, message: bytes) -> None:
        self._call.send(self._answers.telemetry(message))

    def finished(self) -> None:
        self._call.end()


def _ok() -> messages.Status:
    return messages.Status(code=messages.OK)


async def serve_rucola(answers: Answers, signatures: Signatures | None) -> GrpcServer:
    """Starts the server over ``rucola.grpc``."""

    def method(answer: Callable[[bytes], bytes]) -> Method:
        def handle(call: GrpcCall, request: bytes) -> bytes:
            if signatures is not None:
                signatures.check(*call.metadata)
            return answer(request)

        return UnaryMethod(handle)

    methods: dict[bytes, Method] = {V2.path(name): method(answer) for name, answer in answers.unary().items()}
    methods[V2.path("Telemetry")] = StreamMethod(lambda call: _Telemetry(call, answers))
    server = GrpcServer(methods, "127.0.0.1", 0, time.monotonic, SIGNED if signatures else ())
    await server.start()
    answers.port = server.port
    return server


async def serve_library(answers: Answers, signatures: Signatures | None) -> Any:
    """Starts the server over grpcio."""
    import grpc

    def method(answer: Callable[[bytes], bytes]) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            if signatures is not None:
                fields = dict(context.invocation_metadata())
                signatures.check(*(fields[name.decode()].encode() for name in SIGNED))
            return answer(request)

        return grpc.unary_unary_rpc_method_handler(handle)

    async def telemetry(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield answers.telemetry(request)

    handlers = {name: method(answer) for name, answer in answers.unary().items()}
    handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(telemetry)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(V2.service, handlers),))
    answers.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server


async def main(library: str, *keys: str) -> None:
    """Serves until standard input ends."""
    answers = Answers()
    signatures = Signatures(keys[0].encode(), keys[1].encode()) if keys else None
    server = await (serve_rucola if library == "rucola" else serve_library)(answers, signatures)
    print(json.dumps({"port": answers.port}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
