"""Opens every directory of RocketMQ, stopped, killed or damaged, by ``MessageStore``, reads it and appends to it.

The expected results are what RocketMQ read after it had reopened the directory (``expect.json``), and the files after
that (``after/``). Queues and key queries are also compared with a model that is made from the records of the log. Where
RocketMQ deviates from the model, ``QUEUES_DIFFER`` and ``QUERIES_DIFFER`` name the promise (``P-..``) or the defect,
and our store must equal the model.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from struct import iter_unpack
from typing import Any

import pytest
from tests.golden.loader import Case, load, unpack
from tests.golden.opening import CASES, opened

from rucola.common.message import StoreMessage
from rucola.formats.checkpoint import StoreCheckpoint
from rucola.formats.consume_queue import read_units
from rucola.formats.index_file import INDEX_HEADER
from rucola.formats.message import BLANK, MAGIC_BLANK, decode_message, decode_messages
from rucola.store.message_store import MessageStore
from rucola.store.queue.consume_queue_store import QUEUE_ID_MAX
from rucola.store.results import Boundary, PutMessageStatus

CLOCK_STEPS = "index_clock"
"""A case whose clock went back and forth by months, so that order by time means nothing. Our store never writes such a
log (P-30).
"""

QUEUES_DIFFER = {
    "clean_stop_cq_tail_lost": "defect 37: lost units are put again, wherever in the queue they were",
    "clean_stop_newest_queue_continued": "defect 37: the lost queues come back; of two entries at one offset the newer",
    "clean_stop_newest_queue_deleted": "P-19: a missing queue is rebuilt, also when no other is shorter",
    "clean_stop_newest_run_deleted": "defect 37: no units that point at nothing take the place of the lost ones",
    "clean_stop_queue_deleted": "P-19: a missing queue is rebuilt, also when no other is shorter",
    "killed_bad_body_crc_continued": "defect 36: units of the old life behind the cut never come back",
}
QUERIES_DIFFER = {
    "clean_stop_index_deleted": "P-19: a missing index is rebuilt",
    "clean_stop_last_segment_deleted": "defect 6: keys behind the cut do not count among the hits asked for",
    "index_chains": "a record that has the key twice is found once",
    CLOCK_STEPS: "the newest entry of the index that is named last is not the newest message",
    "killed_bad_body_crc_continued": "defect 6: records put behind a cut are found",
    "killed_bad_size": "defect 6: keys behind the cut do not count among the hits asked for",
}
INDEX_FILES_KEPT = {
    "clean_stop_bad_crc_last_segment": 1,
    "clean_stop_last_segment_deleted": 1,
    "clean_stop_log_deleted": 0,
    "killed_bad_body_crc": 0,
    "killed_bad_body_crc_continued": 0,
    "killed_bad_magic": 0,
    "killed_bad_size": 0,
    "killed_half_record_continued": 1,
}
"""Cases with index files that are kept although they have entries after the end of the log, or lack keys that an
earlier recovery by RocketMQ did not put.
"""
DAMAGED_INSIDE = "clean_stop_bad_crc_earlier"
"""A case in which one record before the last segment is not whole; neither store looks there after a clean stop."""

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
FOREVER_MS = (1 << 63) - 1
PREFILL_SIZE = 0x7FFFFFFF


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return load(request.param)


def records(case: Case) -> list[dict[str, Any]]:
    return [entry for entry in case.expect["log"] if "msgId" in entry]


def queues_of_log(case: Case) -> dict[tuple[str, int], dict[int, tuple[int, int]]]:
    """Returns, by queue and queue offset, physical offset and size of each record. Prepared and rolled back records
    are in no queue.
    """
    queues: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for entry in records(case):
        if entry["sysFlag"] & 12 in (0, 8):
            units = queues.setdefault((entry["topic"], entry["queueId"]), {})
            units[entry["queueOffset"]] = entry["physicalOffset"], entry["size"]
            for name, queue_offset in light_entries(case, entry):
                queues.setdefault((name, 0), {})[queue_offset] = entry["physicalOffset"], entry["size"]
    return queues


def light_entries(case: Case, entry: dict[str, Any]) -> list[tuple[str, int]]:
    """Returns name and queue offset for each light queue that contains the record in addition to its own queue."""
    if not case.case["config"].get("enableMultiDispatch"):
        return []
    names, offsets = (
        entry["properties"].get(f"INNER_MULTI_{name}", "").split(",") for name in ("DISPATCH", "QUEUE_OFFSET")
    )
    return [(name, int(offset)) for name, offset in zip(names, offsets, strict=True) if name]


def ends_of_log(case: Case) -> dict[tuple[str, int], int]:
    """Returns, for each queue, the offset after its last message; a record may hold several messages."""
    ends = {name: max(units) + 1 for name, units in queues_of_log(case).items()}
    for entry in records(case):
        name = entry["topic"], entry["queueId"]
        if "INNER_NUM" in entry["properties"]:
            ends[name] = max(ends[name], entry["queueOffset"] + int(entry["properties"]["INNER_NUM"]))
    return ends


def queues_of_reference(case: Case) -> dict[tuple[str, int], dict[int, tuple[int, int]]]:
    return {
        (queue["topic"], queue["queueId"]): {
            unit["queueOffset"]: (unit["physicalOffset"], unit["size"])
            for unit in queue["units"]
            if unit["size"] != PREFILL_SIZE
        }
        for queue in case.expect["queues"]
        if queue["units"]
    }


def units_on_disk(path: Path) -> dict[tuple[str, int], dict[int, tuple[int, int, int]]]:
    """Returns all units of all queue files that are neither zeros nor fillers. If a unit has the address of an
    extension, the tags code in the extension replaces the address.
    """
    queues: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = {}
    for file in sorted(path.glob("consumequeue/*/*/*")):
        name = file.parts[-3], int(file.parts[-2])
        units = queues.setdefault(name, {})
        ext = b"".join(part.read_bytes() for part in sorted(path.glob(f"consumequeue_ext/{name[0]}/{name[1]}/*")))
        for index, (physical_offset, size, tags_code) in enumerate(read_units(file.read_bytes())):
            if size not in (0, PREFILL_SIZE):
                if tags_code < -0x80000000:
                    at = tags_code + (1 << 63) + 2
                    tags_code = int.from_bytes(ext[at : at + 8], "big", signed=True)  # noqa: PLW2901
                units[int(file.name) // 20 + index] = physical_offset, size, tags_code
    for file in sorted(path.glob("batchconsumequeue/*/*/*")):
        units = queues.setdefault((file.parts[-3], int(file.parts[-2])), {})
        for fields in iter_unpack(">qiqqqhii", file.read_bytes()):
            if fields[1]:
                units[fields[4]] = fields[:3]
    return {name: units for name, units in queues.items() if units}


def test_the_log_ends_where_the_reference_ends_it_and_holds_its_records(case: Case, tmp_path: Path) -> None:
    unpack(case.name, tmp_path)
    store = opened(case, tmp_path)
    end = case.expect["store"]["maxPhyOffset"]
    assert (store.max_offset, store.flushed_offset) == (end, end)
    assert store.min_offset == max(case.expect["store"]["minPhyOffset"], 0)
    damaged = 0
    for entry in records(case):
        record = store.message_at(entry["physicalOffset"])
        if record is None:
            damaged += 1
            continue
        assert sha256(record).hexdigest() == entry["sha256"]
        assert decode_message(record, unpack=False).offset_msg_id == entry["msgId"]
    assert damaged == (case.name == DAMAGED_INSIDE)
    store.shutdown()
    assert not (tmp_path / "abort").exists()


def test_the_queues_hold_the_units_of_the_reference(case: Case, tmp_path: Path) -> None:
    unpack(case.name, tmp_path)
    tags = {
        (unit["physicalOffset"], unit["queueOffset"]): unit["tagsCode"]
        for queue in case.expect["queues"]
        for unit in queue["units"]
    }
    store = opened(case, tmp_path)
    expected, ends = queues_of_log(case), ends_of_log(case)
    assert (queues_of_reference(case) != expected) == (case.name in QUEUES_DIFFER)
    for (topic, queue_id), units in expected.items():
        assert store.min_queue_offset(topic.encode(), queue_id) == min(units)
        assert store.max_queue_offset(topic.encode(), queue_id) == ends[topic, queue_id]
    for queue in case.expect["queues"]:
        if not queue["units"]:
            assert store.max_queue_offset(queue["topic"].encode(), queue["queueId"]) == queue["max"] == 0
    store.shutdown()
    found = units_on_disk(tmp_path)
    low = max(case.expect["store"]["minPhyOffset"], 0)
    kept = {name: {at: unit for at, unit in units.items() if unit[0] >= low} for name, units in found.items()}
    assert {name: {at: unit[:2] for at, unit in units.items()} for name, units in kept.items() if units} == expected
    for name, units in kept.items():
        for queue_offset, (physical_offset, _, tags_code) in units.items():
            assert tags.get((physical_offset, queue_offset), tags_code) == tags_code, name


@pytest.mark.few(20)
def test_pulls_answer_what_the_reference_answers(case: Case, tmp_path: Path) -> None:
    unpack(case.name, tmp_path)
    store = opened(case, tmp_path)
    ours, theirs = queues_of_log(case), queues_of_reference(case)
    asked = 0
    for pull in case.expect["getMessage"]:
        name = pull["topic"], pull["queueId"]
        if ours.get(name) != theirs.get(name):
            continue
        asked += 1
        codes = {hash_of(tag) for tag in pull["tags"].split("||")} if "tags" in pull else None
        result = store.get_message(
            name[0].encode(), name[1], pull["offset"], pull["maxNum"], 128 << 20, frozenset(codes) if codes else None
        )
        assert (result.status.value, result.next_offset) == (pull["status"], pull["nextBeginOffset"]), pull
        assert (result.min_offset, result.max_offset) == (pull["minOffset"], pull["maxOffset"])
        found = [message for view in result.views for message in decode_messages(view, unpack=False)]
        if case.name == DAMAGED_INSIDE:
            # P-18: RocketMQ delivers the damaged message, ours delivers its neighbours.
            whole = [(entry["msgId"], entry["queueOffset"]) for entry in records(case) if is_whole(store, entry)]
            given = zip(pull["msgIds"], pull["queueOffsets"], strict=True)
            expected = [pair for pair in given if pair in whole]
            assert [(message.offset_msg_id, message.queue_offset) for message in found] == expected
            continue
        assert (result.message_count, result.message_bytes) == (pull["messageCount"], pull["bufferTotalSize"])
        assert [message.offset_msg_id for message in found] == pull["msgIds"]
        if not name[0].startswith("%LMQ%"):  # in a light queue, a message has the offset of its own queue
            assert [message.queue_offset for message in found] == pull["queueOffsets"]
    assert asked or not ours
    store.shutdown()


def is_whole(store: MessageStore, entry: dict[str, Any]) -> bool:
    return store.message_at(entry["physicalOffset"]) is not None


@pytest.mark.few(20)
def test_queries_by_key_find_what_the_log_holds(case: Case, tmp_path: Path) -> None:
    unpack(case.name, tmp_path)
    store = opened(case, tmp_path)
    differs = 0
    for asked in case.expect["queryMessage"]:
        views = store.query_by_key(
            asked["topic"].encode(), asked["key"].encode(), asked["maxNum"], asked["begin"], asked["end"]
        ).views
        found = [decode_message(view, unpack=False).offset_msg_id for view in views]
        matching = matching_ids(case, asked)
        expected = matching[-min(asked["maxNum"], 64) :]
        everything = (asked["begin"], asked["end"]) == (0, FOREVER_MS)
        if everything:
            differs += asked["msgIds"] != expected
        if case.name != CLOCK_STEPS or (everything and asked["maxNum"] > len(matching)):
            assert found == expected, asked
        else:
            # A key older than the first entry of its index file has no time there, so no search by time finds it.
            assert set(matching) >= set(found) >= set(matching) & set(asked["msgIds"] if asked["begin"] else ()), asked
            assert len(found) <= asked["maxNum"]
    assert bool(differs) == (case.name in QUERIES_DIFFER)
    store.shutdown()


def test_index_files_that_agree_with_the_log_stay_as_they_are(case: Case, tmp_path: Path) -> None:
    """After a crash, full index files stay unchanged; only the newest one and those not full are written again."""
    unpack(case.name, tmp_path)
    opened(case, tmp_path).shutdown()
    before = sorted(case.below("index").items(), key=lambda item: INDEX_HEADER.unpack(item[1])[2])
    count = len(before) - 1 if "abort" in case.files else len(before)
    count = INDEX_FILES_KEPT.get(case.name, count)
    after = {file.name: file.read_bytes() for file in tmp_path.glob("index/*")}
    assert [name for name, data in before if after.get(name) == data] == [name for name, _ in before[:count]]
    assert not [name for name, _ in before[count:] if name in after]


def matching_ids(case: Case, asked: dict[str, Any]) -> list[str]:
    """Returns the ids of the records that a key query may find, oldest first; rolled back messages are not in the
    index.
    """
    key = asked["key"]
    if not key or case.name == "index_off":
        return []
    return [
        entry["msgId"]
        for entry in records(case)
        if entry["topic"] == asked["topic"]
        and key in (entry["properties"].get("UNIQ_KEY"), *entry["properties"].get("KEYS", "").split(" "))
        and asked["begin"] <= entry["storeTimestamp"] <= asked["end"]
        and entry["sysFlag"] & 12 != 12
    ]


@pytest.mark.few(20)
def test_searches_by_time_find_what_the_reference_finds(case: Case, tmp_path: Path) -> None:
    unpack(case.name, tmp_path)
    store = opened(case, tmp_path)
    ours, theirs = queues_of_log(case), queues_of_reference(case)
    for asked in case.expect["offsetInQueueByTime"]:
        topic, queue_id, time_ms = asked["topic"].encode(), asked["queueId"], asked["time"]
        lower, upper = (store.offset_by_time(topic, queue_id, time_ms, boundary) for boundary in Boundary)
        if case.name == CLOCK_STEPS:
            # The result is some border between older and younger messages; it depends on where the search looked.
            low, high = store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)
            assert lower == high or store.store_time_at(topic, queue_id, lower) >= time_ms
            assert lower == low or store.store_time_at(topic, queue_id, lower - 1) < time_ms
            assert upper == low or store.store_time_at(topic, queue_id, upper) <= time_ms
            assert upper == high - 1 or store.store_time_at(topic, queue_id, upper + 1) > time_ms
        elif ours.get((asked["topic"], queue_id)) == theirs.get((asked["topic"], queue_id)):
            assert (lower, upper) == (asked["lower"], asked["upper"]), asked
    store.shutdown()


def test_bytes_behind_the_end_are_zeroed_and_kept_aside(case: Case, tmp_path: Path) -> None:
    """P-11 and P-15: after a crash, a later run must not find bytes of an earlier one, and no byte is lost."""
    unpack(case.name, tmp_path)
    opened(case, tmp_path).shutdown()
    end = case.expect["store"]["maxPhyOffset"]
    kept = {int(file.name): file.read_bytes() for file in tmp_path.glob("quarantine/" + "[0-9]" * 20)}
    for name, before in case.below("commitlog").items():
        path = tmp_path / "commitlog" / name
        position = min(max(end - int(name), 0), len(before))
        after = path.read_bytes() if path.exists() else bytes(len(before))
        assert after[:position] == before[:position]
        assert not any(after[position:])
        cut = before[position:].rstrip(b"\0")
        if cut and BLANK.unpack(cut.ljust(8, b"\0"))[1] != MAGIC_BLANK:
            assert kept.pop(int(name) + position) == cut
            manifest = json.loads((tmp_path / "quarantine" / f"{int(name) + position:020d}.json").read_bytes())
            assert manifest["physicalOffset"] == int(name) + position
            assert (manifest["length"], manifest["sha256"]) == (len(cut), sha256(cut).hexdigest())
    assert not kept


def test_the_checkpoint_says_what_the_reference_needs_to_know(case: Case, tmp_path: Path) -> None:
    """RocketMQ recovers by the times in the checkpoint: none may be later than the newest record with a queue entry."""
    unpack(case.name, tmp_path)
    opened(case, tmp_path).shutdown()
    checkpoint = StoreCheckpoint.decode((tmp_path / "checkpoint").read_bytes())
    times = [entry["storeTimestamp"] for entry in records(case)] or [0]
    assert checkpoint.physic_msg_timestamp_ms == checkpoint.logics_msg_timestamp_ms == times[-1]
    assert checkpoint.index_msg_timestamp_ms <= max(times)
    assert checkpoint.confirm_physical_offset == case.expect["store"]["maxPhyOffset"]


@pytest.mark.few(20)
def test_appends_go_on_and_everything_is_there_after_two_more_starts(case: Case, tmp_path: Path) -> None:
    unpack(case.name, tmp_path)
    next_offsets = ends_of_log(case) | {("Afterwards", 3): 0}
    end = case.expect["store"]["maxPhyOffset"]
    appended: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for life in range(3):
        store = opened(case, tmp_path)
        assert store.max_offset == end
        for (topic, queue_id), next_offset in next_offsets.items():
            assert store.max_queue_offset(topic.encode(), queue_id) == next_offset
            for queue_offset, body in appended.get((topic, queue_id), []):
                result = store.get_message(topic.encode(), queue_id, queue_offset, 1, 1 << 20)
                assert [decode_message(view, unpack=False).body for view in result.views] == [body]
        for topic, queue_id in next_offsets:
            body = f"{topic} {queue_id} {life}".encode()
            message = StoreMessage(topic.encode(), queue_id, body, b"KEYS\x01again\x02", 1_800_000_000_000, HOST)
            put = store.put_message(message)
            if queue_id >= QUEUE_ID_MAX or len(topic) > (255 if topic.startswith("%RETRY%") else 127):
                assert put.status is PutMessageStatus.MESSAGE_ILLEGAL
                continue
            assert (put.status, put.queue_offset) == (PutMessageStatus.PUT_OK, next_offsets[topic, queue_id])
            appended.setdefault((topic, queue_id), []).append((put.queue_offset, body))
            next_offsets[topic, queue_id] += 1
            end = put.physical_offset + put.size
        store.dispatch()
        for topic in {name for name, _ in appended}:
            found = len(store.query_by_key(topic.encode(), b"again", 64).views)
            count = sum(len(puts) for name, puts in appended.items() if name[0] == topic)
            assert found == (0 if case.name == "index_off" else min(count, 64))
        store.shutdown()


def hash_of(tag: str) -> int:
    """Returns Java's ``String.hashCode``."""
    value = 0
    for unit in memoryview(tag.strip().encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (value >> 31 << 32)
