"""SQL92 filter expressions over message properties (``protocol.md`` 5.3).

The compiler is imported when a name in ``__all__`` is first used, because few brokers ever get an expression.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rucola.filter.sql.program import SqlExpression, Steps, TruthValue, compile_sql, compile_steps

__all__ = ["SqlExpression", "Steps", "TruthValue", "compile_sql", "compile_steps"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("rucola.filter.sql.program"), name)
    return value
