"""Connections of DuckDB, each with its own database in memory."""

from __future__ import annotations

import duckdb


def connect(spill: str = "") -> duckdb.DuckDBPyConnection:
    """Opens a connection.

    Args:
        spill: directory for what does not fit into memory; if empty, such a query fails. DuckDB itself would take the
            directory ``.tmp`` in the current one.
    """
    # DuckDB must not download an extension without the user's knowledge.
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false", "temp_directory": spill})
    return _set(connection)


def session_of(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Opens another connection to the same database. It has its own temporary views, and does not wait for results of
    ``connection``.
    """
    return _set(connection.cursor())


def _set(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    # A name in a query must never refer to a variable of this program.
    connection.execute("set timezone = 'UTC'; set python_enable_replacements = false")
    return connection
