"""Response bodies of the name server: 105, 106, 901 (``protocol.md`` 2.1)."""

from __future__ import annotations

from dataclasses import field

from rucola.common.late_dataclass import late_dataclass
from rucola.errors import FormatError
from rucola.protocol.bodies.body import Body

QUEUES_MAX = 131_072
"""Largest number of queues in a route, for producers and for consumers. A route with more of them is not believed: only
to list them would hold up the event loop.
"""


@late_dataclass
class QueueData(Body):
    """The queues of a topic on one broker. ``perm``: ``PermName`` bits."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


@late_dataclass
class BrokerData(Body):
    """A broker and its addresses: ``host:port`` by broker id; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


@late_dataclass
class TopicRouteData(Body):
    """Response to 105 (GET_ROUTEINFO_BY_TOPIC). Clients need both lists, queues and brokers. They publish to brokers
    that have an address with id 0.

    Attributes:
        order_topic_conf: ``broker:queues`` joined by ``;`` for an ordered topic.
        filter_server_table: filter servers by broker address; not used any more.
    """

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)

    def check_size(self) -> None:
        """Raises ``FormatError`` if the route names more than ``QUEUES_MAX`` queues."""
        for name in ("read_queue_nums", "write_queue_nums"):
            count = sum(max(getattr(data, name), 0) for data in self.queue_datas)
            if count > QUEUES_MAX:
                raise FormatError(f"route, {name}", 0, f"at most {QUEUES_MAX} queues", str(count))


@late_dataclass
class ClusterInfo(Body):
    """Response to 106 (GET_BROKER_CLUSTER_INFO): brokers by name, and broker names by cluster."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@late_dataclass
class BrokerMemberGroup(Body):
    """The addresses of all live brokers with the same broker name."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)


@late_dataclass
class BrokerMemberGroupBody(Body):
    """Response to 901 (GET_BROKER_MEMBER_GROUP)."""

    broker_member_group: BrokerMemberGroup | None = None
