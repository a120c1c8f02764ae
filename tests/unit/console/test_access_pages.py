"""Accounts, users and rules over HTTP, and questions about them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.attack.guarded import ADMIN, ALICE, BOB, Guarded
from tests.attack.test_users import ADMIN as ROOT
from tests.attack.test_users import ALICE as USER
from tests.attack.test_users import asked, settings
from tests.brokers import Cluster, run
from tests.unit.console.visitor import Visitor, console_of, seen

from rucola.broker.acl.judge import verdict

RULES = [
    {
        "policyType": "Custom",
        "entries": [
            {"resource": "Topic:orders*", "actions": ["Pub"], "decision": "Allow"},
            {"resource": "Topic:orders-secret", "actions": ["All"], "decision": "Deny"},
            {"resource": "Group:*", "actions": ["Sub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"},
            {"resource": "*", "actions": ["Sub"], "decision": "Allow"},
        ],
    }
]


@pytest.mark.parametrize(
    ("kind", "name", "action", "address", "allowed", "reason"),
    [
        ("topic", "orders-1", "Pub", "10.1.2.3", True, "Allow Pub on Topic:orders*"),
        ("topic", "orders-secret", "Pub", "10.1.2.3", False, "Deny All on Topic:orders-secret"),
        ("topic", "other", "Pub", "10.1.2.3", False, "no rule matches"),
        ("group", "G", "Sub", "10.1.2.3", True, "Allow Sub on Group:* (Custom) from 10.0.0.0/8"),
        ("group", "G", "Sub", "11.1.2.3", True, "Allow Sub on * (Custom)"),
        ("topic", "%RETRY%G", "Sub", "11.1.2.3", True, "Allow Sub on *"),
        ("topic", "RMQ_SYS_TRACE_TOPIC", "Sub", "11.1.2.3", False, "must name this topic"),
        ("topic", "TRANS_CHECK_MAX_TIME_TOPIC", "Sub", "11.1.2.3", False, "only administrators"),
    ],
)
def test_the_rule_that_decides(kind: str, name: str, action: str, address: str, allowed: bool, reason: str) -> None:
    question: dict[str, Any] = {"kind": kind, "name": name, "action": action, "address": address, "checked": True}
    found = verdict(question | {"user": {"username": "u", "userType": "Normal"}, "policies": RULES})
    assert found.allowed is allowed and reason in found.reason
    assert verdict(question | {"user": {"userType": "Super"}, "policies": []}).allowed
    assert not verdict(question | {"user": {"userType": "Super", "userStatus": "disable"}, "policies": []}).allowed
    unchecked = {"user": {"userType": "Normal"}, "policies": [], "checked": False}
    assert verdict(question | unchecked).reason == "rules do not apply here"


def test_accounts_of_4(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Guarded(tmp_path) as cluster, console_of(cluster.namesrv.address, tmp_path) as console:
            word = base64.b64encode(":".join(ADMIN).encode()).decode()
            admin = {"authorization": f"Basic {word}"}

            async def ask(account: str, name: str, action: str, kind: str = "topic") -> tuple[bool, str]:
                query = urlencode({"account": account, "name": name, "action": action, "kind": kind})
                answer = await Visitor(console).get(f"/api/cluster/access?{query}", admin)
                (one,) = answer.json["answers"]
                return one["allowed"], one["reason"]

            assert await ask(ALICE[0], "A", "Sub") == (True, "topicPerms A=PUB|SUB")
            assert await ask(ALICE[0], "WriteOnly", "Sub") == (False, "topicPerms WriteOnly=PUB")
            assert await ask(ALICE[0], "B", "Pub") == (False, "defaultTopicPerm DENY")
            assert await ask(BOB[0], "GB", "Sub", "group") == (True, "groupPerms GB=SUB")
            assert (await ask(ADMIN[0], "B", "Pub"))[0] and not (await ask("nobody", "B", "Pub"))[0]
            value = (await Visitor(console).get("/api/cluster/access", admin)).json
            rows = {one["name"]: one for one in value["accounts"]}
            rule = {"resource": "Topic:A", "actions": "SUB", "addresses": "", "decision": ""}
            assert rows[ADMIN[0]]["is_super"] and rule in rows[BOB[0]]["rules"]
            visitor = Visitor(console)
            form = {"cluster": "cluster", "account": ADMIN[0], "secret": ADMIN[1], "back": "/cluster/access"}
            await visitor.follow("/cluster/access")
            await visitor.post("/login", form)
            page = await visitor.get(f"/cluster/access?account={ALICE[0]}&name=A&action=Pub")
            assert "allowed" in page.page.text and "topicPerms A=PUB|SUB" in page.page.text
            for secret in (ADMIN[1], ALICE[1], BOB[1], "secretKey", "password"):
                assert secret not in page.text and secret not in str(value)
            # Who is no administrator is told nothing: the broker refuses.
            word = base64.b64encode(":".join(ALICE).encode()).decode()
            value = (await Visitor(console).get("/api/cluster/access", {"authorization": f"Basic {word}"})).json
            assert value["accounts"] == [] and value["unknown"][0]["reason"] == "forbidden"

    run(scene())


def test_brokers_without_accounts(tmp_path: Path) -> None:
    async def scene() -> None:
        async with seen(tmp_path) as it:
            assert (await it.api("access"))["unguarded"] == ["broker-a"]
            assert "everybody may do everything" in (await it.page("access")).text
            for bad in ("kind=x", "action=x"):
                assert (await it.visitor.get(f"/api/cluster/access?{bad}")).status == 400

    run(scene())


def test_users_of_5_and_their_changes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path / "store", **settings()) as cluster:
            user = {"username": "alice", "password": USER[1], "userType": "Normal"}
            assert (await asked(cluster, ROOT, 3001, user, username="alice")).code == 0
            async with console_of(cluster.namesrv.address, tmp_path) as console:
                word = base64.b64encode(":".join(ROOT).encode()).decode()
                root = {"authorization": f"Basic {word}"}
                visitor = Visitor(console)

                async def change(kind: str, confirm: str = "", **query: str) -> str:
                    shown = await visitor.send(f"/api/cluster/changes/{kind}", query, root)
                    if shown.status != 200:
                        return str(shown.json["text"])
                    body = {"token": shown.json["token"], "confirm": confirm}
                    (result,) = (await visitor.send("/api/cluster/changes", body, root)).json["results"]
                    return str(result["outcome"])

                async def may(name: str) -> tuple[bool, str]:
                    address = f"/api/cluster/access?account=alice&name={name}&action=Pub"
                    (one,) = (await visitor.get(address, root)).json["answers"]
                    return one["allowed"], one["reason"]

                assert await may("orders") == (False, "no rule matches")
                rule = {"user": "alice", "resource": "Topic:ord*", "actions": "Pub", "decision": "Allow"}
                assert await change("rule", **rule) == "done" and await change("rule", **rule) == "unchanged"
                assert await may("orders") == (True, "Allow Pub on Topic:ord* (Custom)")
                narrow = {**rule, "addresses": "10.0.0.0/8, ::1"}
                shown = await visitor.send("/api/cluster/changes/rule", narrow, root)
                assert "-d Allow -i 10.0.0.0/8,::1 -c " in shown.json["command"]
                assert await change("rule", **{**rule, "resource": "Topic:orders", "decision": "Deny"}) == "done"
                assert not (await may("orders"))[0] and (await may("order2"))[0]
                assert await change("delete-rule", user="alice", resource="Topic:orders") == "done"
                assert (await may("orders"))[0]
                assert await change("user", user="alice", do="disable") == "done"
                assert await may("orders") == (False, "the user is disabled")
                assert "own rights" in await change("user", user=ROOT[0], do="delete")
                for bad in ({"resource": "x"}, {"decision": "x"}, {"actions": ","}, {"user": "\n"}):
                    assert "is not allowed" in await change("rule", **{**rule, **bad})
                assert await change("user", "alice", user="alice", do="delete") == "done"
                assert await may("orders") == (False, "there is no such account")
                page = await visitor.get("/api/cluster/audit", root)
                assert "Delete user alice" in page.text and USER[1] not in page.text and ROOT[1] not in page.text

    run(scene())


@pytest.mark.parametrize(("address", "allowed"), [("10.1.2.3", True), ("10.9.0.1", True), ("11.1.2.3", False)])
def test_addresses_of_an_account_of_4(address: str, allowed: bool) -> None:
    account = {"accessKey": "a", "admin": True, "whiteRemoteAddress": "10.1.2.*"}
    question = {"kind": "topic", "name": "T", "action": "Pub", "address": address, "account": account}
    found = verdict(question | {"global_addresses": ["10.9.*.*"]})
    assert found.allowed is allowed and ("whiteRemoteAddress" in found.reason) is not allowed
