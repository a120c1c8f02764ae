"""What was seen of a cluster: plain values that pages and the API show. None means that it is not known.

Times are in ms since 1970, rates in messages a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from rucola.common.key_builder import is_dlq_topic, is_light_queue, is_retry_topic, is_system_topic
from rucola.console.cluster.asking import Unknown

Large = Annotated[int, "int64"]
"""A number that may not fit into a JavaScript number; the API writes it as text."""
MASTER = 0


@dataclass(frozen=True, slots=True)
class NameServerState:
    """A name server; ``unknown`` says why it did not answer."""

    address: str
    unknown: Unknown | None
    seen_ms: int | None


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A slave, as its master sees it."""

    address: str
    behind_bytes: Large
    is_in_sync: bool


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker that a name server lists, or has listed.

    Attributes:
        unknown: why it did not answer the last question; the figures are then older.
        seen_ms: when it answered last.
        is_listed: whether a name server still lists it.
        in_rate: messages stored a second, over the interval that the broker chooses.
        disk_ratio: used part of the disk of the log, 0 to 1.
        slaves: None if it is not a master, or does not tell.
        longest_turn_ms: longest turn of its event loop in the last one to two minutes; None for RocketMQ's brokers.
        runtime: its figures under RocketMQ's names.
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    unknown: Unknown | None = None
    seen_ms: int | None = None
    is_listed: bool = True
    version: str | None = None
    in_rate: float | None = None
    out_rate: float | None = None
    disk_ratio: float | None = None
    log_min_offset: Large | None = None
    log_max_offset: Large | None = None
    earliest_ms: int | None = None
    boot_ms: int | None = None
    slaves: tuple[ReplicaState, ...] | None = None
    longest_turn_ms: float | None = None
    runtime: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicOn:
    """A topic's configuration on one broker; ``perm``: bits of ``PermName``."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic. ``brokers`` is None if no broker may be asked for its configuration.

    Attributes:
        kind: ``normal``, ``retry``, ``dead``, ``light`` or ``system``.
        message_type: the attribute ``message.type``; empty if there is none.
        messages: how many messages its queues hold.
        end: sum of the maximum offsets.
        last_ms: store time of its newest message; None also if it has none.
        groups: groups with offsets in it.
        lag: largest lag of a group.
        seen_ms: when the queues were looked at.
    """

    name: str
    kind: str
    message_type: str | None = None
    brokers: tuple[TopicOn, ...] | None = None
    messages: Large | None = None
    end: Large | None = None
    in_rate: float | None = None
    last_ms: int | None = None
    groups: tuple[str, ...] = ()
    lag: Large | None = None
    seen_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupOnTopic:
    """A group's progress in one topic.

    Attributes:
        lag: messages that it has not consumed.
        consumed_ms: oldest store time among the last consumed messages of the queues that are behind; None if no queue
            is behind, or none was consumed.
    """

    topic: str
    lag: Large
    consumed_ms: int | None
    queues: int


@dataclass(frozen=True, slots=True)
class Member:
    """A client in a group; ``broker`` is the address of a broker that it is connected to."""

    client_id: str
    address: str
    language: str
    version: str
    broker: str


@dataclass(frozen=True, slots=True)
class GroupState:
    """A consumer group.

    Attributes:
        lag: in all topics, retries included; None if it has no offsets yet or they are not known.
        out_rate: messages consumed a second, as brokers count them.
        trend: change of the lag a second, over the last minutes.
        members: None if it is not known who is connected.
        model: ``CLUSTERING`` or ``BROADCASTING``; empty without members.
        dead: messages in its dead-letter topic.
        differing: what its members subscribe differently; None if they were not asked.
    """

    name: str
    is_system: bool = False
    topics: tuple[GroupOnTopic, ...] | None = None
    lag: Large | None = None
    out_rate: float | None = None
    trend: float | None = None
    behind_ms: int | None = None
    members: tuple[Member, ...] | None = None
    consume_type: str = ""
    model: str = ""
    subscriptions: Mapping[str, str] | None = None
    dead: Large | None = None
    retry_rate: float | None = None
    differing: tuple[str, ...] | None = None
    seen_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ClientState:
    """A connected client and the groups in which it consumes or produces."""

    client_id: str
    address: str
    language: str
    version: str
    consumes: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    seen_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster as an account saw it.

    Attributes:
        taken_ms: when the newest part was seen; 0 for nothing yet.
        refusals: what servers did not tell, and why; one for each server and question.
    """

    taken_ms: int = 0
    name_servers: tuple[NameServerState, ...] = ()
    brokers: tuple[BrokerState, ...] = ()
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    clients: Mapping[str, ClientState] = field(default_factory=dict)
    refusals: tuple[Unknown, ...] = ()

    @property
    def masters(self) -> tuple[BrokerState, ...]:
        """The brokers with id 0 that are listed."""
        return tuple(broker for broker in self.brokers if broker.broker_id == MASTER and broker.is_listed)

    def broker_at(self, address: str) -> BrokerState | None:
        """The broker with an address; only such a broker is ever asked."""
        return next((broker for broker in self.brokers if broker.address == address), None)

    def master_of(self, name: str) -> BrokerState | None:
        """The master of a broker's name."""
        return next((broker for broker in self.masters if broker.name == name), None)


def kind_of(topic: str) -> str:
    """The kind of a topic by its name, see ``TopicState``."""
    if is_retry_topic(topic):
        return "retry"
    if is_dlq_topic(topic):
        return "dead"
    if is_light_queue(topic):
        return "light"
    return "system" if is_system_topic(topic) or topic.endswith("_REPLY_TOPIC") else "normal"
