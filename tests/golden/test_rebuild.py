"""Rebuilds queues and index of RocketMQ's stores in parallel steps. The files must equal those that our engine makes
one record after another, and RocketMQ's own files.
"""

from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree

import pytest
from tests.golden.loader import unpack
from tests.golden.opening import CASES, config_of, store_of

from rucola.common.options import options_of
from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.doctor.publish import PARTS
from rucola.store.doctor.rebuild import rebuild
from rucola.testing.clock import ManualClock

NOW_MS = 1_800_000_000_000


def contents(root: Path) -> dict[str, bytes]:
    """Returns the queue files by path, and the index files by number, without empty ones."""
    found: dict[str, bytes] = {}
    for part in PARTS:
        for number, path in enumerate(sorted(file for file in (root / part).rglob("*") if file.is_file())):
            data = path.read_bytes()
            if data.strip(b"\0"):
                found[f"index/{number}" if part == "index" else str(path.relative_to(root))] = data
    return found


SAME_LOG = ("clean_stop_", "killed_no", "killed_stale", "killed_cq", "killed_tail", "killed_zero", "async", "sync")
"""Beginnings of store names: the logs of these stores equal those of other stores."""
OTHERS = ("clean_stop_continued", "clean_stop_bad_crc_earlier")
REBUILT = [name for name in CASES if not name.startswith(SAME_LOG) or name in OTHERS]
WITHOUT_LOG = "clean_stop_log_deleted"


@pytest.mark.few(15)
@pytest.mark.parametrize("name", REBUILT)
def test_rebuilt_files_are_those_of_a_dispatch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    monkeypatch.setattr(Files, "data_sync", staticmethod(lambda _descriptor: None))
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    case = unpack(name, mine)
    unpack(name, theirs)
    for part in PARTS:
        rmtree(theirs / part, ignore_errors=True)
    store = store_of(case, config_of(case, theirs), ManualClock(NOW_MS))
    store.load()
    store.shutdown()
    known = {entry.key for entry in options_of(MessageStoreConfig)}
    options = {key: str(value) for key, value in case.case["config"].items() if key in known}
    report = rebuild(str(mine), options=options)
    assert report.published
    assert contents(mine) == contents(theirs)


def test_a_store_without_a_log_keeps_its_queues(tmp_path: Path) -> None:
    unpack(WITHOUT_LOG, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(StoreDamagedError, match="the log has no records"):
        rebuild(str(tmp_path))
    assert contents(tmp_path) == before


def test_the_kinds_of_queues_follow_from_the_files(tmp_path: Path) -> None:
    for name in ("lmq", "inner_batch_cq", "queue_ext"):
        unpack(name, tmp_path / name)
        before = contents(tmp_path / name)
        rebuild(str(tmp_path / name))
        assert contents(tmp_path / name) == before, name
