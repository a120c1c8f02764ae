"""Which versions of Java the main job accepts, and the line that it prints if none is installed."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from demo.flights import java


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ("command not found", None),
        ("", None),
    ],
)
def test_major_version(text: str, major: int | None) -> None:
    assert java.major_version(text) == major


def _fake_java(directory: Path, script: str) -> None:
    directory.mkdir(parents=True)
    program = directory / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("""echo 'openjdk version "17.0.1"' >&2""", None),
        ("""echo 'openjdk version "21"' >&2""", None),
        ("""echo 'openjdk version "11.0.2"' >&2""", "is Java 11, too old for Spark 4"),
        ("exit 3", "-version failed with exit 3"),
    ],
)
def test_java_of_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str | None) -> None:
    _fake_java(tmp_path / "jdk" / "bin", script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    problem = java.java_problem()
    if says is None:
        assert problem is None
    else:
        assert problem is not None
        assert says in problem
        assert "openjdk-17-jre-headless" in problem


def test_wrong_java_home_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert (java.java_problem() or "").startswith(f"JAVA_HOME={tmp_path} has no bin/java")


def test_missing_java_is_one_line_and_exit_2(tmp_path: Path) -> None:
    """The program runs without any installed package, as in ``make demo``, and without Java in PATH."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", java.__file__],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == java.EXIT_NO_JAVA
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("demo: Java not found: Spark needs it; install Java 17 or newer")
