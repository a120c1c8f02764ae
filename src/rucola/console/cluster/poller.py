"""Looks at one cluster for all pages of one account, at an interval, and publishes what it saw as one value.

A round asks name servers and brokers for their own figures. Every few rounds it asks each master for its tables:
topics, groups, the progress of all groups, producers, slaves. What exists only for one topic or one group is asked in
turn, so many a round, however many there are. The number of questions depends neither on the pages nor on the rows that
they show.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rucola.client.admin import AdminClient
from rucola.common.key_builder import dlq_topic, retry_topic
from rucola.console.cluster import seen
from rucola.console.cluster.asking import Reason, Unknown, by_deadline, known
from rucola.console.cluster.snapshot import (
    MASTER,
    BrokerState,
    ClientState,
    ClusterSnapshot,
    GroupState,
    Member,
    NameServerState,
    TopicState,
    kind_of,
)
from rucola.console.cluster.subscriptions import assignment, differences, told_by
from rucola.errors import BrokerError
from rucola.protocol.bodies.connections import Connection, ConsumerConnection, ProducerTableInfo
from rucola.protocol.bodies.route import ClusterInfo
from rucola.protocol.codes import ResponseCode
from rucola.runtime.clock import Clock

ANSWER_S: Final = 1.0
"""Seconds that servers have for the answers of one part of a round."""
PAGE_S: Final = 1.5
"""Seconds that a page waits for the first round."""
TABLES_S: Final = 10.0
"""Seconds between two looks at the tables while somebody watches."""
WATCHED_S: Final = 60.0
"""Seconds after a page for which the cluster counts as watched."""
UNWATCHED_PAUSE_S: Final = 60.0
SWEEP: Final = 40
"""Topics, and groups, that a round asks about."""
SWEEP_UNWATCHED: Final = 400
MEMBER_SWEEP: Final = 2
"""Groups whose members a round asks."""
MEMBER_SWEEP_UNWATCHED: Final = 40
MEMBERS_MAX: Final = 100
"""Members of a group that are asked."""
TREND_S: Final = 300.0
_TREND_MIN_S: Final = 15.0
GONE_S: Final = 24 * 3600
"""Seconds for which a broker is shown that no name server lists any more."""


class ClusterPoller:
    """Looks at a cluster. Event loop only; ``run`` is one task.

    Args:
        admin: sends the questions, with the account of the visitors.
        clock: gives the times.
        refresh_s: pause between rounds while somebody watches.
        tables_s: the same for the tables.

    Attributes:
        snapshot: what was seen last; replaced as a whole.
        assignments: the queues that each member of a group reads, see ``assignment``.
    """

    def __init__(self, admin: AdminClient, clock: Clock, refresh_s: float, tables_s: float = TABLES_S) -> None:
        self._admin, self._clock, self._refresh_s, self._tables_pause_s = admin, clock, refresh_s, tables_s
        self.snapshot = ClusterSnapshot()
        self.assignments: dict[str, dict[str, tuple[str, ...] | None]] = {}
        self._round: asyncio.Task[None] | None = None
        self._watched_s = -WATCHED_S
        self._round_s = self._tables_s = float("-inf")
        self._topic_turn = self._group_turn = self._member_turn = 0
        self._ends: dict[str, tuple[float, int]] = {}
        """When a topic was looked at, and the sum of its maximum offsets then."""
        self._lags: dict[str, deque[tuple[float, int]]] = {}
        self._producers: dict[str, dict[str, Connection]] = {}
        """Groups in which a client produces, by its id."""

    @property
    def is_due(self) -> bool:
        """Whether the time has come for another round."""
        often = self._is_watched() and not self.is_refused
        pause_s = self._refresh_s / 2 if often else UNWATCHED_PAUSE_S
        return self._clock.monotonic() - self._round_s >= pause_s

    async def look(self) -> None:
        """Makes a round, or waits for the one that runs."""
        if self._round is None or self._round.done():
            self._round = asyncio.ensure_future(self._look())
        await asyncio.shield(self._round)

    async def fresh(self) -> ClusterSnapshot:
        """What a page shows: the last snapshot, or a new one if that is old. Waits for at most ``PAGE_S``."""
        self._watched_s = now_s = self._clock.monotonic()
        is_old = now_s - self._round_s > 2 * self._refresh_s + ANSWER_S
        if is_old or not self.snapshot.taken_ms:
            await asyncio.wait([asyncio.ensure_future(self.look())], timeout=PAGE_S)
        return self.snapshot

    def expect_change(self) -> None:
        """Has the next round ask for the tables, because something was changed."""
        self._tables_s = self._round_s = float("-inf")

    async def close(self) -> None:
        """Ends a running round."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait([self._round])

    def _is_watched(self) -> bool:
        return self._clock.monotonic() - self._watched_s < WATCHED_S

    @property
    def is_refused(self) -> bool:
        """Whether all brokers refuse the account, so that it is no use to ask often."""
        masters = self.snapshot.masters
        return bool(masters) and all(
            broker.unknown is not None and broker.unknown.reason is Reason.FORBIDDEN for broker in masters
        )

    async def _look(self) -> None:
        self._round_s = now_s = self._clock.monotonic()
        await self._ask_servers()
        if now_s - self._tables_s >= self._tables_pause_s or not self._is_watched():
            self._tables_s = now_s
            await self._ask_tables()
        await self._sweep(SWEEP if self._is_watched() else SWEEP_UNWATCHED)
        self._publish(taken_ms=self._clock.wall_ms())

    def _publish(self, **changes: Any) -> None:
        self.snapshot = replace(self.snapshot, **changes)

    # name servers and brokers

    async def _ask_servers(self) -> None:
        addresses = self._admin.namesrv_addresses
        answers = await by_deadline(
            [(address, self._admin.api.cluster_info(address, int(ANSWER_S * 1000))) for address in addresses], ANSWER_S
        )
        now_ms = self._clock.wall_ms()
        before = {server.address: server.seen_ms for server in self.snapshot.name_servers}
        name_servers = tuple(
            NameServerState(address, answer, before.get(address))
            if isinstance(answer, Unknown)
            else NameServerState(address, None, now_ms)
            for address, answer in zip(addresses, answers, strict=True)
        )
        infos = known(answers)
        brokers = self._listed(infos, now_ms) if infos else self.snapshot.brokers
        asked_for = [broker for broker in brokers if broker.is_listed]
        found = await by_deadline(
            [(broker.address, self._admin.api.runtime_info(broker.address)) for broker in asked_for], ANSWER_S
        )
        now_ms = self._clock.wall_ms()
        by_address = {broker.address: answer for broker, answer in zip(asked_for, found, strict=True)}
        self._publish(
            name_servers=name_servers,
            brokers=tuple(
                seen.with_runtime(broker, by_address[broker.address], now_ms) if broker.is_listed else broker
                for broker in brokers
            ),
        )

    def _listed(self, infos: Sequence[ClusterInfo], now_ms: int) -> tuple[BrokerState, ...]:
        """The brokers that name servers list, then those that they listed before."""
        before = {broker.address: broker for broker in self.snapshot.brokers}
        found: dict[str, BrokerState] = {}
        for info in infos:
            for name, data in info.broker_addr_table.items():
                for broker_id, address in data.broker_addrs.items():
                    state = before.get(address) or BrokerState(data.cluster, name, broker_id, address)
                    found[address] = replace(
                        state, cluster=data.cluster, name=name, broker_id=broker_id, is_listed=True
                    )
        gone = [
            replace(broker, is_listed=False)
            for address, broker in before.items()
            if address not in found and now_ms - (broker.seen_ms or 0) < GONE_S * 1000
        ]
        return tuple(sorted([*found.values(), *gone], key=lambda one: (one.cluster, one.name, one.broker_id)))

    def _answering(self) -> list[BrokerState]:
        """For each broker's name, the one that answers questions about its topics and groups: the master if it answers,
        otherwise a slave.
        """
        chosen: dict[str, BrokerState] = {}
        for broker in self.snapshot.brokers:
            if broker.is_listed and broker.unknown is None:
                chosen.setdefault(broker.name, broker)
        return list(chosen.values())

    # tables

    async def _ask_tables(self) -> None:
        api, brokers = self._admin.api, self._answering()
        addresses = [broker.address for broker in brokers]

        def of_all(call: Any) -> list[tuple[str, Awaitable[Any]]]:
            return [(address, call(address)) for address in addresses]

        parts: list[list[tuple[str, Awaitable[Any]]]] = [
            of_all(api.all_topic_configs),
            of_all(api.all_groups),
            of_all(lambda address: api.all_consume_stats(address, False)),
            of_all(api.producers),
            [(one.address, api.ha_status(one.address)) for one in brokers if one.broker_id == MASTER],
            [("name servers", self._admin.topic_list())],
        ]
        answers = await by_deadline([call for part in parts for call in part], ANSWER_S)
        taken: list[list[Any]] = []
        for part in parts:
            taken.append(answers[: len(part)])
            answers = answers[len(part) :]
        topics, groups, stats, producers, replicas, names = taken
        refusals = tuple(one for part in taken for one in part if isinstance(one, Unknown))
        slaves = {
            broker.address: seen.slaves_of(answer)
            for broker, answer in zip([one for one in brokers if one.broker_id == MASTER], replicas, strict=True)
            if not isinstance(answer, Unknown)
        }
        self._publish(
            refusals=refusals,
            brokers=tuple(
                replace(broker, slaves=slaves[broker.address]) if broker.address in slaves else broker
                for broker in self.snapshot.brokers
            ),
            topics=self._topics(brokers, topics, known(names)),
            groups=self._groups(groups, stats),
        )
        self._note_groups_of_topics()
        self._note_producers(known(producers))

    def _topics(
        self, brokers: Sequence[BrokerState], answers: Sequence[Any], names: Sequence[list[str]]
    ) -> dict[str, TopicState]:
        configs: dict[str, list[tuple[str, Any]]] = {}
        for broker, answer in zip(brokers, answers, strict=True):
            if not isinstance(answer, Unknown):
                for name, config in answer.items():
                    configs.setdefault(name, []).append((broker.name, config))
        before = self.snapshot.topics
        # Each cluster and each broker has a topic of its own name.
        own = {broker.cluster for broker in self.snapshot.brokers} | {broker.name for broker in self.snapshot.brokers}
        # A topic stays while a broker does not answer that may have it.
        hidden = {broker.name for broker in self.snapshot.brokers} - {
            broker.name for broker, answer in zip(brokers, answers, strict=True) if not isinstance(answer, Unknown)
        }
        kept = {name for name, topic in before.items() if any(part.broker in hidden for part in topic.brokers or ())}
        found: dict[str, TopicState] = {}
        for name in sorted({*configs, *kept, *(name for part in names for name in part)}):
            state = before.get(name) or TopicState(name, "system" if name in own else kind_of(name))
            if name in configs:
                old = [part for part in state.brokers or () if part.broker in hidden]
                state = replace(
                    state,
                    message_type=seen.message_type(config for _, config in configs[name]),
                    brokers=(*(seen.topic_on(broker, config) for broker, config in configs[name]), *old),
                )
            found[name] = state
        return found

    def _groups(self, configs: Sequence[Any], stats: Sequence[Any]) -> dict[str, GroupState]:
        now_s, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        moved = seen.progress(known(stats))
        names = {name for part in known(configs) for name in part} | set(moved)
        count = len({one.name for one in self.snapshot.brokers})
        if len(known(configs)) < count:  # a group stays while a broker does not answer that may have it
            names |= set(self.snapshot.groups)
        # Only if every broker answered is the lag the whole lag.
        is_whole = bool(stats) and len(known(stats)) == count
        found: dict[str, GroupState] = {}
        for name in sorted(names):
            state = self.snapshot.groups.get(name) or GroupState(name, seen.is_system_group(name))
            if is_whole:
                answers, topics = moved.get(name, ([], {}))
                lag = sum(topic.lag for topic in topics.values()) if topics else None
                behind = [topic.consumed_ms for topic in topics.values() if topic.consumed_ms is not None]
                state = replace(
                    state,
                    topics=tuple(topics.values()),
                    lag=lag,
                    out_rate=sum(one.consume_tps for one in answers) if answers else None,
                    trend=None if lag is None else self._trend(name, now_s, lag),
                    behind_ms=min(behind, default=None),
                    seen_ms=now_ms,
                )
            found[name] = state
        for name in set(self._lags) - set(found):
            del self._lags[name]
        return found

    def _trend(self, group: str, now_s: float, lag: int) -> float | None:
        """Change of a lag a second, over the last ``TREND_S``; None if it was not seen for long enough."""
        lags = self._lags.setdefault(group, deque())
        lags.append((now_s, lag))
        while now_s - lags[0][0] > TREND_S:
            lags.popleft()
        past_s = now_s - lags[0][0]
        return (lag - lags[0][1]) / past_s if past_s >= _TREND_MIN_S else None

    def _note_groups_of_topics(self) -> None:
        readers: dict[str, dict[str, int]] = {}
        for group in self.snapshot.groups.values():
            for part in group.topics or ():
                readers.setdefault(part.topic, {})[group.name] = part.lag
        self._publish(
            topics={
                name: replace(
                    topic,
                    groups=tuple(sorted(readers.get(name, {}))),
                    lag=max(readers.get(name, {}).values(), default=None),
                )
                for name, topic in self.snapshot.topics.items()
            }
        )

    def _note_producers(self, answers: Sequence[ProducerTableInfo]) -> None:
        self._producers = {}
        for answer in answers:
            for group, infos in answer.data.items():
                for info in infos:
                    connection = Connection(info.client_id, info.remote_ip.lstrip("/"), info.language, info.version)
                    self._producers.setdefault(info.client_id, {})[group] = connection

    def _note_clients(self) -> None:
        """The clients: members of groups, and producers."""
        now_ms = self._clock.wall_ms()
        consumes: dict[str, dict[str, Member]] = {}
        for group in self.snapshot.groups.values():
            for one in group.members or ():
                consumes.setdefault(one.client_id, {})[group.name] = one
        found: dict[str, ClientState] = {}
        for identity in sorted({*consumes, *self._producers}):
            groups, produces = consumes.get(identity, {}), self._producers.get(identity, {})
            one = next(iter(groups.values()), None) or seen.member(next(iter(produces.values())), "")
            found[identity] = ClientState(
                identity, one.address, one.language, one.version, tuple(sorted(groups)), tuple(sorted(produces)), now_ms
            )
        self._publish(clients=found)

    # one topic, one group

    async def _sweep(self, count: int) -> None:
        """Asks about the next ``count`` topics and groups."""
        await self._sweep_topics(count)
        await self._sweep_groups(count)
        await self._sweep_members(MEMBER_SWEEP if count <= SWEEP else MEMBER_SWEEP_UNWATCHED)

    async def _sweep_topics(self, count: int) -> None:
        names = _turn(list(self.snapshot.topics), self._topic_turn, count)
        self._topic_turn += count
        answering = {broker.name: broker.address for broker in self._answering()}
        calls: list[tuple[str, Awaitable[Any]]] = []
        owners: list[str] = []
        for name in names:
            for part in self.snapshot.topics[name].brokers or ():
                if part.broker in answering:
                    owners.append(name)
                    calls.append((answering[part.broker], self._admin.api.topic_stats(answering[part.broker], name)))
        answers = await by_deadline(calls, ANSWER_S)
        now_s, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        topics = dict(self.snapshot.topics)
        for name in names:
            mine = [answer for owner, answer in zip(owners, answers, strict=True) if owner == name]
            if mine and len(known(mine)) == len(topics[name].brokers or ()):
                topics[name] = self._with_queues(topics[name], known(mine), now_s, now_ms)
        for name in set(self._ends) - set(topics):
            del self._ends[name]
        self._publish(topics=topics, groups=self._with_letters(topics))

    def _with_queues(self, topic: TopicState, answers: Sequence[Any], now_s: float, now_ms: int) -> TopicState:
        messages, end, last_ms = seen.queue_sums(answers)
        rate = topic.in_rate
        before_s, before = self._ends.get(topic.name, (now_s, end))
        if end < before:  # deleted and created again
            rate = None
        elif now_s - before_s >= 0.5:
            rate = (end - before) / (now_s - before_s)
        self._ends[topic.name] = (now_s, end)
        return replace(topic, messages=messages, end=end, last_ms=last_ms, in_rate=rate, seen_ms=now_ms)

    def _with_letters(self, topics: Mapping[str, TopicState]) -> dict[str, GroupState]:
        """The groups with what their dead-letter and retry topics hold."""
        found = {}
        for name, group in self.snapshot.groups.items():
            dead, retries = topics.get(dlq_topic(name)), topics.get(retry_topic(name))
            found[name] = replace(
                group,
                dead=dead.messages if dead is not None else (0 if group.seen_ms is not None else None),
                retry_rate=None if retries is None else retries.in_rate,
            )
        return found

    async def _sweep_groups(self, count: int) -> None:
        names = _turn(
            [name for name, group in self.snapshot.groups.items() if not group.is_system], self._group_turn, count
        )
        self._group_turn += count
        brokers = self._answering()
        calls = [
            (broker.address, _connected(self._admin, broker.address, name)) for name in names for broker in brokers
        ]
        answers = await by_deadline(calls, ANSWER_S)
        groups = dict(self.snapshot.groups)
        for number, name in enumerate(names):
            mine = answers[number * len(brokers) : (number + 1) * len(brokers)]
            pairs = [
                (broker.address, answer)
                for broker, answer in zip(brokers, mine, strict=True)
                if not isinstance(answer, Unknown)
            ]
            if pairs and len(pairs) == len(mine):
                groups[name] = _with_members(groups[name], pairs)
        self._publish(groups=groups)
        self._note_clients()

    async def _sweep_members(self, count: int) -> None:
        """Asks the members of ``count`` groups what they subscribe to and read; first of those with other members."""
        members = {
            name: group.members[:MEMBERS_MAX]
            for name, group in self.snapshot.groups.items()
            if group.members and not group.is_system
        }
        for name in set(self.assignments) - set(members):
            del self.assignments[name]
        changed = [
            name
            for name, ours in members.items()
            if self.assignments.get(name, {}).keys() != {one.client_id for one in ours}
        ]
        rest = [name for name in members if name not in set(changed)]
        wanted = [*changed[:count], *_turn(rest, self._member_turn, count)][:count]
        self._member_turn += count
        answers = await asyncio.gather(*(told_by(self._admin, name, members[name], ANSWER_S) for name in wanted))
        groups = dict(self.snapshot.groups)
        for name, told in zip(wanted, answers, strict=True):
            self.assignments[name] = assignment(members[name], told)
            if len(members[name]) > 1 and len(members[name]) == len(groups[name].members or ()):
                groups[name] = replace(groups[name], differing=differences(members[name], told))
        self._publish(groups=groups)


async def _connected(admin: AdminClient, address: str, group: str) -> ConsumerConnection | None:
    """The consumers of a group at one broker; None if there are none."""
    try:
        return await admin.api.consumer_connection(address, group)
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return None


def _with_members(group: GroupState, answers: Sequence[tuple[str, ConsumerConnection | None]]) -> GroupState:
    members: dict[str, Member] = {}
    kind, model = "", ""
    subscriptions: dict[str, str] = {}
    for address, answer in answers:
        if answer is None:
            continue
        kind, model = answer.consume_type or kind, answer.message_model or model
        for topic, data in answer.subscription_table.items():
            subscriptions[topic] = data.sub_string
        for connection in answer.connection_set:
            members.setdefault(connection.client_id, seen.member(connection, address))
    return replace(
        group,
        members=tuple(members[identity] for identity in sorted(members)),
        consume_type=kind,
        model=model,
        subscriptions=subscriptions,
        differing=group.differing if len(members) > 1 else (),
    )


def _turn(names: list[str], first: int, count: int) -> list[str]:
    """The next ``count`` of ``names``, around the end; all of them if there are not more."""
    if len(names) <= count:
        return names
    first %= len(names)
    return (names + names)[first : first + count]
