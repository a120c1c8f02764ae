"""Runs the short form in a process of its own, which may fork and has no other threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

Findings = dict[tuple[str, str, str], list[str]]
"""What broke the promise of each cell, by row, column and variant."""


def findings_of(part: str, directory: Path) -> Findings:
    """The findings of all cells of the short form.

    Args:
        part: ``consumers`` or ``producers``.
        directory: for the file of reports.
    """
    path = directory / "reports.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "tests.scenario.matrix", "--short", part, "--jobs", "1", "--json", str(path)]
    subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL)
    reports = [json.loads(line) for line in path.read_text().splitlines()]
    return {(report["row"], report["column"], report["variant"]): report["findings"] for report in reports}
