"""The gateway: passes prompts to the workers, and each session's answers to the client that is connected.

GET  /sessions/NAME   a stream of events (SSE); Last-Event-ID is the last lite offset that the client has shown
POST /sessions/NAME   a prompt; Idempotency-Key is its id, so that a client may repeat it

A session is a lite topic. Its client says where to go on, so the gateway keeps nothing: it may be killed at any time,
and another one takes the client. The group is exclusive, so that a session has one gateway.
"""

import asyncio
import json
import os
import sys
from datetime import timedelta

from rucola import ConsumeResultSuspend, LiteConsumer, LiteConsumerConfig, LiteOffset, Message, MessageExt, Producer

NAMESRV_ADDR = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
CONFIG = LiteConsumerConfig(invisible_duration_ms=10_000, consume_thread_max=1000)


class Gateway:
    def __init__(self, consumer: LiteConsumer, producer: Producer) -> None:
        self.consumer, self.producer = consumer, producer
        self.streams: dict[str, Stream] = {}
        consumer.register_message_listener(self.show)
        consumer.register_eviction_listener(self.give_up)

    async def show(self, message: MessageExt) -> ConsumeResultSuspend | None:
        stream = self.streams.get(message.lite_topic or "")
        if stream is None or not await stream.write(message):
            return ConsumeResultSuspend(
                timedelta(seconds=1)
            )  # the client is gone: it will come again, perhaps elsewhere
        return None

    async def give_up(self, session: str) -> None:
        """Another gateway has the client."""
        stream = self.streams.pop(session, None)
        if stream is not None:
            stream.writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, path, _ = (await reader.readline()).decode().split()
            headers = {}
            while line := (await reader.readline()).decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            session = path.removeprefix("/sessions/")
            if method == "POST":
                body = await reader.readexactly(int(headers["content-length"]))
                properties = {"session": session, "prompt": headers["idempotency-key"]}
                await self.producer.send(Message("prompts", body, properties=properties))
                writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                await self.stream(session, int(headers.get("last-event-id", -1)), reader, writer)
        finally:
            writer.close()

    async def stream(
        self, session: str, shown: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self.give_up(session)
        stream = self.streams[session] = Stream(writer, shown)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        try:
            await self.consumer.subscribe_lite(session, LiteOffset.at(shown + 1))
            await reader.read()  # until the client closes the connection
        finally:
            if self.streams.get(session) is stream:
                del self.streams[session]
                await self.consumer.unsubscribe_lite(session)


class Stream:
    """The connection of a client; ``shown`` is the last lite offset that it has been sent."""

    def __init__(self, writer: asyncio.StreamWriter, shown: int) -> None:
        self.writer, self.shown = writer, shown

    async def write(self, message: MessageExt) -> bool:
        """Sends a message, unless it was sent before; returns False if the client is gone."""
        offset = message.lite_offset
        if offset is None or offset <= self.shown:
            return True
        event = json.dumps({"text": message.body.decode(), **message.user_properties})
        try:
            self.writer.write(f"id: {offset}\ndata: {event}\n\n".encode())
            await self.writer.drain()
        except OSError:
            return False
        self.shown = offset
        return True


async def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
    consumer = LiteConsumer("gateway", NAMESRV_ADDR, "agents", CONFIG)
    async with Producer("gateway", NAMESRV_ADDR) as producer:
        gateway = Gateway(consumer, producer)
        async with consumer, await asyncio.start_server(gateway.serve, "127.0.0.1", port) as server:
            print(f"gateway: port {server.sockets[0].getsockname()[1]}", flush=True)
            await server.serve_forever()


asyncio.run(main())
