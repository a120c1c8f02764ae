"""``python -m bench.fill_memory DIRECTORY``: fills free memory with page cache, as on a machine that has run for a
while.

A virtual machine gets a page from its host at the first access, and returns the page soon after freeing it. On the
machine of these figures, a page from the host costs 10 µs, and a page from the machine's own page cache costs 1.5 µs.
The process that first uses a page pays this cost, and a broker uses a new page for every few messages. With a full page
cache, both sides of a comparison use pages that the machine already has. A measurement frees pages when it deletes its
files, so memory is filled before each measurement.
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
"""Free memory in bytes that need not be filled, because the system keeps some free itself."""


def fill_memory(directory: str) -> str:
    """Fills the page cache: a separate process reads a new file, which stays in ``directory``. Returns a line for the
    user.
    """
    command = [sys.executable, "-m", "bench.fill_memory", directory]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout.strip()


def free_bytes() -> int:
    """Returns the bytes of memory that nothing uses, not even the page cache."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemFree":
            return int(value.split()[0]) * 1024
    return 0


def main(directory: str) -> None:
    """Reads as many zeros from a new sparse file as there is free memory; nothing is written to the disk."""
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
