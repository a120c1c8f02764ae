"""Runs the examples in languages other than Python, as a reader would: ``python -m tests.conformance.examples``.

The JUnit and Go projects of ``examples/`` start ``rucola`` from the ``PATH`` and use the official clients. The programs
of the page ``docs/rocketmq5.md`` run, unchanged, against ``rucola up`` on the port that they name. Exit status: 0 if
all passed, 1 if one failed, 2 if a program is missing, cannot be built, or the port is taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.page_programs import run_programs
from tools.peers.packages import PEERS, ROOT, PeerError, need

EXAMPLES = ROOT / "examples"
TIMEOUT_S = 170.0


def main() -> int:
    """Runs all examples; shows the output of one that fails."""
    try:
        need("java", "install Java 17 to run the JUnit project")
        maven = [need("mvn", "install Maven 3.8 or newer"), "-q", "-B", f"-Dmaven.repo.local={PEERS / 'm2'}", "test"]
        go = [need("go", "install Go 1.21 or newer"), "test", "-count=1", "./..."]
        passed = [_run("junit", maven), _run("go", go), run_programs()]
    except PeerError as error:
        print(error, file=sys.stderr)
        return 2
    return int(not all(passed))


def _run(project: str, command: list[str]) -> bool:
    """Whether the tests of a copy of ``project`` pass."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="rucola-examples-") as directory:
        copy = Path(shutil.copytree(EXAMPLES / project, Path(directory) / project))
        ended = subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    print(f"examples/{project}: {'failed' if ended.returncode else 'passed'}", flush=True)
    if ended.returncode:
        print(ended.stdout[-3000:] + ended.stderr[-3000:], flush=True)
    return not ended.returncode


if __name__ == "__main__":
    sys.exit(main())
