"""Accounts and encryption in Spark, and outputs in which a secret must not appear."""

from __future__ import annotations

import asyncio
import contextlib
import io
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.attack.guarded import ADMIN, Guarded, certificate
from tests.brokers import run

from rucola.arrow.broker_catalog import BrokerCatalog
from rucola.client.config import ProducerConfig
from rucola.client.producer import Producer
from rucola.common.message import Message
from rucola.errors import BrokerError, ConfigError, RemotingError
from rucola.spark.options import SourceOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .conftest import BrokerProcess

SECRET = "a-secret-nobody-may-see"


def offsets_of(options: SourceOptions) -> int:
    """Returns the number of messages in the topic, from the same requests that planning sends."""
    catalog = BrokerCatalog(options)
    try:
        bounds = catalog.bounds(catalog.queues(all_needed=True))
        return sum(here.max - here.min for here in bounds.values())
    finally:
        catalog.close()


def test_an_account_over_tls(tmp_path: Path) -> None:
    certificate(tmp_path, "authority")
    certificate(tmp_path, "server", authority="authority")
    authority = str(tmp_path / "authority.pem")
    tls = {
        "tls_mode": "enforcing",
        "tls_cert_path": str(tmp_path / "server.pem"),
        "tls_key_path": str(tmp_path / "server.key"),
        "tls_trust_cert_path": authority,
    }
    common = {"use_tls": True, "tls_trust_cert_path": authority, "access_key": ADMIN[0], "secret_key": ADMIN[1]}

    async def body() -> None:
        async with Guarded(tmp_path, auto_create_topic_enable=True, namesrv_tls=tls, use_tls=True, **tls) as cluster:
            async with Producer("pg", cluster.namesrv.address, ProducerConfig(**common)) as producer:
                for _ in range(3):
                    await producer.send(Message("A", b"x"))
            given = {"nameServer": cluster.namesrv.address, "topic": "A", "retryTimeoutMs": "300"}
            encrypted = {**given, "useTLS": "true", "caCertificate": authority}
            account = {"accessKey": ADMIN[0], "secretKey": ADMIN[1]}
            assert await asyncio.to_thread(offsets_of, parse_options({**encrypted, **account})) == 3
            wrong = {**encrypted, "accessKey": ADMIN[0], "secretKey": "not-the-secret"}
            with pytest.raises(BrokerError) as refused:
                await asyncio.to_thread(offsets_of, parse_options(wrong))
            assert "not-the-secret" not in str(refused.value)
            with pytest.raises(RemotingError):
                await asyncio.to_thread(offsets_of, parse_options({**given, **account}))
            with pytest.raises(ConfigError, match=r"caCertificate.*nowhere\.pem"):
                missing = {**encrypted, **account, "caCertificate": str(tmp_path / "nowhere.pem")}
                await asyncio.to_thread(offsets_of, parse_options(missing))

    run(body())


@pytest.mark.spark
def test_a_secret_is_in_no_plan_log_event_or_checkpoint(
    spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with shared_broker.producer() as producer:
        producer.send(Message("secretive", b"x", keys="1"))
    given = {"nameServer": shared_broker.namesrv, "topic": "secretive", "startingOffsets": "earliest"}
    given |= {"accessKey": "someone", "secretKey": SECRET, "securityToken": SECRET}
    rows = spark.read.format("rocketmq").options(**given).load()
    assert rows.count() == 1
    shown = [str(rows._jdf.queryExecution().toString())]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        rows.explain(True)
        rows.explain("formatted")
    stream = spark.readStream.format("rocketmq").options(**given).load()
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    shown += [str(query._jsq.explainInternal(True)), *(progress.json for progress in query.recentProgress)]
    for wrong in ({"secretKeys": SECRET}, {"maxOffsetsPerTrigger": "x"}):
        with pytest.raises(Exception, match="option") as caught:
            spark.read.format("rocketmq").options(**given, **wrong).load()
        shown.append(str(caught.value))
    sink = {name: value for name, value in given.items() if name != "startingOffsets"}
    rows.select("body").write.format("rocketmq").options(**sink).mode("append").save()
    for wrong in ({"secretKeys": SECRET}, {"batchBytes": "x"}, {"topic": "not a topic"}):
        with pytest.raises(Exception, match="option") as caught:
            rows.select("body").write.format("rocketmq").options(**{**sink, **wrong}).mode("append").save()
        shown.append(str(caught.value))
    with pytest.raises(Exception, match="not-there") as caught:
        spark.read.format("rocketmq").options(**{**given, "topic": "not-there"}).load().count()
    shown += [str(caught.value), printed.getvalue(), *capfd.readouterr()]
    assert all(SECRET not in text for text in shown)
    events = Path(spark.conf.get("spark.eventLog.dir") or "")
    files = [path for folder in (events, tmp_path / "checkpoint") for path in folder.rglob("*") if path.is_file()]
    assert any(b"SparkListenerSQLExecutionStart" in path.read_bytes() for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_options_do_not_show_their_secret() -> None:
    given = {"nameServer": "h:1", "topic": "t", "accessKey": "someone", "secretKey": SECRET, "securityToken": SECRET}
    options = parse_options(given)
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    assert copy.access.secret_key.reveal() == SECRET
    assert SECRET not in f"{options} {options!r} {options.access.secret_key} {vars(options)}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"secretKey": ""},
        {"accessKey": ""},
        {"accessKey": "", "secretKey": ""},
        {"caCertificate": "f.pem"},
        {"SecretKey": "another"},
        {"secretKeyy": SECRET},
        {"useTLS": "yes"},
        {"nameServer": "", "storePath": "d"},
    ],
)
def test_refused_access(wrong: dict[str, str]) -> None:
    given = {"nameServer": "h:1", "topic": "t", "accessKey": "someone", "secretKey": SECRET, "securityToken": SECRET}
    with pytest.raises(ConfigError) as caught:
        parse_options({**given, **wrong})
    assert SECRET not in repr(caught.value) + str(caught.value)
