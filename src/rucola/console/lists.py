"""Lists that pages and the API show: searched, sorted and cut into pages on the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rucola.console.visit import COUNT_MAX, BadQueryError

T = TypeVar("T")
SIZE: Final = 50


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which rows of a list are wanted.

    Attributes:
        q: text that the name contains, without regard to case.
        sort: name of a column; with ``-`` in front, from the largest.
        page: number of the page, from 1.
        size: rows of a page.
        only: name of a filter; empty for all rows.
    """

    q: str = ""
    sort: str = ""
    page: int = 1
    size: int = SIZE
    only: str = ""


@dataclass(frozen=True, slots=True)
class Cut(Generic[T]):
    """The rows of one page, and how many there are: ``total`` before the search, ``matching`` after it."""

    rows: tuple[T, ...]
    total: int
    matching: int
    page: int
    pages: int


def cut(
    rows: Iterable[T],
    query: ListQuery,
    name: Callable[[T], str],
    columns: Mapping[str, Callable[[T], Any]],
    filters: Mapping[str, Callable[[T], bool]],
) -> Cut[T]:
    """Searches, sorts and cuts a list. Rows whose value is None come last in either order.

    Raises:
        BadQueryError: there is no such column, filter or page size.
    """
    everything = list(rows)
    if query.only and query.only not in filters:
        raise BadQueryError("only", query.only, ", ".join(filters) or "nothing")
    if not 1 <= query.size <= COUNT_MAX:
        raise BadQueryError("size", str(query.size), f"1 to {COUNT_MAX}")
    wanted = query.q.casefold()
    chosen = [row for row in everything if wanted in name(row).casefold()]
    if query.only:
        chosen = [row for row in chosen if filters[query.only](row)]
    chosen = _sorted(chosen, query.sort or next(iter(columns)), columns)
    pages = max(-(-len(chosen) // query.size), 1)
    page = min(max(query.page, 1), pages)
    first = (page - 1) * query.size
    return Cut(tuple(chosen[first : first + query.size]), len(everything), len(chosen), page, pages)


def _sorted(rows: Sequence[T], sort: str, columns: Mapping[str, Callable[[T], Any]]) -> list[T]:
    column = columns.get(sort.removeprefix("-"))
    if column is None:
        raise BadQueryError("sort", sort, ", ".join(columns))
    unknown = [row for row in rows if column(row) is None]
    known = sorted((row for row in rows if column(row) is not None), key=column, reverse=sort.startswith("-"))
    return [*known, *unknown]
