"""One life of lite topics: what the official clients, mqadmin and clients by hand do, scenario by scenario."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from tests.conformance.lite.agents import Admin, Clients, java_clients, python_clients
from tests.conformance.lite.recording import Recording
from tests.conformance.lite.relays import Relays
from tests.conformance.lite.scripted import ACK, CHANGE, Door, Remote, Resource, entry
from tools.peers.servers import ProxiedServers
from tools.peers.wire import wait_for_route

PARENT, SHORT, PLAIN, TEMPORARY = "agents", "brief", "plain", "temporary"
"""Topics: a parent, one whose lite topics expire after a minute, an ordinary topic, a parent that is deleted."""
SHARED, OWNER, RESETTING, ALL, SMALL, FAILING, BRIEF, ORDINARY = (
    "gateway", "owner", "resetting", "all", "small", "failing", "brief-group", "ordinary",
)  # fmt: skip
ATTEMPTS = 3
"""Deliveries of a message in the group ``FAILING``."""
TTL_S = 80.0
"""A lite topic of ``SHORT`` lives a minute, and is looked at every 5 s."""
SYNC_S = 31.0
"""A client sends its whole set of lite topics every 30 s."""
LOST_S = 12.0
"""After so long without a poll, a client's events go to others."""
Step = Callable[["Life"], None]


@dataclass
class Life:
    """The environment of all scenarios.

    Attributes:
        endpoints: gRPC address of the relay.
        remote: address of the relay for clients by hand.
    """

    servers: ProxiedServers
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

    def until(self, seconds: float) -> None:
        """Waits, so that what happens by the clock is recorded."""
        self.say(f"waits {seconds:g} s")
        time.sleep(seconds)


def setup(life: Life) -> None:
    """The parent, its groups, and names that are refused."""
    lite = "+message.type=LITE"
    life.admin.run("updateTopic", "-t", PARENT, "-r", "4", "-w", "4", "-a", f"{lite},+lite.topic.expiration=60")
    life.admin.run("updateTopic", "-t", SHORT, "-r", "1", "-w", "1", "-a", f"{lite},+lite.topic.expiration=1")
    life.admin.run("updateTopic", "-t", TEMPORARY, "-r", "1", "-w", "1", "-a", lite)
    life.admin.run("updateTopic", "-t", PLAIN, "-r", "1", "-w", "1")
    for value in ("0", "-2", "43201", "x"):
        life.admin.run(
            "updateTopic", "-t", "refused", "-r", "1", "-w", "1", "-a", f"{lite},+lite.topic.expiration={value}"
        )
    bound = f"+lite.bind.topic={PARENT}"
    for group, attributes, retries in (
        (SHARED, bound, 16),
        (OWNER, f"{bound},+lite.sub.model=Exclusive", 16),
        (RESETTING, f"{bound},+lite.sub.model=Exclusive,+lite.sub.reset.offset.exclusive=true,"
         "+lite.sub.reset.offset.unsubscribe=true", 16),
        (ALL, f"{bound},+lite.sub.wildcard=true", 16),
        (SMALL, f"{bound},+lite.sub.client.quota=2,+lite.sub.client.max.event.cnt=10", 16),
        (FAILING, bound, ATTEMPTS - 1),
        (BRIEF, f"+lite.bind.topic={SHORT}", 16),
        ("temporary-group", f"+lite.bind.topic={TEMPORARY}", 16),
    ):  # fmt: skip
        life.admin.run("updateSubGroup", "-g", group, "-r", str(retries), "--attributes", attributes)
    for group in (ORDINARY, "CID_DefaultHeartBeatSyncerTopic"):  # the second is the group of the proxy itself
        life.admin.run("updateSubGroup", "-g", group)
    for attributes in (
        f"{bound},+lite.sub.client.quota=-2", f"{bound},+lite.sub.client.max.event.cnt=9",
        f"{bound},+lite.sub.model=Other", "+lite.bind.topic=", "+lite.bind.topic=nowhere",
    ):  # fmt: skip
        life.admin.run("updateSubGroup", "-g", "refused", "--attributes", attributes)
    for topic in (PARENT, SHORT, PLAIN, TEMPORARY):
        wait_for_route(life.servers.namesrv, topic)


def send(life: Life) -> None:
    """Both official producers send to several lite topics; the first message of each makes it."""
    life.java.tell("producer", f"P-{PARENT}", PARENT)
    life.java.tell("producer", f"P-{SHORT}", SHORT)
    life.python.tell("producer", "P", PARENT)
    life.send("brief-1", "passes", topic=SHORT)
    for number in range(3):
        life.send("session-1", f"java {number}")
        life.python.tell("send", "P", PARENT, "session-2", f"python {number}")
    life.send("session-3", "only one")
    life.java.tell("send", f"P-{PARENT}", PARENT, "not allowed!", "name")
    life.java.tell("send", f"P-{PARENT}", PARENT, "x" * 65, "too long")
    life.python.tell("send", "P", PARENT, "a/../b", "a path")


def subscribe(life: Life) -> None:
    """Subscribing and unsubscribing with each offset option; what arrives later."""
    for name in ("opt-last", "opt-min", "opt-max", "opt-offset", "opt-tail", "opt-timestamp"):
        life.send(name, "zero", "one", "two")
    java = life.java
    java.tell("consumer", "A", SHARED, PARENT)
    java.tell("subscribe", "A", "session-1")
    java.wait("A", 3)
    for name, kind, value in (
        ("opt-last", "policy", "last"), ("opt-min", "policy", "min"), ("opt-max", "policy", "max"),
        ("opt-offset", "offset", "1"), ("opt-tail", "tail", "1"), ("opt-timestamp", "timestamp", "1700000000000"),
    ):  # fmt: skip
        java.tell("subscribe", "A", name, kind, value)
    java.wait("A", 3 + 3 + 3 + 0 + 2 + 3 + 3)
    life.say("the options once more, now that the group has offsets")
    for name, kind, value in (("opt-tail", "tail", "2"), ("opt-min", "policy", "min"), ("opt-offset", "offset", "2")):
        java.tell("unsubscribe", "A", name)
        java.tell("subscribe", "A", name, kind, value)
    java.wait("A", 17 + 2 + 3 + 1)
    java.tell("subscribe", "A", "not-sent-yet")
    life.send("not-sent-yet", "the first")
    java.wait("A", 24)
    java.tell("unsubscribe", "A", "session-1")
    java.tell("unsubscribe", "A", "never-subscribed")
    life.send("session-1", "while unsubscribed")
    java.tell("topics", "A")
    life.until(SYNC_S)
    java.tell("subscribe", "A", "session-1")
    java.wait("A", 25)
    java.tell("close", "A")


def python(life: Life) -> None:
    """The official Python consumer: subscribes, consumes, unsubscribes, fails once."""
    python = life.python
    python.tell("consumer", "A", SHARED, PARENT)
    python.tell("subscribe", "A", "session-2")
    python.wait("A", 3)
    python.tell("behave", "A", "failure")
    life.send("session-2", "fails")
    python.wait("A", 4)
    python.tell("behave", "A", "success")
    python.wait("A", 5)
    python.tell("unsubscribe", "A", "session-2")
    python.tell("unsubscribe", "A", "session-2")
    python.tell("subscribe", "A", "x" * 65)
    python.tell("subscribe", "A", "not allowed!")
    python.tell("close", "A")


def dead(life: Life) -> None:
    """A message that always fails: attempts, invisible times, dead letters; the next message flows."""
    java = life.java
    java.tell("consumer", "F", FAILING, PARENT)
    java.tell("subscribe", "F", "failing-1")
    java.tell("behave", "F", "failure")
    life.send("failing-1", "always fails")
    java.wait("F", ATTEMPTS)
    java.tell("behave", "F", "success")
    life.send("failing-1", "after it")
    java.wait("F", ATTEMPTS + 1)
    life.admin.run("topicStatus", "-t", f"%DLQ%{FAILING}")
    java.tell("close", "F")


def quota(life: Life) -> None:
    """Quotas of a client, of the broker's subscriptions and of its light queues."""
    java = life.java
    java.tell("consumer", "Q", SMALL, PARENT)
    for name in ("quota-1", "quota-2", "quota-3", "quota-1"):
        java.tell("subscribe", "Q", name)
    java.tell("close", "Q")
    with life.door("hand-quota", SMALL) as door:
        life.result("heartbeat", door.heartbeat())
        life.result("3 of 2", door.sync("PARTIAL_ADD", "quota-1", "quota-2", "quota-3"))
        names = [f"many-{number}" for number in range(303)]
        life.result("302 of 2 at once", door.sync("COMPLETE_ADD", *names[:302]))
        life.result("303 of 2 at once", door.sync("COMPLETE_ADD", *names))
        life.result("303 of 2 removed", door.sync("PARTIAL_REMOVE", *names))
        life.result("none", door.sync("COMPLETE_ADD"))
        life.admin.run("updateBrokerConfig", "-k", "maxLiteSubscriptionCount", "-v", "1")
        life.result("first subscription of 1", door.sync("PARTIAL_ADD", "session-1"))
        life.result("the same again", door.sync("PARTIAL_ADD", "session-1"))
        life.result("another", door.sync("PARTIAL_ADD", "session-2"))
        life.result("two by a complete set", door.sync("COMPLETE_ADD", "session-1", "session-2"))
        life.admin.run("updateBrokerConfig", "-k", "maxLiteSubscriptionCount", "-v", "100000")
        life.admin.run("updateBrokerConfig", "-k", "enableLmqQuota", "-v", "true")
        life.admin.run("updateBrokerConfig", "-k", "maxLmqConsumeQueueNum", "-v", "1")
        life.result("a new lite topic", door.send("new", lite_topic="quota-new"))
        life.result("a known lite topic", door.send("known", lite_topic="session-1"))
        life.admin.run("updateBrokerConfig", "-k", "maxLmqConsumeQueueNum", "-v", "20000")


def exclusive(life: Life) -> None:
    """The last client takes a lite topic over; the other is told; its late acknowledgement."""
    java, python = life.java, life.python
    java.tell("consumer", "A", OWNER, PARENT)
    java.tell("consumer", "B", OWNER, PARENT)
    java.tell("subscribe", "A", "owned")
    java.tell("subscribe", "A", "kept")
    java.tell("behave", "A", "6000")
    life.send("owned", "held by A", "next")
    java.wait("A", 1)
    java.tell("subscribe", "B", "owned")
    time.sleep(1)
    java.tell("topics", "A")
    java.wait("B", 1)
    life.say("A acknowledges late; then B gets what follows")
    java.wait("B", 2, 10)
    python.tell("consumer", "C", OWNER, PARENT)
    python.tell("subscribe", "C", "owned")
    java.tell("behave", "A", "success")
    java.tell("subscribe", "A", "owned")
    life.say("the client by hand subscribes twice, takes over, and does not heed that it is taken over from")
    with life.door("hand-owner", OWNER) as door:
        door.heartbeat()
        life.result("subscribes", door.sync("PARTIAL_ADD", "owned"))
        life.result("subscribes again", door.sync("PARTIAL_ADD", "owned"))
        life.result("was sent", door.read_command())
        java.tell("subscribe", "B", "kept")
        java.tell("unsubscribe", "B", "owned")
        java.tell("subscribe", "B", "owned")
        life.result("was sent", door.read_command())
        life.result("sends its complete set with the name", door.sync("COMPLETE_ADD", "owned"))
        life.send("owned", "for whom")
        java.wait("B", 3, 10)
        life.result("receives", [one.body for one in door.receive(poll_s=2)[1]])
    life.until(SYNC_S)
    for name in ("A", "B"):
        java.tell("topics", name)
        java.tell("close", name)
    python.wait("C", 0, 0)
    python.tell("close", "C")
    life.say("a group whose offsets go back to 0 at a take-over and when it unsubscribes")
    java.tell("consumer", "R", RESETTING, PARENT)
    java.tell("subscribe", "R", "session-3")
    java.wait("R", 1)
    java.tell("unsubscribe", "R", "session-3")
    java.tell("subscribe", "R", "session-3")
    java.wait("R", 2)
    java.tell("consumer", "S", RESETTING, PARENT)
    java.tell("subscribe", "S", "session-3")
    java.wait("S", 1)
    java.tell("close", "R")
    java.tell("close", "S")


def wildcard(life: Life) -> None:
    """A group that gets every lite topic of its parent, shared among its clients."""
    java, python = life.java, life.python
    java.tell("consumer", "W", ALL, PARENT)
    life.until(8)
    java.tell("subscribe", "W", "session-1")
    life.send("wild-1", "before any other client")
    java.wait("W", 1)
    python.tell("consumer", "W", ALL, PARENT)
    python.tell("subscribe_all", "W")
    for number in range(2, 8):
        life.send(f"wild-{number}", f"shared {number}")
    life.until(3)
    java.wait("W", 0, 0)
    python.wait("W", 0, 0)
    with life.door("hand-all", ALL) as door:
        door.heartbeat()
        life.result("one name", door.sync("PARTIAL_ADD", "wild-1"))
        life.result("one name removed", door.sync("PARTIAL_REMOVE", "wild-1"))
        life.result("no name", door.sync("COMPLETE_ADD"))
        life.result("removed", door.sync("COMPLETE_REMOVE"))
    java.tell("close", "W")
    python.tell("close", "W")


def reconnect(life: Life) -> None:
    """Connections end and come again; a client dies without a farewell."""
    life.java.tell("consumer", "A", SHARED, PARENT)
    life.java.tell("subscribe", "A", "session-4")
    life.send("session-4", "before")
    life.java.wait("A", 1)
    life.relays.cut_grpc()
    time.sleep(1)
    life.send("session-4", "after the connections ended")
    life.java.wait("A", 2)
    with java_clients(life.endpoints, life.recording) as other:
        other.tell("consumer", "X", SHARED, PARENT)
        other.tell("subscribe", "X", "session-5")
        life.send("session-5", "before")
        other.wait("X", 1)
        life.say("the second process is killed")
        other.kill()
    life.send("session-5", "after")
    life.java.tell("subscribe", "A", "session-5")
    life.java.wait("A", 3, LOST_S + 10)
    life.java.tell("close", "A")


def ordered(life: Life) -> None:
    """By hand over remoting: blocks, attempt ids, acknowledgements, invisible times, suspension."""
    life.send("by-hand", "zero", "one", "two")
    lite = "by-hand"
    with Remote(life.remote) as link:
        life.result("subscribes", link.subscription(entry("PARTIAL_ADD", "hand-1", SHARED, PARENT, lite)))

        def pop(what: str, **changes: object) -> dict[str, object]:
            answer = link.pop("hand-1", SHARED, PARENT, **changes)
            life.result(what, (answer["code"], answer["extFields"].get("orderCountInfo")))
            return answer

        def settle(what: str, code: int, answer: dict[str, object], offset: int, **changes: object) -> None:
            life.result(what, link.settle(code, answer, SHARED, PARENT, lite, offset, **changes))

        first = pop("pops", attemptId="one")
        pop("pops with the same attempt id", attemptId="one")
        second = pop("pops with another attempt id", attemptId="two")
        if second["code"] != 0:
            second = first
        for what, offset, changes in (
            ("queue id 1", 0, {"queueId": 1}), ("beyond the end", 9, {}), ("not in the batch", 3, {}),
            ("another parent", 0, {"topic": PLAIN}), ("an unknown parent", 0, {"topic": "nowhere"}),
            ("without the lite topic", 0, {"liteTopic": None}),
        ):  # fmt: skip
            sent = {key: value for key, value in changes.items() if value is not None}
            settle(f"acknowledges, {what}", ACK, first, offset, **sent)
            settle(f"changes, {what}", CHANGE, first, offset, invisibleTime=1000, **sent)
        stale = {"extFields": {**first["extFields"], "popTime": "1"}}  # type: ignore[dict-item]
        settle("acknowledges, another pop time", ACK, stale, 0)
        revived = {"extFields": {**first["extFields"], "reviveQid": "0"}}  # type: ignore[dict-item]
        settle("acknowledges, revive queue 0", ACK, revived, 0)
        settle("acknowledges the first", ACK, first, 0)
        settle("acknowledges the third", ACK, first, 2)
        settle("acknowledges the third again", ACK, first, 2)
        time.sleep(3.2)
        again = pop("pops after the invisible time", attemptId="three", pollTime=1000)
        settle("changes to 500 ms", CHANGE, again, 1, invisibleTime=500)
        time.sleep(0.6)
        again = pop("pops", attemptId="four", pollTime=1000)
        settle("suspends for 500 ms", CHANGE, again, 1, invisibleTime=500, suspend="true")
        time.sleep(0.6)
        again = pop("pops", attemptId="five", pollTime=1000)
        settle("suspends for 500 ms", CHANGE, again, 1, invisibleTime=500, suspend="true")
        time.sleep(0.6)
        again = pop("pops", attemptId="six", pollTime=1000)
        settle("acknowledges the second", ACK, again, 1)
        settle("acknowledges it again", ACK, again, 1)
        life.send("by-hand", "three")
        last = pop("pops and keeps the lease", attemptId="seven", pollTime=2000)
        link.subscription(
            entry("PARTIAL_ADD", "hand-1", SHARED, PARENT, lite, offsetOption={"type": "POLICY", "value": 1})
        )
        settle("acknowledges while a reset waits", ACK, last, 3)
        again = pop("pops after the reset", attemptId="eight", pollTime=2000)
        for offset in range(4):
            settle("acknowledges", ACK, again, offset)
        life.result("ends", link.subscription(entry("COMPLETE_REMOVE", "hand-1", SHARED, PARENT)))


def suspend(life: Life) -> None:
    """By hand over gRPC, because the official clients have no suspension yet."""
    life.send("suspended", "again and again", "behind it")
    with life.door("hand-suspend", SHARED) as door:
        life.result("heartbeat", door.heartbeat())
        life.result("subscribes", door.sync("PARTIAL_ADD", "suspended"))
        for suspended in (True, True, False, None, True):
            code, found = door.receive(batch=1, poll_s=5, auto_renew=True, attempt_id=f"{time.time_ns()}")
            for one in found:
                life.result("receives", (one.body, one.system_properties.delivery_attempt))
                life.result(f"changes, suspend {suspended}", door.change(one, 1, suspended))
            if not found:
                life.result("receives nothing", code)
            time.sleep(1.2)
        code, found = door.receive(batch=16, poll_s=5)
        life.result("receives", [(one.body, one.system_properties.delivery_attempt) for one in found])
        life.result("acknowledges all", door.ack(*found))
        life.result("acknowledges again", door.ack(*found))


def admin(life: Life) -> None:
    """The official mqadmin commands, and what they say of unknown and other things."""
    life.java.tell("consumer", "A", SHARED, PARENT)
    life.java.tell("subscribe", "A", "session-6")
    life.send("session-6", "one", "two")
    life.java.wait("A", 2)
    client_id = life.recording.client_ids[-1]
    run = life.admin.run
    run("getBrokerLiteInfo", "-d")
    run("getBrokerLiteInfo")
    for topic in (PARENT, PLAIN, "nowhere"):
        run("getParentTopicInfo", "-p", topic)
        run("getLiteTopicInfo", "-p", topic, "-l", "session-6", "-s")
        run("getLiteClientInfo", "-p", topic, "-g", SHARED, "-c", client_id, "-s")
        run("getLiteGroupInfo", "-p", topic, "-g", SHARED)
    run("getLiteTopicInfo", "-p", PARENT, "-l", "no-such")
    run("getLiteClientInfo", "-p", PARENT, "-g", SHARED, "-c", "nobody", "-s")
    run("getLiteGroupInfo", "-p", PARENT, "-g", SHARED, "-l", "session-6")
    run("getLiteGroupInfo", "-p", PARENT, "-g", SHARED, "-l", "session-1", "-k", "3")
    run("triggerLiteDispatch", "-p", PARENT, "-g", SHARED)
    run("triggerLiteDispatch", "-p", PARENT, "-g", SHARED, "-c", client_id)
    with Remote(life.remote) as link:
        for code, fields in (
            (200074, {}), (200075, {"topic": PARENT}), (200075, {"topic": PLAIN}), (200075, {"topic": "nowhere"}),
            (200075, {}), (200076, {"parentTopic": PARENT, "liteTopic": "session-6"}),
            (200076, {"parentTopic": PARENT, "liteTopic": "wild-1"}), (200076, {"parentTopic": PLAIN, "liteTopic": "x"}),
            (200076, {"parentTopic": PARENT, "liteTopic": "no-such"}), (200076, {"parentTopic": PARENT}),
            (200077, {"parentTopic": PARENT, "group": SHARED, "clientId": client_id, "maxCount": 0}),
            (200077, {"parentTopic": PARENT, "group": SHARED, "clientId": client_id, "maxCount": 20000}),
            (200077, {"parentTopic": PARENT, "group": SHARED, "clientId": "nobody", "maxCount": 10}),
            (200077, {"parentTopic": PARENT, "group": BRIEF, "clientId": client_id, "maxCount": 10}),
            (200077, {"parentTopic": PARENT, "group": "nobody", "clientId": client_id, "maxCount": 10}),
            (200078, {"group": SHARED, "topK": 2}), (200078, {"group": SHARED, "topK": 2, "liteTopic": "session-6"}),
            (200078, {"group": SHARED, "topK": 2, "liteTopic": "no-such"}), (200078, {"group": ORDINARY, "topK": 2}),
            (200078, {"group": SMALL, "topK": 2, "liteTopic": "wild-1"}), (200078, {"group": "nobody", "topK": 2}),
            (200079, {"group": SHARED}), (200079, {"group": SHARED, "clientId": "nobody"}),
            (200079, {"group": ORDINARY}), (200079, {"group": "nobody"}),
        ):  # fmt: skip
            life.result(f"{code} {fields}", link.request(code, fields)["code"])
    life.java.tell("close", "A")


def invalid(life: Life) -> None:
    """Inputs that are refused, over both protocols."""
    _invalid_grpc(life)
    _invalid_remoting(life)


def _invalid_grpc(life: Life) -> None:
    for kind, group, topic in (
        ("LITE_PUSH_CONSUMER", ORDINARY, PARENT), ("LITE_PUSH_CONSUMER", "nobody", PARENT),
        ("LITE_PUSH_CONSUMER", SHARED, PLAIN), ("LITE_PUSH_CONSUMER", SHARED, "nowhere"),
        ("PUSH_CONSUMER", SHARED, PARENT), ("SIMPLE_CONSUMER", SHARED, PARENT), ("LITE_SIMPLE_CONSUMER", SHARED, PARENT),
    ):  # fmt: skip
        with life.door(f"hand-{kind}-{group}-{topic}", group, topic, kind) as door:
            life.result(f"{kind} of {group} and {topic}", door.heartbeat())
            life.result("subscribes", door.sync("PARTIAL_ADD", "session-1"))
            life.result("receives", door.receive(poll_s=1))
    with life.door("hand-invalid", SHARED) as door:
        life.result("heartbeat", door.heartbeat())
        for name in ("", " ", "x" * 64, "x" * 65, "ü" * 33, "a.b", "a$b", "a/b", "..", "A_-9"):
            for action in ("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD"):
                life.result(f"{action} of {name!r}", door.sync(action, name))
            life.result(f"sends to {name!r}", door.send("body", lite_topic=name))
        life.result("no names", [door.sync(action) for action in ("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD")])
        life.result("another parent", door.sync("PARTIAL_ADD", "a", topic=Resource(name=SHORT)))
        life.result("another group", door.sync("PARTIAL_ADD", "a", group=Resource(name=OWNER)))
        life.result("an unknown group", door.sync("PARTIAL_ADD", "a", group=Resource(name="nobody")))
        life.result("an unknown action", door.sync(9, "a"))  # type: ignore[arg-type]
        for what, properties in (
            ("no lite topic", {}), ("a message group", {"lite_topic": "a", "message_group": "g"}),
            ("a priority", {"lite_topic": "a", "priority": 1}), ("type NORMAL", {"lite_topic": "a", "message_type": "NORMAL"}),
            ("type FIFO", {"lite_topic": "a", "message_type": "FIFO", "message_group": "g"}),
        ):  # fmt: skip
            life.result(f"sends with {what}", door.send("body", **properties))
        life.result("sends to an ordinary topic", door.send("body", topic=PLAIN, lite_topic="a"))
        life.result("receives 33", door.receive(batch=33, poll_s=1)[0])


def _invalid_remoting(life: Life) -> None:
    with Remote(life.remote) as link:
        for what, changes in (
            ("an old born time", {"bornTime": 1}), ("no born time", {"bornTime": None}), ("born time 0", {"bornTime": 0}),
            ("33 messages", {"maxMsgNum": 33}), ("0 messages", {"maxMsgNum": 0}), ("no client id", {"clientId": None}),
            ("an unknown parent", {"topic": "nowhere"}), ("an ordinary topic", {"topic": PLAIN}),
            ("an unknown group", {"consumerGroup": "nobody"}), ("a group of another parent", {"consumerGroup": BRIEF}),
            ("an ordinary group", {"consumerGroup": ORDINARY}),
        ):  # fmt: skip
            fields = {"client_id": "hand-2", "group": SHARED, "topic": PARENT} | {
                {"clientId": "client_id", "consumerGroup": "group"}.get(key, key): value
                for key, value in changes.items()
            }
            life.result(f"pops with {what}", link.pop(**fields)["code"])
        subscribe_ = link.subscription
        life.result("no body", subscribe_(body=b""))
        life.result("no entry", subscribe_())
        life.result("null", subscribe_(body=b'{"subscriptionSet":null}'))
        life.result("not JSON", subscribe_(body=b"not JSON"))
        for client_id, group, topic in (("", SHARED, PARENT), ("h", "", PARENT), ("h", SHARED, "")):
            life.result("a blank name", subscribe_(entry("PARTIAL_ADD", client_id, group, topic, "a")))
        for action in ("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE", "OTHER"):
            life.result(f"{action} by an unknown group", subscribe_(entry(action, "h", "nobody", PARENT, "a")))
            life.result(f"{action} of an unknown parent", subscribe_(entry(action, "h", SHARED, "nowhere", "a")))
        odd = ["a/b", "..", "a$b", "x" * 65, ""]
        life.result("odd names", subscribe_(entry("PARTIAL_ADD", "h", SHARED, PARENT, *odd)))
        life.result(
            "a set that is null", subscribe_(entry("PARTIAL_ADD", "h", SHARED, PARENT) | {"liteTopicSet": None})
        )
        two = [entry("PARTIAL_ADD", name, SHARED, PARENT, "session-1") for name in ("h", "i")]
        life.result("two entries", subscribe_(*two))
        life.result(
            "removes them", subscribe_(*(entry("COMPLETE_REMOVE", name, SHARED, PARENT) for name in ("h", "i")))
        )
        life.result("the reserved code", link.request(200072, {"topic": PARENT})["code"])
        life.result("the broker's own code", link.request(200073, {"liteTopic": "a"})["code"])
    life.admin.run("updateSubGroup", "-g", "temporary-group", "-s", "false")
    with Remote(life.remote) as link:
        for action in ("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE"):
            wanted = entry(action, "h", "temporary-group", TEMPORARY, "a")
            life.result(f"{action} by a disabled group", link.subscription(wanted))
        life.result("pops for a disabled group", link.pop("h", "temporary-group", TEMPORARY)["code"])


def restart(life: Life) -> None:
    """The servers are killed: what was not acknowledged comes again, offsets go on."""
    life.send("session-7", "acknowledged", "kept")
    with Remote(life.remote) as link:
        link.subscription(entry("PARTIAL_ADD", "hand-3", SHARED, PARENT, "session-7"))
        answer = link.pop("hand-3", SHARED, PARENT, invisibleTime=60000, pollTime=2000)
        life.result("acknowledges the first", link.settle(ACK, answer, SHARED, PARENT, "session-7", 0))
    time.sleep(6)  # the broker writes offsets every 5 s
    life.say("all servers are killed and started")
    life.servers.restart()
    wait_for_route(life.servers.namesrv, PARENT)
    with Remote(life.remote) as link:
        link.subscription(entry("PARTIAL_ADD", "hand-3", SHARED, PARENT, "session-7"))
        again = link.pop("hand-3", SHARED, PARENT, pollTime=2000)
        life.result("pops again", (again["code"], again.get("extFields", {}).get("orderCountInfo")))
        life.result("acknowledges with the old lease", link.settle(ACK, answer, SHARED, PARENT, "session-7", 1))
        life.result("acknowledges with the new one", link.settle(ACK, again, SHARED, PARENT, "session-7", 1))
    life.java.tell("consumer", "Z", SHARED, PARENT)
    life.java.tell("subscribe", "Z", "session-7")
    for _ in range(20):
        if not life.java.tell("send", f"P-{PARENT}", PARENT, "session-7", "after the restart").startswith("error"):
            break
        time.sleep(2)
    life.java.wait("Z", 1)
    life.java.tell("close", "Z")
    life.admin.run("getLiteTopicInfo", "-p", PARENT, "-l", "session-7")


def expire(life: Life) -> None:
    """A lite topic is gone after its time to live; then its name is used again; a parent is deleted."""
    life.java.tell("consumer", "E", BRIEF, SHORT)
    life.java.tell("subscribe", "E", "brief-2")
    life.send("brief-2", "first", "second", topic=SHORT)
    life.java.wait("E", 2)
    life.until(TTL_S)
    life.admin.run("getParentTopicInfo", "-p", SHORT)
    life.admin.run("getLiteTopicInfo", "-p", SHORT, "-l", "brief-2", "-s")
    life.say("the same name once more")
    life.send("brief-2", "a new session", topic=SHORT)
    life.java.wait("E", 3)
    life.admin.run("getLiteTopicInfo", "-p", SHORT, "-l", "brief-2", "-s")
    life.java.tell("close", "E")
    life.admin.run("getBrokerLiteInfo", "-d")


SCENARIOS: dict[str, Step] = {
    step.__name__: step
    for step in (
        setup, send, subscribe, python, dead, quota, exclusive, wildcard, reconnect, ordered, suspend, admin, invalid,
        restart, expire,
    )
}  # fmt: skip


def play(
    servers: ProxiedServers,
    relays: Relays,
    recording: Recording,
    addresses: dict[str, str],
    version: str,
    keep: Callable[[str, Step], None],
) -> None:
    """Plays all scenarios in order; ``keep`` is called after each.

    Args:
        addresses: of the relays: ``grpc``, ``tool`` for mqadmin, ``hand`` for clients by hand.
        version: of the servers.
    """
    with ExitStack() as stack:
        mqadmin = stack.enter_context(Admin(addresses["tool"], servers.namesrv, version, recording))
        java = stack.enter_context(java_clients(addresses["grpc"], recording))
        python_ = stack.enter_context(python_clients(addresses["grpc"], recording))
        life = Life(servers, relays, recording, addresses["grpc"], addresses["hand"], mqadmin, java, python_)
        for name, step in SCENARIOS.items():
            step(life)
            keep(name, step)
