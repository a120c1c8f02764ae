"""Topics by name, as DuckDB compares names: upper and lower case of ASCII letters are the same.

A topic has a view for all queries, except in two cases. Topics that differ only in case would be one view with the rows
of whichever was made last. A topic with the name of one of DuckDB's own views would hide it from DuckDB's own
statements. Such a topic has a view only for a query that names it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rucola.errors import QueryError
from rucola.sql.fields import literal, quoted

NAMES_SHOWN = 5
_OWN_PREFIXES = ("duckdb_", "pragma_", "pg_", "sqlite_")
"""Beginnings of the names of DuckDB's own views."""
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def folded(name: str) -> str:
    """The form of a name that DuckDB compares."""
    return name.translate(_LOWER)


class TopicNames:
    """The topics of a session at one moment.

    Attributes:
        all: the topics, sorted.
        common: the topics with a view for all queries, sorted.
        twins: the groups of topics that differ only in case, sorted.
        nameless: the topics that no query can name, because their names are empty or not Unicode.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self.all = sorted(topics)
        self.nameless = [topic for topic in self.all if not _can_be_named(topic)]
        self._groups: dict[str, list[str]] = {}
        for topic in self.all:
            if _can_be_named(topic):
                self._groups.setdefault(folded(topic), []).append(topic)
        self.common = sorted(group[0] for name, group in self._groups.items() if _is_common(name, group))
        self.twins = [group for group in self._groups.values() if len(group) > 1]

    def like(self, name: str) -> list[str]:
        """The topics that DuckDB does not tell from ``name``."""
        return self._groups.get(folded(name), [])

    def is_common(self, name: str) -> bool:
        """Whether the topic of this name has a view for all queries."""
        return _is_common(folded(name), self.like(name))


def twins_error(name: str, twins: list[str]) -> QueryError:
    """The error for a query that does not say clearly which of ``twins`` it means.

    Args:
        name: the name in the query.
        twins: topics that differ only in case.
    """
    one = name if name in twins else twins[0]
    shown = ", ".join(map(quoted, twins[:NAMES_SHOWN])) + ("" if len(twins) <= NAMES_SHOWN else ", ...")
    return QueryError(
        name,
        f"topics {shown} differ only in case; a query can name only one of them, in quotes: "
        f"select * from {quoted(one)}; or write: {always_works(one)}",
    )


def always_works(topic: str) -> str:
    """The query that reads a topic whatever its name is."""
    return f"select * from rucola.messages where topic = {literal(topic)}"


def _is_common(name: str, group: list[str]) -> bool:
    return len(group) == 1 and not name.startswith(_OWN_PREFIXES)


def _can_be_named(topic: str) -> bool:
    try:
        topic.encode()
    except UnicodeEncodeError:
        return False
    return topic != ""
