"""Runs the programs and the test of docs/tutorial.md as a reader would save and run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from rucola.testing.rocketmq import RocketMQ

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_runs_as_it_stands(tmp_path: Path) -> None:
    names = re.findall(r"[Ss]ave this as `(\w+\.py)`|`(fail\.py)`:", PAGE.read_text().replace("\n", " "))
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    files = [first or second for first, second in names]
    assert files == ["send.py", "consume.py", "fail.py", "test_shop.py"]
    with RocketMQ({"messageDelayLevel": "1s 1s 1s 1s"}) as rocketmq:
        for name, program in zip(files, programs, strict=True):
            (tmp_path / name).write_text(program.replace("127.0.0.1:9876", rocketmq.namesrv))
        sent = _run(tmp_path, "send.py").splitlines()
        assert [line.split(" queue")[0] for line in sent] == ["espresso SEND_OK", "latte SEND_OK", "filter SEND_OK"]
        consumed = _run(tmp_path, "consume.py").splitlines()
        assert sorted(consumed) == ["charged espresso", "charged filter", "charged latte"]
        assert _run(tmp_path, "fail.py").splitlines() == ["try 1", "try 2"]
    plugin = [] if _is_installed() else ["-p", "rucola.testing.plugin"]
    assert "1 passed" in _run(
        tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *plugin, "test_shop.py"
    )


def _run(directory: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "rucola.testing.plugin" for point in entry_points(group="pytest11"))
