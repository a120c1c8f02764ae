"""Checkpoints and acknowledgements of popped messages (RocketMQ 5.3.3, ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``).

Each is the body of a message in the revive topic: JSON, members in alphabetical order, without null members. A
checkpoint lists the messages of a queue that one pop gave to a group; an acknowledgement lists messages that the group
has acknowledged. The two belong together if they have the same topic, group, queue, first queue offset, pop time and
broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rucola.common.json_library import orjson
from rucola.common.numbers import INT32_MAX, POP_MESSAGES_MAX
from rucola.errors import FormatError

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""In the revive topic, this group's consumer offset is that of the last processed message, not of the next message."""

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

_OFFSET_MAX = 1 << 61
TIME_MS_MAX: Final = 1 << 61
"""A pop time and an invisible time up to this one have a sum of less than 64 bits."""
IN_ORDER: Final = -1
"""Value of ``start_offset`` in acknowledgements of groups that pop in order. Such an acknowledgement applies to every
message up to the queue offset that it names. This value is an extension of Rucola: RocketMQ finds no checkpoint for
such an acknowledgement and ignores it.
"""


class PopKey(NamedTuple):
    """The fields that a checkpoint and its acknowledgements share."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    broker_name: str


@dataclass(frozen=True, slots=True)
class PopCheckpoint:
    """A checkpoint: the messages that one pop took from one queue.

    Attributes:
        key: identifies the pop; ``start_offset`` is the first queue offset that it read.
        invisible_ms: how long the messages stay hidden from other consumers.
        distances: distance of each message from ``start_offset``, ascending.
    """

    key: PopKey
    invisible_ms: int
    distances: tuple[int, ...]

    @property
    def revive_ms(self) -> int:
        """Time in ms at which unacknowledged messages become visible again."""
        return self.key.pop_time_ms + self.invisible_ms

    @property
    def queue_offsets(self) -> list[int]:
        """Queue offsets of the messages that the pop took."""
        return [self.key.start_offset + distance for distance in self.distances]

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of the message that holds the checkpoint."""
        return _unique_key(self.key, self.key.start_offset, CHECKPOINT_TAG)

    def encode(self) -> bytes:
        """Returns the body of the message that holds the checkpoint."""
        key = self.key
        body = {
            "bm": 0,
            "bn": key.broker_name,
            "c": key.group,
            "d": self.distances,
            "it": self.invisible_ms,
            "n": len(self.distances),
            "pt": key.pop_time_ms,
            "q": key.queue_id,
            "reviveTime": self.revive_ms,
            "ro": 0,
            "so": key.start_offset,
            "t": key.topic,
        }
        return orjson.dumps(body)

    @classmethod
    def decode(cls, body: bytes) -> PopCheckpoint:
        """Decodes the body of a message.

        Raises:
            FormatError: the body is not a checkpoint.
        """
        members = _object(body, "checkpoint of a pop")
        distances = members.get("d")
        if not distances:  # old brokers write no distances: the messages are consecutive
            distances = list(range(_number(members, "n", 0, POP_MESSAGES_MAX)))
        if not isinstance(distances, list) or len(distances) > POP_MESSAGES_MAX:
            raise FormatError(
                "checkpoint of a pop", 0, f"up to {POP_MESSAGES_MAX} distances in d", repr(distances)[:64]
            )
        if not all(type(d) is int and 0 <= d <= INT32_MAX for d in distances):
            raise FormatError("checkpoint of a pop", 0, "a list of distances in d", repr(distances)[:64])
        return cls(_key(members, 0), _number(members, "it", -TIME_MS_MAX, TIME_MS_MAX), tuple(distances))


@dataclass(frozen=True, slots=True)
class PopAck:
    """The content of a revive message that acknowledges one popped message or, with ``batch``, several."""

    key: PopKey
    queue_offsets: tuple[int, ...]
    batch: bool = False

    @property
    def tag(self) -> str:
        """Tag of the revive message."""
        return BATCH_ACK_TAG if self.batch else ACK_TAG

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of the revive message."""
        return _unique_key(self.key, -1 if self.batch else self.queue_offsets[0], ACK_TAG)

    def encode(self) -> bytes:
        """Returns the body of the revive message."""
        return encode_ack(self.key, self.queue_offsets, self.batch)

    @classmethod
    def decode(cls, body: bytes) -> PopAck:
        """Decodes the body of a message.

        Raises:
            FormatError: the body is not an acknowledgement.
        """
        members = _object(body, "acknowledgement of a pop")
        queue_offsets = members.get("aol")
        if queue_offsets is None:
            return cls(_key(members, IN_ORDER), (_number(members, "ao", 0, _OFFSET_MAX),))
        if not isinstance(queue_offsets, list) or not queue_offsets or not all(map(_is_offset, queue_offsets)):
            raise FormatError("acknowledgement of a pop", 0, "a list of offsets in field aol", repr(queue_offsets)[:64])
        return cls(_key(members, IN_ORDER), tuple(queue_offsets), batch=True)


def encode_ack(key: PopKey, queue_offsets: Sequence[int], batch: bool) -> bytes:
    """Returns the body of a revive message that acknowledges messages; only with ``batch`` there may be several."""
    body: dict[str, Any] = {"ao": -1 if batch else queue_offsets[0]}
    if batch:
        body["aol"] = queue_offsets
    body["bn"] = key.broker_name
    body["c"] = key.group
    body["pt"] = key.pop_time_ms
    body["q"] = key.queue_id
    body["so"] = key.start_offset
    body["t"] = key.topic
    return orjson.dumps(body)


def _unique_key(key: PopKey, queue_offset: int, tag: str) -> str:
    return f"{key.topic}@{key.queue_id}@{queue_offset}@{key.group}@{key.pop_time_ms}@{key.broker_name}@{tag}"


def _object(body: bytes, what: str) -> Mapping[str, Any]:
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FormatError(what, error.pos, "JSON", error.msg) from error
    if not isinstance(members, dict):
        raise FormatError(what, 0, "a JSON object", type(members).__name__)
    return members


def _key(members: Mapping[str, Any], start_min: int) -> PopKey:
    return PopKey(
        _text(members, "t"),
        _text(members, "c"),
        _number(members, "q", 0, INT32_MAX),
        _number(members, "so", start_min, _OFFSET_MAX),
        _number(members, "pt", 0, TIME_MS_MAX),
        str(members.get("bn") or ""),
    )


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= _OFFSET_MAX


def _text(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise FormatError("record of a pop", 0, f"a non-empty string in field {name}", repr(value)[:64])
    return value


def _number(members: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = members.get(name, 0)
    if type(value) is not int or not low <= value <= high:
        raise FormatError("record of a pop", 0, f"a number from {low} to {high} in field {name}", repr(value)[:64])
    return value
