"""Writes a store and ends as requested: ``python -m tests.conformance.store.write DIRECTORY PUTS.json [options]``.

It is a separate process, so that it can be killed: ``--kill`` ends the process with SIGKILL while the store runs and
some messages are not dispatched yet. With ``--settle``, it first waits until the checkpoint covers all messages.
PUTS.json will contain the messages and their offsets.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from tests.conformance.store.contents import START_MS, STEP_MS, Put, opened, put_all, save

from rucola.formats.checkpoint import StoreCheckpoint
from rucola.testing.clock import ManualClock

UNDISPATCHED = 25
SETTLE_TIMEOUT_S = 30


def main(arguments: list[str]) -> int:
    """Writes, then stops the store or kills itself."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.store.write", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("puts", type=Path)
    parser.add_argument("--crc", action="store_true", help="add a checksum to each record")
    parser.add_argument("--long-topic", action="store_true", help="add records of version 2")
    parser.add_argument("--kinds", action="store_true", help="add batch queues, extensions and light queues")
    parser.add_argument("--several", action="store_true", help="use several directories for the log")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--settle", action="store_true")
    options = parser.parse_args(arguments)
    clock = ManualClock(START_MS)
    store = opened(options.directory, options.crc, clock, options.kinds, options.several)
    puts = put_all(store, clock, options.long_topic, UNDISPATCHED if options.kill else 0, options.kinds)
    save(puts, options.puts)
    if options.settle:
        settle(options.directory / "checkpoint", puts, clock)
    if options.kill:
        os.kill(os.getpid(), signal.SIGKILL)
    store.shutdown()
    return 0


def settle(checkpoint: Path, puts: list[Put], clock: ManualClock) -> None:
    """Waits until the checkpoint covers the last message."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while StoreCheckpoint.decode(checkpoint.read_bytes()).physic_msg_timestamp_ms < puts[-1]["storeTimestamp"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{checkpoint} does not cover the last message")
        clock.advance(STEP_MS)
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
