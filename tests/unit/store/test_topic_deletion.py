"""A deleted topic stays deleted, whatever happens; a new topic with its name begins empty."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from shutil import copytree

import pytest
from tests.unit.store.stores import config, contents, everything, fill, message, opened, read, snapshot, with_topics

from rucola.errors import DiskError, StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.results import GetMessageStatus
from rucola.store.topic_deletion import FILE_NAME
from rucola.store.verify.check import verify
from rucola.testing.clock import ManualClock
from rucola.testing.manual_worker import ManualWorker, manual_workers

DAY_MS = 86_400_000

GONE, KEPT = b"T0", b"T1"


def kept_of(store: MessageStore) -> dict[tuple[bytes, int], list[tuple[int, int, bytes]]]:
    return {name: entries for name, entries in everything(store).items() if name[0] != GONE}


def check_gone(store: MessageStore) -> None:
    assert {topic for topic, _ in store.queue_names()} == {KEPT}
    assert store.max_queue_offset(GONE, 0) == store.min_queue_offset(GONE, 0) == 0
    assert store.get_message(GONE, 0, 0, 32, 1 << 20).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE


def test_it_is_gone_at_once_after_a_stop_and_after_a_crash(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    fill(store, 400)
    held = store.get_message(GONE, 0, 0, 32, 1 << 20).views
    copies = [bytes(view) for view in held]
    kept = kept_of(store)
    store.put_message(message(400, GONE))  # not dispatched yet when the topic is deleted
    store.delete_topic(GONE)
    store.dispatch()
    check_gone(store)
    assert [bytes(view) for view in held] == copies
    snapshot(tmp_path / "store", tmp_path / "crashed")
    (tmp_path / "crashed/rucola-watermark").unlink()  # so that all of the log is dispatched again
    store.shutdown()
    assert verify(with_topics(tmp_path / "store")).clean
    for directory in ("store", "crashed"):
        store = opened(tmp_path / directory)
        assert store.recovered == (directory == "crashed")
        check_gone(store)
        assert kept_of(store) == kept
        assert not (tmp_path / directory / "deleted-queues").exists()
        store.shutdown()


def test_one_of_the_same_name_begins_at_zero_and_survives_a_crash(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    fill(store, 400)
    store.delete_topic(GONE)
    assert [result.queue_offset for result in fill(store, 4, topics=1, first=400)] == [0, 0, 1, 1]
    store.delete_topic(GONE)
    fill(store, 8, topics=1, first=404)
    seen = everything(store)
    assert [body.split()[0] for _, _, body in seen[GONE, 1]] == [b"405", b"407", b"409", b"411"]
    snapshot(tmp_path / "store", tmp_path / "crashed")
    (tmp_path / "crashed/rucola-watermark").unlink()
    store.shutdown()
    for directory in ("store", "crashed"):
        store = opened(tmp_path / directory)
        assert everything(store) == seen
        store.shutdown()
        assert verify(with_topics(tmp_path / directory)).clean


def test_an_end_before_that_of_the_log_leaves_later_records_to_the_new_topic(tmp_path: Path) -> None:
    """A slave learns late that its master has deleted a topic; it may have records of the next one already."""
    store = opened(tmp_path / "store")
    fill(store, 10, topics=1, queues=1)
    end = store.max_offset
    store.put_message(message(100, b"T1"))
    store.put_message(message(101, GONE))  # not dispatched yet
    store.delete_topic(GONE, end)
    store.dispatch()
    assert [one.body for one in read(store, GONE, 0)] == [message(101).body]
    snapshot(tmp_path / "store", tmp_path / "crashed")
    store.shutdown()
    for path in (tmp_path / "store", tmp_path / "crashed"):
        again = opened(path)
        assert [one.body for one in read(again, GONE, 0)] == [message(101).body]
        again.shutdown()


def test_the_files_go_with_the_keeper(tmp_path: Path) -> None:
    with manual_workers("rucola.store.keeper"):
        store = opened(tmp_path)
    fill(store, 400)
    worker = store._keeper._worker
    assert isinstance(worker, ManualWorker)
    store.delete_topic(GONE)
    fill(store, 3, topics=1, queues=1, first=400)
    assert list((tmp_path / "deleted-queues").rglob("0*"))
    worker.run()
    assert not list((tmp_path / "deleted-queues").iterdir())
    assert len(read(store, GONE, 0)) == 3
    store.shutdown()


@pytest.mark.parametrize("name", [b"", b".", b"..", b"../commitlog", b"a/b", b"a\0b", b"a\\b"])
def test_a_name_that_leads_elsewhere_touches_nothing(tmp_path: Path, name: bytes) -> None:
    store = opened(tmp_path)
    fill(store, 10)
    before = everything(store)
    with pytest.raises(StoreDamagedError):
        store.delete_topic(name)
    assert everything(store) == before and not (tmp_path / FILE_NAME).exists()
    store.shutdown()


class Refusing(Files):
    """A disk that fails at the n-th change after ``nth`` is set to n; 0 means never."""

    nth = 0

    def replace_file(self, path: str, content: bytes, spare: str = "") -> None:
        self._count(path)
        super().replace_file(path, content, spare)

    def rename(self, path: str, new_path: str) -> None:
        self._count(path)
        super().rename(path, new_path)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self._count(path)

    def _count(self, path: str) -> None:
        self.nth -= 1
        if self.nth == 0:
            raise DiskError(path, "change", "no")


@pytest.mark.few(4)
@pytest.mark.parametrize("nth", range(1, 12))
def test_a_disk_that_fails_on_the_way_loses_no_message_of_a_topic_made_again(tmp_path: Path, nth: int) -> None:
    files = Refusing()
    store = opened(tmp_path / "store", files)
    fill(store, 200)
    kept = kept_of(store)
    store._flush.flush()
    store._keeper.sync_queues()
    files.nth = nth
    try:
        store.delete_topic(GONE)
        failed = False
    except DiskError:
        failed = True
    files.nth = 0
    assert failed or nth > 6
    results = fill(store, 6, topics=1, first=200)
    fresh = results[0].queue_offset == 0
    assert fresh or failed
    new = [message(number, size=80 + number % 200).body for number in range(200, 206)]
    snapshot(tmp_path / "store", tmp_path / "crashed")
    store.shutdown()
    for directory in ("store", "crashed"):
        table = tmp_path / directory / FILE_NAME
        written = table.exists() and GONE.decode() in json.loads(table.read_text())
        assert written or failed
        store = opened(tmp_path / directory)
        bodies = [body for queue_id in (0, 1) for _, _, body in everything(store)[GONE, queue_id]]
        assert set(new) <= set(bodies)
        assert len(bodies) == len(new) + (0 if written else 100)
        assert kept_of(store) == kept
        store.shutdown()


def test_the_table_forgets_what_the_log_has_left_behind(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 1500)
    store.delete_topic(GONE)
    end = store.max_offset
    fill(store, 1500, first=1500)
    store.shutdown()
    entry = json.loads((tmp_path / FILE_NAME).read_text())["T0"]
    assert (entry["end"], entry["pending"]) == (end, False)
    for segment in (tmp_path / "commitlog").iterdir():
        if int(segment.name) < end:
            segment.unlink()
    store = opened(tmp_path)
    assert store.min_offset >= end
    store.shutdown()
    assert "T0" in json.loads((tmp_path / FILE_NAME).read_text())  # a pop from before the deletion may still wait
    store = opened(tmp_path, clock=ManualClock(entry["time"] + 10 * DAY_MS, step_ms=1))
    fill(store, 2, topics=1, queues=1)
    store.shutdown()
    store = opened(tmp_path, clock=ManualClock(entry["time"] + 10 * DAY_MS, step_ms=1))
    store.shutdown()
    assert json.loads((tmp_path / FILE_NAME).read_text()) == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"T": 1}',
        b'{"T": {"end": "x", "pending": false}}',
        b"\xff\xfe",
        b'{"../T": {"end": 1, "pending": true}}',
    ],
)
def test_a_damaged_table_refuses_the_start_and_changes_nothing(tmp_path: Path, text: bytes) -> None:
    store = opened(tmp_path)
    fill(store, 10)
    store.shutdown()
    (tmp_path / FILE_NAME).write_bytes(text)
    before = contents(tmp_path)
    with pytest.raises(StoreDamagedError) as caught:
        MessageStore(config(tmp_path), Files(), ManualClock()).load()
    assert caught.value.path == str(tmp_path / FILE_NAME)
    assert contents(tmp_path) == before


def test_queues_that_went_get_no_new_minimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a segment has expired, the smallest offsets of queues are corrected one by one. Meanwhile, the deleted
    topic's queues disappear.
    """
    looked_at = set()
    monkeypatch.setattr(ConsumeQueue, "correct_min_offset", lambda queue: looked_at.add(queue.topic))
    store = opened(tmp_path)
    fill(store, 400)
    looked_at.clear()
    retention = store._retention
    retention._uncorrected = deque(store._queues.open_queues())
    retention.waiting = True
    store.delete_topic(GONE)
    store.dispatch()
    assert looked_at == {KEPT}
    monkeypatch.undo()
    store.shutdown()


def test_verify_names_a_queue_of_a_deleted_topic_that_came_back(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    store.put_message(message(0, GONE))
    store.put_message(message(1, b"Kept"))
    store.dispatch()
    queue = tmp_path / "store" / "consumequeue" / GONE.decode()
    copytree(queue, tmp_path / "copy")
    store.delete_topic(GONE)
    store.shutdown()
    copytree(tmp_path / "copy", queue)
    found = verify(with_topics(tmp_path / "store")).findings
    assert [(one.kind, one.count) for one in found] == [("unit_without_record", 1)]
