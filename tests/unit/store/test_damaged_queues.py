"""A damaged queue is restored with the same content, wherever the damage is, even if opening a file fails once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.reading import pulled
from tests.unit.store.stores import HOST, SEGMENT, contents, message, opened, read, snapshot

from rucola.common.message import StoreMessage
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.message import decode_messages
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore
from rucola.store.results import Boundary, PutMessageStatus
from rucola.testing.clock import ManualClock

COUNT = 8
T = b"T0"
Damage = Callable[[Path, int, int], None]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Makes a stopped store with one queue in the log's first segment; returns the positions of its messages."""
    path = tmp_path_factory.mktemp("stopped") / "store"
    store = opened(path)
    places = [store.put_message(message(number, T)).physical_offset for number in range(COUNT)]
    fill_log(store, 2 * SEGMENT)
    store.shutdown()
    return path, places


def fill_log(store: MessageStore, end: int) -> None:
    while store.max_offset < end:
        assert store.put_message(StoreMessage(b"Other", 0, bytes(4000), b"", 0, HOST)).status is PutMessageStatus.PUT_OK
    store.dispatch()


def flip(path: Path, position: int, mask: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def log_header(path: Path, place: int, _number: int) -> None:
    """Damages the queue offset in the record."""
    flip(path / "commitlog" / f"{0:020d}", place + 27, 1)


def log_size(path: Path, place: int, _number: int) -> None:
    flip(path / "commitlog" / f"{0:020d}", place + 2, 1)


def unit_zeroed(path: Path, _place: int, number: int) -> None:
    file = path / "consumequeue" / "T0" / "0" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[20 * number : 20 * number + 20] = bytes(20)
    file.write_bytes(data)


def unit_place(path: Path, _place: int, number: int) -> None:
    """Makes the unit point into messages of another topic, which an earlier run wrote."""
    flip(path / "consumequeue" / "T0" / "0" / f"{0:020d}", 20 * number + 5, 1)


def unit_place_near(path: Path, _place: int, number: int) -> None:
    """Makes the unit point into the following message."""
    flip(path / "consumequeue" / "T0" / "0" / f"{0:020d}", 20 * number + 6, 1)


def unit_place_ahead(path: Path, _place: int, number: int) -> None:
    """Makes the unit point into messages that the current run wrote."""
    flip(path / "consumequeue" / "T0" / "0" / f"{0:020d}", 20 * number + 5, 4)


def unit_size(path: Path, _place: int, number: int) -> None:
    flip(path / "consumequeue" / "T0" / "0" / f"{0:020d}", 20 * number + 11, 1)


DAMAGES = [log_header, log_size, unit_zeroed, unit_place, unit_place_near, unit_place_ahead, unit_size]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_costs_that_message_only_wherever_it_is(
    damage: Damage, stopped: tuple[Path, list[int]], tmp_path: Path
) -> None:
    """Damage in one message loses no other message, even if a search for the ends of a queue reads this one."""
    image, places = stopped
    for victim in range(COUNT - 1):
        path = tmp_path / str(victim)
        snapshot(image, path)
        damage(path, places[victim], victim)
        store = opened(path)
        assert store.put_message(message(99, T)).queue_offset == COUNT
        fill_log(store, 5 * SEGMENT)
        # A record contains its size, so a wrong size in the entry loses no message.
        lost = -1 if damage is unit_size else victim
        assert sorted(pulled(store, "T0", 0)) == [number for number in range(COUNT + 1) if number != lost]
        if victim >= store.min_queue_offset(T, 0):
            views = store.get_message(T, 0, victim, 1, 1 << 20).views
            given = {message.queue_offset for view in views for message in decode_messages(view)}
            assert given <= {victim if lost < 0 else victim + 1}
        store.shutdown()
        shutil.rmtree(path)


@pytest.mark.parametrize("lost", [range(1), range(4, 5), range(2, 6), range(COUNT // 2, COUNT - 1)])
def test_messages_before_others_that_were_lost_stay(
    lost: range, stopped: tuple[Path, list[int]], tmp_path: Path
) -> None:
    """A log has a damaged part in quarantine. A queue rebuilt from this log still has the messages before the damaged
    part.
    """
    image, places = stopped
    path = tmp_path / "image"
    snapshot(image, path)
    for number in lost:
        flip(path / "commitlog" / f"{0:020d}", places[number] + 4, 255)
    (path / "rucola-watermark").unlink()
    opened(path, quarantine=True).shutdown()
    shutil.rmtree(path / "consumequeue" / "T0")
    store = opened(path)
    kept = [number for number in range(COUNT) if number not in lost]
    assert store.min_queue_offset(T, 0) == kept[0]
    assert sorted(pulled(store, "T0", 0)) == kept
    times = {number: store.store_time_at(T, 0, number) for number in kept}
    for number, time_ms in times.items():
        lower, upper = (store.offset_by_time(T, 0, time_ms, boundary) for boundary in Boundary)
        assert number - len(lost) <= lower <= number == upper
        assert not set(range(lower, number)) & set(kept)
    store.shutdown()


def test_a_queue_that_cannot_be_opened_once_does_not_begin_again(
    stopped: tuple[Path, list[int]], tmp_path: Path
) -> None:
    """If a queue that could not be opened began again at 0, offsets would be assigned twice, and new messages would
    replace old ones.
    """

    class OneFails(Files):
        left = 1

        def map_file(self, path: str, size: int | None = None, writable: bool = True) -> FileMap:
            if "consumequeue" in path and self.left:
                self.left -= 1
                raise DiskError(path, "map", "Too many open files")
            return super().map_file(path, size, writable)

    path = tmp_path / "image"
    snapshot(stopped[0], path)
    store = opened(path, OneFails())
    with pytest.raises(DiskError, match="Too many open files"):
        store.put_message(message(99, T))
    assert store.put_message(message(99, T)).queue_offset == COUNT
    store.dispatch()
    assert sorted(pulled(store, "T0", 0)) == list(range(COUNT + 1))
    store.shutdown()


def test_a_first_entry_behind_very_many_that_lead_nowhere(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_consume_queue=400_000)
    queue = store._queues.get(T, 0)
    placed = store.put_message(StoreMessage(b"Other", 0, b"x", b"", 0, HOST))
    queue.put(15_000, placed.physical_offset, placed.size, 0)
    queue.correct_min_offset()
    assert (queue.min_offset, queue.max_offset) == (15_000, 15_001)
    assert queue.offset_by_time(0, Boundary.LOWER) == 15_000
    store.shutdown()


def test_damage_of_a_foreign_killed_store_is_told_from_a_torn_tail(
    stopped: tuple[Path, list[int]], tmp_path: Path
) -> None:
    """The log must not end before messages that were on the disk according to the times in RocketMQ's checkpoint."""
    path = tmp_path / "image"
    clock = ManualClock(1_700_000_000_000, step_ms=100)
    store = opened(path, clock=clock)
    places = [store.put_message(message(number, T, size=2000)).physical_offset for number in range(120)]
    store.dispatch()
    store.shutdown()
    (path / "rucola-watermark").unlink()
    (path / "abort").write_text("1")
    flip(path / "commitlog" / f"{0:020d}", places[5] + 4, 255)
    before = contents(path)
    with pytest.raises(StoreDamagedError, match="the log continues") as caught:
        opened(path)
    assert caught.value.position == places[5]
    assert contents(path) == before
    store = opened(path, quarantine=True)
    assert sorted(pulled(store, "T0", 0)) == [number for number in range(120) if number != 5]
    store.shutdown()


def test_a_length_of_queue_files_that_is_not_the_store_s_refuses_the_start(
    stopped: tuple[Path, list[int]], tmp_path: Path
) -> None:
    """The option for the length of queue files is changed, so the store refuses to open. If it opened, new topics would
    get files of the new length until a send to an old topic failed.
    """
    path = tmp_path / "image"
    snapshot(stopped[0], path)
    before = contents(path)
    with pytest.raises(StoreDamagedError, match="2000 bytes, but a segment of this store has 4000") as caught:
        opened(path, mapped_file_size_consume_queue=4000)
    assert "/consumequeue/" in caught.value.path
    assert contents(path) == before
    opened(path).shutdown()


def test_offsets_before_the_first_entry_are_not_used_when_its_message_is_lost(tmp_path: Path) -> None:
    """A queue begins at offset 50, and the message with this offset is lost. Earlier offsets are not used, although the
    log still begins at 0.
    """
    store = opened(tmp_path / "live", flush_interval_commit_log_ms=600_000)
    store.put_message(message(0))
    store._queues.next_offsets(T)[0] = 50
    first = store.put_message(message(1, T))
    store.dispatch()
    assert (first.queue_offset, store.max_queue_offset(T, 0)) == (50, 51)
    image = tmp_path / "image"
    snapshot(tmp_path / "live", image)
    store.shutdown()
    with (image / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(first.physical_offset)
        file.write(bytes(first.size))
    store = opened(image)
    assert (store.min_queue_offset(T, 0), store.max_queue_offset(T, 0)) == (50, 50)
    assert store.put_message(message(2, T)).queue_offset == 50
    store.dispatch()
    assert [found.queue_offset for found in read(store, T, 0)] == [50]
    store.shutdown()
