"""What is wrong in a cluster, worst first. A pure function of a snapshot; each problem names object, evidence and the
next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rucola.common.key_builder import dlq_topic
from rucola.console.cluster.asking import Reason
from rucola.console.cluster.snapshot import BrokerState, ClusterSnapshot, GroupState, Large

DISK_BAD: Final = 0.85
"""From here on, RocketMQ deletes old segments whatever their age (``diskSpaceCleanForciblyRatio``)."""
DISK_WARNING: Final = 0.75
"""The same at the hour of deletion (``diskMaxUsedSpaceRatio``)."""
SLAVE_BEHIND_BYTES: Final = 16 * 1024 * 1024
GROWING: Final = 0.5
"""Growth of a lag, in messages a second, that counts."""
LAG_MIN: Final = 100


class Severity(IntEnum):
    """How bad a problem is."""

    BAD = 0
    WARNING = 1


@dataclass(frozen=True, slots=True)
class ClusterProblem:
    """One problem.

    Attributes:
        severity: how bad it is.
        kind: stable name of the kind of problem, for scripts.
        object_kind: ``broker``, ``group``, ``topic`` or ``name-server``; the page that says more.
        object: its name, or its address.
        text: what is wrong, with places for ``values``; the English text is the key of the catalogue.
        values: numbers and names in the text.
        since_ms: since when; None if that is not known.
        next_step: what to do, as a key of the catalogue.
    """

    severity: Severity
    kind: str
    object_kind: str
    object: str
    text: str
    values: Mapping[str, str]
    since_ms: int | None
    next_step: str


@dataclass(frozen=True, slots=True)
class NewLetters:
    """Dead letters of a group since a time: ``since_ms`` is a day ago, or when the console first looked."""

    group: str
    count: Large
    since_ms: int


def problems_of_group(group: GroupState) -> tuple[ClusterProblem, ...]:
    """What is wrong with one group, but for its dead letters."""
    return tuple(sorted(_of_group(group), key=lambda one: one.severity))


def problems(snapshot: ClusterSnapshot, letters: Mapping[str, NewLetters]) -> list[ClusterProblem]:
    """The problems of a cluster, the worst first.

    Args:
        snapshot: what was seen.
        letters: new dead letters by group.
    """
    found = [*_of_servers(snapshot), *_of_groups(snapshot), *_of_letters(letters)]
    return sorted(found, key=lambda one: (one.severity, one.since_ms or 0, one.object))


def _of_servers(snapshot: ClusterSnapshot) -> Iterator[ClusterProblem]:
    for server in snapshot.name_servers:
        if server.unknown is not None:
            yield ClusterProblem(
                Severity.BAD, "name-server-away", "name-server", server.address, "does not answer: {why}",
                {"why": server.unknown.text}, server.seen_ms, "check the process and the network",
            )  # fmt: skip
    for broker in snapshot.brokers:
        yield from _of_broker(broker)
    listed = [broker for broker in snapshot.brokers if broker.is_listed]
    masters = {broker.name for broker in snapshot.masters}
    for name in sorted({broker.name for broker in listed} - masters):
        yield ClusterProblem(
            Severity.BAD, "no-master", "broker", next(one.address for one in listed if one.name == name),
            "has no master: nothing can be sent to it", {}, None, "start the master, or let a slave take its place",
        )  # fmt: skip


def _of_broker(broker: BrokerState) -> Iterator[ClusterProblem]:
    if not broker.is_listed:
        yield ClusterProblem(
            Severity.BAD, "broker-away", "broker", broker.address, "has left: no name server lists it any more", {},
            broker.seen_ms, "start it again, or wait until it is forgotten",
        )  # fmt: skip
        return
    if broker.unknown is not None:
        if broker.unknown.reason is not Reason.FORBIDDEN:
            yield ClusterProblem(
                Severity.BAD, "broker-silent", "broker", broker.address, "does not answer: {why}",
                {"why": broker.unknown.text}, broker.seen_ms, "look at its log and its longest turns",
            )  # fmt: skip
        return
    if broker.disk_ratio is not None and broker.disk_ratio >= DISK_WARNING:
        yield ClusterProblem(
            Severity.BAD if broker.disk_ratio >= DISK_BAD else Severity.WARNING, "disk", "broker", broker.address,
            "disk is {percent} % full", {"percent": f"{broker.disk_ratio * 100:.0f}"}, None,
            "free space, or keep messages for a shorter time",
        )  # fmt: skip
    state = broker.runtime.get("storeState", "running")
    if broker.runtime.get("brokerActive", "true") == "false" or state not in ("running", "RUNNING"):
        yield ClusterProblem(
            Severity.BAD, "store-stopped", "broker", broker.address, "takes no messages: its store is {state}",
            {"state": state}, None, "look at its log; check the store with rucola store verify",
        )  # fmt: skip
    for slave in broker.slaves or ():
        if slave.behind_bytes >= SLAVE_BEHIND_BYTES:
            yield ClusterProblem(
                Severity.WARNING, "slave-behind", "broker", broker.address, "slave {slave} is {bytes} behind",
                {"slave": slave.address, "bytes": f"{slave.behind_bytes / 1024 / 1024:,.0f} MiB"}, None,
                "check the slave's disk and the network between both",
            )  # fmt: skip


def _of_groups(snapshot: ClusterSnapshot) -> Iterator[ClusterProblem]:
    for group in snapshot.groups.values():
        if not group.is_system:
            yield from _of_group(group)


def _of_group(group: GroupState) -> Iterator[ClusterProblem]:
    def problem(severity: Severity, kind: str, text: str, values: Mapping[str, str], step: str) -> ClusterProblem:
        since_ms = group.behind_ms if kind in ("no-members", "stands-still", "lag-grows") else None
        return ClusterProblem(severity, kind, "group", group.name, text, values, since_ms, step)

    lag = group.lag or 0
    if lag and group.members == ():
        text = "has {lag} messages waiting and no member"
        yield problem(Severity.BAD, "no-members", text, {"lag": f"{lag:,}"}, "start its consumers")
    elif lag and group.members and group.out_rate == 0 and group.trend is not None and group.trend >= 0:
        yield problem(
            Severity.BAD, "stands-still", "stands still: {lag} messages waiting, and its {count} members take none",
            {"lag": f"{lag:,}", "count": f"{len(group.members):,}"},
            "ask its members for their stacks: a listener may hang",
        )  # fmt: skip
    elif lag >= LAG_MIN and group.trend is not None and group.trend >= GROWING:
        yield problem(
            Severity.BAD, "lag-grows", "falls behind: {lag} messages waiting, {trend} more each second",
            {"lag": f"{lag:,}", "trend": f"{group.trend:,.1f}"}, "see which queues are behind, and who reads them",
        )  # fmt: skip
    for line in group.differing or ():
        yield problem(
            Severity.BAD, "differing-subscriptions", "members subscribe differently and lose messages: {line}",
            {"line": line}, "give all members the same topics and expressions",
        )  # fmt: skip
    queues = sum(topic.queues for topic in group.topics or ())
    if group.members and group.model == "CLUSTERING" and queues and len(group.members) > queues:
        yield problem(
            Severity.WARNING, "idle-members", "has more members than queues: {idle} of {count} have nothing to read",
            {"idle": str(len(group.members) - queues), "count": str(len(group.members))},
            "add queues, or stop members",
        )  # fmt: skip
    if group.retry_rate:
        yield problem(
            Severity.WARNING, "retries", "fails and retries {rate} messages a second",
            {"rate": f"{group.retry_rate:,.2f}"}, "look at the messages in its retry topic",
        )  # fmt: skip


def _of_letters(letters: Mapping[str, NewLetters]) -> Iterator[ClusterProblem]:
    for one in letters.values():
        yield ClusterProblem(
            Severity.WARNING, "dead-letters", "group", one.group, "gave up on {count} messages",
            {"count": f"{one.count:,}", "topic": dlq_topic(one.group)}, one.since_ms,
            "look at its dead letters; resend them when the cause is mended",
        )  # fmt: skip
