"""What the store takes and answers. Expected outcomes are values of these enums, not exceptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class PutMessageStatus(Enum):
    """Outcome of an append (RocketMQ 5.3.3, ``PutMessageStatus``; those that an append of this store can have)."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    """No memory is free for the next segment (``fastFailIfNoBufferInStorePool``); there is when the commit follows."""
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
    """The broker's, not the store's: the offset was set from outside."""
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class StoreState(Enum):
    """What the store may do at the moment."""

    STOPPED = "STOPPED"
    """Not loaded, loaded but not started, or shut down: no appends."""
    RUNNING = "RUNNING"
    DISK_FULL = "READ_ONLY/disk_full"
    """A file could not be allocated: no appends; left by itself once there is space."""
    IO_ERROR = "READ_ONLY/io_error"
    """A sync failed: what it covered may be lost whatever a later sync says; left by a restart only."""


class Boundary(Enum):
    """Which of several messages of one store time a search by time finds."""

    LOWER = "LOWER"
    """The first message at or after the time."""
    UPPER = "UPPER"
    """The last message at or before the time."""


class PutMessageResult(NamedTuple):
    """Where a message went; the numbers count only with ``PUT_OK``."""

    status: PutMessageStatus
    physical_offset: int = -1
    size: int = 0
    queue_offset: int = -1
    store_timestamp_ms: int = 0


@dataclass(slots=True)
class GetMessageResult:
    """Records of a queue. Nobody changes it: that it is not frozen saves a microsecond with each pull.

    Attributes:
        next_offset: queue offset to ask for next.
        views: whole records in order, in slices of the log, neighbours in one, or copied together; valid as long as
            they are held.
        message_count: records in ``views``.
        message_bytes: their size.
        suggest_slave: the messages asked for are so old that they are not taken to be in memory.
        cold: to be called first, on any thread: it reads what is not in memory; nothing else counts then.
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
    """Records found by key.

    Attributes:
        views: one slice of the log per record, in log order.
        index_physical_offset: newest record the index knows.
        index_timestamp_ms: its store time.
        partial: whether more was to be looked at than a query may, so that some may be missing.
    """

    views: list[memoryview]
    index_physical_offset: int = 0
    index_timestamp_ms: int = 0
    partial: bool = False
