"""SQL over a store directory: topics with the fields of their bodies, the other views, and errors that help."""

from __future__ import annotations

import base64
import csv
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import compress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.arrow.dict_catalog import DictCatalog
from tests.unit.arrow.json_page import FITS, cases
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store
from tests.unit.store.stores import with_topics

from rucola import Message
from rucola.arrow.catalog import Bounds
from rucola.arrow.ranges import QueueRange
from rucola.arrow.store_catalog import StoreCatalog
from rucola.cli.main import main
from rucola.common.message_queue import MessageQueue
from rucola.errors import FormatError, QueryError, StoreDamagedError
from rucola.formats.properties import encode_properties
from rucola.spark.options import parse_options
from rucola.sql import connect
from rucola.sql.session import Session
from rucola.sql.sources import _largest_queues
from rucola.sync import Producer
from rucola.testing.rocketmq import RocketMQ

CARRIERS = ("AA", "B6", "UA")
FLIGHTS = 300
PLAIN = 20


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sql") / "store"
    store = open_store(path)
    for number in range(FLIGHTS + PLAIN):
        one = message(number, b"flights" if number < FLIGHTS else b"plain-text")
        one.store_host = store.store_host
        one.properties = encode_properties({"KEYS": f"k{number} group{number % 10}", "TAGS": f"T{number % 2}"})
        values = {"carrier": CARRIERS[number % 3], "delay": number, "tags": ["x"], 'it\'s "q"': 1.5, "late": True}
        one.body = json.dumps(values).encode() if number < FLIGHTS else b"\xffnot JSON"
        store.put_message(one)
    odd = message(7, b"flights")
    odd.store_host, odd.body, odd.properties = store.store_host, b'{"carrier":3,"delay":2.5}', b""
    store.put_message(odd)
    store.dispatch()
    store.shutdown()
    with_topics(path)
    return path


@pytest.fixture(scope="module")
def session(directory: Path) -> Iterator[Session]:
    with connect(directory) as opened:
        yield opened


def rows(session: Session, query: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in session.run(query).read_all().to_pylist()]


def test_fields_of_bodies_are_columns(session: Session) -> None:
    assert rows(session, "select carrier, count(*) from flights group by 1 order by 1") == [
        ("3", 1),
        *((carrier, 100) for carrier in CARRIERS),
    ]
    assert rows(session, "select sum(delay), count(delay), any_value(late) from flights") == [
        (sum(range(FLIGHTS)) + 2.5, FLIGHTS + 1, True)
    ]
    (found,) = rows(session, 'select tags, body_tags, "it\'s ""q""" from flights where keys = \'k5 group5\'')
    assert found == ("T1", '["x"]', 1.5)


def test_whole_numbers_are_never_rounded(session: Session, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number, body in enumerate([b'{"n":1}', b'{"n":9007199254740993}', b"{", b'{"n":"x"}', b'{"n":2.5}']):
        one = message(number, b"numbers")
        one.store_host, one.body = store.store_host, body
        store.put_message(one)
        if number == 1:
            store.dispatch()
    with connect(tmp_path / "store") as opened:
        assert rows(opened, "select sum(n) from numbers") == [(9007199254740994,)]
        store.dispatch()
        assert rows(opened, "select n, count(*) from numbers group by 1 order by 1 nulls last") == [
            (1, 1),
            (9007199254740993, 1),
            (None, 3),
        ]
    store.shutdown()


def with_bodies(path: Path, *bodies: bytes) -> Path:
    """A store with a message in topic ``made`` for each body."""
    store = open_store(path)
    for number, body in enumerate(bodies):
        one = message(number, b"made")
        one.store_host, one.body = store.store_host, body
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    return path


@pytest.mark.few(2)
@pytest.mark.parametrize("large", [10**20, -(2**63) - 1, 10**30, 10**40, 10**300])
def test_whole_numbers_of_any_size_are_not_rounded(large: int, tmp_path: Path) -> None:
    numbers = [large, large + 1, 2**53 + 1, 5]
    bodies = [b'{"id":%d,"share":%d}' % (number, number) for number in numbers]
    with connect(with_bodies(tmp_path / "store", *bodies, b'{"share":0.5}')) as opened:
        found = [value for (value,) in rows(opened, "select id from made where id is not null")]
        assert sorted(map(int, found)) == sorted(numbers)
        assert all(isinstance(value, str) for value in found)
        assert rows(opened, "select distinct typeof(share) from made") == [("DOUBLE",)]
        assert rows(opened, "select count(*) from made where _error is not null") == [(0,)]


@pytest.mark.parametrize("names", [("body_topic", "topic"), ("topic", "body_topic")])
def test_the_prefix_names_the_field_of_a_column(names: tuple[str, str], tmp_path: Path) -> None:
    values = {"topic": "t", "body_topic": "b"}
    body = json.dumps({name: values[name] for name in names}).encode()
    with connect(with_bodies(tmp_path / "store", body, b'{"body_topic":"b"}')) as opened:
        assert rows(opened, "select topic, body_topic, body_body_topic from made order by queueOffset") == [
            ("made", "t", "b"),
            ("made", None, "b"),
        ]


def test_every_case_of_the_page_gives_its_result(tmp_path: Path) -> None:
    """docs/bodies.md: the fields of a body that breaks a rule are null, and the column ``_error`` says why."""
    store = open_store(tmp_path / "store")
    found = cases()
    for number, body in enumerate([FITS, *(case.body for case in found)]):
        one = message(number, b"typed")
        one.store_host, one.queue_id, one.body = store.store_host, 0, body
        store.put_message(one)
        if number == 0:
            store.dispatch()
    with connect(tmp_path / "store") as opened:
        assert rows(opened, "select count(n), count(_error) from typed") == [(1, 0)]
        store.dispatch()
        names = ("n", "i", "d", "b", "s", "t", "y", "m", "x", "o", "a", "_error")
        told = opened.run(f"select {', '.join(names)} from typed order by queueOffset offset 1").read_all().to_pylist()
        for case, row in zip(found, told, strict=True):
            values = {name: value for name, value in row.items() if value is not None}
            error = values.pop("_error", None)
            assert error == case.sql.error, case
            assert values == ({} if error else {case.sql.column: case.sql.value}), case
    store.shutdown()


def test_the_sample_decides_the_types(tmp_path: Path) -> None:
    """Its bodies that are no JSON have no say; a whole number beyond BIGINT makes its column a text."""
    store = open_store(tmp_path / "store")
    bodies = [b'{"n":1,"m":2,"_error":3}', b'{"n":"x"} rest', b'{"m":9223372036854775808}', b'{"n":1,"n":2}', b"none"]
    for number, body in enumerate(bodies):
        one = message(number, b"typed")
        one.store_host, one.queue_id, one.body = store.store_host, 0, body
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    with connect(tmp_path / "store") as opened:
        assert rows(opened, "select n, m, body__error, typeof(n) from typed where _error is null order by m") == [
            (1, "2", 3, "BIGINT"),
            (None, "9223372036854775808", None, "BIGINT"),
        ]
        assert rows(opened, "select _error from typed where _error is not null order by queueOffset") == [
            ("n: a text, but the field is bigint at byte 5",),
            ("n: a second field of this name at byte 7",),
            ("no JSON, not an object at byte 0",),
        ]


def test_fields_come_from_the_oldest_and_the_newest_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.sql.sources.SAMPLE_ROWS", 4)
    store = open_store(tmp_path / "store")
    for number in range(8):
        one = message(number, b"ages")
        one.store_host, one.queue_id, one.body = store.store_host, 0, json.dumps({f"f{number}": number}).encode()
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    with connect(tmp_path / "store") as opened:
        assert rows(opened, "select sum(f0), sum(f1), sum(f6), sum(f7) from ages") == [(0, 1, 6, 7)]
        for between in range(2, 6):
            with pytest.raises(QueryError, match=f"f{between}"):
                rows(opened, f"select f{between} from ages")
        assert rows(opened, "select max(decode(body) ->> 'f3') from ages") == [("3",)]


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (b"no stream of zlib", 1),
        (lambda: compress(bytes(70 << 20), 9), 1),
        (b"no stream of LZ4", 1 | 1 << 8),
        (b'{"":1}', 0),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, 0),
        (b"[1]", 0),
        (b'{"\\u0000":1,"\\ud800":2,"a\\u0000b":3}', 0),
        (lambda: json.dumps({f"name{number}": number for number in range(50_000)}).encode(), 0),
    ],
)
def test_no_body_ends_a_query(body: bytes | Callable[[], bytes], sys_flag: int, tmp_path: Path) -> None:
    """Anybody may send it to a topic that others read. Large bodies are made here, not in each process that imports
    the tests.
    """
    store = open_store(tmp_path / "store", segment_bytes=1 << 20)
    for number in range(3):
        one = message(number, b"ages")
        one.store_host, one.queue_id, one.body = store.store_host, 0, b'{"age":1}'
        if number == 1:
            one.body, one.sys_flag = body() if callable(body) else body, sys_flag
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    with connect(tmp_path / "store") as opened:
        assert rows(opened, "select count(*) from ages") == [(3,)]
        assert rows(opened, "select sum(age), count(body) from ages") == [(2, 3 - (sys_flag > 0))]


def test_views_beside_the_topics(session: Session) -> None:
    assert rows(session, "select topic, count(*) from messages group by 1 order by 1") == [
        ("flights", FLIGHTS + 1),
        ("plain-text", PLAIN),
    ]
    assert rows(session, 'select count(*), min(octet_length(body)) from "plain-text"') == [(PLAIN, 9)]
    assert rows(session, "select topic, count(*) from keys where key = 'group3' group by 1 order by 1") == [
        ("flights", 30),
        ("plain-text", 2),
    ]
    assert rows(session, "select count(*) from keys") == [(2 * (FLIGHTS + PLAIN),)]
    assert rows(session, "select sum(messages), count(*), bool_and(lastTimestamp >= firstTimestamp) from queues") == [
        (FLIGHTS + PLAIN + 1, 6, True)
    ]
    assert rows(session, "select * from findings") == []


def test_a_key_stands_beside_its_message(session: Session) -> None:
    query = (
        "select count(*) from keys k join flights m using (topic, queueId, queueOffset) where contains(m.keys, k.key)"
    )
    assert rows(session, query) == [(2 * FLIGHTS,)]


def test_the_index_leads_to_keys(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    lookup = StoreCatalog.plan_lookup

    def plan_lookup(catalog: StoreCatalog, ranges: Sequence[QueueRange], keys: Iterable[str], at: Iterable[int]) -> Any:
        asked.append(keys)
        return lookup(catalog, ranges, keys, at)

    monkeypatch.setattr(StoreCatalog, "plan_lookup", plan_lookup)
    assert rows(session, "select queueOffset >= 0 from keys where key = 'k7'") == [(True,)]
    assert asked == [{"k7"}]


def test_a_view_is_made_when_a_query_names_it(directory: Path) -> None:
    with connect(directory) as opened:
        made = opened._views._made
        assert rows(opened, "select count(*) from main.KEYS") == [(2 * (FLIGHTS + PLAIN),)]
        assert list(made) == ["keys"]
        assert rows(opened, 'with x as (from "plain-text") select count(*) from x') == [(PLAIN,)]
        assert rows(opened, "select 1 from range(1)") == [(1,)]
        assert list(made) == ["keys", "plain-text"]
        assert len(rows(opened, "show tables")) == 6
        assert rows(opened, "select count(*) from information_schema.tables where table_schema = 'main'") == [(6,)]
    for text in ("duckdb_views() v, keys where v.view_name = 'flights'", "information_schema.tables, keys"):
        with connect(directory) as opened:
            assert rows(opened, f"select count(*) from {text}")[0][0] > 0
    with connect(directory) as opened:
        found = rows(opened, "select count(*) from duckdb_columns() where table_name = 'flights'")
        assert found == [(22 + 5 + 1,)]  # with the fields of bodies, and ``_error``
        assert opened.run("set threads = 1").read_all().num_rows == 0
        assert rows(opened, "summarize flights")[0][0] == "topic"
    with connect(directory) as opened:
        assert opened.connection.sql("select count(*) from flights").fetchall() == [(FLIGHTS + 1,)]


def test_findings_are_those_of_verify(directory: Path) -> None:
    checkpoint = directory / "checkpoint"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:7])
    try:
        with connect(directory) as opened:
            assert rows(opened, "select kind, file from findings") == [("checkpoint", "checkpoint")]
    finally:
        checkpoint.write_bytes(whole)


def test_more_than_fits_into_memory_goes_into_a_temporary_directory(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB itself would fill the current directory, which nobody gave to the command."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(there))
    with connect(directory) as opened:
        opened.connection.execute("set memory_limit = '40MB'; set threads = 1")
        numbers = "select range r, md5(range::varchar) m from range(500000) order by m"
        reader = opened.connection.sql(f"select * from ({numbers})").to_arrow_reader()
        reader.read_next_batch()
        assert [path for path in there.rglob("*") if path.is_file()]
    assert not list(here.iterdir())
    assert not list(there.iterdir())


WRONG = [
    ("select * from flight", "no topic or view 'flight'; the nearest are flights"),
    ('select * from "plain"', 'nearest are "plain-text"'),
    ("select colour from flights", 'column "colour" not found'),
    ("selec 1", "syntax error"),
    ("select * from rows", "no topic or view 'rows'"),
]


@pytest.mark.parametrize(("query", "reason"), WRONG)
def test_wrong_queries(session: Session, query: str, reason: str) -> None:
    with pytest.raises(QueryError, match=reason):
        session.run(query).read_all()


def test_damage_ends_a_query_as_what_it_is(directory: Path) -> None:
    (segment,) = (directory / "commitlog").glob("00000000000000000000")
    whole = segment.read_bytes()
    with connect(directory) as opened:
        segment.write_bytes(whole[:5000] + b"\xee" * 100 + whole[5100:])
        try:
            with pytest.raises((FormatError, StoreDamagedError)):
                rows(opened, "select max(octet_length(body)) from messages where queueOffset >= 0")
        finally:
            segment.write_bytes(whole)
        with pytest.raises(QueryError, match="colour"):  # and is forgotten
            rows(opened, "select colour from flights")


def test_through_brokers(rocketmq: RocketMQ) -> None:
    with Producer("tests", rocketmq.namesrv) as producer:
        for number in range(30):
            body = json.dumps({"carrier": CARRIERS[number % 3]}).encode()
            producer.send(Message("flights", body, keys=f"k{number}", tags=f"T{number % 2}"))
    with connect(name_server=rocketmq.namesrv) as session:
        assert rows(session, "select carrier, count(*) from flights group by 1 order by 1") == [
            (carrier, 10) for carrier in CARRIERS
        ]
        assert rows(session, "select tags from keys where key = 'k7'") == [("T1",)]
        assert rows(session, "select count(*) from messages where tags = 'T0'") == [(15,)]
        assert rows(session, "select count(*) from flights where storeTimestamp > now() + interval 1 hour") == [(0,)]
        assert rows(session, "select sum(messages) from queues where topic = 'flights'") == [(30,)]
        with pytest.raises(QueryError, match="no topic or view 'findings'"):
            session.run("select * from findings")


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(directory: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(query: str, *options: str) -> tuple[int, str]:
        code = main(["sql", query, "--store", str(directory), *options])
        output = capfd.readouterr()
        return code, output.out or output.err

    return run


def test_forms_of_the_result(run: Run, tmp_path: Path) -> None:
    query = "select carrier, count(*) n from flights where carrier <> '3' group by 1 order by 1"
    assert "AA" in run(query)[1]
    assert run(query, "--format", "csv")[1].split() == ["carrier,n", *(f"{one},100" for one in CARRIERS)]
    assert [json.loads(line) for line in run(query, "--json")[1].splitlines()] == [
        {"carrier": carrier, "n": 100} for carrier in CARRIERS
    ]
    assert run(query, "--output", str(tmp_path / "f.parquet")) == (0, "")
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)
    assert pq.read_table(tmp_path / "f.parquet").to_pydict() == {"carrier": list(CARRIERS), "n": [100] * 3}
    assert [path.name for path in tmp_path.iterdir()] == ["f.parquet"]
    code, text = run(query, "-o", str(tmp_path / "f.parquet"))
    assert (code, "a file that does not exist" in text) == (2, True)
    body = json.loads(run("select body, storeTimestamp t, {'a': [1]} s from \"plain-text\" limit 1", "--json")[1])
    assert base64.b64decode(body["body"]) == b"\xffnot JSON"
    assert (body["t"][:2], body["s"]) == ("20", {"a": [1]})
    sums = json.loads(run("select sum(messages) n, 1.5::decimal(3, 1) d, 1::hugeint << 80 h from queues", "--json")[1])
    assert sums == {"n": FLIGHTS + PLAIN + 1, "d": "1.5", "h": str(1 << 80)}
    assert next(csv.reader([run("select {'a': [1]} s", "--format", "csv")[1].splitlines()[1]])) == ['{"a":[1]}']
    assert run("select * from keys", "--max", "2")[1].count("flights") == 2


def test_columns_of_one_name_are_all_written(run: Run, tmp_path: Path) -> None:
    query = "select 1 a, 2 a, 3 a_1, 4 a"
    expected = {"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}
    assert json.loads(run(query, "--json")[1]) == expected
    assert run(query, "-o", str(tmp_path / "f.parquet"))[0] == 0
    assert pq.read_table(tmp_path / "f.parquet").to_pylist() == [expected]
    assert run(query, "--format", "csv")[1].splitlines() == ["a,a,a_1,a", "1,2,3,4"]


@pytest.mark.few
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("date '10000-01-01'", "10000-01-01"),
        ("date '0044-03-15 (BC)'", "-043-03-15"),
        ("timestamp '10000-02-29 01:02:03.5'", "10000-02-29{}01:02:03.500000"),
        ("timestamptz '200000-12-31 00:00:00+00'", "200000-12-31{}00:00:00+00:00"),
        ("timestamp_s '12000-01-01 00:00:01'", "12000-01-01{}00:00:01"),
        ("[date '10000-01-01']", "10000-01-01"),
        ("{'d': date '10000-01-01', 'n': 1}", "10000-01-01"),
        ("map {'d': date '10000-01-01'}", "10000-01-01"),
        ("map {'d': [date '10000-01-01', null]}", "10000-01-01"),
    ],
)
@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_years_that_python_does_not_have(value: str, text: str, form: str, run: Run) -> None:
    code, output = run(f"select {value} t", "--format", form)
    assert code == 0
    assert text.format("T") in output


def test_a_type_that_parquet_does_not_have(run: Run, tmp_path: Path) -> None:
    code, text = run("select interval 1 month i", "-o", str(tmp_path / "f.parquet"))
    assert (code, "csv or json for this result" in text) == (2, True)
    assert [*tmp_path.iterdir()] == []


def test_a_query_does_not_wait_for_what_it_does_not_need(directory: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "rucola", "sql", "select count(*) from keys where key = 'k5'"]
    ran = subprocess.run([*command, "--store", str(directory), "--json"], capture_output=True, text=True, check=True)
    assert ran.stdout == '{"count_star()":1}\n'
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    needless = {"pandas.core", "pydantic", "typer", "rucola.store.recovery.recovery", "rucola.store.verify.check"}
    assert loaded & {"duckdb", *needless} == {"duckdb"}


def test_the_process_ends_with_the_exit_code(directory: Path) -> None:
    command = [sys.executable, "-m", "rucola", "sql", "select nothing", "--store", str(directory)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)


def interrupted(*_: object) -> Iterator[pa.RecordBatch]:
    """What DuckDB does at a Ctrl-C."""
    raise RuntimeError("Query interrupted")
    yield


def test_ctrl_c_ends_a_query(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_result", lambda *_: pa.RecordBatchReader.from_batches(pa.schema([]), interrupted()))
    assert run("select 1", "--json") == (130, "")
    monkeypatch.setattr(Session, "_result", lambda *_: next(interrupted()))
    assert run("select 1", "--json") == (130, "")


@pytest.mark.parametrize("query", ["select 1; select 2", "select 1; create view v as select 2", ";", "", "-- nothing"])
def test_a_query_is_one_statement(query: str, run: Run) -> None:
    assert run(query) == (2, "rucola: query: a query is one statement\n")


def test_usage(run: Run, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("select * from flight") == (2, "rucola: query: no topic or view 'flight'; the nearest are flights\n")
    assert run("select 1", "--format", "parquet")[0] == 2
    assert run("select 1", "-o", "result.txt")[0] == 2
    assert run("select 1", "-n", "localhost:1")[0] == 2
    assert main(["sql", "select 1"]) == 2
    assert main(["sql", "select 1", "--store", str(directory / "none")]) == 2


def test_the_sample_comes_from_the_largest_queues_of_all_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, the sample of a queue id came from whichever broker was last, even if its queue was empty."""
    bounds = {
        MessageQueue("t", broker, queue_id): Bounds(0, most)
        for broker, queue_id, most in (("a", 0, 900), ("b", 0, 0), ("a", 1, 5), ("b", 1, 70))
    }
    options = parse_options({"storePath": "d", "topic": "t"})
    monkeypatch.setattr("rucola.sql.sources.open_catalog", lambda given: DictCatalog(given, bounds))
    assert _largest_queues(options) == [(1, 0, 70), (0, 0, 900)]
