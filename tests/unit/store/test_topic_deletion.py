"""How long the notes about deleted topics are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.runtime.files import Files
from rucola.store.topic_deletion import TopicDeletion


@pytest.mark.parametrize(
    ("min_offset", "needed_since_ms", "kept"),
    [(99, 0, True), (99, 8000, True), (100, 7000, True), (100, 7001, False), (200, 0, True), (200, 9000, False)],
)
def test_a_note_is_kept_as_long_as_records_or_pops_from_before_are_possible(
    tmp_path: Path, min_offset: int, needed_since_ms: int, kept: bool
) -> None:
    """A checkpoint of a pop outlives the log segment of its pop, because it is stored again while it waits."""
    deletion = TopicDeletion(Files(), str(tmp_path))
    deletion.begin(b"T", 100, 7000)
    deletion.finish(b"T")
    deletion.resumed(min_offset, 1000, needed_since_ms)
    deletion.load()
    assert (deletion.times_ms, deletion.newest_ms) == (({b"T": 7000}, 7000) if kept else ({}, 0))
