"""One topic, group, client or broker. Its figures come from the snapshot; the rest is asked of the brokers now, with
one deadline for the page. A broker that does not answer becomes a marked row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rucola.common.options import SECRET_SHOWN
from rucola.console.cluster import seen
from rucola.console.cluster.asking import Reason, Unknown, by_deadline, known
from rucola.console.cluster.problems import ClusterProblem, problems_of_group
from rucola.console.cluster.snapshot import BrokerState, ClientState, GroupState, Large, TopicState
from rucola.console.cluster.subscriptions import queues_of_member, subscriptions_of
from rucola.console.views.listing import NameQuery, Series, series
from rucola.console.visit import NotFoundError, Visit

DEADLINE_S: Final = 2.5
TIMES_MAX: Final = 64
"""Queues of a topic whose oldest message is asked for."""
MEMBERS_MAX: Final = 50
"""Members of a group that are asked which queues they read."""
_SECRET_WORDS: Final = ("password", "secret", "credential", "authenticationuser", "token")


@dataclass(frozen=True, slots=True)
class QueueOfTopic:
    """A queue of a topic: what it holds, and since when."""

    broker: str
    queue: int
    min_offset: Large
    max_offset: Large
    first_ms: int | None
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class Reader:
    """A group that reads a topic."""

    group: str
    lag: Large | None
    consumed_ms: int | None
    members: int | None


@dataclass(frozen=True, slots=True)
class TopicPage:
    """A topic with its queues and readers; ``unknown``: what was not told."""

    topic: TopicState
    queues: tuple[QueueOfTopic, ...]
    readers: tuple[Reader, ...]
    series: tuple[Series, ...]
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True, slots=True)
class QueueOfGroup:
    """A group's progress in a queue.

    Attributes:
        inflight: messages that consumers have fetched but not consumed.
        owner: client that reads the queue; None if no member says so.
    """

    topic: str
    broker: str
    queue: int
    end: Large
    offset: Large
    lag: Large
    inflight: Large
    consumed_ms: int | None
    owner: str | None


@dataclass(frozen=True, slots=True)
class GroupPage:
    """A group with its queues, members and configuration on each broker."""

    group: GroupState
    problems: tuple[ClusterProblem, ...]
    queues: tuple[QueueOfGroup, ...]
    configs: Mapping[str, Mapping[str, str]]
    series: tuple[Series, ...]
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True, slots=True)
class ClientQuery:
    """The client that a page shows.

    Attributes:
        id: client id.
        stacks: whether the client is asked for the stacks of its threads, too.
    """

    id: str
    stacks: bool = False


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """What a client says about itself as a member of one group."""

    group: str
    properties: Mapping[str, str]
    subscriptions: Mapping[str, str]
    queues: tuple[str, ...]
    stacks: str | None


@dataclass(frozen=True, slots=True)
class ClientPage:
    """A client; ``running`` has an entry for each group whose broker could ask it."""

    client: ClientState
    running: tuple[RunningInfo, ...]
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True, slots=True)
class BrokerQuery:
    """The broker that a page shows.

    Attributes:
        address: its address, as a name server lists it.
    """

    address: str


@dataclass(frozen=True, slots=True)
class BrokerPage:
    """A broker with all its figures and its configuration; values of secret options are not shown."""

    broker: BrokerState
    config: Mapping[str, str] | None
    series: tuple[Series, ...]
    unknown: tuple[Unknown, ...] = field(default=())


async def topic(visit: Visit, query: NameQuery) -> TopicPage:
    """A topic."""
    snapshot = await visit.watch.fresh()
    state = snapshot.topics.get(query.name)
    if state is None:
        raise NotFoundError(query.name)
    api = visit.watch.admin.api
    masters = {part.broker: snapshot.master_of(part.broker) for part in state.brokers or ()}
    addresses = {name: broker.address for name, broker in masters.items() if broker is not None}
    answers = await by_deadline(
        [(address, api.topic_stats(address, state.name)) for address in addresses.values()], DEADLINE_S / 2
    )
    offsets = {queue: offset for answer in known(answers) for queue, offset in answer.offset_table.items()}
    asked_for = [queue for queue in sorted(offsets) if queue.broker_name in addresses][:TIMES_MAX]
    firsts = await by_deadline(
        [(addresses[one.broker_name], api.earliest_store_time(addresses[one.broker_name], one)) for one in asked_for],
        DEADLINE_S / 2,
    )
    first_ms = {queue: at for queue, at in zip(asked_for, firsts, strict=True) if isinstance(at, int) and at > 0}
    queues = tuple(
        QueueOfTopic(
            queue.broker_name,
            queue.queue_id,
            offset.min_offset,
            offset.max_offset,
            first_ms.get(queue),
            offset.last_update_timestamp if offset.last_update_timestamp > 0 else None,
        )
        for queue, offset in sorted(offsets.items())
    )
    readers = []
    for name in state.groups:
        group = snapshot.groups[name]
        part = next((one for one in group.topics or () if one.topic == state.name), None)
        members = None if group.members is None else len(group.members)
        lag, consumed_ms = (None, None) if part is None else (part.lag, part.consumed_ms)
        readers.append(Reader(name, lag, consumed_ms, members))
    unknown = [one for one in [*answers, *firsts] if isinstance(one, Unknown)]
    missing = [name for name, broker in masters.items() if broker is None]
    unknown += [Unknown(Reason.SILENT, name, "has no master") for name in missing]
    return TopicPage(state, queues, tuple(readers), await series(visit, f"topic/{state.name}/in"), tuple(unknown))


async def group(visit: Visit, query: NameQuery) -> GroupPage:
    """A consumer group."""
    snapshot = await visit.watch.fresh()
    state = snapshot.groups.get(query.name)
    if state is None:
        raise NotFoundError(query.name)
    api, addresses = visit.watch.admin.api, [broker.address for broker in snapshot.masters]
    members = (state.members or ())[:MEMBERS_MAX]
    calls: list[tuple[str, Awaitable[Any]]] = [(one, api.consume_stats(one, state.name)) for one in addresses]
    calls += [(one, api.group_config(one, state.name)) for one in addresses]
    calls += [(one.broker, api.running_info(one.broker, state.name, one.client_id, False)) for one in members]
    answers = await by_deadline(calls, DEADLINE_S)
    count = len(addresses)
    stats, configs, infos = answers[:count], answers[count : 2 * count], answers[2 * count :]
    owners = {
        queue: member.client_id
        for member, info in zip(members, infos, strict=True)
        if not isinstance(info, Unknown)
        for queue in queues_of_member(info)
    }
    rows = {queue: wrapper for one in known(stats) for queue, wrapper in one.offset_table.items()}
    queues = tuple(
        QueueOfGroup(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            wrapper.broker_offset,
            wrapper.consumer_offset,
            seen.lag_of(wrapper),
            wrapper.inflight,
            wrapper.last_timestamp if wrapper.last_timestamp > 0 else None,
            owners.get((queue.topic, queue.broker_name, queue.queue_id)),
        )
        for queue, wrapper in sorted(rows.items())
    )
    by_broker = {
        address: {name: _text(value) for name, value in config.to_dict().items()}
        for address, config in zip(addresses, configs, strict=True)
        if not isinstance(config, Unknown)
    }
    return GroupPage(
        state,
        problems_of_group(state),
        queues,
        by_broker,
        await series(visit, f"group/{state.name}/lag", f"group/{state.name}/out"),
        tuple(one for one in [*stats, *configs] if isinstance(one, Unknown)),
    )


async def client(visit: Visit, query: ClientQuery) -> ClientPage:
    """A connected client."""
    snapshot = await visit.watch.fresh()
    state = snapshot.clients.get(query.id)
    if state is None:
        raise NotFoundError(query.id)
    calls, names = [], []
    for name in state.consumes[:MEMBERS_MAX]:
        for member in snapshot.groups[name].members or ():
            if member.client_id == state.client_id:
                names.append(name)
                call = visit.watch.admin.api.running_info(member.broker, name, state.client_id, query.stacks)
                calls.append((member.broker, call))
    answers = await by_deadline(calls, DEADLINE_S)
    running = tuple(
        _running(name, answer) for name, answer in zip(names, answers, strict=True) if not isinstance(answer, Unknown)
    )
    return ClientPage(state, running, tuple(one for one in answers if isinstance(one, Unknown)))


async def broker(visit: Visit, query: BrokerQuery) -> BrokerPage:
    """A broker. Only addresses that a name server lists are asked."""
    snapshot = await visit.watch.fresh()
    state = snapshot.broker_at(query.address)
    if state is None:
        raise NotFoundError(query.address)
    (answer,) = await by_deadline([(state.address, visit.watch.admin.api.broker_config(state.address))], DEADLINE_S)
    history = await series(visit, *(f"broker/{state.address}/{name}" for name in ("in", "out", "disk")))
    if isinstance(answer, Unknown):
        return BrokerPage(state, None, history, (answer,))
    return BrokerPage(state, {name: _shown(name, answer[name]) for name in sorted(answer)}, history)


def _running(group: str, info: Mapping[str, Any]) -> RunningInfo:
    properties = info.get("properties")
    stacks = info.get("jstack")
    return RunningInfo(
        group,
        {name: _shown(name, _text(value)) for name, value in sorted(properties.items())}
        if isinstance(properties, dict)
        else {},
        subscriptions_of(info),
        tuple(f"{topic} {broker_name} {queue}" for topic, broker_name, queue in sorted(queues_of_member(info))),
        stacks if isinstance(stacks, str) else None,
    )


def _shown(name: str, value: str) -> str:
    return SECRET_SHOWN if value and any(word in name.lower() for word in _SECRET_WORDS) else value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
