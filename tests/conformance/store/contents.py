"""The content of the stores in the conformance run: every kind of record that our appends can write."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

from rucola.common.message import StoreMessage
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageResult, PutMessageStatus
from rucola.testing.clock import ManualClock

GEOMETRY = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 2000,
    "mapperFileSizeBatchConsumeQueue": 4600,
    "mappedFileSizeConsumeQueueExt": 1000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
"""Options with small files, so that log, queues and index have several files each."""

START_MS = 1_700_000_000_000
STEP_MS = 50
"""Milliseconds between two store times; the store spans more than 3 s, the margin of the official store's recovery."""

V4, V6 = bytes([192, 168, 1, 10]), bytes.fromhex("20010db8000000000000000000000006")
BORN, STORE = (54321).to_bytes(4, "big"), (10911).to_bytes(4, "big")
LONG_TOPIC = "%RETRY%" + "g" * 200
"""A topic name longer than the 127 bytes that records of version 1 can hold; the official store reads version 2 since
5.0.
"""

CRC_PROPERTY = "__CRC32#"
BATCH_TOPIC = "BatchTopic"
"""The topic of type BatchCQ, in stores with several kinds of queues."""
INNER_BATCH = 0xC0
KINDS = {"enableConsumeQueueExt": "true", "enableLmq": "true", "enableMultiDispatch": "true"}
"""Options of a store with all kinds of queues."""
Put = dict[str, Any]


def log_paths(path: Path) -> str:
    """Returns the log directories of a store that has several."""
    return ",".join(str(path.parent / f"disk{number}") for number in (2, 1, 3))


def opened(
    path: Path, record_crc: bool, clock: ManualClock, kinds: bool = False, several: bool = False
) -> MessageStore:
    """Runs a store that syncs its queues and its checkpoint as often as possible.

    Args:
        kinds: whether there are light queues, extensions, and a topic of type BatchCQ.
        several: whether the log has several directories.
    """
    config = MessageStoreConfig(
        store_path_root_dir=str(path),
        store_path_commit_log=log_paths(path) if several else "",
        mapped_file_size_commit_log=GEOMETRY["mappedFileSizeCommitLog"],
        mapped_file_size_consume_queue=GEOMETRY["mappedFileSizeConsumeQueue"],
        mapper_file_size_batch_consume_queue=GEOMETRY["mapperFileSizeBatchConsumeQueue"],
        mapped_file_size_consume_queue_ext=GEOMETRY["mappedFileSizeConsumeQueueExt"],
        enable_consume_queue_ext=kinds,
        enable_lmq=kinds,
        enable_multi_dispatch=kinds,
        max_hash_slot_num=GEOMETRY["maxHashSlotNum"],
        max_index_num=GEOMETRY["maxIndexNum"],
        enabled_append_prop_crc=record_crc,
        flush_interval_commit_log_ms=1,
        flush_commit_log_least_pages=0,
        flush_interval_consume_queue_ms=1,
        flush_consume_queue_thorough_interval_ms=1,
    )
    store = MessageStore(
        config,
        Files(),
        clock,
        is_batch_topic=lambda topic: kinds and topic == BATCH_TOPIC.encode(),
    )
    store.load()
    store.start()
    return store


def runs(long_topic: bool, kinds: bool = False) -> Iterator[list[Put]]:
    """Yields lists of messages in order; each list is put with one call."""
    number = 0

    def message(topic: str, queue_id: int, size: int, **fields: Any) -> Put:
        nonlocal number
        number += 1
        properties = {"UNIQ_KEY": f"{number:032X}", "TAGS": f"Tag{number % 3}", "KEYS": f"key-{number} k{number % 7}"}
        text = f"{number} Köln 北京 "
        return {
            "topic": topic,
            "queueId": queue_id,
            "body": (text * (size // len(text) + 1))[:size],
            "properties": properties,
            "flag": number % 5,
            "sysFlag": 0,
            "bornTimestamp": START_MS - number,
            "bornHost": (V4 + BORN).hex(),
            "storeHost": (V4 + STORE).hex(),
            "reconsumeTimes": 0,
            "preparedTransactionOffset": 0,
        } | fields

    v6 = {"bornHost": (V6 + BORN).hex()}
    for turn in range(60):
        for queue_id in range(4):
            yield [message("TopicTest", queue_id, 40 + 13 * (turn % 20))]
        yield [message("Orders", turn % 2, 300, reconsumeTimes=turn, properties={})]
        yield [message("Orders", turn % 2, 0)]
        if kinds:
            names = ["%LMQ%one", "%LMQ%two", "%LMQ%one,%LMQ%two"][turn % 3]
            yield [message("Parent", turn % 2, 40, properties={"INNER_MULTI_DISPATCH": names, "KEYS": "light"})]
            count = turn % 4 + 1
            properties = {"INNER_NUM": str(count), "UNIQ_KEY": f"B{turn}"}
            yield [
                message(BATCH_TOPIC, turn % 2, 0, properties=properties, sysFlag=INNER_BATCH)
                | {"body": "".join(wire_message(f"{at} of {turn}") for at in range(count)), "count": count}
            ]
            yield [message(BATCH_TOPIC, turn % 2, 60)]
        if turn % 2:
            yield [message("Hosts", 0, 50, **v6)]
            yield [message("Hosts", 1, 50, **v6, storeHost=(V6 + STORE).hex())]
            yield [message("Hosts", 0, 50, storeHost=(V6 + STORE).hex())]
        if turn % 5 == 0:
            yield [message("Batches", 1, 700) for _ in range(9)]
            yield [message("Large", 0, 20_000)]
            yield [message("Orders", 1, 30, sysFlag=4)]
            yield [message("Orders", 1, 30, sysFlag=8)]
            yield [message("Orders", 1, 30, sysFlag=12)]
            yield [message("SCHEDULE_TOPIC_XXXX", 2, 30, properties={"DELAY": "3", "REAL_TOPIC": "Orders"})]
            yield [message("%RETRY%group", 0, 90)]
            if long_topic:
                yield [message(LONG_TOPIC, 0, 90)]


def wire_message(body: str) -> str:
    """Returns a message of an inner batch as text; all its bytes are below 128."""
    return "".join(map(chr, pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)))) + body + "\0\0"


def light_names(put: Put) -> list[str]:
    """Returns the names of the light queues to which a message is also put."""
    return [name for name in put["properties"].get("INNER_MULTI_DISPATCH", "").split(",") if name]


def put_all(
    store: MessageStore, clock: ManualClock, long_topic: bool, undispatched: int, kinds: bool = False
) -> list[Put]:
    """Puts all messages; returns them with their offsets. The last ``undispatched`` lists of ``runs`` are only in the
    log.
    """
    todo = list(runs(long_topic, kinds))
    light: Counter[str] = Counter()
    done: list[Put] = []
    for index, run in enumerate(todo):
        clock.advance(STEP_MS)
        for put, result in zip(run, store.put_messages([store_message(put) for put in run]), strict=True):
            done.append(put | placed(result))
            added = {}
            if names := light_names(put):
                added["INNER_MULTI_QUEUE_OFFSET"] = ",".join(str(light[name]) for name in names)
                light.update(names)
            if put["sysFlag"] == INNER_BATCH:
                added["INNER_BASE"] = str(result.queue_offset)
            done[-1] |= {"properties": put["properties"] | added}
        if index < len(todo) - undispatched:
            store.dispatch()
    return done


def store_message(put: Put) -> StoreMessage:
    """Returns the message of a put."""
    properties = "".join(f"{name}\x01{value}\x02" for name, value in put["properties"].items())
    return StoreMessage(
        put["topic"].encode(),
        put["queueId"],
        put["body"].encode(),
        properties.encode(),
        put["bornTimestamp"],
        bytes.fromhex(put["bornHost"]),
        flag=put["flag"],
        sys_flag=put["sysFlag"],
        reconsume_times=put["reconsumeTimes"],
        store_host=bytes.fromhex(put["storeHost"]),
    )


def placed(result: PutMessageResult) -> Put:
    """Returns the offsets, the size and the store time of a message that was put."""
    assert result.status is PutMessageStatus.PUT_OK, result
    return {
        "physicalOffset": result.physical_offset,
        "size": result.size,
        "queueOffset": result.queue_offset,
        "storeTimestamp": result.store_timestamp_ms,
    }


def as_read(put: Put) -> dict[str, Any]:
    """Returns the message of a put as every reader must return it, without the checksum property."""
    hosts = {name: bytes.fromhex(put[name]) for name in ("bornHost", "storeHost")}
    wide = 0x10 * (len(hosts["bornHost"]) > 8) | 0x20 * (len(hosts["storeHost"]) > 8)
    return (
        {name: value for name, value in put.items() if name not in ("body", "count")}
        | {name: f"{host[:-4].hex()}:{int.from_bytes(host[-4:], 'big')}" for name, host in hosts.items()}
        | {"sysFlag": put["sysFlag"] | wide, "body": hashlib.sha256(put["body"].encode()).hexdigest()}
    )


def in_queues(puts: list[Put]) -> dict[tuple[str, int], list[Put]]:
    """Returns the put messages by queue, in order. Prepared and rolled back messages are in no queue; some messages are
    also in light queues.
    """
    queues: dict[tuple[str, int], list[Put]] = {}
    for put in puts:
        if put["sysFlag"] & 12 in (0, 8):
            for name in [(put["topic"], put["queueId"]), *((name, 0) for name in light_names(put))]:
                queues.setdefault(name, []).append(put)
    return queues


def save(puts: list[Put], path: Path) -> None:
    """Saves the put messages in a file, for the process that compares them."""
    path.write_text(json.dumps(puts))
