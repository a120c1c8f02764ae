"""``rucola store X --spark MASTER`` around Spark: options, what is imported, and how a session ends. The work itself is
in ``tests/spark/test_doctor.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from tests.golden.loader import unpack
from tests.unit.store.stores import fill, opened, with_topics

from rucola.cli.main import main
from rucola.errors import (
    DiskError,
    ForeignEntryError,
    FormatError,
    RucolaError,
    StoreDamagedError,
    TaskFailedError,
)
from rucola.runtime import extras
from rucola.spark import doctor, session
from rucola.store.verify.check import verify

ARGUMENTS = {
    "verify": ["DIR"],
    "rebuild": ["DIR", "--jobs", "1"],
    "repair": ["DIR", "--jobs", "1"],
    "salvage": ["DIR", "-o", "NEW", "--jobs", "1"],
    "find": ["DIR", "--key", "key-7"],
    "stats": ["DIR", "--jobs", "1"],
}


class PySparkError(Exception):
    """Stands for an error of PySpark."""

    __module__ = "pyspark.errors"


class Session:
    """Stands for a session of Spark: runs tasks here, in another directory. Keeps how it was started, and whether it
    was stopped.
    """

    def __init__(self) -> None:
        self.started: list[tuple[str | None, dict[str, str]]] = []
        self.stopped = 0
        self.limits: list[int] = []
        self._numbers = range(0)
        self._rows: list[SimpleNamespace] = []

    def start(self, _name: str, *, master: str | None = None, **conf: str) -> Session:
        self.started.append((master, conf))
        return self

    def stop(self) -> None:
        self.stopped += 1

    def range(self, begin: int, end: int, _step: int, _partitions: int) -> Session:
        self._numbers = range(begin, end)
        return self

    def mapInArrow(self, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> Session:  # noqa: N802
        batches = (pa.RecordBatch.from_pydict({"id": [number]}) for number in self._numbers)
        before = Path.cwd()
        os.chdir("/")
        try:
            self._rows = [SimpleNamespace(**row) for batch in work(batches) for row in batch.to_pylist()]
        finally:
            os.chdir(before)
        return self

    def limit(self, most: int) -> Session:
        self.limits.append(most)
        self._rows = self._rows[:most]
        return self

    def collect(self) -> list[SimpleNamespace]:
        return self._rows


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Session:
    """Starts no Java."""
    fake = Session()
    monkeypatch.setattr(session, "command_session", fake.start)
    return fake


@pytest.fixture
def store(tmp_path: Path) -> str:
    writer = opened(tmp_path / "store")
    fill(writer, 200)
    writer.shutdown()
    return with_topics(tmp_path / "store")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["store", *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, error = run(capsys, *arguments)
    assert (code, out) == (2, "") and error.startswith("rucola: ") and error.count("\n") == 1
    return error


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_nothing_of_spark_is_imported_without_the_option(name: str, store: str, tmp_path: Path) -> None:
    names = {"DIR": store, "NEW": str(tmp_path / "new")}
    words = ["store", name, *(names.get(word, word) for word in ARGUMENTS[name])]
    program = (
        f"import sys; from rucola.cli.main import main; assert main({words!r}) == 0; "
        "print([n for n in sys.modules if n.startswith(('rucola.spark', 'pyspark', 'py4j', 'pyarrow'))], end='')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.endswith("[]")


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "master",
    [
        *("", " ", "nowhere", "local[", "local[]", "local[0]", "local[x]", "local[2]x", "local[2,0]", "--json"),
        *("local-cluster", "local-cluster[1,1]", "spark://", "spark://a b", "http://master:7077", "YARN", "sc://host"),
    ],
)
def test_an_unknown_master_is_refused_before_java_starts(
    master: str, store: str, fake: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("verify", "rebuild"):
        error = refused(capsys, name, store, "--spark", master)
        assert "option --spark: " in error and "local[4], spark://HOST:PORT" in error
    assert not fake.started


def test_a_missing_master_is_refused(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'--spark' requires an argument" in refused(capsys, "verify", store, "--spark")


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[1]", "local[16]", "local[*]", "local[4,2]", "local[*,3]", "local-cluster[2,1,2048]"),
        *("spark://a:7077,b:7077", "k8s://https://cluster:6443", "yarn"),
    ],
)
def test_masters_of_spark_are_taken(master: str, store: str, fake: Session, capsys: pytest.CaptureFixture[str]) -> None:
    code, *_ = run(capsys, "verify", store, "--spark", master, "--conf", "spark.a=b=c", "--conf", "spark.d=")
    assert code == 0
    assert fake.started == [(master, {"spark.a": "b=c", "spark.d": ""})]
    assert fake.stopped == 1


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["rebuild", "DIR", "-j", "2"], "--jobs"),
        (["repair", "DIR", "--jobs", "1"], "--jobs"),
        (["salvage", "DIR", "-o", "NEW", "--jobs", "2"], "--jobs"),
        (["stats", "DIR", "--jobs", "2"], "--jobs"),
        (["repair", "DIR", "--undo"], "--undo"),
        (["find", "DIR", "--id", "7F00000100002A9F0000000000000000"], "--id"),
        (["find", "DIR", "--key", "k", "--no-index"], "--no-index"),
    ],
)
def test_options_for_this_machine_are_refused_with_spark(
    arguments: list[str], option: str, store: str, tmp_path: Path, fake: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [{"DIR": store, "NEW": str(tmp_path / "new")}.get(word, word) for word in arguments]
    error = refused(capsys, *words, "--spark", "local[1]")
    assert f"option {option}: " in error and "only without --spark" in error
    assert not fake.started


def test_settings_of_spark_need_it(store: str, fake: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert "option --conf: 'a=b'" in refused(capsys, "verify", store, "--conf", "a=b")
    for text in ("ab", "=b"):
        assert "KEY=VALUE" in refused(capsys, "verify", store, "--spark", "local", "--conf", text)
    assert not fake.started


def test_a_dry_run_starts_no_spark(store: str, fake: Session, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rebuild", "repair"):
        assert run(capsys, name, store, "--dry-run", "--spark", "yarn")[0] == 0
    assert not fake.started


def test_the_extra_is_named_if_it_is_missing(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "pyspark" else found(name))
    code, out, error = run(capsys, "verify", store, "--spark", "local[1]")
    assert (code, out) == (1, "")
    assert error.startswith("rucola: rucola store --spark needs pyspark: pip install 'rucola-mq[spark]'")
    assert run(capsys, "verify", store)[0] == 0


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyboardInterrupt(), 130, ""),
        (PySparkError("no master\nat scala"), 1, "rucola: the job on Spark failed: no master\n"),
        (TaskFailedError("disk gone", DiskError), 5, "rucola: the job on Spark failed: disk gone\n"),
        (TaskFailedError("a link", ForeignEntryError), 5, "rucola: the job on Spark failed: a link\n"),
        (TaskFailedError("something"), 1, "rucola: the job on Spark failed: something\n"),
        (StoreDamagedError("log", 7, "torn", "restore"), 5, "rucola: log, position 7: torn; restore\n"),
        (BrokenPipeError(), 0, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_session_ends_with_the_command(
    error: BaseException,
    code: int,
    text: str,
    store: str,
    fake: Session,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("rucola.cli.closed_output.os.dup2", lambda *_: None)  # the standard output of this process
    monkeypatch.setattr(doctor.SparkTasks, "verify", fail)
    assert main(["store", "verify", store, "--spark", "local[1]"]) == code
    assert capfd.readouterr().err == text
    assert fake.stopped == 1


@pytest.mark.few
@pytest.mark.parametrize("name", ["verify", "find", "stats"])
@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
def test_spark_gives_the_same_answers(
    name: str,
    json: list[str],
    store: str,
    tmp_path: Path,
    fake: Session,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two stores, one of RocketMQ, with damage and by a relative path."""
    monkeypatch.chdir(tmp_path)
    unpack("killed_bad_magic", tmp_path / "other")
    options = {"find": ["--since", "0", "--max", "230"], "stats": ["--by", "store,queue,tag"]}.get(name, [])
    words = [name, store, "other", *options, *json]
    here = run(capsys, *words)
    assert run(capsys, *words, "--spark", "local[1]") == here
    assert fake.limits == ([230] if name == "find" else [])
    assert here[0] == (1 if name == "verify" else 0) and str(tmp_path / "other") in here[1]


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (StoreDamagedError("log", 7, "torn", "restore"), True),
        (FormatError("record", 7, "a size", "nothing", "log"), True),
        (ForeignEntryError("log", "open", "is a link"), True),
        (DiskError("log", "read", "input/output error"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_errors_that_another_attempt_may_not_meet_are_left_to_spark(
    error: RucolaError, is_final: bool, fake: Session
) -> None:
    """Spark tries a failed task again. Other errors come back as they are, after the answers before them."""

    def work(item: str) -> Iterator[str]:
        yield item
        raise error

    found = []
    with pytest.raises(type(error)) as caught:
        found += doctor._answering(fake, work, ["one"]).collect()  # type: ignore[arg-type]
        for answer in doctor._unpacked(found):
            assert answer == "one"
    assert str(caught.value) == str(error)
    assert len(found) == (2 if is_final else 0)


def test_verify_of_several_stores(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack("killed_cq_behind", tmp_path / "bad")
    (tmp_path / "empty").mkdir()
    bad, empty = str(tmp_path / "bad"), str(tmp_path / "empty")
    for words, code in (([store, store], 0), ([store, bad], 1), ([bad, store], 1)):
        found, out, _ = run(capsys, "verify", *words, "--json")
        reports = [json.loads(line) for line in out.splitlines()]
        assert found == code and [report["path"] for report in reports] == words
    assert run(capsys, "verify", store, bad)[1].startswith(f"{store}\n")
    assert not run(capsys, "verify", store)[1].startswith(store)
    code, out, error = run(capsys, "verify", store, empty)
    assert (code, error.count("\n")) == (5, 1) and "no findings" in out
    assert "--commit-log" in refused(capsys, "verify", store, bad, "--commit-log", "x")
    assert "Missing argument" in refused(capsys, "verify")


def test_the_store_of_found_messages_is_named_once(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack("killed_bad_magic", tmp_path / "other")
    _, out, _ = run(capsys, "find", store, str(tmp_path / "other"), "--since", "0")
    assert [line for line in out.splitlines() if line.startswith(str(tmp_path))] == [store, str(tmp_path / "other")]
    assert run(capsys, "find", store, "--max", "0") == (0, "", "")


def test_copied_records_are_those_of_the_log(store: str) -> None:
    from rucola.cli.message_lines import json_lines
    from rucola.store.doctor.census import find_in, segments_of
    from rucola.store.inspect.search import MessageQuery
    from rucola.store.offline.rows import SegmentRows

    for part in segments_of([store]):
        copies = doctor._copied(MessageQuery(), part)
        copied = b"".join(json_lines(SegmentRows(memoryview(one), row, [0])) for _, one, row in copies)
        assert copied == b"".join(map(json_lines, find_in(part, MessageQuery())))
    assert verify(store).clean


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_old_name_of_a_command_leads_to_the_new_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", name, "somewhere"]) == 2
    assert capsys.readouterr().err == f"rucola: rucola spark {name} is now rucola store {name} --spark MASTER\n"
