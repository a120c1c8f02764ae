"""SQL over topics with DuckDB: a connection in which every topic is a view. Needs the extra ``sql``, but no Java.

For example::

    from rucola.sql import connect

    with connect("./store") as session:
        print(session.run("SELECT tags, count(*) FROM flights GROUP BY tags").read_all())
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rucola.runtime import extras

if TYPE_CHECKING:
    from rucola.sql.session import Session

__all__ = ["connect"]


def connect(store: str | os.PathLike[str] | None = None, *, name_server: str = "", **options: Any) -> Session:
    """Opens a session. Its ``run`` executes queries; ``session.connection`` is the DuckDB connection.

    Args:
        store: store directory; a broker may be using it.
        name_server: name servers, `host:port` separated by `;`, to read through brokers instead.
        options: further arguments of ``rucola.arrow.dataset``.

    Raises:
        ConfigError: not exactly one of ``store`` and ``name_server`` is given.
        MissingExtraError: DuckDB or PyArrow is not installed.
        StoreDamagedError: the directory holds no store.
    """
    extras.require(extras.SQL, "rucola sql")
    from rucola.sql.session import Session

    return Session(store, name_server, **options)
