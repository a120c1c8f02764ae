"""Scenarios of clients by hand and of mqadmin: quotas, leases, refusals, what survives a kill."""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.lite.life import BRIEF, ORDINARY, OWNER, PARENT, PLAIN, SHARED, SHORT, SMALL, TEMPORARY, Life
from tests.conformance.lite.scripted import ACK, CHANGE, Lease, Remote, Resource, entry
from tools.peers.wire import wait_for_route


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
        life.limit(maxLiteSubscriptionCount=1)
    with life.door("hand-quota-1", SMALL) as door:
        life.result("first subscription of 1", door.sync("PARTIAL_ADD", "session-1"))
        life.result("the same again", door.sync("PARTIAL_ADD", "session-1"))
        life.result("another", door.sync("PARTIAL_ADD", "session-2"))
        life.result("two by a complete set", door.sync("COMPLETE_ADD", "session-1", "session-2"))
        life.limit(maxLiteSubscriptionCount=100_000, enableLmqQuota="true", maxLmqConsumeQueueNum=1)
    with life.door("hand-quota-2", SMALL) as door:
        life.result("a new lite topic", door.send("new", lite_topic="quota-new"))
        life.result("a known lite topic", door.send("known", lite_topic="session-1"))
        life.limit(maxLmqConsumeQueueNum=20_000)


def ordered(life: Life) -> None:
    """By hand over remoting: blocks, attempt ids, acknowledgements, invisible times, suspension."""
    life.send("by-hand", "zero", "one", "two")
    lite = "by-hand"
    lease = Lease(SHARED, PARENT, lite)
    with Remote(life.remote) as link:
        life.result("subscribes", link.subscription(entry("PARTIAL_ADD", "hand-1", SHARED, PARENT, lite)))

        def pop(what: str, **changes: Any) -> dict[str, Any]:
            answer = link.pop("hand-1", SHARED, PARENT, **changes)
            life.result(what, (answer["code"], answer["extFields"].get("orderCountInfo")))
            return answer

        def settle(what: str, code: int, answer: dict[str, Any], offset: int, **changes: Any) -> None:
            life.result(what, link.settle(code, answer, lease, offset, **changes))

        first = pop("pops", attemptId="one")
        repeated = pop("pops with the same attempt id", attemptId="one")
        first = first if repeated["code"] else repeated  # whoever gives the batch again gives a new pop time
        pop("pops with another attempt id", attemptId="two")
        for what, offset, changes in (
            ("queue id 1", 0, {"queueId": 1}), ("beyond the end", 9, {}), ("not in the batch", 3, {}),
            ("another parent", 0, {"topic": PLAIN}), ("an unknown parent", 0, {"topic": "nowhere"}),
            ("without the lite topic", 0, {"liteTopic": None}),
        ):  # fmt: skip
            settle(f"acknowledges, {what}", ACK, first, offset, **changes)
            settle(f"changes, {what}", CHANGE, first, offset, invisibleTime=3000, **changes)
        stale = {"extFields": {**first["extFields"], "popTime": "1"}}
        settle("acknowledges, another pop time", ACK, stale, 0)
        revived = {"extFields": {**first["extFields"], "reviveQid": "0"}}
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
            (200076, {"parentTopic": PARENT, "liteTopic": "wild-1"}),
            (200076, {"parentTopic": PLAIN, "liteTopic": "x"}),
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
        ("PUSH_CONSUMER", SHARED, PARENT), ("SIMPLE_CONSUMER", SHARED, PARENT),
        ("LITE_SIMPLE_CONSUMER", SHARED, PARENT),
    ):  # fmt: skip
        with life.door(f"hand-{kind}-{group}-{topic}", group, topic, kind) as door:
            life.result(f"{kind} of {group} and {topic}", door.heartbeat())
            life.result("subscribes", door.sync("PARTIAL_ADD", "session-1"))
            code, found = door.receive(poll_s=1)
            life.result("receives", (code, [one.body for one in found]))
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
            ("a priority", {"lite_topic": "a", "priority": 1}),
            ("type NORMAL", {"lite_topic": "a", "message_type": "NORMAL"}),
            ("type FIFO", {"lite_topic": "a", "message_type": "FIFO", "message_group": "g"}),
        ):  # fmt: skip
            life.result(f"sends with {what}", door.send("body", **properties))
        life.result("sends to an ordinary topic", door.send("body", topic=PLAIN, lite_topic="a"))
        life.result("receives 33", door.receive(batch=33, poll_s=1)[0])


def _invalid_remoting(life: Life) -> None:
    with Remote(life.remote) as link:
        for what, changes in (
            ("an old born time", {"bornTime": 1}), ("no born time", {"bornTime": None}),
            ("born time 0", {"bornTime": 0}),
            ("33 messages", {"maxMsgNum": 33}), ("0 messages", {"maxMsgNum": 0}), ("no client id", {"clientId": None}),
            ("an unknown parent", {"topic": "nowhere"}), ("an ordinary topic", {"topic": PLAIN}),
            ("an unknown group", {"consumerGroup": "nobody"}), ("a group of another parent", {"consumerGroup": BRIEF}),
            ("an ordinary group", {"consumerGroup": ORDINARY}),
        ):  # fmt: skip
            fields: dict[str, Any] = {"client_id": "hand-2", "group": SHARED, "topic": PARENT} | {
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
    lease = Lease(SHARED, PARENT, "session-7")
    with Remote(life.remote) as link:
        link.subscription(entry("PARTIAL_ADD", "hand-3", SHARED, PARENT, "session-7"))
        answer = link.pop("hand-3", SHARED, PARENT, invisibleTime=60000, pollTime=2000)
        life.result("acknowledges the first", link.settle(ACK, answer, lease, 0))
    time.sleep(6)  # the broker writes offsets every 5 s
    life.say("all servers are killed and started")
    life.servers.restart()
    wait_for_route(life.servers.namesrv, PARENT)
    with Remote(life.remote) as link:
        link.subscription(entry("PARTIAL_ADD", "hand-3", SHARED, PARENT, "session-7"))
        again = link.pop("hand-3", SHARED, PARENT, pollTime=2000)
        life.result("pops again", (again["code"], again.get("extFields", {}).get("orderCountInfo")))
        life.result("acknowledges with the old lease", link.settle(ACK, answer, lease, 1))
        life.result("acknowledges with the new one", link.settle(ACK, again, lease, 1))
    life.java.tell("consumer", "Z", SHARED, PARENT)
    life.java.tell("subscribe", "Z", "session-7")
    for _ in range(20):
        if not life.java.tell("send", f"P-{PARENT}", PARENT, "session-7", "after the restart").startswith("error"):
            break
        time.sleep(2)
    life.java.wait("Z", 1)
    life.java.tell("close", "Z")
    life.admin.run("getLiteTopicInfo", "-p", PARENT, "-l", "session-7")
