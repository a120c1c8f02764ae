"""Tables on an S3 server, written and read by executors. Spark from PyPI has no connector for S3: tasks read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession
from tests.lake.conftest import _started, s3_server  # noqa: F401 - fixtures
from tests.lake.s3_server import S3Server
from tests.unit.arrow.stores import open_store, put

from rucola.spark.archive import archive, archive_raw, compact, restore, topic_table
from rucola.store.message_store import MessageStore

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    one = open_store(tmp_path / "store")
    put(one, 0, 200)
    yield one
    one.shutdown()


@pytest.fixture(params=["delta", "iceberg"])
def place(
    request: pytest.FixtureRequest,
    s3_server: S3Server,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    options = {
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret,
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_REGION": s3_server.region,
    }
    found: dict[str, Any] = {"format": request.param, "storage_options": options}
    if request.param == "iceberg":
        given = {"URI": f"sqlite:///{tmp_path}/prod.db", "TYPE": "sql", "S3__ENDPOINT": s3_server.endpoint}
        given |= {"S3__ACCESS_KEY_ID": s3_server.access_key, "S3__SECRET_ACCESS_KEY": s3_server.secret}
        given |= {"S3__REGION": s3_server.region}
        for name, value in given.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        found["catalog"] = "prod"
    return found


@pytest.mark.few(1)
def test_archive_compact_topic_table_restore(
    spark: SparkSession,
    store: MessageStore,
    tmp_path: Path,
    s3_server: S3Server,  # noqa: F811
    place: dict[str, Any],
) -> None:
    bucket = s3_server.bucket()
    table, raw = f"s3://{bucket}/lake/flights", f"s3://{bucket}/lake/log"
    for count in (200, 60):
        assert archive(table, spark=spark, store=tmp_path / "store", **place) == count
        put(store, 200, 60)
    assert compact(table, spark=spark, **place).made == 4
    rows = topic_table(spark, "flights", table, store=tmp_path / "store", **place)
    found = rows.where("queueId < 2").select("queueId", "queueOffset", "storeDay").collect()
    every = spark.read.format("rocketmq").options(storePath=str(tmp_path / "store"), topic="flights").load()
    expected = every.where("queueId < 2").select("queueId", "queueOffset").collect()
    assert sorted(tuple(row)[:2] for row in found) == sorted(tuple(row) for row in expected)
    assert None not in {row.storeDay for row in found}
    if place["format"] == "iceberg":
        place["identifier"] = "rucola.log"
    assert archive_raw(raw, tmp_path / "store", spark=spark, **place)
    restore(raw, tmp_path / "new", spark=spark, **place)
    for path in (tmp_path / "new" / "commitlog").iterdir():
        whole = (tmp_path / "store" / "commitlog" / path.name).read_bytes()
        assert whole.startswith(path.read_bytes().rstrip(b"\0"))
