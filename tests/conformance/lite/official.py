"""Scenarios of the official clients: what they send, get, and are told."""

from __future__ import annotations

import time
from collections import Counter

from tests.conformance.lite.agents import java_clients, node_clients
from tests.conformance.lite.life import (
    ALL,
    ATTEMPTS,
    BRIEF,
    FAILING,
    FAILING_IN_ORDER,
    LEASE_S,
    MANY_S,
    ORDINARY,
    OWNER,
    PARENT,
    PLAIN,
    RESETTING,
    SHARED,
    SHORT,
    SMALL,
    SYNC_S,
    TEMPORARY,
    TTL_S,
    Life,
)
from tools.peers.wire import wait_for_route


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
    resetting = "+lite.sub.reset.offset.exclusive=true,+lite.sub.reset.offset.unsubscribe=true"
    for group, attributes, retries in (
        (SHARED, bound, 16),
        (OWNER, f"{bound},+lite.sub.model=Exclusive", 16),
        (RESETTING, f"{bound},+lite.sub.model=Exclusive,{resetting}", 16),
        (ALL, f"{bound},+lite.sub.wildcard=true", 16),
        (SMALL, f"{bound},+lite.sub.client.quota=2,+lite.sub.client.max.event.cnt=10", 16),
        (FAILING, bound, ATTEMPTS - 1),
        (FAILING_IN_ORDER, bound, ATTEMPTS - 1),
        (BRIEF, f"+lite.bind.topic={SHORT}", 16),
        ("temporary-group", f"+lite.bind.topic={TEMPORARY}", 16),
    ):  # fmt: skip
        order = "true" if group == FAILING_IN_ORDER else "false"
        life.admin.run("updateSubGroup", "-g", group, "-r", str(retries), "-o", order, "--attributes", attributes)
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
    """A message that always fails, in a group without and with order: attempts, invisible times, dead letters."""
    java = life.java
    for name, group, wanted in (("F", FAILING, 2), ("O", FAILING_IN_ORDER, ATTEMPTS)):
        lite_topic = f"{group}-1"
        java.tell("consumer", name, group, PARENT)
        java.tell("subscribe", name, lite_topic)
        java.tell("behave", name, "failure")
        life.send(lite_topic, "always fails", "behind it")
        java.wait(name, wanted, LEASE_S)
        java.tell("behave", name, "success")
        life.send(lite_topic, "after it")
        java.wait(name, wanted + 2, LEASE_S)
        life.admin.run("topicStatus", "-t", f"%DLQ%{group}")
        java.tell("close", name)


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
    java.wait("B", 1, 3)
    life.say("A acknowledges late; B gets what follows")
    time.sleep(4)
    life.send("owned", "for B")
    java.wait("B", 1)
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
        java.wait("B", 2, 5)
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
    java.wait("W", 1, 60)
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
    life.java.wait("A", 2, LEASE_S)
    with java_clients(life.endpoints, life.recording) as other:
        other.tell("consumer", "X", SHARED, PARENT)
        other.tell("subscribe", "X", "session-5")
        life.send("session-5", "before")
        other.wait("X", 1)
        life.say("the second process is killed")
        other.kill()
    life.send("session-5", "after")
    life.java.tell("subscribe", "A", "session-5")
    life.java.wait("A", 3, LEASE_S)
    life.java.tell("close", "A")


def node(life: Life) -> None:
    """The official Node.js clients: send, subscribe, consume, fail once, and are taken over from."""
    with node_clients(life.endpoints, life.recording) as clients:
        clients.tell("producer", "P", PARENT)
        for number in range(3):
            clients.tell("send", "P", PARENT, "node-1", f"node {number}")
        clients.tell("send", "P", PARENT, "a/../b", "a path")
        clients.tell("consumer", "A", SHARED, PARENT)
        clients.tell("subscribe", "A", "node-1")
        clients.wait("A", 3)
        clients.tell("behave", "A", "failure")
        clients.tell("send", "P", PARENT, "node-1", "fails")
        clients.wait("A", 4)
        clients.tell("behave", "A", "success")
        clients.wait("A", 5)
        clients.tell("unsubscribe", "A", "node-1")
        clients.tell("subscribe", "A", "x" * 65)
        clients.tell("consumer", "Q", SMALL, PARENT)
        for name in ("quota-1", "quota-2", "quota-3"):
            clients.tell("subscribe", "Q", name)
        clients.tell("consumer", "O", OWNER, PARENT)
        clients.tell("subscribe", "O", "node-owned")
        life.java.tell("consumer", "N", OWNER, PARENT)
        life.java.tell("subscribe", "N", "node-owned")
        time.sleep(1)
        clients.tell("topics", "O")
        clients.tell("send", "P", PARENT, "node-owned", "for the new owner")
        life.java.wait("N", 1)
        clients.wait("O", 0, 0)
        life.java.tell("close", "N")
        for name in ("A", "Q", "O", "P"):
            clients.tell("close", name)


def many(life: Life) -> None:
    """A client subscribes to 1,500 lite topics, gets a message of each, and gives them up."""
    names = [f"many-{number}" for number in range(1500)]
    with life.door("hand-many", SHARED) as door:
        life.result("subscribes to the first half", door.sync("PARTIAL_ADD", *names[:750]))
        life.result("subscribes to all", door.sync("COMPLETE_ADD", *names))
        renewed_s = time.monotonic()

        def renew() -> None:
            nonlocal renewed_s
            if time.monotonic() - renewed_s > SYNC_S:
                renewed_s = time.monotonic()
                door.heartbeat()
                door.sync("COMPLETE_ADD", *names)

        codes = Counter[int]()
        for name in names:
            codes[door.send(name, lite_topic=name)] += 1
            renew()
        life.result("sends", codes)
        deadline, bodies = time.monotonic() + MANY_S, Counter[str]()
        while len(bodies) < len(names) and time.monotonic() < deadline:
            _, found = door.receive(batch=32, poll_s=5)
            bodies.update(one.body.decode() for one in found)
            if found:
                door.ack(*found)
            renew()
        life.result("receives each", (len(bodies), set(bodies.values())))
        life.result("gives them up", door.sync("PARTIAL_REMOVE", *names))
        life.result("sends once more", Counter(door.send("again", lite_topic=name) for name in names[:10]))
        life.result("receives", door.receive(poll_s=2)[0])


def expire(life: Life) -> None:
    """A lite topic is gone after its time to live; then its name is used again."""
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
