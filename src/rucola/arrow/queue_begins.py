"""Where in the log each wanted queue begins.

A deleted topic's records stay in the log, and a new topic of that name has the same queue ids and queue offsets: only
the physical offset tells the old records from the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rucola.arrow.buffers import Mask
from rucola.arrow.ranges import QueueRange, WantedRanges
from rucola.arrow.rows import Rows
from rucola.common.columns import RecordColumn
from rucola.common.kernel_columns import RECORD_PHYSICAL_OFFSET


class QueueBegins:
    """The physical offset of the first wanted record of each queue.

    Args:
        wanted: the ranges; only ``WantedRanges`` know where they begin.
    """

    def __init__(self, wanted: Sequence[QueueRange]) -> None:
        begins = wanted.begins if isinstance(wanted, WantedRanges) else ()
        least: dict[bytes, dict[int, int]] = {}
        for one, begin in zip(wanted, begins, strict=bool(begins)):
            topic = one.queue.topic.encode("utf-8", "surrogateescape")
            own, queue_id = least.setdefault(topic, {}), one.queue.queue_id
            own[queue_id] = min(begin, own.get(queue_id, begin))
        self._last = max(begins, default=0)
        self._queues = {
            topic: (np.array(sorted(own), np.int64), np.array([own[one] for one in sorted(own)], np.int64))
            for topic, own in least.items()
        }

    def concern(self, rows: Rows) -> bool:
        """Whether a queue begins after the first of these rows, which are in log order."""
        return rows.table[RECORD_PHYSICAL_OFFSET] < self._last

    def reached(self, rows: Rows, topics: Sequence[bytes], codes: npt.NDArray[np.int32]) -> Mask:
        """Marks the rows at or after the begin of their queue.

        Args:
            rows: the rows.
            topics, codes: the distinct topics, and for each row the index of its topic.
        """
        places, queue_ids = rows.numbers(RECORD_PHYSICAL_OFFSET), rows.numbers(RecordColumn.QUEUE_ID)
        mask = np.ones(rows.count, dtype=np.bool_)
        for code, topic in enumerate(topics):
            if topic in self._queues:
                known, begins = self._queues[topic]
                here = codes[: rows.count] == code
                at = np.minimum(np.searchsorted(known, queue_ids[here]), len(known) - 1)
                mask[here] = places[here] >= begins[at]
        return mask
