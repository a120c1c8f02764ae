"""What the members of a group subscribe to, asked of the members themselves.

A broker keeps one table of subscriptions for a group, in which the last heartbeat wins. Members that subscribe
differently therefore lose messages, and no broker reports it. Source: RocketMQ 5.3.3,
``DefaultMQAdminExtImpl#examineConsumerRunningInfo`` and ``ConsumerRunningInfo#analyzeSubscription``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rucola.client.admin import AdminClient
from rucola.common.key_builder import is_retry_topic
from rucola.common.message_queue import MessageQueue
from rucola.console.cluster.asking import Unknown, by_deadline, known
from rucola.console.cluster.snapshot import Member

_TABLES: Final = frozenset({"mqTable", "mqPopTable"})
Told = Sequence[Mapping[str, Any] | Unknown]
"""What each member says about itself, or why it does not."""


async def told_by(admin: AdminClient, group: str, members: Sequence[Member], deadline_s: float) -> Told:
    """Asks the members of a group about themselves."""
    return await by_deadline(
        [(one.broker, admin.api.running_info(one.broker, group, one.client_id, False)) for one in members], deadline_s
    )


def differences(members: Sequence[Member], answers: Told) -> tuple[str, ...] | None:
    """What differs between the subscriptions of a group's members, one line for each topic; None if a member does not
    tell, as clients of RocketMQ 5 behind a proxy.
    """
    tables = [subscriptions_of(answer) for answer in known(answers)]
    if len(tables) < len(members):
        return None
    by_member = {one.client_id: table for one, table in zip(members, tables, strict=True)}
    return tuple(_difference(topic, by_member) for topic in _differing(tables))


def assignment(members: Sequence[Member], answers: Told) -> dict[str, tuple[str, ...] | None]:
    """The queues of each member, ``TOPIC BROKER QUEUE``, without retry topics; None if it does not tell."""
    return {
        member.client_id: None if isinstance(answer, Unknown) or _TABLES.isdisjoint(answer) else _queue_texts(answer)
        for member, answer in zip(members, answers, strict=True)
    }


def _queue_texts(info: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(" ".join(map(str, queue)) for queue in queues_of_member(info) if not is_retry_topic(queue[0])))


def queues_of_member(info: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """The queues that a member reads, from its running info, whose tables have queues as their keys."""
    found: list[tuple[str, str, int]] = []
    for name in sorted(_TABLES):
        table = info.get(name)
        for key in table if isinstance(table, dict) else {}:
            queue = _queue(key)
            if queue is not None:
                found.append((queue.topic, queue.broker_name, queue.queue_id))
    return found


def _queue(key: object) -> MessageQueue | None:
    """A queue from the key of a table, which ``fastjson`` reads as pairs of name and value."""
    try:
        data = dict(key)  # type: ignore[call-overload]
        return MessageQueue(str(data["topic"]), str(data["brokerName"]), int(data["queueId"]))
    except (KeyError, TypeError, ValueError):
        return None


def subscriptions_of(info: Mapping[str, Any]) -> dict[str, str]:
    """Topic and expression of each subscription in a member's running info, without its retry topic."""
    entries = info.get("subscriptionSet")
    found: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and not is_retry_topic(str(entry.get("topic", ""))):
            found[str(entry.get("topic", ""))] = str(entry.get("subString", ""))
    return found


def _differing(tables: Sequence[Mapping[str, str]]) -> list[str]:
    topics = sorted({topic for table in tables for topic in table})
    return [topic for topic in topics if len({table.get(topic) for table in tables}) > 1]


def _difference(topic: str, tables: Mapping[str, Mapping[str, str]]) -> str:
    shown = sorted({f"{member}: {table.get(topic, '-')}" for member, table in tables.items()})[:4]
    return f"{topic}: {'; '.join(shown)}"
