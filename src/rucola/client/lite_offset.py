"""Where the group continues to read a lite topic to which a consumer subscribes.

Source: RocketMQ's client for Java 5.2.0, ``OffsetOption``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar

from rucola.client.checks import check_number
from rucola.common.numbers import INT64_MAX
from rucola.errors import ClientError
from rucola.protocol.bodies.lite import OffsetOption, OffsetOptionType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST, _MIN, _MAX = 0, 1, 2


class LiteOffset:
    """A place in a lite topic: one of the constants, or made by ``at``, ``tail`` or ``since``. It applies to the whole
    group.

    Attributes:
        LAST: where the group stopped; RocketMQ's brokers take the last message of an old lite topic for a group that
            has never read it.
        MIN: the first message.
        MAX: the next message that will be sent.
    """

    __slots__ = ("_kind", "_value")

    LAST: ClassVar[LiteOffset]
    MIN: ClassVar[LiteOffset]
    MAX: ClassVar[LiteOffset]

    def __init__(self, kind: OffsetOptionType, value: int) -> None:
        self._kind, self._value = kind, value

    @classmethod
    def at(cls, lite_offset: int) -> LiteOffset:
        """The message with this offset in the lite topic (``MessageExt.lite_offset``)."""
        check_number("lite_offset", lite_offset, 0)
        return cls(OffsetOptionType.OFFSET, lite_offset)

    @classmethod
    def tail(cls, count: int) -> LiteOffset:
        """``count`` messages before the place where the group stopped; a group that has never read the lite topic is
        not moved.
        """
        check_number("count", count, 0)
        return cls(OffsetOptionType.TAIL_N, count)

    @classmethod
    def since(cls, time: datetime) -> LiteOffset:
        """The first message stored in the second of ``time`` or later. RocketMQ's brokers ignore this without an error.

        Args:
            time: a time with a time zone, from 1970 on.
        """
        if not isinstance(time, datetime) or time.utcoffset() is None:
            raise ClientError(f"time must be a datetime.datetime with a time zone, not {time!r}")
        milliseconds = (time - _EPOCH) // timedelta(milliseconds=1)
        check_number("time in milliseconds since 1970", milliseconds, 0, INT64_MAX)
        return cls(OffsetOptionType.TIMESTAMP, milliseconds)

    @property
    def option(self) -> OffsetOption:
        """The form in which requests contain it."""
        return OffsetOption(self._kind, self._value)

    def __repr__(self) -> str:
        return f"LiteOffset({self._kind.value}, {self._value})"


LiteOffset.LAST = LiteOffset(OffsetOptionType.POLICY, _LAST)
LiteOffset.MIN = LiteOffset(OffsetOptionType.POLICY, _MIN)
LiteOffset.MAX = LiteOffset(OffsetOptionType.POLICY, _MAX)
