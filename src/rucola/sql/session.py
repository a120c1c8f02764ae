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
import time
from typing import Any

import duckdb
import pyarrow as pa

from rucola.errors import QueryError, RucolaError
from rucola.sql.engine import connect, session_of
from rucola.sql.fields import quoted
from rucola.sql.plain_aggregates import recognised
from rucola.sql.sources import SCHEMA, Sources
from rucola.sql.statement import Statement, Table, parsed, uses_only
from rucola.sql.topic_names import NAMES_SHOWN, TopicNames, always_works, folded, twins_error
from rucola.sql.topic_views import TopicViews

TOPICS_AGE_MAX_S = 1.0
"""A list of topics that is older is read again before a query whose meaning a new topic may change."""
_MISSING_TABLE = re.compile(r"Table with name (.+?) does not exist")
_HERE = ("", "main", "temp", "temp.main")
"""Schemas of the views of topics and of the short names, as queries may write them."""

logger = logging.getLogger(__name__)


class Session:
    """Queries over topics.

    Args:
        store: store directory, or None.
        name_server: name servers, if there is no directory.
        options: options of ``rucola.arrow.dataset``.
    """

    def __init__(self, store: str | os.PathLike[str] | None, name_server: str = "", **options: Any) -> None:
        self._spill = tempfile.TemporaryDirectory(prefix="rucola-sql-", ignore_cleanup_errors=True)
        self._connection = connect(self._spill.name)
        try:
            self._sources = Sources((store, name_server, options), self._spill.name, self._connection)
            self._names = TopicNames(self._sources.topics())
        except BaseException:
            self._connection.close()
            self._spill.cleanup()
            raise
        self._listed_s = time.monotonic()
        self._views = TopicViews(self._connection, self._sources)
        self._alone_told: list[str] = []
        """Topics without views that ``connection`` has warned of."""
        self._hidden: set[str] = set()
        """Short names whose topic has been warned of."""

    @property
    def topics(self) -> list[str]:
        """Names of all topics."""
        return self._names.all

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's connection; ``close`` closes it. Each topic is a view in it, except those that ``run`` alone can
        reach: topics that differ only in case, and topics with names of DuckDB's own views.
        """
        self._list_topics()
        self._views.make_all(self._names)
        self._warn_of_topics(sorted({*self._names.all} - {*self._names.common}))
        return self._connection

    def _warn_of_topics(self, alone: list[str]) -> None:
        """Warns once of topics without views."""
        if alone and alone != self._alone_told:
            self._alone_told = alone
            logger.warning(
                "no views for topics %s: DuckDB would take them for others; instead: %s",
                ", ".join(alone[:NAMES_SHOWN]) + (", ..." if len(alone) > NAMES_SHOWN else ""),
                always_works(alone[0]),
            )

    def run(self, query: str) -> pa.RecordBatchReader:
        """Runs one statement; its result is computed while it is read.

        Raises:
            QueryError: the query is wrong, or names something that does not exist, or does not say clearly which topic
                it names.
            RucolaError: a message cannot be read.
            KeyboardInterrupt: a signal ended the query.
        """
        self._sources.forget_failures()
        try:
            query.encode()
            return self._guarded(self._result(query))
        except UnicodeEncodeError as error:
            raise QueryError(query, "the query is not Unicode") from error
        except duckdb.Error as error:
            raise self._error(query, error) from error
        except RuntimeError as error:
            raise _interrupt(error) from error

    def confine(self, memory_bytes: int) -> None:
        """Lets queries read topics and nothing else, for the rest of the session: no files, no network, no extensions,
        no changes of settings.

        Args:
            memory_bytes: memory of the engine; a query that needs more fails, and writes nothing to the disk.
        """
        for setting in (
            "threads = 1",
            f"memory_limit = '{memory_bytes}B'",
            "max_temp_directory_size = '0B'",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._connection.execute(f"set {setting}")

    def is_select(self, query: str) -> bool:
        """Whether a text is one or more ``select`` statements, which change nothing."""
        return parsed(self._connection, query).tree is not None

    def close(self) -> None:
        """Ends the session."""
        self._sources.close()
        self._connection.close()
        self._spill.cleanup()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _result(self, query: str) -> pa.RecordBatchReader:
        statement = parsed(self._connection, query)
        self._look_for_topics(statement)
        alone = self._alone(statement)
        tree = statement.tree
        count = len(self._connection.extract_statements(query) if tree is None else tree["statements"])
        if count != 1:
            raise QueryError(query, "a query is one statement")
        # Views of topics that DuckDB would confuse are on a connection of their own, and are gone with it.
        views = TopicViews(session_of(self._connection), self._sources) if alone else self._views
        self._make(views, query, statement, alone)
        while True:
            try:
                found: duckdb.DuckDBPyRelation | None = views.connection.sql(query)
                if found is None:
                    return _nothing()
                return self._answer_of_queues(statement, found) or found.to_arrow_reader()
            except duckdb.CatalogException as error:
                # A view or a function may name what the query does not. Only ``select`` may run twice.
                missing = _MISSING_TABLE.search(str(error))
                if statement.tree is None or missing is None or not self._make_missing(views, missing[1]):
                    raise

    def _look_for_topics(self, statement: Statement) -> None:
        """Lists the topics again if topics that are new might change what the query means."""
        tables = [table for table in statement.tables if table.schema in _HERE]
        is_old = time.monotonic() - self._listed_s > TOPICS_AGE_MAX_S
        if any(
            self._is_unknown(table) or (is_old and table.name not in self._names.like(table.name)) for table in tables
        ):
            self._list_topics()

    def _is_unknown(self, table: Table) -> bool:
        return not self._names.like(table.name) and folded(table.name) not in self._sources.system

    def _list_topics(self) -> None:
        self._names = TopicNames(self._sources.topics())
        self._listed_s = time.monotonic()
        self._views.keep(self._names)

    def _alone(self, statement: Statement) -> list[str]:
        """The topics that have a view for this query only.

        Raises:
            QueryError: it is not clear which of several topics the query names.
        """
        found: dict[str, str] = {}
        for table in statement.tables:
            group = self._names.like(table.name)
            if table.schema not in _HERE or not group or self._names.is_common(table.name):
                continue
            if len(group) > 1:
                other = found.get(folded(table.name), table.name)
                if table.name not in group or not table.is_exact or other != table.name:
                    raise twins_error(table.name, group)
            found[folded(table.name)] = table.name if len(group) > 1 else group[0]
        return list(found.values())

    def _make(self, views: TopicViews, query: str, statement: Statement, alone: list[str]) -> None:
        """Makes the views that the query needs."""
        needs_fields = statement.tree is None or not uses_only(statement.tree, self._sources.columns)
        for topic in alone:
            views.make_topic(topic)
            if needs_fields:
                views.add_fields(topic)
        names = {table.name for table in statement.tables}
        others = (
            table for table in statement.tables if table.schema not in (*_HERE, SCHEMA) or self._is_unknown(table)
        )
        if statement.needs_all or any(others):  # ``others`` may be DuckDB's lists of views
            views.make_all(self._names)
            names |= {topic for topic in self._names.common if folded(topic) in folded(query)}
        for name in names:
            self._make_named(views, name, needs_fields)
        for table in statement.tables:
            system, group = folded(table.name), self._names.like(table.name)
            if table.schema in _HERE and group and system in {*self._sources.system} - self._hidden:
                self._hidden.add(system)
                logger.warning("%s is a topic here; the view is %s.%s", group[0], SCHEMA, system)

    def _answer_of_queues(self, statement: Statement, query: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader | None:
        """The result of a query whose answer is known without reading messages; None for all others."""
        aggregates = None if statement.tree is None else recognised(statement.tree)
        if aggregates is None:
            return None
        (table,) = statement.tables
        group = self._names.like(table.name) if table.schema in _HERE else []
        topic = table.name if table.name in group else next(iter(group), None)
        if topic is None and (folded(table.name) != "messages" or table.schema not in (*_HERE, SCHEMA)):
            return None
        wanted = topic if aggregates.topic is None else aggregates.topic
        if (topic is not None and wanted != topic) or (wanted is not None and wanted not in self._names.all):
            return None
        extent = self._sources.messages(wanted).extent()
        return None if extent is None else aggregates.result(extent, query.limit(0).to_arrow_table().schema)

    def _make_named(self, views: TopicViews, name: str, needs_fields: bool = True) -> None:
        """Makes what queries for all topics know by this name."""
        group, system = self._names.like(name), folded(name)
        if group and self._names.is_common(name):
            views.make_topic(group[0])
            if needs_fields:
                views.add_fields(group[0])
        if system in self._sources.system:
            views.make_system(system, self._names)

    def _make_missing(self, views: TopicViews, name: str) -> bool:
        """Makes the view of a table that DuckDB has missed; returns whether there is one now."""
        if views.has(name):
            return False
        self._make_named(views, name)
        return views.has(name)

    def _guarded(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Wraps ``reader`` so that an error during reading is raised as a ``RucolaError``."""

        def batches() -> Any:
            try:
                yield from reader
            except (pa.ArrowException, duckdb.Error, OSError) as error:
                raise self._error("", error) from error
            except RuntimeError as error:
                raise _interrupt(error) from error

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def _error(self, query: str, error: Exception) -> RucolaError:
        """Returns the error to raise when ``query`` has failed with ``error``."""
        failure = self._sources.failure()
        if failure is not None:
            return failure
        missing = _MISSING_TABLE.search(str(error))
        if missing is not None:
            return self._missing_error(missing[1])
        # The rest of DuckDB's message points into the text of the query.
        return QueryError(query, " ".join(str(error).split("\n\n")[0].split()))

    def _missing_error(self, name: str) -> QueryError:
        group = self._names.like(name)
        if len(group) > 1:
            return twins_error(name, group)
        if group:
            allowed = f"only a query that names topic {quoted(group[0])} itself can read it"
            return QueryError(name, f"{allowed}; or write: {always_works(group[0])}")
        import difflib  # this import takes 10 ms

        names = sorted({*self._names.common, *self._sources.system})
        near = difflib.get_close_matches(name, names, NAMES_SHOWN, cutoff=0.5) or names[:NAMES_SHOWN]
        there = ", ".join(map(_shown, near))
        return QueryError(name, f"no topic or view {name!r}; the nearest are {there}")


def _shown(name: str) -> str:
    """A name as a query may write it."""
    kinds = [kind for _, kind in duckdb.tokenize(name)]
    return name if name.isidentifier() and kinds == [duckdb.token_type.identifier] else quoted(name)


def _interrupt(error: RuntimeError) -> BaseException:
    """The error to raise for an error of DuckDB that is not its own: it tells of a Ctrl-C as a ``RuntimeError``."""
    return KeyboardInterrupt() if "interrupted" in str(error) else error


def _nothing() -> pa.RecordBatchReader:
    """The result of a statement that has none."""
    return pa.RecordBatchReader.from_batches(pa.schema([]), iter(()))
