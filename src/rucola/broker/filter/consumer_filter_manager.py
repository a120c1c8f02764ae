"""SQL92 subscriptions of groups, compiled (RocketMQ 5.3.3, ``ConsumerFilterManager``). Event loop only.

The filters in ``consumerFilter.json`` outlive their consumers by a day. A filter applies to pulls whose subscription
version is not newer than its own; a pull with a newer version is refused until a heartbeat brings that version. The
bloom bits in the file are not used, but they are written back as long as the filter's expression stays the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from rucola.errors import FormatError
from rucola.filter import sql
from rucola.formats.tables import ConsumerFilter, consumer_filter_pieces, decode_consumer_filters
from rucola.runtime.logs import event
from rucola.runtime.table_writer import Keep, Pieces

logger = logging.getLogger(__name__)

SQL92 = "SQL92"
CLEAN_AFTER_MS = 24 * 3600 * 1000
"""``filterDataCleanTimeSpan``: how long a filter without consumers is kept."""
_DEAD_BEFORE_LOAD_MS = 30_000


class FilterSubscription(Protocol):
    """The fields of ``protocol.bodies.heartbeat.SubscriptionData`` that are used here."""

    topic: str
    sub_string: str
    sub_version: int
    expression_type: str


class ConsumerFilterManager:
    """Maps topic and group to the filter.

    Args:
        keep: creates the writer of ``consumerFilter.json``.
        wall_ms: the wall clock, in ms, which dates changes.
        exists: whether there is a topic with this name. Filters without consumers are kept for a day, but not those of
            other names, of which clients can invent any number.
        compile_sql: compiles an expression, or raises ``FormatError``.
    """

    def __init__(
        self,
        keep: Keep,
        wall_ms: Callable[[], int],
        exists: Callable[[str], bool] = lambda _: True,
        compile_sql: Callable[[str], sql.SqlExpression] | None = None,
    ) -> None:
        self._exists = exists
        self._compile_sql = compile_sql
        self._kept = keep(self._snapshot, self._written)
        self._wall_ms = wall_ms
        self._table: dict[str, dict[str, ConsumerFilter]] = {}
        self._compiled: dict[tuple[str, str], sql.SqlExpression] = {}
        self._changed = False

    def load(self, text: bytes | None) -> None:
        """Loads ``consumerFilter.json``. Groups that were alive when the file was written count as having left 30 s
        ago.

        Raises:
            FormatError: the text is not a table of filters.
        """
        if text is None:
            return
        self._table = decode_consumer_filters(text)
        gone_ms = self._wall_ms() - _DEAD_BEFORE_LOAD_MS
        for topic, groups in self._table.items():
            for group, data in list(groups.items()):
                expression = self._compile(group, topic, data.expression_type, data.expression)
                if expression is None:
                    del groups[group]
                    continue
                self._compiled[topic, group] = expression
                if not data.dead_ms:
                    groups[group] = data._replace(dead_ms=max(gone_ms, data.born_ms))

    def get(self, topic: str, group: str) -> tuple[ConsumerFilter, sql.SqlExpression] | None:
        """The filter of ``group`` on ``topic``; None if it has none."""
        data = self._table.get(topic, {}).get(group)
        return None if data is None else (data, self._compiled[topic, group])

    def register(self, group: str, subscriptions: Iterable[FilterSubscription]) -> None:
        """Processes a heartbeat with all subscriptions of a client of ``group``."""
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if subscription.expression_type == SQL92 and subscription.sub_string:
                self._register(group, subscription)
        for topic, groups in self._table.items():
            if topic not in topics and group in groups:
                self._bury(topic, groups, group)

    def unregister(self, group: str) -> None:
        """Processes the departure of the last client of ``group``."""
        for topic, groups in self._table.items():
            if group in groups:
                self._bury(topic, groups, group)

    def persist(self) -> None:
        """Drops filters without consumers after ``CLEAN_AFTER_MS``, and requests a write of the table if it changed
        since the last write.
        """
        self._clean()
        if self._changed:
            self._changed = False
            self._kept.changed()

    def _snapshot(self) -> Pieces:
        return consumer_filter_pieces({topic: groups.copy() for topic, groups in self._table.items()})

    def _written(self, error: Exception | None) -> None:
        self._changed = self._changed or error is not None

    def _register(self, group: str, new: FilterSubscription) -> None:
        groups = self._table.setdefault(new.topic, {})
        old = groups.get(group)
        if old is not None:
            if new.sub_version < old.client_version:
                return
            if new.sub_version == old.client_version or old.expression == new.sub_string:
                if old.dead or new.sub_version != old.client_version:
                    groups[group] = old._replace(client_version=new.sub_version, dead_ms=0)
                    self._changed = True
                return
            # A new expression that cannot be compiled removes the filter, and the client's pulls are then refused.
            del groups[group]
        self._changed = True
        expression = self._compile(group, new.topic, SQL92, new.sub_string)
        if expression is not None:
            now_ms = self._wall_ms()
            groups[group] = ConsumerFilter(group, new.topic, new.sub_string, SQL92, now_ms, 0, new.sub_version)
            self._compiled[new.topic, group] = expression

    def _bury(self, topic: str, groups: dict[str, ConsumerFilter], group: str) -> None:
        if not self._exists(topic):
            del groups[group], self._compiled[topic, group]
            self._changed = True
        elif not groups[group].dead:
            groups[group] = groups[group]._replace(dead_ms=self._wall_ms())
            self._changed = True

    def _clean(self) -> None:
        limit_ms = self._wall_ms() - CLEAN_AFTER_MS
        for topic, groups in list(self._table.items()):
            for group, data in list(groups.items()):
                if data.dead and data.dead_ms <= limit_ms:
                    del groups[group], self._compiled[topic, group]
                    self._changed = True
            if not groups:
                del self._table[topic]

    def _compile(self, group: str, topic: str, expression_type: str, text: str) -> sql.SqlExpression | None:
        """The compiled expression; None, with a line in the log, if it cannot be compiled."""
        try:
            if expression_type != SQL92:
                raise FormatError("subscription", 0, SQL92, expression_type)
            return (self._compile_sql or sql.compile_sql)(text)
        except FormatError as error:
            event(logger, logging.WARNING, "filter not usable", group=group, topic=topic, error=error)
            return None
