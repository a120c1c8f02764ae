"""Headers of requests from brokers and clients to name servers (``protocol.md`` 2.1)."""

from __future__ import annotations

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long


@late_dataclass
class GetRouteInfoRequestHeader(CommandHeader):
    """Request 105 (GET_ROUTEINFO_BY_TOPIC). ``accept_standard_json_only``: whether numeric map keys in the response
    must be quoted.
    """

    topic: str
    accept_standard_json_only: bool | None = None


@late_dataclass
class RegisterBrokerRequestHeader(CommandHeader):
    """Request 103 (REGISTER_BROKER).

    Attributes:
        broker_id: 0 for a master.
        heartbeat_timeout_millis: after this time in ms without a heartbeat, the broker counts as gone.
        compressed: whether the sender is configured to compress the body. This is unreliable: look at the body itself
            (``protocol.md`` 2.1.1).
        body_crc32: ``crc32(body) & 0x7FFFFFFF``; 0 if the body is not to be checked.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int = 0


@late_dataclass
class RegisterBrokerResponseHeader(CommandHeader):
    """Response to 103 (REGISTER_BROKER); both fields are set for a slave whose master is known."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@late_dataclass
class UnregisterBrokerRequestHeader(CommandHeader):
    """Request 104 (UNREGISTER_BROKER)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@late_dataclass
class QueryDataVersionRequestHeader(UnregisterBrokerRequestHeader):
    """Request 322 (QUERY_DATA_VERSION); has the same fields as 104."""


@late_dataclass
class QueryDataVersionResponseHeader(CommandHeader):
    """Response to 322 (QUERY_DATA_VERSION): whether the name server has a different version."""

    changed: bool


@late_dataclass
class BrokerHeartbeatRequestHeader(CommandHeader):
    """Request 904 (BROKER_HEARTBEAT). The misspelt ``heartbeatTimeoutMills`` is the name on the wire."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None


@late_dataclass
class BrokerMemberGroupRequestHeader(CommandHeader):
    """Request 901 (GET_BROKER_MEMBER_GROUP)."""

    cluster_name: str
    broker_name: str


@late_dataclass
class NotifyMinBrokerIdChangeRequestHeader(CommandHeader):
    """Request 905 (NOTIFY_MIN_BROKER_ID_CHANGE), from a name server to brokers: their group has another smallest id.

    Attributes:
        min_broker_id: the smallest id that lives.
        offline_broker_addr: the broker that has gone; None if one has come.
        ha_broker_addr: the port for slaves of the broker that has come.
    """

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@late_dataclass
class ExchangeHAInfoRequestHeader(CommandHeader):
    """Request 906 (EXCHANGE_BROKER_HA_INFO): a master tells a slave its addresses, or a slave asks for them, without a
    field. The response has the same fields.

    Attributes:
        master_ha_address: the master's port for slaves.
        master_flush_offset: physical offset at which the master's log ended when it started.
        master_address: its port for clients.
    """

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None
