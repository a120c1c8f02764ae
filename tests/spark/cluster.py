"""Tests the Spark format in real clusters, from the archive of ``rucola spark package``; the campaign
``clusters`` runs this.

    python -m tests.spark.cluster [--archive FILE]

A standalone master with two workers, ``local-cluster[2,1,2048]`` and a Spark Connect server each run `cluster_job`: it
reads a topic, and a stream copies it to a second topic. The processes of Spark see a PATH without a compiler and a
Python without this package; what the tasks need comes out of the archive. The exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from tests.spark.conftest import BrokerProcess
from tools.peers.servers import free_port, wait_for_port

from rucola.common.message import Message

MESSAGES = 20_000
LARGE_BODY = 6_000
"""Size of every hundredth body in bytes: the client compresses it, and a task decompresses it."""
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "cpp", "c89", "c99", "x86_64-linux-gnu", "aarch64-linux-gnu")
TIMEOUT_S = 600
LOG_LINES = 40
SPARK_HOME = Path(pyspark.__file__).parent
JOB = Path(__file__).with_name("cluster_job.py")
CONF = (
    "spark.executor.memory=900m", "spark.executor.cores=1", "spark.ui.enabled=false", "spark.log.level=WARN",
    "spark.sql.shuffle.partitions=2", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
)  # fmt: skip


class Place:
    """A directory with the unpacked archive for the driver, and the environment of Spark's processes."""

    def __init__(self, directory: Path, archive: Path) -> None:
        self.directory = directory
        self.archive = archive
        with tarfile.open(archive) as packed:
            packed.extractall(directory / "environment", filter="fully_trusted")
        self.environment = {
            "PATH": f"{_bare_path(directory / 'bin')}",
            "HOME": str(directory),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": "./environment/bin/python",
            **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
        }

    def log(self, name: str) -> Path:
        """The file with the output of a process."""
        return self.directory / f"{name}.log"

    @contextmanager
    def process(self, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Runs a process of Spark until the block ends."""
        with self.log(name).open("wb") as log:
            running = subprocess.Popen(
                [str(SPARK_HOME / "bin" / command[0]), *command[1:]],
                env=self.environment, cwd=self.directory, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()

    def submit(self, name: str, master: str, *arguments: str) -> dict[str, object]:
        """Runs the job; returns its result.

        Raises:
            RuntimeError: the job failed or printed no result.
        """
        conf = [word for one in CONF for word in ("--conf", one)]
        command = ["spark-submit", "--master", master, "--archives", f"{self.archive}#environment", *conf]
        with self.process(name, *command, str(JOB), *arguments) as running:
            running.wait(TIMEOUT_S)
        return result(self.log(name))


def result(log: Path) -> dict[str, object]:
    """Returns the job's result from its log."""
    text = log.read_text(errors="replace")
    for line in text.splitlines():
        if line.startswith("RESULT "):
            said: dict[str, object] = json.loads(line.removeprefix("RESULT "))
            return said
    told = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]  # without Java's stack traces
    raise RuntimeError("the job gave no result; the end of its log:\n" + "\n".join(told[-LOG_LINES:]))


def _bare_path(directory: Path) -> Path:
    """Makes a directory with symbolic links to the programs of this machine, except compilers."""
    directory.mkdir()
    for place in ("/bin", "/usr/bin"):
        for program in Path(place).iterdir():
            link = directory / program.name
            if not program.name.startswith(COMPILERS) and not link.is_symlink():
                link.symlink_to(program)
    return directory


def standalone(place: Place, *arguments: str) -> dict[str, object]:
    """Starts a master and two workers from the PySpark distribution."""
    port = str(free_port())
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        where = ["--host", "127.0.0.1", "--webui-port", "0"]
        begin = ["spark-class", "org.apache.spark.deploy.master.Master"]
        stack.enter_context(place.process("master", *begin, *where, "--port", port))
        _wait_for(int(port))
        for number in (1, 2):
            work = ["-c", "1", "-m", "1200m", "-d", str(place.directory / f"worker-{number}"), master]
            begin = ["spark-class", "org.apache.spark.deploy.worker.Worker"]
            stack.enter_context(place.process(f"worker-{number}", *begin, *where, *work))
        return place.submit("standalone", master, *arguments)


def local_cluster(place: Place, *arguments: str) -> dict[str, object]:
    """Returns settings for a driver and two executors."""
    return place.submit("local-cluster", "local-cluster[2,1,2048]", *arguments)


def connect(place: Place, *arguments: str) -> dict[str, object]:
    """Starts a Spark Connect server over two executors; this interpreter is the client and needs only the URL.

    Python processes of a session start in the session's own directory, so the client also adds the archive. Python
    processes of streams start in the server's directory, which has the archive.
    """
    port = str(free_port())
    conf = [word for one in (*CONF, f"spark.connect.grpc.binding.port={port}") for word in ("--conf", one)]
    service = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--name", "connect"]
    archive = ["--master", "local-cluster[2,1,2048]", "--archives", f"{place.archive}#environment"]
    with place.process("connect-server", "spark-submit", *service, *archive, *conf, "spark-internal"):
        _wait_for(int(port))
        with place.log("connect").open("wb") as log:
            command = [sys.executable, str(JOB), *arguments, f"sc://127.0.0.1:{port}", str(place.archive)]
            subprocess.run(command, stdout=log, stderr=log, check=False, timeout=TIMEOUT_S, cwd=place.directory)
    return result(place.log("connect"))


def faults(said: dict[str, object], executors: int) -> list[str]:
    """Returns texts about wrong results."""
    places, read, copied = said["places"], said["read"], said["copied"]
    assert isinstance(places, list)
    size = sum(_size(number) for number in range(MESSAGES))
    found = [f"read {read}, not {[MESSAGES, MESSAGES, size]}"] if read != [MESSAGES, MESSAGES, size] else []
    found += [f"copied {copied}, not {MESSAGES}"] if copied != MESSAGES else []
    found += [f"tasks ran in {len(places)} places, not {executors}"] if len(places) != executors else []
    for directory, prefix, inside, compiled, compilers in places:
        found += [f"{directory}: the package is not that of the archive ({prefix})"] if not inside else []
        found += [f"{directory}: kernels are not compiled"] if not compiled else []
        found += [f"{directory}: there are compilers, {compilers}"] if compilers else []
    return found


def main() -> int:
    """Makes the archive, runs all clusters, and checks the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--archive", type=Path, help="archive of rucola spark package; made by default")
    parser.add_argument("--only", choices=[one.__name__ for one in (standalone, local_cluster, connect)])
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rucola-cluster-") as name:
        directory = Path(name)
        archive = options.archive and options.archive.resolve()
        if archive is None:
            archive = directory / "environment.tar.gz"
            subprocess.run([sys.executable, "-m", "rucola", "spark", "package", "-o", str(archive)], check=True)
        place = Place(directory, archive)
        broker = BrokerProcess(directory)
        broker.start()
        try:
            _send(broker)
            for run in (standalone, local_cluster, connect):
                if options.only in (None, run.__name__):
                    failed += _show(place, broker, run.__name__)
        finally:
            broker.stop()
    return 1 if failed else 0


def _show(place: Place, broker: BrokerProcess, name: str) -> int:
    runs = {one.__name__: one for one in (standalone, local_cluster, connect)}
    begin_s = time.monotonic()
    checkpoint = place.directory / f"checkpoint-{name}"
    try:
        said = runs[name](place, broker.namesrv, "read", str(MESSAGES), f"copy-{name}", str(checkpoint))
        wrong = faults(said, executors=2)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        wrong = [str(error)]
    print(f"{name}: {'; '.join(wrong) or 'correct'} ({time.monotonic() - begin_s:.0f} s)", flush=True)
    return len(wrong)


def _size(number: int) -> int:
    return LARGE_BODY if number % 100 == 0 else 100


def _send(broker: BrokerProcess) -> None:
    with broker.producer() as producer:
        producer.send_many(
            [Message("read", b"x" * _size(number), keys=str(number)) for number in range(MESSAGES)], timeout_ms=60_000
        )


def _wait_for(port: int) -> None:
    """Waits until a process listens on the port."""
    if not wait_for_port(port, TIMEOUT_S):
        raise RuntimeError(f"no process listens on port {port} after {TIMEOUT_S} s")


if __name__ == "__main__":
    assert shutil.which("java"), "Java 17 is needed"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Spark's processes end with this one
    sys.exit(main())
