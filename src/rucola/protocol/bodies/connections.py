"""Who is connected: answers to 203, 204, 328 and 345 (``protocol.md`` 2.7, 2.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rucola.protocol.bodies.body import Body
from rucola.protocol.bodies.heartbeat import SubscriptionData


@dataclass(slots=True)
class Connection(Body):
    """One client of a group. ``client_addr``: ``ip:port``; ``version``: an ordinal."""

    client_id: str = ""
    client_addr: str = ""
    language: str = ""
    version: int = 0


@dataclass(slots=True)
class ConsumerConnection(Body):
    """Answer to 203: the live consumers of a group and what they subscribe to."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


@dataclass(slots=True)
class ProducerConnection(Body):
    """Answer to 204."""

    connection_set: list[Connection] = field(default_factory=list)


@dataclass(slots=True)
class ProducerInfo(Body):
    """One producer; ``last_update_timestamp``: ms of its last heartbeat."""

    json_names: ClassVar[Mapping[str, str]] = {"remote_ip": "remoteIP"}

    client_id: str = ""
    remote_ip: str = ""
    language: str = ""
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(slots=True)
class ProducerTableInfo(Body):
    """Answer to 328: producers by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


@dataclass(slots=True)
class QuerySubscriptionResponseBody(Body):
    """Answer to 345; no subscription when the group does not read the topic now."""

    group: str = ""
    topic: str = ""
    subscription_data: SubscriptionData | None = None
