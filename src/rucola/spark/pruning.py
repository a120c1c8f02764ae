"""Reads only the columns and messages that a query needs. Spark does not do this for Python sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from rucola.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_SCAN = "DataSourceV2ScanRelation"
"""Class of those nodes in an optimized plan that read a source."""


def prune(spark: SparkSession, query: Callable[[DataFrame], DataFrame], **options: str) -> DataFrame:
    """Applies ``query`` to rows of ``format("rocketmq")``, and reads only the columns that the query uses.

    The query is built twice: first over all columns, so that Spark's optimized plan shows which of them the query uses,
    then over those columns. If the session pushes filters down (``spark.sql.python.filterPushdown.enabled``) and the
    query reads the rows once, fewer messages are read, too.

    Args:
        spark: a session in this process; a Spark Connect session does not show its plans.
        query: function that builds a new DataFrame from the rows in each call, and does nothing else. If the function
            joins the rows with themselves, each side is read with the columns of both sides.
        options: options of ``format("rocketmq")`` for a batch, without ``columns``.

    Raises:
        ConfigError: ``columns`` is given, or the session does not show plans.
    """
    if any(name.lower() == "columns" for name in options):
        raise ConfigError("columns", "given", "no option columns, because the query determines the columns")

    def load(**more: str) -> DataFrame:
        return spark.read.format("rocketmq").options(**{**options, **more}).load()

    rows = load()
    use = use_of(rows, query(rows))
    # A count uses no column, but a source must have one; column ``topic`` costs least.
    names = [name for name in rows.columns if name in use.columns] or [rows.columns[0]]
    chosen = {"columns": ",".join(names)}
    if spark.conf.get(PUSHDOWN, "false") == "true" and not any(name.lower() == "pushfilters" for name in options):
        # Spark keeps one plan for all reads of one ``load()``, based on the filters that it pushed last.
        chosen["pushFilters"] = "true" if use.reads == 1 else "false"
    return query(load(**chosen))


class Use(NamedTuple):
    """How a query uses the rows of one ``load()``."""

    columns: set[str]
    """Names of the columns that the query uses, in its result or in intermediate steps."""
    reads: int
    """How many times the query reads the rows."""


def use_of(rows: DataFrame, result: DataFrame) -> Use:
    """Finds out how ``result`` uses ``rows``, the rows of one ``load()``.

    Raises:
        ConfigError: the session does not show plans.
    """
    if not hasattr(result, "_jdf"):
        raise ConfigError(
            "spark", "Spark Connect", "a session in this process; use option columns to choose the columns yourself"
        )
    table = _plan(rows, "analyzed").table()
    plan = _plan(result, "optimizedPlan")
    names: dict[int, str] = {}
    used = {_number(one) for one in _elements(plan.output())}
    reads = 0
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        used |= {_number(one) for one in _elements(node.references().toSeq())}
        waiting += [*_elements(node.children()), *_elements(node.subqueries())]
        if node.getClass().getSimpleName() == _SCAN and node.relation().table().equals(table):
            reads += 1
            names |= {_number(one): str(one.name()) for one in _elements(node.output())}
    return Use({name for number, name in names.items() if number in used}, reads)


def _number(attribute: Any) -> int:
    return int(attribute.exprId().id())


def _plan(rows: DataFrame, name: str) -> Any:
    return getattr(rows._jdf.queryExecution(), name)()


def _elements(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]
