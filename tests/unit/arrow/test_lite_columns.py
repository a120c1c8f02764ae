"""Lite topics as columns of their parent's messages; filters on them select the same rows as PyArrow's own filter, but
read less.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.arrow.lite_stores import COUNT, filled, name_of, opened_lite, put
from tests.unit.store.stores import HOST

from rucola.arrow import columns, dataset, scan, topic_dataset
from rucola.arrow.filters import Call, ColumnRef, Literal, parse_filter
from rucola.arrow.lite_condition import (
    EVERY_LITE,
    LiteCondition,
    at_least,
    at_most,
    lite_condition,
    one_of,
    starts_with,
)
from rucola.arrow.ranges import LogRange, RecordRange, SourceRange
from rucola.common.message import StoreMessage
from rucola.formats.light_queue import lite_topic

LITE = pc.field("liteTopic")
COLUMNS = ["queueId", "queueOffset", "liteTopic", "liteOffset"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lite") / "store"
    filled(path).shutdown()
    return path


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


def rows_of(path: Path, condition: ds.Expression | None = None, topic: str | None = "Parent") -> list[tuple[Any, ...]]:
    table = scan(path, topic, COLUMNS, condition, include_lite=True).read_all()
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=str)


def records_read(pieces: list[SourceRange]) -> int:
    """Number of single records that were read; a scan of the log counts as a million."""
    return sum(len(one.physical_offsets) if isinstance(one, RecordRange) else 1_000_000 for one in pieces)


def test_the_columns_are_there_on_request_only(directory: Path) -> None:
    names = scan(directory, "Parent").schema.names
    assert "liteTopic" not in names
    assert scan(directory, "Parent", include_lite=True).schema.names == [*names, "liteTopic", "liteOffset"]


def test_each_message_has_its_lite_topic_and_its_offset_there(directory: Path) -> None:
    counts: dict[str | None, int] = {}
    expected = []
    for number in range(COUNT):
        name = name_of(number)
        expected.append((number % 2, number // 2, name, None if name is None else counts.get(name, 0)))
        counts[name] = counts.get(name, 0) + 1
    assert rows_of(directory) == sorted(expected, key=str)


@pytest.mark.parametrize(
    "condition",
    [
        LITE == "s4", LITE == "größe", LITE == "nobody", LITE.isin(["s1", "s4", "s6"]), (LITE == "s2") | (LITE == "s4"),
        LITE.is_null(), LITE.is_valid(), ~LITE.is_null(), pc.starts_with(LITE, "s"), pc.starts_with(LITE, "grö"),
        LITE >= "s4", LITE < "s4", LITE > "s4", LITE <= "s4", pc.scalar("s4") > LITE, LITE != "s4",
        (LITE >= "s2") & (LITE < "s7"), (LITE == "s4") & (pc.field("queueId") == 0), (LITE == "s4") & LITE.is_null(),
        LITE.is_null() & LITE.is_valid(), (LITE == "s4") | (pc.field("queueId") == 0),
        pa.scalar(None, pa.string()) == LITE,
        (LITE == "s4") & (pc.field("liteOffset") > 3), pc.match_like(LITE, "s%"), pc.field("tags") == LITE,
        LITE.isin(["s1", None]), ~(LITE == "s4"), pc.starts_with(LITE, "S", ignore_case=True),
    ],
    ids=str,
)  # fmt: skip
def test_filters_select_what_pyarrow_selects(directory: Path, condition: ds.Expression) -> None:
    table = scan(directory, "Parent", [*COLUMNS, "tags"], include_lite=True).read_all().filter(condition)
    expected = sorted(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True), key=str)
    assert rows_of(directory, condition) == expected


def test_a_filter_on_names_reads_only_the_records_of_their_units(directory: Path, planned: list[SourceRange]) -> None:
    found = rows_of(directory, LITE.isin(["s4", "s6", "nobody"]))
    assert len(found) == records_read(planned) == sum(name_of(number) in ("s4", "s6") for number in range(COUNT))
    planned.clear()
    assert rows_of(directory, (LITE == "s4") & (pc.field("queueOffset") < 20))
    assert records_read(planned) < COUNT


def test_a_filter_that_names_none_scans_but_builds_only_chosen_rows(
    directory: Path, planned: list[SourceRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    batches = columns.BatchBuilder.batches

    def counted(self: Any, rows: Any) -> Any:
        built.append(rows.count)
        return batches(self, rows)

    monkeypatch.setattr(columns.BatchBuilder, "batches", counted)
    assert len(rows_of(directory, pc.starts_with(LITE, "s4"))) == sum(built)
    assert all(isinstance(one, LogRange) for one in planned)


def test_messages_without_a_unit_yet_are_scanned(tmp_path: Path, planned: list[SourceRange]) -> None:
    store = filled(tmp_path / "store")
    store.shutdown()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    later = opened_lite(tmp_path / "store")
    for number in range(8):
        put(later, number, "s4")
    later.dispatch()
    later.shutdown()
    # Log and queues of the parent are newer than the lite topics, as if a broker had not synced these yet.
    for part in ("rucola-lite", "rucola-watermark"):
        target = tmp_path / "store" / part
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        source = tmp_path / "copy" / part
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    expected = [row for row in rows_of(tmp_path / "store") if row[2] == "s4"]
    planned.clear()
    assert rows_of(tmp_path / "store", LITE == "s4") == expected
    assert [type(one) for one in planned] == [RecordRange, LogRange]
    assert len(expected) == sum(name_of(number) == "s4" for number in range(COUNT)) + 8


def test_deleted_messages_stay_rows_of_the_parent(tmp_path: Path, planned: list[SourceRange]) -> None:
    store = filled(tmp_path)
    expected = [row for row in rows_of(tmp_path) if row[2] == "s4"]
    store.delete_lite([b"Parent$s4"])
    store._keeper.sync_queues()
    store.dispatch()
    put(store, 1, "s4")
    store.dispatch()
    store.shutdown()
    found = rows_of(tmp_path, LITE == "s4")
    assert set(expected) < set(found)
    assert len(found) == len(expected) + 1
    assert max(row[3] for row in found) == len(expected)


def test_records_of_a_life_that_began_at_0_again_are_found(tmp_path: Path, planned: list[SourceRange]) -> None:
    store = filled(tmp_path)
    store._appender._assigner._light = False  # as RocketMQ, which forgets the counter of a deleted lite topic
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%$Parent$s4\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    store.put_message(StoreMessage(b"Parent", 0, b"again", properties, 1, HOST))
    store.dispatch()
    store.shutdown()
    planned.clear()
    found = rows_of(tmp_path, LITE == "s4")
    assert len(found) == records_read(planned) == sum(name_of(number) == "s4" for number in range(COUNT)) + 1
    assert [row[3] for row in found].count(0) == 2


def test_damaged_or_missing_lite_topics_are_no_obstacle(
    tmp_path: Path, planned: list[SourceRange], caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path).shutdown()
    expected = rows_of(tmp_path, LITE == "s4")
    table = tmp_path / "rucola-lite/table"
    table.write_bytes(table.read_bytes()[:-1])
    planned.clear()
    assert rows_of(tmp_path, LITE == "s4") == expected
    assert "lite topics are searched in the log" in caplog.text
    assert not any(isinstance(one, RecordRange) for one in planned)
    shutil.rmtree(tmp_path / "rucola-lite")
    assert rows_of(tmp_path, LITE == "s4") == expected


def test_a_damaged_unit_makes_the_plan_scan(tmp_path: Path, planned: list[SourceRange]) -> None:
    filled(tmp_path).shutdown()
    expected = rows_of(tmp_path, LITE == "s4")
    (segment, *_) = sorted((tmp_path / "rucola-lite/units").iterdir())
    content = bytearray(segment.read_bytes())
    content[4 * 40 + 30] ^= 1  # the fifth message is in s4
    segment.write_bytes(content)
    planned.clear()
    assert rows_of(tmp_path, LITE == "s4") == expected
    assert not any(isinstance(one, RecordRange) for one in planned)


def test_a_light_queue_and_several_topics(directory: Path, planned: list[SourceRange]) -> None:
    queue = lite_topic(b"Parent$s4").decode()
    assert rows_of(directory, LITE == "s1", None) == [row for row in rows_of(directory, None, None) if row[2] == "s1"]
    assert len(dataset(directory, ["Parent", "Other"], include_lite=True).to_table(filter=LITE == "s1")) > 30
    with pytest.raises(Exception, match="topic"):
        rows_of(directory, LITE == "s4", queue)


TEXTS = st.text(st.sampled_from("ab\ud7ff\ue000\U0010ffffé"), max_size=4)


@given(prefix=TEXTS, name=TEXTS)
def test_a_prefix_is_a_range_of_texts(prefix: str, name: str) -> None:
    found = starts_with(prefix)
    assert (found.least <= name and (found.below is None or name < found.below)) == name.startswith(prefix)
    assert found.below is None or found.below.encode()  # Arrow takes no surrogates


def test_conditions_together() -> None:
    assert EVERY_LITE.matches_all
    assert not starts_with("a").matches_all
    assert one_of(["a", "b", None]) & one_of(["b", "c"]) == LiteCondition(frozenset(["b"]))
    assert LiteCondition(is_null=True) & LiteCondition(is_null=False) == LiteCondition(frozenset())
    assert at_least("b") & at_least("a") & at_most("x") & at_most("y") == LiteCondition(None, "b", "x\0", False)
    assert lite_condition(Literal(True)) == lite_condition(ColumnRef("liteTopic")) == EVERY_LITE
    assert lite_condition(Call("unknown", ())) == EVERY_LITE
    assert lite_condition(parse_filter(pc.field("tags") < LITE)) == EVERY_LITE
