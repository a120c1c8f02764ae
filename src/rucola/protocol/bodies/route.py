"""Bodies of the name server's answers: 105, 106, 901 (``protocol.md`` 2.1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.protocol.bodies.body import Body


@dataclass(slots=True)
class QueueData(Body):
    """Queues of a topic on one broker. ``perm``: or of ``PermName`` bits."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@dataclass(slots=True)
class BrokerData(Body):
    """A broker and its addresses, ``host:port`` by broker id; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


@dataclass(slots=True)
class TopicRouteData(Body):
    """Answer to 105: clients need both lists, and brokers with an address under 0 to publish to.

    Attributes:
        order_topic_conf: ``broker:queues`` joined by ``;`` for an ordered topic.
        filter_server_table: filter servers by broker address; empty today.
    """

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterInfo(Body):
    """Answer to 106: brokers by name, and broker names by cluster."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class BrokerMemberGroup(Body):
    """One broker name's live members."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class BrokerMemberGroupBody(Body):
    """Answer to 901."""

    broker_member_group: BrokerMemberGroup | None = None
