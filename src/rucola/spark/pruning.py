"""Reads only the columns and messages that a query needs. Spark does not do this for Python sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rucola.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def prune(spark: SparkSession, query: Callable[[DataFrame], DataFrame], **options: str) -> DataFrame:
    """The result of ``query`` over a load of ``format("rocketmq")`` that has only the columns that the query uses.

    The query is built twice: first over all columns, because Spark's optimized plan then shows which ones it uses, and
    then over those columns. If the session pushes filters down (``spark.sql.python.filterPushdown.enabled``), fewer
    messages are read, too.

    Args:
        spark: a session, but not one of Spark Connect, which does not show its plans.
        query: builds a DataFrame from the rows, a new one in each call, and does nothing else. If it joins the rows
        with themselves, the columns of both sides are read for both.
        options: options of ``format("rocketmq")`` for a batch, without ``columns``.

    Raises:
        ConfigError: ``columns`` is given, or the session does not show plans.
    """
    if any(name.lower() == "columns" for name in options):
        raise ConfigError("columns", "given", "no columns: the query determines them")
    if spark.conf.get(PUSHDOWN, "false") == "true" and not any(name.lower() == "pushfilters" for name in options):
        options = {**options, "pushFilters": "true"}

    def load(**more: str) -> DataFrame:
        return spark.read.format("rocketmq").options(**options, **more).load()

    rows = load()
    used = used_columns(rows, query(rows))
    # A count uses no column, but a source must have one; column ``topic`` costs least.
    names = [name for name in rows.columns if name in used] or [rows.columns[0]]
    return query(load(columns=",".join(names)))


def used_columns(rows: DataFrame, result: DataFrame) -> set[str]:
    """Names of the columns of ``rows`` that ``result`` uses, either as its own columns or in intermediate steps.

    Raises:
        ConfigError: the session does not show plans.
    """
    if not hasattr(result, "_jdf"):
        raise ConfigError(
            "spark", "Spark Connect", "a session in this process; with option columns you can choose them yourself"
        )
    own = {int(one.exprId().id()): str(one.name()) for one in _elements(_plan(rows, "analyzed").output())}
    plan = _plan(result, "optimizedPlan")
    found = {int(one.exprId().id()) for one in _elements(plan.output())}
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        found |= {int(one.exprId().id()) for one in _elements(node.references().toSeq())}
        waiting += [*_elements(node.children()), *_elements(node.subqueries())]
    return {name for number, name in own.items() if number in found}


def _plan(rows: DataFrame, name: str) -> Any:
    return getattr(rows._jdf.queryExecution(), name)()


def _elements(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]
