"""The import contracts are kept, and they report each forbidden import that a test adds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs the import contracts over the packages below ``tree``/src."""
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", ROOT / ".importlinter"],
        cwd=tree / "src",
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


PLANTED = [
    ("store/message_store.py", "rucola.broker.broker", "Layers"),
    ("store/message_store.py", "rucola.protocol.frame", "The store knows nothing"),
    ("remoting/server.py", "rucola.store.message_store", "Layers"),
    ("formats/message.py", "time", "Codecs and value types"),
    ("store/log/commit_log.py", "os", "The store reaches disk"),
    ("broker/broker.py", "mmap", "Files are opened"),
    ("broker/broker.py", "rucola.lab.readings", "The laboratory"),
    ("arrow/scanner.py", "pyspark", "Arrow readers"),
    ("lab/engine.py", "rucola.testing.clock", "Test helpers"),
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Adds every import of ``PLANTED`` to a copy of the sources; returns the result of the check of this copy."""
    tree = tmp_path_factory.mktemp("planted")
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    for module, imported, _ in PLANTED:
        path = tree / "src" / "rucola" / module
        path.write_text(f"{path.read_text()}\nimport {imported}\n")
    return lint_imports(tree)


@pytest.mark.parametrize(("module", "imported", "contract"), PLANTED)
def test_planted_import_fails(
    planted: subprocess.CompletedProcess[str], module: str, imported: str, contract: str
) -> None:
    assert planted.returncode != 0, "the contracts let the planted imports pass"
    importer = "rucola." + module.removesuffix(".py").replace("/", ".")
    _, *parts = re.split(r"\n(.+)\n-{3,}\n", planted.stdout)  # a heading, then the lines below it
    reports = [text for name, text in zip(parts[::2], parts[1::2], strict=True) if name.startswith(contract)]
    assert any(f"{importer} -> {imported} (l." in report for report in reports), planted.stdout


def test_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout
