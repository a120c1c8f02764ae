"""Load program on our store alone, one thread. Arguments: directory, body bytes.

Each line on standard input, ``MESSAGES``, is one round: appends in batches of 64 as one read of a connection brings
them, then queues and index catch up. Their times are summed up apart, since here both run on one thread.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench.samples import HOST, TOPIC, send_batch
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus

BATCH = 64


def main(directory: str, body_bytes: int) -> None:
    """Open a store, answer rounds, close it."""
    config = MessageStoreConfig(store_path_root_dir=str(Path(directory) / "store"))
    store = MessageStore(config, Files(), SystemClock())
    store.load()
    store.start()
    try:
        print(json.dumps({"ready": True}), flush=True)
        batch = send_batch(BATCH, body_bytes)
        for line in sys.stdin:
            batches = max(1, int(line) // BATCH)
            failed, append_s, dispatch_s = 0, 0.0, 0.0
            for _ in range(batches):
                start = time.perf_counter()
                status = store.append_rows(batch.source, batch.view, batch.table, 0, BATCH, TOPIC, HOST)
                appended = time.perf_counter()
                store.dispatch()
                dispatch_s += time.perf_counter() - appended
                append_s += appended - start
                failed += 0 if status is PutMessageStatus.PUT_OK else BATCH
            facts = {"messages": batches * BATCH, "failed": failed, "seconds": append_s}
            print(json.dumps({**facts, "dispatched_seconds": append_s + dispatch_s}), flush=True)
    finally:
        store.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
