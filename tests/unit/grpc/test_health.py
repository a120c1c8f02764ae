"""The health service, with grpcio as the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from rucola.grpc.health import HEALTH_V1, HealthService
from rucola.grpc.server import GrpcServer

REQUEST, RESPONSE = HEALTH_V1.message_class("HealthCheckRequest"), HEALTH_V1.message_class("HealthCheckResponse")
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


def play(scene: Callable[[grpc.aio.Channel, HealthService], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        health = HealthService("a.B")
        server = GrpcServer(health.methods(), "127.0.0.1", 0, time.monotonic)
        await server.start()
        async with grpc.aio.insecure_channel(server.address) as channel:
            await asyncio.wait_for(scene(channel, health), 30)
        await server.stop(0)

    asyncio.run(run())


def test_checks() -> None:
    async def scene(channel: grpc.aio.Channel, health: HealthService) -> None:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == SERVING
        assert await check(REQUEST(service="a.B").SerializeToString()) == SERVING
        health.set_serving("a.B", False)
        assert await check(REQUEST(service="a.B").SerializeToString()) == NOT_SERVING
        assert await check(b"") == SERVING
        for request, code in ((REQUEST(service="c").SerializeToString(), "NOT_FOUND"), (b"\xff", "INVALID_ARGUMENT")):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await check(request)
            assert error.value.code().name == code

    play(scene)


def test_a_watch_tells_each_change_once() -> None:
    async def scene(channel: grpc.aio.Channel, health: HealthService) -> None:
        watches = [
            channel.unary_stream("/grpc.health.v1.Health/Watch")(REQUEST(service=name).SerializeToString())
            for name in ("a.B", "later")
        ]
        assert [await watch.read() for watch in watches] == [SERVING, SERVICE_UNKNOWN]
        health.set_serving("a.B", True)  # no change
        health.set_serving("a.B", False)
        health.set_serving("later", True)
        assert [await watch.read() for watch in watches] == [NOT_SERVING, SERVING]
        watches[0].cancel()
        while "a.B" in health._watches:
            await asyncio.sleep(0.01)
        health.set_serving("a.B", True)
        health.set_serving("later", False)
        assert await watches[1].read() == NOT_SERVING
        watches[1].cancel()

    play(scene)
