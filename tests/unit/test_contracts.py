"""The import contracts hold, and they bite: one planted import against the arrow fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs the contracts over the packages below ``tree``/src."""
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", ROOT / ".importlinter"],
        cwd=tree / "src",
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("store/message_store.py", "import rucola.broker.broker", "Layers"),
        ("store/message_store.py", "import rucola.protocol.frame", "The store knows nothing"),
        ("remoting/server.py", "import rucola.store.message_store", "Layers"),
        ("formats/message.py", "import time", "Codecs and value types"),
        ("store/log/commit_log.py", "import os", "The store reaches disk"),
        ("broker/broker.py", "import mmap", "Files are opened"),
    ],
)
def test_planted_import_fails(tmp_path: Path, module: str, line: str, contract: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    planted = tmp_path / "src" / "rucola" / module
    planted.write_text(f"{planted.read_text()}\n{line}\n")
    result = lint_imports(tmp_path)
    assert result.returncode != 0, "the contracts let the planted import pass"
    broken = [text for text in result.stdout.splitlines() if "BROKEN" in text]
    assert any(text.startswith(contract) for text in broken), result.stdout


def test_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout
