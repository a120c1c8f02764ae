"""The overview, and the lists of topics, groups, clients, brokers and name servers. They come from one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rucola.console.cluster.problems import ClusterProblem, NewLetters, Severity, problems
from rucola.console.cluster.snapshot import (
    BrokerState,
    ClientState,
    ClusterSnapshot,
    GroupState,
    Large,
    NameServerState,
    TopicState,
)
from rucola.console.lists import Cut, ListQuery, cut
from rucola.console.views.listing import Listing, NoQuery, Series, series, why_empty
from rucola.console.visit import Visit


@dataclass(frozen=True, slots=True)
class Overview:
    """A cluster at a glance. Rates are sums over the brokers that answer; None if none does.

    Attributes:
        problems: what is wrong, the worst first.
        lag: messages that groups have not consumed.
        behind: the groups that are furthest behind.
        oldest_ms: store time of the last message that the group consumed which is furthest behind in time.
    """

    taken_ms: int
    problems: tuple[ClusterProblem, ...]
    in_rate: float | None
    out_rate: float | None
    lag: Large | None
    oldest_ms: int | None
    topics: int | None
    groups: int | None
    clients: int | None
    disk_ratio: float | None
    brokers: tuple[BrokerState, ...]
    name_servers: tuple[NameServerState, ...]
    behind: tuple[GroupState, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRows(Listing):
    """Topics."""

    rows: tuple[TopicState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRows(Listing):
    """Consumer groups."""

    rows: tuple[GroupState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRows(Listing):
    """Connected clients. ``unasked`` groups were not looked at yet, so that clients may be missing."""

    rows: tuple[ClientState, ...]
    unasked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRows(Listing):
    """Brokers."""

    rows: tuple[BrokerState, ...]


@dataclass(frozen=True, slots=True)
class NameServerRows:
    """Name servers."""

    taken_ms: int
    rows: tuple[NameServerState, ...]


async def overview(visit: Visit, _query: NoQuery) -> Overview:
    """What is wrong, then rates, lag and servers."""
    snapshot = await visit.watch.fresh()
    return summary(snapshot, visit.watch.letters, await series(visit, "cluster/in", "cluster/out", "cluster/lag"))


def summary(snapshot: ClusterSnapshot, letters: Mapping[str, NewLetters], history: tuple[Series, ...] = ()) -> Overview:
    """The overview of a snapshot, with figures over time if there are any."""
    groups = [group for group in snapshot.groups.values() if not group.is_system]
    lags = [group.lag for group in groups if group.lag is not None]
    answering = [broker for broker in snapshot.masters if broker.unknown is None]
    behind = sorted((group for group in groups if group.lag), key=lambda one: one.lag or 0, reverse=True)
    oldest = [group.behind_ms for group in groups if group.behind_ms is not None]
    return Overview(
        snapshot.taken_ms,
        tuple(problems(snapshot, letters)),
        _sum([broker.in_rate for broker in answering]),
        _sum([broker.out_rate for broker in answering]),
        sum(lags) if lags or (snapshot.taken_ms and not snapshot.refusals and answering) else None,
        min(oldest, default=None),
        sum(topic.kind == "normal" for topic in snapshot.topics.values()) if snapshot.topics else None,
        len(groups) if snapshot.groups else None,
        len(snapshot.clients) if snapshot.groups else None,
        max((broker.disk_ratio for broker in snapshot.brokers if broker.disk_ratio is not None), default=None),
        snapshot.brokers,
        snapshot.name_servers,
        tuple(behind[:10]),
        history,
    )


async def topics(visit: Visit, query: ListQuery) -> TopicRows:
    """Topics; without a filter, only those of applications."""
    return topic_rows(await visit.watch.fresh(), query)


def topic_rows(snapshot: ClusterSnapshot, query: ListQuery) -> TopicRows:
    """The topics of a snapshot."""
    found = cut(
        snapshot.topics.values(),
        query if query.only else ListQuery(query.q, query.sort, query.page, query.size, "normal"),
        lambda topic: topic.name,
        {
            "name": lambda topic: topic.name,
            "in": lambda topic: topic.in_rate,
            "messages": lambda topic: topic.messages,
            "lag": lambda topic: topic.lag,
            "groups": lambda topic: len(topic.groups),
            "queues": lambda topic: None if topic.brokers is None else sum(one.read_queues for one in topic.brokers),
            "last": lambda topic: topic.last_ms,
        },
        {
            "normal": lambda topic: topic.kind == "normal",
            "retry": lambda topic: topic.kind == "retry",
            "dead": lambda topic: topic.kind == "dead",
            "light": lambda topic: topic.kind == "light",
            "system": lambda topic: topic.kind == "system",
            "all": lambda _topic: True,
            "unread": lambda topic: topic.kind == "normal" and not topic.groups,
            "behind": lambda topic: bool(topic.lag),
        },
    )
    return TopicRows(rows=found.rows, **_about(found, snapshot))


async def groups(visit: Visit, query: ListQuery) -> GroupRows:
    """Consumer groups; without a filter, only those of applications."""
    return group_rows(await visit.watch.fresh(), query, visit.watch.letters)


def group_rows(snapshot: ClusterSnapshot, query: ListQuery, letters: Mapping[str, NewLetters]) -> GroupRows:
    """The groups of a snapshot."""
    troubled = {one.object for one in problems(snapshot, letters) if one.object_kind == "group"}
    found = cut(
        snapshot.groups.values(),
        query if query.only else ListQuery(query.q, query.sort, query.page, query.size, "normal"),
        lambda group: group.name,
        {
            "name": lambda group: group.name,
            "lag": lambda group: group.lag,
            "out": lambda group: group.out_rate,
            "trend": lambda group: group.trend,
            "members": lambda group: None if group.members is None else len(group.members),
            "dead": lambda group: group.dead,
            "behind": lambda group: group.behind_ms,
        },
        {
            "normal": lambda group: not group.is_system,
            "behind": lambda group: bool(group.lag),
            "growing": lambda group: bool(group.lag) and (group.trend or 0) > 0,
            "empty": lambda group: group.members == () and not group.is_system,
            "online": lambda group: bool(group.members),
            "dead": lambda group: bool(group.dead),
            "troubled": lambda group: group.name in troubled,
            "system": lambda group: group.is_system,
            "all": lambda _group: True,
        },
    )
    return GroupRows(rows=found.rows, **_about(found, snapshot))


async def clients(visit: Visit, query: ListQuery) -> ClientRows:
    """Connected clients."""
    snapshot = await visit.watch.fresh()
    found = cut(
        snapshot.clients.values(),
        query,
        lambda client: f"{client.client_id} {client.address} {' '.join(client.consumes)} {' '.join(client.produces)}",
        {
            "id": lambda client: client.client_id,
            "address": lambda client: client.address,
            "language": lambda client: client.language,
            "version": lambda client: client.version,
        },
        {
            "consumers": lambda client: bool(client.consumes),
            "producers": lambda client: bool(client.produces),
        },
    )
    unasked = sum(group.members is None and not group.is_system for group in snapshot.groups.values())
    return ClientRows(rows=found.rows, unasked=unasked, **_about(found, snapshot))


async def brokers(visit: Visit, query: ListQuery) -> BrokerRows:
    """Brokers, also those that have left within a day."""
    return broker_rows(await visit.watch.fresh(), query)


def broker_rows(snapshot: ClusterSnapshot, query: ListQuery) -> BrokerRows:
    """The brokers of a snapshot."""
    found = cut(
        snapshot.brokers,
        query,
        lambda broker: f"{broker.name} {broker.address}",
        {
            "name": lambda broker: (broker.cluster, broker.name, broker.broker_id),
            "address": lambda broker: broker.address,
            "in": lambda broker: broker.in_rate,
            "out": lambda broker: broker.out_rate,
            "disk": lambda broker: broker.disk_ratio,
            "turn": lambda broker: broker.longest_turn_ms,
        },
        {
            "masters": lambda broker: broker.broker_id == 0,
            "slaves": lambda broker: broker.broker_id != 0,
            "away": lambda broker: broker.unknown is not None or not broker.is_listed,
        },
    )
    return BrokerRows(rows=found.rows, **_about(found, snapshot))


async def name_servers(visit: Visit, _query: NoQuery) -> NameServerRows:
    """Name servers."""
    snapshot = await visit.watch.fresh()
    return NameServerRows(snapshot.taken_ms, snapshot.name_servers)


def is_bad(problem: ClusterProblem) -> bool:
    """Whether a problem is more than a warning."""
    return problem.severity is Severity.BAD


def _about(found: Cut[Any], snapshot: ClusterSnapshot) -> dict[str, Any]:
    return {
        "total": found.total,
        "matching": found.matching,
        "page": found.page,
        "pages": found.pages,
        "empty": why_empty(found, snapshot),
        "taken_ms": snapshot.taken_ms,
        "refusals": snapshot.refusals,
    }


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
