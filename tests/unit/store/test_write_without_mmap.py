"""A log written by write calls has the same bytes as a mapped log, and a failed call leaves no trace. This also holds
if only appends of many bytes use calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import HOST, SEGMENT, config, contents, everything, fill, message, opened, snapshot

from rucola.common.columns import ROW_WIDTH, FrameColumn, new_table
from rucola.errors import DiskError, DiskFullError
from rucola.formats.message import fill_row
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType
from rucola.store.log import commit_log
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus, StoreState
from rucola.store.row_run import RowRun
from rucola.testing.clock import ManualClock
from rucola.testing.manual_worker import ManualWorker, manual_workers

WRITTEN_BYTES = {"all appends": 1 << 40, "appends of any size": 0, "large appends": 3000}
"""From how many bytes on an append uses calls without ``writeWithoutMmap``; the first one tests the option."""
WORKERS = ("rucola.store.log.allocate", "rucola.store.log.flush", "rucola.store.keeper")


@pytest.fixture(params=WRITTEN_BYTES, autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(commit_log, "_WRITTEN_BYTES", WRITTEN_BYTES[request.param])
    monkeypatch.setattr(commit_log, "_WRITTEN_BODY_BYTES", 0)
    return str(request.param)


def uses_option() -> bool:
    return WRITTEN_BYTES["all appends"] == commit_log._WRITTEN_BYTES


def writing(path: Path, *, calls: bool = True, clock: ManualClock | None = None, **options: Any) -> MessageStore:
    """Returns a store whose threads do nothing by themselves."""
    with manual_workers(*WORKERS):
        store = MessageStore(
            config(path, write_without_mmap=calls and uses_option(), **options),
            Files(),
            clock or ManualClock(step_ms=1),
        )
    store.load()
    store.start()
    return store


def put_rows(store: MessageStore, numbers: range, size: int = 900, illegal: int = -1) -> list[int]:
    """Puts several messages at once; returns the physical offset of each, -1 for messages that were not stored."""
    source, table = bytearray(), new_table(len(numbers))
    for row, number in enumerate(numbers):
        one = message(number, queue_id=number % 3, size=size)
        fill_row(table, row, one, len(source))
        source += one.body + one.properties
        if row == illegal:
            table[row * ROW_WIDTH + FrameColumn.QUEUE_ID] = -5
    store.append_rows(RowRun(source, memoryview(source), table, 0, len(numbers)), b"TopicTest", HOST)
    return [table[row * ROW_WIDTH + FrameColumn.PHYSICAL_OFFSET] for row in range(len(numbers))]


def keeper_pass(store: MessageStore) -> None:
    assert isinstance(store._keeper._worker, ManualWorker)
    store._keeper._worker.run()


@pytest.mark.few
@pytest.mark.parametrize("flush", FlushDiskType)
def test_the_bytes_are_those_written_through_a_map(flush: FlushDiskType, tmp_path: Path) -> None:
    places = []
    for name, calls in (("map", False), ("calls", True)):
        store = writing(tmp_path / name, calls=calls, clock=ManualClock(), flush_disk_type=flush)
        placed = [result.physical_offset for result in fill(store, 300)]
        placed += put_rows(store, range(100), illegal=7)
        for number in range(60):
            batch = [message(number, queue_id=0, size=2000 + number * 7) for _ in range(4)]
            placed += [result.physical_offset for result in store.put_messages(batch)]
        assert store._flush.flush()
        store.dispatch()
        store.shutdown()
        places.append(placed)
    assert places[0] == places[1] and places[0].count(-1) == 1
    through_map, by_calls = (contents(tmp_path / name) for name in ("map", "calls"))
    names = {name for name in through_map if not name.startswith(("index", "rucola", "checkpoint"))}
    assert sum(name.startswith("commitlog") for name in names) > 5
    assert {name: by_calls[name] for name in names} == {name: through_map[name] for name in names}


def test_a_run_larger_than_the_memory_for_it(tmp_path: Path) -> None:
    store = writing(tmp_path, mapped_file_size_commit_log=4 << 20)
    placed = put_rows(store, range(40), size=10_000)
    assert store.put_message(message(40, size=1_500_000)).status is PutMessageStatus.PUT_OK
    assert placed == sorted(placed) and -1 not in placed
    store.dispatch()
    bodies = [body for queue in everything(store).values() for _, _, body in queue]
    assert sorted(map(len, bodies)) == [10_000] * 40 + [1_500_000]
    store.shutdown()


def test_answered_messages_are_in_the_file_when_the_process_ends(tmp_path: Path) -> None:
    # A log written by write calls ignores the option of the pool.
    store = writing(tmp_path / "store", transient_store_pool_enable=uses_option())
    fill(store, 400)
    assert store.max_offset > SEGMENT and store._log.pool is None
    kept = everything(store)
    snapshot(tmp_path / "store", tmp_path / "killed")
    store.shutdown()
    for name in ("killed", "store"):
        again = opened(tmp_path / name, write_without_mmap=True)
        assert again.recovered is (name == "killed") and everything(again) == kept
        fill(again, 5)
        again.shutdown()


class Refusing:
    """Lets ``passed`` writes succeed. Each of the next writes stores a part and raises one of ``errors``; the parts
    become smaller.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *errors: type[DiskError], passed: int = 0) -> None:
        self.calls, write = 0, FileMap.write
        each = iter(errors)

        def refuse(segment: FileMap, position: int, content: bytes | memoryview) -> None:
            self.calls += 1
            error = next(each, None) if self.calls > passed else None
            if error is None:
                return write(segment, position, content)
            write(segment, position, content[: len(content) * 9 // 10 // (self.calls - passed)])
            raise error(segment.path, "write", "refused")

        patch.setattr(FileMap, "write", refuse)


@pytest.mark.few
@pytest.mark.parametrize(("rolls", "passed"), [(False, 0), (True, 0), (True, 1)])
def test_a_full_disk_refuses_and_ends_by_itself(
    rolls: bool, passed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = writing(tmp_path / "store")
    fill(store, 30)
    while rolls and store.max_offset < SEGMENT - 2000:
        put_rows(store, range(1))
    store.dispatch()
    end, before = store.max_offset, everything(store)
    with monkeypatch.context() as patch:
        Refusing(patch, DiskFullError, passed=passed)
        placed = put_rows(store, range(100, 110))
    stored = store.max_offset
    # Without the option, the record that ends a segment needs no call.
    assert end < stored < SEGMENT + (not uses_option()) if passed else stored == end
    assert store.state is StoreState.DISK_FULL and put_rows(store, range(1)) == [-1]
    snapshot(tmp_path / "store", tmp_path / "then")
    keeper_pass(store)
    assert store.state is StoreState.RUNNING
    assert put_rows(store, range(200, 210), size=700)[0] >= stored
    store.dispatch()
    offsets = {name: len(found) for name, found in everything(store).items()}
    assert placed[-1] == -1
    assert sum(offsets.values()) == sum(map(len, before.values())) + 20 - placed.count(-1)
    assert all(store.max_queue_offset(*name) == count for name, count in offsets.items())
    store.shutdown()
    assert not (tmp_path / "store" / "abort").exists()
    again = opened(tmp_path / "store")
    assert {name: len(found) for name, found in everything(again).items()} == offsets
    again.shutdown()
    # Refused messages are not in the store, not even after the end of the log.
    log = b"".join(path.read_bytes() for path in sorted((tmp_path / "then" / "commitlog").iterdir()))
    assert not log[stored:].strip(b"\0")
    then = opened(tmp_path / "then")
    assert then.max_offset == stored and all(everything(then)[name] == found for name, found in before.items() if found)
    then.shutdown()


def test_bytes_left_on_a_full_disk_are_erased_before_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = writing(tmp_path / "store")
    fill(store, 30)
    end = store.max_offset
    with monkeypatch.context() as patch:
        Refusing(patch, *[DiskFullError] * 4)
        for _ in range(2):
            assert put_rows(store, range(5)) == [-1] * 5
            assert store.state is StoreState.DISK_FULL
            keeper_pass(store)
        snapshot(tmp_path / "store", tmp_path / "then")
        assert put_rows(store, range(1), size=100) == [end]
    snapshot(tmp_path / "store", tmp_path / "later")
    logs = [(tmp_path / name / "commitlog" / f"{0:020d}").read_bytes() for name in ("then", "later")]
    assert logs[0][end:].strip(b"\0") and not logs[1][store.max_offset :].strip(b"\0")
    with monkeypatch.context() as patch:
        Refusing(patch, *[DiskFullError] * 9)
        assert put_rows(store, range(5)) == [-1] * 5
        store.shutdown()
    # There may be data after the end, so the stop was not clean.
    assert (tmp_path / "store" / "abort").exists()


@pytest.mark.parametrize("sync_fails", [False, True])
def test_a_flush_during_which_a_write_fails_does_not_count(
    sync_fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system reports a disk error only once, perhaps to the sync that erases the failed write. If the concurrent
    flush counted, it could miss this error.
    """
    store = writing(tmp_path)
    fill(store, 30)
    syncing = FileMap.sync

    def sync(segment: FileMap) -> None:
        syncing(segment)
        with monkeypatch.context() as patch:
            Refusing(patch, DiskFullError if sync_fails else DiskError)
            patch.setattr(FileMap, "sync", refuse)
            assert put_rows(store, range(5)) == [-1] * 5

    def refuse(segment: FileMap) -> None:
        raise DiskFullError(segment.path, "sync", "told once")

    with monkeypatch.context() as patch:
        patch.setattr(FileMap, "sync", sync)
        assert not store._flush.flush()
    assert store.flushed_offset == 0 and store.state is StoreState.IO_ERROR
    assert not store._flush.flush() and store.flushed_offset == 0
    store.shutdown()
    assert (tmp_path / "abort").exists()


@pytest.mark.parametrize("errors", [[DiskError], [DiskFullError, DiskError]], ids=["EIO", "ENOSPC then EIO"])
def test_a_write_that_fails_for_good(
    errors: list[type[DiskError]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = writing(tmp_path)
    fill(store, 30)
    kept = everything(store)
    with monkeypatch.context() as patch:
        Refusing(patch, *errors)
        assert put_rows(store, range(5)) == [-1] * 5
    assert store.state is StoreState.IO_ERROR and put_rows(store, range(1)) == [-1]
    keeper_pass(store)
    assert store.state is StoreState.IO_ERROR and everything(store) == kept
    store.shutdown()
    # The bytes after the end are unknown, so the stop was not clean.
    assert (tmp_path / "abort").exists()
    again = opened(tmp_path)
    assert again.recovered
    found = everything(again)
    assert all(found[name][: len(messages)] == messages for name, messages in kept.items())
    again.shutdown()
