"""What the views of a session read: datasets of topics, the fields of their bodies, and the other tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from rucola.arrow import dataset
from rucola.arrow.read_options import ReadOptions, Subscription
from rucola.arrow.reading import open_catalog
from rucola.arrow.topic_dataset import TopicDataset, topic_options
from rucola.arrow.virtual_dataset import VirtualDataset
from rucola.errors import RucolaError
from rucola.sql.engine import session_of
from rucola.sql.fields import create_check, fields_of, quoted
from rucola.sql.views import FINDINGS, QUEUES, ComputedRows, Keys, finding_rows, queue_rows

SAMPLE_ROWS = 1000
"""Number of messages whose bodies determine the fields of a topic; they are the oldest and the newest messages of the
largest queues, one half each.
"""
SAMPLE_QUEUES = 16
SCHEMA = "rucola"
"""The schema of the views that belong to no topic."""
_TOPICS = "rucola_topics"
"""The schema of the views that have a topic's messages without the fields of their bodies; their names are numbers."""

_DEFAULTS = {"null_bodies": True, "include_lite": True}


class Sources:
    """The tables of a session, made when they are first needed.

    Args:
        place: arguments of ``rucola.arrow.dataset``: store directory, name servers, further options.
        spill: as in ``engine.connect``.
        connection: a connection to the database in which the schemas are created.

    Attributes:
        options: options of a reader of all topics.
        system: names of the views in schema ``rucola``.
    """

    def __init__(
        self,
        place: tuple[str | os.PathLike[str] | None, str, dict[str, Any]],
        spill: str,
        connection: duckdb.DuckDBPyConnection,
    ) -> None:
        store, name_server, options = self._place = place
        given = {name: value for name, value in options.items() if name != "use_index"}
        self.options = topic_options(store, None, name_server, **(_DEFAULTS | given))
        self._spill = spill
        self._connection = session_of(connection)
        """Not the connection of the queries: a result that is not read to its end would block it."""
        for schema in (SCHEMA, _TOPICS):
            self._connection.execute(f"create schema {schema}")
        self._datasets: dict[str, Any] = {}
        """By view, in the order in which they were made; DuckDB's views do not keep them."""
        self._fields: dict[str, dict[str, str]] = {}
        self._checks: dict[str, str] = {}
        self._system: dict[str, Callable[[], VirtualDataset]] = {
            "messages": lambda: self._dataset(None),
            "keys": lambda: Keys(self._dataset(None)),
            "queues": lambda: ComputedRows(QUEUES, lambda: queue_rows(open_catalog(self.options))),
        }
        if self.options.store_path:
            self._system["findings"] = lambda: ComputedRows(FINDINGS, lambda: finding_rows(self.options.store_path))
        self.system = tuple(self._system)

    def topics(self) -> list[str]:
        """Names of all topics that exist now."""
        catalog = open_catalog(self.options)
        try:
            return sorted({queue.topic for queue in catalog.queues(all_needed=False)})
        finally:
            catalog.close()

    @property
    def columns(self) -> list[str]:
        """Names of the columns of messages."""
        return list(self.messages(None).schema.names)

    def messages(self, topic: str | None) -> TopicDataset:
        """The messages of a topic, or of all topics."""
        key = "" if topic is None else f"topic {topic}"
        if key not in self._datasets:
            self._datasets[key] = self._dataset(topic)
        found: TopicDataset = self._datasets[key]
        return found

    def fields(self, topic: str) -> dict[str, str]:
        """Names and types of the fields of a topic's bodies, from a sample of the first call."""
        if topic not in self._fields:
            self._fields[topic] = fields_of(self._sample(topic), self._spill)
        return self._fields[topic]

    def view_of_topic(self, topic: str) -> str:
        """A view with the messages of a topic, for any connection to the database; returns its name in SQL."""
        number = list(self._fields).index(topic)
        return self._view(_TOPICS, str(number), lambda: self.messages(topic))

    def check_of_topic(self, topic: str) -> str:
        """A function, for any connection to the database, that says why a body does not have the fields of a topic;
        returns its name.
        """
        if topic not in self._checks:
            self._checks[topic] = f"problem of {len(self._checks)}"
            create_check(self._connection, self._checks[topic], self.fields(topic))
        return self._checks[topic]

    def system_view(self, name: str) -> str:
        """A view in schema ``rucola``, for any connection to the database; returns its name in SQL."""
        return self._view(SCHEMA, name, self._system[name])

    def forget_failures(self) -> None:
        """Forgets the errors of earlier queries."""
        for rows in self._datasets.values():
            rows.failure = None

    def failure(self) -> RucolaError | None:
        """The error that ended a scan of the last query."""
        return next((rows.failure for rows in self._datasets.values() if isinstance(rows.failure, RucolaError)), None)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _view(self, schema: str, name: str, rows: Callable[[], VirtualDataset]) -> str:
        key = f"{schema}.{quoted(name)}"
        if key not in self._datasets:
            self._datasets[key] = rows()
            self._connection.execute(f"use {schema}")
            self._connection.from_arrow(self._datasets[key]).create_view(name)
        return key

    def _dataset(self, topic: str | None) -> Any:
        store, name_server, options = self._place
        return dataset(store, topic, name_server=name_server, **(_DEFAULTS | options))

    def _sample(self, topic: str) -> pa.Table:
        """The bodies of a sample of messages from ``topic``."""
        options = replace(self.options, subscription=Subscription(topics=(topic,)))
        queues = _largest_queues(options)
        if not queues:
            return pa.table({"body": pa.array([], pa.binary())})
        share = max(1, SAMPLE_ROWS // (2 * len(queues)))
        offset = pc.field("queueOffset")
        places = [
            (pc.field("queueId") == queue_id) & ((offset < least + share) | (offset >= most - share))
            for queue_id, least, most in queues
        ]
        return self.messages(topic).to_table(columns=["body"], filter=reduce(or_, places))


def _largest_queues(options: ReadOptions) -> list[tuple[int, int, int]]:
    """Returns queue id, first offset and end offset of the largest queues. If several brokers have queues with the same
    id, only the largest of these queues is considered.
    """
    catalog = open_catalog(options)
    try:
        held = catalog.bounds(catalog.queues(all_needed=False))
        sizes = sorted((one.max - one.min, queue.queue_id, one.min, one.max) for queue, one in held.items())
        found = {size[1]: size for size in sizes}
        return [(queue_id, least, most) for _, queue_id, least, most in sorted(found.values())[-SAMPLE_QUEUES:]]
    finally:
        catalog.close()
