"""One task of a micro-batch: writes the records of one queue to bronze, and adds its flights to silver, each once.

    bronze/batch=7/broker-a-1.parquet     the records that batch 7 brought from queue 1
    silver/batch=7/broker-a-1.parquet     the flights among them

A flight is always sent to the same queue, so the files of this queue show whether it is a repeat. Silver itself
records which flights exist; a worker reads the ids of earlier batches once. A batch that runs again ignores its own
files, and writes the same rows again under the same names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from .columns import SUMS_SCHEMA, decode, sums, with_names

COUNTS = ("records", "poison")
RESULT_SCHEMA = pa.schema([*SUMS_SCHEMA, *((name, pa.int64()) for name in COUNTS)])
"""The result of a task: the sums of its new flights, and one row with two counts: the number of all its records, and
the number of records that are not flights.
"""

PLANE_COLUMNS = ("manufacturer", "model", "seats")


@dataclass(frozen=True, slots=True)
class BatchTask:
    """The function that each task of a micro-batch runs. Spark sends a copy to the task.

    Attributes:
        directory: directory of the tables.
        source_directory: directory with ``airlines.csv`` and ``planes.csv``.
        batch_id: number of the micro-batch.
    """

    directory: Path
    source_directory: Path
    batch_id: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For ``mapInArrow``: writes both tables, and yields rows of ``RESULT_SCHEMA``.

        Args:
            batches: rows of ``rucola.spark.layers.bronze``, all of one queue.

        Raises:
            ValueError: the rows are from several queues.
        """
        read = list(batches)
        if not read:
            return
        records = pa.Table.from_batches(read)
        queue = _queue_of(records)
        self._write("bronze", queue, records)
        bodies = records["body"].to_pylist()
        table, places = decode(bodies)
        known = _known_ids(self.directory / "silver", queue, self.batch_id)
        flights = _new_flights(records, table, places, known)
        if flights.num_rows:
            flights = with_names(flights, *_names(self.source_directory))
            self._write("silver", queue, flights)
            result = sums(flights)
            for name in COUNTS:
                result = result.append_column(name, pa.nulls(result.num_rows, pa.int64()))
            yield from result.cast(RESULT_SCHEMA).combine_chunks().to_batches()
        _ids[self.directory / "silver", queue] = self.batch_id, known
        counts = {"records": len(bodies), "poison": len(bodies) - len(places)}
        yield pa.RecordBatch.from_pylist([counts], RESULT_SCHEMA)

    def _write(self, name: str, queue: str, rows: pa.Table) -> None:
        file = _file(self.directory / name, self.batch_id, queue)
        file.parent.mkdir(parents=True, exist_ok=True)
        hidden = file.with_name(f".{queue}-{uuid.uuid4().hex}")  # readers ignore this name
        pq.write_table(rows, hidden)
        hidden.replace(file)


def _queue_of(records: pa.Table) -> str:
    queues = records.select(["brokerName", "queueId"]).group_by(["brokerName", "queueId"]).aggregate([]).to_pylist()
    if len(queues) != 1:
        raise ValueError(f"a task has records from {len(queues)} queues, but each queue needs a task of its own")
    return f"{queues[0]['brokerName']}-{queues[0]['queueId']}"


def _new_flights(records: pa.Table, flights: pa.Table, places: list[int], known: set[str]) -> pa.Table:
    """Returns the flights whose ids are not in ``known``, with id and born time; adds their ids to ``known``.

    Args:
        records: all records of the task.
        flights: the records that are flights, in columns.
        places: for each flight, its index among the records.
    """
    ids = records["keys"].to_pylist()
    rows, sources = [], []
    for row, place in enumerate(places):
        if ids[place] not in known:
            known.add(ids[place])
            rows.append(row)
            sources.append(place)
    own = records.select(["keys", "bornTimestamp"]).take(pa.array(sources, pa.int64()))
    new = flights.take(pa.array(rows, pa.int64())).append_column("flight_id", own["keys"])
    return new.append_column("bornTimestamp", own["bornTimestamp"])


_ids: dict[tuple[Path, str], tuple[int, set[str]]] = {}
"""Cache of a worker, which runs many tasks: for each table and queue, its last batch and all ids up to this batch."""


def _known_ids(table: Path, queue: str, batch_id: int) -> set[str]:
    """The ids of all flights that came from the queue in earlier batches."""
    last, ids = _ids.pop((table, queue), (-1, set()))
    if last >= batch_id:  # a batch runs again
        last, ids = -1, set()
    for number in range(last + 1, batch_id):
        file = _file(table, number, queue)
        if file.exists():
            ids.update(pq.read_table(file, columns=["flight_id"], partitioning=None)["flight_id"].to_pylist())
    return ids


def _file(table: Path, batch_id: int, queue: str) -> Path:
    return table / f"batch={batch_id}" / f"{queue}.parquet"


@cache
def _names(source_directory: Path) -> tuple[pa.Table, pa.Table]:
    """Returns airlines by ``carrier`` and planes by ``tailnum``; a worker reads them once."""
    airlines = _csv(source_directory / "airlines.csv").rename_columns(["carrier", "airline"])
    planes = _csv(source_directory / "planes.csv").select(["tailnum", "year", *PLANE_COLUMNS])
    return airlines, planes.rename_columns(["tailnum", "plane_year", *PLANE_COLUMNS])


def _csv(file: Path) -> pa.Table:
    numbers = dict.fromkeys(("year", "seats"), pa.int32())
    return csv.read_csv(
        file, convert_options=csv.ConvertOptions(column_types=numbers, null_values=["NA"], strings_can_be_null=True)
    )
