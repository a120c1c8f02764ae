"""A broker with slaves: what they get, and whom the broker lets wait for them."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, properties_text, run, run_virtual
from tests.slaves import ScriptedSlave, ha_server, has_reported
from tests.unit.broker.test_disk_trouble import Disk, until
from tests.unit.broker.test_pop import ack, pop

from rucola.broker.broker import FAST_PORT_BELOW, Broker
from rucola.broker.config import broker_options
from rucola.broker.ha import master
from rucola.errors import AddressInUseError, ConfigError
from rucola.protocol.bodies.ha import HARuntimeInfo
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.server import RemotingServer
from rucola.store.ha.sent_log import SentLog
from rucola.store.log.cold_read import ColdRead
from rucola.store.results import StoreState

OK, NO_SLAVE, LATE = ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT
SYNC: dict[str, Any] = {"broker_role": "SYNC_MASTER"}
NO_TOPICS = "slaves of RocketMQ get no topics and timers"
NO_WAIT = properties_text(UNIQ_KEY="U", WAIT="false")


async def following(cluster: Cluster) -> tuple[ScriptedSlave, asyncio.Task[None]]:
    """A slave that has the log, and takes and reports what follows."""
    slave = await ScriptedSlave.connect(cluster)
    slave.report(0)
    return slave, asyncio.create_task(slave.serve())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_a_slave_gets_each_message_at_once(tmp_path: Path, sync_flush: bool) -> None:
    """Behind RocketMQ's ASYNC_MASTER, it gets it up to 100 ms later."""

    async def play() -> None:
        async with Cluster(tmp_path, sync_flush, ha_listen_port=0) as cluster:
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            loop = asyncio.get_running_loop()
            await until(lambda: has_reported(cluster))
            for number in range(20):
                sent = await cluster.send("T", b"%d" % number)
                assert sent.code == OK
                began = loop.time()
                await slave.follow(cluster.broker.store.max_offset)
                assert loop.time() - began < 0.09, "no timer is waited for"
            assert slave.content[:4] != b"\0\0\0\0" and slave.heartbeats == 0
            slave.close()

    run(play())


def test_what_nobody_waits_for_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "GATHER_S", 0.5)

    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            await until(lambda: ha_server(cluster).reported_offset(1) >= 0)
            for number in range(10):
                await cluster.send("T", b"%d" % number)
            assert await slave.transfer() == cluster.broker.store.max_offset
            await cluster.send("T", b"more")
            await cluster.stop_broker()
            await slave.follow(cluster.broker.store.max_offset, reports=False)
            slave.close()

    run(play())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_what_senders_wait_for_is_not(tmp_path: Path, sync_flush: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "GATHER_S", 3600)

    async def play() -> None:
        async with Cluster(tmp_path, sync_flush, **SYNC) as cluster:
            slave, serving = await following(cluster)
            await until(lambda: ha_server(cluster).reported_offset(1) >= 0)
            assert (await cluster.send("T", b"x")).code == OK
            slave.close()
            await serving

    run(play())


def test_several_slaves_and_one_that_comes_back(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            for number in range(10):
                await cluster.send("T", b"%d" % number * 1000)
            end, slaves = cluster.broker.store.max_offset, []
            for _ in range(3):
                slaves.append(await ScriptedSlave.connect(cluster))
                slaves[-1].report(0)
                await slaves[-1].follow(end)
            slaves[0].close()
            await cluster.send("T", b"more")
            back = await ScriptedSlave.connect(cluster)
            back.report(end)
            await back.follow(cluster.broker.store.max_offset)
            await slaves[1].follow(cluster.broker.store.max_offset)
            assert slaves[0].content + back.content == slaves[1].content
            await until(lambda: len(ha_server(cluster).slaves) == 3)
            for slave in (*slaves, back):
                slave.close()

    run(play())


def test_a_long_log_leaves_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "TURN_BYTES", 1000)
    monkeypatch.setattr(master, "TRANSFER_BYTES", 600)
    most: list[int] = []

    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            for _ in range(10):
                await cluster.send("T", bytes(2000))
            send = master.HaChannel.send

            def noted(channel: master.HaChannel) -> None:
                before = channel._sent_bytes
                send(channel)
                most.append(channel._sent_bytes - before)

            monkeypatch.setattr(master.HaChannel, "send", noted)
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            await slave.follow(cluster.broker.store.max_offset)
            slave.close()

    run(play())
    assert max(most) == 1200 and len(most) > 15


def test_heartbeats_and_silence(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            await cluster.send("T", b"x")
            loop = asyncio.get_running_loop()
            slave, silent = [await ScriptedSlave.connect(cluster) for _ in range(2)]
            slave.report(0)
            await slave.follow(cluster.broker.store.max_offset)
            began = loop.time()
            for _ in range(6):
                assert await slave.transfer() == 0
                slave.report(slave.end)
            assert 5 * 6 - 1 <= loop.time() - began <= 7 * 6 and slave.end == cluster.broker.store.max_offset
            assert await silent.is_closed(), "it never reported"
            assert await slave.is_closed() and 20 <= loop.time() - began <= 65
            assert not ha_server(cluster).slaves

    run_virtual(play())


# -- SYNC_MASTER -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync_flush", [False, True])
def test_without_a_slave_the_sender_is_told_at_once(tmp_path: Path, sync_flush: bool) -> None:
    """At RocketMQ's SYNC_MASTER, it waits for 3 s."""

    async def play() -> None:
        async with Cluster(tmp_path, sync_flush, **SYNC) as cluster:
            loop = asyncio.get_running_loop()
            began = loop.time()
            answer = await cluster.send("T", b"alone")
            assert answer.code == NO_SLAVE and "0 slaves are in sync, and 1 must have it" in (answer.remark or "")
            assert answer.ext_fields["queueOffset"] == "0", "clients take it as stored"
            assert loop.time() - began < 1
            assert (await cluster.send("T", b"nobody waits", NO_WAIT)).code == OK
            store = cluster.broker.store
            await until(lambda: store.confirm_offset == store.max_offset)  # the answer has not waited for the sync
            assert len(await cluster.bodies()) == 2

    run(play())


def test_a_slave_that_has_not_reported_or_lacks_too_much_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """A slave of RocketMQ says up to 5 s after it has connected what it has; one that catches up may take hours."""

    async def play() -> None:
        async with Cluster(tmp_path, slave_timeout_ms=60_000, ha_max_gap_not_in_sync=1000, **SYNC) as cluster:
            await cluster.send("T", b"x" * 2000)
            slave = await ScriptedSlave.connect(cluster)
            await until(lambda: bool(ha_server(cluster).slaves))
            assert (await cluster.send("T", b"x")).code == NO_SLAVE
            slave.report(0)
            await slave.transfer()
            assert (await cluster.send("T", b"x")).code == NO_SLAVE
            serving = asyncio.create_task(slave.serve())
            slave.report(slave.end)
            await until(lambda: ha_server(cluster).held_offset(1) == cluster.broker.store.max_offset)
            assert (await cluster.send("T", b"x")).code == OK
            slave.close()
            await serving

    run(play())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_an_acknowledged_message_is_on_a_slave(tmp_path: Path, sync_flush: bool) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, sync_flush, **SYNC) as cluster:
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            await until(lambda: has_reported(cluster))
            sending = asyncio.create_task(cluster.send("T", b"kept"))
            await until(lambda: cluster.broker.store.max_offset > 0)
            await slave.follow(cluster.broker.store.max_offset, reports=False)
            for offset in (0, slave.end - 1):
                slave.report(offset)
                await asyncio.sleep(0.05)
                assert not sending.done() and cluster.broker.sends_waiting == 1
            assert len(await cluster.bodies()) == 1, "consumers need not wait for slaves"
            slave.report(slave.end)
            assert (await sending).code == OK and cluster.broker.sends_waiting == 0
            slave.close()

    run(play())


def test_what_a_slave_asks_for_confirms_no_message(tmp_path: Path) -> None:
    """A slave of another log asks from its own end."""

    async def play() -> None:
        async with Cluster(tmp_path, **SYNC) as cluster:
            slow = await ScriptedSlave.connect(cluster)
            slow.report(0)
            await until(lambda: has_reported(cluster))
            sent = asyncio.create_task(cluster.send("T", b"waits"))
            await until(lambda: cluster.broker.running.sends_waiting() == 1)
            other = await ScriptedSlave.connect(cluster)
            other.report(cluster.broker.store.max_offset)
            assert (await sent).code == LATE
            slow.close()
            other.close()

    run_virtual(play())


def test_a_slave_that_does_not_confirm_in_time(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, **SYNC) as cluster:
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            await until(lambda: has_reported(cluster))
            loop = asyncio.get_running_loop()
            began = loop.time()
            answer = await cluster.send("T", b"late")
            assert answer.code == LATE and "copy was not confirmed in time" in (answer.remark or "")
            assert 2.9 <= loop.time() - began <= 4
            slave.close()

    run_virtual(play())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_the_last_slave_leaves_while_senders_wait(tmp_path: Path, sync_flush: bool) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, sync_flush, slave_timeout_ms=60_000, **SYNC) as cluster:
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            await until(lambda: has_reported(cluster))
            sends = [asyncio.create_task(cluster.send("T", b"%d" % number)) for number in range(5)]
            await slave.transfer()
            await until(lambda: cluster.broker.sends_waiting > 0)
            slave.close()
            assert {(await send).code for send in sends} == {NO_SLAVE}
            slave, serving = await following(cluster)
            await until(lambda: ha_server(cluster).held_offset(1) == cluster.broker.store.max_offset)
            assert (await cluster.send("T", b"after")).code == OK
            slave.close()
            await serving

    run(play())


def test_two_slaves_are_needed_and_one_lies(tmp_path: Path) -> None:
    """One false report releases every send of RocketMQ's master."""

    async def play() -> None:
        async with Cluster(tmp_path, in_sync_replicas=3, **SYNC) as cluster:
            honest, serving = await following(cluster)
            liar = await ScriptedSlave.connect(cluster)
            liar.report(0)
            await until(lambda: len(ha_server(cluster).slaves) == 2)
            sending = asyncio.create_task(cluster.send("T", b"twice"))
            await until(lambda: cluster.broker.sends_waiting == 1)
            liar.report(1 << 60)
            assert await liar.is_closed()
            assert (await sending).code == NO_SLAVE
            other, also = await following(cluster)
            await until(lambda: ha_server(cluster).held_offset(2) == cluster.broker.store.max_offset)
            assert (await cluster.send("T", b"twice")).code == OK
            for slave, task in ((honest, serving), (other, also)):
                slave.close()
                await task

    run(play())


def test_a_stop_waits_for_slaves_and_then_tells_senders(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, slave_timeout_ms=5000, **SYNC) as cluster:
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            await until(lambda: has_reported(cluster))
            sending = asyncio.create_task(cluster.send("T", b"kept"))
            await until(lambda: cluster.broker.sends_waiting == 1)
            stopping = asyncio.create_task(cluster.stop_broker())
            await asyncio.sleep(0.05)
            assert not stopping.done() and not sending.done()
            await slave.follow(cluster.broker.store.max_offset)
            assert (await sending).code == OK
            await stopping
            assert await slave.is_closed()

    run(play())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_a_stop_sends_what_there_is_and_reads_the_log_no_more(
    tmp_path: Path, sync_flush: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the port was open longer than the log: what was due after its end was read from closed files."""
    reads: list[StoreState] = []
    copy_of = SentLog.copy_of

    async def play() -> None:
        async with Cluster(tmp_path, sync_flush, ha_listen_port=0) as cluster:

            def noted(log: SentLog, physical_offset: int, most: int, cold: ColdRead | None) -> bytes | bytearray | None:
                reads.append(cluster.broker.store.state)
                return copy_of(log, physical_offset, most, cold)

            monkeypatch.setattr(SentLog, "copy_of", noted)
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            await until(lambda: has_reported(cluster))
            server, store = ha_server(cluster), cluster.broker.store
            shutdown = store.shutdown

            def shut_down() -> None:
                shutdown()
                server.grew()  # as a sync does that ends at the same time

            monkeypatch.setattr(store, "shutdown", shut_down)
            with monkeypatch.context() as late:
                late.setattr(master.HaChannel, "send_soon", lambda channel: None)
                await cluster.send("T", b"not sent yet")
            assert reads == []
            end = store.max_offset
            await cluster.stop_broker()
            assert await slave.is_closed() and slave.end == end
            assert not server.slaves

    run(play())
    assert set(reads) == {StoreState.RUNNING}


def test_a_slave_that_was_cut_counts_no_more_even_if_its_transport_does_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transports of uvloop sometimes do not say that they are lost."""
    monkeypatch.setattr(master.HaChannel, "connection_lost", lambda channel, error: None)

    async def play() -> None:
        async with Cluster(tmp_path, slave_timeout_ms=60_000, **SYNC) as cluster:
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            await until(lambda: has_reported(cluster))
            sending = asyncio.create_task(cluster.send("T", b"x"))
            await until(lambda: cluster.broker.sends_waiting == 1)
            slave.report(1 << 40)
            assert (await sending).code == NO_SLAVE and not ha_server(cluster).slaves
            assert await slave.is_closed()

    run(play())


def test_a_start_that_fails_leaves_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(broker: Broker) -> None:
        raise ValueError("a defect")

    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with monkeypatch.context() as patched, pytest.raises(ValueError, match="a defect"):
            patched.setattr(Broker, "_start_fast", fails)
            async with Cluster(tmp_path, ha_listen_port=port):
                pass
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    run(play())


def test_a_disk_that_fails_is_told_before_any_slave_is_waited_for(tmp_path: Path) -> None:
    async def play() -> None:
        disk = Disk()
        async with Cluster(tmp_path, True, disk.files(), sync_flush_timeout_ms=200, **SYNC) as cluster:
            slave, serving = await following(cluster)
            assert (await cluster.send("T", b"0")).code == OK
            had = slave.end
            with disk.waiting():
                answer = await cluster.send("T", b"1")
                assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT and "flush" in (answer.remark or "")
                assert slave.end == had, "only what is synced leaves"
            await until(lambda: slave.end == cluster.broker.store.max_offset > had)
            slave.close()
            await serving

    run(play())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_requests_that_are_no_sends_succeed_without_slaves(tmp_path: Path, sync_flush: bool) -> None:
    """Clients would repeat them, or give up. RocketMQ answers success, too."""

    async def play() -> None:
        async with Cluster(tmp_path, sync_flush, **SYNC) as cluster:
            assert (await cluster.send("T", b"x")).code == NO_SLAVE
            assert (await ack(cluster, await pop(cluster), 0)).code == OK
            slave, serving = await following(cluster)
            await until(lambda: ha_server(cluster).held_offset(1) == cluster.broker.store.max_offset)
            assert (await cluster.send("T", b"x")).code == OK
            popped = await pop(cluster)
            serving.cancel()
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert (await ack(cluster, popped, 1)).code == OK
            assert not sync_flush or loop.time() - began >= 2.9, "with ASYNC_FLUSH, acknowledgements are collected"
            slave.close()

    run_virtual(play())


# -- hands -------------------------------------------------------------------------------------------------------------


def test_ha_status(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            await cluster.send("T", b"x")
            slave, fresh = await ScriptedSlave.connect(cluster), await ScriptedSlave.connect(cluster)
            slave.report(0)
            await slave.follow(cluster.broker.store.max_offset)
            await until(lambda: ha_server(cluster).held_offset(1) == slave.end)
            status = HARuntimeInfo.decode((await cluster.ask(907)).body)
            assert (status.master, status.in_sync_slave_nums) == (True, 1)
            assert status.master_commit_log_max_offset == slave.end
            assert sorted((one.slave_ack_offset, one.diff, one.in_sync) for one in status.ha_connection_info) == [
                (-1, slave.end + 1, False),
                (slave.end, 0, True),
            ]
            slave.close()
            fresh.close()

    run(play())


@pytest.mark.parametrize(
    ("given", "feeds", "port", "needed"),
    [
        ({}, False, 10912, 1),
        ({"brokerRole": "ASYNC_MASTER"}, True, 10912, 1),
        ({"brokerRole": "SYNC_MASTER"}, True, 10912, 2),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "1", "listenPort": "7000"}, True, 7001, 1),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "3", "haListenPort": "9"}, True, 9, 3),
        ({"brokerRole": "ASYNC_MASTER", "inSyncReplicas": "3", "listenPort": "0"}, True, 0, 1),
        ({"brokerRole": "ASYNC_MASTER", "haListenPort": "-1"}, False, 10912, 1),
    ],
)
def test_options(given: dict[str, str], feeds: bool, port: int, needed: int) -> None:
    config, _ = broker_options(given)
    assert (config.feeds_slaves, config.ha_port, config.replicas_needed) == (feeds, port, needed)


def test_a_name_server_tells_slaves_the_port(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            (broker,) = cluster.namesrv.routes._live.values()
            assert broker.ha_address == f"127.0.0.1:{ha_server(cluster).port}"

    run(play())


def test_slaves_of_rocketmq_find_topics_and_timers_below_the_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They ask for them at the port of clients minus 2."""
    caplog.set_level(logging.INFO)

    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            fast = cluster.broker._fast
            assert fast is not None
            assert fast.port == int(cluster.broker.address.rpartition(":")[2]) - FAST_PORT_BELOW
            if NO_TOPICS not in caplog.text:  # another process may have this port
                for code in (21, 61):
                    answer = await cluster.client.invoke(fast.address, RemotingCommand(code), 10_000)
                    assert answer.code == OK and answer.body

    run(play())


def test_a_taken_port_for_slaves_of_rocketmq_keeps_the_broker_from_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start = RemotingServer.start

    async def taken(server: RemotingServer) -> None:
        if isinstance(server.handler, Broker) and server.handler._fast is server:
            raise AddressInUseError(server.address)
        await start(server)

    monkeypatch.setattr(RemotingServer, "start", taken)

    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            assert (await cluster.send("T", b"x")).code == OK
            assert NO_TOPICS in caplog.text

    run(play())


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path / "a", ha_listen_port=0) as cluster:
            port = ha_server(cluster).port
            with pytest.raises(AddressInUseError):
                async with Cluster(tmp_path / "b", ha_listen_port=port):
                    pass

    run(play())


def test_allowed_slaves_that_are_no_addresses(tmp_path: Path) -> None:
    async def play() -> None:
        with pytest.raises(ConfigError, match="haAllowedSlaves"):
            async with Cluster(tmp_path, ha_listen_port=0, ha_allowed_slaves="10.0.0.1, example.org"):
                pass

    run(play())
