"""``python -m bench.fill_memory DIRECTORY``: fills free memory with page cache, as on a machine that runs for a while.

A virtual machine gets a page from its host when it first touches it, and gives it back soon after it was freed. Where
these figures come from, a page that comes from the host costs 10 µs, one that the machine's own page cache gives up
1.5 µs. Whoever happens to take a fresh page pays; a broker takes one for each few messages. With the page cache full,
both sides take pages that the machine has. What a measurement deletes at its end is free again, so each begins so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.peers.packages import ROOT

PIECE_BYTES = 1 << 20
TIMEOUT_S = 240.0
ENOUGH_BYTES = 1 << 30
"""Less than that is not worth filling: the system keeps some free itself."""


def fill_memory(directory: str) -> str:
    """Fill it from a process of its own, with a file in ``directory`` that stays; what was done, for people."""
    command = [sys.executable, "-m", "bench.fill_memory", directory]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout.strip()


def free_bytes() -> int:
    """Memory nobody uses, not even as page cache."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemFree":
            return int(value.split()[0]) * 1024
    return 0


def main(directory: str) -> None:
    """Read so many zeros from a new file of holes as there is free memory; nothing is written to the disk."""
    size = free_bytes() // PIECE_BYTES * PIECE_BYTES
    if size < ENOUGH_BYTES:
        print("memory is full of page cache")
        return
    piece = bytearray(PIECE_BYTES)
    begin = time.perf_counter()
    descriptor, _ = tempfile.mkstemp(prefix="fill-", dir=directory)
    os.ftruncate(descriptor, size)
    for position in range(0, size, PIECE_BYTES):
        os.preadv(descriptor, [piece], position)
    os.close(descriptor)
    print(f"{size / 2**30:.1f} GiB of free memory filled with page cache in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1])
