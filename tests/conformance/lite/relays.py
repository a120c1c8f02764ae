"""Relays that pass everything on unchanged and note it: remoting frames, and gRPC messages as bytes.

Both run on one event loop in a thread of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from tests.conformance.lite.recording import Recording

PATIENCE_S = 30.0
TELEMETRY = "Telemetry"
FAREWELL_S = 0.1
"""The requests of a client that is gone end as those of one that says farewell, and then the call is cancelled. The
proxy must see only that, because it heeds no cancellation after an end.
"""
T = TypeVar("T")


class Relays:
    """The event loop of the relays; use it with ``with``."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._grpc: GrpcRelay | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        if self._grpc is not None:
            await self._grpc.stop()
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def remoting(self, listen: str, target: str, near: str, far: str) -> None:
        """Passes connections to ``listen`` on to ``target``; ``near`` and ``far`` name the two sides."""
        relay = RemotingRelay(self._recording, target, near, far)
        host, _, port = listen.rpartition(":")
        self._servers.append(self._do(asyncio.start_server(relay.serve, host, int(port))))

    def grpc(self, listen: str, target: str) -> None:
        """Passes gRPC calls to ``listen`` on to ``target``."""
        self._grpc = GrpcRelay(self._recording, listen, target)
        self._do(self._grpc.start())

    def cut_grpc(self) -> None:
        """Ends all connections of gRPC clients; they may connect again."""
        assert self._grpc is not None
        self._do(self._grpc.restart())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


class RemotingRelay:
    """Passes frames on; both directions of a connection have one name."""

    def __init__(self, recording: Recording, target: str, near: str, far: str) -> None:
        self._recording, self._target, self._near, self._far = recording, target, near, far
        self._count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until either side ends it."""
        self._count += 1
        conn = f"{self._near}{self._count}"
        host, _, port = self._target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._recording.add(wire="remoting", conn=conn, event="opened")
        ways = [
            asyncio.create_task(self._pass(conn, self._near, self._far, reader, far_writer)),
            asyncio.create_task(self._pass(conn, self._far, self._near, far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._recording.add(wire="remoting", conn=conn, event="closed")
            for end in (writer, far_writer):
                end.close()
            for way in ways:
                way.cancel()

    async def _pass(
        self, conn: str, sender: str, receiver: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(int.from_bytes(head, "big"))
                self._recording.frame(conn, sender, receiver, frame)
                writer.write(frame)
                await writer.drain()


class GrpcRelay(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes gRPC calls on, message by message, over one channel for each connection of a client."""

    def __init__(self, recording: Recording, listen: str, target: str) -> None:
        self._recording, self._listen, self._target = recording, listen, target
        self._server: Any = None
        self._channels: dict[str, tuple[str, Any]] = {}
        self._calls = self._connections = 0

    async def start(self) -> None:
        """Listens."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", -1)])
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(self._listen)
        await self._server.start()

    async def stop(self) -> None:
        """Ends all calls and connections."""
        await self._server.stop(0)
        channels, self._channels = self._channels, {}
        for _, channel in channels.values():
            await channel.close()

    async def restart(self) -> None:
        """Ends all connections, and listens again."""
        self._recording.note("relay", "ends all gRPC connections")
        await self.stop()
        await self.start()

    def service(self, details: Any) -> Any:
        """The handler of one call."""
        path = details.method

        async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
            await self._carry(path, requests, context)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _carry(self, path: str, requests: AsyncIterator[bytes], context: Any) -> None:
        self._calls += 1
        number, method = self._calls, path.rpartition("/")[2]
        conn, channel = self._channel(context.peer())
        metadata = [(key, value) for key, value in context.invocation_metadata() if key != "user-agent"]
        left_s = context.time_remaining()
        timeout_ms = round(left_s * 1000) if left_s is not None else None
        self._recording.call(conn, number, method, dict(metadata).get("x-mq-client-id", ""), timeout_ms)
        call = channel.stream_stream(path)(timeout=left_s, metadata=metadata)

        async def forward() -> None:
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                async for message in requests:
                    self._recording.message(conn, number, method, "request", message)
                    await call.write(message)
                if method == TELEMETRY:
                    await asyncio.sleep(FAREWELL_S)
                await call.done_writing()

        forwarding = asyncio.create_task(forward())
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self._recording.message(conn, number, method, "response", message)
                await context.write(message)
            self._ended(context, conn, number, method, await call.code(), await call.details())
        except grpc.RpcError as error:
            self._ended(context, conn, number, method, error.code(), error.details())
        except asyncio.CancelledError:
            call.cancel()
            self._recording.add(wire="grpc", conn=conn, call=number, method=method, kind="end", status="gone")
            raise
        finally:
            forwarding.cancel()

    def _ended(self, context: Any, conn: str, number: int, method: str, code: Any, details: str | None) -> None:
        context.set_code(code)
        context.set_details(details or "")
        self._recording.add(
            wire="grpc", conn=conn, call=number, method=method, kind="end", status=code.name, details=details or ""
        )

    def _channel(self, peer: str) -> tuple[str, Any]:
        if peer not in self._channels:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
            channel = grpc.aio.insecure_channel(self._target, options=options)
            self._connections += 1
            self._channels[peer] = (f"client{self._connections}", channel)
        return self._channels[peer]
