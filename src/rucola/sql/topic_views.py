"""The views of one connection: those of topics, and the short names of the views in schema ``rucola``."""

from __future__ import annotations

import logging

import duckdb

from rucola.sql.fields import quoted, view_text
from rucola.sql.sources import Sources
from rucola.sql.topic_names import TopicNames, folded

logger = logging.getLogger(__name__)


class TopicViews:
    """Makes views when a query needs them: DuckDB takes a millisecond for each, and there may be thousands.

    Args:
        connection: where the views are made. They are temporary, so no other connection has them.
        sources: what they read.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, sources: Sources) -> None:
        self.connection = connection
        self._sources = sources
        self._made: dict[str, str] = {}
        """The topic of each view, by name as DuckDB compares it; empty for the short name of another view."""
        self._with_fields: set[str] = set()

    def make_all(self, names: TopicNames) -> None:
        """Makes the views that all queries may use, without the fields of bodies."""
        for topic in names.common:
            self.make_topic(topic)
        for name in self._sources.system:
            self.make_system(name, names)

    def has(self, name: str) -> bool:
        """Whether there is a view of this name."""
        return folded(name) in self._made

    def make_topic(self, topic: str) -> None:
        """Makes the view of a topic, without the fields of bodies."""
        name = folded(topic)
        if self._made.get(name) == topic:
            return
        self._drop(name)
        self.connection.register(topic, self._sources.messages(topic))
        self._made[name] = topic

    def make_system(self, name: str, names: TopicNames) -> None:
        """Makes a view in schema ``rucola``, and its short name unless a topic has it."""
        view = self._sources.system_view(name)
        if not names.like(name) and name not in self._made:
            self.connection.execute(f"create temp view {quoted(name)} as select * from {view}")
            self._made[name] = ""

    def add_fields(self, topic: str) -> None:
        """Adds the fields of the bodies to the view of a topic."""
        if topic in self._with_fields:
            return
        self._with_fields.add(topic)
        fields = self._sources.fields(topic)
        if not fields:
            return
        rows = self._sources.messages(topic)
        self.connection.unregister(topic)
        try:
            view, check = self._sources.view_of_topic(topic), self._sources.check_of_topic(topic)
            self.connection.execute(view_text(topic, view, rows.schema.names, fields, check))
        except duckdb.Error as error:  # senders choose the names of fields
            logger.warning("the fields of bodies of topic %s are no columns: %s", topic, str(error).split("\n")[0])
            self.connection.register(topic, rows)

    def keep(self, names: TopicNames) -> None:
        """Drops the views that no longer fit the topics that exist."""
        for name, topic in list(self._made.items()):
            if names.like(name) != ([topic] if topic else []):
                self._drop(name)

    def _drop(self, name: str) -> None:
        topic = self._made.pop(name, None)
        if topic is not None:
            self.connection.execute(f"drop view temp.main.{quoted(name)}")
            self._with_fields.discard(topic)
