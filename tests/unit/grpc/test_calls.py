"""grpcio's client against our server: each kind of call, and each way in which one ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import grpc
import pytest
from tests.unit.grpc.services import Service, served

from rucola.grpc.call import GrpcCall
from rucola.grpc.server import GrpcServer
from rucola.grpc.server_options import GrpcServerOptions
from rucola.grpc.status import GrpcError

Scene = Callable[[grpc.aio.Channel, Service, GrpcServer], Awaitable[None]]


def play(scene: Scene, held_bytes_max: int = 8 << 20) -> None:
    """Runs a scene with a client and a server."""

    async def run() -> None:
        service = Service()
        async with (
            served(service, GrpcServerOptions(held_bytes_max=held_bytes_max)) as server,
            grpc.aio.insecure_channel(server.address, [("grpc.max_receive_message_length", -1)]) as channel,
        ):
            await asyncio.wait_for(scene(channel, service, server), 30)

    asyncio.run(run())


def call(channel: grpc.aio.Channel, name: str, request: bytes = b"", **options: object) -> grpc.aio.UnaryUnaryCall:
    return channel.unary_unary(f"/t.T/{name}")(request, **options)


async def status(awaited: Awaitable[object]) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await awaited
    return error.value.code().name, error.value.details()


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 70_000, 4_000_000])
def test_a_request_of_any_size_is_answered(size: int) -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        body = bytes(range(256)) * (size // 256 + 1)
        for _ in range(3):
            assert await call(channel, "Echo", body[:size]) == body[:size]
        assert [one.held_bytes for one in server.connections] == [0]

    play(scene)


def test_methods_get_the_fields_that_they_want() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        for number in range(3):
            await call(channel, "Echo", metadata=[("x-mq-client-id", "me"), ("x-mq-date-time", str(number))])
        await call(channel, "Echo")
        assert service.metadata == [[b"me", b"0"], [b"me", b"1"], [b"me", b"2"], [None, None]]

    play(scene)


def test_answers_that_come_later() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        answers = await asyncio.gather(*(call(channel, "Later", b"%d" % number) for number in range(200)))
        assert answers == [b"%d!" % number for number in range(200)]

    play(scene)


def test_a_stream_of_responses() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        for count in (0, 1, 1000):
            got = [one async for one in channel.unary_stream("/t.T/Many")(b"%d" % count)]
            assert got == [b"%d" % number for number in range(count)]

    play(scene)


def test_a_conversation() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        talk = channel.stream_stream("/t.T/Talk")()
        for word in (b"a", b"bc", b""):
            await talk.write(word)
            assert await talk.read() == word * 2
        await talk.done_writing()
        assert await talk.read() is grpc.aio.EOF
        assert (await talk.code()).name == "OK" and service.finished == 1

    play(scene)


@pytest.mark.parametrize(
    ("words", "code"), [([b"refuse"], "FAILED_PRECONDITION"), ([b"a", b"fail"], "INTERNAL"), ([b"a", b"end"], "OK")]
)
def test_the_handler_ends_a_conversation(words: list[bytes], code: str) -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        async def requests() -> AsyncIterator[bytes]:
            for word in words:
                yield word

        talk = channel.stream_stream("/t.T/Talk")(requests())
        with suppress(grpc.aio.AioRpcError):
            assert not [answer async for answer in talk if answer != b"aa"]
        assert (await talk.code()).name == code
        assert service.finished == 0
        assert await call(channel, "Echo", b"x") == b"x"

    play(scene)


@pytest.mark.parametrize(
    ("name", "request_", "expected"),
    [
        ("Refuse", b"", ("FAILED_PRECONDITION", "nicht möglich, 100 %\n")),
        ("RefuseLater", b"", ("NOT_FOUND", "not there")),
        ("Fail", b"", ("INTERNAL", "the server failed; its log says why")),
        ("FailLater", b"", ("INTERNAL", "the server failed; its log says why")),
        ("Nothing", b"", ("UNIMPLEMENTED", "there is no method /t.T/Nothing")),
        ("Small", b"x" * 11, ("RESOURCE_EXHAUSTED", "a request has 11 bytes; allowed are 10")),
        ("Echo", b"x" * 5_000_000, ("RESOURCE_EXHAUSTED", "a request has 5000000 bytes; allowed are 4259840")),
    ],
)
def test_errors_say_what_is_wrong(name: str, request_: bytes, expected: tuple[str, str]) -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        for _ in range(2):
            assert await status(call(channel, name, request_)) == expected
            assert await call(channel, "Echo", b"x") == b"x"

    play(scene)


def test_a_long_text_is_cut() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        _, text = await status(call(channel, "Refuse", b"5000"))
        assert len(text.encode()) == 1024 and text.endswith("xxx")

    play(scene)


def test_compressed_requests_are_refused() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        got = await status(call(channel, "Echo", b"x" * 1000, compression=grpc.Compression.Gzip))
        assert got == ("UNIMPLEMENTED", "grpc-encoding gzip is not supported; allowed is identity")

    play(scene)


def test_a_deadline_ends_a_call_and_the_handler_is_told() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        code, _ = await status(call(channel, "Never", timeout=0.05))
        assert code == "DEADLINE_EXCEEDED"
        while service.waiting:
            await asyncio.sleep(0.01)
        assert service.over == 1

    play(scene)


def test_a_handler_waits_although_the_deadline_is_nonsense() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        async def later(timeout: bytes) -> None:
            (connection,) = server.connections
            one = GrpcCall(connection, 99, server.methods[b"/t.T/Later"], [], timeout, None)
            connection._calls[99] = one
            with pytest.raises(GrpcError, match="grpc-timeout"):
                connection._serve(one, b"x")
            connection.forget(one)

        await call(channel, "Echo", b"x")
        await later(b"never")
        while server._tasks:
            await asyncio.sleep(0.01)

    play(scene)


def test_a_client_cancels_and_the_handler_is_told() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        calls = []
        for number in range(3):
            calls.append(call(channel, "Never"))
            while len(service.waiting) <= number:
                await asyncio.sleep(0.01)
        kept = service.waiting[0]
        for one in calls[1:]:
            one.cancel()
        while len(service.waiting) > 1:
            await asyncio.sleep(0.01)
        service.waiting.remove(kept)
        kept.answer(b"at last")
        assert await calls[0] == b"at last"
        kept.answer(b"once more")  # does nothing
        assert service.over == 2

    play(scene)


def test_a_lost_connection_ends_all_calls() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        calls = [asyncio.ensure_future(status(call(channel, "Never"))) for _ in range(3)]
        while len(service.waiting) < 3:
            await asyncio.sleep(0.01)
        for connection in list(server.connections):
            connection.close()
        assert {code for code, _ in await asyncio.gather(*calls)} == {"UNAVAILABLE"}
        assert service.over == 3 and not server.connections

    play(scene)


def test_a_server_that_stops_finishes_what_it_has_begun() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        open_call = asyncio.ensure_future(call(channel, "Never"))
        while not service.waiting:
            await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(server.stop(10))
        await asyncio.sleep(0.05)
        code, _ = await status(call(channel, "Echo", b"x"))
        assert code == "UNAVAILABLE" and not stopping.done()
        service.waiting.pop().answer(b"done")
        assert await open_call == b"done"
        await stopping
        assert not server.connections

    play(scene)


def test_a_server_that_stops_ends_handlers_that_wait_too_long() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        open_call = asyncio.ensure_future(status(call(channel, "Sleep")))
        while not server._tasks:
            await asyncio.sleep(0.01)
        (task,) = server._tasks
        await server.stop(0.05)
        assert (await open_call)[0] == "UNAVAILABLE"
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    play(scene)


def test_of_large_unfinished_requests_the_largest_is_refused() -> None:
    async def scene(channel: grpc.aio.Channel, service: Service, server: GrpcServer) -> None:
        calls = [asyncio.ensure_future(call(channel, "Echo", bytes(4_000_000))) for _ in range(8)]
        done, _ = await asyncio.wait(calls)
        failed = [one.exception() for one in done if one.exception() is not None]
        assert failed and len(failed) < len(calls)
        assert {(error.code().name, error.details()) for error in failed} == {
            ("RESOURCE_EXHAUSTED", "the server holds too many large requests")
        }
        assert [one.held_bytes for one in server.connections] == [0]
        assert await call(channel, "Echo", bytes(1_000_000)) == bytes(1_000_000)

    play(scene, held_bytes_max=5_000_000)
