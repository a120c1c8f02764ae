"""Topics by name in SQL: each query reads the rows of the topic that it names, or is refused with a line that works."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.sizes import size
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store

from rucola.errors import QueryError
from rucola.sql import connect
from rucola.sql.fields import literal, quoted
from rucola.sql.session import Session
from rucola.sql.topic_names import TopicNames, folded

VIEWS = ("messages", "keys", "queues", "findings")


def filled(path: Path, topics: Iterable[str]) -> Path:
    """A store in which each topic has one message, whose body and key are its name."""
    store = open_store(path)
    for number, topic in enumerate(topics):
        one = message(number, topic.encode("utf-8", "surrogateescape"))
        one.store_host, one.queue_id = store.store_host, 0
        one.body, one.properties = json.dumps({"of": topic}).encode(), b"KEYS\x01" + one.topic + b"\x02"
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    return path


def column(session: Session, query: str) -> list[object]:
    """The first column of the result."""
    return session.run(query).read_all().column(0).to_pylist()


def advised(error: pytest.ExceptionInfo[QueryError]) -> list[str]:
    """The queries in the text of the error."""
    return re.findall(r"select [^;]*", str(error.value))


def refused(session: Session, query: str, *texts: str) -> list[str]:
    """The queries that the refusal of ``query`` advises."""
    with pytest.raises(QueryError) as error:
        session.run(query)
    for text in ("from rucola.messages where topic = ", *texts):
        assert text in str(error.value)
    return advised(error)


def test_topics_with_the_names_of_views(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topics = [*VIEWS[:3], "Findings", "other"]
    with connect(filled(tmp_path / "store", topics)) as session:
        for topic in topics[:4]:
            for name in (topic, quoted(topic), topic.upper(), f"main.{topic}", f'"{topic.upper()}"'):
                assert column(session, f'select "of" from {name}') == [topic]
            assert column(session, f"select topic from {topic}") == [topic]
        assert "findings is a topic here" not in caplog.text
        assert caplog.text.count("messages is a topic here; the view is rucola.messages") == 1
        assert caplog.text.count("Findings is a topic here; the view is rucola.findings") == 1
        assert sorted(column(session, "select topic from rucola.messages")) == sorted(topics)
        assert column(session, "select topic from rucola.keys where key = 'other'") == ["other"]
        assert column(session, "select topic from RUCOLA.Queues order by messages, 1") == sorted(topics)
        assert column(session, "select kind from memory.rucola.findings") == ["table"]
        query = "select m.topic from messages m join rucola.messages r using (topic, queueOffset)"
        assert column(session, query) == ["messages"]
        assert column(session, "create table made as select topic from rucola.keys") == [5]
        assert sorted(column(session, "from made")) == sorted(topics)
        assert len(session.run("show tables").read_all()) == 6
        found = session.connection.sql("select topic from keys union all select topic from rucola.keys").fetchall()
        assert len(found) == 6


def test_a_named_schema_needs_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with connect(filled(tmp_path / "store", ["keys"])) as session:
        assert column(session, "select key from rucola.keys") == ["keys"]
    assert "is a topic here" not in caplog.text


def test_views_have_short_names_where_no_topic_has_them(tmp_path: Path) -> None:
    with connect(filled(tmp_path / "store", ["other", "rucola"])) as session:
        for name in ("messages", "MESSAGES", "main.messages", "rucola.messages", '"Messages"'):
            assert sorted(column(session, f"select topic from {name}")) == ["other", "rucola"]
        assert column(session, "select topic from rucola") == ["rucola"]
        assert column(session, "select rucola.topic from rucola, rucola.messages m where m.topic = 'other'") == [
            "rucola"
        ]


TWINS = ["ORDERS", "Orders", "orders"]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("twins") / "store", [*TWINS, "other"])


def test_each_twin_is_read_by_its_exact_name(twins: Path) -> None:
    with connect(twins) as session:
        for topic in (*TWINS, *reversed(TWINS)):
            for query in (
                f'select "of" from "{topic}"',
                f'select "{topic}"."of" orders from "{topic}"',
                f'select (select "of" from main."{topic}") from other',
                f'select Orders."of" from temp.main."{topic}" Orders /* orders */ where topic <> \'OrderS\'',
                f'with x as (from "{topic}") select x."of" from x, other',
                f'from "{topic}" select "of" union from "{topic}" select "of"',
                f"select \"of\" from '{topic}'",
                f'select topic from (table "{topic}")',
                f'select topic /* größe 漢字 */ from "{topic}" -- "orders"',
                f"select topic from rucola.messages where topic = '{topic}'",
                f"with orders as (from rucola.messages where topic = '{topic}') select topic from orders",
                f"select topic from rucola.keys orders where key = '{topic}'",
            ):
                assert column(session, query) == [topic], query
            assert "of" in column(session, f'describe "{topic}"')
            assert "of" in column(session, f'summarize "{topic}"')
            assert column(session, f'create or replace table copied as select "of" from "{topic}"') == [1]
            assert column(session, "from copied") == [topic]
        assert column(session, 'select topic from other union all select topic from "Orders" order by 1') == [
            "Orders",
            "other",
        ]


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "query",
    [
        "select * from orders",
        "select * from ORDERS",
        'select * from "orderS"',
        'select * from "Orders", "orders"',
        'select * from "Orders" where topic in (select topic from "ORDERS")',
        'select * from "Orders" union from Orders',
        "select * from main.orders",
        "describe Orders",
        "summarize orders",
        "with x as (from Orders) from x",
        "with orders as (select * from orders) select * from orders",
        "create table t as select * from Orders",
        'create table t as select * from "Orders", "orders"',
        "select 1; select * from orders",
        'from "Orders"; from "orders"',
        "select * from query_table('orders')",
        "select * from query_table('Orders')",
        "pivot orders on topic using count(*)",
        "explain select * from orders",
    ],
)
def test_a_query_that_may_mean_several_twins_is_refused(twins: Path, query: str) -> None:
    with connect(twins) as session:
        advice = refused(session, query, "differ only in case")
        assert len(advice) == 2
        for line in advice:
            (topic,) = column(session, line)
            assert topic in line


def test_twins_with_the_names_of_views(tmp_path: Path) -> None:
    topics = ["KEYS", "Messages", "Tables", "keys", "messages", "tables"]
    with connect(filled(tmp_path / "store", topics)) as session:
        for topic in topics:
            assert column(session, f'select "of" from "{topic}"') == [topic]
            for line in refused(session, f"select * from {topic}"):
                assert column(session, line) == [topic]
        assert column(session, "select key from rucola.keys where key = 'KEYS'") == ["KEYS"]
        assert column(session, 'select r.topic from rucola.messages r join "keys" using (topic)') == ["keys"]
        assert "queues" in column(session, "select table_name from information_schema.tables")
        with pytest.raises(Exception, match="does not exist"):
            session.connection.sql("from keys")


def test_a_name_of_a_twin_that_is_no_table_is_no_obstacle(twins: Path) -> None:
    with connect(twins) as session:
        assert column(session, "select topic orders from other orders") == ["other"]
        assert column(session, "with orders as (select 1 a) select a from Orders") == [1]
        assert column(
            session,
            "with recursive orders as (select 1 a union all select a + 1 from orders where a < 2) "
            "select max(a) from orders",
        ) == [2]
        assert column(session, "select 'orders' -- orders") == ["orders"]
        assert [name for name in column(session, "show tables") if folded(str(name)) == "orders"] == []
        session.connection.execute("create view others as select * from other")
        assert column(session, "select topic from others") == ["other"]


def test_queries_of_twins_have_the_same_settings(twins: Path) -> None:
    with connect(twins) as session:
        for setting in ("timezone", "python_enable_replacements", "temp_directory", "autoinstall_known_extensions"):
            query = f"select current_setting('{setting}') from "
            assert column(session, query + '"Orders"') == column(session, query + "other")


def test_pythons_connection_has_no_twins_and_says_so(twins: Path, caplog: pytest.LogCaptureFixture) -> None:
    with connect(twins) as session:
        assert column(session, 'select "of" from "Orders"') == ["Orders"]
        assert session.connection.sql("select topic from other").fetchall() == [("other",)]
        with pytest.raises(Exception, match="does not exist"):
            session.connection.sql('from "Orders"')
        assert "no views for topics ORDERS, Orders, orders" in caplog.text
        (line,) = re.findall("instead: (select .*)", caplog.text)
        assert session.connection.sql(line).fetchall()[0][0] == "ORDERS"


ODD = [
    "main", "temp", "memory", "system", "select", "table", "information_schema", "tables", "columns", "duckdb_tables",
    "duckdb_views", "DuckDB_columns", "pragma_database_list", "pg_class", "sqlite_master", "show", "%RETRY%group",
    "%DLQ%group", "messages of other", "a.b", "rucola.messages", 'quo"te', "it's", "x.csv", "1", "größe", "GRÖSSE",
    "grösse", "ä", "Ä", "rucola", "rucola_topics", "0", "other", "range", "k", "\u212a", "a b", "a-b", "--", "/*x",
]  # fmt: skip


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = [name for name in ODD if "/" not in name]
    return filled(tmp_path_factory.mktemp("odd") / "store", names)


def test_odd_names(odd: Path) -> None:
    names = [name for name in ODD if "/" not in name]
    with connect(odd) as session:
        for number, name in enumerate(names):
            assert column(session, f'select "of" from {quoted(name)}') == [name]
            if number % size(4, 1) == 0:
                assert column(session, f"select topic from rucola.messages where topic = {literal(name)}") == [name]
        for name in names[::-4]:
            assert column(session, f"select topic from {quoted(name)}") == [name]
        assert column(session, 'select t."of" from duckdb_tables t join pg_class using (flag)') == []
        assert column(session, 'select "of" from duckdb_columns') == ["DuckDB_columns"]
        assert len(column(session, "show tables")) > 30
        assert len(column(session, "select view_name from duckdb_views() where not internal")) > 30
        assert session.connection.sql("show tables").fetchall()
        with connect(odd) as other:
            assert len(column(other, "show tables")) > 30


def test_names_in_an_error_are_written_as_in_a_query(odd: Path) -> None:
    with connect(odd) as session:
        seen = set()
        for name in ("other", "select", "a-b", 'quo"te', "größe", "k"):
            with pytest.raises(QueryError, match="no topic or view") as error:
                session.run(f"select * from {quoted(name + '~')}")
            for near in re.findall(r'"(?:[^"]|"")*"|[^", ]+', str(error.value).split("the nearest are ")[1]):
                assert session.run(f"select * from {near}").schema.names
                seen.add(near)
        assert {"other", '"select"', '"a-b"', '"quo""te"', "größe"} <= seen


def test_topics_that_no_query_can_name(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", ["other", "\udcff"])
    with connect(store) as session:
        assert column(session, "select topic from other") == ["other"]
        assert "other" in column(session, "show tables")
        assert len(column(session, "select topic from messages")) == 2
        with pytest.raises(QueryError, match="not Unicode"):
            session.run('from "\udcff"')


def test_names_in_functions_and_views(tmp_path: Path) -> None:
    with connect(filled(tmp_path / "store", ["other", "pg_mine", "more"])) as session:
        assert column(session, "select topic from query_table('other')") == ["other"]
        assert column(session, 'select "of" from pg_mine') == ["pg_mine"]
        for line in refused(session, "select * from query_table('pg_mine')", "only a query that names"):
            assert column(session, line) == ["pg_mine"]
        assert column(session, "create macro rows(name) as table from query_table(name)") == []
        assert column(session, "select topic from rows('more')") == ["more"]


def test_a_new_topic_is_found_at_once(tmp_path: Path) -> None:
    path = filled(tmp_path / "store", ["orders"])
    with connect(path) as session:
        filled(path, ["late"])
        assert column(session, "select topic from late") == ["late"]


def test_topics_that_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.sql.session.TOPICS_AGE_MAX_S", -1.0)
    path = filled(tmp_path / "store", ["orders"])
    with connect(path) as session:
        assert column(session, "select topic from ORDERS") == ["orders"]
        assert column(session, "select topic from messages") == ["orders"]
        filled(path, ["late", "Orders", "messages"])
        assert column(session, "select topic from late") == ["late"]
        assert column(session, "select topic from messages") == ["messages"]
        assert column(session, 'select "of" from "orders"') == ["orders"]
        assert column(session, 'select "of" from "Orders"') == ["Orders"]
        refused(session, "select * from orders")
        assert session.topics == ["Orders", "late", "messages", "orders"]
        assert column(session, "show tables") == ["findings", "keys", "late", "messages", "queues"]


def test_names_compare_as_in_duckdb() -> None:
    assert folded("ÄZ[`K\u212a") == "Äz[`k\u212a"
    names = TopicNames(["b", "B", "duckdb_x", "a", "", "\udcff"])
    assert (names.common, names.twins, names.nameless) == (["a"], [["B", "b"]], ["", "\udcff"])
