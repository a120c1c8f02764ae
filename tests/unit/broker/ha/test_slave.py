"""A broker as a slave: finding the master, the log, and masters that go, return, or must not be followed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run_virtual
from tests.masters import HaPort, a_log, log_bytes
from tests.pairs import Pair, until
from tests.slaves import ha_server
from tests.unit.broker.ha.test_replica import KnownBroker
from tests.unit.store.stores import SEGMENT, message

from rucola.broker import Broker, BrokerConfig
from rucola.broker.ha.slave import AGAIN_S, Slave
from rucola.cli.broker_server import health_of
from rucola.errors import BrokerError, RemotingConnectError, StoreDamagedError
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.protocol.bodies.ha import HARuntimeInfo
from rucola.protocol.bodies.route import TopicRouteData
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.log.flush import FlushService
from rucola.store.message_store import MessageStore
from rucola.store.results import StoreState

READS: dict[str, Any] = {"slave_read_enable": True}


# -- copying and serving -----------------------------------------------------------------------------------------------


def test_a_slave_copies_the_log_and_serves_reads(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, READS) as pair:
            await pair.make_group()
            for number in range(20):
                await pair.send("T", b"%d" % number)
            await pair.start_slave()
            await pair.in_step()
            assert pair.same_log() and pair.slave.ready and not pair.slave.not_in_sync
            assert await pair.bodies_at_slave() == [b"%d" % number for number in range(20)]
            await pair.send("T", b"later")
            await pair.in_step()
            assert (await pair.bodies_at_slave())[-1] == b"later"
            answer = await pair.ask_slave(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
            assert answer.ext_fields["offset"] == "21"
            assert pair.broker.slaves == 1

    run_virtual(scene())


def test_a_slave_is_in_the_route_and_leaves_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("T", b"x")
            await pair.start_slave()

            async def addresses() -> dict[int, str]:
                from rucola.remoting.name_server_api import NameServerApi

                route: TopicRouteData = await NameServerApi(pair.client).route_info(pair.namesrv.address, "T")
                return dict(route.broker_datas[0].broker_addrs)

            assert await addresses() == {0: pair.broker.address, 1: pair.slave.address}
            slave = pair.slave.address
            await pair.stop_broker()
            assert await addresses() == {1: slave}

    run_virtual(scene())


def test_a_master_that_comes_later_is_found(tmp_path: Path) -> None:
    async def scene() -> None:
        namesrv = NameServer(NamesrvConfig(listen_port=0))
        await namesrv.start()
        slave_config = BrokerConfig(
            namesrv_addr=namesrv.address, listen_port=0, broker_role="SLAVE", broker_id=1, ha_listen_port=0
        )
        slave = Broker(slave_config, MessageStoreConfig(str(tmp_path / "slave")))
        await slave.start()
        assert slave.ready and slave.not_in_sync == "not in sync: not connected to the master"
        assert slave.role_text == "1 of a master not found yet"
        await asyncio.sleep(60)
        master_config = replace(slave_config, broker_role="ASYNC_MASTER", broker_id=0)
        master = Broker(master_config, MessageStoreConfig(str(tmp_path / "master")))
        await master.start()
        await until(lambda: not slave.not_in_sync)  # nothing to copy yet
        master.store.put_message(message(1))
        await until(lambda: log_bytes(slave.store) == log_bytes(master.store) != b"")
        assert slave.store.state is StoreState.RUNNING
        await slave.shutdown()
        await master.shutdown()
        await namesrv.shutdown()

    run_virtual(scene())


def test_configured_addresses_count_more_than_those_of_name_servers(tmp_path: Path) -> None:
    """RocketMQ loses ``haMasterAddress``: such a slave never connects."""

    async def scene() -> None:
        async with Pair(tmp_path) as pair, Pair(tmp_path / "other") as other:
            await pair.send("T", b"x")
            ha = pair.broker.ha_address or ""
            await other.start_slave(ha_master_address=ha, master_broker_address=pair.broker.address)
            await until(lambda: other.slave.store.max_offset == pair.broker.store.max_offset)
            assert log_bytes(other.slave.store) == log_bytes(pair.broker.store)
            await other.slave.running.registration.register()
            assert other.link.master == ha
            await until(lambda: other.slave.topics.get("T") is not None)

    run_virtual(scene())


def test_one_name_server_that_knows_the_master_is_enough(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            other = NameServer(NamesrvConfig(listen_port=0))
            await other.start()
            await pair.send("T", b"x")
            await pair.start_slave(namesrv_addr=f"{other.address};{pair.namesrv.address};127.0.0.1:1")
            await until(pair.same_log)
            for _ in range(3):
                await pair.slave.running.registration.register()
                assert pair.link._master is not None, "tables are copied"
            await pair.stop_slave()
            await other.shutdown()

    run_virtual(scene())


def test_a_new_address_ends_the_pause_before_the_next_attempt(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("T", b"x")
            await pair.start_slave(ha_master_address="127.0.0.1:1", master_broker_address=pair.broker.address)
            await asyncio.sleep(60)  # the pauses have grown to 10 s
            loop, link = asyncio.get_running_loop(), pair.link
            link._ha_address, link._config = "", replace(link._config, ha_master_address="")
            await asyncio.sleep(11)
            began_s = loop.time()
            link.found(pair.broker.ha_address or "", pair.broker.address)
            await until(pair.same_log)
            assert loop.time() - began_s < 1

    run_virtual(scene())


def test_options_of_a_slaves_store(tmp_path: Path) -> None:
    """The records are the master's: whether they have checksums, and where they lie."""

    async def scene() -> None:
        async with Pair(tmp_path, READS, enabled_append_prop_crc=False) as pair:
            await pair.make_group()
            await pair.send("T", b"x")
            options = {"enabled_append_prop_crc": True, "transient_store_pool_enable": True}
            for _ in range(2):
                await pair.start_slave(options)
                await pair.in_step()
                assert pair.same_log() and await pair.bodies_at_slave() == [b"x"]
                config = pair.slave.store.config
                assert not config.pooled and config.access_message_in_memory_max_ratio == 30
                await pair.stop_slave()
            promoted = await pair.start_slave(options, broker_role="ASYNC_MASTER", broker_id=0)
            await pair.client.invoke(promoted.address, pair.send_command("T", b"new"), 5000)
            await pair.stop_slave()
            await pair.start_slave(options, broker_role="ASYNC_MASTER", broker_id=0)
            assert await pair.bodies_at_slave() == [b"x", b"new"], "a record without checksum is not taken for damaged"

    run_virtual(scene())


def test_a_slave_keeps_what_its_master_keeps(tmp_path: Path) -> None:
    """For example segments with messages that wait for their time."""

    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("T", b"x")
            await pair.start_slave()
            link = pair.link
            assert link.needed_from() is None, "the master was not asked yet"
            await pair.in_step()
            assert pair.slave.store._retention.holders == [link] and link.needed_from() == 0
            bounds = link._copying.bounds
            assert bounds is not None
            link._copying.bounds = bounds._replace(min_offset=SEGMENT)
            assert link.needed_from() == SEGMENT
            link.move_on(SEGMENT)  # nothing is stored again on a slave
            assert pair.same_log()

    run_virtual(scene())


def test_the_progress_of_transactions_stays_the_masters(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("T", b"half", "TRAN_MSG\x01true\x02UNIQ_KEY\x01H\x02PGROUP\x01pg\x02", sys_flag=4)
            await pair.start_slave()
            await pair.in_step()
            progress = "CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0
            pair.slave.offsets.commit(*progress, 1)
            await pair.stop_slave()
            await pair.start_slave()
            assert pair.slave.offsets.query(*progress) == 1

    run_virtual(scene())


def test_a_slave_feeds_a_slave(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair, Pair(tmp_path / "second") as second:
            await pair.begin()
            await second.start_slave(
                ha_master_address=pair.slave.ha_address or "", master_broker_address=pair.slave.address
            )
            await until(lambda: second.slave.store.max_offset == pair.broker.store.max_offset)
            await pair.send("T", b"y")
            await until(lambda: log_bytes(second.slave.store) == log_bytes(pair.broker.store))
            assert pair.slave.slaves == 1
            status = HARuntimeInfo.decode((await pair.ask_slave(RequestCode.GET_BROKER_HA_STATUS)).body)
            assert not status.master and len(status.ha_connection_info) == 1

    run_virtual(scene())


def test_status_of_a_slave(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.begin()
            status = HARuntimeInfo.decode((await pair.ask_slave(RequestCode.GET_BROKER_HA_STATUS)).body)
            link = status.ha_client_runtime_info
            end = pair.broker.store.max_offset
            assert (status.master, link.master_addr, link.max_offset) == (False, pair.broker.ha_address, end)
            assert link.master_flush_offset == end and link.last_read_timestamp and link.last_write_timestamp
            await pair.send("T", b"x" * 10_000)
            await asyncio.sleep(2)
            status = HARuntimeInfo.decode((await pair.ask_slave(RequestCode.GET_BROKER_HA_STATUS)).body)
            assert status.ha_client_runtime_info.transferred_byte_in_second > 1000
            config = await pair.ask_slave(RequestCode.GET_BROKER_CONFIG)
            assert b"brokerRole=SLAVE\n" in config.body and b"brokerId=1\n" in config.body

    run_virtual(scene())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_a_sync_master_waits_for_the_slave(tmp_path: Path, sync_flush: bool) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, broker_role="SYNC_MASTER") as pair:
            flush = FlushDiskType.SYNC_FLUSH if sync_flush else FlushDiskType.ASYNC_FLUSH
            await pair.start_slave({"flush_disk_type": flush})
            await until(lambda: pair.broker.slaves == 1)
            loop = asyncio.get_running_loop()
            first = await pair.send("T", b"0")
            began_s = loop.time()
            answers = [await pair.send("T", b"x") for _ in range(5)]
            assert {answer.code for answer in (first, *answers)} == {ResponseCode.SUCCESS}
            assert loop.time() - began_s < 2, "a report does not wait for the sync of ASYNC_FLUSH"
            if sync_flush:
                assert pair.slave.store.flushed_offset == pair.broker.store.max_offset

    run_virtual(scene())


def test_a_slave_with_sync_flush_confirms_only_what_it_has_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = FlushService.flush

    async def scene() -> None:
        async with Pair(tmp_path, broker_role="SYNC_MASTER", slave_timeout_ms=500) as pair:
            await pair.start_slave({"flush_disk_type": FlushDiskType.SYNC_FLUSH})
            await until(lambda: pair.broker.slaves == 1)
            await until(lambda: not pair.slave.not_in_sync)
            assert (await pair.send("T", b"0")).code == ResponseCode.SUCCESS
            of_slave = pair.slave.store._flush
            monkeypatch.setattr(FlushService, "flush", lambda self: self is of_slave or flush(self))
            assert (await pair.send("T", b"1")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert pair.slave.store.max_offset == pair.broker.store.max_offset
            await asyncio.sleep(12)  # it reports every 5 s, whatever happens
            (link,) = [one.link for one in ha_server(pair).slaves]
            assert link.acknowledged == pair.slave.store.flushed_offset < pair.broker.store.max_offset
            monkeypatch.undo()
            assert (await pair.send("T", b"2")).code == ResponseCode.SUCCESS

    run_virtual(scene())


# -- masters that go, return, or must not be followed ------------------------------------------------------------------


def test_a_master_that_returns_is_followed_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.begin()
            await pair.stop_broker()
            await until(lambda: pair.slave.not_in_sync)
            again = Broker(pair.broker.config, pair._store_config)
            await again.start()
            again.store.put_message(message(1))
            await until(lambda: log_bytes(pair.slave.store) == log_bytes(again.store))
            await until(lambda: not pair.slave.not_in_sync)
            await again.shutdown()

    run_virtual(scene())


def test_segments_of_another_size_are_refused_before_the_first_byte(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("T", b"x")
            await pair.start_slave({"mapped_file_size_commit_log": 1 << 20})
            await until(lambda: "mappedFileSizeCommitLog" in pair.slave.not_in_sync)
            assert "4194304, as on the master" in pair.slave.not_in_sync
            await asyncio.sleep(3 * AGAIN_S)
            assert not pair.slave.store.max_offset and not pair.broker.slaves
            assert health_of(pair.slave).trouble() == pair.slave.not_in_sync

    with caplog.at_level(logging.ERROR, "rucola.broker.ha.slave"):
        run_virtual(scene())
    assert len(caplog.records) == 1, "said once"


def test_other_options_that_dispatch_obeys_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("T", b"x")
            await pair.start_slave({"message_delay_level": "1s 2s"})
            await pair.in_step()
            client = pair.link._copying.client
            assert client._connection is not None
            client._connection.close()
            await until(lambda: client.connections == 2 and client.is_copying)

    with caplog.at_level(logging.WARNING, "rucola.broker.ha.slave"):
        run_virtual(scene())
    fields = [vars(record)["rucola_fields"] for record in caplog.records]
    assert [each["keys"] for each in fields if "keys" in each] == ["messageDelayLevel"], "said once for each master"


def test_another_log_is_refused_and_the_slave_serves_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rucola.broker.ha.slave")

    async def scene() -> None:
        async with Pair(tmp_path, READS) as pair, Pair(tmp_path / "other") as other:
            await pair.make_group()
            await pair.begin()
            before = log_bytes(pair.slave.store)
            await pair.stop_slave()
            for number in range(30):
                await other.send("Else", b"%d" % number)
            await pair.start_slave(
                ha_master_address=other.broker.ha_address or "", master_broker_address=other.broker.address
            )
            await until(lambda: "SHA-256" in pair.slave.not_in_sync)
            await asyncio.sleep(2 * AGAIN_S)
            assert log_bytes(pair.slave.store) == before and pair.slave.topics.get("Else") is None
            assert await pair.bodies_at_slave() == [b"x"]
            assert "copy of the master's log goes on" not in caplog.text, "its bytes are only compared"

    run_virtual(scene())


def test_a_damaged_record_of_the_master_stops_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica goes on behind it, but a broker may be the master next."""
    log = a_log(tmp_path / "made", 300)
    damaged_at = 20_000
    bad = log.changed(damaged_at, bytes(3))

    async def scene() -> None:
        async with HaPort(bad) as ha:
            monkeypatch.setattr(Slave, "_new_master", lambda *_: KnownBroker(ha))
            config = BrokerConfig(
                listen_port=0, ha_listen_port=0, broker_role="SLAVE", broker_id=1,
                ha_master_address=ha.address, master_broker_address="127.0.0.1:1",
            )  # fmt: skip
            slave = Broker(config, MessageStoreConfig(str(tmp_path / "slave"), mapped_file_size_commit_log=SEGMENT))
            await slave.start()
            await until(lambda: "damaged record again" in slave.not_in_sync)
            end = slave.store.max_offset
            assert 0 < end <= damaged_at and log_bytes(slave.store) == log.content[:end]
            ha.master = log  # it was repaired
            await until(lambda: slave.store.max_offset == log.end)
            await until(lambda: not slave.not_in_sync)
            assert log_bytes(slave.store) == log.content
            await slave.shutdown()

    run_virtual(scene())


def test_a_full_disk_stops_the_copy_until_there_is_space(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.begin()
            pair.slave.store._condition.space_is_gone("segment")
            await until(lambda: "no space left" in pair.slave.not_in_sync)
            connections = pair.link._copying.client.connections
            await asyncio.sleep(60)
            assert pair.link._copying.client.connections == connections
            pair.slave.store._condition.space_is_back("segment")
            await pair.send("T", b"y")
            await until(pair.same_log)
            await until(lambda: not pair.slave.not_in_sync)

    run_virtual(scene())


def test_a_defect_does_not_end_the_copy_unnoticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("T", b"x")
            with monkeypatch.context() as patched:

                async def fail(*_: object) -> None:
                    raise RuntimeError("a defect")

                patched.setattr(Slave, "_check_options", fail)
                await pair.start_slave()
                await until(lambda: "a defect" in pair.slave.not_in_sync)
                assert pair.slave.services.supervisor.failures["copy of the master's log"] == 1
            pair.link._copying._check_master = pair.link._check_options
            await until(pair.same_log)

    run_virtual(scene())


def test_a_refused_copy_of_an_empty_log_is_in_sync_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            with monkeypatch.context() as patched:

                async def refuse(*_: object) -> None:
                    raise BrokerError(ResponseCode.NO_PERMISSION, "access denied: no account", "127.0.0.1:1")

                patched.setattr(Slave, "_check_options", refuse)
                await pair.start_slave()
                await until(lambda: "no account" in pair.slave.not_in_sync)
            pair.link._copying._check_master = None
            await until(lambda: not pair.slave.not_in_sync)

    run_virtual(scene())


def test_a_slave_whose_records_cannot_be_dispatched_still_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.begin()

            def fail(*_: object) -> int:
                raise StoreDamagedError("/copy", 5, "a record cannot be read", "run rucola store verify")

            with monkeypatch.context() as patched:
                patched.setattr(MessageStore, "dispatch", fail)
                pair.slave._serving.scheduler._dispatch()
                assert not pair.slave.ready
                await pair.link.stop()
            await pair.stop_slave()
            assert not (pair.slave_root / "abort").exists()

    run_virtual(scene())


def test_a_lagging_slave_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.begin()
            assert pair.slave.master_behind_bytes == 0
            bounds = pair.link._copying.bounds
            assert bounds is not None
            pair.link._copying.bounds = bounds._replace(max_offset=bounds.max_offset + (1 << 28) + 1)
            assert pair.slave.not_in_sync == f"not in sync: {(1 << 28) + 1} bytes behind the master"

    run_virtual(scene())


def test_a_wait_for_the_log_ends_with_the_link(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.begin()
            waiting = asyncio.ensure_future(pair.link._synced(pair.broker.store.max_offset + 1))
            await asyncio.sleep(30)
            assert not waiting.done()
            await pair.stop_broker()
            async with asyncio.timeout(60):
                assert not await waiting

    run_virtual(scene())


def test_addresses_that_are_none_are_ignored(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.start_slave()
            known = pair.link.master
            pair.link.found("nowhere", "127.0.0.1:1")
            pair.link.found("127.0.0.1:1", "host:port")
            assert pair.link.master == known == pair.broker.ha_address
            pair.link.found("", "")  # the master is gone: the link tries the old address, tables are not copied
            assert pair.link.master == known and pair.link._master is None

    run_virtual(scene())


def test_a_master_whose_broker_port_is_closed_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("T", b"x")

            async def refuse(*_: object) -> None:
                raise RemotingConnectError("127.0.0.1:1", "refused")

            with monkeypatch.context() as patched:
                patched.setattr(Slave, "_check_options", refuse)
                await pair.start_slave()
                await asyncio.sleep(30)
                assert not pair.slave.store.max_offset
                pair.link._copying._check_master = None
            await until(pair.same_log)

    run_virtual(scene())
