"""The store as the broker uses it: put, dispatch, get, query, reopen."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pytest
from tests.unit.store.stores import HOST, SEGMENT, config, crashed, everything, fill, message, opened, read

from rucola.common.columns import ROW_WIDTH, FrameColumn, new_table
from rucola.common.message import StoreMessage
from rucola.formats.message import decode_message
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.reader import JOIN_BELOW_BYTES
from rucola.store.results import Boundary, GetMessageStatus, PutMessageStatus
from rucola.store.row_run import AS_THEY_ARE, AppendOptions, RowRun
from rucola.testing.clock import ManualClock
from rucola.testing.store_life import ROOT, StoreLife, empty_disk

T = b"TopicTest"


def rows(bodies: list[bytes], queue_id: int = 0, properties: bytes = b"") -> tuple[bytearray, array[int]]:
    source, table = bytearray(), new_table(len(bodies))
    for row, body in enumerate(bodies):
        base = row * ROW_WIDTH
        table[base + FrameColumn.QUEUE_ID] = queue_id
        table[base + FrameColumn.BODY_POS] = len(source)
        table[base + FrameColumn.BODY_LEN] = len(body)
        source += body
        table[base + FrameColumn.PROPERTIES_POS] = len(source)
        table[base + FrameColumn.PROPERTIES_LEN] = len(properties)
        source += properties
    return source, table


def column(table: array[int], name: FrameColumn) -> list[int]:
    return list(table[name::ROW_WIDTH])


def test_messages_are_read_over_many_segments_and_restarts(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 1500)
    seen = everything(store)
    assert sum(map(len, seen.values())) == 1500
    assert store.max_offset > 4 * SEGMENT
    store.shutdown()
    assert not (tmp_path / "abort").exists()
    for first in (1500, 1600):
        store = opened(tmp_path)
        assert everything(store) == seen
        fill(store, 100, first=first)
        seen = everything(store)
        store.shutdown()
    assert [body for _, _, body in seen[b"T1", 0]][-1] == message(1697, size=80 + 1697 % 200).body
    assert len(list((tmp_path / "index").iterdir())) > 5


class Portable(Files):
    """Files on a system that has none of Linux's own calls."""

    fallocate = None
    data_sync = staticmethod(os.fsync)
    populate_write = False


def test_without_what_only_linux_has(tmp_path: Path) -> None:
    store = opened(tmp_path, Portable())
    fill(store, 700)
    seen = everything(store)
    image = crashed(store, tmp_path, tmp_path.with_name("image"))
    for path in (tmp_path, image):
        store = opened(path, Portable())
        assert everything(store) == seen
        fill(store, 50, first=700)
        store.shutdown()


def test_put_result_and_stored_fields(tmp_path: Path) -> None:
    store = opened(tmp_path, clock=ManualClock(1_700_000_000_123))
    store.store_host = b"\x0a\x00\x00\x05\x00\x00\x2a\x9f"
    sent = StoreMessage(
        T, 3, b"body", b"A\x01b\x02", 17, HOST, flag=7, sys_flag=8, reconsume_times=2, prepared_transaction_offset=99
    )
    result = store.put_message(sent)
    store.dispatch()
    record = store.message_at(result.physical_offset)
    assert record is not None and len(record) == result.size
    got = decode_message(record)
    assert (result.status, result.queue_offset, result.store_timestamp_ms) == (
        PutMessageStatus.PUT_OK,
        0,
        1700000000123,
    )
    assert (got.topic, got.body, got.queue_id, got.flag, got.sys_flag) == ("TopicTest", b"body", 3, 7, 8)
    assert (got.born_timestamp_ms, got.born_host, got.store_host) == (17, HOST, store.store_host)
    assert (got.reconsume_times, got.prepared_transaction_offset) == (2, 99)
    assert got.properties["A"] == "b" and "__CRC32#" in got.properties
    assert store.message_at(result.physical_offset + 1) is None
    store.shutdown()


def test_rows_get_their_places_and_the_suffix(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.property_suffix = b"CLUSTER\x01c\x02"
    source, table = rows([b"x" * 9000] * 20, properties=b"TAGS\x01a\x02")
    status = store.append_rows(RowRun(source, memoryview(source), table, 0, 20), T, HOST)
    assert status is PutMessageStatus.PUT_OK
    assert column(table, FrameColumn.QUEUE_OFFSET) == list(range(20))
    places = column(table, FrameColumn.PHYSICAL_OFFSET)
    assert [place // SEGMENT for place in places] == [0] * 7 + [1] * 7 + [2] * 6
    assert store.dispatch() == 20
    assert [found.physical_offset for found in read(store, T, 0)] == places
    assert read(store, T, 0)[0].properties["CLUSTER"] == "c"
    store.append_rows(RowRun(source, memoryview(source), table, 0, 1), T, HOST, AS_THEY_ARE)
    store.dispatch()
    assert "CLUSTER" not in read(store, T, 0)[-1].properties
    store.shutdown()


def test_batch_lies_in_one_segment(tmp_path: Path) -> None:
    store = opened(tmp_path)
    source, table = rows([b"x" * 9000] * 5)
    for _ in range(3):
        assert (
            store.append_rows(
                RowRun(source, memoryview(source), table, 0, 5), T, HOST, AppendOptions(together=True)
            ).value
            == "PUT_OK"
        )
        assert len({place // SEGMENT for place in column(table, FrameColumn.PHYSICAL_OFFSET)}) == 1
    assert column(table, FrameColumn.QUEUE_OFFSET) == [10, 11, 12, 13, 14]
    store.dispatch()
    assert len(read(store, T, 0)) == 15
    assert [result.queue_offset for result in store.put_messages([message(i) for i in range(3)])] == [15, 16, 17]
    store.shutdown()


def test_batch_that_fits_no_segment_changes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 3)
    end = store.max_offset
    source, table = rows([b"x" * 9000] * 8)
    status = store.append_rows(RowRun(source, memoryview(source), table, 0, 8), T, HOST, AppendOptions(together=True))
    assert (status, store.max_offset) == (PutMessageStatus.MESSAGE_ILLEGAL, end)
    assert column(table, FrameColumn.PHYSICAL_OFFSET) == [-1] * 8
    assert store.put_message(message(1)).queue_offset == 0
    store.shutdown()


def test_illegal_rows_do_not_touch_their_neighbours(tmp_path: Path) -> None:
    store = opened(tmp_path)
    source, table = rows([b"a", b"b" * (SEGMENT - 100), b"c", b"d"])
    table[3 * ROW_WIDTH + FrameColumn.QUEUE_ID] = -1
    status = store.append_rows(RowRun(source, memoryview(source), table, 0, 4), T, HOST)
    assert status is PutMessageStatus.MESSAGE_ILLEGAL
    assert [place >= 0 for place in column(table, FrameColumn.PHYSICAL_OFFSET)] == [True, False, True, False]
    assert store.dispatch() == 2
    assert [found.body for found in read(store, T, 0)] == [b"a", b"c"]
    store.shutdown()


@pytest.mark.parametrize("pooled", [False, True])
def test_rows_before_an_illegal_one_keep_their_places_and_offsets(pooled: bool, tmp_path: Path) -> None:
    store = opened(tmp_path, transient_store_pool_enable=pooled, flush_interval_commit_log_ms=60_000)
    source, table = rows([b"a" * 100, b"b" * 200, b"c" * 300, b"d", b"e" * 400])
    table[3 * ROW_WIDTH + FrameColumn.QUEUE_ID] = -1
    status = store.append_rows(RowRun(source, memoryview(source), table, 0, 5), T, HOST)
    assert status is PutMessageStatus.MESSAGE_ILLEGAL
    places, sizes = column(table, FrameColumn.PHYSICAL_OFFSET), column(table, FrameColumn.RECORD_SIZE)
    assert places == [0, sizes[0], sum(sizes[:2]), -1, sum(sizes[:3])]
    assert store.max_offset == places[4] + sizes[4]
    store.put_message(message(1))
    store._flush.flush()
    store.dispatch()
    found = read(store, T, 0)
    assert [one.body[:1] for one in found[:4]] == [b"a", b"b", b"c", b"e"]
    assert [one.queue_offset for one in found] == [0, 1, 2, 3, 4]
    store.shutdown()


def test_queue_ids_beyond_those_known_make_their_queue(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for queue_id in (0, 700, 3, 700):
        assert store.put_message(message(1, queue_id=queue_id)).status is PutMessageStatus.PUT_OK
    store.dispatch()
    assert [store.max_queue_offset(T, queue_id) for queue_id in (0, 3, 4, 700)] == [1, 1, 0, 2]
    store.shutdown()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (StoreMessage(b"t" * 128, 0, b"b", b"", 0, HOST), PutMessageStatus.MESSAGE_ILLEGAL),
        (StoreMessage(b"%RETRY%" + b"t" * 248, 0, b"b", b"", 0, HOST), PutMessageStatus.PUT_OK),
        (StoreMessage(b"%RETRY%" + b"t" * 249, 0, b"b", b"", 0, HOST), PutMessageStatus.MESSAGE_ILLEGAL),
        (StoreMessage(b"", 0, b"b", b"", 0, HOST), PutMessageStatus.MESSAGE_ILLEGAL),
        (StoreMessage(T, 0, b"b" * 1001, b"", 0, HOST), PutMessageStatus.MESSAGE_ILLEGAL),
        (StoreMessage(T, 0, b"b", b"a\x01" + b"b" * 32744 + b"\x02", 0, HOST), PutMessageStatus.PUT_OK),
        (
            StoreMessage(T, 0, b"b", b"a\x01" + b"b" * 32745 + b"\x02", 0, HOST),
            PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        ),
    ],
)
def test_limits_of_a_message(sent: StoreMessage, status: PutMessageStatus, tmp_path: Path) -> None:
    store = opened(tmp_path, max_message_size=1000)
    assert store.put_message(sent).status is status
    store.shutdown()


def test_a_checksum_of_another_record_is_not_stored(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_message(StoreMessage(T, 0, b"b", b"__CRC32#\x015430369000\x02A\x01b\x02", 0, HOST))
    store.dispatch()
    (found,) = read(store, T, 0)
    assert list(found.properties) == ["A", "__CRC32#"] and found.properties["__CRC32#"] != "5430369000"
    store.shutdown()


def test_status_and_next_offset_of_reads(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(150):
        store.put_message(message(number))
    store.dispatch()

    def get(offset: int, count: int = 32, tags: list[int] | None = None) -> tuple[str, int, int]:
        result = store.get_message(T, 0, offset, count, 1 << 20, tags)
        return result.status.value, result.next_offset, result.message_count

    tag0, tag1 = 2598902, 2598903  # hashes of Tag0, Tag1
    assert get(0) == ("FOUND", 32, 32)
    assert get(0, 5) == ("FOUND", 5, 5)
    assert get(95) == ("FOUND", 100, 5), "a read ends with its segment of the queue"
    assert get(140) == ("FOUND", 150, 10)
    assert get(-1) == ("OFFSET_TOO_SMALL", 0, 0)
    assert get(150) == ("OFFSET_OVERFLOW_ONE", 150, 0)
    assert get(151) == ("OFFSET_OVERFLOW_BADLY", 150, 0)
    assert get(0, 8, [tag0]) == ("FOUND", 22, 8)
    assert get(1, 4, [tag0, tag1]) == ("FOUND", 7, 4)
    assert get(0, 32, [1]) == ("NO_MATCHED_MESSAGE", 100, 0)
    assert get(0, 32, []) == ("FOUND", 32, 32)
    result = store.get_message(b"Unknown", 0, 0, 32, 1000)
    assert (result.status, result.next_offset, result.max_offset) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0)
    assert store.queue_names() == [(T, 0)]
    store.shutdown()


def test_reads_obey_byte_limits_but_give_one_message(tmp_path: Path) -> None:
    store = opened(tmp_path, max_transfer_bytes_on_message_in_memory=2000)
    for number in range(20):
        store.put_message(message(number, size=900))
    store.put_message(message(20, size=5000))
    store.dispatch()
    assert store.get_message(T, 0, 0, 32, 1 << 20).message_count == 1
    assert store.get_message(T, 0, 20, 32, 10).message_count == 1
    store.shutdown()


def test_neighbouring_records_come_as_one_slice(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number, queue_id in enumerate([0, 0, 0, 1, 0, 0]):
        store.put_message(message(number, queue_id=queue_id, size=JOIN_BELOW_BYTES))
    store.dispatch()
    assert len(store.get_message(T, 0, 0, 32, 1 << 20).views) == 2
    store.shutdown()


def test_arrivals_are_told_once_per_queue_with_the_tag_they_share(tmp_path: Path) -> None:
    appended: list[int] = []
    store = MessageStore(
        config(tmp_path),
        Files(),
        ManualClock(),
    )
    store.listen(on_append=lambda: appended.append(1))
    store.load()
    store.start()
    for number in (0, 3, 6):
        store.put_message(message(number))
    for number in range(9):
        store.put_message(message(number, queue_id=1))
    assert (store.dispatch(), store.dispatch()) == (12, 0)
    assert sorted(store.take_arrivals()) == [(T, 0, 3, 2598902), (T, 1, 9, None)]
    assert store.take_arrivals() == []
    assert len(appended) == 12
    store.shutdown()


def test_query_by_key_compares_the_key_itself(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for key, body in ((b"Aa", b"right"), (b"BB", b"wrong"), (b"x Aa y", b"right too")):
        store.put_message(StoreMessage(T, 0, body, b"KEYS\x01" + key + b"\x02", 0, HOST))
    store.put_message(StoreMessage(b"Other", 0, b"other", b"KEYS\x01Aa\x02", 0, HOST))
    store.dispatch()
    result = store.query_by_key(T, b"Aa")
    assert [decode_message(view).body for view in result.views] == [b"right", b"right too"]
    assert result.index_physical_offset > 0
    assert len(store.query_by_key(T, b"y").views) == 1
    assert store.query_by_key(T, b"x Aa y").views == []
    assert store.query_by_key(T, b"").views == []
    store.shutdown()


def test_query_finds_keys_in_every_index_file_and_at_their_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    results = fill(store, 900, topics=1)
    for number in (0, 400, 899):
        for key in (b"key-%d" % number, b"ID%08d" % number):
            (view,) = store.query_by_key(b"T0", key).views
            assert decode_message(view).physical_offset == results[number].physical_offset
    at = results[400].store_timestamp_ms
    assert len(store.query_by_key(b"T0", b"key-400", 32, at, at).views) == 1
    assert store.query_by_key(b"T0", b"key-400", 32, at + 1).views == []
    assert store.query_by_key(b"T0", b"key-400", 32, 0, at - 1).views == []
    newest = [decode_message(view).physical_offset for view in store.query_by_key(b"T0", b"all", 3).views]
    assert newest == [result.physical_offset for result in results[-3:]]
    store.shutdown()


def test_the_first_key_of_an_index_file_is_found_at_its_time(tmp_path: Path) -> None:
    """An index file's entry for its first key contains the seconds since the end of the previous file (RocketMQ 5.3.3,
    ``IndexFile#putKey``).
    """
    clock = ManualClock()
    store = opened(tmp_path, clock=clock)
    fill(store, 133, topics=1)  # three keys each: the first file is full
    clock.advance(100_000)
    (result,) = fill(store, 1, topics=1, first=133)
    at = result.store_timestamp_ms
    assert len(list((tmp_path / "index").iterdir())) == 2
    assert len(store.query_by_key(b"T0", b"ID%08d" % 133, 32, at, at).views) == 1
    assert store.query_by_key(b"T0", b"ID%08d" % 133, 32, at + 1).views == []
    store.shutdown()


def test_index_can_be_switched_off(tmp_path: Path) -> None:
    store = opened(tmp_path, message_index_enable=False)
    fill(store, 10)
    assert store.query_by_key(b"T0", b"all").views == []
    assert not (tmp_path / "index").exists()
    store.shutdown()


def test_search_by_time(tmp_path: Path) -> None:
    clock = ManualClock(1000)
    store = opened(tmp_path, clock=clock)
    for time_ms in (1000, 1000, 2000, 2000, 3000):
        clock.set_wall_ms(time_ms)
        store.put_message(message(0))
    store.dispatch()
    lower = [store.offset_by_time(T, 0, at) for at in (0, 1000, 1001, 2000, 3000, 3001)]
    upper = [store.offset_by_time(T, 0, at, Boundary.UPPER) for at in (0, 1000, 1001, 2000, 3000, 9999)]
    assert (lower, upper) == ([0, 0, 2, 2, 4, 5], [0, 1, 1, 3, 4, 4])
    assert [store.store_time_at(T, 0, offset) for offset in (-1, 0, 2, 4, 5)] == [-1, 1000, 2000, 3000, -1]
    assert store.offset_by_time(b"Unknown", 0, 0) == 0
    store.shutdown()


def test_store_time_never_decreases_also_over_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(5000)
    store = opened(tmp_path, clock=clock)
    times = [store.put_message(message(0)).store_timestamp_ms]
    clock.set_wall_ms(4000)
    times.append(store.put_message(message(1)).store_timestamp_ms)
    store.shutdown()
    store = opened(tmp_path, clock=ManualClock(3000))
    times.append(store.put_message(message(2)).store_timestamp_ms)
    store.shutdown()
    assert times == [5000, 5000, 5000]


def test_prepared_and_rollback_messages_have_no_place_in_a_queue(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for sys_flag in (0, 4, 8, 12, 0):
        sent = message(sys_flag)
        sent.sys_flag = sys_flag
        store.put_message(sent)
    store.dispatch()
    assert [found.sys_flag for found in read(store, T, 0)] == [0, 8, 0]
    assert len(store.query_by_key(T, b"key-4").views) == 1
    assert store.query_by_key(T, b"key-12").views == []
    store.shutdown()


def test_delayed_messages_carry_their_due_time(tmp_path: Path) -> None:
    store = opened(tmp_path, clock=ManualClock(1_000_000))
    topic = b"SCHEDULE_TOPIC_XXXX"
    for level in (b"1", b"3", b"99", b"x"):
        store.put_message(StoreMessage(topic, 2, b"b", b"DELAY\x01" + level + b"\x02", 0, HOST))
    store.dispatch()
    due = [1_001_000, 1_010_000, 1_000_000 + 7_200_000, 0]
    units = (tmp_path / "consumequeue" / topic.decode() / "2" / f"{0:020d}").read_bytes()
    assert [int.from_bytes(units[20 * n + 12 : 20 * n + 20], "big") for n in range(4)] == due
    store.shutdown()


def test_calls_before_start_and_after_shutdown_are_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.shutdown()
    store.shutdown()
    source, table = rows([b"a"])
    assert store.put_message(message(0)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.append_rows(RowRun(source, memoryview(source), table, 0, 1), T, HOST).value == "SERVICE_NOT_AVAILABLE"
    assert table[FrameColumn.PHYSICAL_OFFSET] == -1
    store = opened(tmp_path)
    with pytest.raises(ValueError, match="the same topic"):
        store.put_messages([message(0), message(1, b"Other")])
    store.shutdown()


def test_views_outlive_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 1)
    (view,) = store.get_message(b"T0", 0, 0, 1, 1000).views
    store.shutdown()
    assert decode_message(view).body == message(0, size=80).body


def test_a_small_store_takes_one_segment_and_a_clean_stop_leaves_no_spare_one(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 10)
    store.shutdown()
    store = opened(tmp_path)
    fill(store, 150)  # more than half full, so the next segment is made in the background
    store.shutdown()
    assert [file.name for file in (tmp_path / "commitlog").iterdir()] == [f"{0:020d}"]


def test_a_slave_is_suggested_when_the_last_message_is_not_taken_to_be_in_memory(tmp_path: Path) -> None:
    store = opened(tmp_path)
    places = [store.put_message(message(number)).physical_offset for number in range(12)]
    store.dispatch()
    store._reader._in_memory_bytes = store.max_offset - places[5]
    for first, count, suggested in (
        (0, 1, True),
        (0, 3, True),
        (2, 3, True),
        (3, 3, False),
        (5, 1, False),
        (6, 4, False),
    ):
        result = store.get_message(T, 0, first, count, 1 << 20)
        assert (result.message_count, result.suggest_slave) == (count, suggested)
    store.shutdown()


def test_the_next_segment_is_made_meanwhile_from_the_middle_of_one_on() -> None:
    settings = MessageStoreConfig(
        store_path_root_dir=ROOT,
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=20 * 100,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    life = StoreLife(empty_disk(), settings)
    life.open()
    following = f"{ROOT}/commitlog/{SEGMENT:020d}"
    while life.store.max_offset < SEGMENT // 2:
        life.allocate()
        assert following not in life.disk.names
        life.put(message(0, size=SEGMENT // 20))
    assert life._allocator.wanted
    life.allocate()
    assert following in life.disk.names
    life.stop()
