"""SQL over topics: through brokers with the visitor's own rights, or over a store of this machine for super users."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rucola.console.access.super_user import require_super_user
from rucola.console.queries.desk import Owner, Query
from rucola.console.views.listing import Point, Series
from rucola.console.visit import BadQueryError, NotFoundError, NotPermittedError, Visit

ROWS_MAX: Final = 10_000
PAGE_WAIT_S: Final = 1.5
"""A page waits so long for a result; then it says that the query is running, and looks again by itself."""
_BARS_MAX: Final = 40
_POINTS_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """A query.

    Attributes:
        query: one `select`; each topic is a table, as in `rucola sql`.
        rows: largest number of rows, 1 to 10,000.
        store: number of a store on this machine; -1 to read through the brokers.
    """

    query: str = ""
    rows: int = 200
    store: int = -1


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column and its Arrow type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart; ``part`` of the longest one, 0 to 1."""

    name: str
    value: float
    part: float


@dataclass(frozen=True, slots=True)
class SqlPage:
    """A query and its result.

    Attributes:
        state: ``none``, ``waiting``, ``running``, ``done``, ``failed`` or ``cancelled``.
        error: why it failed.
        rows: values as text; None for null. Long ones are cut.
        more: whether there are more rows than were asked for.
        has_parquet: whether Parquet has types for all columns.
        series: the result over time, if its first column is a time and its second one a number.
        bars: the result as bars, if its first column is no time and its second one a number.
        stores: paths of the stores on this machine.
    """

    state: str
    error: str
    columns: tuple[SqlColumn, ...]
    rows: tuple[tuple[str | None, ...], ...]
    more: bool
    has_parquet: bool
    series: Series | None
    bars: tuple[Bar, ...]
    stores: tuple[str, ...]


async def sql(visit: Visit, query: SqlQuery) -> SqlPage:
    """The visitor's newest query, if it is this one, and its result."""
    _check_bodies(visit)
    found = visit.desks.queries.of(owner_of(visit))
    if found is None or (found.text, found.rows, found.store) != (query.query, query.rows, query.store):
        return _shown(visit, None)
    await visit.desks.queries.wait(found, PAGE_WAIT_S)
    return _shown(visit, found)


async def start_sql(visit: Visit, query: SqlQuery) -> Query:
    """Starts a query in place of the visitor's earlier one."""
    _check_bodies(visit)
    if not query.query.strip():
        raise BadQueryError("query", "", "one select")
    if not 1 <= query.rows <= ROWS_MAX:
        raise BadQueryError("rows", str(query.rows), f"1 to {ROWS_MAX}")
    directories = visit.desks.explorer.directories
    if not -1 <= query.store < len(directories):
        raise BadQueryError("store", str(query.store), f"-1 to {len(directories) - 1}")
    store = ""
    if query.store >= 0:
        await require_super_user(visit)
        store = directories[query.store]
    place = {
        "store": store,
        "name_server": visit.watch.at.namesrv,
        "access_key": visit.account.name,
        "secret_key": visit.account.secret,
        "use_tls": visit.config.use_tls,
        "ca_certificate": visit.config.tls_trust_cert_path if visit.config.use_tls else "",
    }
    return visit.desks.queries.start(owner_of(visit), Query(query.query, query.rows, query.store), place)


async def run_sql(visit: Visit, query: SqlQuery) -> SqlPage:
    """Runs a query and waits for its result."""
    started = await start_sql(visit, query)
    await visit.desks.queries.wait(started, None)
    return _shown(visit, started)


def result_file(visit: Visit, form: str) -> str:
    """The result of the visitor's newest query as ``csv``, or as ``parquet`` in base64.

    Raises:
        NotFoundError: there is no such result.
    """
    _check_bodies(visit)
    if form not in ("csv", "parquet"):
        raise BadQueryError("form", form, "csv, parquet")
    found = visit.desks.queries.of(owner_of(visit))
    text = "" if found is None or found.state != "done" else str(found.result[form])
    if not text:
        raise NotFoundError("There is no result in this form. Run the query again.")
    return text


def owner_of(visit: Visit) -> Owner:
    """Whose query it is. Scripts of an account share one session."""
    return visit.cluster, visit.account.name, visit.session.csrf if visit.session is not None else ""


def _check_bodies(visit: Visit) -> None:
    if not visit.may_see_bodies:
        raise NotPermittedError("This account may not see bodies of messages.")


def _shown(visit: Visit, query: Query | None) -> SqlPage:
    stores = visit.desks.explorer.directories
    if query is None:
        return SqlPage("none", "", (), (), False, False, None, (), stores)
    found = query.result or {"columns": [], "rows": [], "parquet": "", "more": False}
    columns = tuple(SqlColumn(**one) for one in found["columns"])
    rows = tuple(map(tuple, found["rows"]))
    series, bars = _pictures(columns, rows)
    return SqlPage(query.state, query.error, columns, rows, found["more"], bool(found["parquet"]), series, bars, stores)


def _pictures(
    columns: tuple[SqlColumn, ...], rows: tuple[tuple[str | None, ...], ...]
) -> tuple[Series | None, tuple[Bar, ...]]:
    """The first two columns as a line over time or as bars; neither if they are no names or times with numbers."""
    if len(columns) < _POINTS_MIN or len(rows) < _POINTS_MIN:
        return None, ()
    values = [(row[0], _number(row[1])) for row in rows]
    known = [value for _, value in values if value is not None]
    if not known or not all(value is not None or row[1] is None for (_, value), row in zip(values, rows, strict=True)):
        return None, ()
    if columns[0].type.startswith(("timestamp", "date")):
        points = [Point(_ms(time), value) for time, value in values if time is not None]
        return Series(columns[1].name, tuple(sorted(points, key=lambda point: point.time_ms))), ()
    if min(known) < 0 or len(rows) > _BARS_MAX:
        return None, ()
    top = max(known) or 1.0
    return None, tuple(Bar(str(name), value or 0.0, (value or 0.0) / top) for name, value in values)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _ms(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return 0
