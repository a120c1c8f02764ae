"""Connected clients: responses to 203, 204, 328 and 345 (``protocol.md`` 2.7, 2.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.bodies.body import Body
from rucola.protocol.bodies.heartbeat import SubscriptionData


@late_dataclass
class Connection(Body):
    """One client of a group. ``client_addr``: ``ip:port``; ``version``: version ordinal (``protocol.md`` 1.6)."""

    client_id: str = ""
    client_addr: str = ""
    language: str = ""
    version: int = 0


@late_dataclass
class ConsumerConnection(Body):
    """Response to 203 (GET_CONSUMER_CONNECTION_LIST): the connected consumers of a group and their subscriptions."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


@late_dataclass
class ProducerConnection(Body):
    """Response to 204 (GET_PRODUCER_CONNECTION_LIST): the connected producers of a group."""

    connection_set: list[Connection] = field(default_factory=list)


@late_dataclass
class ProducerInfo(Body):
    """One producer; ``last_update_timestamp``: time of its last heartbeat in ms."""

    json_names: ClassVar[Mapping[str, str]] = {"remote_ip": "remoteIP"}

    client_id: str = ""
    remote_ip: str = ""
    language: str = ""
    version: int = 0
    last_update_timestamp: int = 0


@late_dataclass
class ProducerTableInfo(Body):
    """Response to 328 (GET_ALL_PRODUCER_INFO): producers by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


@late_dataclass
class QuerySubscriptionResponseBody(Body):
    """Response to 345 (QUERY_SUBSCRIPTION_BY_CONSUMER); ``subscription_data`` is None if no connected consumer of the
    group subscribes to the topic.
    """

    group: str = ""
    topic: str = ""
    subscription_data: SubscriptionData | None = None
