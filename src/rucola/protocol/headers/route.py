"""Headers of what brokers and clients ask of name servers (``protocol.md`` 2.1)."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.protocol.headers.header import CommandHeader, Int, Long


@dataclass(slots=True)
class GetRouteInfoRequestHeader(CommandHeader):
    """105. ``accept_standard_json_only``: numeric map keys must be quoted."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(slots=True)
class RegisterBrokerRequestHeader(CommandHeader):
    """103.

    Attributes:
        broker_id: 0 for a master.
        heartbeat_timeout_millis: after how much silence the broker counts as gone.
        compressed: what the sender configured; look at the body instead (``protocol.md`` 2.1.1).
        body_crc32: ``crc32(body) & 0x7FFFFFFF``, 0: not checked.
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


@dataclass(slots=True)
class RegisterBrokerResponseHeader(CommandHeader):
    """Answer to 103; both are set for a slave whose master is known."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True)
class UnregisterBrokerRequestHeader(CommandHeader):
    """104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True)
class QueryDataVersionRequestHeader(UnregisterBrokerRequestHeader):
    """322; the same fields as 104."""


@dataclass(slots=True)
class QueryDataVersionResponseHeader(CommandHeader):
    """Answer to 322: whether the name server knows another version."""

    changed: bool


@dataclass(slots=True)
class BrokerHeartbeatRequestHeader(CommandHeader):
    """904. The misspelt ``heartbeatTimeoutMills`` is the wire's."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None


@dataclass(slots=True)
class BrokerMemberGroupRequestHeader(CommandHeader):
    """901."""

    cluster_name: str
    broker_name: str
