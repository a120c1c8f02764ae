"""The audit log: written before and after a change, rotated, and readable after a kill."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rucola.console import audit
from rucola.console.audit import AuditLog
from rucola.errors import DiskError
from rucola.testing.clock import ManualClock


def log_in(folder: Path, **options: int) -> AuditLog:
    return AuditLog(str(folder), ManualClock(), **options)


def test_a_change_has_a_line_before_and_a_line_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((tmp_path / "audit.jsonl").stat().st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    log = log_in(tmp_path)
    identity = log.begin("alice", "10.0.0.1", "prod", "topic", {"subject": "orders"})
    size = (tmp_path / "audit.jsonl").stat().st_size
    assert size in synced, "the line is not synced before the change"
    log.end(identity, [{"target": "broker-a", "outcome": "done"}])
    (entry,) = log.latest(10)
    assert (entry["account"], entry["peer"], entry["cluster"]) == ("alice", "10.0.0.1", "prod")
    assert entry["what"] == {"subject": "orders"} and entry["results"] == [{"target": "broker-a", "outcome": "done"}]
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_killed_change_has_no_results(tmp_path: Path) -> None:
    log_in(tmp_path).begin("", "", "prod", "topic", {"subject": "orders"})
    assert log_in(tmp_path).latest(1)[0]["results"] is None


def test_a_torn_line_hides_only_itself(tmp_path: Path) -> None:
    log_in(tmp_path).begin("", "", "prod", "topic", {"subject": "first"})
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"id": "7", "event": "beg')
    log = log_in(tmp_path)
    log.begin("", "", "prod", "topic", {"subject": "second"})
    assert [one["what"]["subject"] for one in log.latest(9)] == ["second", "first"]


def test_files_are_rotated_and_bounded(tmp_path: Path) -> None:
    log = log_in(tmp_path, file_bytes_max=2_000)
    for number in range(100):
        log.end(log.begin("", "", "prod", "topic", {"subject": str(number)}), [])
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == audit.FILES_MAX and all(path.stat().st_size < 2_400 for path in tmp_path.iterdir())
    shown = [int(one["what"]["subject"]) for one in log.latest(30)]
    assert shown == list(range(99, 69, -1)), "the newest first, across files"
    assert all(one["results"] == [] for one in log.latest(30)), "a result in another file than its beginning is lost"


def test_a_long_change_is_cut_not_refused(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.begin("alice", "", "prod", "resend", {"steps": ["x" * audit.LINE_BYTES_MAX]})
    (line,) = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert json.loads(line)["account"] == "alice" and json.loads(line)["cut"] > audit.LINE_BYTES_MAX


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskError, match="audit log"):
        log_in(tmp_path).begin("", "", "prod", "topic", {})
    assert not (tmp_path / "elsewhere").exists()
