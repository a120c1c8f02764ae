"""Directories of RocketMQ's broker, opened by ours: every message, unit and key in their logs exists.

The broker, and not the store, decides about waiting messages (delayed, timed, half, to be retried). In the store they
are messages of the topics in which they wait.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden.loader import BROKER_STORES, BrokerCase, load_broker, write_files
from tests.plain_log import PlainLog, read_log
from tests.reading import pulled, unit_table

from rucola.common.java import parse_properties
from rucola.common.options import options_of, parse_options
from rucola.formats.message import decode_message
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in BROKER_STORES.glob("*.tar.xz"))
NOW_MS = 1_800_000_000_000


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> BrokerCase:
    return load_broker(request.param)


@pytest.fixture
def log(case: BrokerCase) -> PlainLog:
    segments = {path.removeprefix("commitlog/"): data for path, data in case.files.items() if path.startswith("commit")}
    found = read_log(segments, int(parse_properties(case.broker_conf)["mappedFileSizeCommitLog"]))
    assert found.sound_end == found.end
    return found


def opened(case: BrokerCase, path: Path) -> MessageStore:
    write_files(case.files, path)
    known = {entry.key for entry in options_of(MessageStoreConfig)}
    values = {key: value for key, value in parse_properties(case.broker_conf).items() if key in known}
    places = {"storePathRootDir": str(path), "storePathCommitLog": ""}
    store = MessageStore(parse_options(MessageStoreConfig, values | places), Files(), ManualClock(NOW_MS))
    store.load()
    store.start()
    return store


def test_there_are_twelve() -> None:
    assert len(NAMES) == 12


def test_every_record_of_the_log_is_served(case: BrokerCase, log: PlainLog, tmp_path: Path) -> None:
    store = opened(case, tmp_path)
    assert (store.min_offset, store.max_offset) == (0, log.end)
    for record in log.records:
        view = store.message_at(record.physical_offset)
        assert view is not None and bytes(view) == record.data
    queues: dict[tuple[str, int], list[bytes]] = {}
    for record in log.records:
        if record.queued:
            queue = queues.setdefault((record.topic, record.queue_id), [])
            assert len(queue) == record.queue_offset
            queue.append(record.data)
    assert {name: pulled(store, *name) for name in queues} == {
        name: dict(enumerate(records)) for name, records in queues.items()
    }
    # A broker may make a queue's directory without ever getting a message for it.
    others = {(topic.decode(), queue_id) for topic, queue_id in store.queue_names()} - queues.keys()
    assert all(store.max_queue_offset(topic.encode(), queue_id) == 0 for topic, queue_id in others)
    store.shutdown()


def test_messages_and_answers_of_the_traffic_are_there(case: BrokerCase, log: PlainLog, tmp_path: Path) -> None:
    store = opened(case, tmp_path)
    for sent in case.expected.get("messages", []):
        # The id in the response points at the record that waits, in whatever topic, not at the one delivered later.
        record = store.message_at(int(sent["answered_offset_msg_id"][16:], 16))
        assert record is not None
        message = decode_message(record)
        assert (message.body.decode(), message.properties["UNIQ_KEY"]) == (sent["body"], sent["uniq_key"])
    served = [entry for entry in case.reopened.get("at_open", []) if entry["physical_offset"] < log.end]
    assert served or case.name.startswith("acl")
    for entry in served:
        result = store.get_message(entry["topic"].encode(), entry["queue"], entry["queue_offset"], 1, 1 << 20)
        (message,) = [decode_message(view) for view in result.views]
        assert message.physical_offset == entry["physical_offset"]
        assert (message.body.decode(), message.reconsume_times) == (entry["body"], entry["reconsume_times"])
        assert message.properties.get("UNIQ_KEY") == entry["uniq_key"]
    visible = {(entry["topic"], entry["queue"]) for entry in served}
    for topic, queue_id in visible:
        count = sum((entry["topic"], entry["queue"]) == (topic, queue_id) for entry in served)
        assert store.max_queue_offset(topic.encode(), queue_id) == count
    store.shutdown()


def test_queue_units_are_those_of_the_reference(case: BrokerCase, log: PlainLog, tmp_path: Path) -> None:
    prefix = "consumequeue/"
    theirs = unit_table({path: data for path, data in case.files.items() if path.startswith(prefix)})
    opened(case, tmp_path).shutdown()
    ours = unit_table({str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.glob(f"{prefix}*/*/*")})
    assert {(*name, at): unit[:2] for name, units in ours.items() for at, unit in units.items()} == {
        (record.topic, record.queue_id, record.queue_offset): (record.physical_offset, len(record.data))
        for record in log.records
        if record.queued
    }
    assert theirs or case.name.startswith("acl")
    for name, units in theirs.items():
        assert units.items() <= ours[name].items(), name


def test_every_key_is_found(case: BrokerCase, log: PlainLog, tmp_path: Path) -> None:
    store = opened(case, tmp_path)
    expected: dict[tuple[str, bytes], list[bytes]] = {}
    for record in log.records:
        for key in record.keys:
            expected.setdefault((record.topic, key), []).append(record.data)
    for (topic, key), records in expected.items():
        views = store.query_by_key(topic.encode(), key, 64).views
        assert list(map(bytes, views)) == records[-64:]
    assert expected or case.name.startswith("acl")
    store.shutdown()
