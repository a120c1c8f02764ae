"""Key-value configuration of the name server: the values of each namespace by key, stored in one JSON file (RocketMQ
5.3.3, ``KVConfigManager``).

This module does no I/O: the caller reads and writes the file. The name server itself uses only the namespace
``ORDER_TOPIC_CONFIG``: topic → ``broker:queues;broker:queues``.
"""

from __future__ import annotations

from collections.abc import Iterator

from rucola.common.json_library import orjson
from rucola.errors import FormatError

NAMESPACE_ORDER_TOPIC = "ORDER_TOPIC_CONFIG"
CHARACTERS_MAX = 4 << 20
"""Largest total number of characters in namespaces, keys and values; limited because each change rewrites the file."""


class KVConfigManager:
    """Namespaces of key-value pairs. For use by one task only."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, str]] = {}
        self._characters = 0

    def put(self, namespace: str, key: str, value: str) -> None:
        """Sets one value; creates the namespace if necessary.

        Raises:
            ValueError: namespaces, keys and values together would exceed ``CHARACTERS_MAX``; nothing was set.
        """
        table = self._tables.get(namespace)
        known = None if table is None else table.get(key)
        more = len(value) - len(known) if known is not None else len(key) + len(value)
        more += len(namespace) if table is None else 0
        if more > 0 and self._characters + more > CHARACTERS_MAX:
            raise ValueError(
                f"key-value configuration: all namespaces together may have at most {CHARACTERS_MAX} characters"
            )
        self._characters += more
        self._tables.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """One value; None if namespace or key is unknown."""
        return self._tables.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Removes one key; does nothing if the key does not exist."""
        table = self._tables.get(namespace, {})
        value = table.pop(key, None)
        if value is not None:
            self._characters -= len(key) + len(value)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All pairs of a namespace; None if the namespace never existed."""
        table = self._tables.get(namespace)
        return None if table is None else dict(table)

    def pieces(self) -> Iterator[bytes]:
        """The current content of the file, ``{"configTable": {namespace: {key: value}}}``. The thread that iterates
        over the result encodes the content.
        """
        return _encoded({namespace: dict(table) for namespace, table in self._tables.items()})

    def load(self, text: bytes, source: str) -> None:
        """Replaces all namespaces with those in a file.

        Raises:
            FormatError: ``text``, the content of the file ``source``, is not a key-value table.
        """
        try:
            tables = orjson.loads(text)["configTable"]
            self._tables = {
                str(namespace): {str(key): str(value) for key, value in table.items()}
                for namespace, table in tables.items()
            }
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                "name server configuration", 0, "a JSON object with the member configTable", str(error), source
            ) from error
        self._characters = sum(
            len(namespace) + sum(len(key) + len(value) for key, value in table.items())
            for namespace, table in self._tables.items()
        )


def _encoded(tables: dict[str, dict[str, str]]) -> Iterator[bytes]:
    yield orjson.dumps({"configTable": tables}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
