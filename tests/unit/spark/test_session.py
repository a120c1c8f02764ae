"""The function that creates a session: how it checks the machine's Java, and how it starts Python workers."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rucola.errors import MissingProgramError
from rucola.spark import session
from rucola.spark.session import check_java, java_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("Error: no version here", None),
    ],
)
def test_java_version(text: str, version: int | None) -> None:
    assert java_version(text) == version


def test_missing_java_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingProgramError) as caught:
        check_java()
    assert str(caught.value).startswith("Java is needed, found none: install Java 17")
    assert "\n" not in str(caught.value)


def test_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingProgramError, match="found version 11"):
        check_java()


def test_workers_start_from_the_installed_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with session._quick_workers():
        home = Path(os.environ["SPARK_HOME"])
        assert (home / "bin" / "spark-submit").exists()
        assert list((home / "jars").glob("spark-core_*.jar"))
        assert not (home / "python").exists()
    assert "SPARK_HOME" not in os.environ
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with session._quick_workers():
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


@pytest.mark.parametrize(
    ("submitted", "master", "used"),
    [
        (False, None, "local[*]"),
        (False, "local[1]", "local[1]"),
        (False, "spark://one:7077", "spark://one:7077"),
        (True, None, None),
        (True, "local[3]", "local[3]"),
    ],
)
def test_a_command_keeps_the_master_of_spark_submit(
    submitted: bool, master: str | None, used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster, and under ``spark-submit``, the session sets no address that only this machine knows."""
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    monkeypatch.setattr(session, "check_java", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda self: dict(self._options))
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    if submitted:
        monkeypatch.setenv(session.GATEWAY, "1")
    options: Any = session.command_session("one", master=master, **{"spark.x": "1"})
    assert options.get("spark.master") == used
    assert options["spark.x"] == "1"
    assert ("spark.driver.host" in options) is (not submitted and str(used).startswith("local"))
    assert options.get("spark.log.level") == (None if submitted else "OFF")
    again: Any = session.command_session("one", master=master, **{"spark.log.level": "INFO"})
    assert again["spark.log.level"] == "INFO"


def test_a_command_shows_no_stack_of_py4j(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """At Ctrl-C, py4j logs through the root logger."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "filters", [])
    monkeypatch.setattr(session, "local_session", lambda *_, **__: None)
    session.command_session("one")
    for file, is_shown in (("java_gateway.py", False), ("clientserver.py", False), ("sink.py", True)):
        root.handle(root.makeRecord("root", logging.ERROR, file, 1, "while sending command", (), None))
        assert bool(caplog.records) is is_shown
