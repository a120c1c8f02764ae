"""Topics as a dataset: a filter selects the same rows as PyArrow's own filter, but reads less of the log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sizes import size
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store, put

from rucola.arrow import dataset, scan, scanner, selection, store_catalog, topic_dataset
from rucola.arrow.ranges import LogRange, RecordRange, SourceRange
from rucola.arrow.read_options import ScanOrder
from rucola.errors import ConfigError, StoreDamagedError
from rucola.formats.properties import encode_properties
from rucola.store.index_follower import IndexFollower
from rucola.store.offline.offline_store import OfflineStore

COUNT = 1200
PLACE = ["topic", "queueId", "queueOffset"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arrow") / "store"
    store = open_store(path)
    for number in range(COUNT):
        one = message(number, b"flights" if number % 4 else b"other")
        one.store_host = store.store_host
        one.properties = encode_properties(
            {"KEYS": f"k{number} all", "TAGS": f"T{number % 5}"} | ({"UNIQ_KEY": f"u{number}"} if number % 7 else {})
        )
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    return path


@pytest.fixture(scope="module")
def rows(directory: Path) -> pa.Table:
    return scan(directory).read_all()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[SourceRange]:
    """Returns a list to which each read adds the range of the source that it reads."""
    pieces: list[SourceRange] = []

    def read_range(options: Any, schema: Any, piece: SourceRange) -> Iterator[pa.RecordBatch]:
        pieces.append(piece)
        return read(options, schema, piece)

    read = topic_dataset.read_range
    monkeypatch.setattr(topic_dataset, "read_range", read_range)
    return pieces


def places(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in table.select(PLACE).to_pylist())


def test_columns_and_topics(directory: Path, rows: pa.Table) -> None:
    assert rows.num_rows == COUNT
    one = scan(directory, "flights", ["queueOffset", "topic"]).read_all()
    assert one.schema.names == ["queueOffset", "topic"]
    assert set(one["topic"].to_pylist()) == {"flights"}
    assert one.num_rows == dataset(directory, "flights").count_rows() == COUNT * 3 // 4
    assert scan(directory, ["flights", "other"], ["topic"]).read_all().num_rows == COUNT
    assert dataset(directory).head(3, columns=["keys"]).num_rows == 3


FILTERS = [
    pc.field("keys") == "k9 all",
    pc.field("keys").isin(["k9 all", "k10 all", "all", "none"]),
    pc.field("msgId") == "u8",
    pc.field("tags") == "T3",
    pc.field("tags").isin(["T3", None]),
    (pc.field("queueId") == 2) & (pc.field("queueOffset") >= 290),
    (pc.field("queueOffset") == 7) | (pc.field("tags") == "T1"),
    pc.starts_with(pc.field("keys"), "k11"),
    pc.field("topic") != "flights",
    pc.field("keys").is_null(),
    pc.field("flag") + 1 == 7920,
]


@pytest.mark.parametrize("expression", FILTERS)
def test_filters(directory: Path, rows: pa.Table, expression: Any) -> None:
    assert places(scan(directory, columns=PLACE, filter=expression).read_all()) == places(rows.filter(expression))


def test_ids_of_brokers(directory: Path, rows: pa.Table, planned: list[SourceRange]) -> None:
    row = next(row for row in rows.to_pylist() if row["keys"] == "k14 all")
    assert len(row["msgId"]) == 32
    assert places(scan(directory, filter=pc.field("msgId") == row["msgId"]).read_all()) == [
        tuple(row[name] for name in PLACE)
    ]
    assert isinstance(planned[0], RecordRange)


def test_the_index_leads_to_a_key(directory: Path, planned: list[SourceRange]) -> None:
    found = scan(directory, "flights", ["keys", "flag"], pc.field("keys") == "k9 all").read_all()
    assert found.to_pylist() == [{"keys": "k9 all", "flag": 9 * 7919}]
    single, *tail = planned
    assert isinstance(single, RecordRange)
    assert len(single.physical_offsets) == 1
    # The last record of the index may have had more keys.
    assert all(isinstance(one, LogRange) and one.end_physical_offset - one.start_physical_offset < 500 for one in tail)
    planned.clear()
    without = dataset(directory, "flights", use_index=False).to_table(filter=pc.field("keys") == "k9 all")
    assert without.num_rows == 1
    assert not any(isinstance(one, RecordRange) for one in planned)


def test_a_lookup_opens_only_queues_that_may_hold_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    for number in range(40):
        if number == 30:
            store.dispatch()
            monkeypatch.setattr(IndexFollower, "put", lambda *_: None)  # no more messages enter the index
        one = message(number, b"topic-%d" % (number % 10 if number < 30 else 0))
        one.queue_id, one.store_host = 0, store.store_host
        one.properties = encode_properties({"KEYS": f"k{number}"})
        store.put_message(one)
    store.dispatch()
    opened: set[str] = set()
    queue_range = OfflineStore.queue_range

    def noting(offline: OfflineStore, topic: str, queue_id: int) -> Any:
        opened.add(topic)
        return queue_range(offline, topic, queue_id)

    monkeypatch.setattr(OfflineStore, "queue_range", noting)
    for key, topics in (("k7", {"topic-7"}), ("k33", {"topic-0"}), ("k99", set())):
        found = scan(tmp_path, columns=["keys"], filter=pc.field("keys") == key).read_all()
        assert found.to_pylist() == [{"keys": key}] * bool(topics)
        # The last record in the index and the records after it are of topics 0 and 9.
        assert opened == topics | {"topic-0", "topic-9"}
        opened.clear()
    monkeypatch.setattr(store_catalog, "UNINDEXED_BYTES_MAX", 0)
    assert scan(tmp_path, columns=["keys"], filter=pc.field("keys") == "k33").read_all().num_rows == 1
    assert len(opened) == 10
    store.shutdown()


def test_each_of_several_directories_answers_from_its_index(directory: Path, planned: list[SourceRange]) -> None:
    both = dataset(f"{directory},{directory}", "flights", broker_name="a,b")
    found = both.to_table(["brokerName", "flag"], pc.field("keys") == "k9 all").to_pylist()
    assert found == [{"brokerName": name, "flag": 9 * 7919} for name in "ab"]
    assert [type(one) for one in planned].count(RecordRange) == 2


def test_offsets_and_times_cut_queues(
    directory: Path, planned: list[SourceRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "PART_ROWS_MIN", 8)
    one = (pc.field("queueId") == 1) & (pc.field("queueOffset") == 20)
    scan(directory, "flights", [*PLACE, "flag"], one).read_all()
    (piece,) = planned
    assert isinstance(piece, LogRange)
    (wanted,) = piece.wanted
    assert (wanted.queue.queue_id, wanted.count <= 18, wanted.start <= 20 < wanted.end) == (1, True, True)
    planned.clear()
    late = datetime.now(UTC) + timedelta(days=1)
    assert scan(directory, filter=pc.field("storeTimestamp") > pa.scalar(late)).read_all().num_rows == 0
    assert not planned


def test_tags_choose_entries(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    read = topic_dataset.read_range
    monkeypatch.setattr(
        topic_dataset, "read_range", lambda options, *rest: (seen.append(options.expression), read(options, *rest))[1]
    )
    scan(directory, "flights", PLACE, pc.field("tags").isin(["T1", "T2"])).read_all()
    assert {frozenset(one.tags) for one in seen} == {frozenset(("T1", "T2"))}


def test_a_running_store_is_read_to_its_end(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    whole = dataset(tmp_path / "store", "flights")
    for number in range(3):
        put(store, number * 40, 40)
        assert whole.count_rows() == (number + 1) * 10
    late = message(8, b"flights")
    late.store_host = store.store_host
    late.properties = encode_properties({"KEYS": "late one"})
    store.put_message(late)
    store.dispatch()
    assert whole.to_table(filter=pc.field("keys") == "late one").num_rows == 1
    store.shutdown()


EXPRESSIONS = st.recursive(
    st.one_of(
        st.builds(
            lambda name, operator, value: getattr(pc.field(name), operator)(value),
            st.sampled_from(["queueId", "queueOffset"]),
            st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]),
            st.integers(0, 310),
        ),
        st.builds(
            lambda values: pc.field("keys").isin(values),
            st.lists(st.integers(0, COUNT).map(lambda n: f"k{n} all"), min_size=1),
        ),
        st.builds(
            lambda tags: pc.field("tags").isin(pa.array(tags, pa.string())),
            st.lists(st.sampled_from(["T0", "T1", "x y", None]), min_size=1),
        ),
        st.builds(lambda topic: pc.field("topic") == topic, st.sampled_from(["flights", "other", "none"])),
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        inner.map(lambda a: ~a),
    ),
    max_leaves=5,
)


@settings(max_examples=size(15, 50), deadline=None)
@given(
    expression=EXPRESSIONS,
    more=st.sampled_from([[], ["flag"]]),
    order=st.sampled_from(list(ScanOrder)),
    part_rows=st.sampled_from([8, 256]),
)
def test_any_filter_gives_the_rows_that_it_lets_through(
    directory: Path, rows: pa.Table, expression: Any, more: list[str], order: ScanOrder, part_rows: int
) -> None:
    with mock.patch.object(selection, "PART_ROWS_MIN", part_rows):
        found = scan(directory, columns=[*PLACE, *more], filter=expression, scan_order=order).read_all()
    assert places(found) == places(rows.filter(expression))


@pytest.mark.parametrize("topic", ["flights", None])
@pytest.mark.parametrize("order", list(ScanOrder))
def test_several_parts_of_a_queue(
    directory: Path, rows: pa.Table, topic: str | None, order: ScanOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, a scan in log order kept only the last part of each queue."""
    monkeypatch.setattr(selection, "PART_ROWS_MIN", 8)
    offset, queue = pc.field("queueOffset"), pc.field("queueId")
    several = (offset < 60) | ((offset >= 100) & (offset < 140) & (queue != 1)) | (offset >= 200)
    found = scan(directory, topic, [*PLACE, "flag"], several, scan_order=order).read_all()
    mine = several if topic is None else several & (pc.field("topic") == topic)
    assert places(found) == places(rows.filter(mine))


@pytest.mark.parametrize("largest", [0, 1])
def test_large_queue_ids(directory: Path, rows: pa.Table, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, a scan of a queue with id 2**31 - 1, as RocketMQ writes it, took 16 GiB (``many_queues``)."""
    monkeypatch.setattr(scanner, "QUEUE_ID_MAX", largest)
    for topic, expression in (("flights", pc.field("topic") == "flights"), (None, pc.field("flag") >= 0)):
        found = scan(directory, topic, [*PLACE, "flag"], scan_order=ScanOrder.LOG).read_all()
        assert places(found) == places(rows.filter(expression))


def test_errors_name_what_there_is(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"topic.*flight.*flights, other"):
        scan(directory, "flight")
    with pytest.raises(ConfigError, match=r"columns.*colour.*queueOffset"):
        scan(directory, "flights", ["colour"])
    with pytest.raises(ConfigError, match="exactly one of store and name_server"):
        scan(directory, name_server="localhost:9876")
    with pytest.raises(ConfigError, match="exactly one of store and name_server"):
        scan()
    with pytest.raises(StoreDamagedError, match="no store here"):
        scan(tmp_path)
    with pytest.raises(NotImplementedError, match="to_table"):
        dataset(directory).sort_by("topic")


@pytest.mark.parametrize("order", list(ScanOrder))
def test_messages_of_a_deleted_topic_do_not_come_back_with_a_new_topic_of_its_name(
    tmp_path: Path, order: ScanOrder
) -> None:
    """The old topic's records are still in the log, with the queue ids and queue offsets of the new topic."""
    store = open_store(tmp_path / "store")
    put(store, 0, 80)
    store.delete_topic(b"flights")
    put(store, 80, 80)
    store.shutdown()
    rows = scan(tmp_path / "store", scan_order=order)
    ends = rows.read_all()
    assert ends.num_rows == 140
    assert "k0" not in ends.filter(pc.field("topic") == "flights").column("keys").to_pylist()
    found = dataset(tmp_path / "store", scan_order=order).to_table(filter=pc.field("keys") == "k28")
    assert found.num_rows == 0
    assert dataset(tmp_path / "store", ["flights", "other"]).to_table(filter=pc.field("keys") == "k84").num_rows == 1
