"""A slave counts as caught up only when the last entry of each queue is there."""

from __future__ import annotations

from pathlib import Path

from bench import catch_up
from bench.catch_up import ENTRIES, ENTRY_BYTES, QUEUES, TOPICS


def test_all_queues_must_have_their_last_entry(tmp_path: Path) -> None:
    each = ENTRIES + 3
    messages = each * TOPICS * QUEUES
    paths = [
        tmp_path / "consumequeue" / f"topic-{topic:03d}" / str(queue) / f"{ENTRIES * ENTRY_BYTES:020d}"
        for topic in range(TOPICS)
        for queue in range(QUEUES)
    ]
    for path in paths:
        assert not catch_up._has_queues(tmp_path, messages)
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(2 * ENTRY_BYTES) + b"\x01" * ENTRY_BYTES + bytes(ENTRY_BYTES))
    assert catch_up._has_queues(tmp_path, messages)
    paths[-1].write_bytes(b"\x01" * 2 * ENTRY_BYTES + bytes(2 * ENTRY_BYTES))
    assert not catch_up._has_queues(tmp_path, messages)
