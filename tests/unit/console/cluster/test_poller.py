"""What the poller makes of answers that only some brokers give."""

from __future__ import annotations

from tests.brokers import run

from rucola.client.admin import AdminClient
from rucola.console.cluster.poller import ClusterPoller
from rucola.protocol.bodies.connections import ProducerInfo, ProducerTableInfo
from rucola.testing.clock import ManualClock


def test_addresses_of_producers_lose_the_slash_that_java_writes() -> None:
    async def work() -> None:
        async with AdminClient("127.0.0.1:1") as admin:
            poller = ClusterPoller(admin, ManualClock(), 1.0)
            poller._note_producers([ProducerTableInfo({"shop": [ProducerInfo("c@1", "/10.0.0.9:4", "JAVA", 479)]})])
            poller._note_clients()
            (client,) = poller.snapshot.clients.values()
            assert (client.address, client.produces, client.version) == ("10.0.0.9:4", ("shop",), "5.3.3")

    run(work())
