"""``rucola lab`` as users run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rucola.cli.main import main
from rucola.lab import workbench
from rucola.lab.course import LESSONS
from rucola.runtime.files import Files

Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *arguments: str) -> tuple[int, str]:
    code = main(["lab", *arguments])
    output, error = capsys.readouterr()
    assert output == ""
    assert error.startswith("rucola: ") and error.count("\n") == 1 and "Traceback" not in error
    return code, error


def test_list(capsys: Capture) -> None:
    assert main(["lab", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [lesson["name"] for lesson in listed] == list(LESSONS)
    assert all(set(lesson) == {"name", "title"} and lesson["title"] for lesson in listed)
    assert main(["lab", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(lesson["name"] in printed and lesson["title"] in printed for lesson in listed)


def test_run_prints_tables_and_verdicts_and_writes_the_picture(tmp_path: Path, capsys: Capture) -> None:
    arguments = ["smallest-store", "--size", "small", "--out", str(tmp_path / "out"), "--dir", str(tmp_path)]
    assert main(["lab", "run", *arguments]) == 0
    printed = capsys.readouterr()
    assert "Append one message, µs" in printed.out and "60 lines of Python" in printed.out
    assert "Measured:" in printed.out and "Holds." in printed.out
    picture = tmp_path / "out" / "smallest-store.png"
    assert f"picture: {picture}" in printed.out and picture.read_bytes().startswith(b"\x89PNG")
    assert f"up to 80 MiB in {tmp_path}" in printed.err and "removed at the end" in printed.err
    assert "5 repetitions done" in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_moment_of_the_crash_lesson(capsys: Capture) -> None:
    assert main(["lab", "run", "crash", "--moment", "39"]) == 0
    printed = capsys.readouterr().out
    assert "Power fails at moment 39" in printed and "nothing lost" in printed and "all lost" in printed
    code, error = refused(capsys, "run", "crash", "--moment", "1")
    assert code == 2 and "'1'" in error and "30 to" in error
    code, error = refused(capsys, "run", "group-commit", "--moment", "1")
    assert code == 2 and "crash" in error


def test_unknown_lesson(capsys: Capture) -> None:
    code, error = refused(capsys, "run", "kafka")
    assert code == 2 and "'kafka'" in error
    assert all(name in error for name in LESSONS)


def test_unknown_size_and_directory(capsys: Capture, tmp_path: Path) -> None:
    code, error = refused(capsys, "run", "crash", "--size", "huge")
    assert code == 2 and "small, normal, large" in error
    code, error = refused(capsys, "run", "crash", "--dir", str(tmp_path / "missing"))
    assert code == 2 and str(tmp_path / "missing") in error


def test_a_place_that_cannot_be_written_is_told_before_measuring(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rucola.cli.lab.has_no_disk", lambda directory: False)
    (tmp_path / "file").touch()
    arguments = ["--dir", str(tmp_path), "--out", str(tmp_path / "file")]
    for command in (["run", "smallest-store"], ["report"]):
        code, error = refused(capsys, *command, *arguments)
        assert code == 6 and str(tmp_path / "file") in error
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, error = refused(capsys, "report", "--dir", str(tmp_path), "--out", str(tmp_path / "o"))
    assert code == 6 and "no permission" in error


def test_no_space(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "disk_usage", lambda self, path: (0, 5 << 20))
    code = main(["lab", "run", "stream-map", "--size", "small", "--dir", str(tmp_path), "--out", str(tmp_path / "o")])
    error = capsys.readouterr().err
    assert code == 6
    assert "96 MiB" in error and "5 MiB are free" in error and "--dir" in error and str(tmp_path) in error
    assert [path.name for path in tmp_path.iterdir()] == ["o"]


def test_a_disk_that_becomes_full_ends_with_one_line(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    code = main(["lab", "run", "stream-map", "--size", "small", "--dir", str(tmp_path), "--out", str(tmp_path / "o")])
    error = capsys.readouterr().err
    assert code == 6 and "lesson stream-map failed: No space left on device" in error
    assert "Traceback" not in error and [path.name for path in tmp_path.iterdir()] == ["o"]


def test_without_matplotlib_nothing_is_measured(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, error = refused(capsys, "run", "crash", "--dir", str(tmp_path))
    assert code == 1 and "matplotlib" in error and "rucola-mq[lab]" in error
    assert main(["lab", "list"]) == 0


def test_files_in_memory_are_told(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.lab.machine.file_system", lambda directory: "tmpfs")
    main(["lab", "run", "smallest-store", "--size", "small", "--dir", str(tmp_path), "--out", str(tmp_path / "o")])
    assert "is a file system in memory" in " ".join(capsys.readouterr().err.split())


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_removes_its_files(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rucola", "lab", "run", "stream-map", "--size", "large", "--dir", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not list(tmp_path.glob("rucola-lab-*/*/log")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(number)
        output, error = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert output == "" and "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["rucola-lab"], "pictures are written there"


def test_the_room_is_removed_when_the_lesson_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), workbench.room("x", 1, tmp_path, lambda text: None) as room:
        (room / "file").touch()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
