"""Errors of the source, the sink, replays and archives, and what their advice says; ``test_advice`` runs them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2
from pyspark.sql.types import StructType
from tests.unit.arrow.dict_catalog import DictCatalog
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store, put
from tests.unit.lake.logs import delta_log
from tests.unit.spark.ddl import schema_of

from rucola.arrow import scan
from rucola.arrow.broker_pull import _Missing, _Puller
from rucola.arrow.catalog import Bounds, ending_offsets, starting_offsets
from rucola.arrow.ranges import QueueRange
from rucola.arrow.read_options import ReadOptions, Subscription
from rucola.arrow.reading import open_catalog
from rucola.arrow.schema import chosen_columns
from rucola.arrow.topic_dataset import topic_options
from rucola.cli.main import main
from rucola.cli.replay_request import ReplayRequest, _pairs
from rucola.cli.spark import run
from rucola.cli.spark_archive import seconds
from rucola.cli.spark_replay import _check_table
from rucola.common.message_queue import MessageQueue
from rucola.lake.archiver import Archiver
from rucola.lake.columns import arrow_of, merged_schema
from rucola.lake.iceberg_catalog import IcebergCatalog
from rucola.lake.maintenance import expire
from rucola.lake.table_log import TableKind
from rucola.spark import archive as lake
from rucola.spark.body_decoders import AvroDecoder, ProtobufDecoder
from rucola.spark.options import parse_options
from rucola.spark.replay_rows import replay_batches, replay_layout
from rucola.spark.replay_source import Checkpoint, Done, plan_replay
from rucola.spark.schema import check_schema
from rucola.spark.sink_options import parse_sink_options, sink_layout
from rucola.spark.source import RocketMQDataSource
from rucola.spark.stream import RocketMQStreamReader

Q0 = MessageQueue("t", "b", 0)
DIRECTORY = {"storePath": "d", "topic": "t"}
BROKERS = {"nameServer": "h:1", "topic": "t"}


class Case(NamedTuple):
    """An error, and what its advice says; both get a directory with a store in ``store``."""

    advice: str
    wrong: Callable[[Path], object]
    right: Callable[[Path], object]


def source(advice: str, wrong: dict[str, str], right: dict[str, str], base: dict[str, str] = DIRECTORY) -> Case:
    return Case(advice, lambda _: parse_options({**base, **wrong}), lambda _: parse_options({**base, **right}))


def sink(advice: str, wrong: dict[str, str], right: dict[str, str], base: dict[str, str] = BROKERS) -> Case:
    return Case(
        advice, lambda _: parse_sink_options({**base, **wrong}), lambda _: parse_sink_options({**base, **right})
    )


def rows(advice: str, wrong: str, right: str, given: dict[str, str] | None = None, **then: str) -> Case:
    """The columns of rows that are sent."""

    def layout(ddl: str, **more: str) -> object:
        return sink_layout(parse_sink_options({"nameServer": "h:1", **(given or {}), **more}), schema_of(ddl))

    return Case(advice, lambda _: layout(wrong), lambda _: layout(right, **then))


def schema(advice: str, wrong: StructType, right: StructType, **given: str) -> Case:
    options = parse_options({**DIRECTORY, **given})
    return Case(
        advice,
        lambda _: check_schema(options, wrong),
        lambda _: check_schema(options, right),
    )


def plan(advice: str, wrong: dict[str, str], right: dict[str, str]) -> Case:
    """What can be said only when the store is known."""

    def run(directory: Path, given: dict[str, str]) -> object:
        return plan_replay(parse_options({"storePath": str(directory / "store"), **given}))

    return Case(advice, lambda directory: run(directory, wrong), lambda directory: run(directory, right))


def offsets(directory: Path, value: int, *without: int) -> str:
    options = parse_options({"storePath": str(directory / "store"), "topic": "flights"})
    catalog = open_catalog(options)
    queues = [one.queue_id for one in catalog.queues(all_needed=True) if one.queue_id not in without]
    catalog.close()
    return json.dumps({"flights": {"broker-a": dict.fromkeys(map(str, queues), value)}})


def named(directory: Path, name: str, text: str, **more: str) -> object:
    options = parse_options({"storePath": str(directory / "store"), "topic": "flights", name: text, **more})
    catalog = open_catalog(options)
    try:
        queues = catalog.queues(all_needed=True)
        starting_offsets(options, catalog, queues, "earliest")
        return ending_offsets(options, catalog, queues)
    finally:
        catalog.close()


def stores(directory: Path, **given: str) -> object:
    paths = f"{directory}/store,{directory}/store"
    catalog = open_catalog(parse_options({"storePath": paths, "brokerName": "one,two", **given}))
    try:
        return catalog.queues(all_needed=True)
    finally:
        catalog.close()


def look(directory: Path, **given: str) -> object:
    """A stream over a directory goes on at the offsets of a checkpoint."""
    options = parse_options({"storePath": str(directory / "store"), "topic": "flights", **given})
    catalog = open_catalog(options)
    try:
        return catalog.look([MessageQueue("flights", "broker-x", 0)])
    finally:
        catalog.close()


def stream(**given: str) -> object:
    return RocketMQStreamReader(parse_options({**DIRECTORY, **given}), StructType())


def archiver(**more: Any) -> object:
    options = ReadOptions(store_path="d", subscription=Subscription(topics=("t",)), **more)
    return Archiver(delta_log("table"), options)


def iceberg(directory: Path, **more: str) -> object:
    return lake.archive(directory / "iceberg", "other", store=directory / "store", format="iceberg", **more)


def moved(directory: Path, make: Callable[[Path], object]) -> Path:
    """A copy of the table that ``make`` makes."""
    make(directory)
    return shutil.copytree(directory / "iceberg", directory / "moved", dirs_exist_ok=True)


def both_formats(directory: Path) -> Path:
    """A directory with the logs of two tables."""
    table = directory / "both"
    if not (table / "_delta_log").exists():
        lake.archive(table, "other", store=directory / "store")
    (table / "metadata").mkdir(exist_ok=True)
    (table / "metadata" / "v1.metadata.json").write_text("{}")
    return table


def only_one(table: Path) -> Path:
    (table / "metadata").rename(table.with_name("log of the other"))
    return table


def really_moved(directory: Path) -> Path:
    lake.archive(directory / "here" / "iceberg", "other", store=directory / "store", format="iceberg")
    return (directory / "here" / "iceberg").rename(directory / "there")


def moved_back(directory: Path) -> Path:
    return (directory / "there").rename(directory / "here" / "iceberg")


def older(directory: Path) -> Path:
    """A table in the format of an earlier version."""
    (directory / "older" / "_log").mkdir(parents=True, exist_ok=True)
    (directory / "older" / "_log" / f"{0:020}.json").write_text("{}")
    return directory / "older"


def times(strategy: str, **given: str) -> object:
    options = parse_options({**DIRECTORY, "startingOffsetsByTimestampStrategy": strategy, **given})
    return starting_offsets(options, DictCatalog(options, {Q0: Bounds(0, 5)}), [Q0], "earliest")


def checkpoint(directory: Path, name: str, content: bytes | None, replay: dict[str, str]) -> object:
    path = directory / name
    if content is not None:
        path.write_bytes(content)
    else:
        Checkpoint(str(path), {"to": "a"}).save(Done({}, {}))
    return Checkpoint(str(path), replay).load()


def raw(directory: Path) -> str:
    lake.archive_raw(directory / "raw", directory / "store", broker_name="broker-r")
    return str(directory / "raw")


def kinds(directory: Path, topic: str, **given: str) -> object:
    """Plans a read of a store that has a light queue and a topic with queues of type BatchCQ."""
    path = directory / "kinds"
    if not path.exists():
        store = open_store(path)
        for name in (b"%LMQ%x", b"plain", b"batched"):
            store.put_message(replace(message(0, name), store_host=store.store_host))
        store.dispatch()
        store.shutdown()
    catalog: Any = open_catalog(parse_options({"storePath": str(path), "topic": topic, **given}))
    catalog._store.is_batch = lambda name: name == "batched"
    try:
        return catalog.plan([QueueRange(MessageQueue(topic, "broker-a", 0), 0, 1)])
    finally:
        catalog.close()


def lost_by_broker() -> None:
    """A broker that says that it has an offset, but returns no message for it."""
    options = parse_options({**BROKERS, "failOnDataLoss": "false"})
    reader = object.__new__(_Puller)
    reader._options, reader._piece = options, QueueRange(Q0, 0, 5)
    reader._skip_missing(_Missing(0, Bounds(0, 5)))


def store_command(directory: Path) -> None:
    assert main(["store", "verify", str(directory / "store")]) < 2  # 1: it has found something


def restore(directory: Path, target: str, broker_name: str = "") -> object:
    (directory / "full").mkdir(exist_ok=True)
    (directory / "full" / "file").touch()
    return lake.restore(raw(directory), directory / target, broker_name=broker_name, rebuild=False)


def replay(**given: str) -> object:
    options = parse_sink_options({"nameServer": "h:1", **given})
    return replay_layout(options)


def data_source(**given: str) -> RocketMQDataSource:
    return RocketMQDataSource({**BROKERS, **given})


def command(directory: Path, *words: str) -> None:
    """Runs ``rucola spark archive`` in this process; a wrong use of it raises the error."""
    table = directory / ("raw-table" if "--raw" in words else "table")
    run(["archive", str(table), "--no-spark", "--store", str(directory / "store"), *words])


def expired(directory: Path, *words: str) -> None:
    """Archives a store whose first messages are gone since the table was begun."""
    path = directory / f"expired-{len(list(directory.iterdir()))}"
    store = open_store(path / "store")
    put(store, 0, 100)
    lake.archive(path / "table", store=path / "store", messages_per_commit=100)
    put(store, 100, 300)
    store.shutdown()
    for segment in sorted((path / "store" / "commitlog").iterdir())[:-1]:
        segment.unlink()
    command(path, *words)


def request(advice: str, wrong: dict[str, Any], right: dict[str, Any]) -> Case:
    fixed: dict[str, Any] = {"to": "t", "namesrv": "h:1"}
    return Case(
        advice,
        lambda _: ReplayRequest(**fixed | wrong).sink_options(),
        lambda _: ReplayRequest(**fixed | right).sink_options(),
    )


def record(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}]})


def avro(advice: str, wrong: str, right: str) -> Case:
    return Case(advice, lambda _: AvroDecoder(wrong, 0).schema(), lambda _: AvroDecoder(right, 0).schema())


def protobuf(advice: str, wrong: str) -> Case:
    files = descriptor_pb2.FileDescriptorSet()
    for module in (struct_pb2, timestamp_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    content = files.SerializeToString()
    return Case(
        advice,
        lambda _: ProtobufDecoder(content, wrong, 0).schema(),
        lambda _: ProtobufDecoder(content, "google.protobuf.Timestamp", 0).schema(),
    )


BODY = schema_of("body binary")
CASES = {
    # Options of the source.
    "options": Case("CREATE TEMPORARY VIEW", lambda _: parse_options({}), lambda _: parse_options(DIRECTORY)),
    "options of a table": source("CREATE TEMPORARY VIEW", {"option.topic": "t"}, {}),
    **{
        f"table with {name}": source("CREATE TEMPORARY VIEW", {name: "x"}, {})
        for name in ("owner", "Location", "provider", "external", "is_managed_location")
    },
    "place": source("exactly one of these two", {"nameServer": "h:1"}, {}),
    "no place": source("exactly one of these two", {}, {"storePath": "d"}, {"topic": "t"}),
    "unknown": source("nearest is topic", {"topics": "t"}, {"topic": "t"}, {"storePath": "d"}),
    "unlike any": source("they are .*columns", {"xyzzy": "1"}, {"columns": "topic"}),
    "of Kafka": source("use nameServer", {"kafka.bootstrap.servers": "h:1"}, {"nameServer": "h:1"}, {"topic": "t"}),
    "twice": source("one value", {"Topic": "u"}, {"Topic": "t"}),
    "flag": source("true or false", {"failOnDataLoss": "no"}, {"failOnDataLoss": "false"}),
    "number": source("from 1 to 65536", {"pullBatchSize": "0"}, {"pullBatchSize": "65536"}),
    "time": source("such as 15m", {"maxTriggerDelay": "1y"}, {"maxTriggerDelay": "15m"}),
    "choice": source("rocketmq or kafka", {"schemaStyle": "x"}, {"schemaStyle": "kafka"}),
    "least": source(
        "up to maxOffsetsPerTrigger, which is 4",
        {"maxOffsetsPerTrigger": "4", "minOffsetsPerTrigger": "5"},
        {"maxOffsetsPerTrigger": "4", "minOffsetsPerTrigger": "4"},
    ),
    "headers": source(
        "only with schemaStyle=kafka", {"includeHeaders": "true"}, {"includeHeaders": "true", "schemaStyle": "kafka"}
    ),
    "lite topic": source(
        "only with schemaStyle=rocketmq",
        {"includeLiteTopic": "true", "schemaStyle": "kafka"},
        {"includeLiteTopic": "true"},
    ),
    "same names": source("a different name", {"brokerName": "a,a"}, {"brokerName": "a,b", "storePath": "c,d"}),
    "more names": source("has directories, 1", {"brokerName": "a,b"}, {"brokerName": "a"}),
    "log": source(
        "with one storePath only",
        {"storePath": "c,d", "brokerName": "a,b", "storePathCommitLog": "e"},
        {"storePathCommitLog": "e"},
    ),
    "group": source("one of the two", {"groupIdPrefix": "p", "consumerGroup": "g"}, {"groupIdPrefix": "p"}),
    "scheme": source("a path, or file:///path", {"storePath": "s3://b/d"}, {"storePath": "file:///d"}),
    "no topic": source("exactly one of these four", {}, {"subscribe": "t"}, {"storePath": "d"}),
    "empty topic": source("separated by commas", {"topic": ","}, {"topic": "t,u"}),
    "pattern": source("regular expression", {"subscribePattern": "("}, {"subscribePattern": "t.*"}, {"storePath": "d"}),
    "assign": source(r"\[queue ids\]", {"assign": "t"}, {"assign": '{"t":{"b":[0]}}'}, {"storePath": "d"}),
    "assign nothing": source(r"\[queue ids\]", {"assign": "{}"}, {"assign": '{"t":{"b":[0]}}'}, {"storePath": "d"}),
    "account": Case(
        "only with nameServer",
        lambda _: parse_options({**DIRECTORY, "useTLS": "true"}),
        lambda _: parse_options({**BROKERS, "useTLS": "true"}),
    ),
    "half an account": source("both or neither", {"accessKey": "a"}, {"accessKey": "a", "secretKey": "s"}, BROKERS),
    "token": source(
        "together with accessKey and secretKey",
        {"securityToken": "x"},
        {"securityToken": "x", "accessKey": "a", "secretKey": "s"},
        BROKERS,
    ),
    "certificate": source(
        "with useTLS=true", {"caCertificate": "f"}, {"caCertificate": "f", "useTLS": "true"}, BROKERS
    ),
    "start": source("earliest, latest or a JSON", {"startingOffsets": "x"}, {"startingOffsets": "latest"}),
    "no document": source(
        r'"queue id":n', {"startingOffsets": "{"}, {"startingOffsets": '{"t":{"b":{"0":1}}}'}
    ),
    "below": source(
        "n >= -2", {"startingOffsets": '{"t":{"b":{"0":-3}}}'}, {"startingOffsets": '{"t":{"b":{"0":-2}}}'}
    ),
    "SQL92": source("expressionType=tag", {"subExpression": "a ="}, {"subExpression": "a =", "expressionType": "tag"}),
    "tags": source(r"tags separated by \|\|", {"subExpression": "||"}, {"subExpression": "a||b"}),
    "end of a stream": Case("a stream has no end", lambda _: stream(endingTimestamp="5"), lambda _: stream()),
    "later": Case(
        "startingTimestamp.*Strategy=latest",
        lambda _: times("error", startingTimestamp="9000"),
        lambda _: times("latest", startingTimestamp="9000"),
    ),
    "later by queue": Case(
        "startingOffsetsByTimestamp.*t@b:0.*Strategy=latest",
        lambda _: times("error", startingOffsetsByTimestamp='{"t":{"b":{"0":9000}}}'),
        lambda _: times("latest", startingOffsetsByTimestamp='{"t":{"b":{"0":9000}}}'),
    ),
    "columns": Case(
        "queueId",
        lambda _: chosen_columns(parse_options({**DIRECTORY, "columns": "queue"})),
        lambda _: chosen_columns(parse_options({**DIRECTORY, "columns": "queueId"})),
    ),
    "field": schema("columns topic", schema_of("nothing int"), schema_of("topic string")),
    "type": schema("queueId int", schema_of("queueId bigint"), schema_of("queueId int")),
    "not null": schema(
        "without NOT NULL", StructType().add("keys", "string", False), StructType().add("keys", "string")
    ),
    "two lists": schema("not both", schema_of("topic string"), schema_of("queueId int"), columns="queueId"),
    # What the store says.
    "missing topic": plan("existing topics: .*flights", {"topic": "flight"}, {"topic": "flights"}),
    "no match": plan("existing topics: .*flights", {"subscribePattern": "f"}, {"subscribePattern": "flights"}),
    "missing queue": plan(
        "existing queues: .*flights@broker-a:0",
        {"assign": '{"flights":{"broker-a":[77]}}'},
        {"assign": '{"flights":{"broker-a":[0]}}'},
    ),
    "other broker": plan(
        "brokerName of the directory, broker-a",
        {"assign": '{"flights":{"b":[0]}}'},
        {"assign": '{"flights":{"broker-a":[0]}}'},
    ),
    "some queues": Case(
        "exactly the queues of the subscription: flights@broker-a:0",
        lambda directory: named(directory, "startingOffsets", offsets(directory, -2, 0)),
        lambda directory: named(directory, "startingOffsets", offsets(directory, -2)),
    ),
    "expired": Case(
        "failOnDataLoss=false",
        lambda directory: named(directory, "startingOffsets", offsets(directory, 9999)),
        lambda directory: named(directory, "startingOffsets", offsets(directory, 9999), failOnDataLoss="false"),
    ),
    "expired, in Python": Case(
        "fail_on_data_loss=False",
        lambda directory: damaged(directory, fail_on_data_loss=True),
        lambda directory: damaged(directory, fail_on_data_loss=False),
    ),
    "name in the checkpoint": Case(
        "broker-x, the name that the checkpoint has", look, lambda directory: look(directory, brokerName="broker-x")
    ),
    "brokers of directories": Case(
        "queues of these brokers: one, two",
        lambda directory: stores(directory, assign='{"flights":{"three":[0]}}'),
        lambda directory: stores(directory, assign='{"flights":{"two":[0]}}'),
    ),
    "light queues": Case(
        "queue or auto",
        lambda directory: kinds(directory, "%LMQ%x", scanOrder="log"),
        lambda directory: kinds(directory, "%LMQ%x", scanOrder="queue"),
    ),
    "queues of batches": Case(
        "topics whose queue.type is not BatchCQ",
        lambda directory: kinds(directory, "batched"),
        lambda directory: kinds(directory, "plain"),
    ),
    # Functions of Python.
    "store or brokers": Case(
        "exactly one of store and name_server",
        lambda _: topic_options(None, "t", ""),
        lambda _: topic_options(None, "t", "h:1"),
    ),
    "a broker without the message": Case(
        "rucola store verify", lambda _: lost_by_broker(), store_command
    ),
    "no name": Case("None for all", lambda _: topic_options("d", "", ""), lambda _: topic_options("d", None, "")),
    "columns of a scan": Case(
        "queueId",
        lambda directory: scan(directory / "store", "flights", ["queue"]).read_all(),
        lambda directory: scan(directory / "store", "flights", ["queueId"]).read_all(),
    ),
    # Options of the sink, and columns of its rows.
    "write options": Case(r"df\.write", lambda _: parse_sink_options({}), lambda _: parse_sink_options(BROKERS)),
    "to a directory": sink("use nameServer", {"storePath": "d"}, {}),
    "save with a path": sink("topic; save", {"path": "d"}, {}),
    "to nobody": sink("host:port separated by ;", {}, BROKERS, {"topic": "t"}),
    "two letters": sink(
        "at most one of the two", {"deadLetterTopic": "d", "deadLetterPath": "p"}, {"deadLetterPath": "p"}
    ),
    "bad topic": sink("a b", {"topic": "a b"}, {"topic": "ab"}),
    "status": sink("FLUSH_DISK_TIMEOUT", {"acceptedStatus": "x"}, {"acceptedStatus": "FLUSH_DISK_TIMEOUT"}),
    "overwrite": Case(
        r'mode\("append"\)',
        lambda _: data_source().writer(BODY, True),
        lambda _: data_source().writer(BODY, False),
    ),
    "complete": Case(
        "append or update",
        lambda _: data_source().streamWriter(BODY, True),
        lambda _: data_source().streamWriter(BODY, False),
    ),
    "twice a column": rows("only once", "body binary, Body binary", "body binary", {"topic": "t"}),
    "two bodies": rows("one column for body", "body binary, value binary", "body binary", {"topic": "t"}),
    "column type": rows("flag int or bigint", "body binary, flag string", "body binary, flag int", {"topic": "t"}),
    "no body": rows(r"a column body \(or value\)", "tags string", "value string", {"topic": "t"}),
    "topic of rows": rows("a topic, or a column topic", "body binary", "body binary, topic string"),
    "topic option": rows("a topic, or a column topic", "body binary", "body binary", topic="t"),
    "half a position": rows(
        "only together with topic, brokerName, queueId",
        "body binary, queueOffset bigint",
        "body binary, topic string, brokerName string, queueId int, queueOffset bigint",
        {"topic": "t"},
    ),
    "position or id": rows(
        "or use idColumn",
        "body binary, queueOffset bigint",
        "body binary, queueOffset bigint",
        {"topic": "t"},
        idColumn="queueOffset",
    ),
    "queue column": rows(
        "a column of whole numbers", "body binary, q string", "body binary, q int", {"topic": "t", "queueColumn": "q"}
    ),
    "id column": rows(
        "one of these columns: body", "body binary", "body binary, x string", {"topic": "t", "idColumn": "x"}
    ),
    "unlike a column": rows("nearest is tags", "body binary, tag string", "body binary, tags string", {"topic": "t"}),
    # Replays.
    "replay to": Case("the topic to replay into", lambda _: replay(), lambda _: replay(topic="t")),
    "replay ids": Case(
        "use idScope", lambda _: replay(topic="t", idColumn="body"), lambda _: replay(topic="t", idScope="s")
    ),
    "replay queues": Case(
        "queueId, or nothing",
        lambda _: replay(topic="t", queueColumn="flag"),
        lambda _: replay(topic="t", queueColumn="queueId"),
    ),
    "replay columns": Case(
        "with brokerName, .*body",
        lambda _: replay_batches([table()], parse_sink_options(BROKERS), dry_run=True),
        lambda directory: replay_batches(
            scan(directory / "store", "flights"), parse_sink_options(BROKERS), dry_run=True
        ),
    ),
    "replay style": plan(
        "rocketmq, whose columns",
        {"topic": "flights", "schemaStyle": "kafka"},
        {"topic": "flights", "schemaStyle": "rocketmq"},
    ),
    "replay of stored bodies": plan(
        "decompressed", {"topic": "flights", "body": "stored"}, {"topic": "flights", "body": "decompressed"}
    ),
    "no checkpoint": Case(
        "a file that a replay has written",
        lambda directory: checkpoint(directory, "c1", b"{}", {"to": "a"}),
        lambda directory: checkpoint(directory, "c2", None, {"to": "a"}),
    ),
    "other checkpoint": Case(
        "these values differ: to",
        lambda directory: checkpoint(directory, "c3", None, {"to": "b"}),
        lambda directory: checkpoint(directory, "c3", None, {"to": "a"}),
    ),
    "pair": Case("NAME=VALUE", lambda _: _pairs("--sink", ["x"]), lambda _: _pairs("--sink", ["x=y"])),
    "pair of a file": Case(
        "a file with the value of x",
        lambda directory: _pairs("--sink", [f"x=@{directory}/none"]),
        lambda directory: (directory / "value").write_text("v") and _pairs("--sink", [f"x=@{directory}/value"]),
    ),
    # Archives.
    "archive a part": Case("the defaults", lambda _: archiver(columns=("topic",)), lambda _: archiver()),
    "archive stored bodies": Case(
        "the column record has the stored bytes",
        lambda _: archiver(body="stored"),
        lambda _: archiver(include_record=True),
    ),
    "decode": Case(
        "only with a Spark session",
        lambda directory: lake.archive(directory / "d", store=directory / "store", decode=lambda rows: rows),
        lambda directory: lake.archive(directory / "d", store=directory / "store"),
    ),
    "another store": Case(
        "archive into another table",
        lambda directory: twice(directory, "one", "other"),
        lambda directory: lake.archive(directory / "two", store=directory / "other"),
    ),
    "another log": Case(
        "archive into another table",
        lambda directory: [lake.archive_raw(directory / "r", directory / store) for store in ("store", "other")],
        lambda directory: lake.archive_raw(directory / "r2", directory / "other"),
    ),
    "a shorter store": Case(
        "archive into another table",
        lambda directory: twice(directory, "three", "short"),
        lambda directory: lake.archive(directory / "four", store=directory / "short"),
    ),
    "a shorter log": Case(
        "archive into another table",
        lambda directory: [lake.archive_raw(directory / "r3", directory / store) for store in ("store", "short")],
        lambda directory: lake.archive_raw(directory / "r4", directory / "short"),
    ),
    "type in the table": Case(
        "take another name",
        lambda _: merged_schema(fields(x="long"), fields(x="string")),
        lambda _: merged_schema(fields(x="long"), fields(y="string")),
    ),
    "raw days": Case(
        "a table of messages",
        lambda directory: expire(delta_log(raw(directory), None), date(2020, 1, 1)),
        lambda directory: expire(delta_log(directory / "new"), date(2020, 1, 1)),
    ),
    "kind": Case(
        "this one is of kind raw",
        lambda directory: delta_log(raw(directory)).snapshot(),
        lambda directory: delta_log(raw(directory), TableKind.RAW).snapshot(),
    ),
    "format": Case(
        "delta",
        lambda directory: lake.archive(directory / "f", store=directory / "store", format="x"),
        lambda directory: lake.archive(directory / "f", store=directory / "store", format="delta"),
    ),
    "archive some keys": Case(
        "a table has whole topics", lambda _: archiver(keys=frozenset(("k",))), lambda _: archiver()
    ),
    "no messages in a commit": Case(
        "1 or more",
        lambda directory: lake.archive(directory / "d", store=directory / "store", messages_per_commit=0),
        lambda directory: lake.archive(directory / "d", store=directory / "store", messages_per_commit=1000),
    ),
    "odd name of a table": Case(
        "a name without %",
        lambda directory: lake.archive(directory / "a%20b", store=directory / "store"),
        lambda directory: lake.archive(directory / "a b", store=directory / "store"),
    ),
    "format of a table": Case(
        "iceberg, the format of the table",
        lambda directory: [iceberg(directory), lake.archive(directory / "iceberg", store=directory / "store")],
        iceberg,
    ),
    "two tables at one path": Case(
        "there are two, delta and iceberg, so move the log of one",
        lambda directory: lake.compact(both_formats(directory)),
        lambda directory: lake.compact(only_one(both_formats(directory))),
    ),
    "moved Iceberg table": Case(
        "iceberg, where the table was made: an Iceberg table cannot be moved",
        lambda directory: lake.compact(really_moved(directory), format="iceberg"),
        lambda directory: lake.compact(moved_back(directory), format="iceberg"),
    ),
    "format of an earlier version": Case(
        "an earlier version of Rucola made this one",
        lambda directory: lake.compact(older(directory)),
        lambda directory: lake.archive(directory / "f", store=directory / "store"),
    ),
    "catalog of a Delta table": Case(
        "no value for a Delta table",
        lambda directory: lake.archive(directory / "f", store=directory / "store", catalog="prod"),
        lambda directory: lake.archive(directory / "f", store=directory / "store"),
    ),
    "identifier": Case(
        "such as sales.messages",
        lambda directory: iceberg(directory, identifier="messages"),
        lambda directory: lake.archive(
            directory / "sales", store=directory / "store", format="iceberg", identifier="sales.messages"
        ),
    ),
    "Iceberg table that was moved": Case(
        "iceberg, where the catalog has rucola.messages",
        lambda directory: lake.archive(
            moved(directory, iceberg), "other", store=directory / "store", format="iceberg"
        ),
        iceberg,
    ),
    "unknown catalog": Case(
        "a catalog in PyIceberg's configuration .*URI missing",
        lambda directory: iceberg(directory, catalog="none"),
        iceberg,
    ),
    "catalog for all writers": Case(
        "the name of a catalog in PyIceberg's configuration",
        lambda _: IcebergCatalog(cast(Any, SimpleNamespace(is_local=False, root="s3://bucket/table"))),
        lambda _: IcebergCatalog(cast(Any, SimpleNamespace(is_local=False, root="s3://bucket/table")), "prod"),
    ),
    "type that no table has": Case(
        "types that Delta tables have",
        lambda _: arrow_of(fields(x="char(3)")),
        lambda _: arrow_of(fields(x="string")),
    ),
    "target": Case(
        "does not exist or is empty",
        lambda directory: restore(directory, "full"),
        lambda directory: restore(directory, "empty"),
    ),
    "restored broker": Case(
        "one of the brokers in .*: broker-r",
        lambda directory: restore(directory, "of-none", "x"),
        lambda directory: restore(directory, "of", "broker-r"),
    ),
    "raw and more": Case(
        "only with --store, and without .*--skip-lost",
        lambda directory: command(directory, "--raw", "--skip-lost"),
        lambda directory: command(directory, "--raw"),
    ),
    "expired, by the command": Case(
        "archive --skip-lost", expired, lambda directory: expired(directory, "--skip-lost")
    ),
    "unit of whole numbers": Case(
        "no value without --decode json",
        lambda directory: command(directory, "--integer-times", "millis"),
        command,
    ),
    "master": Case(
        "no value, because --no-spark is given",
        lambda directory: command(directory, "--master", "local[1]"),
        command,
    ),
    "rate": request("above 0", {"rate": 0.0}, {"rate": 0.5}),
    "send to": request("the name servers to send to", {"namesrv": None}, {"namesrv": "h:1"}),
    "letters of a replay": request(
        "use deadLetterTopic",
        {"checkpoint": "c", "sink": ["deadLetterPath=p"]},
        {"checkpoint": "c", "sink": ["deadLetterTopic=p"]},
    ),
    "letters without a checkpoint": request(
        "or no --checkpoint", {"checkpoint": "c", "sink": ["deadLetterPath=p"]}, {"sink": ["deadLetterPath=p"]}
    ),
    "replay from": Case(
        "an existing directory",
        lambda directory: ReplayRequest(to="t", store=str(directory / "none")).source_options(),
        lambda directory: ReplayRequest(to="t", store=str(directory / "store")).source_options(),
    ),
    **{
        f"replay a table, {name}": Case(
            "only without --table",
            lambda _, name=name: _check_table(ReplayRequest(to="t", **{name: "x"})),
            lambda _: _check_table(ReplayRequest(to="t")),
        )
        for name in ("store", "from_namesrv", "source", "filter", "checkpoint")
    },
    "replay a table where": Case(
        "use --where",
        lambda _: _check_table(ReplayRequest(to="t", filter="a = 1")),
        lambda _: _check_table(ReplayRequest(to="t", where="a = 1")),
    ),
    # Decoders.
    "no JSON": avro("Avro schema as JSON", "x", '{"type": "record", "name": "r", "fields": []}'),
    "no record": avro("schema of a record", '"string"', '{"type": "record", "name": "r", "fields": []}'),
    "no such type": avro("an Avro schema", record("x"), record("string")),
    "itself": avro("do not contain themselves", record(["null", "r"]), record(["null", "string"])),
    "union": avro("unions of null and one other", record(["int", "string"]), record(["null", "string"])),
    "logical type": avro(
        "logical types date, ",
        record({"type": "int", "logicalType": "time-millis"}),
        record({"type": "int", "logicalType": "date"}),
    ),
    "no message": protobuf("a message of a descriptor set", "google.protobuf.X"),
    "message itself": protobuf("do not contain themselves", "google.protobuf.Struct"),
    "interval": Case("such as 10s", lambda _: seconds("--every", "10"), lambda _: seconds("--every", "10s")),
}  # fmt: skip


def fields(**types: str) -> dict[str, Any]:
    made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return {"type": "struct", "fields": made}


def table() -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([{"topic": "t"}])


def twice(directory: Path, name: str, other: str) -> object:
    lake.archive(directory / name, store=directory / "store")
    return lake.archive(directory / name, store=directory / other)


def damaged(directory: Path, **given: Any) -> object:
    """Reads a store whose compressed body is not what it says."""
    path = directory / f"damaged-{len(list(directory.iterdir()))}"
    store = open_store(path)
    store.put_message(replace(message(1, b"flights"), body=b"no zlib", sys_flag=0x1, store_host=store.store_host))
    store.dispatch()
    store.shutdown()
    return scan(path, "flights", **given).read_all()
