"""Load program that copies a master's log as a slave does, but dispatches nothing.

Arguments: the master's HA port, directory of a copy that has its first records, physical offset of the log's end. When
the copy has the log up to there, one JSON line says how much CPU time the process has used; the process goes on until
it is killed.
"""

from __future__ import annotations

import asyncio
import sys
import time

from bench.load_client import say
from rucola.broker.ha.copying import Copying, CopyRules
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore


async def copy(master: str, root: str, end: int) -> None:
    """Copies, and never returns."""
    config = MessageStoreConfig(store_path_root_dir=root, flush_commit_log_least_pages=0, enabled_append_prop_crc=False)
    store = MessageStore(config, Files(), SystemClock(), is_copy=True)
    store.load()
    told = False

    def appended() -> None:
        nonlocal told
        if not told and copying.end_offset >= end:
            told = True
            say({"cpu_s": time.process_time()})

    copying = Copying(store, lambda: master, lambda: None, CopyRules(), appended)
    store.listen(on_flushed=lambda: None)
    store.start()
    await copying.run()


if __name__ == "__main__":
    asyncio.run(copy(sys.argv[1], sys.argv[2], int(sys.argv[3])))
