"""Decides how much of a backlog one micro-batch reads. Pure functions: the same arguments give the same offsets."""

from __future__ import annotations

from collections.abc import Mapping

from rucola.arrow.offsets import QueueOffsets
from rucola.common.message_queue import MessageQueue


def admit_rows(start: Mapping[MessageQueue, int], available: Mapping[MessageQueue, int], rows_max: int) -> QueueOffsets:
    """Returns end offsets that admit at most ``rows_max`` messages, shared among the queues in proportion to backlog.

    First, each queue with a backlog gets one message, so that a queue with a small backlog advances as well. If
    ``rows_max`` is less than the number of these queues, those with the largest backlogs get one message each.
    ``start`` and ``available`` name the same queues; no end offset is below the queue's start offset.
    """
    backlog = {queue: max(0, available[queue] - start[queue]) for queue in sorted(start)}
    if sum(backlog.values()) <= rows_max:
        return {queue: start[queue] + backlog[queue] for queue in backlog}
    taken = dict.fromkeys(backlog, 0)
    for queue in sorted((q for q in backlog if backlog[q]), key=lambda q: (-backlog[q], q))[:rows_max]:
        taken[queue] = 1
    left = {queue: backlog[queue] - taken[queue] for queue in backlog}
    rows, total = rows_max - sum(taken.values()), sum(left.values())
    for queue, count in left.items():
        taken[queue] += count * rows // total
    rest = rows_max - sum(taken.values())
    for queue in sorted(left, key=lambda q: (-(left[q] * rows % total), q))[:rest]:
        taken[queue] += 1
    return {queue: start[queue] + taken[queue] for queue in taken}


def admit_bytes(
    start: Mapping[MessageQueue, int],
    available: Mapping[MessageQueue, int],
    bytes_max: int,
    mean_record_bytes: Mapping[MessageQueue, int],
) -> QueueOffsets:
    """Returns end offsets that admit about ``bytes_max`` bytes, estimated from the mean record size of each queue.

    Every queue with a backlog gets at least one message, so a record larger than the limit does not stop the query.
    """
    backlog = {queue: max(0, available[queue] - start[queue]) for queue in sorted(start)}
    total = sum(backlog[queue] * mean_record_bytes[queue] for queue in backlog)
    if total <= bytes_max:
        return {queue: start[queue] + backlog[queue] for queue in backlog}
    return {
        queue: start[queue] + (min(count, max(1, count * bytes_max // total)) if count else 0)
        for queue, count in backlog.items()
    }
