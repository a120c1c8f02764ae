"""The end of a log from which queues and index are to be made.

What lies behind the end gets no entries, and its messages are not delivered. So an end that is too early would lose
messages that could be read again once the log is restored.
"""

from __future__ import annotations

from rucola.common.columns import RecordColumn
from rucola.errors import StoreDamagedError
from rucola.formats.message import CHECK_PHYSICAL_OFFSET
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.dispatch import Dispatcher
from rucola.store.log.log_end import scan
from rucola.store.log.mapped_file import MappedFile, readable
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.parts import StoreParts
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.recovery.marks import StoreMarks
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.recovery import Recovery

_ADVICE = "restore the file from a copy, salvage the store, or start the broker with --quarantine to serve the rest"


def check_end(store: OfflineStore, end: int, synced: int) -> None:
    """Checks the end of a log whose store RocketMQ stopped cleanly, or that has a watermark.

    Args:
        end: physical offset after the last whole record.
        synced: physical offset up to which the log was synced; 0 if it is not known.

    Raises:
        StoreDamagedError: synced bytes are missing, or a whole record that has a queue entry lies behind the end.
    """
    problem = ""
    if end < synced:
        problem = f"the log ends at physical offset {end}, yet bytes up to {synced} were synced"
    elif not synced and (behind := _record_behind(store, end)) >= 0:
        problem = f"no whole record at physical offset {end}, yet there is one at {behind}, with a queue entry"
    if problem:
        file = next((file for file in reversed(store.log.segments.files) if file.start <= end), None)
        path, start = (store.log.segments.path, end) if file is None else (file.path, file.start)
        raise StoreDamagedError(path, end - start, problem, _ADVICE)


def _record_behind(store: OfflineStore, end: int) -> int:
    """Returns the physical offset of a whole record behind ``end`` to which a queue entry leads; -1 if there is none.
    Without such an entry, or if it is older than the records before ``end``, it may be one that RocketMQ cut off after
    a crash, and before it went on.
    """
    known, newest_ms = store.log.max_offset, _newest_ms(store, end)
    try:
        for file in store.log.segments.files:
            store.log.max_offset = file.start + file.size
            for offset in store.log.record_starts(max(end, file.start), file.start + file.size):
                if _has_entry(store, file, offset, newest_ms):
                    return offset
    finally:
        store.log.max_offset = known
    return -1


def _newest_ms(store: OfflineStore, end: int) -> int:
    """Store time of the last record before ``end``, if it is in the last segment; otherwise 0."""
    file = store.log.segments.find(end - 1)
    return 0 if file is None else scan(store.log, file.start, CHECK_PHYSICAL_OFFSET).store_timestamp_ms


def _has_entry(store: OfflineStore, file: MappedFile, physical_offset: int, newest_ms: int) -> bool:
    row = store.log.row_at(physical_offset)
    if row is None or row[RecordColumn.STORE_TIMESTAMP] < newest_ms:
        return False
    at, queue_id, queue_offset = row[RecordColumn.TOPIC_POS], row[RecordColumn.QUEUE_ID], row[RecordColumn.QUEUE_OFFSET]
    topic = bytes(file.map.view[at : at + row[RecordColumn.TOPIC_LEN]]).decode("utf-8", "surrogateescape")
    return any(unit[1] == physical_offset for unit in store.units(topic, queue_id, queue_offset, queue_offset + 1))


def end_of_recovery(files: Files, root: str, store: OfflineStore, marks: StoreMarks) -> int:
    """Returns the end of the log that recovery would find in a store without a watermark. Changes nothing."""
    config, log = MessageStoreConfig(), store.log
    # The old queues are replaced by the rebuild, so nothing is derived from them.
    queues = ConsumeQueueStore(files, f"{root}/rebuild/none", store.queue_options(), log, writable=False)
    parts = StoreParts(log, queues, None, {})
    with readable():
        recovery = Recovery(files, Quarantine(files, root), parts, Dispatcher(parts, config), marks, None)
        return recovery.find_end().physical_offset
