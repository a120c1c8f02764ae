"""Writes a store and ends as told: ``python -m tests.conformance.store.write DIRECTORY PUTS.json [options]``.

A process of its own, so that it can be killed: ``--kill`` ends it with SIGKILL while the store runs, a part of the
messages not dispatched yet. PUTS.json says what was put and where it went.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from tests.conformance.store.contents import START_MS, opened, put_all, save

from rucola.testing.clock import ManualClock

UNDISPATCHED = 25


def main(arguments: list[str]) -> int:
    """Write, then stop the store or die."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.store.write", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("puts", type=Path)
    parser.add_argument("--crc", action="store_true", help="each record carries a checksum")
    parser.add_argument("--long-topic", action="store_true", help="with records of version 2")
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args(arguments)
    clock = ManualClock(START_MS)
    store = opened(options.directory, options.crc, clock)
    save(put_all(store, clock, options.long_topic, UNDISPATCHED if options.kill else 0), options.puts)
    if options.kill:
        os.kill(os.getpid(), signal.SIGKILL)
    store.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
