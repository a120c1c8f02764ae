"""Option ``keys`` and filters on keys return exactly the messages with these keys; the index is used where it is known
to be complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, In
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store
from tests.unit.spark.ddl import schema_of

from rucola.arrow.key_lookup import KeyLookup
from rucola.arrow.ranges import LogRange, RecordRange
from rucola.formats.properties import encode_properties
from rucola.spark.batch import FilteringReader, RocketMQReader
from rucola.spark.options import SourceOptions, parse_options
from rucola.spark.pushdown import Wanted, lookup

COUNT = 300
DDL = "queueOffset bigint, keys string, msgId string, flag int"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "store"
    store = open_store(path)
    for number in range(COUNT):
        one = message(number, b"flights")
        one.store_host = store.store_host
        ids = {"UNIQ_KEY": f"u{number}"} if number % 2 else {}
        one.properties = encode_properties({"KEYS": f"k{number} all" if number % 3 else "k", "TAGS": "T"} | ids)
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    return path


def options_of(directory: Path, **given: str) -> SourceOptions:
    return parse_options({"storePath": str(directory), "topic": "flights", **given})


def read(reader: RocketMQReader) -> tuple[list[dict[str, Any]], int]:
    """Returns the rows, and the number of log bytes that tasks scan in addition to the records found by the index."""
    pieces = [one.value for one in reader.partitions()]
    rows = [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]
    scanned = sum(one.end_physical_offset - one.start_physical_offset for one in pieces if isinstance(one, LogRange))
    assert all(isinstance(one, LogRange | RecordRange) for one in pieces)
    return rows, scanned


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ("k7", [7]),
        ("k7, u9 ,none", [7, 9]),
        ("all", [number for number in range(COUNT) if number % 3]),
        ("k7 all", []),
        ("none", []),
    ],
)
@pytest.mark.parametrize("style", ["rocketmq", "kafka"])
def test_exactly_the_messages_with_a_key(directory: Path, keys: str, wanted: list[int], style: str) -> None:
    ddl = DDL if style == "rocketmq" else "offset bigint"
    found = {}
    for index in ("", "true", "false"):
        options = options_of(
            directory, keys=keys, schemaStyle=style, scanOrder="log", **({"useIndex": index} if index else {})
        )
        rows, found[index] = read(RocketMQReader(options, schema_of(ddl)))
        if style == "rocketmq":
            assert sorted(row["flag"] // 7919 for row in rows) == wanted
        assert len(rows) == len(wanted)
    assert found[""] == found["true"] < found["false"] // 10


def test_an_id_that_a_broker_gave(directory: Path) -> None:
    rows, _ = read(RocketMQReader(options_of(directory), schema_of(DDL)))
    wanted = next(row for row in rows if row["flag"] == 8 * 7919)
    assert not wanted["msgId"].startswith("u")
    for index in ("true", "false"):
        options = options_of(directory, keys=wanted["msgId"], useIndex=index)
        assert read(RocketMQReader(options, schema_of(DDL)))[0] == [wanted]


def test_filters_use_the_index_only_when_told(directory: Path) -> None:
    filters: list[Filter] = [In(("keys",), ("k7 all", "k8 all", "none")), EqualTo(("flag",), 7 * 7919)]
    scanned = []
    for given in ({}, {"useIndex": "true"}):
        reader = FilteringReader(options_of(directory, scanOrder="log", **given), schema_of(DDL))
        assert list(reader.pushFilters(filters)) == filters  # Spark itself applies all filters too
        rows, count = read(reader)
        assert {7, 8} <= {row["flag"] // 7919 for row in rows}
        scanned.append(count)
    assert scanned[1] < scanned[0] // 10


def test_keys_are_looked_up() -> None:
    plain, told = options_of(Path("d")), options_of(Path("d"), useIndex="true")
    by_key = Wanted(keys=frozenset({"a b"}), msg_ids=frozenset({"u"}))
    assert lookup(by_key, plain) is None
    assert lookup(by_key, told) == KeyLookup(frozenset({"a"}))
    assert lookup(Wanted(msg_ids=frozenset({"u"})), told) == KeyLookup(frozenset({"u"}))
    for unusable in (Wanted(), Wanted(keys=frozenset({b"a"})), Wanted(keys=frozenset({""}))):
        assert lookup(unusable, told) is None
    many = ",".join(map(str, range(101)))
    assert lookup(Wanted(), options_of(Path("d"), keys=many)) is None
    assert lookup(Wanted(), options_of(Path("d"), keys="a")) == KeyLookup(frozenset({"a"}))
