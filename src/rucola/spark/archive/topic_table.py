"""Reads table and store as one DataFrame: the archived messages of a topic, and those that only the store has.

The archived offsets of one commit separate the two parts. Spark's own reader reads the files of this commit, so columns
are pruned and filters pushed down as in any Parquet table. Tasks read the other messages from the store directory, or
through brokers. Retention may remove messages from the store before a task reads them. The task then reads these
messages from the table if a later commit has archived them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from rucola.arrow.catalog import checked_ranges
from rucola.arrow.ranges import QueueRange, SourceRange, UnitRange
from rucola.arrow.read_options import ReadOptions, ScanOrder
from rucola.arrow.reading import open_catalog
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, DataLossError
from rucola.lake.archiver import snapshot_of
from rucola.lake.columns import DAY, LIFE, has_lite, typed_names
from rucola.lake.continuation import continuation
from rucola.lake.file_rows import completed, joined_rows
from rucola.lake.labels import Label, Labels
from rucola.lake.table_log import DataFile, Snapshot, TableLog
from rucola.places.place import Place
from rucola.spark.archive.decoded_copy import Decode
from rucola.spark.archive.tasks import reading, source_schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PLANS_MAX = 20
"""Largest number of attempts to plan. An attempt fails if retention removes messages meanwhile."""
_DAY_OF = "date_add(DATE'1970-01-01', CAST(floor(unix_micros(storeTimestamp) / 86400000000) AS INT))"
"""SQL expression for the day of the store time in UTC, whatever time zone the session has."""
CONNECTORS = {
    "s3": ("s3a", "org.apache.hadoop.fs.s3a.S3AFileSystem"),
    "gs": ("gs", "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"),
    "abfss": ("abfss", "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem"),
}
"""For each kind of object store: the scheme of Hadoop's connector, and its class."""
PLACE = ("brokerName", "queueId", "queueOffset")


class _Tail(NamedTuple):
    """What only the store has: its ranges, and the labels of their queues in the table."""

    pieces: Sequence[SourceRange] = ()
    labels: Labels = Labels()


class _Plan(NamedTuple):
    snapshot: Snapshot
    tail: _Tail


def table_over_both(
    spark: SparkSession,
    table: TableLog,
    options: ReadOptions,
    columns: Sequence[str] = (),
    decode: Decode | None = None,
) -> DataFrame:
    """Returns each message of one topic once: archived messages from the table, all others from the store.

    The rows are fixed by this call, however often the DataFrame is evaluated.

    Args:
        spark: a session.
        table: the table's log.
        options: the topic, and the store or brokers.
        columns: names of the wanted columns, in order; empty for all.
        decode: function that adds the typed columns to rows from the store; must be the same as for the archive.

    Raises:
        ConfigError: a column does not exist, or the table has typed columns and ``decode`` is None.
        DataLossError: messages expired before they were archived, and ``fail_on_data_loss`` is set.
    """
    from pyspark.sql.functions import expr

    plan = _plan(table, options)
    options = as_archived(options, plan.snapshot.schema)
    source = source_schema(options)
    typed = [] if plan.snapshot.schema is None else typed_names(plan.snapshot.schema, options)
    if decode is None and (missing := [name for name in columns or typed if name in typed]):
        raise ConfigError("decode", "none", f"the decoder that added the typed columns {', '.join(missing)}")
    # A decoder may read any column, and the day is computed from the time.
    read = source if decode is not None or not columns else source_schema(options, [*columns, "storeTimestamp"])
    labelled = read.add(LIFE, "integer")  # changes the schema itself
    tail = reading(spark, labelled, len(plan.tail.pieces), _tail_reader(table, options, labelled, plan.tail))
    tail = tail.selectExpr(*(f"`{name}`" for name in labelled.names[:-1]), f"{_DAY_OF} AS {DAY}", LIFE)
    if decode is not None:
        tail = decode(tail)
    names = list(columns) or tail.columns
    if unknown := [name for name in names if name not in {*tail.columns, *typed}]:
        raise ConfigError("columns", ", ".join(unknown), ", ".join(tail.columns))
    topics = set(options.subscription.named_topics)
    files = [one for one in plan.snapshot.files.values() if one.partition["topic"] in topics]
    if not files:
        return tail.select(names)
    old = archived_rows(spark, table, plan.snapshot, files, names)
    if LIFE in names:  # rows of an earlier version have no life: it is the first
        old = old.withColumn(LIFE, expr(f"coalesce({LIFE}, 0)" if LIFE in old.columns else "0").cast("integer"))
    old = old.select(names)
    # Spark executes even an empty side of a union, which takes as long as a short query.
    return old.unionByName(tail.select(names)) if plan.tail.pieces else old


def archived_rows(
    spark: SparkSession, table: TableLog, snapshot: Snapshot, files: Sequence[DataFile], names: Sequence[str] = ()
) -> DataFrame:
    """Rows of ``files``. Spark's Parquet reader reads them if it reaches them; filters on topic and day then select
    files before they are read. Else tasks read them, and only the columns ``names``, unless there are none.
    """
    from pyspark.sql.types import StructType

    assert snapshot.schema is not None
    table.place.check()
    schema = StructType.fromJson(snapshot.schema)
    root = table.place.root if table.place.is_local else connector_url(spark, table.place.root)
    if root is not None:
        return _by_spark(spark, root, schema, files)
    wanted = StructType([field for field in schema.fields if not names or field.name in names])
    return reading(spark, wanted, len(files), _file_reader(table.place, wanted, files))


def _by_spark(spark: SparkSession, root: str, schema: StructType, files: Sequence[DataFile]) -> DataFrame:
    """Not all writers use the same directory: PyIceberg puts its files into ``data``. Spark finds partition values only
    below one directory, so each directory has a reader of its own.
    """
    places: dict[str, list[str]] = {}
    for one in files:
        directory, partition, _ = one.path.rpartition("topic=")
        places.setdefault(f"{root}/{directory}" if partition else root, []).append(one.path)
    parts = [
        spark.read.schema(schema).option("basePath", place).parquet(*(f"{root}/{path}" for path in paths))
        for place, paths in places.items()
    ]
    return reduce(lambda one, other: one.unionByName(other), parts)


def connector_url(spark: SparkSession, url: str) -> str | None:
    """The URL of an object store for the cluster's own connector; None if it has none that Rucola knows."""
    from pyspark.errors import PySparkException

    scheme, _, rest = url.partition("://")
    found = CONNECTORS.get(scheme)
    try:
        jvm = spark._jvm if found else None
    except (AttributeError, PySparkException):
        return None
    if found is None or jvm is None:
        return None
    ours, name = found
    try:
        jvm.java.lang.Class.forName(name)
    except Exception:  # noqa: BLE001 - py4j's error of a missing class
        return None
    return f"{ours}://{rest}"


def _file_reader(place: Place, schema: StructType, files: Sequence[DataFile]) -> Callable[[int], Iterator[Any]]:
    def read(number: int) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        return joined_rows(place, to_arrow_schema(schema, timezone="UTC"), [files[number]])

    return read


def as_archived(options: ReadOptions, schema: dict[str, Any] | None) -> ReadOptions:
    """Returns ``options``, with ``properties_as_map``, ``include_record`` and ``include_lite`` set to match the columns
    of the table.
    """
    if schema is None:
        return options
    types = {field["name"]: field["type"] for field in schema["fields"]}
    return replace(
        options,
        properties_as_map=isinstance(types["properties"], dict),
        include_record="record" in types,
        include_lite=has_lite(schema),
    )


def _plan(table: TableLog, options: ReadOptions) -> _Plan:
    """Returns the newest snapshot, and the ranges of the store from the archived offsets of this snapshot on."""
    for _ in range(PLANS_MAX):
        # The snapshot is taken first, so that messages archived after it are read as part of the tail.
        snapshot, queues = snapshot_of(table, options)
        tail = _tail(snapshot, queues, options)
        if tail is None:
            if table.snapshot().version > snapshot.version:
                continue  # a later commit may have archived the messages that retention has removed
            tail = _tail(snapshot, queues, options, fails=True)
        return _Plan(snapshot, tail or _Tail())
    raise ConfigError(
        "table",
        table.place.root,
        "a table into which messages are archived well before retention removes them; "
        f"planning failed {PLANS_MAX} times, because retention had removed messages",
    )


def _tail(
    snapshot: Snapshot, queues: Sequence[MessageQueue], options: ReadOptions, fails: bool = False
) -> _Tail | None:
    """The ranges of the store from the archived offsets of ``snapshot`` on, in these queues; None if the store no
    longer has some messages of these ranges.

    Raises:
        AnotherLogError: the store is not the one whose messages are in the table.
        DataLossError: messages are gone from the store, and both ``fails`` and ``fail_on_data_loss`` are set.
    """
    if options.store_path and snapshot.offsets.offsets:
        # If messages expire before a task reads them, the table can supply them for a range of a queue, but not for a
        # range of the log.
        options = replace(options, scan_order=ScanOrder.QUEUE)
    catalog = open_catalog(options)
    try:
        # Bounds and plan come from the same catalog, so both see the same state of the store. If the plan saw a newer
        # state than the bounds, it would silently leave out a range whose messages are all gone.
        bounds = catalog.bounds(queues)
        flow = continuation(snapshot, catalog, bounds)
        for error in flow.troubles.values():
            raise error
        start = flow.starts
        if not fails and any(start[queue] < held.min for queue, held in bounds.items()):
            return None
        end = {queue: max(held.max, start[queue]) for queue, held in bounds.items()}
        pieces = catalog.plan(checked_ranges(start, end, bounds, options.fail_on_data_loss))
        return _Tail(pieces, flow.labels)
    finally:
        catalog.close()


def _tail_reader(table: TableLog, options: ReadOptions, schema: StructType, tail: _Tail) -> Any:
    def read(number: int) -> Iterator[pa.RecordBatch]:
        return tail_batches(table, options, schema, tail.pieces[number], tail.labels)

    return read


def tail_batches(
    table: TableLog, options: ReadOptions, schema: StructType, piece: SourceRange, labels: Labels
) -> Iterator[pa.RecordBatch]:
    """The rows of ``piece``, a range of a queue or of the log, with the column ``LIFE``. Runs in tasks.

    If the store no longer has some messages of a range of a queue, their rows come from the table. Without
    ``fail_on_data_loss``, messages that are neither in the store nor in the table are left out. The rows of a range of
    the log come only from the store.

    Raises:
        DataLossError: messages are gone from the store, ``fail_on_data_loss`` is set, and ``piece`` is a range of the
            log or has not been archived up to its end.
    """
    import numpy as np
    from pyspark.sql.pandas.types import to_arrow_schema

    from rucola.arrow.buffers import numbers_of
    from rucola.arrow.reading import read_range

    wanted = piece.wanted if isinstance(piece, UnitRange) else piece
    arrow = to_arrow_schema(schema, timezone="UTC")
    if not isinstance(wanted, QueueRange):  # only without archived offsets, and so without labels
        source = to_arrow_schema(source_schema(options, schema.names), timezone="UTC")
        for batch in read_range(options, source, piece):
            yield _labelled(batch, Label("", 0), arrow)
        return
    reads = to_arrow_schema(source_schema(options, [*schema.names, "queueOffset"]), timezone="UTC")
    label, at = labels.of(wanted.queue), wanted.start
    own = MessageQueue(wanted.queue.topic, label.broker_name, wanted.queue.queue_id)
    try:
        for batch in read_range(options, reads, piece):
            if batch.num_rows:
                yield _labelled(batch, label, arrow)
                offsets = numbers_of(batch.column("queueOffset"), np.int64)
                for gap in _gaps(at, offsets):
                    yield from _from_table(table, arrow, QueueRange(own, *gap), label.life)
                at = int(offsets[-1]) + 1
    except DataLossError as error:
        end = table.snapshot().end_in(own, label.life)
        if at < wanted.end and (end is None or end < wanted.end):
            raise error
    if at < wanted.end:
        yield from _from_table(table, arrow, QueueRange(own, at, wanted.end), label.life)


def _labelled(batch: pa.RecordBatch, label: Label, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of one queue with the columns of ``schema``: its broker name and life in the table are those of the
    label.
    """
    import pyarrow as pa

    fixed: dict[str, Any] = {LIFE: label.life} | ({"brokerName": label.broker_name} if label.broker_name else {})
    columns = [
        pa.repeat(pa.scalar(fixed[field.name], field.type), batch.num_rows)
        if field.name in fixed
        else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _gaps(start: int, offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The gaps in ascending ``offsets``, from ``start`` on: for each gap, its first offset and the offset after it."""
    import numpy as np

    before = np.concatenate(([start - 1], offsets[:-1]))
    return [(int(before[at]) + 1, int(offsets[at])) for at in np.flatnonzero(offsets - before > 1)]


def _from_table(table: TableLog, schema: pa.Schema, wanted: QueueRange, life: int) -> Iterator[pa.RecordBatch]:
    """The rows of the table whose queue and offset are in ``wanted``, of one life of the queue."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    queue, snapshot = wanted.queue, table.snapshot()
    table.place.check()
    files, base = table.place.filesystem()
    broker, queue_id, offset = (pc.field(name) for name in PLACE)
    here = (broker == queue.broker_name) & (queue_id == queue.queue_id)
    here &= (offset >= wanted.start) & (offset < wanted.end)
    first = pc.scalar(pa.scalar(0, pa.int32()))
    for one in snapshot.files.values():
        if one.partition["topic"] == queue.topic:
            file = ds.dataset(f"{base}/{one.path}", format="parquet", filesystem=files)
            has_lives = LIFE in file.schema.names
            if not has_lives and life:
                continue
            own = here & (pc.coalesce(pc.field(LIFE), first) == life) if has_lives else here
            names = [name for name in schema.names if name in file.schema.names]
            for batch in file.to_batches(columns=names, filter=own):
                yield completed(batch, schema, one)
