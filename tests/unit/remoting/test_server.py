"""The server over loopback, driven by raw sockets and a scripted handler."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rucola.errors import AddressInUseError, ConfigError, RemotingClosedError, RemotingTimeoutError
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, decode_frame
from rucola.remoting.channel import readable_address, stored_host
from rucola.remoting.fairness.read_pauses import SLOW_PEER
from rucola.remoting.server import Channel, RemotingServer, ServerOptions
from rucola.testing.event_loop import advance, run_stepped, settle

ECHO = 7001
HOUR_MS = 3_600_000


def echo(command: RemotingCommand) -> RemotingCommand:
    return command.answer(0, ext_fields=command.ext_fields, body=command.body)


def request(opaque: int, body: bytes = b"x", code: int = ECHO, flag: int = 0) -> bytes:
    return RemotingCommand(code, opaque, flag, ext_fields={"n": str(opaque)}, body=body).encode()


async def read_command(reader: asyncio.StreamReader) -> RemotingCommand:
    head = await reader.readexactly(4)
    return decode_frame(head + await reader.readexactly(int.from_bytes(head, "big")))


async def connect(server: RemotingServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


def test_answers_every_frame_of_a_read_with_one_write(run, handler):
    async def scene() -> None:
        scripted = handler({ECHO: echo})
        server = RemotingServer(scripted, "127.0.0.1", 0)
        await server.start()
        reader, writer = await connect(server)
        writer.write(b"".join(request(opaque) for opaque in range(50)))
        answers = [await read_command(reader) for _ in range(50)]
        assert [answer.opaque for answer in answers] == list(range(50))
        assert all(answer.is_response and answer.body == b"x" for answer in answers)
        assert sum(scripted.reads) == 50
        assert len(scripted.reads) < 50
        writer.close()
        await server.close()

    run(scene())


def test_one_byte_at_a_time(run, handler):
    async def scene() -> None:
        scripted = handler({ECHO: echo})
        server = RemotingServer(scripted, "127.0.0.1", 0)
        await server.start()
        reader, writer = await connect(server)
        for byte in request(1) + request(2, b""):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert [(await read_command(reader)).opaque for _ in range(2)] == [1, 2]
        writer.close()
        await server.close()

    run(scene())


def test_frame_larger_than_the_receive_buffer(run, handler):
    async def scene() -> None:
        server = RemotingServer(handler({ECHO: echo}), "127.0.0.1", 0, ServerOptions(receive_bytes=4096))
        await server.start()
        reader, writer = await connect(server)
        body = bytes(range(256)) * 4096
        writer.write(request(1, body) + request(2))
        first, second = await read_command(reader), await read_command(reader)
        assert (first.body, second.body) == (body, b"x")
        writer.close()
        await server.close()

    run(scene())


def test_parts_sent_later_leave_in_order(run, handler):
    async def scene() -> None:
        scripted = handler()
        server = RemotingServer(scripted, "127.0.0.1", 0)
        await server.start()
        reader, writer = await connect(server)
        writer.write(request(9))
        await scripted.until(lambda: bool(scripted.received))
        channel = scripted.channels[0]
        answer = scripted.received[0].answer(0, body=b"a long poll").encode()
        channel.send_parts([answer[:8], memoryview(answer)[8:]])
        channel.send(scripted.received[0].answer(19).encode())
        assert (await read_command(reader)).body == b"a long poll"
        assert (await read_command(reader)).code == 19
        writer.close()
        await server.close()

    run(scene())


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        (0).to_bytes(4, "big"),
        (2**31 - 1).to_bytes(4, "big") + bytes(8),
        b"\0\0\0\x08\x07\0\0\x04{}  ",
        b"\0\0\0\x08\x00\0\0\xff{}  ",
        b"\0\0\0\x08\x00\0\0\x04nope",
    ],
)
def test_bytes_that_are_no_frame_close_the_connection(run, handler, rubbish):
    async def scene() -> None:
        scripted = handler({ECHO: echo})
        server = RemotingServer(scripted, "127.0.0.1", 0)
        await server.start()
        other_reader, other_writer = await connect(server)
        reader, writer = await connect(server)
        writer.write(rubbish)
        assert await reader.read() == b""
        other_writer.write(request(1))
        assert (await read_command(other_reader)).opaque == 1
        writer.close()
        other_writer.close()
        await server.close()

    run(scene())


def test_rubbish_is_logged_once_in_a_while(handler, caplog):
    async def scene() -> None:
        scripted = handler()
        server = RemotingServer(scripted, "127.0.0.1", 0)
        await server.start()
        for closed in range(1, 4):
            _, writer = await connect(server)
            writer.write(bytes(16))
            await scripted.until(lambda count=closed: len(scripted.closed) == count)
            writer.close()
        advance(11)
        _, writer = await connect(server)
        writer.write(bytes(16))
        await scripted.until(lambda: len(scripted.closed) == 4)
        writer.close()
        await server.close()

    with caplog.at_level(logging.WARNING, "rucola.remoting"):
        run_stepped(scene())
    assert [record.rucola_fields["not_logged"] for record in caplog.records] == [0, 2]


def test_asks_the_client_and_matches_the_answer(run, handler):
    async def scene() -> None:
        scripted = handler()
        server = RemotingServer(scripted, "127.0.0.1", 0)
        await server.start()
        reader, writer = await connect(server)
        writer.write(request(5))
        await scripted.until(lambda: bool(scripted.received))
        channel = scripted.channels[0]
        asked = [asyncio.ensure_future(channel.invoke(RemotingCommand(307), HOUR_MS)) for _ in range(2)]
        first, second = await read_command(reader), await read_command(reader)
        assert not first.is_response
        assert first.opaque != second.opaque
        writer.write(second.answer(0, body=b"second").encode() + first.answer(0, body=b"first").encode())
        # A response without a request is dropped and does no harm.
        writer.write(RemotingCommand(0, 999_999, FLAG_RESPONSE).encode())
        assert [(await one).body for one in asked] == [b"first", b"second"]
        channel.invoke_oneway(RemotingCommand(40, ext_fields={"consumerGroup": "g"}))
        told = await read_command(reader)
        assert (told.code, told.flag) == (40, FLAG_ONEWAY)
        assert len(scripted.received) == 1
        writer.close()
        await server.close()

    run(scene())


def test_invoke_times_out_and_fails_when_the_client_leaves(handler):
    async def scene() -> None:
        scripted = handler()
        server = RemotingServer(scripted, "127.0.0.1", 0)
        await server.start()
        reader, writer = await connect(server)
        writer.write(request(5))
        await scripted.until(lambda: bool(scripted.received))
        channel: Channel = scripted.channels[0]
        late = asyncio.ensure_future(channel.invoke(RemotingCommand(307), 1_000))
        patient = asyncio.ensure_future(channel.invoke(RemotingCommand(307), HOUR_MS))
        await read_command(reader)
        advance(2)
        with pytest.raises(RemotingTimeoutError, match="1000 ms"):
            await late
        assert not patient.done()
        writer.close()
        with pytest.raises(RemotingClosedError):
            await patient
        assert channel.closed
        channel.invoke_oneway(RemotingCommand(40))
        with pytest.raises(RemotingClosedError):
            await channel.invoke(RemotingCommand(307), 1_000)
        assert scripted.closed == [channel]
        await server.close()

    run_stepped(scene())


def test_a_client_that_does_not_read_is_not_read(handler):
    """Unread responses accumulate up to a limit; then the server stops reading from the connection. When the client
    reads, it gets all responses.
    """

    async def scene() -> None:
        scripted = handler({ECHO: lambda command: command.answer(0, body=bytes(64 * 1024))})
        server = RemotingServer(scripted, "127.0.0.1", 0, ServerOptions(outbound_bytes_high=256 * 1024))
        await server.start()
        reader, writer = await connect(server)
        writer.transport.pause_reading()
        requests = 2_000
        frames = b"".join(request(opaque, bytes(1024)) for opaque in range(requests))
        writer.write(frames)
        while not (scripted.channels and scripted.channels[0].inbound.reasons == SLOW_PEER):
            await settle()
        seen = len(scripted.received)
        await settle(200)
        assert len(scripted.received) == seen < requests
        writer.transport.resume_reading()
        answers = [(await read_command(reader)).opaque for _ in range(requests)]
        assert answers == list(range(requests))
        writer.close()
        await server.close()

    run_stepped(scene())


def test_a_client_that_never_reads_is_dropped(run, handler):
    async def scene() -> None:
        scripted = handler({ECHO: lambda command: command.answer(0, body=bytes(1024 * 1024))})
        options = ServerOptions(outbound_bytes_high=64 * 1024, outbound_bytes_max=32 * 1024 * 1024)
        server = RemotingServer(scripted, "127.0.0.1", 0, options)
        await server.start()
        _, writer = await connect(server)
        writer.transport.pause_reading()
        writer.write(request(1))
        await scripted.until(lambda: bool(scripted.channels))
        for _ in range(80):
            scripted.channels[0].send(bytes(1024 * 1024))
            await asyncio.sleep(0)
        await scripted.until(lambda: bool(scripted.closed))
        writer.close()
        await server.close()

    run(scene())


def test_silent_connections_are_closed_busy_ones_stay(handler):
    async def scene() -> None:
        scripted = handler({ECHO: echo})
        server = RemotingServer(scripted, "127.0.0.1", 0, ServerOptions(idle_timeout_ms=120_000))
        await server.start()
        silent_reader, silent_writer = await connect(server)
        busy_reader, busy_writer = await connect(server)
        for opaque in range(12):
            busy_writer.write(request(opaque))
            await read_command(busy_reader)
            advance(15)
            await settle()
        assert await silent_reader.read() == b""
        assert len(server.channels) == 1
        busy_writer.write(request(99))
        assert (await read_command(busy_reader)).opaque == 99
        silent_writer.close()
        busy_writer.close()
        await server.close()

    run_stepped(scene())


def test_port_in_use(run, handler):
    async def scene() -> None:
        first = RemotingServer(handler(), "127.0.0.1", 0)
        await first.start()
        second = RemotingServer(handler(), "127.0.0.1", first.port)
        with pytest.raises(AddressInUseError, match=f"127.0.0.1:{first.port}"):
            await second.start()
        await second.close()
        await first.close()

    run(scene())


def test_address_of_another_machine(run, handler):
    async def scene() -> None:
        with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
            await RemotingServer(handler(), "192.0.2.1", 0).start()

    run(scene())


def test_a_connection_that_ended_keeps_nothing_that_leads_back_to_it(run, handler):
    async def scene() -> None:
        scripted = handler({ECHO: echo})
        server = RemotingServer(scripted, "127.0.0.1", 0)
        await server.start()
        reader, writer = await connect(server)
        writer.write(request(1))
        await read_command(reader)
        channel: Channel = scripted.channels[0]
        channel.attributes["clients"] = [channel]
        writer.close()
        await scripted.until(lambda: bool(scripted.closed))
        await asyncio.sleep(0)
        assert not channel.attributes  # otherwise its buffers stay until a garbage collection
        await server.close()

    run(scene())


def test_close_sends_what_is_gathered(run, handler):
    async def scene() -> None:
        scripted = handler()
        server = RemotingServer(scripted, "127.0.0.1", 0)
        await server.start()
        reader, writer = await connect(server)
        writer.write(request(1))
        await scripted.until(lambda: bool(scripted.received))
        scripted.channels[0].send(scripted.received[0].answer(0, body=b"last words").encode())
        await server.close()
        assert (await read_command(reader)).body == b"last words"
        assert await reader.read() == b""
        assert scripted.closed == scripted.channels
        with pytest.raises(OSError):
            await connect(server)
        writer.close()

    run(scene())


def test_hosts_as_records_store_them():
    assert stored_host(("127.0.0.1", 10911)) == bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
    assert stored_host(("::ffff:10.1.2.3", 80, 0, 0)) == bytes([10, 1, 2, 3, 0, 0, 0, 80])
    assert stored_host(("fe80::1%eth0", 1, 0, 2)) == bytes.fromhex("fe80" + "00" * 13 + "01" + "00000001")
    assert stored_host(None) == bytes(8)
    assert readable_address(("::1", 9876, 0, 0)) == "[::1]:9876"
    assert readable_address(None) == "unknown"
