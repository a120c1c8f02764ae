"""The message store against the reference's: its puts are put again, and what it refuses is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from tests.golden.loader import Case, body_bytes, host, unpack
from tests.golden.opening import CASES, config_of, store_of

from rucola.common.message import StoreMessage
from rucola.errors import StoreDamagedError
from rucola.formats.message import decode_message, decode_messages
from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore
from rucola.store.offline import OfflineStore
from rucola.testing.clock import ManualClock

WRITTEN = (
    "bodies",
    "crc_property",
    "exact_fit",
    "index_chains",
    "inner_batch_cq",
    "inner_batch_roll",
    "ipv6_hosts",
    "lmq",
    "lmq_no_dispatch",
    "plain_batch",
    "plain_batch_roll",
    "properties",
    "queue_ext",
    "queue_ext_bitmap",
    "rolling",
    "tags",
    "transaction_flags",
    "v1_one_record",
    "v2_long_topic",
)
DAMAGED = {"killed_bad_body_crc", "killed_bad_magic", "killed_bad_size"}
FOREVER_MS = (1 << 63) - 1


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Index files are named in local time."""
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


@pytest.mark.parametrize("name", ["refused_stray_file", "refused_wrong_length"])
def test_what_the_reference_refuses_is_refused(name: str, tmp_path: Path) -> None:
    case = unpack(name, tmp_path)
    with pytest.raises(StoreDamagedError):
        MessageStore(config_of(case, tmp_path), Files(), ManualClock()).load()
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert left - {"lock"} == set(case.files)
    assert all((tmp_path / path).read_bytes() == data for path, data in case.files.items())


@pytest.mark.parametrize("name", sorted({*CASES} - DAMAGED))  # damage is not the end
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
    """The body of an inner batch: its messages as a producer sends those of a batch."""
    parts = []
    for member in members:
        body, text = body_bytes(member.get("body")), member["propertiesString"].encode()
        size = 22 + len(body) + len(text)
        parts.append(pack(">iiiii", size, 0, 0, member["flag"], len(body)) + body + pack(">h", len(text)) + text)
    return b"".join(parts)


def records_of(case: Case, segments: dict[str, bytes]) -> list[bytes]:
    """The bytes that count: each record and the header of each blank."""
    size = case.config("mappedFileSizeCommitLog", 1 << 30)
    parts = []
    for entry in case.expect["log"]:
        offset = entry["physicalOffset"]
        data = segments[f"{offset - offset % size:020d}"]
        length = 8 if "msgId" not in entry else entry["size"]
        parts.append(data[offset % size : offset % size + length])
    return parts


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("name", WRITTEN)
def test_the_puts_of_the_reference_give_its_bytes(name: str, tmp_path: Path) -> None:
    case = unpack(name, tmp_path / "theirs")
    clock = ManualClock()
    store = store_of(case, config_of(case, tmp_path / "ours"), clock)
    store.load()
    store.start()
    for step in case.puts:
        put, result = step["message"], step["result"]
        clock.set_wall_ms(step["clock"])
        members = put["members"] if put["kind"] == "batch" else [put]
        if result.get("appendStatus") != "PUT_OK":
            if name == "inner_batch_cq":
                assert store.put_message(store_message(put, put)).status.value == result["status"]
            continue
        results = store.put_messages([store_message(put, member) for member in members])
        assert (results[0].status.value, results[0].physical_offset) == (result["status"], result["wroteOffset"])
        assert results[0].queue_offset == result["logicsOffset"]
        store.dispatch()
    check_reads(store, case)
    store.shutdown()
    ours = {
        str(file.relative_to(tmp_path / "ours")): file.read_bytes()
        for file in (tmp_path / "ours").rglob("*")
        if file.is_file()
    }
    logs = {path.removeprefix("commitlog/"): data for path, data in ours.items() if path.startswith("commitlog/")}
    assert logs.keys() == case.below("commitlog").keys()
    assert records_of(case, logs) == records_of(case, case.below("commitlog"))
    for directory in ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index"):
        mine = {path: data for path, data in ours.items() if path.startswith(directory + "/")}
        theirs = {f"{directory}/{path}": data for path, data in case.below(directory).items()}
        assert mine.keys() == theirs.keys()
        assert [path for path in mine if mine[path] != theirs[path]] == []
