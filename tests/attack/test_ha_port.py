"""Hostile peers on the HA port: they copy nothing without permission, and cost others nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.attack.grpc_peers import MIB
from tests.brokers import Cluster, run
from tests.slaves import ScriptedSlave, ha_server
from tests.unit.broker.test_disk_trouble import until

from rucola.broker.ha.master import SLAVES_MAX
from rucola.broker.ha.slave_access import SlaveAccess
from rucola.formats.ha import encode_report
from rucola.protocol.codes import ResponseCode


@pytest.mark.parametrize(
    ("allowed", "insecure", "host", "may"),
    [
        ("", False, "127.0.0.1", True),
        ("", False, "::1", True),
        ("", False, "10.0.0.1", False),
        ("", True, "10.0.0.1", True),
        ("10.0.0.1, 10.1.0.0/16", False, "10.0.0.1", True),
        ("10.0.0.1, 10.1.0.0/16", False, "10.0.0.2", False),
        ("10.0.0.1, 10.1.0.0/16", False, "10.1.255.7", True),
        ("10.0.0.1, 10.1.0.0/16", False, "::ffff:10.1.2.3", True),
        ("fe80::/64", False, "fe80::1%eth0", True),
        ("10.0.0.1", False, "", False),
        ("10.0.0.1", False, "@unix", False),
    ],
)
def test_s75_who_may_copy(allowed: str, insecure: bool, host: str, may: bool) -> None:
    assert SlaveAccess(allowed, insecure).allows(host) is may


def test_s75_who_may_not_copy_gets_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            await cluster.send("T", b"secret")
            monkeypatch.setattr(SlaveAccess, "allows", lambda self, host: False)
            stranger = await ScriptedSlave.connect(cluster)
            stranger.report(0)
            assert await stranger.is_closed() and not stranger.content and stranger.heartbeats == 0
            assert not ha_server(cluster).slaves

    run(play())


@pytest.mark.parametrize("kind", ["ahead", "back", "negative", "elsewhere"])
def test_s75_lies_acknowledge_nothing(tmp_path: Path, kind: str) -> None:
    lies = {"ahead": [0, 1 << 50], "back": [0, 100, 99], "negative": [-5], "elsewhere": [1 << 40, 1 << 40]}[kind]

    async def play() -> None:
        async with Cluster(tmp_path, broker_role="SYNC_MASTER", in_sync_replicas=3, slave_timeout_ms=60_000) as cluster:
            honest = await ScriptedSlave.connect(cluster)
            honest.report(0)
            serving = asyncio.create_task(honest.serve())
            liar = await ScriptedSlave.connect(cluster)
            await until(lambda: len(ha_server(cluster).slaves) == 2)
            sending = asyncio.create_task(cluster.send("T", b"needed twice" * 100))
            await until(lambda: ha_server(cluster).held_offset(1) == cluster.broker.store.max_offset > 0)
            for lie in lies:
                liar.write((lie % (1 << 64)).to_bytes(8, "big"))
                await asyncio.sleep(0.02)
            assert await liar.is_closed()
            assert (await sending).code == ResponseCode.SLAVE_NOT_AVAILABLE
            honest.close()
            await serving

    run(play())


def test_s75_too_many_connections(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            await cluster.send("T", b"x")
            slaves = [await ScriptedSlave.connect(cluster) for _ in range(SLAVES_MAX)]
            await until(lambda: len(ha_server(cluster).slaves) == SLAVES_MAX)
            for _ in range(50):
                late = await ScriptedSlave.connect(cluster)
                assert await late.is_closed()
            slaves[0].report(0)
            await slaves[0].follow(cluster.broker.store.max_offset)
            slaves[1].close()
            await until(lambda: len(ha_server(cluster).slaves) == SLAVES_MAX - 1)
            back = await ScriptedSlave.connect(cluster)
            back.report(0)
            await back.follow(cluster.broker.store.max_offset)
            for slave in (*slaves, back):
                slave.close()

    run(play())


def test_s75_a_slave_that_never_reads_holds_a_bounded_part_of_the_log(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            for _ in range(24):
                await cluster.send("T", bytes(MIB - 1000))
            greedy = await ScriptedSlave.connect(cluster)
            greedy._writer.transport.pause_reading()  # type: ignore[attr-defined]
            greedy.report(1)
            await until(lambda: any(slave._is_paused for slave in ha_server(cluster).slaves))
            (slave,) = ha_server(cluster).slaves
            assert slave._transport is not None and slave._transport.get_write_buffer_size() < 3 * MIB
            for _ in range(5):
                assert (await cluster.send("T", b"others go on")).code == ResponseCode.SUCCESS
            assert slave._transport.get_write_buffer_size() < 3 * MIB
            greedy.close()

    run(play())


def test_s75_floods_of_reports(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            await cluster.send("T", b"x" * 1000)
            flood = await ScriptedSlave.connect(cluster)
            flood.report(0)
            await flood.follow(cluster.broker.store.max_offset)
            for _ in range(20):
                flood.write(encode_report(flood.end) * 20_000 + encode_report(flood.end)[:3])
                flood.write(encode_report(flood.end)[3:])
                assert (await cluster.send("T", b"others go on")).code == ResponseCode.SUCCESS
            await until(lambda: ha_server(cluster).held_offset(1) >= flood.end)
            flood.close()

    run(play())
