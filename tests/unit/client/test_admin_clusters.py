"""What administration makes of the clusters that a name server names."""

from __future__ import annotations

from rucola.client.admin import AdminClient
from rucola.protocol.bodies.route import BrokerData, ClusterInfo
from rucola.testing.event_loop import run_stepped


def test_a_name_whose_broker_has_left_is_passed_over(monkeypatch):
    """RocketMQ's name server still names it if two clusters had brokers of one name; ``mqadmin`` raised KeyError."""

    async def scene() -> None:
        admin = AdminClient("127.0.0.1:9876")
        brokers = {"a": BrokerData("C", "a", {0: "127.0.0.1:1"})}

        async def cluster_info(_address: str) -> ClusterInfo:
            return ClusterInfo(dict(brokers), {"C": ["a", "gone"], "D": ["gone"]})

        monkeypatch.setattr(admin.api, "cluster_info", cluster_info)
        assert (await admin.cluster_info()).cluster_addr_table == {"C": ["a"], "D": []}
        await admin.close()

    run_stepped(scene())
