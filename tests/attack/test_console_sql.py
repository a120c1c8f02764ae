"""Attacks by queries of the console: files, network, extensions, settings, endless work, others' results and rights."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ADMIN, ALICE, Guarded
from tests.attack.test_console import harmless
from tests.brokers import properties_text, run
from tests.unit.console.test_sql_pages import RUNAWAY, asked, play
from tests.unit.console.visitor import Seen, Visitor, console_of

from rucola.cli import console_query
from rucola.console.queries import desk
from rucola.errors import RucolaError
from rucola.sql import connect

SECRET = "the secret of another program"
REFUSED = (
    "select * from read_csv('{file}', header = false)",
    "select * from read_text('{file}')",
    "select * from read_blob('{file}')",
    "select * from '{file}'",
    "from '{file}'",
    "select * from glob('{folder}/*')",
    "select * from sniff_csv('{file}')",
    "select * from parquet_metadata('{file}')",
    "select * from read_json('http://127.0.0.1:1/')",
    "attach '{folder}/new.db'",
    "copy (select 1) to '{folder}/new.csv'",
    "export database '{folder}/new'",
    "import database '{folder}'",
    "install httpfs",
    "load httpfs",
    "load '{file}'",
    "set enable_external_access = true",
    "reset lock_configuration",
    "pragma enable_profiling",
    "create table t as select 1",
    "create persistent secret s (type s3)",
    "drop view T_live",
    "call pragma_version()",
    "checkpoint",
    "select 1; select 2",
    "select 1; copy (select 1) to '{folder}/new.csv'",
    "select * from query('attach ''{folder}/new.db''')",
    "select * from query_table('{file}')",
    "select getenv('HOME')",
    "select list(range) from range(1000000000)",
    "select repeat('x', 20000000)",
    "select repeat('x', 1000000) from range(100)",
    "\x00",
    "",
    "(" * 5000,
)


def test_a_query_reads_topics_and_nothing_else(tmp_path: Path) -> None:
    """In this process, with the same confinement that the child has."""
    from tests.golden.loader import unpack

    unpack("index_chains", tmp_path / "store")
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "secret.csv").write_text(f"{SECRET}\n")
    with connect(tmp_path / "store") as session:
        session.confine(console_query.ENGINE_BYTES_MAX)
        for query in REFUSED:
            text = query.replace("{file}", str(folder / "secret.csv")).replace("{folder}", str(folder))
            with pytest.raises(RucolaError) as refused:
                console_query.result_of(session, text, 10)
            assert SECRET not in str(refused.value), query
        assert [path.name for path in folder.iterdir()] == ["secret.csv"]
        assert console_query.result_of(session, "select count(*) n from TopicTest", 10)["rows"] == [["164"]]
    question = {"rows": 10, "store": str(tmp_path / "store")}
    with pytest.raises(RucolaError, match="disabled by configuration"):
        console_query.answer({"query": f"from read_text('{folder / 'secret.csv'}')", **question})
    found = _in_child({"query": "select length(repeat('x', 1500000000))", **question})
    assert b'"error"' in found, "the kernel refuses the memory, whatever the engine counts"


def _in_child(question: dict[str, Any]) -> bytes:
    command = [sys.executable, "-P", "-m", "rucola.cli.console_query"]
    return subprocess.run(
        command, input=json.dumps(question).encode() + b"\n", capture_output=True, check=True, timeout=60
    ).stdout


def test_a_query_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "QUERY_S", 0.3)

    async def work(it: Seen) -> None:
        found = (await asked(it, RUNAWAY)).json
        assert found["state"] == "failed" and "longer than 0.3 s" in found["error"]
        assert (await it.visitor.get("/cluster/topics")).status == 200

    play(tmp_path, work)


def test_the_process_ends_also_without_the_console() -> None:
    """Its limits are the kernel's."""
    limited = "from rucola.cli import console_query as it; it._limit(it.resource.RLIMIT_CPU, 1)\nwhile True: pass"
    ended = subprocess.run([sys.executable, "-c", limited], check=False, timeout=60)
    assert ended.returncode < 0, "SIGXCPU"


def test_strangers_rows_stay_text_and_secrets_stay_secret(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        script = "<script>alert(1)</script>"
        await it.there.cluster.send("T_live", script.encode(), properties_text(TAGS=script, UNIQ_KEY="U"), queue_id=0)
        query = f"select tags, 1 as \"{script}\" from T_live where tags = '{script}' union all select 'x', 2"
        from urllib.parse import urlencode

        assert (await asked(it, query)).json["state"] == "done"
        answer = await it.visitor.get("/cluster/sql?" + urlencode({"query": query}))
        harmless(answer)
        assert script in answer.page.text
        answer = await it.visitor.ask(
            "POST", "/api/cluster/sql", {"content-type": "application/json"}, b'{"query": "select 1"}'
        )
        assert answer.status == 403, "no csrf"
        assert (await it.visitor.post("/cluster/sql", {"query": "select 1", "csrf": "x"})).status == 403
        assert (await it.visitor.get("/api/cluster/sql/csv")).status == 200
        other = Visitor(it.console)
        assert (await other.get("/api/cluster/sql/csv")).status == 404, "nobody gets another visitor's result"

    play(tmp_path, work)


def test_a_query_has_the_rights_of_its_visitor(tmp_path: Path) -> None:
    async def scene() -> None:
        options = {"stores": str(tmp_path / "store")}
        async with Guarded(tmp_path) as cluster, console_of(cluster.namesrv.address, tmp_path, **options) as console:
            await cluster.made("A", "B")

            async def ask(account: tuple[str, str] | None, query: str, store: int = -1) -> Any:
                word = base64.b64encode(":".join(account).encode()).decode() if account else ""
                headers = {"authorization": f"Basic {word}"} if account else {}
                return await Visitor(console).send("/api/cluster/sql", {"query": query, "store": store}, headers)

            assert (await ask(ALICE, 'select * from "A"', 0)).status == 403, "files are for super users"
            assert (await ask(ADMIN, "select 1 as one", 0)).json["rows"] == [["1"]]
            denied = (await ask(ALICE, 'select body from "B"')).json
            assert denied["state"] == "failed" and ALICE[1] not in str(denied)
            assert (await ask(None, 'select body from "A"')).json["state"] == "failed"
            word = base64.b64encode(":".join(ADMIN).encode()).decode()
            await Visitor(console).send(
                "/api/cluster/sql", {"query": "select 1 as one"}, {"authorization": f"Basic {word}"}
            )
            other = await Visitor(console).get("/api/cluster/sql/csv")
            assert other.status == 404, "nobody gets another's result"

    run(scene())


def test_hidden_bodies_stay_hidden(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        assert (await asked(it, "select body from T_live")).status == 403
        assert (await it.visitor.get("/cluster/sql")).status == 403

    play(tmp_path, work, bodies_for="alice")
