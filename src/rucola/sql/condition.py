"""Selects messages by a condition in DuckDB's SQL, over their columns and the fields of their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import duckdb
import pyarrow as pa

from rucola.errors import QueryError
from rucola.sql.engine import connect
from rucola.sql.fields import create_check, fields_of, quoted, view_text

SAMPLE_ROWS = 1000
"""Number of messages from whose bodies the fields are taken: the first messages that are read."""
_SOURCE, _VIEW, _CHECK = "source", "messages", "problem of a body"


def chosen_by(
    condition: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of ``batches`` that fulfil ``condition``, in their order.

    Args:
        condition: the text after ``where``. It may use the columns, and the fields that occur in the first
            ``SAMPLE_ROWS`` bodies.
        batches: the messages; their columns include ``body``.
        schema: columns of ``batches``.
        columns: columns of the result.

    Raises:
        QueryError: the condition is wrong.
        RucolaError: a message cannot be read.
    """
    rest = iter(batches)
    first: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in first) < SAMPLE_ROWS and (batch := next(rest, None)) is not None:
        first.append(batch)
    fields = fields_of(pa.Table.from_batches(first, schema).select(["body"]).slice(0, SAMPLE_ROWS))
    failure: list[Exception] = []

    def noted() -> Iterator[pa.RecordBatch]:
        try:
            yield from chain(first, rest)
        except Exception as error:
            failure.append(error)
            raise

    with connect() as connection:
        connection.execute("set threads = 1")  # several threads would return the rows in a different order
        connection.register(_SOURCE, pa.RecordBatchReader.from_batches(schema, noted()))
        create_check(connection, _CHECK, fields)
        connection.execute(view_text(_VIEW, _SOURCE, schema.names, fields, _CHECK))
        names = ", ".join(map(quoted, columns))
        try:
            reader = connection.sql(f"select {names} from {_VIEW} where ({condition})").to_arrow_reader()
            for batch in reader:
                yield batch.cast(pa.schema([schema.field(name) for name in columns]))
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if failure:
                raise failure[0] from error
            raise QueryError(condition, " ".join(str(error).split("\n\n")[0].split())) from error
