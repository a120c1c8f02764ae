"""A test that fails in one of several runs is named, its output is kept, and an interruption leaves nothing."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tools import repeat_tests

TINY = """
    from pathlib import Path

    import pytest

    @pytest.mark.parametrize("one", ["a - b"])
    class TestSecond:
        def test_second(self, one):
            runs = Path(__file__).with_name("runs")
            with runs.open("a") as file:
                file.write("run\\n")
            assert len(runs.read_text().splitlines()) != 2, "the second"

    def test_never():
        raise ValueError("always")
"""

ELSEWHERE = """
import sys
from pathlib import Path
from tools.repeat_tests import main
sys.exit(main(sys.argv[1:], Path("kept")))
"""
"""A run of this test by the script must not replace the output that the script keeps."""


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of pytest for what is in ``test_tiny.py``, without the plugins and options of this suite."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    return ["-p", "no:cacheprovider", "test_tiny.py"]


def test_what_fails_in_one_run_flickers(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_tiny.py").write_text(dedent(TINY))
    arguments += ["-k", "second"]
    assert repeat_tests.main(["--times", "3", "--burn", "0", *arguments], tmp_path / "kept") == 1
    *lines, times, flickers = capsys.readouterr().out.splitlines()
    assert [line.rpartition(", ")[2] for line in lines if "elapsed" in line] == [
        f"{n} failed so far" for n in (0, 0, 1)
    ]
    assert lines[2] == f"run 2 of 3 failed, 1 tests: {tmp_path}/kept/run-2.txt"
    assert times.startswith("3 runs, 1 failed; seconds: ") and "; median " in times
    name = "test_tiny.py::TestSecond::test_second[a - b]"
    assert flickers.startswith(f"flickers: {name}, failed in 1 of 3 runs, AssertionError: the second")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["run-2.txt"]
    assert "1 failed" in (tmp_path / "kept/run-2.txt").read_text()


def test_what_fails_in_each_run_does_not_flicker(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_tiny.py").write_text(dedent(TINY))
    assert repeat_tests.main(["--times", "2", "--burn", "1", *arguments], tmp_path) == 1
    always, second = capsys.readouterr().out.splitlines()[-1:-3:-1][::-1]
    assert second == "fails: test_tiny.py::test_never, failed in 2 of 2 runs, ValueError: always"
    assert always.startswith("flickers: test_tiny.py::TestSecond")


def test_runs_that_pass_and_runs_that_do_not_begin(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_tiny.py").write_text("def test_one(): pass")
    assert repeat_tests.main(["--times", "1", "--burn", "0", *arguments], tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 runs, 0 failed")
    assert repeat_tests.main(["--times", "1", "--burn", "0", *arguments, "no_such_file.py"], tmp_path) == 1
    assert capsys.readouterr().out.endswith("failed without a failed test: 1 runs\n")


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_and_the_runs_so_far_are_summed_up(
    arguments: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    os.mkfifo(tmp_path / "begun")
    (tmp_path / "test_tiny.py").write_text(
        "import os, signal\n"
        "def test_waits():\n"
        "    with open('begun', 'w') as file: file.write(str(os.getpid()))\n"
        "    signal.pause()\n"
    )
    command = [sys.executable, "-c", ELSEWHERE, "--times", "2", "--burn", "1", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(repeat_tests.ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        test = int((tmp_path / "begun").read_text())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert str(test) in children and len(children) == 2
        process.send_signal(number)
        output, _ = process.communicate()
    assert process.returncode == 130 and "\ninterrupted\n" in output
    assert (tmp_path / "kept/run-1.txt").exists()
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_it_runs_what_make_test_and_make_test_more_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(repeat_tests, "_repeat", lambda _runs, _times, given, _kept: ran.append(shlex.join(given)))
    for part in ("all", "test", "more"):
        assert repeat_tests.main(["--burn", "0", "--part", part], tmp_path) == 0
    makefile = (repeat_tests.ROOT / "Makefile").read_text()
    suite, *chosen = ran[0], ran[1].removeprefix(ran[0]), ran[2].removeprefix(ran[0])
    assert suite in makefile
    for target, one in zip(("test", "test-more"), chosen, strict=True):
        assert f"\n{target}: $(VENV)/.dev\n\t$(RUN_TESTS){one}\n".replace("'", '"') in makefile
