"""Attack S-07: requests whose responses must wait. Their number is limited for each connection, and other connections
are not affected.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import until
from tests.brokers import SUBSCRIPTION, SUSPEND, Cluster, RawConnection, properties_text, run
from tests.unit.broker.test_cold_reads import Disk
from tests.unit.broker.test_limits import OVERLOAD, reply_that_waits
from tests.unit.broker.test_pop import NOTIFICATION, POP, pop_fields

from rucola.broker import waiting_requests
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.remoting.channel import Channel
from rucola.remoting.fairness.read_pauses import OWED

OWED_MAX = 100_000


async def flooded(cluster: Cluster, commands: list[RemotingCommand]) -> tuple[RawConnection, Channel]:
    """Sends ``commands``; returns the connection and the broker's channel once the broker has stopped reading."""
    known = set(cluster.broker._server.channels)
    object.__setattr__(cluster.broker._server.options, "outbound_bytes_high", OWED_MAX)
    connection = await cluster.connect()
    for opaque, command in enumerate(commands):
        connection.send(command, opaque)
    await until(lambda: set(cluster.broker._server.channels) - known, "the connection")
    (channel,) = set(cluster.broker._server.channels) - known
    await until(lambda: channel.inbound.reasons & OWED, "the end of reading")
    for _ in range(50):  # by then, all requests that were read are served
        await asyncio.sleep(0)
    return connection, channel


async def answers(connection: RawConnection, count: int) -> list[int]:
    """Returns the codes of the responses by the opaque of the request."""
    codes = {}
    for _ in range(count):
        answer = await connection.receive()
        codes[answer.opaque] = answer.code
    return [codes[opaque] for opaque in range(count)]


def test_s07_sends_that_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, sync_flush=True, sync_flush_timeout_ms=60_000) as cluster:
            await cluster.send("T", b"first")
            store = cluster.broker.store
            begin, size = store.max_offset, 0
            monkeypatch.setattr(type(store), "flushed_offset", property(lambda _: 0))
            connection, channel = await flooded(cluster, [cluster.send_command("T", b"x") for _ in range(4000)])
            taken = store.max_offset - begin
            for _ in range(100):
                await asyncio.sleep(0)
            assert store.max_offset - begin == taken
            other = asyncio.ensure_future(cluster.send("T", b"x"))
            await until(lambda: store.max_offset - begin > taken, "a message of the other")
            size = store.max_offset - begin - taken
            assert taken < 3000 * size
            monkeypatch.undo()
            cluster.broker._serving.scheduler.flushed()
            assert (await other).code == 0
            assert set(await answers(connection, 4000)) == {0}
            assert not channel.inbound.reasons & OWED
            connection.close()

    run(work())


def test_s07_pulls_that_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"old")
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path) as cluster:
            connection, _ = await flooded(cluster, [cluster.pull_command("T") for _ in range(2000)])
            assert OWED_MAX // 1024 < len(cluster.broker.services.cold_reads) < 1500
            disk.answer.set()
            assert set(await answers(connection, 2000)) == {0}
            connection.close()

    run(work())


def test_s07_bodies_of_requests_that_wait(tmp_path: Path) -> None:
    """A reply waits until the client that sent the request confirms it; the broker limits bodies of waiting replies."""

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            asker, waiting = await reply_that_waits(cluster)
            text = properties_text(REPLY_TO_CLIENT="asker")
            header = SendMessageRequestHeaderV2("g", "DefaultCluster_REPLY_TOPIC", "TBW102", 4, 0, 0, 1, 0, text)
            reply = RemotingCommand(
                RequestCode.SEND_REPLY_MESSAGE_V2, ext_fields=header.to_ext_fields(), body=bytes(60_000)
            )
            connection, _ = await flooded(cluster, [reply] * 20)
            assert (
                len(cluster.broker._serving.processors._waiting) < 12
            )  # two reach the limit, but one read may contain more
            assert (await cluster.send("T", b"other")).code == 0
            await cluster.stop_broker()
            assert (await waiting).code == 14
            connection.close()
            await asker.close()

    run(work())


@pytest.mark.parametrize("kind", ["pull", "pop", "question"])
def test_s07_requests_that_wait_for_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """If too many pulls of one connection wait, further pulls are refused. Its other requests and other connections are
    still served.
    """
    monkeypatch.setattr(waiting_requests, "REQUESTS_MAX", 5)

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"first")
            services = cluster.broker.services
            hold: Any = cluster.broker.running.hold if kind == "pull" else services.pops.get().hold

            def waits() -> RemotingCommand:
                if kind == "pull":
                    return cluster.pull_command("T", 0, 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_ms=60_000)
                code = POP if kind == "pop" else NOTIFICATION
                return RemotingCommand(code, ext_fields=pop_fields(queueId=1, pollTime=60_000))

            connection = await cluster.connect()
            for opaque in range(8):
                connection.send(waits(), opaque)
            for opaque in (5, 6, 7):
                refused = await connection.receive()
                assert refused.opaque == opaque
                if kind == "pull":
                    assert (refused.code, refused.remark) == OVERLOAD
                elif kind == "pop":
                    assert refused.code == 209
                else:
                    assert refused.ext_fields["pollingFull"] == "true"
            connection.send(RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T", "queueId": "0"}), 9)
            assert (await connection.receive()).opaque == 9
            other = asyncio.ensure_future(cluster.client.invoke(cluster.broker.address, waits(), 60_000))
            await until(lambda: len(hold) == 6, "the request of the other")
            connection.close()
            await until(lambda: len(hold) == len(hold._requests._connections) == 1, "the end of the connection")
            await cluster.send("T", b"next", queue_id=0 if kind == "pull" else 1)
            assert (await other).code == 0
            assert hold._requests._connections == {}

    run(work())
