"""Batch consume queues, extensions and light queues after crashes, damage and changes that the golden stores lack."""

from __future__ import annotations

import shutil
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from tests.unit.store.stores import HOST, SEGMENT, config, crashed, message, with_topics

from rucola.common.message import StoreMessage
from rucola.errors import StoreDamagedError
from rucola.formats.batch_consume_queue import BATCH_UNIT_BYTES
from rucola.formats.consume_queue_ext import address_of
from rucola.formats.message import decode_messages
from rucola.formats.properties import decode_properties
from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.recovery.watermark import Watermark, WatermarkFile
from rucola.store.results import Boundary, GetMessageStatus, PutMessageStatus
from rucola.store.verify.check import verify
from rucola.testing.clock import ManualClock

BATCH = b"BatchTopic"
INNER_BATCH = 0xC0


def opened(path: Path, **options: Any) -> MessageStore:
    """Runs a store; ``BatchTopic`` is of type BatchCQ."""
    sizes = {"mapper_file_size_batch_consume_queue": 10 * BATCH_UNIT_BYTES, "mapped_file_size_consume_queue_ext": 200}
    store = MessageStore(
        config(path, **(sizes | options)),
        Files(),
        ManualClock(step_ms=1),
        is_batch_topic=lambda topic: topic == BATCH,
    )
    store.load()
    store.start()
    return store


def inner_batch(number: int, count: int, topic: bytes = BATCH, **changes: Any) -> StoreMessage:
    members = [b"%d of %d" % (at, number) for at in range(count)]
    body = b"".join(pack(">iiiii", 22 + len(text), 0, 0, 0, len(text)) + text + b"\0\0" for text in members)
    properties = b"UNIQ_KEY\x01U%d\x02TAGS\x01Tag%d\x02INNER_NUM\x01%d\x02" % (number, number % 3, count)
    values = {"sys_flag": INNER_BATCH, "properties": properties} | changes
    return StoreMessage(topic, 0, body, born_timestamp_ms=1_700_000_000_000, born_host=HOST, **values)


def light(number: int, names: str, topic: bytes = b"Parent", extra: bytes = b"") -> StoreMessage:
    properties = b"KEYS\x01key-%d\x02INNER_MULTI_DISPATCH\x01%b\x02" % (number, names.encode()) + extra
    return StoreMessage(topic, 0, b"%d" % number, properties, 1_700_000_000_000, HOST)


def fill(store: MessageStore, count: int = 25, first: int = 0) -> int:
    """Puts inner batches of one to four messages; returns the offset after the last message."""
    for number in range(first, first + count):
        assert store.put_message(inner_batch(number, number % 4 + 1)).status is PutMessageStatus.PUT_OK
    store.dispatch()
    return store.max_queue_offset(BATCH, 0)


def batch_bases(store: MessageStore) -> list[int]:
    """Pulls repeatedly; returns the first queue offset of each record in the batch queue."""
    bases, at = [], store.min_queue_offset(BATCH, 0)
    while (result := store.get_message(BATCH, 0, at, 32, 1 << 20)).status is GetMessageStatus.FOUND:
        found = [found for view in result.views for found in decode_messages(view, unpack=False)]
        assert sum(int(one.properties["INNER_NUM"]) for one in found) == result.message_count
        bases += [one.queue_offset for one in found]
        at = result.next_offset
    assert at == store.max_queue_offset(BATCH, 0)
    return bases


def bases(count: int) -> list[int]:
    """Returns the queue offsets of the records that ``fill`` puts."""
    return [sum(number % 4 + 1 for number in range(before)) for before in range(count)]


def files_of(path: Path, kind: str) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.glob(f"{kind}/*/*/*"))}


def bodies(store: MessageStore, topic: bytes) -> list[bytes]:
    result = store.get_message(topic, 0, store.min_queue_offset(topic, 0), 32, 1 << 20)
    return [found.body for view in result.views for found in decode_messages(view)]


# -- batch consume queues ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["none", "hole", "tail", "garbage", "deleted"])
def test_a_crash_leaves_the_batch_queue_as_the_log_says(damage: str, tmp_path: Path) -> None:
    store = opened(tmp_path / "killed")
    assert fill(store) == sum(number % 4 + 1 for number in range(25))
    before = files_of(tmp_path / "killed", "batchconsumequeue")
    image = crashed(store, tmp_path / "killed", tmp_path / "image")
    (image / "rucola-watermark").unlink()
    first = image / f"batchconsumequeue/BatchTopic/0/{0:020d}"
    last = image / f"batchconsumequeue/BatchTopic/0/{20 * BATCH_UNIT_BYTES:020d}"
    content = bytearray(last.read_bytes())
    if damage == "hole":
        middle = bytearray(first.read_bytes())
        middle[4 * BATCH_UNIT_BYTES : 6 * BATCH_UNIT_BYTES] = bytes(2 * BATCH_UNIT_BYTES)
        first.write_bytes(middle)
    elif damage == "tail":
        last.write_bytes(bytes(len(content)))
    elif damage == "garbage":
        # This unit is of a record that the log does not have: its physical offset lies after the end.
        content[5 * BATCH_UNIT_BYTES : 6 * BATCH_UNIT_BYTES] = pack(">qiqqqhii", 1 << 20, 100, 0, 1, 63, 1, -1, 0)
        last.write_bytes(content)
    elif damage == "deleted":
        for file in first.parent.iterdir():
            file.unlink()
    for _ in range(2):
        store = opened(image)
        assert batch_bases(store) == bases(25)
        store.shutdown()
        assert files_of(image, "batchconsumequeue") == before
    assert verify(with_topics(image)).clean


def test_a_batch_queue_goes_on_where_it_was_synced(tmp_path: Path) -> None:
    """A batch queue continues at its synced end, even if the log is read from an earlier position for the index."""
    store = opened(tmp_path / "killed")
    fill(store, 12)
    for number in range(SEGMENT // 4000):
        store.put_message(message(number, size=4000))
    synced = store.max_offset
    fill(store, 13, first=12)
    before = files_of(tmp_path / "killed", "batchconsumequeue")
    image = crashed(store, tmp_path / "killed", tmp_path / "image")
    WatermarkFile(Files(), str(image)).write(Watermark(synced, synced, queue_count=2))
    shutil.rmtree(image / "index")
    store = opened(image)
    assert batch_bases(store) == bases(25)
    store.shutdown()
    assert files_of(image, "batchconsumequeue") == before


def test_batch_units_behind_a_cut_log_are_zeroed(tmp_path: Path) -> None:
    store = opened(tmp_path / "killed")
    fill(store, 12)
    image = crashed(store, tmp_path / "killed", tmp_path / "image")
    (image / "rucola-watermark").unlink()
    log = image / f"commitlog/{0:020d}"
    content = bytearray(log.read_bytes())
    cut_at = content.index(b"0 of 7")
    content[cut_at:] = bytes(len(content) - cut_at)
    log.write_bytes(content)
    store = opened(image)
    assert batch_bases(store) == bases(7)
    fill(store, 1, first=20)
    assert batch_bases(store) == bases(8)
    store.shutdown()
    assert len(files_of(image, "batchconsumequeue")) == 1
    assert verify(with_topics(image)).clean


def test_the_batch_queue_begins_with_the_first_record_the_log_still_has(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=4096)
    fill(store, 40)
    store.shutdown()
    (tmp_path / f"commitlog/{0:020d}").unlink()
    (tmp_path / "rucola-watermark").unlink()
    store = opened(tmp_path, mapped_file_size_commit_log=4096)
    kept = batch_bases(store)
    assert 0 < len(kept) < 40 and kept == bases(40)[-len(kept) :]
    assert store.min_queue_offset(BATCH, 0) == kept[0]
    assert store.get_message(BATCH, 0, 0, 1, 100).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert fill(store, 1) == store.max_queue_offset(BATCH, 0)
    store.shutdown()


def test_searches_in_a_batch_queue(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store)
    times = [store.store_time_at(BATCH, 0, base) for base in bases(25)]
    for base, time_ms in zip(bases(25), times, strict=True):
        assert store.offset_by_time(BATCH, 0, time_ms) == base
        assert store.offset_by_time(BATCH, 0, time_ms, Boundary.UPPER) == base
    assert store.offset_by_time(BATCH, 0, times[0] - 1) == 0
    assert store.offset_by_time(BATCH, 0, times[-1] + 9) == bases(25)[-1]
    # An offset within a record leads to the record; a pull ends with the segment of the queue.
    result = store.get_message(BATCH, 0, bases(25)[4] - 1, 64, 1 << 20)
    (first, *_) = decode_messages(result.views[0], unpack=False)
    assert (first.queue_offset, result.next_offset) == (bases(25)[3], bases(25)[10])
    tag = next(iter(decode_messages(result.views[0], unpack=False))).properties["TAGS"]
    assert tag == "Tag0"
    only = store.get_message(BATCH, 0, 0, 64, 1 << 20, frozenset({2598902 + 30}))
    assert only.status is GetMessageStatus.NO_MATCHED_MESSAGE and only.next_offset == bases(25)[10]
    store.shutdown()


def test_malformed_inner_batches_are_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for wrong in (
        inner_batch(0, 2, topic=b"Simple"),
        inner_batch(0, 2, sys_flag=0),
        inner_batch(0, 2, properties=b""),
        inner_batch(0, 2, properties=b"INNER_NUM\x010\x02"),
        inner_batch(0, 2, properties=b"INNER_NUM\x0132768\x02"),
    ):
        assert store.put_message(wrong).status is PutMessageStatus.MESSAGE_ILLEGAL
    assert store.put_message(message(1, BATCH)).queue_offset == 0
    assert store.put_message(inner_batch(1, 3)).queue_offset == 1
    assert store.put_message(message(2, BATCH)).queue_offset == 4
    store.shutdown()


def test_a_batch_queue_of_a_topic_that_is_none_refuses_the_start(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 3)
    store.shutdown()
    other = MessageStore(config(tmp_path), Files(), ManualClock(), is_batch_topic=lambda _topic: False)
    with pytest.raises(StoreDamagedError, match="BatchCQ"):
        other.load()
    offline = OfflineStore(str(tmp_path))
    assert [unit[0] for unit in offline.units("BatchTopic", 0, 2, 6)] == bases(3)[1:]
    assert [found.queue_offset for found in offline.messages("BatchTopic", 0, 0, 99)] == bases(3)
    offline.close()


def test_the_check_finds_what_is_wrong_with_batch_units(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill(store, 6)
    store.shutdown()
    file = tmp_path / f"batchconsumequeue/BatchTopic/0/{0:020d}"
    content = bytearray(file.read_bytes())
    content[2 * BATCH_UNIT_BYTES + 19] ^= 1
    content[3 * BATCH_UNIT_BYTES + 35] ^= 1
    content[5 * BATCH_UNIT_BYTES : 7 * BATCH_UNIT_BYTES] = bytes(BATCH_UNIT_BYTES) + content[:BATCH_UNIT_BYTES]
    file.write_bytes(content)
    found = [(str(one.kind), one.position // BATCH_UNIT_BYTES) for one in verify(with_topics(tmp_path)).findings]
    assert found == [("record_without_unit", 5), ("unit", 3), ("unit_tags", 2)]


# -- extension ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["none", "hole", "lost", "behind", "no queue"])
def test_a_crash_leaves_the_extension_as_the_log_says(damage: str, tmp_path: Path) -> None:
    store = opened(tmp_path / "killed", enable_consume_queue_ext=True)
    for number in range(20):
        store.put_message(message(number))
    store.dispatch()
    before = files_of(tmp_path / "killed", "consumequeue*")
    image = crashed(store, tmp_path / "killed", tmp_path / "image")
    (image / "rucola-watermark").unlink()
    segments = sorted((image / "consumequeue_ext/TopicTest/0").iterdir())
    assert len(segments) == 3
    if damage == "hole":
        content = bytearray(segments[0].read_bytes())
        content[20 * 2 : 20 * 3] = bytes(20)
        segments[0].write_bytes(content)
    elif damage == "lost":
        for segment in segments:
            segment.unlink()
    elif damage == "behind":
        content = bytearray(segments[2].read_bytes())
        content[20 * 6 : 20 * 6 + 5] = b"later"
        segments[2].write_bytes(content)
    elif damage == "no queue":
        (image / f"consumequeue/TopicTest/0/{0:020d}").unlink()
    for _ in range(2):
        store = opened(image, enable_consume_queue_ext=True)
        assert store.queue_unit(b"TopicTest", 0, 7)[2] == 2598903
        result = store.get_message(b"TopicTest", 0, 0, 32, 1 << 20, frozenset({2598903}))
        assert result.message_count == 7
        store.shutdown()
        assert files_of(image, "consumequeue*") == before
    assert verify(with_topics(image)).clean


def test_an_extension_switched_off_is_still_read_and_not_written(tmp_path: Path) -> None:
    for life, on in enumerate((False, True, False)):
        store = opened(tmp_path, enable_consume_queue_ext=on)
        for number in range(9):
            store.put_message(message(9 * life + number))
        store.dispatch()
        tags = [store.queue_unit(b"TopicTest", 0, at)[2] for at in range(9 * life + 9)]
        assert tags == [2598902 + at % 3 for at in range(9 * life + 9)]
        result = store.get_message(b"TopicTest", 0, 0, 32, 1 << 20, frozenset({2598902}))
        assert result.message_count == 3 * life + 3
        store.shutdown()
    units = files_of(tmp_path, "consumequeue")[f"consumequeue/TopicTest/0/{0:020d}"]
    codes = [int.from_bytes(units[20 * at + 12 : 20 * at + 20], "big", signed=True) for at in range(27)]
    assert [at for at, code in enumerate(codes) if code < 0] == list(range(9, 18))
    assert codes[9:11] == [address_of(0), address_of(20)]
    assert verify(with_topics(tmp_path)).clean


def test_the_extension_loses_what_lies_before_the_first_entry(tmp_path: Path) -> None:
    options = {"enable_consume_queue_ext": True, "mapped_file_size_commit_log": 4096}
    store = opened(tmp_path, **options)
    for number in range(60):
        store.put_message(message(number))
    store.dispatch()
    store.shutdown()
    assert len(files_of(tmp_path, "consumequeue_ext")) == 7
    (tmp_path / f"commitlog/{0:020d}").unlink()
    (tmp_path / "rucola-watermark").unlink()
    store = opened(tmp_path, **options)
    first = store.min_queue_offset(b"TopicTest", 0)
    assert first > 10
    assert store.queue_unit(b"TopicTest", 0, first)[2] == 2598902 + first % 3
    store.shutdown()
    kept = [int(Path(name).name) for name in files_of(tmp_path, "consumequeue_ext")]
    assert kept[0] == 200 * (first // 9) or kept[0] + 200 == 200 * (first // 9)
    assert kept[0] > 0


def test_a_lost_unit_of_the_extension_matches_every_tag(tmp_path: Path) -> None:
    store = opened(tmp_path, enable_consume_queue_ext=True)
    for number in range(5):
        store.put_message(message(number))
    store.dispatch()
    file = tmp_path / f"consumequeue_ext/TopicTest/0/{0:020d}"
    with file.open("r+b") as ext:
        ext.seek(20)
        ext.write(bytes(20))
    result = store.get_message(b"TopicTest", 0, 0, 32, 1 << 20, frozenset({2598902}))
    assert result.message_count == 3  # two with the tag, and one that the client has to compare
    store.shutdown()
    report = verify(with_topics(tmp_path))
    assert [(str(one.kind), one.position) for one in report.findings] == [("unit_tags", 20)]


# -- light queues ------------------------------------------------------------------------------------------------------

LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}


def test_a_name_that_is_none_of_a_light_queue_does_not_stop_dispatch(tmp_path: Path) -> None:
    """Defect 42 of RocketMQ: a message stops dispatch if it names a queue that cannot be a light queue."""
    store = opened(tmp_path, **LIGHT)
    names = ["%LMQ%a,plain,%LMQ%b", "%LMQ%a", "%LMQ%../../up,%LMQ%b", "%LMQ%" + "x" * 300, "plain", "%LMQ%,%LMQ%b,"]
    for number, text in enumerate(names):
        assert store.put_message(light(number, text)).status is PutMessageStatus.PUT_OK
    store.put_message(message(9))
    assert store.dispatch() == len(names) + 1
    assert store.dispatch_behind_bytes == 0
    assert bodies(store, b"%LMQ%a") == [b"0", b"1"]
    assert bodies(store, b"%LMQ%b") == [b"0", b"2", b"5"]
    assert store.max_queue_offset(b"Parent", 0) == len(names)
    assert store.stats.multi_dispatch_skipped == 3
    assert sorted(path.name for path in (tmp_path / "consumequeue").iterdir()) == [
        "%LMQ%a",
        "%LMQ%b",
        "Parent",
        "TopicTest",
    ]
    (record,) = [found for view in store.get_message(b"Parent", 0, 0, 1, 100).views for found in decode_messages(view)]
    assert record.properties["INNER_MULTI_QUEUE_OFFSET"] == "0,,0"
    store.shutdown()
    assert verify(with_topics(tmp_path)).clean


@pytest.mark.parametrize("clean", [True, False])
def test_light_queues_go_on_after_a_restart(clean: bool, tmp_path: Path) -> None:
    store = opened(tmp_path / "first", **LIGHT)
    for number in range(6):
        store.put_message(light(number, "%LMQ%a,%LMQ%b" if number % 2 else "%LMQ%a"))
    store.dispatch()
    path = tmp_path / "first"
    if clean:
        store.shutdown()
    else:
        path = crashed(store, path, tmp_path / "image")
        (path / "rucola-watermark").unlink()
        for file in (path / "consumequeue/%LMQ%a/0").iterdir():
            file.unlink()
    store = opened(path, **LIGHT)
    assert bodies(store, b"%LMQ%a") == [b"%d" % number for number in range(6)]
    store.put_message(light(6, "%LMQ%b,%LMQ%a"))
    store.dispatch()
    assert bodies(store, b"%LMQ%b") == [b"1", b"3", b"5", b"6"]
    assert store.max_queue_offset(b"%LMQ%a", 0) == 7
    store.shutdown()


def test_offsets_of_light_queues_are_the_store_s_alone(tmp_path: Path) -> None:
    forged = b"INNER_MULTI_QUEUE_OFFSET\x01987654321\x02"
    store = opened(tmp_path)
    store.put_message(light(0, "%LMQ%a", extra=forged))
    store.put_message(light(1, "%LMQ%a", extra=b"INNER_MULTI_QUEUE_OFFSET\x01x\x02"))
    store.dispatch()
    store.shutdown()
    (tmp_path / "rucola-watermark").unlink()
    store = opened(tmp_path, **LIGHT)
    assert store.stats.multi_dispatch_skipped == 2
    put = store.put_message(light(2, "%LMQ%a,%LMQ%a", extra=forged))
    record = store.message_at(put.physical_offset)
    assert record is not None
    (found,) = decode_messages(record)
    assert found.properties["INNER_MULTI_QUEUE_OFFSET"] == "0,0"
    store.dispatch()
    assert (bodies(store, b"%LMQ%a"), store.max_queue_offset(b"%LMQ%a", 0)) == ([b"2"], 1)
    store.shutdown()


def test_without_the_switches_names_are_only_properties(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put = store.put_message(light(0, "%LMQ%a"))
    record = store.message_at(put.physical_offset)
    assert record is not None
    (found,) = decode_messages(record)
    assert decode_properties(light(0, "%LMQ%a").properties).items() <= found.properties.items()
    assert "INNER_MULTI_QUEUE_OFFSET" not in found.properties
    store.dispatch()
    assert store.queue_names() == [(b"Parent", 0)]
    store.shutdown()


def test_too_long_for_its_light_queues_is_illegal(tmp_path: Path) -> None:
    store = opened(tmp_path, **LIGHT)
    names = ",".join(f"%LMQ%{number}" for number in range(3300))
    assert store.put_message(light(0, names)).status is PutMessageStatus.MESSAGE_ILLEGAL
    assert store.put_message(light(1, "%LMQ%5")).queue_offset == 0
    store.dispatch()
    assert store.max_queue_offset(b"%LMQ%5", 0) == 1
    assert store.max_queue_offset(b"%LMQ%6", 0) == 0
    store.shutdown()
