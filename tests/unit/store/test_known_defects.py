"""Defects of RocketMQ's store that were reported: each has a test, here or in another file (``ELSEWHERE``).

Numbers are those of ``docs/reference/known_defects.md``; issues of apache/rocketmq follow in parentheses. A docstring
describes the defect.
"""

from __future__ import annotations

import errno
import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from tests.golden.loader import load, unpack
from tests.golden.opening import opened as opened_case
from tests.unit.store.stores import (
    HOST,
    SEGMENT,
    config,
    crashed,
    everything,
    fill,
    message,
    opened,
    read,
    snapshot,
)

from rucola.common.columns import RecordColumn
from rucola.common.message import StoreMessage
from rucola.errors import DiskError
from rucola.formats.checkpoint import StoreCheckpoint
from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, IndexHeader
from rucola.formats.message import RECORD_HEAD
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore
from rucola.store.results import StoreState
from rucola.testing.clock import ManualClock
from rucola.testing.manual_worker import ManualWorker, manual_workers

WORKERS = ("rucola.store.log.allocate", "rucola.store.log.flush", "rucola.store.keeper")

ELSEWHERE = {
    1: "tests.unit.store.test_recovery.test_damage_in_the_middle_of_a_foreign_killed_store_cuts_there",
    4: "tests.unit.store.test_faults.test_sync_flush_shows_nothing_before_its_sync",
    5: "tests.unit.store.test_retention"
    ".test_a_store_whose_log_lost_its_begin_and_whose_queue_ends_with_an_empty_segment_opens",
    8: "tests.unit.store.test_message_store.test_query_by_key_compares_the_key_itself",
    14: "tests.unit.store.test_message_store.test_limits_of_a_message",
    16: "tests.unit.store.test_recovery.test_an_empty_last_segment_is_removed",
    17: "tests.unit.store.test_faults.test_stop_with_dispatch_behind_keeps_the_abort_marker",
    18: "tests.unit.store.test_retention.test_a_removal_that_fails_is_tried_again_and_leaves_no_hole",
    19: "tests.unit.store.test_retention.test_a_reader_keeps_what_it_holds",
    20: "tests.unit.store.test_topic_deletion.test_it_is_gone_at_once_after_a_stop_and_after_a_crash",
    21: "tests.unit.broker.test_disk_trouble.test_a_broker_whose_dispatch_fails_is_not_ready_and_tries_again",
    22: "tests.unit.store.test_topic_deletion.test_it_is_gone_at_once_after_a_stop_and_after_a_crash",
    23: "tests.unit.store.test_message_store.test_store_time_never_decreases_also_over_a_restart",
    24: "tests.unit.store.test_message_store.test_status_and_next_offset_of_reads",
    26: "tests.unit.broker.test_timer.test_units_of_records_that_are_gone",
    27: "tests.unit.broker.test_config_files.test_after_a_power_cut_at_any_step_there_is_the_old_table_or_the_new_one",
    28: "tests.unit.broker.test_config_files"
    ".test_an_empty_or_broken_table_without_a_copy_names_the_file_and_nothing_is_removed",
    29: "tests.unit.store.test_faults.test_full_disk_refuses_appends_serves_reads_and_ends_by_itself",
    32: "tests.unit.store.test_faults.test_a_failed_sync_is_never_retried_into_success",
    34: "tests.unit.store.test_retention.test_expired_segments_go_and_the_rest_reads_as_before",
    36: "tests.golden.test_recovery.test_the_queues_hold_the_units_of_the_reference",
    37: "tests.golden.test_recovery.test_the_queues_hold_the_units_of_the_reference",
    42: "tests.unit.store.test_queue_kinds.test_a_name_that_is_none_of_a_light_queue_does_not_stop_dispatch",
}


@pytest.mark.parametrize("number", ELSEWHERE)
def test_is_tested_elsewhere(number: int) -> None:
    module, _, name = ELSEWHERE[number].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


def test_a_crash_behind_a_roll_loses_nothing_of_the_segment_before(tmp_path: Path) -> None:
    """Defect 2 (1434): recovery begins at the last segment, so messages of the segment before it are missing if they
    were not dispatched.
    """
    store = opened(tmp_path / "store", message_index_enable=False)
    while store.max_offset < SEGMENT - 1000:
        store.put_message(message(store.max_offset, size=200))
    store.dispatch()
    dispatched = store.max_queue_offset(b"TopicTest", 0)
    while store.max_offset < SEGMENT:
        store.put_message(message(store.max_offset, size=200))
    path = tmp_path / "copy"
    # The files are as after a kill: the marker exists, and the queue has only what was dispatched.
    crashed(store, tmp_path / "store", path)
    store = opened(path, message_index_enable=False)
    offsets = [found.queue_offset for found in read(store, b"TopicTest", 0)]
    assert offsets == list(range(len(offsets))) and len(offsets) > dispatched + 1
    store.shutdown()


@pytest.mark.parametrize("ours", [True, False])
def test_a_checkpoint_ahead_of_the_queues_loses_no_unit(ours: bool, tmp_path: Path) -> None:
    """Defect 3 (678): a flush of the index also advances the time of the queues in the checkpoint, so queue entries
    that were lost in a crash are not restored.
    """
    store = opened(tmp_path / "store", message_index_enable=False)
    fill(store, 200)
    before = everything(store)
    path = crashed(store, tmp_path / "store", tmp_path / "copy")
    for file in path.glob("consumequeue/*/*/*"):
        data = file.read_bytes()
        file.write_bytes(data[:400] + bytes(len(data) - 400))
    late = 1 << 50
    (path / "checkpoint").write_bytes(StoreCheckpoint(late, late, late, 0, 0).encode())
    if not ours:
        (path / "rucola-watermark").unlink()
    store = opened(path, message_index_enable=False)
    assert everything(store) == before
    store.shutdown()


def test_keys_of_the_newest_index_file_are_found_after_a_crash(tmp_path: Path) -> None:
    """Defect 6 (8007, 3868): the newest index file is deleted after a crash, and only some of its keys are restored."""
    store = opened(tmp_path / "store")
    fill(store, 300, topics=1)  # three keys each: two full files and a new one
    assert len(list((tmp_path / "store" / "index").iterdir())) == 3
    path = crashed(store, tmp_path / "store", tmp_path / "copy")
    store = opened(path)
    for number in range(300):
        assert len(store.query_by_key(b"T0", b"key-%d" % number).views) == 1
    store.shutdown()


class NoIndexFiles(Files):
    """A disk without space for index files while ``full``."""

    full = False

    def create_segment(self, path: str, temporary: str, size: int, allocated: int | None = None) -> None:
        if self.full and "/index/" in path:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(self, "fallocate", self._refuse)
                super().create_segment(path, temporary, size, 4096)
        super().create_segment(path, temporary, size, allocated)

    def _refuse(self, *_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def by_hand(path: Path, files: Files) -> MessageStore:
    """Returns a store whose threads do nothing by themselves."""
    with manual_workers(*WORKERS):
        store = MessageStore(config(path), files, ManualClock(step_ms=1))
    store.load()
    store.start()
    return store


def pass_of_the_keeper(store: MessageStore) -> None:
    """Runs the store's maintenance thread (keeper) once, and then dispatch, as a broker does."""
    worker = store._keeper._worker
    assert isinstance(worker, ManualWorker)
    worker.run()
    store.dispatch()


def some(count: int) -> list[int]:
    return list(range(0, count, 7))


def found_by_key(store: MessageStore, count: int) -> list[int]:
    """Returns the numbers of the messages in ``some(count)`` that a query by key finds."""
    return [number for number in some(count) if store.query_by_key(b"T%d" % (number % 2), b"key-%d" % number).views]


def test_sends_and_deliveries_go_on_while_no_index_file_can_be_made(tmp_path: Path, caplog: Any) -> None:
    """Defect 7 (7539): for each message, the store tries again to create an index file, and each attempt leaves one
    more file on the full disk.
    """
    disk = NoIndexFiles()
    store = by_hand(tmp_path, disk)
    fill(store, 100)
    disk.full = True
    fill(store, 2400, first=100)
    for _ in range(3):
        pass_of_the_keeper(store)
    assert store.state is StoreState.RUNNING and store.dispatch_behind_bytes == 0 < store.index_behind_bytes
    assert sum(map(len, everything(store).values())) == 2500
    assert found_by_key(store, 2500) == some(2500)[: len(found_by_key(store, 2500))]
    assert len(list(tmp_path.glob("index/*"))) == 1
    assert not [name for name in os.listdir(tmp_path) if name.startswith("index-")]  # noqa: PTH208 - names
    assert sum("not found by key" in record.getMessage() for record in caplog.records) == 1
    disk.full = False
    store.dispatch()
    assert store.index_behind_bytes > 0
    pass_of_the_keeper(store)
    while (behind := store.index_behind_bytes) > 0:
        store.dispatch()
        assert store.index_behind_bytes < behind
    assert found_by_key(store, 2500) == some(2500)
    fill(store, 10, first=2500)
    assert found_by_key(store, 2510) == some(2510)
    store.shutdown()
    store = opened(tmp_path)
    assert not store.recovered and found_by_key(store, 2510) == some(2510)
    store.shutdown()


def test_keys_that_found_no_space_are_not_forgotten_by_a_restart(tmp_path: Path) -> None:
    """Consequence of defect 7: after a crash or a clean stop on a full disk, the index does not count as complete."""
    disk = NoIndexFiles()
    store = by_hand(tmp_path / "store", disk)
    disk.full = True
    fill(store, 300)
    pass_of_the_keeper(store)
    snapshot(tmp_path / "store", tmp_path / "killed")
    store.shutdown()
    again = by_hand(tmp_path / "store", disk)
    assert sum(map(len, everything(again).values())) == 300 and not found_by_key(again, 300)
    again.shutdown()
    for name in ("killed", "store"):
        store = opened(tmp_path / name)
        assert found_by_key(store, 300) == some(300)
        store.shutdown()


def test_a_stop_puts_all_keys_for_which_there_is_space(tmp_path: Path) -> None:
    """Defect 7: a stopping store writes all keys for which there is space, however far the index is behind."""
    disk = NoIndexFiles()
    store = by_hand(tmp_path, disk)
    disk.full = True
    fill(store, 2500)
    disk.full = False
    store.shutdown()
    store = opened(tmp_path)
    assert not store.recovered and found_by_key(store, 2500) == some(2500)
    store.shutdown()


def test_an_index_file_that_cannot_be_mapped_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 7: an index file that cannot be mapped stays in the directory, because it is created first."""
    store = by_hand(tmp_path, Files())
    opening = Files.map_file

    def refuse(files: Files, path: str, *rest: Any) -> FileMap:
        if "/index/" in path:
            raise DiskError(path, "map", "Cannot allocate memory")
        return opening(files, path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "map_file", refuse)
        fill(store, 10)
        for _ in range(3):
            pass_of_the_keeper(store)
    assert store.state is StoreState.RUNNING and not list(tmp_path.glob("index/*"))
    pass_of_the_keeper(store)
    assert found_by_key(store, 10) == some(10)
    store.shutdown()


def test_an_index_header_that_counts_every_put_is_accepted(tmp_path: Path) -> None:
    """Defect 9 (1987, 1713, 1807): old versions counted every key as a used slot in the header of an index file. Files
    with either count must be accepted.
    """
    case = load("many_queues")
    unpack(case.name, tmp_path)
    (path,) = tmp_path.glob("index/*")
    data = bytearray(path.read_bytes())
    header = IndexHeader.decode(data)
    position = INDEX_HEADER.position("hash_slot_count")
    data[position : position + 4] = (header.index_count - 1).to_bytes(4, "big")
    assert header.hash_slot_count != header.index_count - 1
    path.write_bytes(data)
    store = opened_case(case, tmp_path)
    entry = next(entry for entry in case.expect["log"] if entry["properties"].get("UNIQ_KEY"))
    key = entry["properties"]["UNIQ_KEY"].encode()
    assert len(store.query_by_key(entry["topic"].encode(), key).views) == 1
    store.shutdown()
    assert path.read_bytes() == data


def test_a_query_ends_in_a_chain_that_is_a_loop_and_has_a_limit(tmp_path: Path) -> None:
    """Defect 11 (7948, 8018, 9265): a query endlessly follows a chain that points back to itself, and the number of
    messages in its result has no limit.
    """
    store = opened(tmp_path)
    for number in range(100):
        store.put_message(message(number))
    store.dispatch()
    assert len(store.query_by_key(b"TopicTest", b"all", 1_000_000).views) == 64
    file = store._index.files[-1]  # type: ignore[union-attr]
    first = INDEX_HEADER.size + INDEX_SLOT.size * 100
    count = file.header().index_count
    for number in range(1, count):
        at = first + INDEX_ENTRY.size * number
        file.view[at + 16 : at + 20] = (number % (count - 1) + 1).to_bytes(4, "big")
    views = store.query_by_key(b"TopicTest", b"all", 1_000_000).views
    assert len({bytes(view) for view in views}) == len(views) <= 64
    assert len(store.query_by_key(b"TopicTest", b"key-5").views) == 1
    store.shutdown()


def test_a_body_checksum_of_zero_is_compared(tmp_path: Path) -> None:
    """Defect 12 (9121): a record whose checksum is 0 counts as a record without a checksum."""
    store = opened(tmp_path / "store", enabled_append_prop_crc=False)
    results = fill(store, 3, topics=1, queues=1)
    path = crashed(store, tmp_path / "store", tmp_path / "copy")
    position = results[1].physical_offset + RECORD_HEAD.position("body_crc")
    file = path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[position : position + 4] = bytes(4)
    file.write_bytes(data)
    (path / "rucola-watermark").unlink()
    store = opened(path)
    assert store.max_offset == results[1].physical_offset
    assert len(read(store, b"T0", 0)) == 1
    store.shutdown()


@pytest.mark.parametrize("sum_of_records", [True, False])
def test_room_for_the_checksum_is_that_of_the_records(sum_of_records: bool, tmp_path: Path) -> None:
    """Defect 13 (8669): the length of the checksum property is fixed before the configuration is read, so the sizes in
    records may be wrong.
    """
    store = opened(tmp_path, enabled_append_prop_crc=sum_of_records)
    sent = StoreMessage(b"T", 0, b"body", b"A\x01b\x02", 0, HOST)
    first, second = store.put_message(sent), store.put_message(sent)
    store.shutdown()
    store = opened(tmp_path, enabled_append_prop_crc=not sum_of_records)
    third = store.put_message(sent)
    store.dispatch()
    size = second.physical_offset - first.physical_offset
    other = store.max_offset - third.physical_offset
    assert size - other == (len(b"__CRC32#\x01") + 11) * (1 if sum_of_records else -1)
    assert [found.body for found in read(store, b"T", 0)] == [b"body"] * 3
    row = store._log.row_at(first.physical_offset)
    assert row is not None and row[RecordColumn.RECORD_SIZE] == size
    store.shutdown()


def test_a_stopped_store_opens_no_queue_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 33 (5091): a starting store maps the files of every queue, which takes minutes if there are many."""
    store = opened(tmp_path)
    fill(store, 300, topics=10, queues=10)
    before = everything(store)
    store.shutdown()
    mapped: list[str] = []
    opening = Files.map_file
    monkeypatch.setattr(
        Files, "map_file", lambda self, path, *rest: (mapped.append(path), opening(self, path, *rest))[1]
    )
    store = opened(tmp_path)
    assert mapped and not [path for path in mapped if "consumequeue" in path]
    assert everything(store) == before
    store.shutdown()


def test_two_index_files_of_one_millisecond_have_two_names(tmp_path: Path) -> None:
    """Defect 41: index files are named only after the time, so a second file in a millisecond overwrites the first."""
    store = opened(tmp_path, clock=ManualClock())
    fill(store, 300, topics=1)
    names = sorted(path.name for path in tmp_path.glob("index/*"))
    assert len(names) == 3 and int(names[2]) - int(names[0]) == 2
    assert all(len(store.query_by_key(b"T0", b"key-%d" % number).views) == 1 for number in range(300))
    store.shutdown()
