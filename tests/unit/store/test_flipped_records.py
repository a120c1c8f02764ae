"""A flipped bit in a record written by RocketMQ loses at most that message, although the record has no checksum of its
header.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.bitflips import Base, base, limited, logged, whole
from tests.golden.loader import write_files
from tests.unit.store.stores import contents, fill, opened

from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from rucola.formats.message import decode_message
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore
from rucola.store.verify.check import verify

STORES = ("rocketmq_4_9_7_clean", "rocketmq_4_9_7_killed", "rocketmq_5_3_3_clean", "rocketmq_5_3_3_killed")
MIDDLE, LAST = 100, 213
QUEUE_ID, QUEUE_OFFSET, PHYSICAL_OFFSET, SYS_FLAG, STORE_TIMESTAMP = 12, 20, 28, 36, 56


def flipped(store: Base, path: Path, number: int, position: int, mask: int) -> Path:
    """Makes the store in ``path``, with a bit of record ``number`` flipped."""
    place = store.places[number][0]
    name = f"commitlog/{place - place % store.segment_bytes:020d}"
    data = bytearray(store.files[name])
    data[place % store.segment_bytes + position] ^= mask
    write_files(store.files | {name: bytes(data)}, path)
    return path


def served(store: MessageStore) -> dict[str, list[int]]:
    """Pulls all messages; returns their physical offsets by queue."""
    found: dict[str, list[int]] = {}
    for topic, queue_id in store.queue_names():
        places = found.setdefault(f"{topic.decode()}/{queue_id}", [])
        at = store.min_queue_offset(topic, queue_id)
        while at < store.max_queue_offset(topic, queue_id):
            result = store.get_message(topic, queue_id, at, 1, 1 << 20)
            places += [store.queue_unit(topic, queue_id, result.next_offset - 1)[0] for _ in result.views]
            at = result.next_offset
    return found


def lengths(store: MessageStore) -> dict[tuple[bytes, int], int]:
    return {name: store.max_queue_offset(*name) for name in store.queue_names()}


@pytest.mark.few
@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("number", [0, MIDDLE, LAST])
@pytest.mark.parametrize(
    ("position", "mask"),
    [(QUEUE_OFFSET, 0x80), (QUEUE_OFFSET + 2, 1), (QUEUE_OFFSET + 5, 1), (QUEUE_OFFSET + 7, 64), (QUEUE_OFFSET + 7, 1)],
)
def test_a_queue_offset_moves_neither_the_message_nor_the_end_of_its_queue(
    name: str, number: int, position: int, mask: int, tmp_path: Path
) -> None:
    """The damage changes the queue offset in a record. Before the fix, recovery filled the queue with units up to this
    offset, or overwrote the unit of another message.
    """
    store = base(name)
    path = flipped(store, tmp_path / "store", number, position, mask)
    with limited(10), logged() as lines:
        running = store.opened(path)
    running.start()
    assert served(running) == whole(name)
    assert set(lengths(running).values()) == {35, 36}
    running.shutdown()
    assert sum(map(len, contents(path).values())) < sum(map(len, store.files.values())) + 2 * store.log_bytes
    assert any("record does not agree with its queue" in line for line in lines)


@pytest.mark.few
@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("number", [0, MIDDLE])
@pytest.mark.parametrize("mask", [0x80, 0x40, 1])
def test_a_queue_id_leaves_the_message_where_its_unit_is(name: str, number: int, mask: int, tmp_path: Path) -> None:
    """Before the fix, a record with a negative queue id made the start of the store fail with a ValueError."""
    store = base(name)
    path = flipped(store, tmp_path / "store", number, QUEUE_ID, mask)
    with logged() as lines:
        running = store.opened(path)
    running.start()
    assert {queue: places for queue, places in served(running).items() if places} == whole(name)
    running.shutdown()
    assert any("record is not put into the queue that it names" in line for line in lines)


@pytest.mark.few
@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("number", [0, MIDDLE, LAST])
def test_a_physical_offset_does_not_end_the_log(name: str, number: int, tmp_path: Path) -> None:
    store = base(name)
    path = flipped(store, tmp_path / "store", number, PHYSICAL_OFFSET + 3, 4)
    with logged() as lines:
        running = store.opened(path)
    running.start()
    assert served(running) == whole(name)
    key = b"order-%d" % number
    topic = b"Flights" if number % 3 == 1 else b"Orders"
    assert [len(view) for view in running.query_by_key(topic, key).views] == [store.places[number][1]]
    running.shutdown()
    place = store.places[number][0] % store.segment_bytes
    assert any("states another position" in line and f"position={place}" in line for line in lines)


@pytest.mark.few
@pytest.mark.parametrize("number", [3, 249])
@pytest.mark.parametrize("digit", [0, -1])
def test_the_base_of_a_batch_does_not_overwrite_a_sound_unit(number: int, digit: int, tmp_path: Path) -> None:
    store = base("inner_batch_roll")
    place, size = store.places[number]
    segment = store.files[f"commitlog/{place - place % store.segment_bytes:020d}"]
    record = segment[place % store.segment_bytes :][:size]
    start = record.index(b"INNER_BASE\x01") + len(b"INNER_BASE\x01")
    end = record.index(b"\x02", start)
    path = flipped(store, tmp_path / "store", number, start if digit == 0 else end - 1, 4)
    running = store.opened(path)
    running.start()
    assert served(running) == whole("inner_batch_roll")
    running.shutdown()
    name = f"batchconsumequeue/BatchTopic/0/{0:020d}"
    assert (path / name).read_bytes() == store.files[name]


@pytest.mark.parametrize("name", STORES)
def test_a_record_that_says_it_is_of_no_queue_keeps_its_place(name: str, tmp_path: Path) -> None:
    store = base(name)
    path = flipped(store, tmp_path / "store", MIDDLE, SYS_FLAG + 3, 4)
    running = store.opened(path)
    running.start()
    assert served(running) == whole(name)
    running.shutdown()


def test_a_queue_that_lost_all_its_entries_has_no_file(tmp_path: Path) -> None:
    """A queue without entries has no file, because RocketMQ reads zeros as an entry and raises."""
    store = opened(tmp_path)
    fill(store, 4, topics=1, queues=1)
    end = store.max_offset
    fill(store, 2, topics=2, queues=1, first=5)
    queue = store._queues.get(b"T1", 0)
    assert queue.cut(end)
    assert list((tmp_path / "consumequeue" / "T1" / "0").iterdir()) == []
    queue.put(0, end, 100, 0)
    assert (queue.min_offset, queue.max_offset) == (0, 1)
    store.shutdown()


def test_a_gap_that_was_lost_with_a_part_of_the_log_stays(tmp_path: Path) -> None:
    """A part of the log was lost, so the queue has a gap. It stays, because the records after it have right offsets."""
    store = base("rocketmq_5_3_3_clean")
    path = flipped(store, tmp_path / "store", 30, 4, 0xFF)
    running = store.opened(path, quarantine=True)
    running.start()
    wanted = {
        queue: [place for place in places if place != store.places[30][0]]
        for queue, places in whole(store.name).items()
    }
    assert served(running) == wanted
    running.shutdown()
    for directory in (path / "consumequeue").iterdir():
        for queue in directory.iterdir():
            for file in queue.iterdir():
                file.unlink()
    running = store.opened(path, quarantine=True)
    running.start()
    assert served(running) == wanted
    for topic, queue_id in running.queue_names():
        at = running.max_queue_offset(topic, queue_id) - 1
        view = running.get_message(topic, queue_id, at, 1, 1 << 20).views[0]
        assert decode_message(view).queue_offset == at
    running.shutdown()


def test_filled_records_are_not_delivered_for_their_place(tmp_path: Path) -> None:
    """A bit in the size of a queue's first record is flipped. The queue delivers all records except the first."""
    store = base("rocketmq_4_9_7_clean")
    number = next(
        number for number, (place, _) in enumerate(store.places) if place == whole(store.name)["Flights/0"][0]
    )
    path = flipped(store, tmp_path / "store", number, 0, 1)
    running = store.opened(path, quarantine=True)
    running.start()
    assert served(running)["Flights/0"] == whole(store.name)["Flights/0"][1:]
    running.shutdown()


@pytest.mark.few
@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize(
    ("position", "mask", "kind"),
    [
        (QUEUE_OFFSET + 7, 1, "queue_offset"),
        (QUEUE_OFFSET, 1, "queue_offset"),
        (QUEUE_ID + 3, 1, "queue_id"),
        (QUEUE_ID, 0x80, "queue_id"),
        (PHYSICAL_OFFSET + 7, 1, "physical_offset"),
        (STORE_TIMESTAMP, 1, "store_time"),
        (STORE_TIMESTAMP + 4, 0x80, "store_time"),
    ],
)
@pytest.mark.parametrize("number", [MIDDLE, LAST - 2])
def test_verify_blames_the_record_and_nothing_else(
    name: str, position: int, mask: int, kind: str, number: int, tmp_path: Path
) -> None:
    store = base(name)
    path = flipped(store, tmp_path / "store", number, position, mask)
    place = store.places[number][0]
    file = f"commitlog/{place - place % store.segment_bytes:020d}"
    found = [(one.kind.value, one.file, one.position) for one in verify(str(path)).findings]
    assert found == [(kind, file, place % store.segment_bytes)]


def test_verify_blames_the_record_for_a_topic(tmp_path: Path) -> None:
    """If a bit of the topic in a record is flipped, ``verify`` reports only the record, and not its queue entry, its
    keys or a missing queue.
    """
    store = base("rocketmq_5_3_3_clean")
    place, size = store.places[MIDDLE]
    file = f"commitlog/{place - place % store.segment_bytes:020d}"
    at = store.files[file][place % store.segment_bytes :][:size].index(b"Flights")
    path = flipped(store, tmp_path / "store", MIDDLE, at + 3, 1)
    found = [(one.kind.value, one.file, one.position) for one in verify(str(path)).findings]
    assert found == [("topic", file, place % store.segment_bytes)]


def test_verify_finds_a_store_time_of_zero(tmp_path: Path) -> None:
    store = base("rocketmq_5_3_3_clean")
    place = store.places[MIDDLE][0]
    name = f"commitlog/{place - place % store.segment_bytes:020d}"
    data = bytearray(store.files[name])
    at = place % store.segment_bytes
    data[at + STORE_TIMESTAMP : at + STORE_TIMESTAMP + 8] = bytes(8)
    write_files(store.files | {name: bytes(data)}, tmp_path)
    assert [(one.kind.value, one.file, one.position) for one in verify(str(tmp_path)).findings] == [
        ("store_time", name, at)
    ]


@pytest.mark.few
@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize(
    ("entry", "position", "kind"),
    [
        (5, INDEX_ENTRY.position("seconds"), "index_entry"),
        (1, INDEX_ENTRY.position("seconds"), "index_entry"),
        (None, INDEX_HEADER.position("begin_timestamp_ms"), "index_header"),
        (None, INDEX_HEADER.position("end_timestamp_ms"), "index_header"),
    ],
)
def test_verify_finds_wrong_times_of_an_index_file(
    name: str, entry: int | None, position: int, kind: str, tmp_path: Path
) -> None:
    store = base(name)
    files = dict(store.files)
    path = min(one for one in files if one.startswith("index/"))
    data = bytearray(files[path])
    if entry is not None:
        position += INDEX_HEADER.size + INDEX_SLOT.size * 100 + INDEX_ENTRY.size * entry
    data[position + 2] ^= 4
    write_files(files | {path: bytes(data)}, tmp_path)
    found = verify(str(tmp_path)).findings
    assert {(one.kind.value, one.file) for one in found} >= {(kind, path)}
    assert {one.file for one in found} == {path}


def test_verify_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """Before the fix, ``verify`` left twelve descriptors open."""
    for name in ("rocketmq_5_3_3_clean", "inner_batch_roll"):
        write_files(base(name).files, tmp_path / name)
        opened_by: list[FileMap] = []

        class Counting(Files):
            def map_file(
                self,
                path: str,
                size: int | None = None,
                writable: bool = True,
                opened_by: list[FileMap] = opened_by,
            ) -> FileMap:
                opened_by.append(super().map_file(path, size, writable))
                return opened_by[-1]

        verify(str(tmp_path / name), Counting())
        assert opened_by
        assert [one.path for one in opened_by if one._descriptor >= 0] == []


@pytest.mark.few
@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("queues", [("Orders/0", "Orders/1"), ("Orders/1", "Flights/1")])
def test_exchanged_files_of_two_queues_serve_nothing_of_the_other(
    queues: tuple[str, str], name: str, tmp_path: Path
) -> None:
    """The files of two queues are exchanged. Each record differs from its queue in the topic or in the queue id alone,
    like a record with a flipped bit, but so do all records next to it.
    """
    store = base(name)
    one, two = (f"consumequeue/{queue}/{0:020d}" for queue in queues)
    write_files(store.files | {one: store.files[two], two: store.files[one]}, tmp_path / "store")
    running = store.opened(tmp_path / "store")
    running.start()
    assert served(running) == whole(name)
    running.shutdown()
