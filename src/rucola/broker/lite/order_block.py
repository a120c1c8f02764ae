"""The last pop of a lite topic by a group, which blocks this lite topic for the group (RocketMQ 5.5.0,
``ConsumerOrderInfoManager``).

The group gets no more messages of the lite topic until each message of the pop is acknowledged, or its lease has ended.
Queue offsets of one pop need not be dense: messages may have expired.
"""

from __future__ import annotations

from collections.abc import Sequence


class OrderBlock:
    """One pop. LiteLeases are measured with the monotonic clock, so that nobody's wall clock ends them.

    Attributes:
        attempt_id: of the request; None if it had none.
        pop_time_ms: wall-clock time of the pop in ms, by which acknowledgements name it.
        offsets: queue offsets of its messages, in order.
        counts: how often each message was delivered before.
        free_ms: monotonic time in ms from which the group gets messages again.
        is_suspended: whether the next delivery does not count, because the client has suspended this one.
    """

    __slots__ = (
        "_acknowledged",
        "_hidden",
        "_visible_ms",
        "attempt_id",
        "counts",
        "free_ms",
        "is_suspended",
        "offsets",
        "pop_time_ms",
    )

    def __init__(
        self,
        attempt_id: str | None,
        pop_time_ms: int,
        visible_ms: int,
        offsets: Sequence[int],
        before: OrderBlock | None = None,
    ) -> None:
        """Creates the block of a pop.

        Args:
            visible_ms: monotonic time in ms at which the messages are visible again.
            before: the pop before, some of whose messages come again.
        """
        self.attempt_id = attempt_id
        self.pop_time_ms = pop_time_ms
        self.offsets = tuple(offsets)
        self.counts = (0,) * len(offsets) if before is None else before.counts_again(attempt_id, offsets)
        self.free_ms = self._visible_ms = visible_ms
        self.is_suspended = False
        self._acknowledged = 0
        self._hidden: dict[int, int] | None = None

    def is_of(self, attempt_id: str | None) -> bool:
        """Whether the pop had this attempt id."""
        return bool(attempt_id) and self.attempt_id == attempt_id

    def is_over(self) -> bool:
        """Whether all messages are acknowledged."""
        return self._acknowledged == (1 << len(self.offsets)) - 1

    def counts_again(self, attempt_id: str | None, offsets: Sequence[int]) -> tuple[int, ...]:
        """Returns how often each message of the next pop, at ``offsets``, was delivered before."""
        more = 0 if self.is_suspended or self.is_of(attempt_id) else 1
        known = dict(zip(self.offsets, self.counts, strict=True))
        return tuple(known[offset] + more if offset in known else 0 for offset in offsets)

    def next_offset(self) -> int:
        """Returns the offset of the first unacknowledged message, or the offset after the last."""
        for index, offset in enumerate(self.offsets):
            if not self._acknowledged >> index & 1:
                return offset
        return self.offsets[-1] + 1

    def acknowledge(self, queue_offset: int) -> None:
        """Acknowledges the message at ``queue_offset``, which is in ``offsets``."""
        self._acknowledged |= 1 << self.offsets.index(queue_offset)
        self._update()

    def hide(self, queue_offset: int, visible_ms: int) -> None:
        """Sets when the message at ``queue_offset``, which is in ``offsets``, is visible again."""
        if self._hidden is None:
            self._hidden = {}
        self._hidden[self.offsets.index(queue_offset)] = visible_ms
        self._update()

    def suspend(self, visible_ms: int) -> None:
        """Sets when the whole batch is visible again, and that its next delivery does not count."""
        self._hidden, self._visible_ms, self.is_suspended = None, visible_ms, True
        self._update()

    def _update(self) -> None:
        hidden = self._hidden or {}
        self.free_ms = max(
            (
                hidden.get(index, self._visible_ms)
                for index in range(len(self.offsets))
                if not self._acknowledged >> index & 1
            ),
            default=0,
        )
