"""Scans of topics, queues and offsets: the queues answer them without a look at the messages, where that is certain."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.sizes import size
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store

from rucola.arrow import dataset, dense_queues, numbered_rows, selection, topic_dataset
from rucola.arrow.expression import parse_tag_expression
from rucola.arrow.read_options import ScanOrder, SchemaStyle
from rucola.arrow.store_scan import PREFILL_SIZE, UNIT
from rucola.errors import RucolaError

COUNT = 1500
PLACE = ["topic", "brokerName", "queueId", "queueOffset"]
TOPICS = (b"flights", b"flights", b"other", "größe".encode())


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages of three topics in several segments of the log and several files of each queue."""
    path = tmp_path_factory.mktemp("dense") / "store"
    store = open_store(path)
    for number in range(COUNT):
        one = message(number, TOPICS[number % 4])
        one.store_host = store.store_host
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    return path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pieces of messages that are read."""
    pieces: list[Any] = []
    read_range = topic_dataset.read_range
    monkeypatch.setattr(topic_dataset, "read_range", lambda *a: (pieces.append(a[2]), read_range(*a))[1])
    return pieces


def places(path: Path, topic: str | None, *more: str, filter: Any = None, **options: Any) -> Any:
    """The sorted places of all messages, or the class of the error that ends the scan."""
    try:
        table: pa.Table = dataset(path, topic, **options).to_table(columns=[*PLACE, *more], filter=filter)
    except (RucolaError, pa.ArrowException) as error:
        return type(error)
    return sorted(tuple(row.values()) for row in table.select(PLACE).to_pylist())


@pytest.mark.few
@pytest.mark.parametrize("order", list(ScanOrder))
@pytest.mark.parametrize("topic", ["flights", "größe", None])
def test_no_message_is_read(
    intact: Path, topic: str | None, order: ScanOrder, read: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_queues, "CHUNK_UNITS", 7)
    monkeypatch.setattr(numbered_rows, "BATCH_ROWS", 11)
    monkeypatch.setattr(selection, "PART_ROWS_MIN", 8)
    for filter in (
        None,
        pc.field("queueId") == 1,
        (pc.field("queueOffset") < 9) | (pc.field("queueOffset") >= 100),
        pc.field("topic") != "flights",
    ):
        found = places(intact, topic, filter=filter, scan_order=order)
        assert not read
        assert found == places(intact, topic, "flag", filter=filter, scan_order=order)
        read.clear()
    assert dataset(intact, topic, scan_order=order).count_rows() == len(places(intact, topic))
    assert dataset(f"{intact},{intact}", topic, broker_name="a,b").count_rows() == 2 * len(places(intact, topic))
    assert not read


def test_other_columns_and_choices_need_messages(intact: Path, read: list[Any]) -> None:
    for options in (
        {"expression": parse_tag_expression("AA")},
        {"keys": frozenset(["k5"])},
        {"schema_style": SchemaStyle.KAFKA},
    ):
        dataset(intact, "flights", **options).to_table(columns=["topic"])
        assert read
        read.clear()
    dataset(intact, "flights").to_table(columns=["queueOffset"], filter=pc.field("tags") == "AA")
    assert read


def damages(rng: random.Random, units: Any) -> None:
    """Damages an entry or two of a queue's file."""
    at, other = rng.randrange(len(units)), rng.randrange(len(units))
    match rng.randrange(8):
        case 0:
            units[at] = (0, 0, 0)
        case 1:
            units[at] = (0, PREFILL_SIZE, 0)
        case 2:
            units[at] = units[other]
        case 3:
            units[at]["size"] = rng.choice((0, -1, 30, int(units[at]["size"]) + rng.choice((1, -1, 1 << 20))))
        case 4:
            units[at]["physical_offset"] += rng.choice((1, -1, 1 << 14, 1 << 40, -(1 << 40)))
        case 5:
            units[[at, other]] = units[[other, at]]
        case 6:
            units[at:] = np.roll(units[at:], 1)
        case _:
            units[:at] = (0, PREFILL_SIZE, 0)


def files_of(path: Path) -> Iterator[Path]:
    yield from (file for file in sorted((path / "consumequeue").rglob("*")) if file.is_file())


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(size(6, 0), 12))  # 6 and 11 find entries that leave out records
def test_damaged_queues_give_what_a_scan_gives(intact: Path, seed: int) -> None:
    rng = random.Random(seed)
    file = rng.choice([*files_of(intact)])
    whole = file.read_bytes()
    units = np.frombuffer(whole, UNIT).copy()
    damages(rng, units)
    file.write_bytes(units.tobytes())
    try:
        for topic in ("flights", "other", None):
            for order in ScanOrder:
                scanned = places(intact, topic, "flag", scan_order=order)
                found = places(intact, topic, scan_order=order)
                assert found == scanned
    finally:
        file.write_bytes(whole)


def test_records_of_an_earlier_life_of_a_queue_are_found_by_a_scan_of_the_log(intact: Path, tmp_path: Path) -> None:
    """A deleted queue begins again at offset 0, and the log still has its old messages."""
    store = open_store(tmp_path / "store")
    for number in range(40):
        if number == 20:
            store.dispatch()
            store.shutdown()
            (tmp_path / "store/consumequeue/flights/0/00000000000000000000").unlink()
            store = open_store(tmp_path / "store")
        one = message(number, b"flights" if number != 1 else b"other")
        one.store_host, one.queue_id = store.store_host, int(number == 0)
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    for order in ScanOrder:
        found = places(tmp_path / "store", None, scan_order=order)
        assert found == places(tmp_path / "store", None, "flag", scan_order=order)
        assert len(found) > 20


def test_stores_with_very_many_queues_are_scanned(
    intact: Path, read: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_queues, "QUEUES_MAX", 8)
    assert len(places(intact, None)) == COUNT
    assert read


def test_entries_of_another_queue_prove_nothing(intact: Path, read: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    entries = dense_queues._entries

    def exchanged(store: Any, topic: str, queue_id: int, *offsets: int) -> Any:
        return entries(store, topic, {0: 1, 1: 0, 2: 2}[queue_id] if topic == "flights" else queue_id, *offsets)

    assert len(places(intact, "flights")) == COUNT // 2
    assert not read
    monkeypatch.setattr(dense_queues, "_entries", exchanged)
    assert len(places(intact, "flights")) == COUNT // 2
    assert read
