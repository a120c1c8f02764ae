"""Metrics by topic and group under RocketMQ's names, limited in number, over an HTTP server that no client can
block.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.brokers import Cluster, run
from tests.unit.broker.administered import Administered, administered
from tests.unit.broker.test_pop import ACK, SUCCESS, pop, receipt, send
from tests.unit.cli.test_cli import SMALL, get, running

from rucola.cli import http
from rucola.cli.figures import metrics_of
from rucola.cli.http import Health, HttpServer, SharedMetrics
from rucola.cli.merged_metrics import MergedCollector
from rucola.cli.metrics import BrokerCollector
from rucola.cli.topic_metrics import group_metrics, topic_metrics
from rucola.common.topic_config import TopicConfig
from rucola.remoting.fairness.steps import at_once, in_turns
from rucola.testing.event_loop import run_stepped, settle

NODE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


def figure(there: Administered, name: str, **labels: str) -> float:
    """Returns the value of the only sample with this name, these labels and the labels of the node."""
    text, _ = metrics_of(BrokerCollector(there.cluster.broker))
    (value,) = (
        sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == name and sample.labels == {**(NODE if name.startswith("rocketmq_") else {}), **labels}
    )
    return value


def test_topics_and_groups_have_rocketmq_s_names(tmp_path: Path) -> None:
    async def play() -> None:
        async with administered(tmp_path) as there:
            there.cluster.broker.store.dispatch()
            pair = {"consumer_group": "G_live", "topic": "T_live", "is_retry": "false"}
            assert figure(there, "rocketmq_messages_in_total", topic="T_live", is_system="false") == 8
            assert figure(there, "rocketmq_consumer_lag_messages", **pair) == 4
            assert figure(there, "rocketmq_consumer_inflight_messages", **pair) == 0
            assert figure(there, "rocketmq_consumer_connections", consumer_group="G_live", consume_mode="push") == 1
            assert figure(there, "rocketmq_topic_number") == len(there.cluster.broker.topics.table)
            assert figure(there, "rucola_topics_not_listed") == figure(there, "rucola_subscriptions_not_listed") == 0

    run(play())


def test_acknowledgements_that_are_not_in_the_log_are_counted(tmp_path: Path) -> None:
    async def play() -> None:
        async with Cluster(tmp_path) as cluster:

            def buffered() -> bytes:
                text, _ = metrics_of(BrokerCollector(cluster.broker))
                (line,) = (line for line in text.splitlines() if line.startswith(b"rucola_pop_acks_buffered "))
                return line.split()[1]

            assert buffered() == b"0.0" and cluster.broker.services.pops.started is None
            await send(cluster, 3)
            popped = await pop(cluster)
            for queue_offset in range(3):
                fields = {"consumerGroup": "cg", "topic": "T", "queueId": 0, "offset": queue_offset}
                assert (await cluster.ask(ACK, fields | {"extraInfo": receipt(popped, queue_offset)})).code == SUCCESS
            assert buffered() == b"1.0", "one record for a pop"
            await cluster.broker.catch_up()
            assert buffered() == b"0.0"

    run(play())


def test_the_lag_stays_when_the_consumers_are_away(tmp_path: Path) -> None:
    """It grows then, and an alert on it must fire. Groups of the broker, deleted groups and topics have no lag."""

    async def play() -> None:
        async with administered(tmp_path) as there:
            broker = there.cluster.broker
            for name, topic in (("CID_RMQ_SYS_TRANS", "T_live"), ("G_deleted", "T_live"), ("G_live", "T_deleted")):
                broker.offsets.commit(name, topic, 0, 0)
            broker.offsets.commit("G_away", "T_live", 0, 1)
            broker.groups.find("CID_RMQ_SYS_TRANS"), broker.groups.find("G_away")
            await there.consumer.close()
            while broker.services.consumers.groups():
                await asyncio.sleep(0.01)
            await there.cluster.send("T_live", b"later", "")

            def lags(pairs_max: int = 1000) -> dict[tuple[str, str], float]:
                _, lag, *_ = at_once(group_metrics(broker, pairs_max))
                return {(one.labels["consumer_group"], one.labels["topic"]): one.value for one in lag.samples}

            broker.store.dispatch()
            assert lags() == {("G_live", "T_live"): 5, ("G_away", "T_live"): 8}
            _, lag, _, left_out, _ = at_once(group_metrics(broker, pairs_max=1))
            assert (len(lag.samples), left_out.samples[0].value) == (1, 1)

    run(play())


def test_the_lag_of_a_wide_topic_is_counted_in_steps(tmp_path: Path) -> None:
    async def play() -> None:
        async with administered(tmp_path) as there:
            broker = there.cluster.broker
            broker.topics.update(TopicConfig("wide", 1000, 1000, 6))
            broker.groups.find("G_away")
            broker.offsets.commit("G_away", "wide", 0, 0)
            assert len(list(group_metrics(broker))) >= 1000 // 64

    run(play())


def test_listed_series_are_bounded_and_the_rest_counted(tmp_path: Path) -> None:
    async def play() -> None:
        async with administered(tmp_path) as there:
            broker = there.cluster.broker
            await there.cluster.send("T_small", b"one", "")
            listed, left_out = at_once(topic_metrics(broker, topics_max=1))
            assert [sample.labels["topic"] for sample in listed.samples] == ["T_live"]
            assert left_out.samples[0].value == 1
            connections, lag, _, left_out, groups_left_out = at_once(group_metrics(broker, pairs_max=1))
            assert len(connections.samples) == len(lag.samples) == 1
            assert left_out.samples[0].value == 1 and groups_left_out.samples[0].value == 0
            connections, lag, _, _, groups_left_out = at_once(group_metrics(broker, pairs_max=0))
            assert not connections.samples and not lag.samples and groups_left_out.samples[0].value == 1

    run(play())


def test_others_are_served_while_figures_are_collected(tmp_path: Path) -> None:
    """Other requests are served while metrics are collected; members may join and leave groups meanwhile."""

    async def play() -> None:
        async with administered(tmp_path) as there:
            consumers = there.cluster.broker.services.consumers
            steps = BrokerCollector(there.cluster.broker).steps()
            for _ in range(3):
                next(steps)
            for group in list(consumers.groups()):
                for channel in list(group.clients):
                    consumers.channel_closed(channel)
            assert not consumers.groups()
            assert len(await in_turns(steps)) > 30

    run(play())


def test_requests_that_come_during_a_collection_share_the_next_one() -> None:
    """Before the fix, 64 requests each took a part of every turn of the event loop, together 0.4 s."""
    results: list[asyncio.Future[tuple[bytes, str]]] = []

    async def collect() -> tuple[bytes, str]:
        results.append(asyncio.get_running_loop().create_future())
        return await results[-1]

    async def play() -> None:
        shared = SharedMetrics(collect)
        first = [asyncio.create_task(shared.get()) for _ in range(3)]
        await settle()
        later = [asyncio.create_task(shared.get()) for _ in range(60)]
        await settle()
        assert len(results) == 1
        later[0].cancel()  # whose client has gone
        results[0].set_result((b"old", ""))
        await settle()
        assert [task.result() for task in first] == [(b"old", "")] * 3
        assert len(results) == 2 and not any(task.done() for task in later[1:])
        results[1].set_exception(OSError("broken"))
        await settle()
        assert all(isinstance(task.exception(), OSError) for task in later[1:])
        last = asyncio.create_task(shared.get())
        await settle()
        results[2].set_result((b"new", ""))
        assert await last == (b"new", "")

    run_stepped(play())


async def no_metrics() -> tuple[bytes, str]:
    return b"", "text/plain"


def test_a_broker_alone_answers_over_http(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{SMALL}storePathRootDir={tmp_path}/store\nlistenPort=0\n")
    with running("broker", "-c", str(conf), "--http-port", "0", "--log-level", "WARNING") as facts:
        assert get(f"http://{facts['http']}/readyz") == (200, "ok\n")
        status, text = get(f"http://{facts['http']}/metrics")
        assert status == 200 and "rucola_ready 1.0" in text.splitlines()


@pytest.mark.parametrize(
    ("trouble", "remark", "answer"),
    [
        ("", "", (200, "ok\n")),
        ("", "not in sync", (200, "ok, not in sync\n")),
        ("store IO_ERROR", "not in sync", (503, "")),
    ],
)
def test_readiness_says_what_is_wrong(trouble: str, remark: str, answer: tuple[int, str]) -> None:
    async def play() -> None:
        server = HttpServer("127.0.0.1", 0)
        server.bind()
        server.start(Health(lambda: trouble, no_metrics, lambda: remark))
        assert await asyncio.to_thread(get, f"http://{server.address}/readyz") == answer
        await server.stop()

    run(play())


def test_http_takes_no_more_connections_than_it_says_and_closes_half_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 8)

    def ask(address: tuple[str, int]) -> tuple[int, float]:
        """Sends 40 incomplete requests; returns how many connections were closed, and when the last one was, in
        seconds.
        """
        began = time.monotonic()
        half = [socket.create_connection(address, timeout=10) for _ in range(40)]
        for connection in half:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        closed = []
        for connection in half:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
            closed.append(time.monotonic() - began)
            connection.close()
        return len(closed), max(closed)

    async def play() -> None:
        server = HttpServer("127.0.0.1", 0)
        server.bind()
        server.start(Health(lambda: "", no_metrics))
        url = f"http://{server.address}/livez"
        assert await asyncio.to_thread(get, url) == (200, "ok\n")
        host, _, port = server.address.rpartition(":")
        closed, last_s = await asyncio.to_thread(ask, (host, int(port)))
        assert closed == 40 and last_s < 5
        assert await asyncio.to_thread(get, url) == (200, "ok\n")
        await server.stop()

    run(play())


def test_processes_that_have_ended_are_seen() -> None:
    text, _ = metrics_of(MergedCollector({"a": None, "b": "127.0.0.1:1"}, {"proxy": None}))
    shown = [line for line in text.decode().splitlines() if not line.startswith("#")]
    assert sorted(shown) == [
        'rucola_broker_up{broker="a"} 0.0',
        'rucola_broker_up{broker="b"} 0.0',
        "rucola_proxy_up 0.0",
    ]
