"""The parts of the package that need other packages than the clients, and the extras that install them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from rucola.errors import MissingExtraError

SERVER = "server", ("lark", "prometheus_client", "rich", "starlette", "uvicorn", "yaml")
"""Broker and name server."""
CLI = "cli", ("rich", "typer", "yaml")
"""The tools: ``rucola store``, ``rucola mqadmin`` and ``rucola lab``."""


def require(extra: tuple[str, Sequence[str]], user: str) -> None:
    """Check that the modules of an extra are installed, without importing them.

    Args:
        extra: ``SERVER`` or ``CLI``.
        user: the command or class that needs them.

    Raises:
        MissingExtraError: a module is missing.
    """
    name, modules = extra
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtraError(user, tuple(missing), name)
