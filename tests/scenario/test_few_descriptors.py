"""A broker that may open only a few files, but has more connections and queues."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

from tests.brokers import Cluster
from tests.unit.cli.test_cli import SMALL, running
from tests.unit.cli.test_metrics import get

from rucola.common.topic_config import TopicConfig
from rucola.protocol.command import RemotingCommand
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import RemotingClient

LIMIT, CONNECTIONS, QUEUES = 96, 100, 50


def test_a_broker_with_few_descriptors_serves_whom_it_accepted(tmp_path: Path) -> None:
    """Issue 13: with 494 topics or 1,000 connections, ``/readyz`` of a broker with 1,024 descriptors failed."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))

    conf = tmp_path / "broker.conf"
    conf.write_text(f"{SMALL}storePathRootDir={tmp_path}/store\nlistenPort=0\n")
    with running("broker", "-c", str(conf), "--http-port", "0", "--log-level", "ERROR", preexec_fn=limit) as facts:
        asyncio.run(crowd(facts))


async def crowd(facts: dict[str, Any]) -> None:
    address, host, port = facts["brokers"][0], *facts["brokers"][0].split(":")
    client = RemotingClient()
    send = Cluster.send_command
    try:
        await AdminApi(client).change_topics(address, [TopicConfig("Wide", QUEUES, QUEUES)])
        crowd = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS)]
        for queue_id in range(QUEUES):
            answer = await client.invoke(address, send(None, "Wide", queue_id=queue_id), 10_000)  # type: ignore[arg-type]
            assert answer.code == 0, answer.remark
        for queue_id in range(QUEUES):
            ask = RemotingCommand(30, ext_fields={"topic": "Wide", "queueId": str(queue_id)})
            assert (await client.invoke(address, ask, 10_000)).ext_fields == {"offset": "1"}
        readiness = await asyncio.to_thread(get, f"http://{facts['http']}/readyz")
        assert readiness == (200, "ok\n")
        _, metrics = await asyncio.to_thread(get, f"http://{facts['http']}/metrics")
        refused = next(line for line in metrics.splitlines() if line.startswith("rucola_connections_refused_total "))
        assert int(float(refused.split()[1])) >= CONNECTIONS - LIMIT * 9 // 16
        for _, writer in crowd:
            writer.close()
    finally:
        await client.close()
