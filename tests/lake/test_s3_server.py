"""What the lake needs of an S3 server, asked of each one that the tests use."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.lake.moto_server import Guarded
from tests.lake.s3_client import S3Client
from tests.lake.s3_server import MOTO, S3Server, servers

WRITERS, KEYS = 16, 20
KILLS = [(kind, killed) for kind in servers() for killed in ("test", "server") if (kind, killed) != (MOTO, "server")]
"""Moto's server is one process; nothing could stay of it."""


def test_of_sixteen_writers_one_succeeds(each_s3_server: S3Server) -> None:
    """Twenty keys at once. 503 is no answer to the condition: SeaweedFS gives it to whoever waits for 5 s."""
    bucket = each_s3_server.bucket()
    together = [threading.Barrier(WRITERS) for _ in range(KEYS)]

    def write(number: int) -> int:
        key, writer = divmod(number, WRITERS)
        with each_s3_server.client() as client:
            client.connect()
            together[key].wait()
            return client.put(f"/{bucket}/{key}.json", b"%d" % writer, if_none_match="*").status

    with ThreadPoolExecutor(WRITERS * KEYS) as pool:
        statuses = list(pool.map(write, range(WRITERS * KEYS)))
    with each_s3_server.client() as client:
        for key, answers in enumerate(batched(statuses)):
            assert answers.count(200) == 1, answers
            assert set(answers) <= {200, 409, 412, 503}
            assert client.get(f"/{bucket}/{key}.json").body == b"%d" % answers.index(200)


def batched(statuses: list[int]) -> Iterator[list[int]]:
    """Yields the answers to the writers of one key after the other."""
    for begin in range(0, len(statuses), WRITERS):
        yield statuses[begin : begin + WRITERS]


def test_a_write_is_read_and_listed_at_once(each_s3_server: S3Server) -> None:
    bucket = each_s3_server.bucket()
    with each_s3_server.client() as writer, each_s3_server.client() as reader:
        for number in range(10):
            key = f"t/part=a b/{number}+ü.parquet"
            assert reader.get(f"/{bucket}/{key}").code == "NoSuchKey"
            assert writer.put(f"/{bucket}/{key}", b"%d" % number * 1000).status == 200
            assert reader.get(f"/{bucket}/{key}").body == b"%d" % number * 1000
            assert reader.get(f"/{bucket}/{key}", range="bytes=-10").body == b"%d" % number * 10
            assert reader.keys(bucket, "t/")[-1] == key
        assert len(set(reader.keys(bucket, page=3))) == 10
        assert reader.keys(bucket, "u/") == []


def test_a_wrong_etag_is_refused(each_s3_server: S3Server) -> None:
    path = f"/{each_s3_server.bucket()}/key"
    with each_s3_server.client() as client:
        first = client.put(path, b"one").headers["etag"]
        second = client.put(path, b"two", if_match=first)
        assert second.status == 200
        assert client.put(path, b"three", if_match=first).status == 412
        assert client.put(path, b"three", if_match='"00000000000000000000000000000000"').status == 412
        assert client.get(path).body == b"two"


def test_a_deleted_key_may_be_written_again(each_s3_server: S3Server) -> None:
    path = f"/{each_s3_server.bucket()}/key"
    with each_s3_server.client() as client:
        assert client.put(path, b"one", if_none_match="*").status == 200
        assert client.request("DELETE", path).status == 204
        assert client.get(path).status == 404
        assert client.put(path, b"two", if_none_match="*").status == 200


def test_wrong_keys_are_refused(each_s3_server: S3Server) -> None:
    bucket, right = each_s3_server.bucket(), each_s3_server
    with S3Client(right.endpoint, right.access_key, "another") as client:
        assert client.put(f"/{bucket}/key").code == "SignatureDoesNotMatch"
    with S3Client(right.endpoint, "ANOTHER", right.secret) as client:
        assert client.put(f"/{bucket}/key").code == "InvalidAccessKeyId"
    with right.client() as client:
        assert client.keys(bucket) == []


def test_moto_serves_one_request_after_the_other() -> None:
    """So that a condition and its write are one step."""
    served: list[int] = []

    class Body(list[bytes]):
        def close(self) -> None:
            served.append(0)

    def application(_environ: object, _start: object) -> Body:
        served.append(1)
        time.sleep(0.01)
        return Body()

    guarded = Guarded(application, "", "")
    guarded._refused = lambda _environ: None  # type: ignore[method-assign]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(guarded, {"wsgi.input": io.BytesIO(), "PATH_INFO": "/"}, print)
    assert served == [1, 0] * 4


@pytest.mark.parametrize(("kind", "killed"), KILLS)
def test_nothing_stays_when_a_process_is_killed(tmp_path: Path, kind: str, killed: str) -> None:
    """The program that started the server is killed, or the server's own process."""
    program = (
        "import sys, time; from pathlib import Path; from tests.lake.s3_server import S3Server\n"
        "with S3Server(Path(sys.argv[1]), sys.argv[2]) as s3: print(s3.pid, flush=True); time.sleep(60)"
    )
    directory = tmp_path / uuid.uuid4().hex
    with subprocess.Popen([sys.executable, "-c", program, str(directory), kind], stdout=subprocess.PIPE) as test:
        assert test.stdout is not None
        server = int(test.stdout.readline())
        assert _processes_with(directory) > 1
        os.kill(test.pid if killed == "test" else server, signal.SIGKILL)
        until = time.monotonic() + 10
        while time.monotonic() < until and _processes_with(directory) > (killed == "server"):
            time.sleep(0.02)
        left = _processes_with(directory)
        test.kill()
    assert left == (killed == "server")


def _processes_with(directory: Path) -> int:
    """Returns how many processes have the directory on their command line."""
    found = 0
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += str(directory).encode() in line.read_bytes()
        except OSError:
            continue
    return found
