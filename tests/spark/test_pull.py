"""Reading through a broker, without Spark: catalog, pulls, and a broker that goes away and returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.conftest import BrokerProcess

from rucola.arrow import broker_pull
from rucola.arrow.broker_catalog import BrokerCatalog
from rucola.arrow.broker_pull import pull_queue
from rucola.arrow.catalog import checked_ranges, ending_offsets, starting_offsets
from rucola.arrow.columns import BatchBuilder
from rucola.arrow.ranges import QueueRange
from rucola.arrow.schema import all_columns
from rucola.common.message import Message
from rucola.errors import ConfigError, DataLossError, RemotingError
from rucola.spark.options import SourceOptions, parse_options

TYPES = {"string": pa.string(), "binary": pa.binary(), "int": pa.int32(), "bigint": pa.int64()}
NAMES = "topic,queueId,queueOffset,tags,keys,body,brokerName"


def send(broker: BrokerProcess, topic: str, numbers: range) -> None:
    def message(number: int) -> Message:
        body = f"body {number} ".encode() * (number % 50 + 1)
        return Message(topic, body, tags="odd" if number // 8 % 2 else "even", keys=str(number))

    broker.send_all(map(message, numbers))


def options_of(broker: BrokerProcess, topic: str, **given: str) -> SourceOptions:
    return parse_options({"nameServer": broker.namesrv, "topic": topic, "columns": NAMES, **given})


def plan(options: SourceOptions) -> list[QueueRange]:
    catalog = BrokerCatalog(options)
    try:
        queues = catalog.queues(all_needed=True)
        start = starting_offsets(options, catalog, queues, "earliest")
        end = ending_offsets(options, catalog, queues)
        pieces = catalog.plan(checked_ranges(start, end, catalog.bounds(queues), options.fail_on_data_loss))
        return [piece for piece in pieces if isinstance(piece, QueueRange)]
    finally:
        catalog.close()


def read(options: SourceOptions, piece: QueueRange) -> Iterator[dict[str, Any]]:
    columns = [column for column in all_columns(options) if column.name in NAMES.split(",")]
    schema = pa.schema([pa.field(column.name, TYPES[column.ddl_type]) for column in columns])
    builder = BatchBuilder(options, schema.names, schema, piece.queue.broker_name)
    for batch in pull_queue(options, builder, piece):
        yield from batch.to_pylist()


def rows_of(options: SourceOptions) -> list[dict[str, Any]]:
    return [row for piece in plan(options) for row in read(options, piece)]


def numbers_of(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["keys"]) for row in rows)


def test_everything_that_was_sent(shared_broker: BrokerProcess) -> None:
    send(shared_broker, "everything", range(3000))
    rows = rows_of(options_of(shared_broker, "everything"))
    assert numbers_of(rows) == list(range(3000))
    for queue_id in {row["queueId"] for row in rows}:
        offsets = [row["queueOffset"] for row in rows if row["queueId"] == queue_id]
        assert offsets == list(range(len(offsets)))
    assert {row["brokerName"] for row in rows} == {"broker-a"}
    assert all(row["body"].startswith(f"body {row['keys']} ".encode()) for row in rows)


@pytest.mark.parametrize("given", [{"maxRecordsPerPartition": "70"}, {"pullBatchSize": "3"}, {"minPartitions": "9"}])
def test_pieces_and_small_pulls(shared_broker: BrokerProcess, given: dict[str, str]) -> None:
    topic = "pieces-" + next(iter(given))
    send(shared_broker, topic, range(400))
    assert numbers_of(rows_of(options_of(shared_broker, topic, **given))) == list(range(400))


def test_tags_are_filtered(shared_broker: BrokerProcess) -> None:
    send(shared_broker, "tagged", range(500))
    rows = rows_of(options_of(shared_broker, "tagged", subExpression="odd", maxRecordsPerPartition="40"))
    assert numbers_of(rows) == [number for number in range(500) if number // 8 % 2]


def test_a_condition_is_passed_on(shared_broker: BrokerProcess) -> None:
    send(shared_broker, "conditional", range(500))
    given = {"subExpression": "TAGS = 'odd' AND KEYS IS NOT NULL", "maxRecordsPerPartition": "40"}
    rows = rows_of(options_of(shared_broker, "conditional", **given))
    assert numbers_of(rows) == [number for number in range(500) if number // 8 % 2]


def test_bodies_that_our_producer_compressed(shared_broker: BrokerProcess) -> None:
    body = b'{"key": "value"}' * 400
    with shared_broker.producer() as producer:
        producer.send(Message("compressed", body))
    assert [row["body"] for row in rows_of(options_of(shared_broker, "compressed"))] == [body]
    stored = rows_of(options_of(shared_broker, "compressed", body="stored"))
    assert len(stored[0]["body"]) < 500


def test_a_topic_that_does_not_exist_names_those_that_do(shared_broker: BrokerProcess) -> None:
    send(shared_broker, "existing", range(3))
    with pytest.raises(ConfigError, match=r"existing topics: .*existing"):
        plan(options_of(shared_broker, "not-there"))
    catalog = BrokerCatalog(options_of(shared_broker, "not-there"))
    assert catalog.queues(all_needed=False) == []
    catalog.close()


def test_a_pattern_leaves_out_reserved_topics(shared_broker: BrokerProcess) -> None:
    send(shared_broker, "pattern-a", range(3))
    send(shared_broker, "pattern-b", range(3))
    options = parse_options({"nameServer": shared_broker.namesrv, "subscribePattern": "pattern-.|TBW102"})
    catalog = BrokerCatalog(options)
    assert {queue.topic for queue in catalog.queues(all_needed=True)} == {"pattern-a", "pattern-b"}
    catalog.close()


def test_times(shared_broker: BrokerProcess) -> None:
    send(shared_broker, "timed", range(10))
    with shared_broker.producer() as producer:
        result = producer.send(Message("timed", b"x", keys="10"))
    options = options_of(shared_broker, "timed")
    catalog = BrokerCatalog(options)
    bounds = catalog.bounds([result.message_queue])
    at = catalog.offset_at(result.message_queue, 1 << 50)
    assert at == bounds[result.message_queue].max
    assert catalog.offset_at(result.message_queue, 0) == bounds[result.message_queue].min
    assert catalog.mean_record_bytes(result.message_queue, 0, bounds[result.message_queue].max) > 100
    catalog.close()


def test_nobody_listens() -> None:
    options = parse_options({"nameServer": "127.0.0.1:1", "topic": "t", "retryTimeoutMs": "100"})
    catalog = BrokerCatalog(options)
    with pytest.raises(RemotingError, match=r"127\.0\.0\.1:1"):
        catalog.queues(all_needed=True)
    catalog.close()


def test_messages_that_are_not_there_are_data_loss(
    shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_pull, "MISSING_PATIENCE_S", 0.2)
    send(shared_broker, "short", range(40))
    options = options_of(shared_broker, "short")
    piece = plan(options)[0]
    longer = QueueRange(piece.queue, piece.start, piece.end + 5)
    with pytest.raises(DataLossError, match=f"{piece.end} to {longer.end} are wanted"):
        list(read(options, longer))
    lenient = options_of(shared_broker, "short", failOnDataLoss="false")
    assert len(list(read(lenient, longer))) == piece.count


def test_a_broker_killed_in_the_middle_of_a_piece(own_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_pull, "BATCH_ROWS", 256)
    send(own_broker, "interrupted", range(2_500))
    options = options_of(own_broker, "interrupted")
    piece = plan(options)[0]
    assert piece.count > broker_pull.BATCH_ROWS  # so that there is something to pull after the first rows
    rows = read(options, piece)
    first = [next(rows) for _ in range(10)]
    own_broker.kill()
    back = threading.Timer(0.5, own_broker.start)
    back.start()
    try:
        rest = list(rows)
    finally:
        back.join()
    offsets = [row["queueOffset"] for row in first + rest]
    assert offsets == list(range(piece.start, piece.end))
