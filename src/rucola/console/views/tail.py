"""A live tail of a topic."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.console.cluster.asking import Unknown
from rucola.console.cluster.snapshot import Large
from rucola.console.messages.rows import MessageRow
from rucola.console.messages.tail import TailOf
from rucola.console.views.messages import topics_shown
from rucola.console.visit import BadQueryError, Visit
from rucola.errors import FormatError
from rucola.filter.tag import parse_tag_expression


@dataclass(frozen=True, slots=True)
class TailQuery:
    """The messages that are followed.

    Attributes:
        topic: their topic; empty if the page is only a form.
        tag: only messages with these tags, separated by ``||``.
        sql: only messages whose properties fulfil this SQL92 expression.
        paused: whether the window stands still.
    """

    topic: str = ""
    tag: str = ""
    sql: str = ""
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TailPage:
    """A window on the newest messages, the newest first.

    Attributes:
        seen: messages that matched since the tail began, ``rate`` of them a second at the last look.
        dropped: messages that came too fast and were not read.
        state: ``form``, ``follows``, ``paused`` or ``ended``.
    """

    state: str
    rows: tuple[MessageRow, ...]
    seen: Large
    dropped: Large
    rate: float | None
    unknown: tuple[Unknown, ...]
    topics: tuple[str, ...]

    @property
    def is_still(self) -> bool:
        """Whether nothing would be new."""
        return self.state != "follows"


async def tail(visit: Visit, query: TailQuery) -> TailPage:
    """Follows a topic: a window that moves on with each request."""
    if query.tag and query.sql:
        raise BadQueryError("sql", query.sql, "a tag or an expression, not both")
    if query.sql and not visit.may_see_bodies:  # what matches would tell the properties
        raise BadQueryError("sql", query.sql, "tags, for an account that may not see properties")
    try:
        parse_tag_expression(query.tag or "*")
    except FormatError as error:
        raise BadQueryError("tag", query.tag, str(error)) from None
    snapshot = await visit.watch.fresh()
    topics = topics_shown(snapshot)
    if not query.topic:
        return TailPage("form", (), 0, 0, None, (), topics)
    session = visit.session.csrf if visit.session is not None else ""
    of = TailOf(
        visit.cluster, visit.account.name or visit.peer, session, query.topic, query.sql or query.tag, bool(query.sql)
    )
    window = visit.desks.tails.tail(of, visit.may_see_bodies)
    if window is None:
        return TailPage("ended", (), 0, 0, None, (), topics)
    if not query.paused:
        await window.look(visit.watch.admin, snapshot, visit.desks.tails.now_s())
    state = "paused" if query.paused else "follows"
    rows = tuple(reversed(window.rows))
    return TailPage(state, rows, window.seen, window.dropped, window.rate, window.unknown, topics)
