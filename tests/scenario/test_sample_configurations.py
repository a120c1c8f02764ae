"""``rucola broker -c FILE`` with the sample configurations of RocketMQ's distribution and with files of 4.x.

Files and expected output are in ``sample_configurations.txt``. ``python -m tests.scenario.test_sample_configurations``
writes the output again, for a review of the differences.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import tempfile
from pathlib import Path
from unittest import mock

import pytest

from rucola.cli.main import main

SCRIPT = Path(__file__).with_name("sample_configurations.txt")
LONGER_ELSEWHERE = "long turn"
"""Log event that is left out of the comparison, because it depends on the machine."""


def blocks() -> dict[str, tuple[str, str]]:
    """Returns entries and expected output of each file, by its name."""
    found = {}
    for block in SCRIPT.read_text().split("\n=== ")[1:]:
        name, _, rest = block.partition("\n")
        entries, _, output = f"{rest}\n".partition("\n---\n")
        found[name] = (entries, output.strip("\n"))
    return found


def fitted(entries: str, store: Path) -> str:
    """Returns the entries with values for this machine: directories, port and name servers."""
    changes = {
        "storePathRootDir": str(store),
        "storePathCommitLog": f"{store}/commitlog",
        "listenPort": "0",
        "namesrvAddr": "",
    }
    keys = {line.partition("=")[0] for line in entries.splitlines()} | {"storePathRootDir", "listenPort"}
    return "\n".join([entries, *(f"{key}={value}" for key, value in changes.items() if key in keys)])


def output_of(entries: str, directory: Path) -> str:
    """Runs the command and stops it as soon as it serves; returns its output."""
    path, store = directory / "broker.conf", directory / "store"
    path.write_text(fitted(entries, store))
    output, log = io.StringIO(), io.StringIO()
    serves = mock.patch("rucola.cli.serve.freeze_survivors", lambda: os.kill(os.getpid(), signal.SIGTERM))
    with serves, contextlib.redirect_stdout(output), contextlib.redirect_stderr(log):
        status = main(["broker", "-c", str(path), "--json", "--log-level", "WARNING"])
    logged = [line for line in log.getvalue().splitlines() if LONGER_ELSEWHERE not in line]
    said = output.getvalue().splitlines() + logged
    return "\n".join([f"exit {status}", *(_masked(line, store) for line in said)])


def _masked(line: str, store: Path) -> str:
    line = re.sub(r"^\d{4}-\d\d-\d\dT\S+ ", "", line).replace(str(store), "STORE")
    return re.sub(r'(?<=\d:)\d+(?="[]}])', "PORT", re.sub(r'(?<="pid":)\d+', "PID", line))


@pytest.mark.few(8)
@pytest.mark.parametrize("name", blocks())
def test_the_start_says_these_lines(name: str) -> None:
    entries, expected = blocks()[name]
    # The directory is removed at once, because each of these stores has a segment of 1 GiB.
    with tempfile.TemporaryDirectory() as directory:
        assert output_of(entries, Path(directory)) == expected


def rewrite() -> None:
    """Writes the current output into the file."""
    parts = [SCRIPT.read_text().partition("\n=== ")[0].rstrip("\n") + "\n"]
    for name, (entries, _) in blocks().items():
        with tempfile.TemporaryDirectory() as directory:
            parts.append(f"{name}\n{entries}\n---\n{output_of(entries, Path(directory))}\n")
    SCRIPT.write_text("\n=== ".join(parts))


if __name__ == "__main__":
    rewrite()
