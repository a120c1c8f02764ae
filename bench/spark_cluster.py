"""A standalone Spark master with two workers on this machine, started from the installed PySpark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from tools.peers.servers import free_port, wait_for_port

WORKERS = 2
EXECUTOR = ("--conf", "spark.executor.memory=900m", "--conf", "spark.executor.cores=1")
"""Options of ``rucola store --spark`` with which an executor fits into a worker."""
_HOME = Path(pyspark.__file__).parent
_WAIT_S = 60


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Runs a master and two workers during the block; yields the URL of the master.

    Args:
        directory: for logs and work files.

    Raises:
        RuntimeError: the master or a worker does not start.
    """
    port = free_port()
    with ExitStack() as stack:
        where = ["--host", "127.0.0.1", "--webui-port", "0"]
        stack.enter_context(_running(directory, "master.Master", *where, "--port", str(port)))
        if not wait_for_port(port, _WAIT_S):
            raise RuntimeError(f"nobody listens on port {port} after {_WAIT_S} s")
        for number in range(WORKERS):
            work = ["-c", "1", "-m", "2g", "-d", str(directory / f"worker-{number}"), f"spark://127.0.0.1:{port}"]
            stack.enter_context(_running(directory, "worker.Worker", *where, *work))
        yield f"spark://127.0.0.1:{port}"


@contextmanager
def _running(directory: Path, name: str, *options: str) -> Iterator[None]:
    command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options]
    environment = {
        **os.environ, "SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable
    }  # fmt: skip
    with (directory / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=directory)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_WAIT_S)
