"""Creates, configures and deletes topics."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from rucola.client.admin import ORDER_TOPIC_CONFIG, AdminClient, unless
from rucola.client.instance import TOPIC_CHARACTERS_MAX
from rucola.common.sysflag import PermName
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.console.changes.plan import ChangePlan, ChangeStep, PlanError
from rucola.console.cluster.asking import Unknown, by_deadline
from rucola.console.cluster.snapshot import BrokerState, ClusterSnapshot, kind_of
from rucola.console.visit import BadQueryError, Visit
from rucola.protocol.codes import ResponseCode

TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
PERMS: Final = {"read+write": 6, "read": 4, "write": 2}
QUEUES_MAX: Final = 1024
_DEADLINE_S: Final = 3.0
NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class TopicQuery:
    """A topic that is created or configured.

    Attributes:
        name: its name.
        queues: number of queues for reading and for writing, on each broker.
        perm: ``read+write``, ``read`` or ``write``.
        type: message type of a new topic: ``NORMAL``, ``FIFO``, ``DELAY``, ``TRANSACTION`` or ``MIXED``.
        cluster: cluster of RocketMQ whose masters get it; empty for all.
    """

    name: str = ""
    queues: int = 0
    perm: str = "read+write"
    type: str = "NORMAL"
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class DeleteTopicQuery:
    """A topic that is deleted.

    Attributes:
        name: its name.
    """

    name: str = ""


async def plan_topic(visit: Visit, query: TopicQuery) -> ChangePlan:
    """Plans to create a topic on all masters, or to configure it where it is."""
    if not NAME.fullmatch(query.name) or len(query.name) > TOPIC_CHARACTERS_MAX:
        raise BadQueryError("name", query.name, f"1 to {TOPIC_CHARACTERS_MAX} of the characters a-z A-Z 0-9 _ - % |")
    if not 1 <= query.queues <= QUEUES_MAX:
        raise BadQueryError("queues", str(query.queues), f"1 to {QUEUES_MAX}")
    if query.perm not in PERMS:
        raise BadQueryError("perm", query.perm, ", ".join(PERMS))
    if query.type not in TYPES:
        raise BadQueryError("type", query.type, ", ".join(TYPES))
    snapshot = await visit.watch.fresh()
    check_not_system(snapshot, query.name)
    admin = visit.watch.admin
    masters = [one for one in snapshot.masters if query.cluster in ("", one.cluster)]
    if not masters:
        raise PlanError("No master is known.")
    calls = [
        (one.address, unless(ResponseCode.TOPIC_NOT_EXIST, admin.api.topic_config(one.address, query.name)))
        for one in masters
    ]
    configs = await by_deadline(calls, _DEADLINE_S)
    exists = any(isinstance(config, TopicConfig) for config in configs)
    steps = []
    for broker, config in zip(masters, configs, strict=True):
        if isinstance(config, Unknown):
            raise PlanError("{server} does not answer: {why}", server=broker.address, why=config.text)
        if config is None and exists and not query.cluster:
            continue  # an existing topic is configured where it is
        wanted = _wanted(config, query)
        attributes = "" if config is not None else f"+{MESSAGE_TYPE}={query.type}"
        run = None if config == wanted else partial(admin.api.change_topic, broker.address, wanted, attributes)
        steps.append(ChangeStep(broker.name, broker.address, _shown(config), _shown(wanted), "", {}, run))
    return ChangePlan(
        query.name,
        "Change topic {name}" if exists else "Create topic {name}",
        {"name": query.name},
        tuple(steps),
        tuple((step.target, step.before, step.after) for step in steps),
        command=f"updateTopic -t {shlex.quote(query.name)} -r {query.queues} -w {query.queues} -p {PERMS[query.perm]} "
        f"-c {shlex.quote(query.cluster or masters[0].cluster)}",
    )


async def plan_delete(visit: Visit, query: DeleteTopicQuery) -> ChangePlan:
    """Plans to delete a topic everywhere: on all brokers that have it, and in the name servers."""
    snapshot = await visit.watch.fresh()
    check_not_system(snapshot, query.name)
    topic = snapshot.topics.get(query.name)
    if topic is None:
        raise PlanError("There is no topic {name}.", name=query.name)
    admin = visit.watch.admin
    names = {part.broker for part in topic.brokers or ()}
    brokers = [one for one in snapshot.brokers if one.name in names and one.is_listed]
    steps = [
        ChangeStep(
            one.name, one.address, "", "-", "is deleted", {}, partial(admin.api.delete_topic, one.address, query.name)
        )
        for one in brokers
    ]
    steps += [
        ChangeStep(address, address, "", "-", "forgets the topic", {}, _forget(admin, address, query.name))
        for address in admin.namesrv_addresses
    ]
    notes: list[tuple[str, dict[str, str]]] = []
    if topic.messages is None:
        notes.append(("How many messages it holds is not known.", {}))
    else:
        notes.append(("{count} messages are lost.", {"count": f"{topic.messages:,}"}))
    for name in topic.groups:
        part = next(one for one in snapshot.groups[name].topics or () if one.topic == query.name)
        text = "Group {group} reads it and has {lag} messages waiting; its offsets in the topic are lost."
        notes.append((text, {"group": name, "lag": f"{part.lag:,}"}))
    subscribers = [
        group.name for group in snapshot.groups.values() if query.name in (group.subscriptions or {}) and group.members
    ]
    for name in subscribers:
        notes.append(("Group {group} has members that subscribe to it.", {"group": name}))
    return ChangePlan(
        query.name,
        "Delete topic {name} with its messages",
        {"name": query.name},
        tuple(steps),
        (tuple(step.target for step in steps), topic.groups, tuple(subscribers)),
        tuple(notes),
        must_type=True,
        command=f"deleteTopic -t {shlex.quote(query.name)} -c {shlex.quote(_cluster_of(brokers))}",
    )


def check_not_system(snapshot: ClusterSnapshot, name: str) -> None:
    """Refuses changes of topics that belong to brokers.

    Raises:
        PlanError: it is such a topic, of a broker or of the cluster.
    """
    clusters = {broker.cluster for broker in snapshot.brokers} | {broker.name for broker in snapshot.brokers}
    if kind_of(name) == "system" or name in clusters:
        raise PlanError("{name} belongs to the brokers and cannot be changed here.", name=name)


def _cluster_of(brokers: list[BrokerState]) -> str:
    return brokers[0].cluster if brokers else "CLUSTER"


def _forget(admin: AdminClient, address: str, topic: str) -> Callable[[], Awaitable[object]]:
    async def forget() -> None:
        await admin.api.delete_topic_in_namesrv(address, topic, None)
        await admin.api.delete_kv_config(address, ORDER_TOPIC_CONFIG, topic)

    return forget


def _wanted(config: TopicConfig | None, query: TopicQuery) -> TopicConfig:
    base = config or TopicConfig(query.name)
    return replace(base, read_queue_nums=query.queues, write_queue_nums=query.queues, perm=PERMS[query.perm])


def _shown(config: TopicConfig | None) -> str:
    if config is None:
        return "-"
    perm = int(config.perm)
    words = "+".join(word for bit, word in ((PermName.READ, "read"), (PermName.WRITE, "write")) if perm & bit) or "none"
    queues = f"{config.read_queue_nums}"
    if config.read_queue_nums != config.write_queue_nums:
        queues = f"{config.read_queue_nums}/{config.write_queue_nums}"
    return f"{queues} queues, {words}"
