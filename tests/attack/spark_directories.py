"""Hostile directories and the jobs of ``rucola`` in Spark: the changes of ``tests.attack.directories``, also in the
tables and targets of the jobs.

    python -m tests.attack.spark_directories --cases 150
    python -m tests.attack.spark_directories --seed 17 --cases 1

The rules are those of ``directories``. A start of Java takes ten seconds, so a long-lived process without privileges
runs most command lines one after another in one session. A tenth of the cases start the command, with a Java of its
own. What Java and the tasks write to standard error belongs to the output: there must be no stack in it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from tests.attack.directories import (
    CHANGES,
    LIMIT_S,
    MEMORY_BYTES,
    NOBODY,
    PRIVILEGED,
    Before,
    Case,
    campaign_options,
    case_of,
    open_to_all,
    own_store,
    prepare,
    run_campaign,
)

START_S = 40
"""Time for the start of Java, of its first Python workers, and of the command."""
JOBS: dict[str, str] = {
    "archive": "spark archive TABLE --store STORE",
    "archive anew": "spark archive NEW --store STORE --topic T0",
    "archive --raw": "spark archive RAW --raw --store STORE",
    "archive --raw anew": "spark archive NEW --raw --store STORE",
    "compact": "spark compact TABLE",
    "compact a raw table": "spark compact RAW",
    "restore": "spark restore RAW NEW",
    "restore --no-spark": "spark restore RAW NEW --no-spark",
    "archive --no-spark": "spark archive TABLE --store STORE --no-spark",
    "rebuild": "store rebuild STORE -c CONF --spark local[2]",
    "repair": "store repair STORE -c CONF --spark local[2]",
    "verify": "store verify STORE --spark local[2]",
    "salvage": "store salvage STORE -o NEW -c CONF --spark local[2]",
    "find": "store find STORE --topic T0 --spark local[2]",
    "stats": "store stats STORE --spark local[2]",
    "read": "",
    "read both": "",
}
"""Command lines of ``rucola``; the last two are queries of a program: a store, and a store and a table as one."""
OF_TABLES = dict.fromkeys(("archive", "archive --no-spark", "compact", "read both"), "table") | dict.fromkeys(
    ("archive --raw", "compact a raw table", "restore", "restore --no-spark"), "raw"
)
MADE_PLACES = (
    *("", "_delta_log", "_delta_log/00000000000000000000.json", "_delta_log/00000000000000000001.json", "_rucola"),
    *("_delta_log/99999999999999999999.json", "_delta_log/00000000000000000001.checkpoint.parquet", "metadata", "_log"),
    *("_delta_log/_last_checkpoint", "_rucola/1.json", "catalog.db", "topic=T0", "part=log"),
    *("topic=T0/storeDay=2023-11-14", "part=log/broker=broker-a", "part=config", "part=tail", "part=sizes"),
    *("foreign.parquet", "topic=T0/.nfs0001"),
)


@dataclass(frozen=True)
class SparkCase(Case):
    """A case of a job.

    Attributes:
        starts: whether the command is started, with a session of its own.
    """

    starts: bool = False

    def __str__(self) -> str:
        return f"{super().__str__()}{', started' if self.starts else ''}"


@cache
def sound_tables() -> dict[str, dict[str, bytes]]:
    """The files of a table of messages and of a raw table of ``own_store``."""
    from rucola.spark.archive import archive, archive_raw

    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, content in own_store().items():
            (root / "store" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "store" / name).write_bytes(content)
        archive(root / "table", store=root / "store", messages_per_commit=150)
        archive_raw(root / "raw", root / "store")
        return {
            kind: {
                str(path.relative_to(root / kind)): path.read_bytes()
                for path in (root / kind).rglob("*.*")
                if path.is_file()
            }
            for kind in ("table", "raw")
        }


def spark_case(seed: int) -> SparkCase:
    """Returns the case that belongs to a seed."""
    random = Random(f"spark {seed}")
    job = random.choice(sorted(JOBS))
    kind = OF_TABLES.get(job, "")
    one = case_of(random.randrange(1 << 30))
    store, place = one.store, one.place
    if kind or not JOBS[job] or "T0" in JOBS[job]:
        store = "ours"
        place = case_of_ours(random)
        if kind and random.random() < 0.6:
            files = sound_tables()[kind]
            # Names of data files are new in each run, so the number in the sorted list counts.
            place = random.choice(MADE_PLACES) if random.random() < 0.5 else random.choice(sorted(files))
            place = f"../{kind}/{place}".rstrip("/")
    if "NEW" in JOBS[job] and random.random() < 0.25:
        place = "../new"
    changes = [name for name in CHANGES if os.geteuid() == 0 or name not in PRIVILEGED]
    starts = bool(JOBS[job]) and random.random() < 0.1
    return SparkCase(seed, store, place, random.choice(changes), f"spark {job}", starts)


def case_of_ours(random: Random) -> str:
    """A place in our store."""
    while (one := case_of(random.randrange(1 << 30))).store != "ours":
        pass
    return one.place


def write_tables(case: SparkCase, base: Path) -> None:
    kind = OF_TABLES.get(case.command.removeprefix("spark "))
    for name, content in sound_tables()[kind].items() if kind else ():
        (base / kind / name).parent.mkdir(parents=True, exist_ok=True)
        (base / kind / name).write_bytes(content)


def arguments_of(case: SparkCase, base: Path) -> list[str]:
    """The command line after ``rucola``; for a query, its name and the directories."""
    job = case.command.removeprefix("spark ")
    names = {"STORE": "store", "TABLE": "table", "RAW": "raw", "NEW": "new", "CONF": "broker.conf"}
    if not JOBS[job]:
        return [job, str(base / "store"), str(base / "table")]
    return [str(base / names[word]) if word in names else word for word in JOBS[job].split()]


def check(case: SparkCase, worker: Worker) -> str:
    """Runs a case; returns ``done`` or ``refused``.

    Raises:
        Violation: a rule was broken.
    """
    with (
        tempfile.TemporaryDirectory(prefix="spark-directories-", dir=open_to_all()) as directory,
        tempfile.TemporaryDirectory(dir=open_to_all()) as said,
    ):
        base, output = Path(directory), Path(said, "output")
        for path in (base, Path(said)):
            path.chmod(0o777)
        write_tables(case, base)
        prepare(case, base)
        before = Before(base)
        run = worker.start_command if case.starts else worker.run
        code, text = run(arguments_of(case, base), base / "cwd", output)
        return before.judge(case, ("new", "salvaged.salvage", "new.salvage"), code, text)


class Worker:
    """A process without privileges that runs command lines in one Spark session; it is started again after it hung."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._python = public_python(directory)
        paths = [path for path in sys.path if (path and "/lib/python3" not in path) or "site-packages" in path]
        (directory / "tmp").mkdir()
        self._said = directory / "java.log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if name in ("PATH", "JAVA_HOME", "LANG")},
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "TMPDIR": str(directory / "tmp"),
            "HOME": str(directory),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LD_LIBRARY_PATH": str(directory / "python/lib"),
        }
        for path in (directory, directory / "tmp"):
            path.chmod(0o777)
        self._process: subprocess.Popen[bytes] | None = None

    def _popen(self, arguments: list[str], cwd: Path, **streams: object) -> subprocess.Popen[bytes]:
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        command = [self._python, *arguments]
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            command, cwd=cwd, env=self._environment, start_new_session=True, **user, **streams
        )

    def run(self, arguments: list[str], cwd: Path, output: Path) -> tuple[int | None, str]:
        """Runs a command line in the session; returns its exit code, None if it hung, and what it said."""
        if self._process is None:
            with self._said.open("wb") as said:
                here = ["-m", "tests.attack.spark_directories", "--worker"]
                self._process = self._popen(
                    here, self._directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
                )
            if self._answer(START_S * 2) is None:
                raise AssertionError(f"no session: {self._said.read_text()[-2000:]}")
        process, before = self._process, self._said.stat().st_size
        assert process.stdin is not None
        request = {"arguments": arguments, "cwd": str(cwd), "output": str(output)}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        code = self._answer(LIMIT_S)
        text = output.read_text(errors="replace") if output.exists() else ""
        text += self._said.read_bytes()[before:].decode(errors="replace")
        if code is None:
            self.stop()
        return code, text

    def _answer(self, limit_s: float) -> int | None:
        assert self._process is not None and self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            return None
        line = self._process.stdout.readline()
        return int(line) if line else None

    def start_command(self, arguments: list[str], cwd: Path, output: Path) -> tuple[int | None, str]:
        """Starts ``rucola``; returns as ``run`` does."""
        with output.open("wb") as said:
            process = self._popen(["-m", "rucola", *arguments], cwd, stdout=said, stderr=said)
        try:
            code: int | None = process.wait(LIMIT_S + START_S)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return code, output.read_text(errors="replace")

    def stop(self) -> None:
        """Ends the process, and the Java process that it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            self._process = None


def public_python(directory: Path) -> str:
    """Returns an interpreter that every user can start: this one, or a copy of it in ``directory``."""
    real = Path(sys.executable).resolve()
    if os.geteuid() or all(path.stat().st_mode & 1 for path in (real, *real.parents)):
        return sys.executable
    library = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    left_out = shutil.ignore_patterns("site-packages", "test", "idlelib", "ensurepip", "config-*")
    copy = directory / "python"
    shutil.copytree(Path(sys.base_prefix, library), copy / library, ignore=left_out, copy_function=_link)
    (copy / "bin").mkdir()
    shutil.copy2(real, copy / "bin" / real.name)
    for shared in Path(sys.base_prefix, "lib").glob("libpython*"):
        _link(str(shared), str(copy / "lib" / shared.name))
    return str(copy / "bin" / real.name)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@cache
def sources_are_open() -> bool:
    """Whether every user can import this source; a private directory above it prevents that."""
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in Path(__file__).resolve().parents)


@contextmanager
def running_worker() -> Iterator[Worker]:
    """A worker; its session starts with its first case."""
    with tempfile.TemporaryDirectory(prefix="spark-worker-", dir=open_to_all()) as directory:
        worker = Worker(Path(directory))
        try:
            yield worker
        finally:
            worker.stop()


def work() -> None:
    """The worker: reads command lines as JSON, writes exit codes."""
    from rucola.spark import session

    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    quiet = os.dup(2)
    spark = session.command_session("directories", master="local[2]", **{"spark.executor.pyspark.memory": "3g"})
    spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()
    spark.stop = lambda: None  # type: ignore[method-assign]
    session.command_session = lambda _name, **_options: spark  # type: ignore[assignment]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answers.write(b"0\n")
    for line in requests:
        request = json.loads(line)
        descriptor = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(descriptor, number)
        os.close(descriptor)
        os.chdir(request["cwd"])
        code = 99
        try:
            code = _run(spark, request["arguments"])
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 - the output of the case
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os.chdir("/")
        for number in (1, 2):
            os.dup2(quiet, number)
        answers.write(b"%d\n" % code)


def _run(spark: object, arguments: list[str]) -> int:
    from rucola.cli.main import main as command_line

    if not arguments[0].startswith("read"):
        return command_line(arguments)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from rucola.errors import RucolaError
    from rucola.spark.archive import topic_table

    assert isinstance(spark, SparkSession)
    try:
        if arguments[0] == "read":
            rows = spark.read.format("rocketmq").option("storePath", arguments[1]).option("topic", "T0").load()
        else:
            rows = topic_table(spark, "T0", arguments[2], store=arguments[1])
        print(rows.select("queueId", "queueOffset", "body").collect()[:3])
    except (RucolaError, PySparkException, Py4JError) as error:
        print("\n".join(line for line in str(error).splitlines() if "rucola.errors" in line) or str(error)[:300])
        return 5
    return 0


def main() -> int:
    parser = campaign_options(__doc__, cases=150)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return 0
    with running_worker() as worker:
        return run_campaign(options, lambda seed: check(spark_case(seed), worker))


if __name__ == "__main__":
    sys.exit(main())
