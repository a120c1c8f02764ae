"""A DuckDB connection over a store directory or brokers. Nothing is copied into it: its views read the messages where
they are.

Every query sees each topic in its state at the time of the query. Threads: DuckDB computes in its own threads; messages
are read in the thread that fetches the result.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from rucola.arrow import dataset
from rucola.arrow.read_options import ReadOptions, Subscription
from rucola.arrow.reading import open_catalog
from rucola.arrow.topic_dataset import topic_options
from rucola.arrow.virtual_dataset import VirtualDataset
from rucola.errors import QueryError, RucolaError
from rucola.sql.engine import connect
from rucola.sql.fields import fields_of, quoted, view_text
from rucola.sql.views import FINDINGS, QUEUES, Keys, Rows, finding_rows, queue_rows

SAMPLE_ROWS = 1000
"""Number of messages whose bodies determine the fields of a topic; they are the oldest and the newest messages of the
largest queues, one half each.
"""
SAMPLE_QUEUES = 16
NEAREST_MAX = 5
SOURCE_PREFIX = "messages of "
"""Prefix of the names of views that have a topic's messages without the fields of their bodies."""
_MISSING_TABLE = re.compile(r"Table with name (.+?) does not exist")

log = logging.getLogger(__name__)


class Session:
    """Queries over topics.

    Args:
        store: store directory, or None.
        name_server: name servers, if there is no directory.
        options: options of ``rucola.arrow.dataset``.

    Attributes:
        topics: names of all topics.
    """

    def __init__(self, store: str | os.PathLike[str] | None, name_server: str = "", **options: Any) -> None:
        given = {name: value for name, value in options.items() if name != "use_index"}
        self._options = topic_options(store, None, name_server, **given)
        self._place = (store, name_server, options)
        self._datasets: dict[str, VirtualDataset] = {}
        self._names: dict[str, str] = {}
        """Names of all views, by name in lower case."""
        self._waiting: dict[str, Callable[[], VirtualDataset]] = {}
        """Views that have not been used in a query yet, each with the function that makes its dataset."""
        self.topics = self._topic_names()
        self._spill = tempfile.TemporaryDirectory(prefix="rucola-sql-", ignore_cleanup_errors=True)
        self._connection = connect(self._spill.name)
        for topic in self.topics:
            self._add_view(topic, partial(self._dataset, topic))
        self._add_view("messages", partial(self._dataset, None))
        self._add_view("keys", lambda: Keys(self._dataset(None)))
        self._add_view("queues", lambda: Rows(QUEUES, lambda: queue_rows(open_catalog(self._options))))
        if self._options.store_path:
            self._add_view("findings", lambda: Rows(FINDINGS, lambda: finding_rows(self._options.store_path)))
        self._with_fields: set[str] = set()

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's connection, in which each topic is a view; ``close`` closes it."""
        self._make_views(list(self._waiting))
        return self._connection

    def run(self, query: str) -> pa.RecordBatchReader:
        """Runs one statement; its result is computed while it is read.

        Raises:
            QueryError: the query is wrong, or names something that does not exist.
            RucolaError: a message cannot be read.
        """
        self._make_views(self._named_by(query))
        self._add_fields(query)
        try:
            return self._guarded(self._connection.sql(query).to_arrow_reader())
        except duckdb.Error as error:
            raise self._error(query, error) from error

    def close(self) -> None:
        """Ends the session."""
        self._connection.close()
        self._spill.cleanup()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guarded(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Wraps ``reader`` so that an error during reading is raised as a ``RucolaError``."""

        def batches() -> Any:
            try:
                yield from reader
            except (pa.ArrowException, duckdb.Error, OSError) as error:
                raise self._error("", error) from error

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def _topic_names(self) -> list[str]:
        catalog = open_catalog(self._options)
        try:
            return sorted({queue.topic for queue in catalog.queues(all_needed=False)})
        finally:
            catalog.close()

    def _dataset(self, topic: str | None) -> Any:
        store, name_server, options = self._place
        return dataset(store, topic, name_server=name_server, **({"null_bodies": True} | options))

    def _add_view(self, name: str, rows: Callable[[], VirtualDataset]) -> None:
        other = self._names.setdefault(name.lower(), name)
        if name in self._waiting or other != name:
            log.warning(
                "no view for topic %s, because view %s has that name; select from messages where topic = ... instead",
                name,
                other,
            )
            return
        self._waiting[name] = rows

    def _make_views(self, names: Iterable[str]) -> None:
        """Creates the views in ``names`` that do not exist yet. DuckDB takes half a millisecond for each view, and
        there may be thousands.
        """
        for name in names:
            rows = self._waiting.pop(name, None)
            if rows is not None:
                self._datasets[name] = rows()
                self._connection.register(name, self._datasets[name])

    def _named_by(self, query: str) -> list[str]:
        """The views named in a query; all views if the query may use more views than those found."""
        try:
            tables = {name.lower() for name in self._connection.get_table_names(query)}
        except duckdb.Error:  # the query is wrong and will be refused, or it has several statements
            tables = set()
        if not tables or not tables <= self._names.keys() or "duckdb_" in query.lower():
            return list(self._names.values())
        return [self._names[name] for name in tables]

    def _add_fields(self, query: str) -> None:
        """Creates views with the fields of the bodies, for the topics whose names occur in the query."""
        for topic in self.topics:
            if topic in self._with_fields or topic.lower() not in query.lower() or topic not in self._datasets:
                continue
            self._with_fields.add(topic)
            rows = self._datasets[topic]
            fields = fields_of(self._sample(topic), self._spill.name)
            if fields:
                self._connection.unregister(topic)
                self._connection.register(SOURCE_PREFIX + topic, rows)
                try:
                    self._connection.execute(view_text(topic, SOURCE_PREFIX + topic, rows.schema.names, fields))
                except duckdb.Error as error:  # senders choose the names of fields
                    log.warning("the fields of bodies of topic %s are no columns: %s", topic, str(error).split("\n")[0])
                    self._connection.register(topic, rows)

    def _sample(self, topic: str) -> pa.Table:
        """The bodies of a sample of messages from ``topic``."""
        options = replace(self._options, subscription=Subscription(topics=(topic,)))
        queues = _largest_queues(options)
        if not queues:
            return pa.table({"body": pa.array([], pa.binary())})
        share = max(1, SAMPLE_ROWS // (2 * len(queues)))
        offset = pc.field("queueOffset")
        places = [
            (pc.field("queueId") == queue_id) & ((offset < least + share) | (offset >= most - share))
            for queue_id, least, most in queues
        ]
        return self._datasets[topic].to_table(columns=["body"], filter=reduce(or_, places))

    def _error(self, query: str, error: Exception) -> RucolaError:
        """Returns the error to raise when ``query`` has failed with ``error``."""
        for rows in self._datasets.values():
            if isinstance(rows.failure, RucolaError):
                return rows.failure
        missing = _MISSING_TABLE.search(str(error))
        if missing is not None:
            import difflib  # this import takes 10 ms

            names = sorted(self._names.values())
            near = difflib.get_close_matches(missing[1], names, NEAREST_MAX, cutoff=0.5) or names[:NEAREST_MAX]
            there = ", ".join(name if name.isidentifier() else quoted(name) for name in near)
            return QueryError(missing[1], f"no topic or view {missing[1]!r}; the nearest are {there}")
        # The rest of DuckDB's message points into the text of the query.
        return QueryError(query, " ".join(str(error).split("\n\n")[0].split()))


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
