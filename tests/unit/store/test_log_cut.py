"""Plans of a cut that no replica has written: the start is refused, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.stores import contents, fill, opened

from rucola.errors import StoreDamagedError

PLAN = "commitlog/rucola-cut"


@pytest.mark.parametrize(
    "plan",
    [
        b"",
        b"{}",
        b"[1, 2, 3]",
        b'{"cut_offset": -1, "kept_bytes_max": 0, "is_kept": false}',
        b'{"cut_offset": 0, "kept_bytes_max": -1, "is_kept": false}',
        b'{"cut_offset": "x", "kept_bytes_max": 0, "is_kept": false}',
        b'{"cut_offset": null, "kept_bytes_max": 0, "is_kept": false}',
        b'{"cut_offset": 1e999, "kept_bytes_max": 0, "is_kept": false}',
        b'{"cut_offset": 0, "kept_bytes_max": 0}',
        b"[" * 100_000,
        b"\xff\x00",
    ],
)
def test_a_plan_that_cannot_be_one(tmp_path: Path, plan: bytes) -> None:
    store = opened(tmp_path)
    fill(store, 300)
    store.shutdown()
    (tmp_path / PLAN).write_bytes(plan)
    before = contents(tmp_path)
    with pytest.raises(StoreDamagedError, match="rucola-cut"):
        opened(tmp_path)
    assert contents(tmp_path) == before


def test_what_is_not_kept_yet_is_kept(tmp_path: Path) -> None:
    """Only ``true`` says that the bytes behind the cut are in ``quarantine/`` and may go."""
    store = opened(tmp_path)
    results = fill(store, 300)
    end = results[200].physical_offset
    store.shutdown()
    plan = b'{"cut_offset": %d, "kept_bytes_max": 1000000, "is_kept": "false"}' % end
    (tmp_path / PLAN).write_bytes(plan)
    store = opened(tmp_path)
    assert store.max_offset == end
    store.shutdown()
    assert any(file.stat().st_size for file in (tmp_path / "quarantine").iterdir())
    assert not (tmp_path / PLAN).exists()
