"""How the queues of a source continue those of a table: under which broker name, in which life, and from which offset.

A log is recognised by its records, not by how the user pointed at it. The table keeps the ``Mark`` of the last archived
record of each queue. Where a log has this record, under whatever broker name, it is the log of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rucola.arrow.catalog import Bounds, Catalog
from rucola.arrow.offsets import Mark, QueueOffsets, queue_text
from rucola.common.message_queue import MessageQueue
from rucola.errors import AnotherLogError, ConfigError, DataLossError, RucolaError
from rucola.lake.labels import Label, Labels
from rucola.lake.table_log import Snapshot

ANOTHER_TABLE = "archive into another table; this one keeps its messages"
"""Advice if a store does not continue the log of a table; no option can make it do so."""
ANOTHER_NAME = (
    "its broker has not the log that the table has under this name; if it is another broker, give it another "
    "--broker-name, or archive into another table"
)
"""Advice if a broker has the name of another one."""
WITNESSES = 8
"""Largest number of queues besides the chosen topics by which the log of a broker is recognised."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Continuation:
    """How queues of a source go on in a table.

    Attributes:
        starts: for each queue without trouble, the first offset that is not in the table.
        own: the table's queue of each of these queues.
        begun: those that begin a new life.
        labels: name and life of the queues in the table.
        troubles: why other queues cannot go on.
    """

    starts: QueueOffsets = field(default_factory=dict)
    own: Mapping[MessageQueue, MessageQueue] = field(default_factory=dict)
    begun: frozenset[MessageQueue] = frozenset()
    labels: Labels = field(default_factory=Labels)
    troubles: Mapping[MessageQueue, RucolaError] = field(default_factory=dict)


def continuation(base: Snapshot, catalog: Catalog, bounds: Mapping[MessageQueue, Bounds]) -> Continuation:
    """How the queues in ``bounds`` go on in the table of ``base``."""
    names = _Names(base, catalog, bounds)
    own, troubles = names.own(), dict(names.troubles)
    lives = _Lives(base, catalog, bounds, own)
    begun = lives.settle(queue for queue in bounds if queue not in troubles)
    troubles |= lives.troubles
    starts, special = {}, {}
    for queue, held in bounds.items():
        if queue in troubles:
            continue
        end = base.end_of(own[queue])
        starts[queue] = held.min if end is None else 0 if queue in begun else end
        label = Label(own[queue].broker_name, base.life_of(own[queue]) + (queue in begun))
        if label != Label(queue.broker_name, 0):
            special[queue] = label
    return Continuation(starts, own, begun, Labels(special), troubles)


class _Names:
    """Under which broker name the table has each queue.

    A broker that the table does not know may be one that it knows by another name. If a record at one of the table's
    marks is in its log, it is; its new queues then go on under the table's name, too.
    """

    def __init__(self, base: Snapshot, catalog: Catalog, bounds: Mapping[MessageQueue, Bounds]) -> None:
        self.troubles: dict[MessageQueue, RucolaError] = {}
        self._base, self._catalog, self._bounds = base, catalog, bounds
        self._known = {queue.broker_name for queue in base.offsets.offsets}
        here = {queue.broker_name for queue in bounds}
        self._others: dict[tuple[str, int], list[MessageQueue]] = {}
        for queue in base.offsets.marks:
            # Two brokers of one source are two logs.
            if queue.broker_name not in here:
                self._others.setdefault((queue.topic, queue.queue_id), []).append(queue)

    def own(self) -> dict[MessageQueue, MessageQueue]:
        """The table's queue of each queue; those about which nothing can be said are in ``troubles``."""
        found: dict[MessageQueue, MessageQueue] = {}
        verdicts: dict[tuple[str, str], set[bool | None]] = {}
        new = [queue for queue in self._bounds if self._base.end_of(queue) is None]
        for queue in new:
            if self._bounds[queue].min < self._bounds[queue].max:
                for other in self._others.get((queue.topic, queue.queue_id), ()):
                    same = self._is_same(queue, other)
                    verdicts.setdefault((queue.broker_name, other.broker_name), set()).add(same)
                    if same:
                        found[queue] = other
        for broker in {queue.broker_name for queue in new} - self._known:
            self._ask_witnesses(broker, verdicts)
        for queue in new:
            names = sorted(name for (one, name), said in verdicts.items() if one == queue.broker_name and True in said)
            if queue in found or queue.broker_name in self._known:
                continue
            if names:
                found[queue] = MessageQueue(queue.topic, names[0], queue.queue_id)
            elif unsure := _unsure(queue.broker_name, verdicts):
                self.troubles[queue] = name_error(queue.broker_name, unsure)
        for one, name in sorted({(queue.broker_name, other.broker_name) for queue, other in found.items()}):
            logger.info(
                "the log of broker %s is the one that the table has as %s; it goes on under that name", one, name
            )
        return {queue: found.get(queue, queue) for queue in self._bounds}

    def _ask_witnesses(self, broker: str, verdicts: dict[tuple[str, str], set[bool | None]]) -> None:
        """Looks for the newest records of other topics in the log of a broker, where the chosen ones show nothing."""
        for name in {one.broker_name for other in self._others.values() for one in other}:
            if (broker, name) not in verdicts and _is_known(self._base, self._catalog, broker, name):
                verdicts[broker, name] = {True}

    def _is_same(self, queue: MessageQueue, other: MessageQueue) -> bool | None:
        """Whether the log of ``queue`` is that of ``other`` in the table; None if the records that show it are gone."""
        end, mark, held = self._base.end_of(other), self._base.mark_of(other), self._bounds[queue]
        assert end is not None and mark is not None
        if held.min < end <= held.max and self._catalog.marks({queue: end - 1}).get(queue) == mark:
            return True
        logged = self._catalog.logged(queue, end - 1, mark)
        if logged is not None:
            return logged
        if held.min < end:
            return False  # another record is there, or none
        first = self._catalog.marks({queue: held.min}).get(queue)
        # In one log, a message after the mark has a later place and time.
        return None if first is None or _follows(first, mark) else False


class _Lives:
    """Which queues go on where the table ends, and which begin a new life."""

    def __init__(
        self,
        base: Snapshot,
        catalog: Catalog,
        bounds: Mapping[MessageQueue, Bounds],
        own: Mapping[MessageQueue, MessageQueue],
    ) -> None:
        self.troubles: dict[MessageQueue, RucolaError] = {}
        self._base, self._catalog, self._bounds, self._own = base, catalog, bounds, own

    def settle(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Returns the queues that begin a new life; queues that do not go on in this table are in ``troubles``."""
        queues = list(queues)
        ends = {queue: end for queue in queues if (end := self._base.end_of(self._own[queue])) is not None}
        fitting, wrong = self._compared(ends)
        proven = {queue.broker_name for queue in fitting}
        begun = set()
        logged = {queue: self._is_logged(queue, ends[queue]) for queue in wrong}
        # First the queues whose own record is still there: they show the log of the others, too.
        for queue in sorted(wrong, key=lambda queue: (logged[queue] is None, queue)):
            if self._is_new_life(queue, logged[queue], proven):
                begun.add(queue)
                proven.add(queue.broker_name)
            else:
                kind = DataLossError if self._bounds[queue].max < ends[queue] else AnotherLogError
                self.troubles[queue] = kind(
                    queue_text(queue), ends[queue], ends[queue], *self._bounds[queue], ANOTHER_TABLE
                )
        self._refuse_strangers([queue for queue in queues if queue.broker_name not in proven])
        # Of a log that is not the table's, new queues are not archived either.
        strange = {queue.broker_name: error for queue, error in reversed(self.troubles.items())}
        for queue in queues:
            if queue not in fitting and queue not in begun and queue.broker_name in strange.keys() - proven:
                self.troubles.setdefault(queue, strange[queue.broker_name])
        return frozenset(begun)

    def _refuse_strangers(self, queues: Iterable[MessageQueue]) -> None:
        """Of brokers whose queues show nothing, looks for the newest records that the table has by the same names: a
        log that has other records there is another one.
        """
        verdicts: dict[str, bool | None] = {}
        for queue in queues:
            held, name = self._bounds[queue], self._own[queue].broker_name
            if held.min == held.max or queue in self.troubles:
                continue
            if queue.broker_name not in verdicts:
                verdicts[queue.broker_name] = _is_known(self._base, self._catalog, queue.broker_name, name)
            if verdicts[queue.broker_name] is False:
                at = self._base.end_of(self._own[queue]) or held.min
                self.troubles[queue] = AnotherLogError(queue_text(queue), at, at, *held, ANOTHER_NAME)

    def _compared(self, ends: Mapping[MessageQueue, int]) -> tuple[set[MessageQueue], list[MessageQueue]]:
        """The queues in which the table's last record is at its place, and those in which another one is."""
        bounds, marks = self._bounds, {queue: self._base.mark_of(self._own[queue]) for queue in ends}
        places = {queue: end - 1 for queue, end in ends.items() if marks[queue] and bounds[queue].min < end}
        # If the last record has expired, the first that is left must follow it.
        places |= {
            queue: bounds[queue].min
            for queue, end in ends.items()
            if marks[queue] and end <= bounds[queue].min < bounds[queue].max
        }
        short = {queue for queue, end in ends.items() if bounds[queue].max < end}
        found = self._catalog.marks({queue: at for queue, at in places.items() if queue not in short})
        fitting, wrong = set(), set(short)
        for queue, mark in found.items():
            last = marks[queue]
            if mark is None or last is None:
                continue
            if places[queue] >= ends[queue]:
                if mark.physical_offset <= last.physical_offset:
                    wrong.add(queue)
            elif mark == last:
                fitting.add(queue)
            else:
                wrong.add(queue)
        return fitting, sorted(wrong)

    def _is_logged(self, queue: MessageQueue, end: int) -> bool | None:
        """Whether the log has the last archived record of a queue; None if that cannot be told."""
        mark = self._base.mark_of(self._own[queue])
        return None if mark is None else self._catalog.logged(queue, end - 1, mark)

    def _is_new_life(self, queue: MessageQueue, is_logged: bool | None, proven: set[str]) -> bool:
        """Whether the queue was deleted and made again in the log that the table has: its records come after the mark,
        and the mark's record, or that of another queue, shows that the log is the same.
        """
        mark, held = self._base.mark_of(self._own[queue]), self._bounds[queue]
        if mark is None:
            return False
        first = self._catalog.marks({queue: held.min}).get(queue) if held.min < held.max else None
        if held.min < held.max and (first is None or first.physical_offset <= mark.physical_offset):
            return False
        return (queue.broker_name in proven or self._has_witness(queue)) if is_logged is None else is_logged

    def _has_witness(self, queue: MessageQueue) -> bool:
        """Whether another queue of the table, which is not among the chosen ones, is in the log of this broker."""
        name = self._own[queue].broker_name
        chosen = set(self._own.values())
        marks = [(mark, one) for one, mark in self._base.offsets.marks.items() if one.broker_name == name]
        others = [(one, mark) for mark, one in sorted(marks, reverse=True) if one not in chosen][:WITNESSES]
        for one, mark in others:
            here = MessageQueue(one.topic, queue.broker_name, one.queue_id)
            try:
                found = self._catalog.marks({here: self._base.offsets.offsets[one] - 1})
            except RucolaError:
                continue  # its topic is gone, too
            if found.get(here) == mark:
                return True
        return False


def name_error(broker_name: str, known: str) -> ConfigError:
    """Says that a log may be one that the table has by another name."""
    return ConfigError(
        "broker_name",
        broker_name,
        f"--broker-name {known}, if this is the log that the table has under that name; if it is another log, another "
        "table; the records that would show it have expired",
    )


def _is_known(base: Snapshot, catalog: Catalog, broker: str, name: str) -> bool | None:
    """Whether the log of a broker has one of the newest records that the table has under a name; None if that cannot be
    told.
    """
    marks = [(mark, one) for one, mark in base.offsets.marks.items() if one.broker_name == name]
    found: bool | None = None
    for mark, one in sorted(marks, reverse=True)[:WITNESSES]:
        is_logged = catalog.logged(MessageQueue(one.topic, broker, one.queue_id), base.offsets.offsets[one] - 1, mark)
        if is_logged:
            return True
        found = found if is_logged is None else False
    return found


def _follows(mark: Mark, last: Mark) -> bool:
    return mark.physical_offset > last.physical_offset and mark.store_timestamp_ms >= last.store_timestamp_ms


def _unsure(broker_name: str, verdicts: Mapping[tuple[str, str], set[bool | None]]) -> str:
    """A name in the table that may be another name of this broker; empty if none may."""
    return next((name for (one, name), said in sorted(verdicts.items()) if one == broker_name and said == {None}), "")
