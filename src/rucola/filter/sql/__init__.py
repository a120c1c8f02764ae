"""SQL92 filter expressions over message properties (``protocol.md`` 5.3)."""

from rucola.filter.sql.program import Outcome, SqlExpression, compile_sql

__all__ = ["Outcome", "SqlExpression", "compile_sql"]
