"""The screens of ``rucola top``. Names of a cluster are shown as plain text: no name can style or control anything."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, ClassVar, Final

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from rucola.cli.store_text import shown
from rucola.cli.top import ClusterLook
from rucola.cli.top_output import figures_of, problem_lines
from rucola.cli.top_tables import TABLES, Seen, TopTable, parts_of, reverse, title_of
from rucola.console.lists import ListQuery
from rucola.console.pages.shown import number, utc
from rucola.console.views.lists import summary

ROWS_MAX: Final = 200
"""Rows of a table; a search finds the others."""
PROBLEMS_MAX: Final = 4


class TopApp(App[None]):
    """The command as an application of Textual.

    Args:
        look: looks at the cluster; the application closes it.
        table: the table that is shown first.
        sort: its order, as in ``ListQuery``.

    Attributes:
        seen: what was seen last; None before the first look has ended.
        failure: the error of a look that ended the program.
    """

    CSS = """
    Screen { background: $background; }
    #head { height: auto; padding: 0 1; background: $panel; }
    #problems { height: auto; padding: 0 1; margin: 1 0; }
    #tabs { height: 1; padding: 0 1; color: $text-muted; }
    #search { height: 1; border: none; padding: 0 1; display: none; }
    #search.open { display: block; }
    DataTable { height: 1fr; }
    #object { height: auto; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("g", "table('groups')", "Groups"),
        Binding("t", "table('topics')", "Topics"),
        Binding("b", "table('brokers')", "Brokers"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "search", "Search"),
        Binding("space", "pause", "Pause"),
        Binding("q", "quit", "Quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, look: ClusterLook, table: TopTable, sort: str) -> None:
        super().__init__(ansi_color=False)
        self.seen: Seen | None = None
        self.is_paused = False
        self.failure: BaseException | None = None
        self._look_at, self._table = look, table
        self._sorts = {name: one.sort for name, one in TABLES.items()} | {table.name: sort}
        self._search = ""
        self._shown: tuple[str, list[str]] = ("", [])
        """Name and order of the table on the screen, and what tells its rows apart."""
        self._looking: asyncio.Task[None] | None = None

    @property
    def table_name(self) -> str:
        """Name of the table that is shown."""
        return self._table.name

    @property
    def sort(self) -> str:
        """The order of the table that is shown."""
        return self._sorts[self._table.name]

    @property
    def now_ms(self) -> int:
        """The time of what is shown."""
        return self._look_at.clock.wall_ms()

    def compose(self) -> ComposeResult:
        """The parts of the first screen."""
        yield Static(id="head")
        yield Static(id="problems")
        yield Static(id="tabs")
        yield Input(placeholder="part of a name; Esc clears", id="search", compact=True)
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begins to look."""
        self._draw()
        self.query_one(DataTable).focus()
        self._looking = asyncio.ensure_future(self._go_on())
        self._looking.add_done_callback(self._looked)

    async def on_unmount(self) -> None:
        """Ends to look."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await self._look_at.close()

    async def _go_on(self) -> None:
        while True:
            if not self.is_paused:
                self.take(await self._look_at.next())
            await asyncio.sleep(self._look_at.interval_s)

    def _looked(self, looking: asyncio.Task[None]) -> None:
        """Ends the program if it can look no more: a screen that stands still would be believed."""
        if not looking.cancelled():
            self.failure = looking.exception()
            self.exit()

    def take(self, seen: Seen) -> None:
        """Shows what was seen."""
        self.seen = seen
        self._draw()
        if isinstance(self.screen, ObjectScreen):
            self.screen.draw()

    # keys

    def action_table(self, name: str) -> None:
        """Shows another table."""
        if isinstance(self.screen, ObjectScreen):
            self.pop_screen()
        self._table = TABLES[name]
        self._draw()

    def action_sort(self) -> None:
        """Sorts by the next column."""
        sorts = self._table.sorts
        now = sorts.index(self.sort.removeprefix("-"))
        self._sort_by(self._table.order(sorts[(now + 1) % len(sorts)]))

    def action_reverse(self) -> None:
        """Turns the order around."""
        self._sort_by(reverse(self.sort))

    def action_pause(self) -> None:
        """Stops to look, or goes on."""
        self.is_paused = not self.is_paused
        self._draw()

    def action_search(self) -> None:
        """Asks for a part of a name."""
        if not isinstance(self.screen, ObjectScreen):
            search = self.query_one("#search", Input)
            search.add_class("open")
            search.focus()

    def on_key(self, event: Any) -> None:
        """Escape ends a search."""
        search = self.query_one("#search", Input) if not isinstance(self.screen, ObjectScreen) else None
        if event.key == "escape" and search is not None and search.has_class("open"):
            search.value = ""
            search.remove_class("open")
            self.query_one(DataTable).focus()

    @on(Input.Changed)
    def search_for(self, event: Input.Changed) -> None:
        """Shows only rows with a part of a name."""
        self._search = event.value
        self._draw()

    @on(Input.Submitted)
    def leave_search(self) -> None:
        """Goes to the rows that were found."""
        self.query_one(DataTable).focus()

    @on(DataTable.RowSelected)
    def open_row(self, event: DataTable.RowSelected) -> None:
        """Shows a page for a row."""
        if event.row_key.value is not None:
            self.push_screen(ObjectScreen(self, self._table, event.row_key.value))

    @on(DataTable.HeaderSelected)
    def sort_by_heading(self, event: DataTable.HeaderSelected) -> None:
        """Sorts by a column that was clicked, the second time in the other direction."""
        sort = self._table.columns[event.column_index].sort
        if sort and self.sort.removeprefix("-") == sort:
            self.action_reverse()
        elif sort:
            self._sort_by(self._table.order(sort))

    def _sort_by(self, sort: str) -> None:
        self._sorts[self._table.name] = sort
        self._draw()

    # drawing

    def _draw(self) -> None:
        first = self.screen_stack[0]
        first.query_one("#tabs", Static).update(self._tabs())
        if self.seen is None:
            first.query_one("#head", Static).update(Text(f"{self._look_at.namesrv}  looking ..."))
            return
        overview = summary(self.seen.snapshot, self.seen.letters)
        head = Text(f"{self._look_at.namesrv}  {utc(overview.taken_ms)} UTC")
        head.append("  PAUSED" if self.is_paused else "", "bold yellow")
        head.append("\n")
        for name, value in figures_of(overview):
            head.append(value, "bold")
            head.append(f" {name}   ", "dim")
        first.query_one("#head", Static).update(head)
        first.query_one("#problems", Static).update(problem_lines(overview.problems, PROBLEMS_MAX))
        self._draw_rows(first.query_one(DataTable), self.seen)

    def _tabs(self) -> Text:
        line = Text()
        for name in TABLES:
            line.append(f" {name.capitalize()} ", "reverse bold" if name == self._table.name else "")
            line.append(" ")
        if self._search:
            line.append(f"with {shown(self._search)!r} ", "yellow")
        return line

    def _draw_rows(self, view: DataTable[Text], seen: Seen) -> None:
        table, now_ms = self._table, self.now_ms
        found = table.rows(seen, ListQuery(q=self._search, sort=self.sort, size=ROWS_MAX))
        identities = [table.identity(row) for row in found.rows]
        rows = [[self._cell(at, text) for at, text in enumerate(table.cells(row, now_ms))] for row in found.rows]
        if found.matching > len(found.rows):
            tabs = self._tabs().append(f" {number(len(rows))} of {number(found.matching)}", "dim")
            view.screen.query_one("#tabs", Static).update(tabs)
        if self._shown == (f"{table.name} {self.sort}", identities):
            for number_of_row, cells in enumerate(rows):
                for at, cell in enumerate(cells):
                    if view.get_cell_at(Coordinate(number_of_row, at)) != cell:
                        view.update_cell_at(Coordinate(number_of_row, at), cell, update_width=True)
            return
        chosen = view.coordinate_to_cell_key(view.cursor_coordinate).row_key.value if view.row_count else None
        view.clear(columns=True)
        for column in table.columns:
            mark = {column.sort: " ↑", f"-{column.sort}": " ↓"}.get(self.sort, "") if column.sort else ""
            view.add_column(Text(column.title + mark, justify="right" if column.is_number else "left"))
        for identity, cells in zip(identities, rows, strict=True):
            view.add_row(*cells, key=identity)
        if chosen in identities:
            view.move_cursor(row=identities.index(chosen), animate=False)
        self._shown = (f"{table.name} {self.sort}", identities)

    def _cell(self, at: int, text: str) -> Text:
        return Text(text, justify="right" if self._table.columns[at].is_number else "left")


class ObjectScreen(Screen[None]):
    """The page of a group, a topic or a broker.

    Args:
        top: the application.
        table: the table that the row is in.
        identity: tells the row from others.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace,left", "close", "Back")]

    def __init__(self, top: TopApp, table: TopTable, identity: str) -> None:
        super().__init__()
        self._top, self._table, self._identity = top, table, identity

    def compose(self) -> ComposeResult:
        """The parts of the screen."""
        with VerticalScroll():
            yield Static(id="object")
        yield Footer()

    def on_mount(self) -> None:
        """Shows the row at once."""
        self.draw()

    def action_close(self) -> None:
        """Goes back to the table."""
        with suppress(IndexError):
            self.app.pop_screen()

    def draw(self) -> None:
        """Shows what was seen last."""
        seen = self._top.seen
        title = None if seen is None else title_of(seen, self._table, self._identity)
        page = Table.grid(padding=(0, 0))
        if seen is None or title is None:
            page.add_row(Text(f"{shown(self._identity)} is gone."))
        else:
            page.add_row(Text(title, "bold"))
            for heading, columns, rows in parts_of(seen, self._table, self._identity, self._top.now_ms):
                page.add_row(Text(f"\n{heading}" if heading else ""))
                page.add_row(_table_of(columns, rows) if rows else Text("none", "dim"))
        self.query_one("#object", Static).update(page)


def _table_of(columns: Any, rows: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
