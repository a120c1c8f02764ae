"""What the lake relies on in PyArrow's and PyIceberg's access to S3."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lake.options import arrow_filesystem, iceberg_properties
from tests.lake.s3_proxy import Fault, FaultyS3, Kind
from tests.lake.s3_server import SECRET, S3Server

ROWS = pa.table({"name": ["T"] * 10, "number": pa.array(range(10), pa.int32())})


@pytest.fixture
def bucket(each_s3_server: S3Server) -> str:
    return each_s3_server.bucket()


@pytest.mark.parametrize(("delayed", "requests"), [(True, {Kind.PUT: 1}), (False, {Kind.MULTIPART: 3})])
def test_requests_of_a_file_that_is_written(
    each_faulty_s3: FaultyS3, bucket: str, delayed: bool, requests: dict[Kind, int]
) -> None:
    files = arrow_filesystem(each_faulty_s3, allow_delayed_open=delayed)
    with files.open_output_stream(f"{bucket}/file") as stream:
        stream.write(b"x" * (1 << 20))
    assert each_faulty_s3.counts() == requests


def test_requests_of_a_file_that_is_read(each_faulty_s3: FaultyS3, bucket: str) -> None:
    files = arrow_filesystem(each_faulty_s3, allow_delayed_open=True)
    pq.write_table(pa.table({"a": range(100_000), "b": range(100_000)}), f"{bucket}/file.parquet", filesystem=files)
    each_faulty_s3.forget()
    with pq.ParquetFile(f"{bucket}/file.parquet", filesystem=files) as file:
        assert file.metadata.num_rows == 100_000
        assert each_faulty_s3.counts() == {Kind.HEAD: 1, Kind.GET: 1}
        file.read(columns=["a"])
    assert each_faulty_s3.counts() == {Kind.HEAD: 1, Kind.GET: 2}


@pytest.mark.parametrize("how", [Fault.SLOW_DOWN, Fault.LOST_ANSWER])
def test_a_put_that_fails_is_sent_again(
    each_faulty_s3: FaultyS3, each_s3_server: S3Server, bucket: str, how: Fault
) -> None:
    each_faulty_s3.fail(1, how)
    with arrow_filesystem(each_faulty_s3, allow_delayed_open=True).open_output_stream(f"{bucket}/file") as stream:
        stream.write(b"body")
    assert each_faulty_s3.counts() == {Kind.PUT: 2}
    with each_s3_server.client() as client:
        assert client.get(f"/{bucket}/file").body == b"body"


def test_a_file_that_is_given_up_is_written_all_the_same(each_s3_server: S3Server, bucket: str) -> None:
    """A name that was begun may hold half a file: what is not committed is no part of a table."""
    stream = arrow_filesystem(each_s3_server, allow_delayed_open=True).open_output_stream(f"{bucket}/file")
    stream.write(b"half")
    del stream
    with each_s3_server.client() as client:
        assert client.get(f"/{bucket}/file").body == b"half"


def test_errors_hide_the_secret_and_a_pickle_does_not(each_s3_server: S3Server, bucket: str) -> None:
    """A file system with keys may not go into a plan, or to another process."""

    class Wrong:
        endpoint, region, access_key, secret = (
            each_s3_server.endpoint,
            each_s3_server.region,
            each_s3_server.access_key,
            SECRET[::-1],
        )

    wrong = arrow_filesystem(Wrong())
    for call in (wrong.open_input_file, wrong.open_output_stream):
        with pytest.raises(OSError, match=r"AWS Error (ACCESS_DENIED|SIGNATURE_DOES_NOT_MATCH)") as raised:
            call(f"{bucket}/file")
        text = "".join(traceback.format_exception(raised.value))
        assert Wrong.secret not in text
        assert Wrong.access_key not in text
    assert Wrong.secret.encode() in pickle.dumps(wrong)


@pytest.mark.parametrize("retries", [0, 4])
def test_iceberg_commits_again_what_came_late_unless_told_not_to(
    each_s3_server: S3Server, bucket: str, tmp_path: Path, caplog: Any, retries: int
) -> None:
    """Four retries are the default: rows of two writers that began at one snapshot are then both in the table."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{bucket}/warehouse"}
    catalog = SqlCatalog("test", **place, **iceberg_properties(each_s3_server))
    catalog.create_namespace("n")
    catalog.create_table("n.t", ROWS.schema, properties={"commit.retry.num-retries": str(retries)})
    first, second = (catalog.load_table("n.t") for _ in range(2))
    first.append(ROWS)
    if retries:
        second.append(ROWS)
    else:
        with pytest.raises(CommitFailedException):
            second.append(ROWS)
    assert catalog.load_table("n.t").scan().to_arrow().num_rows == (20 if retries else 10)
    catalog.engine.dispose()
