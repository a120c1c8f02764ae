"""The options of a reader: store or brokers, queues, range, columns. The options of Spark and of ``scan`` are converted
to these options.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from rucola.arrow.access import Access
from rucola.arrow.expression import Expression
from rucola.arrow.lite_condition import EVERY_LITE, LiteCondition
from rucola.arrow.offsets import QueueOffsets
from rucola.common.key_builder import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX, is_system_topic
from rucola.common.message_queue import MessageQueue
from rucola.filter.tag import parse_tag_expression

MEBIBYTE = 1 << 20
DEFAULT_GROUP = "TOOLS_CONSUMER"
"""RocketMQ's own tools use this group too, so a query leaves no group of its own behind."""
DEFAULT_BROKER_NAME = "broker-a"
"""Default broker name of rows from a store directory; the directory itself does not hold the name."""

EVERYTHING = parse_tag_expression("*")
NO_ACCOUNT = Access()
_PREFIXES = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)


class SchemaStyle(StrEnum):
    """Whether the columns are named as in this package or as in Spark's Kafka source."""

    ROCKETMQ = "rocketmq"
    KAFKA = "kafka"


class BodyForm(StrEnum):
    """The form in which column ``body`` holds a body that the client compressed."""

    DECOMPRESSED = "decompressed"
    STORED = "stored"


class ScanOrder(StrEnum):
    """The order in which a store directory is read."""

    AUTO = "auto"
    LOG = "log"
    QUEUE = "queue"


class MissingTime(StrEnum):
    """How to treat a starting time after the last message of a queue."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True)
class Position:
    """Where to start or end: a name, offsets by queue, one time, or times by queue.

    Times are in milliseconds since the epoch.
    """

    name: str = ""
    """``earliest`` or ``latest``; empty if one of the other fields is set."""
    offsets: QueueOffsets | None = None
    timestamp_ms: int | None = None
    timestamps: QueueOffsets | None = None


@dataclass(frozen=True)
class Subscription:
    """The topics or queues to read; exactly one field is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: tuple[MessageQueue, ...] = ()
    """Assigned queues."""

    def wants_topic(self, topic: str) -> bool:
        """Whether queues of ``topic`` belong to the subscription."""
        if self.pattern:
            if is_system_topic(topic) or any(
                topic.startswith(prefix) and prefix not in self.pattern for prefix in _PREFIXES
            ):
                return False
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(topic == queue.topic for queue in self.queues)

    def wants(self, queue: MessageQueue) -> bool:
        """Whether ``queue`` belongs to the subscription."""
        return queue in self.queues if self.queues else self.wants_topic(queue.topic)

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics that the user named, sorted; empty with a pattern."""
        return tuple(sorted({*self.topics, *(queue.topic for queue in self.queues)}))


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Checked options of one reader; picklable, because Spark sends them to the tasks."""

    name_server: str = ""
    store_path: str = ""
    """Exactly one of ``name_server`` and ``store_path`` is set."""
    broker_name: str = DEFAULT_BROKER_NAME
    """Broker name of the directory; for several directories in ``store_path``, as many names separated by commas."""
    commit_log_path: str = ""
    """Directory of the log if it is not in ``store_path``; several are separated by commas."""
    subscription: Subscription
    expression: Expression = EVERYTHING
    """Which messages to keep."""
    keys: frozenset[str] = frozenset()
    """Keeps only messages that have one of these keys in KEYS or as their id; empty for all messages."""
    starting: Position | None = None
    """None stands for the default: earliest in a batch and latest in a stream."""
    starting_missing_time: MissingTime = MissingTime.ERROR
    ending: Position = Position()
    fail_on_data_loss: bool = True
    null_bodies: bool = False
    """Whether a body that cannot be decompressed is null, with a warning, instead of an error. Its sender is to blame,
    not the store, and one such message should not make the others unreadable.
    """
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    bytes_per_partition_max: int = 128 * MEBIBYTE
    scan_order: ScanOrder = ScanOrder.AUTO
    body: BodyForm = BodyForm.DECOMPRESSED
    columns: tuple[str, ...] = ()
    properties_as_map: bool = False
    schema_style: SchemaStyle = SchemaStyle.ROCKETMQ
    include_headers: bool = False
    include_lite: bool = False
    """Adds columns ``liteTopic`` and ``liteOffset``: the lite topic in which a message is, and its offset there. In
    style ``rocketmq`` only.
    """
    lite: LiteCondition = EVERY_LITE
    """What filters say about ``liteTopic``; messages that do not meet it may be left out."""
    include_record: bool = False
    """Adds column ``record``: the stored bytes of the message, with the header. Only in style ``rocketmq``."""
    consumer_group: str = DEFAULT_GROUP
    access: Access = NO_ACCOUNT
    pull_batch_size: int = 1024
    pull_timeout_ms: int = 3000
    retry_timeout_ms: int = 120_000
    waits_for_brokers: bool = False
    """Whether tasks wait for an unavailable broker without limit, and not only for ``retry_timeout_ms``."""

    @property
    def stores(self) -> tuple[ReadOptions, ...]:
        """One copy of these options for each store directory."""
        names = self.broker_name.split(",")
        paths = self.store_path.split(",") if len(names) > 1 else [self.store_path]
        return tuple(
            replace(self, store_path=path.strip(), broker_name=name.strip())
            for path, name in zip(paths, names, strict=True)
        )
