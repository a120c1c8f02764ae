"""The silver table: a task of a micro-batch adds its flights, each flight once.

    silver/batch=7/part-1.parquet     the flights that task 1 of batch 7 brought

Records are divided among the tasks by flight id, so the files of one task hold all flights that it has ever to
recognise. The table itself is the memory of what is there; a worker reads the ids of earlier batches once. A batch
that runs again does not look at its own files, and writes the same flights again under the same names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .columns import SUMS_SCHEMA, decode, sums, with_names

RESULT_SCHEMA = pa.schema([*SUMS_SCHEMA, ("poison", pa.int64())])
"""What a task returns: the sums of its new flights, and one row with only the number of records that are no flight."""


class SilverPart:
    """What one task of a micro-batch does. Spark sends a copy to the task.

    Args:
        directory: of the table.
        batch_id: number of the micro-batch.
        airlines: ``carrier`` and ``airline``.
        planes: ``tailnum`` and further columns.
    """

    def __init__(self, directory: Path, batch_id: int, airlines: pa.Table, planes: pa.Table) -> None:
        self._directory = directory
        self._batch_id = batch_id
        self._airlines = airlines
        self._planes = planes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For ``mapInArrow``: writes the flights among the records, and yields their sums."""
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from self.add(batches, context.partitionId() if context else 0)

    def add(self, batches: Iterator[pa.RecordBatch], part: int) -> Iterator[pa.RecordBatch]:
        """Does the same as task ``part``.

        Args:
            batches: records with ``flight_id``, ``bornTimestamp`` and ``body``.
            part: number of the task.
        """
        known = _known_ids(self._directory, part, self._batch_id)
        new: list[pa.Table] = []
        poison = 0
        for batch in batches:
            bodies = batch.column("body").to_pylist()
            table, places = decode(bodies)
            poison += len(bodies) - len(places)
            ids = batch.column("flight_id").to_pylist()
            kept = []
            for row, place in enumerate(places):
                if ids[place] not in known:
                    known.add(ids[place])
                    kept.append((row, place))
            if kept:
                rows, sources = (pa.array(numbers, pa.int64()) for numbers in zip(*kept, strict=True))
                born = batch.select(["flight_id", "bornTimestamp"]).take(sources)
                flights = table.take(rows)
                for name in born.schema.names:
                    flights = flights.append_column(name, born.column(name))
                new.append(with_names(flights, self._airlines, self._planes))
        if new:
            flights = pa.concat_tables(new)
            self._write(flights, part)
            result = sums(flights)
            result = result.append_column("poison", pa.nulls(result.num_rows, pa.int64()))
            yield from result.cast(RESULT_SCHEMA).combine_chunks().to_batches()
        _remember(self._directory, part, self._batch_id, known)
        if poison:
            yield pa.RecordBatch.from_pylist([{"poison": poison}], RESULT_SCHEMA)

    def _write(self, flights: pa.Table, part: int) -> None:
        directory = self._directory / f"batch={self._batch_id}"
        directory.mkdir(parents=True, exist_ok=True)
        hidden = directory / f".part-{part}-{uuid.uuid4().hex}"  # a name that readers ignore
        pq.write_table(flights, hidden)
        hidden.replace(_file(self._directory, self._batch_id, part))


_ids: dict[tuple[Path, int], tuple[int, set[str]]] = {}
"""By table and task: the last batch, and the ids up to it. A worker process serves many tasks."""


def _known_ids(directory: Path, part: int, batch_id: int) -> set[str]:
    """The ids of all flights that the task brought in earlier batches."""
    last, ids = _ids.pop((directory, part), (-1, set()))
    if last >= batch_id:  # a batch runs again
        last, ids = -1, set()
    for number in range(last + 1, batch_id):
        file = _file(directory, number, part)
        if file.exists():
            ids.update(pq.read_table(file, columns=["flight_id"], partitioning=None)["flight_id"].to_pylist())
    return ids


def _remember(directory: Path, part: int, batch_id: int, ids: set[str]) -> None:
    _ids[directory, part] = batch_id, ids


def _file(directory: Path, batch_id: int, part: int) -> Path:
    return directory / f"batch={batch_id}" / f"part-{part}.parquet"
