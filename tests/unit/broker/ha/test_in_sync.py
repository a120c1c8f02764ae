"""Too few slaves in sync: whom a SYNC_MASTER refuses, and who gets to know of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run, run_virtual
from tests.slaves import ScriptedSlave, ha_server
from tests.unit.broker.ha.test_master import NO_SLAVE, NO_WAIT, OK, following
from tests.unit.broker.test_batch_queue import BATCH
from tests.unit.broker.test_disk_trouble import until
from tests.unit.broker.test_when_safe import Ask, acknowledged, committed, hidden, recall, rolled_back

from rucola.broker.config import broker_options
from rucola.broker.ha.master_broker import MasterBroker
from rucola.broker.ha.replica import Replica, ReplicaOptions
from rucola.broker.processor.send import SendMessageProcessor
from rucola.cli.broker_server import health_of
from rucola.cli.metrics import BrokerCollector
from rucola.client.config import ClientConfig
from rucola.errors import ConfigError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_ONEWAY
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.ha import sent_log
from rucola.store.ha.sent_log import SentLog
from rucola.store.log.log_reader import HEAD_BYTES

REFUSED = ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"
STRICT: dict[str, Any] = {"broker_role": "SYNC_MASTER", "min_in_sync_replicas": 2}


async def in_sync(cluster: Cluster, slaves: int = 1) -> None:
    await until(lambda: ha_server(cluster).reported_offset(slaves) == cluster.broker.store.max_offset)


def gauges(cluster: Cluster) -> dict[str, float]:
    samples = [sample for metric in BrokerCollector(cluster.broker).collect() for sample in metric.samples]
    return {sample.name: sample.value for sample in samples}


def health(cluster: Cluster) -> tuple[str, str]:
    """Why the broker is not ready, and what else is wrong."""
    found = health_of(cluster.broker)
    return found.trouble(), found.remark()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync_flush", [False, True])
def test_a_send_is_refused_before_it_is_stored(tmp_path: Path, sync_flush: bool) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, sync_flush, **STRICT) as cluster:
            store = cluster.broker.store
            for options in ({}, {"body": BATCH, "batch": True}, {"topic": "%RETRY%cg"}):
                answer = await cluster.send(**{"body": b"x", **options})
                assert (answer.code, answer.remark) == REFUSED
            assert store.max_offset == 0
            slave, serving = await following(cluster)
            await in_sync(cluster)
            assert (await cluster.send("T", b"now")).code == OK
            slave.close()
            await serving
            end = store.max_offset
            assert (await cluster.send("T", b"again")).code == REFUSED[0] and store.max_offset == end
            assert len(await cluster.bodies()) == 1

    run(play())


def test_a_send_that_waits_for_nobody_is_taken(tmp_path: Path) -> None:
    """WAIT=false: its sender has said so, as in RocketMQ. In one read with others, only they are refused."""

    async def play() -> None:
        async with Cluster(tmp_path, **STRICT) as cluster:
            raw = await cluster.connect()
            await cluster.send("T", b"makes the topic", NO_WAIT)
            for opaque, properties in enumerate([None, NO_WAIT] * 20):
                raw.send(cluster.send_command("T", b"%d" % opaque, properties), opaque)
            answers = [await raw.receive() for _ in range(40)]
            assert {answer.opaque: answer.code for answer in answers} == {
                opaque: OK if opaque % 2 else REFUSED[0] for opaque in range(40)
            }
            raw.send(cluster.send_command("T", b"oneway"), 50, FLAG_ONEWAY)
            raw.send(cluster.send_command("T", b"after", NO_WAIT), 51)
            assert (await raw.receive()).opaque == 51, "a oneway request gets no answer"
            raw.close()

    run(play())


@pytest.mark.parametrize("kind", [recall, committed, rolled_back, acknowledged, hidden])
@pytest.mark.parametrize("sync_flush", [False, True])
def test_other_requests_succeed(tmp_path: Path, kind: Callable[[Cluster], Awaitable[Ask]], sync_flush: bool) -> None:
    """Their clients would repeat them, or would deliver again what was acknowledged."""

    async def play() -> None:
        async with Cluster(tmp_path, sync_flush, recall_message_enable=True, **STRICT) as cluster:
            slave, serving = await following(cluster)
            await until(lambda: ha_server(cluster).reported_offset(1) >= 0)
            assert (await cluster.send("T", b"0")).code == OK
            ask = await kind(cluster)
            slave.close()
            await serving
            assert (await cluster.send("T", b"1")).code == REFUSED[0]
            assert (await ask()).code == OK

    run(play())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_the_first_message_of_all_is_on_two_brokers(tmp_path: Path, sync_flush: bool) -> None:
    """Before, a replica of an empty master was refused until the first message, which was refused without it."""

    async def play() -> None:
        async with Cluster(tmp_path / "a", sync_flush, slave_timeout_ms=60_000, **STRICT) as cluster:
            ha = f"127.0.0.1:{ha_server(cluster).port}"
            wanted = ReplicaOptions(ha, str(tmp_path / "b"), cluster.broker.address, flush_at_once=True)
            broker = MasterBroker(cluster.broker.address, ClientConfig(), SystemClock())
            replica = Replica(wanted, broker, Files(), SystemClock())
            await replica.start()
            copying = asyncio.create_task(replica.run())
            await until(lambda: ha_server(cluster).reported_offset(1) >= 0)
            assert gauges(cluster)["rucola_slave_behind_bytes"] == 0 == gauges(cluster)["rucola_slave_behind_seconds"]
            assert (await cluster.send("T", b"first")).code == OK
            assert replica.store.flushed_offset == cluster.broker.store.max_offset > 0
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)
            await replica.stop()
            assert ha_server(cluster).connections == 1

    run(play())


def test_a_slave_that_lacks_too_much_does_not_count(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, slave_timeout_ms=100, ha_max_gap_not_in_sync=1000, **STRICT) as cluster:
            slave = await ScriptedSlave.connect(cluster)
            slave.report(0)
            await until(lambda: ha_server(cluster).reported_offset(1) >= 0)
            assert (await cluster.send("T", b"x" * 2000)).code in (NO_SLAVE, ResponseCode.FLUSH_SLAVE_TIMEOUT)
            assert (await cluster.send("T", b"x")).code == REFUSED[0]
            await slave.follow(cluster.broker.store.max_offset)
            await in_sync(cluster)
            serving = asyncio.create_task(slave.serve())
            assert (await cluster.send("T", b"x")).code == OK
            slave.close()
            await serving

    run(play())


@pytest.mark.parametrize("confirming", [1, 2])
def test_more_may_be_required_than_confirm(tmp_path: Path, confirming: int) -> None:
    async def play() -> None:
        options = {"in_sync_replicas": confirming, "min_in_sync_replicas": 3}
        async with Cluster(tmp_path, broker_role="SYNC_MASTER", **options) as cluster:
            one, serving = await following(cluster)
            await in_sync(cluster)
            assert (await cluster.send("T", b"x")).code == REFUSED[0]
            two, also = await following(cluster)
            await in_sync(cluster, 2)
            assert (await cluster.send("T", b"x")).code == OK
            for slave, task in ((one, serving), (two, also)):
                slave.close()
                await task

    run(play())


@pytest.mark.parametrize(
    ("given", "least"),
    [
        ({}, 1),
        ({"brokerRole": "SYNC_MASTER"}, 1),
        ({"brokerRole": "SYNC_MASTER", "minInSyncReplicas": "2"}, 2),
        ({"brokerRole": "ASYNC_MASTER", "minInSyncReplicas": "2"}, 1),
    ],
)
def test_options(given: dict[str, str], least: int) -> None:
    config, _ = broker_options(given)
    assert config.replicas_least == least
    with pytest.raises(ConfigError, match="minInSyncReplicas"):
        broker_options({**given, "minInSyncReplicas": "0"})


def test_who_refuses_none_asks_nobody(tmp_path: Path) -> None:
    async def play() -> None:
        for number, options in enumerate(({}, {"ha_listen_port": 0}, {"broker_role": "SYNC_MASTER"})):
            async with Cluster(tmp_path / str(number), **options) as cluster:
                send = cluster.broker._serving.handler._send
                assert isinstance(send, SendMessageProcessor) and send._refuses is None

    run(play())


# -- who gets to know --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 2])
def test_each_change_is_logged_once_and_seen_by_health_and_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, least: int
) -> None:
    caplog.set_level(logging.INFO)

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "brokers are in sync" in record.getMessage()]
        caplog.clear()
        return found

    async def play() -> None:
        async with Cluster(tmp_path, broker_role="SYNC_MASTER", min_in_sync_replicas=least) as cluster:
            assert lines() == [], "slaves need a moment to come"
            await asyncio.sleep(30)
            sends = "refused" if least == 2 else '"stored, and answered with SLAVE_NOT_AVAILABLE"'
            alone = [f"too few brokers are in sync in_sync=1 wanted=2 sends={sends}"]
            assert lines() == alone
            for _ in range(3):
                assert (await cluster.send("T", b"x")).code == (REFUSED[0] if least == 2 else NO_SLAVE)
            assert lines() == []
            lacking = "not in sync: 1 of 2 brokers have the log"
            assert health(cluster) == ((f"{lacking}, sends are refused", lacking) if least == 2 else ("", lacking))
            assert gauges(cluster)["rucola_in_sync_replicas"] == 1
            assert gauges(cluster)["rucola_ready"] == (least == 1)
            slave, serving = await following(cluster)
            await in_sync(cluster)
            assert lines() == ["enough brokers are in sync in_sync=2"] and health(cluster) == ("", "")
            assert (await cluster.send("T", b"x")).code == OK
            await asyncio.sleep(10)
            assert lines() == [] and gauges(cluster)["rucola_in_sync_replicas"] == 2
            slave.close()
            await serving
            await until(lambda: not ha_server(cluster).slaves)
            assert lines() == alone
            slave, serving = await following(cluster)
            await in_sync(cluster)
            assert len(lines()) == 1 and gauges(cluster)["rucola_slave_connections_total"] == 2
            await cluster.stop_broker()
            assert lines() == [], "slaves go because the broker stops"
            await serving
            slave.close()

    run_virtual(play())


def test_a_refused_send_is_explained_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, **STRICT) as cluster:
            await cluster.send("T", b"x")
            assert caplog.text.count("too few brokers are in sync") == 1

    run(play())


def test_the_state_is_seen_though_nobody_sends_or_reports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A slave that falls behind, while messages come that wait for nobody."""

    async def play() -> None:
        async with Cluster(tmp_path, ha_max_gap_not_in_sync=1000, **STRICT) as cluster:
            slave, serving = await following(cluster)
            await in_sync(cluster)
            await asyncio.sleep(2)
            serving.cancel()
            caplog.clear()
            await cluster.send("T", b"x" * 2000, NO_WAIT)
            await asyncio.sleep(2)
            assert caplog.text.count("too few brokers are in sync") == 1
            slave.close()

    run_virtual(play())


def test_a_master_that_waits_for_nobody_is_always_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        for number, options in enumerate(({}, {"ha_listen_port": 0}, {"broker_role": "SYNC_MASTER"})):
            async with Cluster(tmp_path / str(number), in_sync_replicas=1, **options) as cluster:
                await asyncio.sleep(5)
                assert health(cluster) == ("", "") and "in sync" not in caplog.text
                assert gauges(cluster)["rucola_in_sync_replicas"] == 1

    run_virtual(play())


# -- how far behind ----------------------------------------------------------------------------------------------------


def test_seconds_behind(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            assert gauges(cluster)["rucola_slave_behind_seconds"] == 0, "no slave"
            ends = []
            for _ in range(4):
                await cluster.send("T", b"x" * 100)
                ends.append(cluster.broker.store.max_offset)
                await asyncio.sleep(10)
            slave = await ScriptedSlave.connect(cluster)
            slave.report(1)
            await slave.follow(ends[-1], reports=False)
            for offset, seconds in (
                (ends[0], 20),
                (ends[0] + 1, 10),
                (ends[1], 10),
                (ends[2] - 1, 0),
                (ends[2], 0),
                (ends[2] + 1, 0),
                (ends[3], 0),
            ):
                slave.report(offset)
                await until(lambda offset=offset: ha_server(cluster).reported_offset(1) == offset)
                assert round(gauges(cluster)["rucola_slave_behind_seconds"]) == seconds, offset
            slave.close()

    run_virtual(play())


def test_seconds_behind_of_large_records_and_over_the_end_of_a_segment(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, max_body=4 << 20, ha_listen_port=0) as cluster:
            log = cluster.broker.store.sent_log()
            starts = []
            for _ in range(3):
                starts.append(log.sendable_offset)
                await cluster.send("T", bytes(3 << 20))
                await asyncio.sleep(10)
            assert starts[1] < log.segment_bytes
            second = log.segment_bytes  # behind the blank record of the first segment
            for at, seconds in ((0, 20), (1, 10), (2 << 20, 10), (starts[1], 10), (second, 10), (second + 1, 0)):
                assert round(log.seconds_from(at)) == seconds, at
            assert log.seconds_from(log.sendable_offset) == 0

    run_virtual(play())


def test_a_record_that_begins_at_the_end_of_a_look_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            log = cluster.broker.store.sent_log()
            await cluster.send("T", b"x" * 200)
            first_end = log.sendable_offset
            for _ in range(2):
                await asyncio.sleep(10)
                await cluster.send("T", b"x" * 200)
            for look_bytes in range(2 * HEAD_BYTES, first_end + 2 * HEAD_BYTES):
                monkeypatch.setattr(sent_log, "_LOOK_BYTES", look_bytes)
                assert round(log.seconds_from(1)) == 10, look_bytes
            assert round(log.seconds_from(-1)) == 20

    run_virtual(play())


def test_a_body_that_looks_like_a_record_is_none(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            log = cluster.broker.store.sent_log()
            await cluster.send("T", b"first")
            end = log.sendable_offset
            record = log.copy_of(0, end, None)
            assert record is not None
            await asyncio.sleep(10)
            await cluster.send("T", bytes(record))
            await asyncio.sleep(10)
            await cluster.send("T", b"last")
            assert round(log.seconds_from(end + 1)) == 0 and round(log.seconds_from(end)) == 10

    run_virtual(play())


def test_what_is_not_in_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, ha_listen_port=0) as cluster:
            await cluster.send("T", b"x")
            slave = await ScriptedSlave.connect(cluster)
            slave.report(1)
            await slave.follow(cluster.broker.store.max_offset, reports=False)
            monkeypatch.setattr(SentLog, "copy_of", lambda log, at, most, cold: None)
            assert isnan(gauges(cluster)["rucola_slave_behind_seconds"])
            slave.close()

    run(play())


def test_the_role_is_a_label(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path, broker_role="SYNC_MASTER") as cluster:
            found = {metric.name: metric for metric in BrokerCollector(cluster.broker).collect()}
            (sample,) = found["rucola_broker_role"].samples
            assert (sample.labels, sample.value) == ({"role": "SYNC_MASTER"}, 1)

    run(play())
