"""Runs the projects of ``examples/`` in languages other than Python, as a reader of them would.

``python -m tests.conformance.examples``. The JUnit and Go projects start ``rucola`` from the ``PATH`` and use the
official clients. Exit status: 0 if both passed, 1 if one failed, 2 if a program is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.peers.packages import PEERS, ROOT, PeerError, need

EXAMPLES = ROOT / "examples"
TIMEOUT_S = 170.0


def main() -> int:
    """Runs both projects; shows the output of a project that fails."""
    try:
        need("java", "install Java 17 to run the JUnit project")
        maven = [need("mvn", "install Maven 3.8 or newer"), "-q", "-B", f"-Dmaven.repo.local={PEERS / 'm2'}", "test"]
        go = [need("go", "install Go 1.21 or newer"), "test", "-count=1", "./..."]
    except PeerError as error:
        print(error, file=sys.stderr)
        return 2
    passed = [_run("junit", maven), _run("go", go)]
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
