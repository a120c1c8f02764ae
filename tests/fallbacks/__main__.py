"""Runs tests of client, offline reader and ephemeral broker with all fallbacks forced: ``python -m
tests.fallbacks``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "tests/unit/client",
    "tests/unit/testing/test_rocketmq.py",
    "tests/unit/testing/test_virtual_clock.py",
    "tests/unit/testing/test_faults.py",
    "tests/unit/store/test_offline.py",
    "tests/unit/sync",
    "tests/golden/test_stores.py",
    "tests/scenario/test_client_broker.py",
)


def main() -> int:
    command = [sys.executable, "-m", "pytest", "-p", "tests.fallbacks.forced", "-p", "no:cacheprovider", *sys.argv[1:]]
    return subprocess.run([*command, *FILES], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
