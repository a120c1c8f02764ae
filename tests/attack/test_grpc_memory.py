"""Attacks S-67 to S-69: clients of a gRPC port that want to fill its memory, or that keep it waiting."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.attack.grpc_peers import CHECK, GREETING, MIB, Attacker, Canary, attacked, forgotten, memory
from tests.sizes import size
from tests.unit.grpc.test_tls import trusting
from tests.unit.http2.wire import data, settings, word

from rucola.grpc.health import HEALTH_V1
from rucola.grpc.reflection import REFLECTION_V1
from rucola.grpc.self_signed import self_signed_tls
from rucola.grpc.server import GrpcServer
from rucola.grpc.server_options import GrpcServerOptions
from rucola.http2.frames import PREFACE, ErrorCode, FrameType, Setting
from rucola.remoting import tls_listener
from rucola.runtime.machine import raise_file_limit
from rucola.testing.clock import ManualClock
from rucola.testing.event_loop import advance, run_stepped, settle

NO_WINDOW = PREFACE + settings((Setting.INITIAL_WINDOW_SIZE, 0))
REFLECT = REFLECTION_V1.path("ServerReflectionInfo").decode()


async def pass_s(canary: Canary, seconds: int, clock: ManualClock | None = None) -> None:
    """Lets time pass for everybody, a second at a time; the canary is served all the while.

    Args:
        canary: the canary.
        seconds: how long.
        clock: the clock of the server, if it is not the loop's.
    """
    for _ in range(seconds):
        advance(1)
        if clock is not None:
            clock.advance(1000)
        await canary.served()


def message(body: bytes) -> bytes:
    """A request as it stands in DATA."""
    return b"\0" + len(body).to_bytes(4, "big") + body


def test_s67_windows_that_never_open() -> None:
    """Clients ask for 3,200 MiB and open no window. The server answers until 16 MiB wait, refuses the rest, and resets
    after 20 s what waits; the handlers are told.
    """

    async def scene() -> None:
        async with attacked(GrpcServerOptions(unsent_bytes_max=16 * MIB)) as (server, service, canary):
            attackers = [await Attacker.open(server, NO_WINDOW) for _ in range(8)]
            with memory(16 * MIB + 8 * 5 * MIB):  # and what one read of each may add
                for _ in range(10):
                    for attacker in attackers:
                        attacker.send(b"".join(attacker.request("/t.T/Large", message(b"x")) for _ in range(4)))
                        await canary.served()
                        assert server.unsent_bytes < 16 * MIB + 5 * MIB * len(attackers)
            assert server.unsent_bytes > 16 * MIB
            refused = [fields for attacker in attackers for fields in attacker.answers.values()]
            assert {fields["grpc-status"] for fields in refused} == {"8"}
            assert len(refused) + len(service.waiting) == 320
            waited = service.over
            await pass_s(canary, 19)
            assert server.unsent_bytes > 16 * MIB
            await pass_s(canary, 8)
            assert server.unsent_bytes == 0 and service.waiting == [] and service.over > waited
            codes = {code for attacker in attackers for code in attacker.resets.values()}
            assert ErrorCode.ENHANCE_YOUR_CALM in codes and not any(one.ended.is_set() for one in attackers)
            await forgotten(server, *attackers)

    run_stepped(scene())


def test_s67_a_conversation_that_is_not_read() -> None:
    """Each small question to reflection has an answer of 1 KB or more."""
    question = REFLECTION_V1.message_class("ServerReflectionRequest")(file_by_filename=HEALTH_V1.file)
    asked = message(question.SerializeToString())

    async def scene() -> None:
        async with attacked(GrpcServerOptions(unsent_bytes_max=MIB)) as (server, _, canary):
            attacker = await Attacker.open(server, NO_WINDOW)
            with memory(8 * MIB):
                for _ in range(size(3, 30)):
                    attacker.send(attacker.request(REFLECT, None))
                    for _ in range(15):
                        attacker.send(data(attacker.stream, asked * 100))
                        await canary.served()
                        assert server.unsent_bytes < 2 * MIB
            assert len(attacker.resets) >= 3
            await forgotten(server, attacker)

    run_stepped(scene())


def test_s67_many_open_calls() -> None:
    """Waiting calls of all connections are bounded; who has few may go on."""

    async def scene() -> None:
        async with attacked(GrpcServerOptions(streams_max=1000)) as (server, service, canary):
            attackers = [await Attacker.open(server) for _ in range(4)]
            for _ in range(10):
                for attacker in attackers:
                    attacker.send(b"".join(attacker.request() for _ in range(100)))
                    await canary.served()
            assert len(service.waiting) <= 1000 + 4 * 32, "and what one part of a read may add"
            refused = [fields for attacker in attackers for fields in attacker.answers.values()]
            assert len(refused) + len(service.waiting) == 4000
            await forgotten(server, *attackers)
            assert service.waiting == []

    run_stepped(scene())


def test_s67_giant_messages() -> None:
    """What announces 4 GiB is refused at once; requests that are never complete share 8 MiB, and must come quickly."""

    async def scene() -> None:
        async with attacked(GrpcServerOptions(held_bytes_max=8 * MIB)) as (server, _, canary):
            giant = await Attacker.open(server)
            giant.send(giant.request("/t.T/Echo", None) + data(giant.stream, b"\0\xff\xff\xff\xff" + bytes(1000)))
            attackers = [await Attacker.open(server) for _ in range(4)]
            part = bytes(16_000)
            with memory(14 * MIB):
                for _ in range(20):
                    for attacker in attackers:
                        attacker.send(attacker.request("/t.T/Echo", None))
                        attacker.send(data(attacker.stream, b"\0" + (4 * MIB).to_bytes(4, "big")))
                        for _ in range(10):
                            attacker.send(data(attacker.stream, part))
                        await canary.served()
                        assert server.held_bytes <= 8 * MIB
            assert giant.answers[giant.stream]["grpc-status"] == "8" and giant.resets[giant.stream] == 0
            refused = [fields for attacker in attackers for fields in attacker.answers.values()]
            assert refused and {fields["grpc-status"] for fields in refused} == {"8"}
            await pass_s(canary, 30)
            assert server.held_bytes == 0
            assert sum(len(attacker.answers) for attacker in attackers) == 80
            await forgotten(server, giant, *attackers)

    run_stepped(scene())


def test_s67_streams_one_after_another() -> None:
    """A connection keeps nothing of streams that have ended."""

    async def scene() -> None:
        async with attacked() as (server, _, canary):
            attacker = await Attacker.open(server)
            before = 0

            async def calls(count: int) -> None:
                nonlocal before
                for _ in range(count // 100):
                    before += 100
                    attacker.send(b"".join(attacker.request(CHECK, bytes(5)) for _ in range(100)))
                    attacker.send(word(FrameType.WINDOW_UPDATE, 0, 100 * 7))
                    while len(attacker.answers) < 100:
                        attacker.came.clear()
                        await attacker.came.wait()
                    attacker.answers.clear()

            await calls(size(1000, 2000))
            with memory(MIB // 2):
                await calls(size(4_000, 98_000))
            await canary.served()
            assert server.stream_count <= 1 and attacker.goaway == -1 and before >= 5_000
            await forgotten(server, attacker)

    run_stepped(scene())


def opened(server: GrpcServer, count: int, first: bytes) -> Iterator[socket.socket]:
    """Connections without an event loop, from several loopback addresses."""
    for number in range(count):
        made = socket.create_connection((server.host, server.port), source_address=(f"127.0.1.{1 + number % 200}", 0))
        made.sendall(first)
        yield made


CONNECTIONS = size(300, 10_000)


@pytest.mark.parametrize("first", [b"", PREFACE[:5], GREETING], ids=["nothing", "part of a preface", "a preface"])
def test_s68_connections_that_do_nothing(first: bytes) -> None:
    """Many connections that say nothing, or no more than hello, are closed in time; the canary is served meanwhile."""
    file_limit = raise_file_limit()
    # Both ends are here, and the last eighth of the descriptors is for the store.
    count = min(CONNECTIONS, file_limit * 7 // 16 - 200) if file_limit else CONNECTIONS

    async def scene() -> None:
        options = GrpcServerOptions(connections_max=20_000, connections_per_address_max=20_000)
        clock = ManualClock()  # the loop's goes on while connections are opened
        async with attacked(options, clock.monotonic) as (server, _, canary):
            made = []
            with memory(count * 48 * 1024):
                for one in opened(server, count, first):
                    made.append(one)
                    if len(made) % 50 == 0:
                        await canary.served()
                while len(server.connections) < count + 1:
                    await settle()
                assert len(server.time_limits._silent) == count + 1
            await pass_s(canary, 9 if first != GREETING else 119, clock)
            assert len(server.connections) == count + 1
            await pass_s(canary, 20, clock)
            while len(server.connections) > 1:
                await settle()
            for one in made:
                one.close()
            await forgotten(server)

    run_stepped(scene())


def test_s68_too_many_connections() -> None:
    async def scene() -> None:
        options = GrpcServerOptions(connections_max=20, connections_per_address_max=5)
        async with attacked(options) as (server, _, canary):
            mine = [await Attacker.open(server, host="127.0.0.2") for _ in range(5)]
            refused = [await Attacker.open(server, b"", host="127.0.0.2") for _ in range(50)]
            for one in refused:
                await one.ended.wait()
            await canary.served()
            assert len(server.connections) == 6 and server._count.refused == 50
            others = [await Attacker.open(server, host=f"127.0.0.{3 + number % 5}") for number in range(14)]
            last = await Attacker.open(server, b"", host="127.0.0.9")
            await last.ended.wait()
            await canary.served()
            await forgotten(server, *mine, *others)
            again = Canary(await Attacker.open(server, host="127.0.0.2"))
            await again.served()
            again.stop()

    run_stepped(scene())


def test_s68_handshakes_that_nobody_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open TLS connections of one address do not keep others from theirs, and end in 10 s."""
    monkeypatch.setattr(tls_listener, "HANDSHAKES_MAX", 8)

    async def scene() -> None:
        async with attacked(GrpcServerOptions(tls=self_signed_tls())) as (server, _, canary):
            listener = server._server
            assert isinstance(listener, tls_listener.TlsListener)
            half = [await Attacker.open(server, b"", host="127.0.0.2") for _ in range(8)]
            for attacker in half:
                attacker.send(b"\x16\x03\x01\x02\x00")
            while listener._shaking["127.0.0.2"] < 8:
                await settle()
            more = await Attacker.open(server, b"", host="127.0.0.2")
            await more.ended.wait()
            honest = Canary(await Attacker.open(server, tls=trusting()))
            await honest.served()
            await pass_s(canary, 11)
            for attacker in half:
                await attacker.ended.wait()
            assert not listener._shaking["127.0.0.2"]
            again = Canary(await Attacker.open(server, host="127.0.0.2", tls=trusting()))
            for one in (again, honest):
                await one.served()
                one.stop()
                one.attacker.close()
            while len(server.connections) > 1:
                await settle()

    run_stepped(scene())


DEEP = {
    "groups": b"\x0b" * 200_000,
    "groups in groups that end": b"\x0b" * 90_000 + b"\x0c" * 90_000,
    "messages in messages": b"".join(b"\x2a" + bytes((0xFF, 0xFF, 0x7F)) for _ in range(10_000)),
    "unknown numbers": b"\x80\x01\x00" * 300_000,
    "packed": b"\x12" + b"\x80\x80\x20" + b"\x01" * (512 * 1024),
    "a long name": b"\x0a\x80\x80\x20" + b"n" * (512 * 1024),
    "a name again and again": b"\x0a\x01n" * 200_000,
    "no UTF-8": b"\x0a\x03\xff\xfe\xfd",
    "a number that does not end": b"\x08" + b"\xff" * 1000,
}


@pytest.mark.few
@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("path", [HEALTH_V1.path("Check").decode(), REFLECT])
def test_s69_messages_that_are_costly_to_parse(name: str, path: str) -> None:
    """Each is answered or refused."""

    async def scene() -> None:
        async with attacked() as (server, _, canary):
            attacker = await Attacker.open(server)
            body = message(DEEP[name])
            parts = [body[at : at + 16_000] for at in range(0, len(body), 16_000)]
            with memory(16 * MIB):
                for _ in range(3):
                    attacker.send(attacker.request(path, None))
                    for number, part in enumerate(parts):
                        attacker.send(data(attacker.stream, part, number == len(parts) - 1))
                    while attacker.stream not in attacker.answers and attacker.stream not in attacker.resets:
                        window = word(FrameType.WINDOW_UPDATE, 0, MIB) + word(
                            FrameType.WINDOW_UPDATE, attacker.stream, MIB
                        )
                        attacker.send(window)
                        await canary.served()
            statuses = {fields["grpc-status"] for fields in attacker.answers.values()}
            assert statuses <= {"0", "3", "5"} and len(statuses) <= 1
            await forgotten(server, attacker)

    run_stepped(scene())
