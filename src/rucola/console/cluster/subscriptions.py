"""What the members of a group subscribe to, asked of the members themselves.

A broker keeps one table of subscriptions for a group, in which the last heartbeat wins. Members that subscribe
differently therefore lose messages, and no broker reports it. Source: RocketMQ 5.3.3,
``DefaultMQAdminExtImpl#examineConsumerRunningInfo`` and ``ConsumerRunningInfo#analyzeSubscription``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rucola.client.admin import AdminClient
from rucola.common.key_builder import is_retry_topic
from rucola.console.cluster.asking import by_deadline, known
from rucola.console.cluster.snapshot import Member


async def differences(
    admin: AdminClient, group: str, members: Sequence[Member], deadline_s: float
) -> tuple[str, ...] | None:
    """What differs between the subscriptions of a group's members, one line for each topic; None if a member does not
    tell, as clients of RocketMQ 5 behind a proxy.
    """
    answers = await by_deadline(
        [(one.broker, admin.api.running_info(one.broker, group, one.client_id, False)) for one in members], deadline_s
    )
    tables = [subscriptions_of(answer) for answer in known(answers)]
    if len(tables) < len(members):
        return None
    by_member = {one.client_id: table for one, table in zip(members, tables, strict=True)}
    return tuple(_difference(topic, by_member) for topic in _differing(tables))


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
