"""The extra ``lake`` alone: neither PySpark nor pandas, and no Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.arrow.stores import open_store, put

PROGRAM = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pandas", "duckdb", "pyiceberg"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
from rucola.cli.spark import run
for command in {commands!r}:
    assert run(command) == 0, command
"""


def test_archive_compact_and_restore(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, 0, 50)
    store.shutdown()
    where, table, raw = str(tmp_path / "store"), str(tmp_path / "table"), str(tmp_path / "raw")
    commands = [
        ["archive", table, "--store", where, "--no-spark"],
        ["compact", table, "--no-spark"],
        ["archive", raw, "--raw", "--store", where, "--no-spark"],
        ["restore", raw, str(tmp_path / "new"), "--no-spark"],
    ]
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environment["PATH"] = ""
    subprocess.run([sys.executable, "-c", PROGRAM.format(commands=commands)], check=True, env=environment)
    for path in (tmp_path / "store" / "commitlog").iterdir():
        assert (tmp_path / "new" / "commitlog" / path.name).read_bytes() == path.read_bytes()
