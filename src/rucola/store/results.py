"""Results of the store's operations. Expected outcomes are enum values, not exceptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class PutMessageStatus(Enum):
    """Outcome of an append (RocketMQ 5.3.3, ``PutMessageStatus``, without the values that cannot occur in Rucola)."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    """No buffer is free for the next segment (``fastFailIfNoBufferInStorePool``). A later commit frees a buffer.
    """
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class GetMessageStatus(Enum):
    """Outcome of a read from a queue (RocketMQ 5.3.3, ``GetMessageStatus``)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_RESET = "OFFSET_RESET"
    """Set by the broker, not by the store, after the consumer offset was reset."""
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class StoreState(Enum):
    """State of a store: whether it accepts messages, and if not, why."""

    STOPPED = "STOPPED"
    """The store has not been loaded or started, or is shut down. It accepts no messages."""
    RUNNING = "RUNNING"
    DISK_FULL = "READ_ONLY/disk_full"
    """Disk space is short: a file could not be allocated, a write failed because the disk was full, or disk use is
    above the limit. The store accepts no messages until there is space, then continues by itself.
    """
    IO_ERROR = "READ_ONLY/io_error"
    """A sync of the log or of a new index file failed, or a write to the log or a queue failed. A write that fails
    for lack of disk space or file descriptors does not count. The messages that a failed sync of the log covered may be
    lost, whatever a later sync reports. Only a restart ends this state.
    """


class Boundary(Enum):
    """Which message a search by time returns."""

    LOWER = "LOWER"
    """The first message at or after the time."""
    UPPER = "UPPER"
    """The last message at or before the time."""


class LightPlace(NamedTuple):
    """The place that a message gets in a light queue."""

    queue: bytes
    queue_offset: int


class PutMessageResult(NamedTuple):
    """Where a message was stored. The numbers are valid only with ``PUT_OK``."""

    status: PutMessageStatus
    physical_offset: int = -1
    size: int = 0
    queue_offset: int = -1
    store_timestamp_ms: int = 0


@dataclass(slots=True)
class GetMessageResult:
    """Result of a read from a queue. Treat the object as read-only; it is not frozen, because that would cost a
    microsecond per pull.

    Attributes:
        next_offset: queue offset at which the next pull should begin.
        views: whole records in order, as slices of the log or copied into one buffer. A slice may hold several adjacent
            records. Views stay valid as long as they are referenced.
        message_count: number of records in ``views``.
        message_bytes: total size of the records.
        suggest_slave: whether the messages are so old that they are assumed not to be in memory.
        cold: if set, a function that fetches the records that are not in memory. Call it on any thread, then repeat the
            read. If ``cold`` is set, the other fields are meaningless.
    """

    status: GetMessageStatus
    next_offset: int
    min_offset: int
    max_offset: int
    views: list[memoryview] = field(default_factory=list)
    message_count: int = 0
    message_bytes: int = 0
    suggest_slave: bool = False
    cold: Callable[[], None] | None = None


class QueryMessageResult(NamedTuple):
    """Result of a query by key.

    Attributes:
        views: one slice of the log per record, in log order.
        index_physical_offset: physical offset of the newest record in the index.
        index_timestamp_ms: store time of that record.
        partial: whether the query reached a limit, so that messages may be missing.
    """

    views: list[memoryview]
    index_physical_offset: int = 0
    index_timestamp_ms: int = 0
    partial: bool = False
