"""Replays in tasks of Spark: from brokers, from a directory, from a table; the same messages with the same ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rucola.cli.main import main
from rucola.common.message import Message
from rucola.errors import ConfigError
from rucola.spark.archive import archive
from rucola.spark.replay import replay

from .test_sink import messages_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .conftest import BrokerProcess

pytestmark = pytest.mark.spark
COUNT = 400
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def topic(shared_broker: BrokerProcess) -> str:
    with shared_broker.producer() as producer:
        messages = [Message("replayed", f"{n}".encode(), tags=f"T{n % 2}", keys=[f"k{n}"]) for n in range(COUNT)]
        producer.send_batch(messages)
    messages_of(shared_broker, "replayed", COUNT)
    return "replayed"


def ids_of(broker: BrokerProcess, topic: str, count: int) -> dict[str | None, bytes]:
    return {one.uniq_key: one.body for one in messages_of(broker, topic, count)}


def test_every_way_sends_the_same_ids(
    spark: SparkSession, shared_broker: BrokerProcess, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    servers, state, table = shared_broker.namesrv, str(tmp_path / "state.json"), str(tmp_path / "table")
    rows = spark.read.format("rocketmq").options(nameServer=servers, topic=topic).load()
    rows.write.parquet(table)
    seen: list[int] = []
    tally = replay(rows, {"nameServer": servers, "topic": "r-all"}, progress=seen.append)
    assert (tally.messages, tally.refused, seen[-1]) == (COUNT, 0, COUNT)
    all_ids = ids_of(shared_broker, "r-all", COUNT)
    assert sorted(int(body) for body in all_ids.values()) == list(range(COUNT))

    to = ["-n", servers, "--json"]
    given = ["--from", servers, "--topic", topic, "--where", "tags = 'T1'", "--rate", "20000", "--checkpoint", state]
    assert main(["spark", "replay", *given, "--to", "r-odd", *to]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == COUNT // 2
    assert main(["spark", "replay", *given, "--to", "r-odd", *to]) == 0
    assert json.loads(capsys.readouterr().out)["messagesOfAllRuns"] == COUNT // 2
    odd = ids_of(shared_broker, "r-odd", COUNT // 2)
    assert odd == {name: body for name, body in all_ids.items() if int(body) % 2}

    archived = str(tmp_path / "archived")
    archive(archived, topic, store=shared_broker.store)
    for number, one in enumerate((table, archived)):
        given = ["--table", one, "--key", "k7", "--key", "k8", "--to", f"r-table{number}"]
        assert main(["spark", "replay", *given, *to]) == 0
        found = ids_of(shared_broker, f"r-table{number}", 2)
        assert found == {name: body for name, body in all_ids.items() if body in (b"7", b"8")}


def test_a_dry_run_of_a_directory(spark: SparkSession, shared_broker: BrokerProcess, topic: str) -> None:
    rows = spark.read.format("rocketmq").options(storePath=str(shared_broker.store), topic=topic).load()
    tally = replay(rows, {"nameServer": "nowhere:1", "topic": "none"}, dry_run=True)
    assert tally.messages == COUNT
    assert sum(tally.ends.values()) == COUNT


def test_mistakes(spark: SparkSession, shared_broker: BrokerProcess, topic: str, capsys: Capture) -> None:
    with pytest.raises(ConfigError, match="with brokerName, queueId"):
        replay(spark.range(1).selectExpr("'t' AS topic"), {"nameServer": "h:1", "topic": "t"})
    given = ["--from", shared_broker.namesrv, "--topic", topic, "--sink", "retryTimeoutMs=1"]
    assert main(["spark", "replay", *given, "--to", "no topic"]) == 2
    assert main(["spark", "replay", *given, "--to", "bad", "--sink", "maxMessageSize=1"]) == 1
    error = capsys.readouterr().err
    assert "the job on Spark failed: " in error and "rows cannot be sent, the first (id" in error
    assert main(["spark", "replay", "--table", "/x", "--filter", "T1", "--to", "t"]) == 2
