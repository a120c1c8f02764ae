"""Returns free memory of the C heap."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rucola.runtime import memory

MIB = 1024 * 1024


def resident_bytes() -> int:
    """Memory of this process without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc; only glibc keeps the memory")
def test_free_memory_between_blocks_in_use_is_returned() -> None:
    text = bytes(MIB)
    bytearray(text).clear()  # once a block of this size was freed, glibc puts the next ones between small blocks
    blocks = [(bytearray(text[100:]), bytearray(50_000)) for _ in range(200)]
    small = [behind for _, behind in blocks]
    del blocks
    before = resident_bytes()
    memory.trim_heap()
    assert before - resident_bytes() > 50 * MIB
    assert len(small) == 200


def test_other_c_libraries_keep_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_library", lambda: None)
    memory.trim_heap()
