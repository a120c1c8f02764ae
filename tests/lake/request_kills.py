"""Kills an archiving process between every two requests to an S3 server, and loses, refuses or cuts every request:
each message is in the table once.

``python -m tests.lake.request_kills [--server moto]``, part of ``make lake``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from tests.lake.s3_proxy import Fault, FaultyS3
from tests.lake.s3_server import S3Server, servers
from tests.unit.arrow.stores import open_store, put

from rucola.errors import RucolaError
from rucola.lake import archive
from rucola.store.message_store import MessageStore

FAULTS = (Fault.SLOW_DOWN, Fault.CUT, Fault.LOST_ANSWER)
TIMES = 25
"""A fault meets a request and its repetitions, so that clients give up."""


class Sweep:
    """A store, a table of it, and runs that are disturbed at one request after the other."""

    def __init__(self, directory: Path, s3: FaultyS3, url: str) -> None:
        self._directory, self._s3, self._url = directory, s3, url
        self._store: MessageStore = open_store(directory / "store", segment_bytes=1 << 20)
        self._sent = 0
        os.environ.update(
            AWS_ACCESS_KEY_ID=s3.access_key,
            AWS_SECRET_ACCESS_KEY=s3.secret,
            AWS_ENDPOINT_URL=s3.endpoint,
            AWS_REGION=s3.region,
        )

    def kill(self, number: int) -> bool:
        """Kills a run before its ``number``-th request is served; False if the run ended before."""
        self._send()
        self._s3.reset()
        self._s3.fail(number, Fault.HOLD)
        command = [
            sys.executable,
            "-m",
            "tests.lake.request_kills",
            "archive",
            self._url,
            str(self._directory / "store"),
        ]
        process = subprocess.Popen(command)
        while process.poll() is None and not any(one.fault is Fault.HOLD for one in self._s3.requests):
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        was_held = process.poll() is None
        process.kill()
        process.wait()
        self._s3.reset()
        self._check(f"killed at request {number}")
        return was_held

    def disturb(self, number: int, fault: Fault) -> bool:
        """Disturbs the ``number``-th request of a run, and those after it; False if there was none."""
        self._send()
        self._s3.reset()
        self._s3.fail(number, fault, times=TIMES)
        with suppress(RucolaError):
            archive(self._url, store=self._directory / "store")
        was_disturbed = any(one.fault is fault for one in self._s3.requests)
        self._s3.reset()
        self._check(f"{fault.name} at request {number}")
        return was_disturbed

    def close(self) -> None:
        self._store.shutdown()

    def _send(self) -> None:
        put(self._store, self._sent, 8)
        self._sent += 8

    def _check(self, event: str) -> None:
        archive(self._url, store=self._directory / "store")
        options = {"AWS_ALLOW_HTTP": "true"}
        rows = pa.table(DeltaTable(self._url, storage_options=options).to_pyarrow_table())
        found = [tuple(row.values()) for row in rows.select(["topic", "queueId", "queueOffset"]).to_pylist()]
        if not len(found) == len(set(found)) == self._sent:
            raise SystemExit(f"{event}: {self._sent} messages, {len(found)} rows, {len(set(found))} different ones")


def sweep(kind: str) -> None:
    """Goes through all requests of a run."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with S3Server(directory / "s3", kind) as server, FaultyS3(server) as s3:
            one = Sweep(directory, s3, f"s3://{server.bucket()}/lake/table")
            try:
                number = 1
                while one.kill(number):
                    number += 1
                print(f"{kind}: killed before each of {number - 1} requests; each message once", flush=True)
                for fault in FAULTS:
                    count = 0
                    while one.disturb(count + 1, fault):
                        count += 1
                    print(f"{kind}: {fault.value}, from each of {count} requests on; each message once", flush=True)
            finally:
                one.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=servers(), default=servers()[-1])
    sweep(parser.parse_args().server)


if __name__ == "__main__":
    if sys.argv[1:2] == ["archive"]:
        archive(sys.argv[2], store=sys.argv[3])
    else:
        main()
