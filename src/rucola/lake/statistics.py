"""Statistics of a data file for the log of its table, so that engines can skip files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow.parquet as pq

STATISTICS = ("queueId", "queueOffset", "physicalOffset", "storeTimestamp", "tags")
"""For each file, the log has the minimum and maximum of these columns."""


def file_statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """The statistics of a data file in Delta's form."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        columns = metadata.row_group(group)
        for number in range(columns.num_columns):
            column = columns.column(number)
            name, known = column.path_in_schema, column.statistics
            if name not in STATISTICS or known is None:
                continue
            nulls[name] = nulls.get(name, 0) + known.null_count
            if known.has_min_max:
                least[name] = min(least.get(name, known.min), known.min)
                greatest[name] = max(greatest.get(name, known.max), known.max)
    shown = ({name: _shown(value) for name, value in values.items()} for values in (least, greatest))
    return dict(zip(("minValues", "maxValues"), shown, strict=True)) | {
        "numRecords": metadata.num_rows,
        "nullCount": nulls,
    }


def _shown(value: Any) -> Any:
    """A value in its JSON form; a store time is written to the millisecond."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
