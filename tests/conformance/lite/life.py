"""The environment of the scenarios of lite topics."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.conformance.lite.agents import Admin, Clients
from tests.conformance.lite.recording import Recording
from tests.conformance.lite.relays import Relays
from tests.conformance.lite.scripted import Door
from tools.peers.servers import RucolaServers, Servers
from tools.peers.wire import wait_for_route

PARENT, SHORT, PLAIN, TEMPORARY = "agents", "brief", "plain", "temporary"
"""Topics: a parent, one whose lite topics expire after a minute, an ordinary one, a parent whose group is disabled."""
SHARED, OWNER, RESETTING, ALL, SMALL, FAILING, BRIEF, ORDINARY = (
    "gateway", "owner", "resetting", "all", "small", "failing", "brief-group", "ordinary",
)  # fmt: skip
FAILING_IN_ORDER = "failing-in-order"
ATTEMPTS = 3
"""Deliveries of a message in the group ``FAILING``."""
TTL_S = 80.0
"""A lite topic of ``SHORT`` lives a minute, and is looked at every 5 s."""
MANY_S = 200.0
"""The official broker gives a client 100 of its lite topics each 10 s."""
SYNC_S = 31.0
"""A client sends its whole set of lite topics every 30 s."""
LEASE_S = 35.0
"""A message that was popped, and that nobody acknowledged or gave back, comes again after 20 s."""


@dataclass
class Life:
    """The environment of all scenarios.

    Attributes:
        endpoints: gRPC address of the relay.
        remote: address of the relay for clients by hand.
    """

    servers: Servers
    relays: Relays
    recording: Recording
    endpoints: str
    remote: str
    admin: Admin
    java: Clients
    python: Clients

    def say(self, text: str) -> None:
        """Notes what the following records show."""
        self.recording.note("life", text)

    def result(self, what: str, found: object) -> None:
        """Notes what a client by hand got."""
        self.recording.note("by hand", f"{what}: {found}")

    def door(self, client_id: str, group: str, topic: str = PARENT, client_type: str = "LITE_PUSH_CONSUMER") -> Door:
        """A gRPC client by hand."""
        return Door(self.endpoints, client_id, group, topic, client_type)

    def send(self, lite_topic: str, *bodies: str, topic: str = PARENT) -> None:
        """Sends with the Java producer of a topic."""
        for body in bodies:
            self.java.tell("send", f"P-{topic}", topic, lite_topic, body)

    def limit(self, **options: object) -> None:
        """Changes options of the broker. Rucola's broker takes no such change by request, so it starts again."""
        if isinstance(self.servers, RucolaServers):
            self.servers.settings |= options
            self.servers.restart()
            wait_for_route(self.servers.namesrv, PARENT)
            self.relays.cut_grpc()  # clients connect again at once
            return
        for key, value in options.items():
            self.admin.run("updateBrokerConfig", "-k", key, "-v", str(value))

    def until(self, seconds: float) -> None:
        """Waits, so that what happens by the clock is recorded."""
        self.say(f"waits {seconds:g} s")
        time.sleep(seconds)
