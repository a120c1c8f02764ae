"""Free memory of the C heap is returned to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rucola.runtime import memory

PROGRAM = """
from pathlib import Path
from rucola.runtime.memory import trim_heap

def resident_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

text = bytes(1024 * 1024)
bytearray(text).clear()  # once a block of this size was freed, glibc puts the next ones between small blocks
blocks = [(bytearray(text[100:]), bytearray(50_000)) for _ in range(200)]
small = [behind for _, behind in blocks]
del blocks
before = resident_kib()
trim_heap()
print(before - resident_kib(), len(small))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc; only glibc keeps the memory")
def test_free_memory_between_blocks_in_use_is_returned() -> None:
    # This needs its own process, because the heap of one that ran other tests has room for most of the blocks
    # elsewhere.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) > 150 * 1024, "of 200 MiB"


def test_other_c_libraries_keep_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_library", lambda: None)
    memory.trim_heap()
