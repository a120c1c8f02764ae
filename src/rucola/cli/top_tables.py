"""The tables of ``rucola top``: groups, topics and brokers, from the lists that the console shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rucola.cli.store_text import shown
from rucola.console.cluster.problems import NewLetters
from rucola.console.cluster.snapshot import MASTER, BrokerState, ClusterSnapshot, GroupState, TopicState
from rucola.console.lists import ListQuery
from rucola.console.pages.shown import ago, number, percent, rate, signed, turn
from rucola.console.views.lists import BrokerRows, GroupRows, TopicRows, broker_rows, group_rows, topic_rows

T = TypeVar("T")
Rows = GroupRows | TopicRows | BrokerRows


@dataclass(frozen=True, slots=True)
class Seen:
    """What ``rucola top`` shows.

    Attributes:
        snapshot: the cluster.
        letters: new dead letters since the start of the command, by group.
    """

    snapshot: ClusterSnapshot
    letters: Mapping[str, NewLetters]


@dataclass(frozen=True, slots=True)
class TopColumn:
    """A column.

    Attributes:
        sort: its name in the list's order; empty if rows cannot be sorted by it.
        title: its heading.
        cell: returns the text of a row at a time in ms.
        is_number: whether it is aligned to the right, and sorted from the largest first.
    """

    sort: str
    title: str
    cell: Callable[[Any, int], str]
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class TopTable:
    """A table.

    Attributes:
        name: ``groups``, ``topics`` or ``brokers``.
        sort: its first order, as in ``ListQuery``.
        columns: the first one names the row.
        rows: returns the rows that a query asks for.
        identity: returns what tells one row from the others.
    """

    name: str
    sort: str
    columns: Sequence[TopColumn]
    rows: Callable[[Seen, ListQuery], Rows]
    identity: Callable[[Any], str]

    @property
    def sorts(self) -> tuple[str, ...]:
        """The names of the columns by which it can be sorted."""
        return tuple(column.sort for column in self.columns if column.sort)

    def order(self, sort: str) -> str:
        """The order by a column, the most interesting rows first."""
        column = next(column for column in self.columns if column.sort == sort)
        return f"-{sort}" if column.is_number else sort

    def cells(self, row: Any, now_ms: int) -> list[str]:
        """The texts of a row."""
        return [column.cell(row, now_ms) for column in self.columns]


def reverse(sort: str) -> str:
    """The same order from its other end."""
    return sort.removeprefix("-") if sort.startswith("-") else f"-{sort}"


def state_of(broker: BrokerState) -> str:
    """Whether a broker answers."""
    if not broker.is_listed:
        return "has left"
    return "answers" if broker.unknown is None else str(broker.unknown.reason)


def _plain(cell: Callable[[T], str]) -> Callable[[T, int], str]:
    return lambda row, _now_ms: cell(row)


def _members(group: GroupState) -> str:
    return number(None if group.members is None else len(group.members))


def _role(broker: BrokerState) -> str:
    return "master" if broker.broker_id == MASTER else f"slave {broker.broker_id}"


def _topic_query(query: ListQuery) -> ListQuery:
    """Only topics of applications, unless a search asks for more."""
    return ListQuery(query.q, query.sort, query.page, query.size, "all") if query.q else query


TABLES: Final[Mapping[str, TopTable]] = {
    table.name: table
    for table in (
        TopTable(
            "groups",
            "-lag",
            (
                TopColumn("name", "Group", _plain(lambda group: shown(group.name)), False),
                TopColumn("lag", "Lag", _plain(lambda group: number(group.lag))),
                TopColumn("trend", "+/s", _plain(lambda group: signed(group.trend))),
                TopColumn("out", "Out/s", _plain(lambda group: rate(group.out_rate))),
                TopColumn("members", "Members", _plain(_members)),
                TopColumn("dead", "Dead", _plain(lambda group: number(group.dead))),
                TopColumn("behind", "Behind", lambda group, now_ms: ago(group.behind_ms, now_ms), False),
            ),
            lambda seen, query: group_rows(seen.snapshot, query, seen.letters),
            lambda group: str(group.name),
        ),
        TopTable(
            "topics",
            "-in",
            (
                TopColumn("name", "Topic", _plain(lambda topic: shown(topic.name)), False),
                TopColumn("in", "In/s", _plain(lambda topic: rate(topic.in_rate))),
                TopColumn("messages", "Messages", _plain(lambda topic: number(topic.messages))),
                TopColumn("lag", "Lag", _plain(lambda topic: number(topic.lag))),
                TopColumn("groups", "Groups", _plain(lambda topic: number(len(topic.groups)))),
                TopColumn("last", "Last", lambda topic, now_ms: ago(topic.last_ms, now_ms)),
            ),
            lambda seen, query: topic_rows(seen.snapshot, _topic_query(query)),
            lambda topic: str(topic.name),
        ),
        TopTable(
            "brokers",
            "name",
            (
                TopColumn("name", "Broker", _plain(lambda broker: shown(broker.name)), False),
                TopColumn("address", "Address", _plain(lambda broker: shown(broker.address)), False),
                TopColumn("", "Role", _plain(_role), False),
                TopColumn("in", "In/s", _plain(lambda broker: rate(broker.in_rate))),
                TopColumn("out", "Out/s", _plain(lambda broker: rate(broker.out_rate))),
                TopColumn("disk", "Disk", _plain(lambda broker: percent(broker.disk_ratio))),
                TopColumn("turn", "Longest turn", _plain(lambda broker: turn(broker.longest_turn_ms))),
                TopColumn("", "State", _plain(state_of), False),
            ),
            lambda seen, query: broker_rows(seen.snapshot, query),
            lambda broker: str(broker.address),
        ),
    )
}
"""All tables by name."""


def title_of(seen: Seen, table: TopTable, identity: str) -> str | None:
    """The heading of a row's page; None if there is no such row any more."""
    return None if _row(seen, table, identity) is None else f"{table.columns[0].title} {shown(identity)}"


Part = tuple[str, Sequence[str], list[list[str]]]
"""A part of a row's page: heading, names of the columns, rows."""


def parts_of(seen: Seen, table: TopTable, identity: str, now_ms: int) -> list[Part]:
    """What a row's page shows; empty if there is no such row any more."""
    row = _row(seen, table, identity)
    if row is None:
        return []
    figures: Part = ("", [column.title for column in table.columns[1:]], [table.cells(row, now_ms)[1:]])
    if isinstance(row, GroupState):
        return [figures, *_of_group(row, now_ms)]
    if isinstance(row, TopicState):
        return [figures, *_of_topic(seen.snapshot, row)]
    return [figures, _of_broker(row)]


def _row(seen: Seen, table: TopTable, identity: str) -> GroupState | TopicState | BrokerState | None:
    if table.name == "groups":
        return seen.snapshot.groups.get(identity)
    return seen.snapshot.topics.get(identity) if table.name == "topics" else seen.snapshot.broker_at(identity)


def _of_group(group: GroupState, now_ms: int) -> list[Part]:
    topics = [
        [shown(one.topic), number(one.lag), number(one.queues), ago(one.consumed_ms, now_ms)]
        for one in group.topics or ()
    ]
    members = [
        [shown(one.client_id), shown(one.address), shown(one.language), shown(one.version)]
        for one in group.members or ()
    ]
    return [
        ("What it reads", ("Topic", "Lag", "Queues", "Behind"), topics),
        ("Members", ("Client", "Address", "Language", "Version"), members),
    ]


def _of_topic(snapshot: ClusterSnapshot, topic: TopicState) -> list[Part]:
    readers = []
    for name in topic.groups:
        group = snapshot.groups[name]
        lag = next((one.lag for one in group.topics or () if one.topic == topic.name), None)
        readers.append([shown(name), number(lag), _members(group)])
    queues = [[shown(one.broker), number(one.read_queues), number(one.write_queues)] for one in topic.brokers or ()]
    return [
        ("Who reads it", ("Group", "Lag", "Members"), readers),
        ("Queues", ("Broker", "Read", "Write"), queues),
    ]


def _of_broker(broker: BrokerState) -> Part:
    return "Figures", ("Name", "Value"), [[shown(name), shown(value)] for name, value in sorted(broker.runtime.items())]
