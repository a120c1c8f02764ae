"""Load program that uses only our store. Arguments: directory, body bytes, ``async`` or ``sync``, ``index`` or
``plain``.

The first output line tells how long it took to open the directory and to complete queues and index. Each line on
standard input is one round: ``put WAITERS MESSAGES`` or ``get - MESSAGES``.

With asynchronous flush, each append has 64 messages, as many as a broker usually reads at once from a connection; then
they are dispatched to queues and index. The times of appends and dispatch are summed separately, because here both run
in one thread. With synchronous flush,
there are as many senders as threads on the Java side; each waits until its message is on the disk.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from threading import Event

from bench.samples import HOST, QUEUES, TOPIC, send_batch
from rucola.protocol.frame import FrameBatch
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.store.row_run import RowRun

BATCH = 64
GET_MESSAGES = 32
GET_BYTES_MAX = 1 << 30


class Load:
    """Runs rounds on a store."""

    def __init__(self, directory: str, body_bytes: int, sync: bool, index: bool) -> None:
        config = MessageStoreConfig(
            store_path_root_dir=str(Path(directory) / "store"),
            flush_disk_type=FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH,
            message_index_enable=index,
        )
        self._flushed = Event()
        self._sync = sync
        self._batch: FrameBatch = send_batch(BATCH, body_bytes)
        begin = time.perf_counter()
        self.store = MessageStore(config, Files(), SystemClock())
        self.store.listen(on_flushed=self._flushed.set)
        self.store.load()
        self.store.start()
        self.store.dispatch()
        self.open_seconds = time.perf_counter() - begin

    def put(self, waiters: int, messages: int) -> dict[str, float]:
        """Appends messages; with synchronous flush, acknowledged messages are on the disk."""
        count = waiters if self._sync else BATCH
        failed, append_s, dispatch_s = 0, 0.0, 0.0
        for _ in range(0, messages, count):
            start = time.perf_counter()
            batch = self._batch
            status = self.store.append_rows(RowRun(batch.source, batch.view, batch.table, 0, count), TOPIC, HOST)
            if self._sync:
                self._wait()
            appended = time.perf_counter()
            self.store.dispatch()
            dispatch_s += time.perf_counter() - appended
            append_s += appended - start
            failed += 0 if status is PutMessageStatus.PUT_OK else count
        messages += -messages % count
        facts = {"messages": messages, "failed": failed, "seconds": append_s}
        return {**facts, "dispatched_seconds": append_s + dispatch_s}

    def _wait(self) -> None:
        while self.store.flushed_offset < self.store.max_offset:
            self._flushed.wait()
            self._flushed.clear()

    def get(self, messages: int) -> dict[str, float]:
        """Reads one queue after another from its start."""
        store, taken, queue = self.store, 0, 0
        start = time.perf_counter()
        while taken < messages:
            queue_offset, share = store.min_queue_offset(TOPIC, queue), 0
            while share < messages // QUEUES:
                result = store.get_message(TOPIC, queue, queue_offset, GET_MESSAGES, GET_BYTES_MAX, None)
                if not result.message_count:
                    break
                share += result.message_count
                queue_offset = result.next_offset
            taken += share
            queue = (queue + 1) % QUEUES
        return {"messages": taken, "seconds": time.perf_counter() - start}


def main(directory: str, body_bytes: str, flush: str, index: str) -> None:
    """Opens a store, runs rounds, and closes it."""
    load = Load(directory, int(body_bytes), flush == "sync", index == "index")
    try:
        print(json.dumps({"open_seconds": load.open_seconds}), flush=True)
        for line in sys.stdin:
            what, waiters, messages = line.split()
            facts = load.get(int(messages)) if what == "get" else load.put(int(waiters), int(messages))
            print(json.dumps(facts), flush=True)
    finally:
        load.store.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
