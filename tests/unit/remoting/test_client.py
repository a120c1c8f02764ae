"""The client over loopback, with servers that the tests script byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from rucola.errors import FormatError, RemotingClosedError, RemotingConnectError, RemotingTimeoutError
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand, decode_frame
from rucola.remoting.client import ClientConnection, ClientOptions, RemotingClient
from rucola.testing.event_loop import advance, run_stepped, settle

HOUR_MS = 3_600_000

Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def take(self) -> RemotingCommand:
        head = await self.reader.readexactly(4)
        return decode_frame(head + await self.reader.readexactly(int.from_bytes(head, "big")))

    def give(self, command: RemotingCommand) -> None:
        self.writer.write(command.encode())


class ScriptedServer:
    """Runs one script per connection, in order of connections; the last script serves all further connections."""

    def __init__(self, *scripts: Script, port: int = 0) -> None:
        self._scripts = list(scripts)
        self._writers: list[asyncio.StreamWriter] = []
        self.port = port
        self.connections = 0

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        script = self._scripts[min(self.connections, len(self._scripts) - 1)]
        self.connections += 1
        try:
            await script(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def echo_all(peer: Peer) -> None:
    while True:
        command = await peer.take()
        peer.give(command.answer(0, ext_fields=command.ext_fields, body=command.body))


async def never_answer(peer: Peer) -> None:
    while True:
        await peer.take()


def test_one_connection_carries_many_requests(run):
    async def scene() -> None:
        async with ScriptedServer(echo_all) as server:
            client = RemotingClient()
            answers = await asyncio.gather(
                *(client.invoke(server.address, RemotingCommand(34, body=str(n).encode())) for n in range(100))
            )
            assert [answer.body for answer in answers] == [str(n).encode() for n in range(100)]
            assert server.connections == 1
            await client.close()

    run(scene())


def test_answers_in_any_order_one_byte_at_a_time(run):
    async def reversed_bytes(peer: Peer) -> None:
        commands = [await peer.take() for _ in range(5)]
        for command in reversed(commands):
            for byte in command.answer(0, body=command.body).encode():
                peer.writer.write(bytes([byte]))
                await peer.writer.drain()
                await asyncio.sleep(0)

    async def scene() -> None:
        async with ScriptedServer(reversed_bytes) as server:
            client = RemotingClient()
            answers = await asyncio.gather(
                *(client.invoke(server.address, RemotingCommand(34, body=bytes([n]))) for n in range(5))
            )
            assert [answer.body for answer in answers] == [bytes([n]) for n in range(5)]
            await client.close()

    run(scene())


def test_requests_of_one_turn_leave_together(run):
    async def scene() -> None:
        gathered: list[int] = []

        async def one_read(peer: Peer) -> None:
            data = b""
            while len(data) < expected:
                data += await peer.reader.read(1 << 20)
                gathered.append(len(data))

        client = RemotingClient()
        frames = [(n, RemotingCommand(34, n, body=b"x" * 50).encode()) for n in range(1, 101)]
        expected = sum(len(frame) for _, frame in frames)
        async with ScriptedServer(one_read) as server:
            for opaque, frame in frames:
                client.submit(server.address, frame, opaque, HOUR_MS).cancel()
            while not gathered or gathered[-1] < expected:
                await asyncio.sleep(0)
            assert gathered == [expected]
            await client.close()

    run(scene())


class RecordedTransport(asyncio.Transport):
    """Keeps the bytes that a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))


@pytest.mark.parametrize("body", [b"", b"b", b"b" * 4096])
def test_a_long_turn_writes_before_it_ends(run, body):
    async def scene() -> None:
        transport = RecordedTransport()
        connection = ClientConnection(RemotingClient(), "127.0.0.1:1", asyncio.get_running_loop())
        frames = [b"h%03d" % number for number in range(200)]
        for frame in frames[:100]:
            connection.send(frame, body)
        assert not transport.writes  # the connection is not open yet
        connection.connection_made(transport)
        assert transport.writes == [b"".join(frame + body for frame in frames[:100])]
        for frame in frames[100:]:
            connection.send(frame, body)
        assert len(transport.writes) > 1
        await asyncio.sleep(0)
        assert b"".join(transport.writes) == b"".join(frame + body for frame in frames)
        before = len(transport.writes)
        await asyncio.sleep(0)
        assert len(transport.writes) == before

    run(scene())


def test_timeouts_hit_only_what_is_late():
    async def answer_second(peer: Peer) -> None:
        await peer.take()
        command = await peer.take()
        await peer.take()
        peer.give(command.answer(0, body=b"in time"))
        await peer.take()

    async def scene() -> None:
        async with ScriptedServer(answer_second) as server:
            client = RemotingClient()
            patient = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(34), HOUR_MS))
            answered = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(34), 3_000))
            late = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(34), 2_000))
            assert (await answered).body == b"in time"
            advance(5)
            with pytest.raises(RemotingTimeoutError) as caught:
                await late
            assert (caught.value.address, caught.value.timeout_ms) == (server.address, 2_000)
            assert not patient.done()
            advance(3_600)
            with pytest.raises(RemotingTimeoutError):
                await patient
            await client.close()

    run_stepped(scene())


def test_an_answer_after_the_timeout_is_dropped():
    async def scene() -> None:
        held: list[RemotingCommand] = []
        go_on = asyncio.Event()

        async def too_late(peer: Peer) -> None:
            held.append(await peer.take())
            await go_on.wait()
            peer.give(held[0].answer(0))
            await echo_all(peer)

        async with ScriptedServer(too_late) as server:
            client = RemotingClient()
            late = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(34), 1_000))
            while not held:
                await settle()
            advance(2)
            with pytest.raises(RemotingTimeoutError):
                await late
            go_on.set()
            assert (await client.invoke(server.address, RemotingCommand(34, body=b"next"), HOUR_MS)).body == b"next"
            await client.close()

    run_stepped(scene())


def test_server_closes_mid_request_and_the_client_connects_again(run):
    async def close_at_once(peer: Peer) -> None:
        await peer.take()
        peer.writer.write(b"\0\0\0\x50\0\0\0")  # an incomplete response

    async def scene() -> None:
        async with ScriptedServer(close_at_once, echo_all) as server:
            client = RemotingClient()
            lost = [
                asyncio.ensure_future(client.invoke(server.address, RemotingCommand(34), HOUR_MS)) for _ in range(3)
            ]
            for one in lost:
                with pytest.raises(RemotingClosedError, match=server.address):
                    await one
            assert client.addresses == []
            assert (await client.invoke(server.address, RemotingCommand(34, body=b"again"))).body == b"again"
            assert server.connections == 2
            await client.close()

    run(scene())


def test_nobody_listens_then_somebody_does(run):
    async def scene() -> None:
        async with ScriptedServer(echo_all) as server:
            port = server.port
        client = RemotingClient()
        address = f"127.0.0.1:{port}"
        first, second = await asyncio.gather(
            client.invoke(address, RemotingCommand(34)),
            client.invoke(address, RemotingCommand(34)),
            return_exceptions=True,
        )
        assert isinstance(first, RemotingConnectError)
        assert isinstance(second, RemotingConnectError)
        assert first is not second
        assert first.address == address
        async with ScriptedServer(echo_all, port=port):
            assert (await client.invoke(address, RemotingCommand(34, body=b"up"))).body == b"up"
        await client.close()

    run(scene())


def test_connecting_has_a_timeout(monkeypatch):
    async def scene() -> None:
        loop = asyncio.get_running_loop()

        async def hang(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(loop, "create_connection", hang)
        client = RemotingClient(ClientOptions(connect_timeout_ms=3_000))
        waiting = asyncio.ensure_future(client.invoke("127.0.0.1:1", RemotingCommand(34), HOUR_MS))
        await settle()
        advance(4)
        with pytest.raises(RemotingConnectError, match="3000 ms"):
            await waiting
        await client.close()

    run_stepped(scene())


@pytest.mark.parametrize("address", ["nonsense", ":80", "host:", "127.0.0.1:99999"])
def test_bad_address_is_a_connect_error(run, address):
    async def scene() -> None:
        client = RemotingClient()
        with pytest.raises(RemotingConnectError):
            await client.invoke(address, RemotingCommand(34))
        await client.close()

    run(scene())


def test_rubbish_from_the_server_closes_the_connection(run):
    async def rubbish(peer: Peer) -> None:
        await peer.take()
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.take()

    async def scene() -> None:
        async with ScriptedServer(rubbish, echo_all) as server:
            client = RemotingClient()
            with pytest.raises(RemotingClosedError):
                await client.invoke(server.address, RemotingCommand(34), HOUR_MS)
            assert (await client.invoke(server.address, RemotingCommand(34, body=b"fine"))).body == b"fine"
            await client.close()

    run(scene())


def test_answer_with_fields_that_are_no_fields(run):
    async def odd(peer: Peer) -> None:
        command = await peer.take()
        header = b'{"code":0,"flag":1,"opaque":%d,"version":479,"extFields":{"a":{}}}' % command.opaque
        peer.writer.write((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        await echo_all(peer)

    async def scene() -> None:
        async with ScriptedServer(odd, echo_all) as server:
            client = RemotingClient()
            with pytest.raises((FormatError, RemotingClosedError)):
                await client.invoke(server.address, RemotingCommand(34), HOUR_MS)
            await client.close()

    run(scene())


def test_requests_from_the_server(run):
    async def scene() -> None:
        answers: list[RemotingCommand] = []
        done = asyncio.Event()

        async def ask(peer: Peer) -> None:
            await peer.take()
            for code in (221, 5555):
                peer.give(RemotingCommand(code, 9, flag=2))  # oneway: a response would be the first to arrive
            for opaque, code in enumerate([221, 307, 309, 5555], start=1):
                peer.give(RemotingCommand(code, opaque, ext_fields={"group": "g"}))
            peer.give(RemotingCommand(40, 5, flag=2))
            answers.extend([await peer.take() for _ in range(4)])
            done.set()
            await peer.take()

        told: list[str] = []
        client = RemotingClient()
        client.register_processor(40, lambda address, command: told.append(address))
        client.register_processor(221, lambda address, command: command.answer(0, body=b"at once"))

        async def slow(address: str, command: RemotingCommand) -> RemotingCommand:
            await asyncio.sleep(0)
            return command.answer(0, body=b"later")

        def broken(address: str, command: RemotingCommand) -> RemotingCommand:
            raise KeyError("missing")

        client.register_processor(307, slow)
        client.register_processor(309, broken)
        async with ScriptedServer(ask) as server:
            client.invoke_oneway(server.address, RemotingCommand(34))
            await done.wait()
            by_opaque = {answer.opaque: answer for answer in answers}
            assert [by_opaque[n].flag for n in range(1, 5)] == [FLAG_RESPONSE] * 4
            assert by_opaque[1].body == b"at once"
            assert by_opaque[2].body == b"later"
            assert (by_opaque[3].code, by_opaque[3].remark) == (1, "KeyError: 'missing'")
            assert by_opaque[4].code == 3
            assert told == [server.address]
            await client.close()

    run(scene())


def test_close_fails_what_waits_and_refuses_more(run):
    async def scene() -> None:
        async with ScriptedServer(never_answer) as server:
            client = RemotingClient()
            waiting = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(34), HOUR_MS))
            connecting = asyncio.ensure_future(client.invoke("127.0.0.1:1", RemotingCommand(34), HOUR_MS))
            await asyncio.sleep(0)
            await client.close()
            for one in (waiting, connecting):
                with pytest.raises((RemotingClosedError, RemotingConnectError)):
                    await one
            with pytest.raises(RemotingClosedError):
                await client.invoke(server.address, RemotingCommand(34))

    run(scene())


def test_disconnect_while_connecting(run):
    async def scene() -> None:
        async with ScriptedServer(never_answer) as server:
            client = RemotingClient()
            waiting = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(34), HOUR_MS))
            await asyncio.sleep(0)
            client._connections.pop(server.address).close()
            with pytest.raises(RemotingClosedError):
                await waiting
            await client.close()

    run(scene())


def test_a_connection_that_swallows_everything_is_left(caplog):
    """If requests expire and no byte has arrived for 3 s, the connection is closed and its open requests fail. A single
    short timeout does not close it.
    """

    async def scene() -> None:
        async with ScriptedServer(never_answer, echo_all) as server:
            client = RemotingClient()
            held = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(11), HOUR_MS))
            await settle()
            for expired in range(1, 4):
                short = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(34), 1_000))
                await settle()
                advance(1.001)
                with pytest.raises(RemotingTimeoutError):
                    await short
                assert client.addresses == ([server.address] if expired < 3 else [])
            with pytest.raises(RemotingClosedError):
                await held
            assert (await client.invoke(server.address, RemotingCommand(34, body=b"anew"), HOUR_MS)).body == b"anew"
            assert server.connections == 2
            await client.close()

    run_stepped(scene())
    assert caplog.records[0].rucola_fields["reason"] == "nothing was received for 3.0 s while requests expired"


def test_a_request_that_is_made_again_finds_the_new_connection():
    """A caller that sends again after the timeout already uses a new connection."""

    async def scene() -> None:
        async with ScriptedServer(never_answer, echo_all) as server:
            client = RemotingClient()

            async def persistent() -> bytes:
                try:
                    answer = await client.invoke(server.address, RemotingCommand(34, body=b"x"), 3_000)
                except RemotingTimeoutError:
                    answer = await client.invoke(server.address, RemotingCommand(34, body=b"y"), HOUR_MS)
                return bytes(answer.body)

            asking = asyncio.ensure_future(persistent())
            await settle()
            advance(3.001)
            assert await asking == b"y"
            await client.close()

    run_stepped(scene())


def test_a_slow_or_idle_connection_is_kept():
    """A connection is kept if only some responses are late, if it has no request for hours, or if the broker holds
    pulls for a long time.
    """

    async def scene() -> None:
        async def answers_every_other(peer: Peer) -> None:
            while True:
                command = await peer.take()
                if command.code == 34:
                    peer.give(command.answer(0))

        async with ScriptedServer(answers_every_other) as server:
            client = RemotingClient()
            held = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(11), 2 * HOUR_MS))
            for _ in range(3):
                late = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(12), 5_000))
                await settle()
                advance(2)
                await client.invoke(server.address, RemotingCommand(34), HOUR_MS)
                advance(3.001)
                with pytest.raises(RemotingTimeoutError):
                    await late
            advance(3_600)
            for timeout_ms in (2_900, 1_000):  # a response ends the silence
                short = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(12), timeout_ms))
                await settle()
                advance(timeout_ms / 1000 + 0.001)
                with pytest.raises(RemotingTimeoutError):
                    await short
                assert (await client.invoke(server.address, RemotingCommand(34), HOUR_MS)).code == 0
            assert server.connections == 1
            assert not held.done()
            held.cancel()
            await client.close()

    run_stepped(scene())


def test_a_loop_that_was_held_up_does_not_cost_the_connection():
    """After the event loop was blocked, a response may have arrived unread, so the first expired request does not close
    the connection. The next expired request closes it, unless any byte has arrived.
    """

    async def scene() -> None:
        async def answers_34(peer: Peer) -> None:
            while True:
                command = await peer.take()
                if command.code == 34:
                    peer.give(command.answer(0))

        async with ScriptedServer(answers_34) as server:
            client = RemotingClient()

            async def expire(passed: float) -> None:
                late = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(12), 3_000))
                await settle()
                advance(passed)
                with pytest.raises(RemotingTimeoutError):
                    await late

            await expire(3.6)
            assert client.addresses == [server.address]
            assert (await client.invoke(server.address, RemotingCommand(34), HOUR_MS)).code == 0
            await expire(3.6)
            assert client.addresses == [server.address]
            await expire(3.6)
            assert client.addresses == []
            await expire(3.4)
            assert client.addresses == []
            await client.close()

    run_stepped(scene())


def test_the_time_that_connecting_took_is_no_silence(monkeypatch):
    async def scene() -> None:
        async with ScriptedServer(never_answer) as server:
            loop, reachable = asyncio.get_running_loop(), asyncio.Event()
            create_connection = loop.create_connection

            async def slowly(*arguments, **options):
                await reachable.wait()
                return await create_connection(*arguments, **options)

            monkeypatch.setattr(loop, "create_connection", slowly)
            client = RemotingClient(ClientOptions(connect_timeout_ms=HOUR_MS))
            late = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(34), 3_000))
            await settle()
            advance(2.9)
            reachable.set()
            await settle()
            advance(0.2)
            with pytest.raises(RemotingTimeoutError):
                await late
            assert client.addresses == [server.address]
            await client.close()

    run_stepped(scene())


def test_close_does_not_wait_for_a_peer_that_takes_nothing():
    async def scene() -> None:
        release = asyncio.Event()

        async def takes_nothing(peer: Peer) -> None:
            peer.reader._transport.pause_reading()  # the peer's buffers fill up
            await release.wait()

        async with ScriptedServer(takes_nothing) as server:
            client = RemotingClient()
            commands = [RemotingCommand(10, body=bytes(15 << 20)) for _ in range(3)]
            asking = asyncio.gather(*(client.invoke(server.address, command, HOUR_MS) for command in commands))
            await settle(100)
            closing = asyncio.ensure_future(client.close())
            await settle()
            assert not closing.done()
            advance(1.001)
            await settle()
            assert closing.done()
            with pytest.raises(RemotingClosedError):
                await asking
            release.set()

    run_stepped(scene())


def test_bytes_that_a_server_has_not_taken_are_counted():
    async def scene() -> None:
        async with ScriptedServer(echo_all) as server:
            client = RemotingClient()
            assert client.unsent_bytes(server.address) == 0
            frame = RemotingCommand(34, opaque=client.next_opaque(), body=bytes(1000)).encode()
            asking = [client.submit(server.address, frame, 1, HOUR_MS)]
            assert client.unsent_bytes(server.address) == len(frame)  # the connection is being opened
            await asyncio.gather(*asking)
            assert client.unsent_bytes(server.address) == 0
            await client.close()

    run_stepped(scene())


def test_who_wants_to_know_is_told_of_an_address_that_cannot_be_reached(free_tcp_port):
    async def scene() -> None:
        nobody = f"127.0.0.1:{free_tcp_port}"
        told: list[str] = []
        client = RemotingClient(on_unreachable=told.append)
        with pytest.raises(RemotingConnectError):
            await client.invoke(nobody, RemotingCommand(34))
        async with ScriptedServer(echo_all) as server:
            await client.invoke(server.address, RemotingCommand(34))
            await client.close()
        assert told == [nobody]

    run_stepped(scene())


def test_a_connection_is_left_on_both_loops(run):
    async def scene() -> None:
        async with ScriptedServer(never_answer, echo_all) as server:
            client = RemotingClient(ClientOptions(silence_ms=30))
            connected = asyncio.Event()
            client.on_connected = lambda _: connected.set()
            held = asyncio.ensure_future(client.invoke(server.address, RemotingCommand(11), HOUR_MS))
            await connected.wait()  # silence begins when the connection is open
            while not held.done():  # a timer that fires too late closes nothing: the next one does
                with suppress(RemotingTimeoutError):
                    await client.invoke(server.address, RemotingCommand(34), 40)
            with pytest.raises(RemotingClosedError):
                await held
            assert (await client.invoke(server.address, RemotingCommand(34, body=b"anew"), HOUR_MS)).body == b"anew"
            await client.close()

    run(scene())
