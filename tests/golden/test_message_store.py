"""Compares our message store with RocketMQ's: puts write the same bytes, and puts that RocketMQ refused are refused."""

from __future__ import annotations

import shutil
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from tests.golden.loader import Case, body_bytes, host, load, unpack
from tests.golden.opening import CASES, config_of, store_of
from tests.plain_log import read_log

from rucola.common.message import StoreMessage
from rucola.errors import StoreDamagedError
from rucola.formats.message import decode_message, decode_messages
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.testing.clock import ManualClock

NOT_WRITTEN = {
    "clean_stop_newest_queue_continued": "the reference went on after its own recovery, which ours does better",
    "index_clock": "the clock steps back by months, which ours never writes into a log (P-30)",
    "killed_bad_body_crc_continued": "the reference went on after its own recovery, which ours does better",
    "killed_half_record_continued": "the reference went on after its own recovery, which ours does better",
    "many_queues": "its queue 2,147,483,647 is refused by ours: ids go up to 65,535",
    "oversize": "the reference answers PUT_OK to a message that fits no segment, and stores two blanks instead",
    "queue_ext_bitmap": "its filter bits are not computed by ours",
    "plain_batch_envelope": "what the members get of the envelope depends on the version",
}
DAMAGED = {"killed_bad_body_crc", "killed_bad_magic", "killed_bad_size"}
FOREVER_MS = (1 << 63) - 1


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets the time zone to UTC, because index files are named in local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def check_reads(store: MessageStore, case: Case) -> None:
    assert store.max_offset == case.expect["store"]["maxPhyOffset"]
    assert store.min_offset == case.expect["store"]["minPhyOffset"]
    for queue in case.expect["queues"]:
        topic, queue_id = queue["topic"].encode(), queue["queueId"]
        expected = queue["min"], queue["max"]
        assert (store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)) == expected
    for read in case.expect["getMessage"]:
        if read.get("tags"):
            continue
        topic = read["topic"].encode()
        result = store.get_message(topic, read["queueId"], read["offset"], read["maxNum"], 128 << 20)
        assert (result.status.value, result.next_offset) == (read["status"], read["nextBeginOffset"])
        assert (result.min_offset, result.max_offset) == (read["minOffset"], read["maxOffset"])
        assert (result.message_count, result.message_bytes) == (read["messageCount"], read["bufferTotalSize"])
        found = [message for view in result.views for message in decode_messages(view, unpack=False)]
        assert [message.offset_msg_id for message in found] == read["msgIds"]
    for query in case.expect["queryMessage"]:
        if (query["begin"], query["end"]) != (0, FOREVER_MS):
            continue
        views = store.query_by_key(query["topic"].encode(), query["key"].encode(), query["maxNum"]).views
        got = [decode_message(view, unpack=False).offset_msg_id for view in views]
        assert got == sorted(set(query["msgIds"])), query["key"]


def test_a_stray_file_is_passed_over_though_the_reference_refuses_it(tmp_path: Path) -> None:
    case = unpack("refused_stray_file", tmp_path)
    store = MessageStore(config_of(case, tmp_path), Files(), ManualClock())
    store.load()
    store.start()
    store.shutdown()
    assert (tmp_path / "commitlog/notes.txt").read_bytes() == case.files["commitlog/notes.txt"]


def test_refusals_are_those_of_the_reference(tmp_path: Path) -> None:
    case = unpack("refused_wrong_length", tmp_path)
    with pytest.raises(StoreDamagedError):
        MessageStore(config_of(case, tmp_path), Files(), ManualClock()).load()
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert left - {"lock"} == set(case.files)
    assert all((tmp_path / path).read_bytes() == data for path, data in case.files.items())


@pytest.mark.parametrize("name", sorted({*CASES} - DAMAGED))  # damage is not the end of the log
def test_offline_the_end_is_found_without_a_change(name: str, tmp_path: Path) -> None:
    case = unpack(name, tmp_path)
    offline = OfflineStore(str(tmp_path))
    assert offline.end_offset() == case.expect["store"]["maxPhyOffset"]
    offline.close()
    assert all((tmp_path / path).read_bytes() == data for path, data in case.files.items())


def store_message(put: dict[str, Any], member: dict[str, Any]) -> StoreMessage:
    return StoreMessage(
        put["topic"].encode(),
        put["queueId"],
        wire_body(put["members"]) if put["kind"] == "inner_batch" else body_bytes(member.get("body")),
        member["propertiesString"].encode(),
        put["bornTimestamp"],
        host(put["bornHost"]),
        flag=member["flag"],
        sys_flag=put["sysFlag"],
        reconsume_times=put["reconsumeTimes"],
        prepared_transaction_offset=put["preparedTransactionOffset"],
        store_host=host(put["storeHost"]),
        properties_capacity=16,
    )


def wire_body(members: list[dict[str, Any]]) -> bytes:
    """Returns the body of an inner batch: its messages, encoded like a batch that a producer sends."""
    parts = []
    for member in members:
        body, text = body_bytes(member.get("body")), member["propertiesString"].encode()
        size = 22 + len(body) + len(text)
        parts.append(pack(">iiiii", size, 0, 0, member["flag"], len(body)) + body + pack(">h", len(text)) + text)
    return b"".join(parts)


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("name", sorted({*CASES} - NOT_WRITTEN.keys()))
def test_the_puts_of_the_reference_give_its_bytes(name: str, tmp_path: Path) -> None:
    """The puts are repeated in our store, which is then stopped, killed or damaged like RocketMQ's: all files of both
    stores are equal.
    """
    case = load(name)
    path = tmp_path / "ours"
    store = put_all(case, path, case.puts)
    damage = case.case.get("damage") or []
    if not damage:
        check_reads(store, case)
    if "abort" in case.files:
        # A segment that is being made may lose its name .tmp at any time.
        shutil.copytree(path, tmp_path / "killed", ignore=shutil.ignore_patterns("lock", "*.tmp"))
        store.shutdown()
        path = tmp_path / "killed"
    else:
        store.shutdown()
    segments = {file.name: file.read_bytes() for file in (path / "commitlog").iterdir()}
    used = spans(segments, case)
    for step in damage:
        if "session" in step:
            put_all(case, path, [one for one in step["session"] if one["step"] == "put"]).shutdown()
            segments = {file.name: file.read_bytes() for file in (path / "commitlog").iterdir()}
            used = spans(segments, case)
        else:
            do_damage(path, step)
    ours = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    logs = {path.removeprefix("commitlog/"): data for path, data in ours.items() if path.startswith("commitlog/")}
    theirs = case.below("commitlog")
    if "abort" in case.files:
        # The spare segment may be missing.
        logs, theirs = ({name: data for name, data in files.items() if any(data)} for files in (logs, theirs))
    assert logs.keys() == theirs.keys()
    for segment, start, end in used:
        if segment in logs:
            assert logs[segment][start:end] == theirs[segment][start:end], (segment, start)
    for directory in ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index"):
        mine = {path: data for path, data in ours.items() if path.startswith(directory + "/")}
        others = {f"{directory}/{path}": data for path, data in case.below(directory).items()}
        assert mine.keys() == others.keys()
        assert [path for path in mine if mine[path] != others[path]] == []


def put_all(case: Case, path: Path, steps: list[dict[str, Any]]) -> MessageStore:
    """Makes a store in the directory and repeats all puts; each result must equal RocketMQ's."""
    clock = ManualClock()
    config = replace(config_of(case, path), flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    store = store_of(case, config, clock)
    store.load()
    store.start()
    for step in steps:
        put, result = step["message"], step["result"]
        clock.set_wall_ms(step["clock"])
        members = put["members"] if put["kind"] == "batch" else [put]
        if result.get("appendStatus") != "PUT_OK":
            if case.name == "inner_batch_cq":
                assert store.put_message(store_message(put, put)).status.value == result["status"]
            continue
        results = store.put_messages([store_message(put, member) for member in members])
        assert (results[0].status.value, results[0].physical_offset) == (result["status"], result["wroteOffset"])
        assert results[0].queue_offset == result["logicsOffset"]
        store.dispatch()
    return store


def spans(segments: dict[str, bytes], case: Case) -> list[tuple[str, int, int]]:
    """Returns segment, start and end of all bytes to compare: each record, and the header of each blank record."""
    size = case.config("mappedFileSizeCommitLog", 1 << 30)
    log = read_log(segments, size)
    found = [(record.physical_offset, len(record.data)) for record in log.records]
    ends = {offset + length for offset, length in found}
    blanks = [(end, 8) for end in ends if end % size and end not in {offset for offset, _ in found} and end < log.end]
    return [
        (f"{offset - offset % size:020d}", offset % size, offset % size + length) for offset, length in found + blanks
    ]


def do_damage(path: Path, step: dict[str, Any]) -> None:
    """Repeats one step of damage that was applied to RocketMQ's directory."""
    (kind, name) = next((kind, step[kind]) for kind in ("delete", "create", "write", "zero", "flip") if kind in step)
    target, at = path / name, step.get("position", 0)
    if kind == "delete":
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    elif kind == "create":
        target.write_bytes(b64decode(step["base64"]).ljust(step["length"], b"\0"))
    else:
        data = bytearray(target.read_bytes())
        if kind == "write":
            content = b64decode(step["base64"])
        else:
            content = bytes(step["length"]) if kind == "zero" else bytes([data[at] ^ 0xFF])
        data[at : at + len(content)] = content
        target.write_bytes(data)
