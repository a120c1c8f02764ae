"""Tests of the sink with a broker: every row arrives, whichever process is killed; repeated rows have the same id."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from tests.unit.spark.ddl import schema_of

from rucola.client.producer import Producer
from rucola.client.send_result import SendResult, SendStatus
from rucola.common.message import Message, MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, ClientError, ConfigError, RefusedRowError, RucolaError, SendManyError
from rucola.spark import sink_rows
from rucola.spark.repeats import drop_repeats, position_id
from rucola.spark.sink_options import parse_sink_options, sink_layout
from rucola.spark.sink_send import RowSender
from rucola.spark.sink_task import TaskPlace, Written, write_rows
from rucola.store.offline.offline_store import OfflineStore

from .conftest import SERVERS_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .conftest import BrokerProcess

PATIENCE_S = 300
POSITION = "topic string, brokerName string, queueId int, queueOffset bigint, body binary"


def write(
    broker: BrokerProcess, ddl: str, rows: list[tuple[Any, ...]], *, fail_after: int | None = None, **given: str
) -> Written:
    """Runs a task with ``rows``, in batches of 500; its input fails after ``fail_after`` rows."""
    schema = schema_of(ddl)
    arrow = to_arrow_schema(schema, timezone="UTC")

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), 500):
            if fail_after is not None and start >= fail_after:
                raise InterruptedError
            columns = zip(*rows[start : start + 500], strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, arrow, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow)

    options = parse_sink_options({"nameServer": broker.namesrv, **given})
    return write_rows(options, sink_layout(options, schema), batches(), TaskPlace("query"))


def messages_of(broker: BrokerProcess, topic: str, count: int, *, distinct: bool = False) -> list[MessageExt]:
    """Waits until a topic has ``count`` messages, or ``count`` ids if ``distinct``; returns its messages, queue by
    queue.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        store = OfflineStore(str(broker.store))
        found = [one for queue in store.queues(topic) for one in store.messages(topic, queue, 0, 1 << 40)]
        store.close()
        if (len({one.uniq_key for one in found}) if distinct else len(found)) >= count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} messages, {count} wanted"
        time.sleep(0.05)


def positions(count: int) -> list[tuple[Any, ...]]:
    return [("in", "broker-a", number % 4, number // 4, f"{number}".encode()) for number in range(count)]


def numbers_of(messages: list[MessageExt]) -> list[int]:
    return [int(one.body) for one in messages]


def once_each(messages: list[MessageExt]) -> list[int]:
    """Returns the numbers in the messages, sorted; of messages with the same id, only one counts."""
    return sorted(numbers_of(list({one.uniq_key: one for one in messages}.values())))


def test_a_task_that_fails_and_is_repeated(shared_broker: BrokerProcess) -> None:
    rows = positions(3000)
    with pytest.raises(InterruptedError):
        write(shared_broker, POSITION, rows, topic="repeated", fail_after=2000, maxBytesInFlight="1")
    assert write(shared_broker, POSITION, rows, topic="repeated") == (3000, 0)
    found = messages_of(shared_broker, "repeated", 3000, distinct=True)
    assert len(found) > 3000
    assert once_each(found) == list(range(3000))


def test_requests_that_fail_are_sent_again_with_their_ids(
    shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, bodies = Producer.submit_packed, []

    def submit(producer: Producer, topic: str, body: bytes) -> asyncio.Future[SendResult]:
        bodies.append(body)
        if len(bodies) in (2, 5):
            raise BrokerError(2, "busy")
        return whole(producer, topic, body)

    monkeypatch.setattr(Producer, "submit_packed", submit)
    rows = positions(2000)
    assert write(shared_broker, POSITION, rows, topic="packed", batchBytes="10000") == (2000, 0)
    assert len(bodies) > 10
    found = messages_of(shared_broker, "packed", 2000)
    ids = {position_id("query", *row[:4]): row[4] for row in rows}
    assert len(found) == 2000
    assert {one.uniq_key: one.body for one in found} == ids


def test_two_attempts_of_a_task_at_a_time(shared_broker: BrokerProcess) -> None:
    rows = positions(2000)
    other = threading.Thread(target=write, args=(shared_broker, POSITION, rows), kwargs={"topic": "speculative"})
    other.start()
    write(shared_broker, POSITION, rows, topic="speculative")
    other.join()
    found = messages_of(shared_broker, "speculative", 4000)
    assert len(found) == 4000
    assert once_each(found) == list(range(2000))


def test_a_broker_killed_in_the_middle(own_broker: BrokerProcess) -> None:
    with own_broker.producer() as producer:
        producer.send(Message("killed", b"-1"))
    rows = positions(20_000)
    killed = threading.Event()

    class Slow(list[tuple[Any, ...]]):
        """A list of rows; the broker is killed when the second half of them is read."""

        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, slice) and key.start == 10_000:
                killed.set()
            return super().__getitem__(key)

    def kill() -> None:
        assert killed.wait(PATIENCE_S)
        own_broker.kill()
        own_broker.start()

    killer = threading.Thread(target=kill)
    killer.start()
    given = {"maxBytesInFlight": "100", "sendTimeoutMs": "500"}
    assert write(own_broker, POSITION, Slow(rows), topic="killed", **given) == (20_000, 0)
    killer.join()
    assert once_each(messages_of(own_broker, "killed", 20_001, distinct=True)) == list(range(-1, 20_000))


def test_rows_of_one_sharding_key_keep_their_order(shared_broker: BrokerProcess) -> None:
    rows = [(f"{number}", f"key-{number % 7}") for number in range(3000)]
    write(shared_broker, "body string, shardingKey string", rows, topic="sharded", batchBytes="4000")
    found = messages_of(shared_broker, "sharded", 3000)
    by_key: dict[str, list[MessageExt]] = {}
    for one in found:
        by_key.setdefault(one.sharding_key or "", []).append(one)
    assert {key: len({one.queue_id for one in its}) for key, its in by_key.items()} == dict.fromkeys(by_key, 1)
    assert all(numbers_of(its) == sorted(numbers_of(its)) for its in by_key.values())
    assert sorted(numbers_of(found)) == list(range(3000))


def test_rows_go_to_the_queue_they_name(shared_broker: BrokerProcess) -> None:
    rows = [(f"{number}", number % 2 + 1, None) for number in range(900)] + [("900", 3, "broker-a"), ("901", 9, None)]
    with pytest.raises(RefusedRowError, match=r"1 rows cannot be sent, .* no writable queue 9"):
        write(shared_broker, "body string, queueId int, brokerName string", rows, topic="named", retryTimeoutMs="50")
    found = messages_of(shared_broker, "named", 901)
    assert [numbers_of([one for one in found if one.queue_id == queue]) for queue in (1, 2, 3)] == [
        list(range(0, 900, 2)),
        list(range(1, 900, 2)),
        [900],
    ]


@pytest.mark.skipif(
    os.environ.get(SERVERS_VARIABLE, "").startswith("4."), reason="brokers know delays by duration since 5.0"
)
def test_delayed_rows_come_later(shared_broker: BrokerProcess) -> None:
    sent_ms = time.time() * 1000
    write(shared_broker, "body string, delayMs int", [("1", 1000), ("2", None), ("3", 0)], topic="delayed")
    found = {int(one.body): one.store_timestamp_ms for one in messages_of(shared_broker, "delayed", 3)}
    assert found[1] >= sent_ms + 1000 > found[2]
    assert found[3] < sent_ms + 1000


def test_large_bodies_arrive(shared_broker: BrokerProcess) -> None:
    rows = [("x" * size,) for size in (10_000, 300_000)]
    write(shared_broker, "body string", rows, topic="large", maxMessageSize="1000000")
    assert sorted(len(one.body) for one in messages_of(shared_broker, "large", 2)) == [10_000, 300_000]


MIXED = [("good", b"1"), ("no topic", b"2"), ("good", b""), ("good", b"x" * 2000), ("good", b"3")]
GIVEN = {"maxMessageSize": "1000", "retryTimeoutMs": "50"}


def test_refused_rows_fail_the_task(shared_broker: BrokerProcess) -> None:
    with pytest.raises(RefusedRowError, match=r"3 rows cannot be sent, the first to topic no topic: .* deadLetter"):
        write(shared_broker, "topic string, body binary", MIXED, **GIVEN)


def test_refused_rows_go_to_a_topic(shared_broker: BrokerProcess) -> None:
    with pytest.raises(RefusedRowError, match=r"letters: the body takes 2000 bytes.*; deadLetterPath instead"):
        write(shared_broker, "topic string, body binary", MIXED, deadLetterTopic="letters", **GIVEN)
    given = {**GIVEN, "deadLetterTopic": "letters"}
    rows = [*MIXED[:3], ("good", b"4")]
    assert write(shared_broker, "topic string, body binary", rows, **given) == (4, 2)
    found = messages_of(shared_broker, "letters", 2)[-2:]
    told = {(bytes(one.body), one.properties.get("REFUSED_TOPIC")): one.properties["REFUSED_REASON"] for one in found}
    assert set(told) == {(b"2", "no topic"), (b"null", "good")}
    assert told[b"null", "good"] == "the body is null or empty"


def test_refused_rows_go_to_a_table(shared_broker: BrokerProcess, tmp_path: Path) -> None:
    given = {**GIVEN, "deadLetterPath": (tmp_path / "letters").as_uri()}
    assert write(shared_broker, "topic string, body binary", MIXED, **given) == (5, 3)
    (file,) = (tmp_path / "letters").iterdir()
    assert re.fullmatch(r"refused-query-[0-9a-f]{32}-00000\.parquet", file.name)
    rows = pq.read_table(file).to_pylist()
    assert [(row["topic"], len(row["body"]), row["_topic"]) for row in rows] == [
        ("no topic", 1, "no topic"),
        ("good", 0, "good"),
        ("good", 2000, "good"),
    ]
    assert "the limit is 1000" in rows[2]["_error"]


class Scripted:
    """Stands in for a producer; the test chooses the result of each send."""

    def __init__(self, *answers: Callable[[Message], SendResult | RucolaError]) -> None:
        self.answers = list(answers)
        self.sent: list[list[bytes]] = []

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, "b", 0)]

    async def send_many(self, messages: list[Message]) -> list[SendResult]:
        self.sent.append([message.body for message in messages])
        answer = self.answers.pop(0)
        outcomes = [answer(message) for message in messages]
        results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
        if len(results) < len(outcomes):
            raise SendManyError(list(outcomes))
        return results


def stored(status: SendStatus = SendStatus.SEND_OK) -> Callable[[Message], SendResult]:
    return lambda message: SendResult(status, "", "", MessageQueue(message.topic, "b", 0), 0)


def refuse(code: int) -> Callable[[Message], BrokerError]:
    return lambda message: BrokerError(code, "no")


def sent_by(producer: Scripted, *bodies: bytes, **given: str) -> dict[int, RucolaError]:
    sender = RowSender(parse_sink_options({"nameServer": "127.0.0.1:1", "topic": "t", **given}))
    sender._producer = producer  # type: ignore[assignment]
    return asyncio.run(sender.send([Message("t", body) for body in bodies]))


def test_messages_stored_but_not_safe_are_sent_again() -> None:
    producer = Scripted(stored(SendStatus.FLUSH_DISK_TIMEOUT), stored())
    assert sent_by(producer, b"a") == {}
    assert producer.sent == [[b"a"], [b"a"]]
    producer = Scripted(stored(SendStatus.SLAVE_NOT_AVAILABLE))
    assert sent_by(producer, b"a", acceptedStatus="SLAVE_NOT_AVAILABLE") == {}
    with pytest.raises(BrokerError, match=r"FLUSH_SLAVE_TIMEOUT.*acceptedStatus"):
        sent_by(Scripted(stored(SendStatus.FLUSH_SLAVE_TIMEOUT)), b"a", retryTimeoutMs="0")


def test_only_the_row_that_a_broker_refuses_is_refused() -> None:
    def pick(message: Message) -> SendResult | RucolaError:
        return refuse(13)(message) if message.body == b"bad" else stored()(message)

    producer = Scripted(refuse(13), pick, pick, pick)
    refused = sent_by(producer, b"a", b"bad", b"c")
    assert producer.sent == [[b"a", b"bad", b"c"], [b"a"], [b"bad"], [b"c"]]
    assert list(refused) == [1]


def test_an_account_that_is_refused_fails_the_task_at_once() -> None:
    producer = Scripted(lambda _: BrokerError(16, "access denied, User:a has no permission"))
    with pytest.raises(BrokerError, match="access denied"):
        sent_by(producer, b"a", b"b", deadLetterTopic="letters")
    assert len(producer.sent) == 1


def test_passing_failures_are_waited_for() -> None:
    producer = Scripted(refuse(16), stored())
    assert sent_by(producer, b"a") == {}
    refused = sent_by(Scripted(refuse(16)), b"a", retryTimeoutMs="0")
    assert list(refused) == [0]
    with pytest.raises(BrokerError, match="code 2"):  # a busy broker is not a fault of the row
        sent_by(Scripted(refuse(2)), b"a", retryTimeoutMs="0")
    with pytest.raises(ClientError, match="no queue for now"):
        sent_by(Scripted(lambda _: ClientError("no queue for now")), b"a", retryTimeoutMs="0")


def read(spark: SparkSession, broker: BrokerProcess, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").options(nameServer=broker.namesrv, topic=topic).load()


@pytest.mark.spark
def test_rows_of_a_batch(spark: SparkSession, shared_broker: BrokerProcess) -> None:
    rows = spark.range(500).selectExpr(
        "'row-' || id AS body", "'T' AS tags", "array('k', '' || id) AS keys", "map('n', '' || id) AS properties"
    )
    where = {"nameServer": shared_broker.namesrv, "topic": "written"}
    rows.write.format("rocketmq").options(**where).mode("append").save()
    found = read(spark, shared_broker, "written").selectExpr("cast(body AS string) AS b", "tags", "keys", "properties")
    for row in found.collect():
        number = row.b.removeprefix("row-")
        assert (row.tags, row["keys"], json.loads(row.properties)["n"]) == ("T", f"k {number}", number)
    assert found.count() == 500
    with pytest.raises(Exception, match="append"):
        rows.write.format("rocketmq").options(**where).mode("overwrite").save()


@pytest.mark.spark
def test_a_micro_batch_that_is_repeated(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    with shared_broker.producer() as producer:
        producer.send_many([Message("copied", f"{number}".encode()) for number in range(1000)])
    where = {"nameServer": shared_broker.namesrv}

    def run() -> StreamingQuery:
        source = {"topic": "copied", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "600"}
        rows = spark.readStream.format("rocketmq").options(**where, **source).load()
        sink = {"topic": "copy", "checkpointLocation": str(tmp_path / "checkpoint")}
        query = rows.writeStream.format("rocketmq").options(**where, **sink).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)
        return query

    run()
    for name in ("1", ".1.crc"):  # as if the driver had ended before it recorded the end of the second micro-batch
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    run()
    copied = read(spark, shared_broker, "copy")
    counts = Counter(int(row.body) for row in copied.select("body").collect())
    assert sorted(counts) == list(range(1000))
    assert Counter(counts.values()) == {1: 600, 2: 400}
    assert drop_repeats(copied).selectExpr("count(*)", "count(distinct body)").first() == (1000, 1000)


@pytest.mark.spark
def test_files_of_dead_letters(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    """Each batch has files of its own; a micro-batch that is repeated replaces its files."""
    sink = {"nameServer": shared_broker.namesrv, "topic": "never", "deadLetterPath": str(tmp_path / "letters")}

    def letters() -> list[str]:
        found = spark.read.parquet(str(tmp_path / "letters"))
        return sorted(str(row["keys"]) for row in found.select("keys").collect())

    def run() -> None:
        rows = spark.readStream.schema("keys string").json(str(tmp_path / "rows")).selectExpr("keys", "'' AS body")
        query = rows.writeStream.format("rocketmq").options(**sink, checkpointLocation=str(tmp_path / "checkpoint"))
        assert query.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)

    for key in ("one", "two"):
        rows = spark.createDataFrame([(key, "")], "keys string, body string")
        rows.write.format("rocketmq").options(**sink).mode("append").save()
    assert letters() == ["one", "two"]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.json").write_text('{"keys": "three"}\n')
    run()
    for name in ("0", ".0.crc"):  # as if the driver had ended before it recorded the end of the micro-batch
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    run()
    (tmp_path / "rows" / "2.json").write_text('{"keys": "four"}\n')
    run()
    assert letters() == ["four", "one", "three", "two"]


@pytest.mark.spark
def test_repeats_are_dropped_from_a_stream(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    rows = positions(300)
    for _ in range(2):
        write(shared_broker, POSITION, rows, topic="twice")
    source = {"nameServer": shared_broker.namesrv, "topic": "twice", "startingOffsets": "earliest"}
    stream = spark.readStream.format("rocketmq").options(**source, maxOffsetsPerTrigger="250").load()
    query = (
        drop_repeats(stream, within="10 minutes")
        .select("body")
        .writeStream.format("memory")
        .queryName("once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    assert sorted(int(row.body) for row in spark.table("once").collect()) == list(range(300))
    with pytest.raises(ConfigError, match="an interval for a stream"):
        drop_repeats(stream)
    with pytest.raises(ConfigError, match="storeTimestamp"):
        drop_repeats(stream.select("msgId", "topic"), within="1 minute")


def test_several_rows_of_one_message_are_noticed(shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "CHUNK_ROWS", 2)
    with pytest.raises(ConfigError, match="idColumn"):
        write(shared_broker, POSITION, positions(6) + positions(1) + positions(1), topic="exploded")
