"""The store doctor with its tasks in Spark."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest
from tests.unit.store.stores import SEGMENT, fill, opened
from tests.unit.store.test_rebuild import OPTIONS, contents

from rucola.errors import StoreDamagedError
from rucola.spark.doctor import in_spark
from rucola.store.doctor.rebuild import rebuild

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_rebuild(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = opened(path)
    fill(store, 500, topics=3)
    store.shutdown()
    before = contents(path)
    for part in ("consumequeue", "index"):
        rmtree(path / part)
    report = rebuild(str(path), in_spark(spark), OPTIONS)
    assert (report.records, report.units) == (500, 500)
    assert contents(path) == before
    segment = path / "commitlog" / f"{SEGMENT:020d}"
    data = bytearray(segment.read_bytes())
    data[4:8] = b"\0\0\0\0"
    segment.write_bytes(data)
    with pytest.raises(StoreDamagedError) as caught:
        rebuild(str(path), in_spark(spark), OPTIONS)
    assert (caught.value.path, caught.value.position) == (str(segment), 0)
    assert contents(path) == before
