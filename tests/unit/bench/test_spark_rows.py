"""The rows with which Spark's scan is measured: all messages of the store differ, and the prepared source yields as
many rows as requested.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from bench import spark_prepared
from bench.spark_prepared import PreparedReader
from bench.spark_store import FIRST, TAGS, Messages
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.formats.properties import decode_properties
from rucola.spark.options import parse_options


def test_no_two_messages_are_alike() -> None:
    made = Messages(100)
    bodies = set()
    for first in (0, made.batch.count):
        made.renew(first)
        for row in range(made.batch.count):
            number = FIRST + first + row
            fields = made.batch.table[row * ROW_WIDTH : (row + 1) * ROW_WIDTH]
            start = fields[FrameColumn.PROPERTIES_POS]
            text = bytes(made.batch.source[start : start + fields[FrameColumn.PROPERTIES_LEN]])
            expected = {"KEYS": f"key{number}", "TAGS": f"Tag{chr(TAGS[number % len(TAGS)])}", "WAIT": "true"}
            assert decode_properties(text) == {**expected, "UNIQ_KEY": f"7F000001000A{number:020X}"}
            body = bytes(made.batch.body(row))
            assert len(body) == 100
            bodies.add(body)
    assert len(bodies) == 2 * made.batch.count


@pytest.mark.parametrize("rows", [0, 5, 4096, 10_000])
def test_prepared_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    def read_range(*_: object) -> Iterator[pa.RecordBatch]:
        return (pa.record_batch({"n": range(size)}) for size in (256, 4096, 4096))

    monkeypatch.setattr(spark_prepared, "read_range", read_range)
    reader = PreparedReader(parse_options({"storePath": "d", "topic": "t"}), StructType(), rows)
    batches = list(reader.read(InputPartition(("piece", rows))))
    assert [batch.num_rows for batch in batches] == [4096] * (rows // 4096) + [rows % 4096]
