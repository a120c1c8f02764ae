"""The extras: groups of optional packages. Parts of Rucola need one or more of them; the clients need none.
``require`` checks that the packages are installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from rucola.errors import MissingExtraError

Extra = tuple[str, Sequence[str]]
"""Name of an extra, and the modules that it installs."""

SERVER = "server", ("lark", "prometheus_client", "rich", "starlette", "uvicorn", "yaml")
"""Modules that broker and name server need."""
CLI = "cli", ("rich", "typer", "yaml")
"""Needed by the tools ``rucola store``, ``rucola mqadmin``, ``rucola lab`` and ``rucola spark``."""
PACKAGE = "package", ("venv_pack",)
"""Modules that ``rucola spark package`` needs."""
ARROW = "arrow", ("lark", "numpy", "pyarrow")
"""Needed by ``rucola.arrow``."""
SPARK = "spark", ("lark", "numpy", "pandas", "pyarrow", "pyspark")
"""Needed by ``rucola.spark`` and ``rucola store --spark``."""
SQL = "sql", ("duckdb", "lark", "numpy", "pyarrow")
"""Needed by ``rucola.sql``."""

CONTROLLER = "controller", ("h11",)
"""Needed by the controller, for HTTP to etcd."""
LAKE = "lake", ("deltalake", "lark", "numpy", "obstore", "pyarrow")
"""Needed by ``rucola.lake``."""
GRPC = "grpc", ("cryptography", "google.protobuf")
"""Needed by the gRPC door."""
CONSOLE = "console", ("jinja2", "starlette", "uvicorn")
"""Needed by ``rucola console``."""
SCHEMAS = "schemas", ("fastavro", "google.protobuf")
"""Needed by the console for bodies in Avro and Protocol Buffers."""
TOP = "top", ("rich", "textual")
"""Needed by ``rucola top`` in a terminal; not by ``--once``."""
ICEBERG = "iceberg", ("pyiceberg", "sqlalchemy")
"""Needed for Iceberg tables."""


def require(extra: Extra, user: str) -> None:
    """Checks that the modules of an extra are installed, without importing them.

    Args:
        extra: one of the constants above.
        user: the command or class that needs them.

    Raises:
        MissingExtraError: a module is missing.
    """
    name, modules = extra
    missing = [module for module in modules if not _is_there(module)]
    if missing:
        raise MissingExtraError(user, tuple(missing), name)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that the module is in
        return False
