"""Parquet files with the rows that could not be sent. Spark can read the files as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rucola.places.storage import open_place

if TYPE_CHECKING:
    from rucola.spark.sink_rows import Chunk
    from rucola.spark.sink_send import Refused

ID, TOPIC, REASON = "_msgId", "_topic", "_error"
"""Columns that the file has in addition to the columns of the rows."""


class DeadLetterFile:
    """The file of dead letters that one attempt of a task writes. ``close`` creates the file, but only if rows were
    refused. It replaces the file of an earlier attempt, which has the same name.

    Args:
        path: the directory, or its URL; may be empty if ``put`` is never called.
        name: identifies the task among all tasks that ever write into the directory.
    """

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = f"refused-{name}.parquet"
        self._tables: list[pa.Table] = []

    def put(self, chunk: Chunk, refused: Refused) -> None:
        """Adds the refused rows of ``chunk``."""
        numbers = sorted(refused)
        table = pa.Table.from_batches([chunk.rows]).take(pa.array(numbers))
        messages = [chunk.messages[number] for number in numbers]
        table = table.append_column(ID, pa.array([one.uniq_key for one in messages], pa.string()))
        table = table.append_column(TOPIC, pa.array([one.topic for one in messages], pa.string()))
        self._tables.append(table.append_column(REASON, pa.array([str(refused[n]) for n in numbers], pa.string())))

    def close(self) -> None:
        """Writes the file, which gets its name when it is complete. Without refused rows, removes the file of an
        earlier attempt: its rows have been sent now.
        """
        if not self._path:
            return
        place = open_place(self._path, name="deadLetterPath")
        if self._tables:
            new = place.new_file(self._name)
            try:
                pq.write_table(pa.concat_tables(self._tables), new.stream)
            except BaseException:
                new.abandon()
                raise
            new.complete()
        elif place.exists(self._name):
            place.remove(self._name)
