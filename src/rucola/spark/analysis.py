"""Facts about a DataFrame that are known before it runs.

Inside the functions of a declarative pipeline (``spark-pipelines``) nothing can be known, because Spark refuses to
analyse a DataFrame there. Spark itself checks the columns later, when it knows all tables of the pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REFUSED = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"


class FrameFacts(NamedTuple):
    """The names of a DataFrame's columns, and whether the DataFrame is a stream."""

    columns: list[str]
    is_streaming: bool


def facts_of(rows: DataFrame) -> FrameFacts | None:
    """The facts about ``rows``; None in a function of a declarative pipeline."""
    from pyspark.errors import AnalysisException

    try:
        return FrameFacts(rows.columns, rows.isStreaming)
    except AnalysisException as error:
        if error.getCondition() != _REFUSED:
            raise
        return None
