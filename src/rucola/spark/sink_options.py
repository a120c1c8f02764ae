"""The options of ``df.write.format("rocketmq")``, and the assignment of columns to the parts of a message. Pure
functions.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rucola.arrow.access import Access
from rucola.arrow.schema import LITE_COLUMNS, ROCKETMQ_COLUMNS
from rucola.client.send_result import SendStatus
from rucola.common.local_path import local_path
from rucola.errors import ClientError, ConfigError
from rucola.places.storage import scheme_of
from rucola.spark.option_values import ACCESS_OPTIONS, SparkOption, access, check_passed_on, known_values, number

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MEBIBYTE = 1 << 20

SINK_OPTIONS: tuple[SparkOption, ...] = (
    SparkOption("nameServer", "", "name servers, `host:port` separated by `;`"),
    SparkOption("topic", "", "topic of all rows; without this option the rows need a column `topic`"),
    SparkOption(
        "idColumn",
        "",
        "column whose value determines the id of a message: equal values give equal ids; the default is the source "
        "position",
    ),
    SparkOption(
        "idScope",
        "",
        "text that is part of every id, so that two pipelines make different ids for the same row; if ids are made "
        "from the source position, the default is the id of the streaming query",
    ),
    SparkOption(
        "queueColumn",
        "",
        "column with the id of the queue to send to; the default is `queueId` for rows without a source position; for "
        "other rows the producer chooses the queue",
    ),
    SparkOption(
        "deadLetterTopic",
        "",
        "topic for rows that cannot be sent; if neither this option nor `deadLetterPath` is set, such rows fail the "
        "query",
    ),
    SparkOption(
        "deadLetterPath", "", "directory, or its URL (`s3://`), for rows that cannot be sent, as Parquet files"
    ),
    SparkOption(
        "acceptedStatus",
        "SEND_OK",
        "send statuses that count as success, separated by commas; after other statuses (`FLUSH_DISK_TIMEOUT`, "
        "`FLUSH_SLAVE_TIMEOUT`, `SLAVE_NOT_AVAILABLE`) the message is sent again",
    ),
    SparkOption("producerGroup", "rucola-spark", "producer group named in send requests"),
    *ACCESS_OPTIONS,
    SparkOption("batchBytes", str(256 << 10), "largest number of message bytes in one request"),
    SparkOption(
        "maxBytesInFlight", str(32 * MEBIBYTE), "bytes that one task may have in flight before it waits for responses"
    ),
    SparkOption("maxMessageSize", str(4 * MEBIBYTE), "largest body; rows with larger bodies cannot be sent"),
    SparkOption(
        "compressMsgBodyOverHowmuch", "4096", "larger bodies are compressed, and each is sent in a request of its own"
    ),
    SparkOption(
        "sendTimeoutMs",
        "3000",
        "time limit of one send, including the client's retries; the sink repeats a failed send for `retryTimeoutMs`",
    ),
    SparkOption("retryTimeoutMs", "120000", "how long failed sends are repeated before the task fails"),
)
DEFAULTS = {option.name: option.default for option in SINK_OPTIONS}
ALIASES: dict[str, str] = {"namesrvaddr": "nameServer"}
ELSEWHERE = {
    "kafka.bootstrap.servers": "nameServer, the name servers of the cluster",
    "subscribe": "topic",
    "path": "topic; save() and start() take no path",
    "storepath": "nameServer; messages are sent to brokers, not written to a directory",
}
ADVICE = (
    'options of a write; Spark does not pass on those of CREATE TABLE; write rows with df.write.format("rocketmq")'
    '.options(...).mode("append").save()'
)
"""What works where the options of a table do not."""
OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark itself passes to a streaming sink: the first always, the second in a declarative pipeline."""

_TEXT = ("string",)
_BYTES = ("string", "binary")
_WHOLE = ("int", "bigint", "smallint", "tinyint")
COLUMN_TYPES: dict[str, tuple[str, ...]] = {
    "topic": _TEXT,
    "body": _BYTES,
    "tags": _TEXT,
    "keys": ("string", "binary", "array<string>"),
    "properties": ("string", "map<string,string>"),
    "shardingKey": _TEXT,
    "liteTopic": _TEXT,
    "flag": _WHOLE,
    "delayLevel": _WHOLE,
    "delayMs": _WHOLE,
    "deliverAt": ("timestamp",),
    "queueId": _WHOLE,
    "brokerName": _TEXT,
    "queueOffset": ("bigint",),
}
"""The columns that the sink accepts, and their Spark types."""
KAFKA_NAMES = {"value": "body", "key": "keys"}
LEFT_OUT = frozenset(column.name.lower() for column in (*ROCKETMQ_COLUMNS, *LITE_COLUMNS))
"""Source columns that rows may have but that the sink ignores."""
POSITION = ("topic", "brokerName", "queueId", "queueOffset")


@dataclass(frozen=True)
class SinkOptions:
    """Checked options of one sink. They can be pickled, because Spark sends them to the tasks."""

    name_server: str
    topic: str
    id_column: str
    id_scope: str
    queue_column: str
    dead_letter_topic: str
    dead_letter_path: str
    accepted: frozenset[SendStatus]
    producer_group: str
    access: Access
    batch_bytes_max: int
    in_flight_bytes_max: int
    message_bytes_max: int
    compress_over_bytes: int
    send_timeout_ms: int
    retry_timeout_ms: int


@dataclass(frozen=True)
class SinkLayout:
    """The assignment of a row's fields to the parts of a message.

    Attributes:
        fields: index of the field for each name in ``COLUMN_TYPES``.
        names: names of all fields, in order.
        has_position: whether rows contain their source position, from which ids are made.
        id_field: index of the field that determines the id; None without ``idColumn``.
        queue_field: index of the field with the id of the queue to send to; None if the producer chooses the queue.
    """

    fields: dict[str, int]
    names: tuple[str, ...]
    has_position: bool
    id_field: int | None
    queue_field: int | None


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of one ``write``.

    Raises:
        ConfigError: a name is unknown, a value is out of range, or two options exclude each other.
    """
    check_passed_on(given, ADVICE)
    own = {name: value for name, value in given.items() if name.lower() not in OF_SPARK}
    values = known_values(own, DEFAULTS, ALIASES, ELSEWHERE)
    if not values["nameServer"]:
        raise ConfigError("nameServer", "", "the name servers of the cluster, host:port separated by ;")
    if values["deadLetterTopic"] and values["deadLetterPath"]:
        raise ConfigError("deadLetterTopic, deadLetterPath", "both", "at most one of the two")
    for name in ("topic", "deadLetterTopic"):
        if values[name]:
            # This loads the client, which the planning of reads does not need.
            from rucola.client.instance import check_topic

            try:
                check_topic(values[name])
            except ClientError as error:
                raise ConfigError(name, values[name], str(error)) from error
    return SinkOptions(
        name_server=values["nameServer"],
        topic=values["topic"],
        id_column=values["idColumn"],
        id_scope=values["idScope"],
        queue_column=values["queueColumn"],
        dead_letter_topic=values["deadLetterTopic"],
        dead_letter_path=_letters_place(values["deadLetterPath"]),
        accepted=_accepted(values["acceptedStatus"]),
        producer_group=values["producerGroup"],
        access=access(values),
        batch_bytes_max=number(values, "batchBytes", 1, 4 * MEBIBYTE),
        in_flight_bytes_max=number(values, "maxBytesInFlight", 1, 1 << 40),
        message_bytes_max=number(values, "maxMessageSize", 1, (1 << 31) - 1),
        compress_over_bytes=number(values, "compressMsgBodyOverHowmuch", 0, (1 << 31) - 1),
        send_timeout_ms=number(values, "sendTimeoutMs", 1, 1 << 31),
        retry_timeout_ms=number(values, "retryTimeoutMs", 0, 1 << 31),
    )


def _letters_place(text: str) -> str:
    """A local directory, or the URL of an object store."""
    return text if scheme_of("deadLetterPath", text) else local_path("deadLetterPath", text)


def sink_layout(options: SinkOptions, schema: StructType) -> SinkLayout:
    """Assigns the fields of ``schema`` to the parts of a message.

    Raises:
        ConfigError: a column is missing, is unknown or has a wrong type, or an option names a column that does not
            exist.
    """
    names = schema.fieldNames()
    numbers = {name.lower(): at for at, name in enumerate(names)}
    if len(numbers) < len(names):
        raise ConfigError("columns", ", ".join(names), "each column name only once, regardless of case")
    known = {name.lower(): name for name in COLUMN_TYPES} | KAFKA_NAMES
    chosen = {option: _named(options, option, numbers) for option in ("idColumn", "queueColumn")}
    fields: dict[str, int] = {}
    for at, field in enumerate(schema.fields):
        name = known.get(field.name.lower())
        kind = field.dataType.simpleString()
        if name is None:
            if at not in chosen.values() and field.name.lower() not in LEFT_OUT:
                raise _unknown(field.name, list(known.values()))
        elif name in fields:
            raise ConfigError("columns", field.name, f"one column for {name}")
        elif kind not in COLUMN_TYPES[name] and not (at in chosen.values() and name not in ("body", "topic")):
            raise ConfigError("columns", f"{field.name} {kind}", f"{field.name} {' or '.join(COLUMN_TYPES[name])}")
        else:
            fields[name] = at
    if "body" not in fields:
        raise ConfigError("columns", ", ".join(names), "a column body (or value), string or binary")
    if "topic" not in fields and not options.topic:
        raise ConfigError("topic", "", "a topic, or a column topic")
    has_position = all(name in fields for name in POSITION)
    if "queueOffset" in fields and not has_position and chosen["idColumn"] is None:
        missing = ", ".join(name for name in POSITION if name not in fields)
        raise ConfigError(
            "columns", "queueOffset", f"only together with {missing}, the rest of the source position; or use idColumn"
        )
    queue_field = chosen["queueColumn"]
    if queue_field is None and "queueOffset" not in fields:
        queue_field = fields.get("queueId")
    if queue_field is not None and schema.fields[queue_field].dataType.simpleString() not in _WHOLE:
        raise ConfigError("queueColumn", options.queue_column, "a column of whole numbers")
    return SinkLayout(fields, tuple(names), has_position, chosen["idColumn"], queue_field)


def _accepted(text: str) -> frozenset[SendStatus]:
    names = {name.strip().upper() for name in text.split(",") if name.strip()}
    try:
        return frozenset(SendStatus(name) for name in names | {"SEND_OK"})
    except ValueError as error:
        raise ConfigError("acceptedStatus", text, ", ".join(status.value for status in SendStatus)) from error


def _named(options: SinkOptions, option: str, numbers: Mapping[str, int]) -> int | None:
    """Index of the column named in an option; None if the option is not given."""
    name = options.id_column if option == "idColumn" else options.queue_column
    if name and name.lower() not in numbers:
        raise ConfigError(option, name, "one of these columns: " + ", ".join(numbers))
    return numbers[name.lower()] if name else None


def _unknown(name: str, known: list[str]) -> ConfigError:
    nearest = difflib.get_close_matches(name.lower(), [one.lower() for one in known], n=1, cutoff=0.0)[0]
    nearest = next(one for one in known if one.lower() == nearest)
    return ConfigError("columns", name, f"columns of a message (the nearest is {nearest}); select the columns to send")
