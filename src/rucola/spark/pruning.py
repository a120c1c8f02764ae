"""What Spark does not do for Python sources: read only the columns, and the messages, that a query has a use for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rucola.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def prune(spark: SparkSession, query: Callable[[DataFrame], DataFrame], **options: str) -> DataFrame:
    """The result of ``query`` over a load of ``format("rocketmq")`` that has only the columns which the query uses.

    The query is made twice: over all columns, to see from Spark's optimized plan which ones it uses, and over those.
    Where the session pushes filters down (``spark.sql.python.filterPushdown.enabled``), fewer messages are read, too.

    Args:
        spark: a session; not one of Spark Connect, which does not show its plans.
        query: makes a DataFrame of the rows, each time a new one, and does nothing else. It reads them once: where it
            joins the rows with themselves, the columns of either side are read for both.
        options: of ``format("rocketmq")``, without ``columns``; for a batch.

    Raises:
        ConfigError: ``columns`` is given, or the session shows no plans.
    """
    if any(name.lower() == "columns" for name in options):
        raise ConfigError("columns", "given", "nothing: the query says which columns it uses")
    if spark.conf.get(PUSHDOWN, "false") == "true" and not any(name.lower() == "pushfilters" for name in options):
        options = {**options, "pushFilters": "true"}

    def load(**more: str) -> DataFrame:
        return spark.read.format("rocketmq").options(**options, **more).load()

    rows = load()
    used = used_columns(rows, query(rows))
    # A count uses no column, but a source has at least one; the topic's costs least.
    names = [name for name in rows.columns if name in used] or [rows.columns[0]]
    return query(load(columns=",".join(names)))


def used_columns(rows: DataFrame, result: DataFrame) -> set[str]:
    """Names of the columns of ``rows`` that ``result`` uses: for its own columns, and on the way to them.

    Raises:
        ConfigError: the session shows no plans.
    """
    if not hasattr(result, "_jdf"):
        raise ConfigError("spark", "Spark Connect", "a session in this process; option columns does the same by hand")
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
