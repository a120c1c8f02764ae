"""The options of ``format("rocketmq")``: names, ranges, defaults, and the rules between them.

Names are case-insensitive and values are strings, as everywhere in Spark. An unknown name is refused, so that a typo
never turns into a silent default. The error names the most similar option, or all options if none is similar.
``parse_options`` is a pure function.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rucola.arrow.access import Access
from rucola.arrow.expression import ExpressionKind, parse_expression
from rucola.arrow.lite_condition import EVERY_LITE, one_of
from rucola.arrow.offsets import parse_document
from rucola.arrow.read_options import (
    DEFAULT_BROKER_NAME,
    DEFAULT_GROUP,
    MEBIBYTE,
    BodyForm,
    MissingTime,
    Position,
    ReadOptions,
    ScanOrder,
    SchemaStyle,
    Subscription,
)
from rucola.common.local_path import local_path
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError
from rucola.spark.option_values import (
    ACCESS_NAMES,
    ACCESS_OPTIONS,
    SparkOption,
    access,
    check_passed_on,
    choice,
    flag,
    known_values,
    listed,
    milliseconds,
    number,
    optional_number,
)

OPTIONS: tuple[SparkOption, ...] = (
    SparkOption(
        "nameServer", "", "name servers, `host:port` separated by `;`; if given, messages are read from brokers"
    ),
    SparkOption(
        "storePath",
        "",
        "store directory that is read in place, or several directories separated by commas; `path` is an alias; "
        "give exactly one of `nameServer` and `storePath`; the options for account and TLS need `nameServer`",
    ),
    SparkOption(
        "storePathCommitLog",
        "",
        "directory of the commit log, as in `broker.conf`, if it is not `commitlog` in the store; separate several "
        "directories by commas; allowed only with a single `storePath`",
    ),
    SparkOption(
        "brokerName",
        DEFAULT_BROKER_NAME,
        "with `storePath`: the broker name that appears in offsets and in column `brokerName`; for several "
        "directories, as many names, separated by commas",
    ),
    SparkOption("topic", "", "one topic, or several separated by commas; same as `subscribe`"),
    SparkOption("subscribe", "", "topics separated by commas"),
    SparkOption(
        "subscribePattern",
        "",
        "regular expression that the whole topic name must match; system topics are left out, and so are retry and "
        "dead-letter topics unless the pattern contains `%RETRY%` or `%DLQ%`",
    ),
    SparkOption(
        "assign",
        "",
        'queues, as `{"TopicA":{"broker-a":[0,1]}}`; give only one of `topic`, `subscribe`, `subscribePattern` and '
        "`assign`",
    ),
    SparkOption(
        "subExpression",
        "*",
        "tags separated by `||`, or a condition in SQL92 (`region = 'eu'`); `*` selects all messages",
    ),
    SparkOption(
        "expressionType",
        "auto",
        "how `subExpression` is interpreted: `tag`, `sql92`, or `auto` (SQL92 if it contains operators)",
    ),
    SparkOption(
        "startingOffsets",
        "",
        "`earliest`, `latest` or `{topic:{broker:{queue:n}}}`, where -2 means earliest and -1 latest; the default is "
        "earliest in a batch and latest in a stream",
    ),
    SparkOption(
        "startingTimestamp",
        "",
        "milliseconds; start at the first message stored at or after this time; takes precedence over the offsets",
    ),
    SparkOption("startingOffsetsByTimestamp", "", "start times for each queue, `{topic:{broker:{queue:ms}}}`"),
    SparkOption(
        "startingOffsetsByTimestampStrategy",
        "error",
        "`error` or `latest`: what happens if a queue has no message at or after its start time",
    ),
    SparkOption(
        "endingOffsets",
        "latest",
        "batch only: `latest` or offsets as for `startingOffsets`, without -2; "
        "the message at the given offset is not read",
    ),
    SparkOption(
        "endingTimestamp", "", "batch only: milliseconds; read only messages that were stored before this time"
    ),
    SparkOption(
        "endingOffsetsByTimestamp",
        "",
        "batch only: end times for each queue, in the form of `startingOffsetsByTimestamp`",
    ),
    SparkOption(
        "failOnDataLoss",
        "true",
        "whether the query fails if requested messages are gone; `false` reads the remaining ones",
    ),
    SparkOption(
        "maxOffsetsPerTrigger",
        "",
        "stream only: largest number of messages in a micro-batch, shared among the queues in proportion to their "
        "backlog",
    ),
    SparkOption(
        "minOffsetsPerTrigger", "", "stream only: a micro-batch waits until there are at least this many messages"
    ),
    SparkOption(
        "maxTriggerDelay",
        "15m",
        "stream only: the longest time that a micro-batch waits for `minOffsetsPerTrigger`; "
        "a number with ms, s, m, h or d",
    ),
    SparkOption(
        "maxBytesPerTrigger",
        "",
        "stream only: largest number of bytes in a micro-batch, estimated from the mean record size",
    ),
    SparkOption("minPartitions", "", "ranges are split until there are about this many tasks"),
    SparkOption("maxRecordsPerPartition", "", "largest number of messages in a task, except in a log scan"),
    SparkOption(
        "maxBytesPerPartition",
        str(128 * MEBIBYTE),
        "with `storePath`: approximate limit on the bytes of the log that one task reads",
    ),
    SparkOption(
        "scanOrder",
        "auto",
        "with `storePath`: `log` scans the commit log, `queue` follows each consume queue, `auto` chooses `log` if "
        "at least 15 % of the scanned bytes would be kept",
    ),
    SparkOption(
        "body",
        "decompressed",
        "`decompressed`: the body as it was sent, even if the client compressed it; `stored`: the bytes in the log",
    ),
    SparkOption(
        "keys",
        "",
        "keys separated by commas; select only messages that have one of these keys, or whose `msgId` is one of them; "
        "a batch looks the keys up in the index of the directory or of the brokers; a stream reads all messages and "
        "drops those that are not selected",
    ),
    SparkOption(
        "useIndex",
        "",
        "whether a batch may use the index; the index lacks messages that were stored while `messageIndexEnable` was "
        "false; the default is true for option `keys`, and false for filters on `keys` and `msgId`",
    ),
    SparkOption(
        "liteTopics",
        "",
        "lite topics of the topic, separated by commas; select only messages in one of them; a batch over a store that "
        "keeps lite topics reads only their records, unless `useIndex` is false",
    ),
    SparkOption("columns", "", "columns separated by commas; other columns are not decoded"),
    SparkOption(
        "pushFilters",
        "false",
        "batch only, with `spark.sql.python.filterPushdown.enabled`: use the filters of the query to read less; the "
        "rows of one `load()` may then be read only once",
    ),
    SparkOption("propertiesAsMap", "false", "`properties` as map<string,string> instead of a JSON string"),
    SparkOption("schemaStyle", "rocketmq", "`rocketmq` or `kafka` (the columns of Spark's Kafka source)"),
    SparkOption("includeHeaders", "false", "with `schemaStyle=kafka`: add `headers`"),
    SparkOption("includeLiteTopic", "false", "add `liteTopic` and `liteOffset`"),
    SparkOption(
        "consumerGroup",
        DEFAULT_GROUP,
        "consumer group named in pull requests; no progress is stored for it; the default group exists on every broker",
    ),
    SparkOption(
        "groupIdPrefix",
        "",
        "instead of `consumerGroup`: the group is this prefix and a hash of name servers and subscription; "
        "brokers create the group at the first read",
    ),
    *ACCESS_OPTIONS,
    SparkOption(
        "pullBatchSize", "1024", "number of messages requested in one pull, 1 to 65536; the broker may return fewer"
    ),
    SparkOption("pullTimeoutMs", "3000", "how long to wait for one response"),
    SparkOption(
        "retryTimeoutMs",
        "120000",
        "how long requests to a failing broker are repeated; after this time, a batch fails; the first micro-batch of "
        "a stream fails, too, but not with `startingOffsets=earliest`; a run with `Trigger.AvailableNow` leaves out "
        "the broker; all other micro-batches repeat their requests without limit",
    ),
)
ADVICE = (
    "options of a query; Spark does not pass on those of CREATE TABLE, but it does pass on those of "
    "CREATE TEMPORARY VIEW v USING rocketmq OPTIONS (...)"
)
"""What works where the options of a table do not."""
ELSEWHERE = {
    "kafka.bootstrap.servers": "nameServer, the name servers of the cluster",
    "kafka.group.id": "consumerGroup",
    "namesrvaddr": "nameServer",
    "tls.client.trustcertpath": "caCertificate",
}
"""Replacements for options of other sources. The error for such an option names the replacement instead of the most
similar option.
"""
GROUP_HASH_DIGITS = 12
DEFAULTS = {option.name: option.default for option in OPTIONS}


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ReadOptions):
    """The options of the source: those of every reader, and those that only Spark needs."""

    offsets_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_max_ms: int
    push_filters: bool
    use_index: bool | None
    """None if not set: then option ``keys`` uses the index, and filters do not."""


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of one ``load()``.

    Raises:
        ConfigError: a name is unknown, a value is out of range, or two options exclude each other.
    """
    check_passed_on(given, ADVICE)
    values = known_values(given, DEFAULTS, {"path": "storePath"}, ELSEWHERE)
    if bool(values["nameServer"]) == bool(values["storePath"]):
        both = values["nameServer"] and values["storePath"]
        raise ConfigError("nameServer, storePath", "both" if both else "neither", "exactly one of these two options")
    _check_directories(values)
    least, most = (optional_number(values, f"{side}OffsetsPerTrigger") for side in ("min", "max"))
    if least and most and least > most:
        raise ConfigError("minOffsetsPerTrigger", str(least), f"up to maxOffsetsPerTrigger, which is {most}")
    subscription = _subscription(values)
    style = choice(values, "schemaStyle", SchemaStyle)
    if flag(values, "includeHeaders") and style is not SchemaStyle.KAFKA:
        raise ConfigError("includeHeaders", "true", "only with schemaStyle=kafka; otherwise use column properties")
    if flag(values, "includeLiteTopic") and style is not SchemaStyle.ROCKETMQ:
        raise ConfigError("includeLiteTopic", "true", "only with schemaStyle=rocketmq")
    lite_topics = listed(values["liteTopics"])
    return SourceOptions(
        name_server=values["nameServer"],
        store_path=values["storePath"],
        broker_name=values["brokerName"],
        commit_log_path=values["storePathCommitLog"],
        subscription=subscription,
        expression=parse_expression(values["subExpression"], choice(values, "expressionType", ExpressionKind)),
        starting=_starting(values),
        starting_missing_time=choice(values, "startingOffsetsByTimestampStrategy", MissingTime),
        ending=_ending(values),
        fail_on_data_loss=flag(values, "failOnDataLoss"),
        offsets_per_trigger_max=optional_number(values, "maxOffsetsPerTrigger"),
        bytes_per_trigger_max=optional_number(values, "maxBytesPerTrigger"),
        offsets_per_trigger_min=optional_number(values, "minOffsetsPerTrigger"),
        trigger_delay_max_ms=milliseconds(values, "maxTriggerDelay"),
        partitions_min=optional_number(values, "minPartitions"),
        records_per_partition_max=optional_number(values, "maxRecordsPerPartition"),
        bytes_per_partition_max=number(values, "maxBytesPerPartition", 1, 1 << 62),
        scan_order=choice(values, "scanOrder", ScanOrder),
        body=choice(values, "body", BodyForm),
        columns=listed(values["columns"]),
        push_filters=flag(values, "pushFilters"),
        keys=frozenset(listed(values["keys"])),
        lite=one_of(lite_topics) if lite_topics else EVERY_LITE,
        use_index=flag(values, "useIndex") if values["useIndex"] else None,
        properties_as_map=flag(values, "propertiesAsMap"),
        schema_style=style,
        include_headers=flag(values, "includeHeaders"),
        include_lite=flag(values, "includeLiteTopic"),
        consumer_group=_group(values, subscription),
        access=_access(values),
        pull_batch_size=number(values, "pullBatchSize", 1, 65536),
        pull_timeout_ms=number(values, "pullTimeoutMs", 1, 1 << 31),
        retry_timeout_ms=number(values, "retryTimeoutMs", 0, 1 << 31),
    )


def _check_directories(values: dict[str, str]) -> None:
    """Checks the options about store directories, and replaces their URIs in ``values`` by paths."""
    names = [name.strip() for name in values["brokerName"].split(",")]
    paths = values["storePath"].split(",") if len(names) > 1 else [values["storePath"]]
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError("brokerName", values["brokerName"], "a different name for each directory")
    if len(paths) != len(names):
        raise ConfigError(
            "brokerName", values["brokerName"], f"as many names as storePath has directories, {len(paths)}"
        )
    if values["storePathCommitLog"] and (len(paths) > 1 or not values["storePath"]):
        raise ConfigError("storePathCommitLog", values["storePathCommitLog"], "with one storePath only")
    values["storePath"] = ",".join(local_path("storePath", path.strip()) for path in paths)


def _group(values: dict[str, str], subscription: Subscription) -> str:
    """The consumer group named in pull requests."""
    prefix = values["groupIdPrefix"]
    if not prefix:
        return values["consumerGroup"]
    if values["consumerGroup"] != DEFAULT_GROUP:
        raise ConfigError("groupIdPrefix, consumerGroup", "both", "one of the two, or neither")
    # The name is the same in every run, task and retry. A random name would leave a new group on the brokers each time.
    what = f"{values['nameServer']} {subscription}"
    return f"{prefix}-{hashlib.sha256(what.encode()).hexdigest()[:GROUP_HASH_DIGITS]}"


def _subscription(values: dict[str, str]) -> Subscription:
    names = [name for name in ("topic", "subscribe", "subscribePattern", "assign") if values[name]]
    if len(names) != 1:
        raise ConfigError(
            "topic, subscribe, subscribePattern, assign",
            ", ".join(names) or "none",
            "exactly one of these four options",
        )
    name = names[0]
    value = values[name]
    if name == "assign":
        return Subscription(queues=_assigned_queues(value))
    if name == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigError(name, value, f"a regular expression ({error})") from error
        return Subscription(pattern=value)
    topics = tuple(sorted({topic.strip() for topic in value.split(",") if topic.strip()}))
    if not topics:
        raise ConfigError(name, value, "topic names separated by commas")
    return Subscription(topics=topics)


def _assigned_queues(text: str) -> tuple[MessageQueue, ...]:
    allowed = '{"topic":{"broker":[queue ids]}}'
    try:
        document = json.loads(text)
        queues = {
            MessageQueue(str(topic), str(broker), int(queue_id))
            for topic, brokers in document.items()
            for broker, queue_ids in brokers.items()
            for queue_id in queue_ids
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError("assign", text, allowed) from error
    if not queues or any(queue.queue_id < 0 for queue in queues):
        raise ConfigError("assign", text, allowed)
    return tuple(sorted(queues))


def _access(values: dict[str, str]) -> Access:
    given = [name for name in ACCESS_NAMES if values[name]]
    if values["storePath"] and (given or flag(values, "useTLS")):
        raise ConfigError(
            ", ".join(given or ["useTLS"]),
            "given",
            "only with nameServer; a directory needs no account and no encryption",
        )
    return access(values)


def _starting(values: dict[str, str]) -> Position | None:
    position = _position(values, "starting", ("earliest", "latest"))
    return None if position == Position() else position


def _ending(values: dict[str, str]) -> Position:
    return _position(values, "ending", ("latest",))


def _position(values: dict[str, str], side: str, names: tuple[str, ...]) -> Position:
    """The position of one end of the range. A single time for all queues takes precedence over times per queue, and
    these take precedence over offsets, as in Spark's Kafka source.
    """
    timestamp, by_queue, offsets = (values[side + end] for end in ("Timestamp", "OffsetsByTimestamp", "Offsets"))
    if timestamp:
        return Position(timestamp_ms=number(values, side + "Timestamp", 0, 1 << 62))
    if by_queue:
        return Position(timestamps=parse_document(by_queue, f"{side}OffsetsByTimestamp", value_min=0))
    if offsets.lower() in names or not offsets:
        return Position(name=offsets.lower())
    if not offsets.startswith("{"):
        raise ConfigError(f"{side}Offsets", offsets, ", ".join(names) + " or a JSON document")
    return Position(offsets=parse_document(offsets, f"{side}Offsets", value_min=-2 if side == "starting" else -1))
