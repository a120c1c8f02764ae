"""Counting and finding messages in several stores."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.golden.loader import BROKER_STORES, load_broker, write_files
from tests.unit.store.stores import fill, message, opened

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.formats.message_id import offset_message_id
from rucola.store.doctor.census import HOUR_MS, USED_UP, count_in, find, find_id, lags, merged, segments_of
from rucola.store.inspect.search import MessageQuery
from rucola.store.offline.rows import SegmentRows
from rucola.testing.clock import ManualClock


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Makes two stores, one with messages over several hours."""
    paths = [str(tmp_path_factory.mktemp("census") / name) for name in ("one", "two")]
    for path, step_ms in zip(paths, (1, 60_000), strict=True):
        store = opened(Path(path), clock=ManualClock(step_ms=step_ms))
        fill(store, 300, topics=3)
        store.shutdown()
    return paths


def places(found: Iterable[tuple[str, SegmentRows]]) -> list[tuple[str, int]]:
    return [
        (store, rows.table[row * ROW_WIDTH + RecordColumn.PHYSICAL_OFFSET])
        for store, rows in found
        for row in rows.chosen
    ]


def test_counts_by_topic_queue_tag_and_hour(stores: list[str]) -> None:
    parts = segments_of(stores)
    assert len(parts) > 2
    tallies = [tally for part in parts for tally in count_in(part)[0]]
    assert {(one.store, one.messages) for one in merged(tallies, ["store"])} == {(path, 300) for path in stores}
    by_topic = merged(tallies, ["topic"])
    assert {one.topic: one.messages for one in by_topic} == {"T0": 200, "T1": 200, "T2": 200}
    assert all(one.queue_id == one.hour_ms == -1 and not one.tag for one in by_topic)
    sizes = [rows.table[row * ROW_WIDTH + RecordColumn.RECORD_SIZE] for row, rows in all_rows(stores)]
    assert sum(one.bytes for one in by_topic) == sum(sizes)
    assert {one.tag for one in merged(tallies, ["tag"])} == {"Tag0", "Tag1", "Tag2"}
    hours = [one for one in merged(tallies, ["store", "hour_ms"]) if one.store == stores[1]]
    assert len(hours) > 4 and all(one.hour_ms % HOUR_MS == 0 for one in hours)


def all_rows(stores: list[str]) -> Iterator[tuple[int, SegmentRows]]:
    for _, rows in find(stores, MessageQuery()):
        yield from ((row, rows) for row in rows.chosen)


def test_messages_are_found_in_all_stores(stores: list[str]) -> None:
    by_index = places(find(stores, MessageQuery(key="key-7")))
    assert len(by_index) == 2 and {store for store, _ in by_index} == set(stores)
    assert places(find(stores, MessageQuery(key="key-7"), by_index=False)) == by_index
    body = MessageQuery(body=re.compile(b"^7 7 "))
    assert places(find(stores, body)) == by_index
    assert len(places(find(stores, MessageQuery(topic="T1", tag="Tag1")))) == 200
    store, offset = by_index[0]
    for _, rows in find(stores[:1], MessageQuery(key="key-7")):
        at = rows.table[RecordColumn.STORE_HOST_POS]
        message_id = offset_message_id(bytes(rows.view[at : at + 8]), offset)
    assert places(find_id(stores[:1], message_id)) == [(store, offset)]
    assert places(find_id(stores, offset_message_id(bytes(8), offset))) == []
    with pytest.raises(ValueError, match="not an offset message id"):
        list(find_id(stores, "12"))


def test_dead_letters_and_lags_of_a_broker(tmp_path: Path) -> None:
    assert (BROKER_STORES / "retry_clean.tar.xz").exists()
    write_files(load_broker("retry_clean").files, tmp_path)
    dead = [letters for part in segments_of([str(tmp_path)]) for letters in count_in(part)[1]]
    counted = Counter[str]()
    for letters in dead:
        counted[letters.group] += letters.messages
    tallies = [tally for part in segments_of([str(tmp_path)]) for tally in count_in(part)[0]]
    queued = {
        one.topic.removeprefix("%DLQ%"): one.messages for one in merged(tallies, ["topic"]) if "%DLQ%" in one.topic
    }
    assert counted == queued and counted
    found = lags(str(tmp_path))
    assert found and all(one.lag >= 0 for one in found)
    assert {one.lag for one in found} == {max(one.max_offset - one.consumer_offset, 0) for one in found}


def test_retries_used_up_is_told_from_a_refusal(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for times in (16, 1):
        sent = message(times, b"%DLQ%group")
        sent.reconsume_times = times
        store.put_message(sent)
    store.shutdown()
    (part,) = segments_of([str(tmp_path / "store")])
    reasons = {letters.reason: letters.messages for letters in count_in(part)[1]}
    assert reasons[USED_UP] == 1 and sum(reasons.values()) == 2 and len(reasons) == 2
