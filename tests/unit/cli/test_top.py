"""``rucola top``: what it says once, its screens, and its end in a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run
from tests.unit.broker.administered import administered
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from rucola.cli import top_output
from rucola.cli.main import command_line, main
from rucola.cli.top import ClusterLook, wanted
from rucola.cli.top_app import ROWS_MAX, ObjectScreen, TopApp
from rucola.cli.top_tables import TABLES, Seen, parts_of
from rucola.client.config import ClientConfig
from rucola.console.cluster.snapshot import (
    BrokerState,
    ClusterSnapshot,
    GroupOnTopic,
    GroupState,
    Member,
    NameServerState,
    TopicOn,
    TopicState,
)
from rucola.console.lists import ListQuery
from rucola.console.views.lists import summary
from rucola.testing.clock import ManualClock

NOW_MS = 1_700_000_000_000
EVIL = "[bold red]x[/]\x1b]0;title\x07"


def snapshot(lags: dict[str, int], **more: Any) -> ClusterSnapshot:
    member = Member("client@1", "10.0.0.9:1", "JAVA", "5.3.3", "b:1")
    groups = {
        name: GroupState(
            name, topics=(GroupOnTopic("orders", lag, NOW_MS - 60_000, 4),), lag=lag, members=(member,), dead=0
        )
        for name, lag in lags.items()
    }
    topics = {
        "orders": TopicState("orders", "normal", in_rate=12.5, messages=7, brokers=(TopicOn("a", 4, 4, 6),)),
        "quiet": TopicState("quiet", "normal", in_rate=0.0, messages=1, groups=tuple(groups)),
        "%RETRY%g": TopicState("%RETRY%g", "retry"),
    }
    brokers = (
        BrokerState("c", "a", 0, "b:1", in_rate=3.0, out_rate=2.0, disk_ratio=0.5, longest_turn_ms=71.0),
        BrokerState("c", "java", 0, "b:2", in_rate=1.0, out_rate=1.0, runtime={"putTps": "1.0"}),
    )
    return ClusterSnapshot(
        NOW_MS, (NameServerState("n:1", None, NOW_MS),), brokers, topics, groups, **more
    )  # fmt: skip


class Looked(ClusterLook):
    """A look that sees what the test says."""

    def __init__(self, found: ClusterSnapshot, interval_s: float = 60.0) -> None:
        super().__init__("n:1", ClientConfig(), interval_s, ManualClock(NOW_MS))
        self.found = Seen(found, {})
        self.looks = 0
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True
        await super().close()

    async def next(self) -> Seen:
        self.looks += 1
        return self.found


Work = Callable[[TopApp, Pilot[None], Looked], Coroutine[Any, Any, None]]


def screens(found: ClusterSnapshot, work: Work, interval_s: float = 60.0) -> None:
    async def scene() -> None:
        look = Looked(found, interval_s)
        app = TopApp(look, TABLES["groups"], "-lag")
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.pause()
            await work(app, pilot, look)
        assert look.is_closed

    asyncio.run(scene())


def names(app: TopApp) -> list[str]:
    view = app.screen_stack[0].query_one(DataTable)
    return [str(view.get_cell_at((row, 0))) for row in range(view.row_count)]  # type: ignore[arg-type]


def text(app: TopApp, part: str) -> str:
    content = app.screen.query_one(part, Static)
    return str(content.render())


def options(*words: str) -> Namespace:
    return command_line().parse_args(["top", *words])


def test_a_look_that_fails_ends_the_screen() -> None:
    async def work(app: TopApp, pilot: Pilot[None], look: Looked) -> None:
        def fail() -> None:
            raise ValueError("a defect")

        look.next = fail  # type: ignore[assignment, method-assign]
        for _ in range(1000):
            if app.failure is not None:
                break
            await pilot.pause(0.01)
        assert isinstance(app.failure, ValueError)
        assert not app.is_running or app._exit

    screens(snapshot({"big": 900}), work, 0.01)


def test_keys_change_table_order_and_search() -> None:
    async def work(app: TopApp, pilot: Pilot[None], _look: Looked) -> None:
        assert names(app) == ["big", "mid", "none"]
        assert "lag" in text(app, "#head") and "71 ms" in text(app, "#head")
        await pilot.press("r")
        assert names(app) == ["none", "mid", "big"]
        await pilot.press("s")  # the next column: the trend
        assert app.sort == "-trend"
        await pilot.press("t")
        assert names(app) == ["orders", "quiet"]
        await pilot.press("b")
        assert names(app) == ["a", "java"] and app.sort == "name"
        await pilot.press("g", "slash", "m", "i")
        assert names(app) == ["mid"] and "'mi'" in text(app, "#tabs")
        await pilot.press("escape")
        assert sorted(names(app)) == ["big", "mid", "none"]
        assert app.query_one("#search", Input).value == ""

    screens(snapshot({"mid": 5, "big": 900, "none": 0}), work)


def test_enter_opens_a_row_and_escape_leaves_it() -> None:
    async def work(app: TopApp, pilot: Pilot[None], look: Looked) -> None:
        await pilot.press("down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, ObjectScreen)
        app.take(Seen(snapshot({"big": 1}), {}))  # mid was deleted meanwhile
        assert "is gone" in _drawn(app)
        app.take(look.found)
        assert "client@1" in _drawn(app) and "orders" in _drawn(app)
        await pilot.press("slash")  # no search here
        await pilot.press("escape")
        assert not isinstance(app.screen, ObjectScreen)
        await pilot.press("enter", "t")
        await pilot.pause()
        assert not isinstance(app.screen, ObjectScreen) and app.table_name == "topics"

    screens(snapshot({"mid": 5, "big": 900}), work)


def _drawn(app: TopApp) -> str:
    strips = [app.screen.query_one("#object").render_line(line).text for line in range(12)]
    return "\n".join(strips)


def test_a_refresh_keeps_the_chosen_row() -> None:
    async def work(app: TopApp, pilot: Pilot[None], look: Looked) -> None:
        await pilot.press("down")  # mid
        app.take(Seen(snapshot({"mid": 5, "big": 900, "new": 50}), {}))
        view = app.query_one(DataTable)
        assert names(app) == ["big", "new", "mid"] and view.cursor_row == 2
        app.take(Seen(snapshot({"mid": 6, "big": 901, "new": 50}), {}))  # the same rows, other figures
        assert [str(view.get_cell_at((row, 1))) for row in range(3)] == ["901", "50", "6"]  # type: ignore[arg-type]
        assert look.looks == 1

    screens(snapshot({"mid": 5, "big": 900}), work)


def test_a_pause_asks_nothing_until_it_ends() -> None:
    async def work(app: TopApp, pilot: Pilot[None], look: Looked) -> None:
        await pilot.press("space")
        assert app.is_paused and "PAUSED" in text(app, "#head")
        before = look.looks
        for _ in range(20):
            await asyncio.sleep(0)
        assert look.looks == before
        await pilot.press("space")
        while look.looks == before:
            await asyncio.sleep(0)
        assert "PAUSED" not in text(app, "#head")

    screens(snapshot({"mid": 5}), work, interval_s=0.0)


def test_a_click_on_a_heading_sorts_and_the_second_turns_around() -> None:
    async def work(app: TopApp, pilot: Pilot[None], _look: Looked) -> None:
        view = app.query_one(DataTable)
        for order in ("name", "-name"):
            column = next(iter(view.columns.values()))
            app.sort_by_heading(DataTable.HeaderSelected(view, column.key, 0, column.label))
            assert app.sort == order
        await pilot.pause()
        assert names(app) == ["mid", "big"]

    screens(snapshot({"mid": 5, "big": 900}), work)


def test_names_are_plain_text_and_long_lists_are_cut() -> None:
    async def work(app: TopApp, pilot: Pilot[None], _look: Looked) -> None:
        assert len(names(app)) == ROWS_MAX and f"{ROWS_MAX} of {ROWS_MAX + 6}" in text(app, "#tabs")
        await pilot.press("slash", "x", "enter")
        assert names(app) == ["[bold red]x[/]\\x1b]0;title\\x07"]

    screens(snapshot({f"g{number}": 1 for number in range(ROWS_MAX + 5)} | {EVIL: 1}), work)


def test_problems_come_first_and_the_rest_is_counted() -> None:
    away = tuple(BrokerState("c", f"b{number}", 0, f"b:{number}", is_listed=False) for number in range(6))
    found = ClusterSnapshot(NOW_MS, brokers=away)

    async def work(app: TopApp, _pilot: Pilot[None], _look: Looked) -> None:
        assert text(app, "#problems").count("has left") == 4 and "and 2 more" in text(app, "#problems")

    screens(found, work)


@pytest.mark.parametrize(("table", "words"), [("groups", "orders"), ("topics", "quiet"), ("brokers", "putTps")])
def test_each_kind_of_object_has_a_page(table: str, words: str) -> None:
    found = Seen(snapshot({"g": 3}), {})
    identity = {"groups": "g", "topics": "quiet", "brokers": "b:2"}[table]
    parts = parts_of(found, TABLES[table], identity, NOW_MS)
    assert len(parts) >= 2 and (words in str(parts) or table == "topics")
    assert parts_of(found, TABLES[table], "unknown", NOW_MS) == []
    if table == "topics":
        assert parts[1][2] == [["g", "—", "1"]]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_each_column_sorts_the_console_knows(table: Any) -> None:
    found = Seen(snapshot({"g": 3, "h": 4}), {})
    for sort in table.sorts:
        assert table.rows(found, ListQuery(sort=table.order(sort))).rows


def test_only_a_search_finds_topics_that_are_not_of_applications() -> None:
    found, table = Seen(snapshot({"g": 3}), {}), TABLES["topics"]
    assert [row.name for row in table.rows(found, ListQuery(sort="name")).rows] == ["orders", "quiet"]
    assert [row.name for row in table.rows(found, ListQuery(q="retry", sort="name")).rows] == ["%RETRY%g"]


def test_the_figures_have_the_longest_turn_of_all_brokers() -> None:
    brokers = tuple(BrokerState("c", name, 0, name, longest_turn_ms=turn) for name, turn in (("a", 5.0), ("b", 90.0)))
    assert ("longest turn", "90 ms") in top_output.figures_of(summary(ClusterSnapshot(NOW_MS, brokers=brokers), {}))


@pytest.mark.parametrize(("interval_s", "tables_s"), [(1.0, 3.0), (5.0, 5.0)])
def test_tables_are_asked_for_less_often_than_figures(interval_s: float, tables_s: float) -> None:
    async def work() -> None:
        look = ClusterLook("127.0.0.1:1", ClientConfig(), interval_s)
        try:
            assert look._poller._tables_pause_s == tables_s
        finally:
            await look.close()

    run(work())


class SteppingClock(ManualClock):
    """Advances by 0.4 s with each reading, so that two looks are some seconds apart."""

    def monotonic(self) -> float:
        self.advance(400)
        return super().monotonic()


def test_once_says_what_the_cluster_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> Seen:
        async with administered(tmp_path) as there:
            there.cluster.broker.services.loop_watch._longest_s[0] = 0.25
            look = ClusterLook(there.cluster.namesrv.address, ClientConfig(), 0.0, SteppingClock())
            try:
                return await look.twice()
            finally:
                await look.close()

    found = run(work())
    assert found.snapshot.topics["T_live"].in_rate == 0.0, "rates need a second look"
    assert (found.snapshot.brokers[0].longest_turn_ms or 0) >= 250
    lists = [(table, table.rows(found, ListQuery(sort=table.sort, size=1))) for table in TABLES.values()]
    top_output.print_tables("n:1", found, lists)
    printed = capsys.readouterr().out
    assert re.search(r"G_live +4 ", printed) and re.search(r"T_live .* 8 ", printed) and "broker-a" in printed
    assert "longest turn" in printed and re.search(r"\d ms +answers", printed)
    top_output.print_json(found, lists)
    value = json.loads(capsys.readouterr().out)
    assert value["groups"]["rows"][0]["lag"] == "4" and value["overview"]["clients"] == 1


def test_dead_letters_count_from_the_start_of_the_command() -> None:
    async def work() -> None:
        look = ClusterLook("127.0.0.1:1", ClientConfig(), 0.0)
        try:
            for dead in (7, 9):
                state = GroupState("g", dead=dead)
                look._poller.snapshot = ClusterSnapshot(
                    NOW_MS, groups={"g": state, "h": GroupState("h"), "i": GroupState("i", dead=5)}
                )
                found = look._seen()
            assert found.letters["g"].count == 2 and found.letters.keys() == {"g"}
        finally:
            await look.close()

    run(work())


def test_no_name_server_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "-n", "127.0.0.1:1", "--once", "--interval", "0.5"]) == 1
    assert "bad      127.0.0.1:1 does not answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--interval", "0.1"], "--interval"),
        (["--interval", "nan"], "--interval"),
        (["--sort", "disk"], "--sort"),
        (["--table", "brokers", "--sort", "lag"], "--sort"),
        (["-n", "nothing", "--once"], "nothing"),
        (["--rows", "0"], "--rows"),
        (["--rows", "1001"], "--rows"),
        ([], "--once"),
    ],
)
def test_bad_options_are_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *words]) == 2
    assert named in capsys.readouterr().err


def test_options_choose_table_and_order() -> None:
    table, query = wanted(options("--table", "topics", "--sort", "messages", "--rows", "5"))
    assert (table.name, query.sort, query.size) == ("topics", "-messages", 5)
    assert wanted(options())[1].sort == "-lag" and wanted(options("--reverse"))[1].sort == "lag"


def test_in_a_terminal_it_ends_with_q_and_leaves_the_screen() -> None:
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "90", "LINES": "20"}
    words = [sys.executable, "-m", "rucola", "top", "-n", "127.0.0.1:1"]
    with subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        shown = _read(master, b"does not answer")
        os.write(master, b"q")
        shown += _read(master, None)
        assert process.wait(timeout=300) == 0
    os.close(master)
    assert b"\x1b[?1049h" in shown, "it used the terminal's own screen"
    assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h"), "the screen is as it was"
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l"), "the cursor is there"


def _read(descriptor: int, until: bytes | None) -> bytes:
    """What a terminal receives, up to some bytes, or to the end of the last process that writes to it."""
    found = b""
    while until is None or until not in found:
        assert select.select([descriptor], [], [], 300)[0], found
        try:
            found += os.read(descriptor, 65_536)
        except OSError:
            return found
    return found
