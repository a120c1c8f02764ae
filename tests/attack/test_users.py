"""Users and rules (ACL 2.0): recorded requests of mqadmin, and which rule allows which request."""

from __future__ import annotations

import json
import lzma
from base64 import b64decode
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.attack.guarded import DENIED, signed
from tests.brokers import Cluster, run

from rucola.broker.acl.address_strategy import segments_of
from rucola.broker.acl.auth_model import User, read_rules
from rucola.broker.acl.permission import ANY, NOTHING, PUB, SUB, group, topic
from rucola.broker.config import BrokerConfig
from rucola.errors import ConfigError, FormatError
from rucola.protocol.command import RemotingCommand, decode_frame

FRAMES = Path(__file__).resolve().parents[1] / "golden" / "frames"
ADMIN = ("admin", "adminsecret")
ALICE = ("alice", "alicesecret")
LOCAL = segments_of("127.0.0.1")


def settings(checked: bool = True, user: tuple[str, str] = ADMIN, **more: Any) -> dict[str, Any]:
    initial = json.dumps({"username": user[0], "password": user[1]})
    return {
        "authentication_enabled": True,
        "authorization_enabled": checked,
        "init_authentication_user": initial,
        "insecure": True,
        **more,
    }


async def asked(
    cluster: Cluster, account: tuple[str, str], code: int, body: Any = None, **fields: str
) -> RemotingCommand:
    command = RemotingCommand(code, ext_fields=fields, body=orjson.dumps(body) if body is not None else b"")
    return await cluster.client.invoke(cluster.broker.address, signed(command, account), 5_000)


def rules(*entries: tuple[str, str, str], policy: str = "Custom", ips: list[str] | None = None) -> dict[str, Any]:
    listed = [
        {"resource": resource, "actions": actions.split(","), "decision": decision, "sourceIps": ips}
        for resource, actions, decision in entries
    ]
    return {"policies": [{"policyType": policy, "entries": listed}]}


def user(*policies: dict[str, Any]) -> User:
    found = tuple(rule for policy in policies for rule in read_rules(policy, "test"))
    return User("someone", b"", rules=found)


def test_requests_of_mqadmin_are_understood(tmp_path: Path) -> None:
    """The requests create a user with rules, and then remove the rules and the user. The responses equal the recorded
    ones, but contain no passwords.
    """
    order = (
        "createUser",
        "createUserAgain",
        "getUser",
        "getUserNone",
        "listUser",
        "updateUser",
        "createAcl",
        "updateAcl",
    )
    order += ("getAcl", "getAclNone", "listAcl", "deleteAcl", "deleteUser")

    async def body() -> None:
        async with Cluster(tmp_path, **settings()) as cluster:
            for name in order:
                lines = lzma.decompress((FRAMES / f"acl2_mqadmin_{name}.jsonl.xz").read_bytes()).splitlines()
                records = [json.loads(line) for line in lines[1:]]
                asks = [record for record in records if record.get("kind") == "request"]
                answers = {record["opaque"]: record for record in records if record.get("kind") == "response"}
                for ask in (one for one in asks if one["code"] > 3000):
                    answer = await cluster.client.invoke(
                        cluster.broker.address, decode_frame(b64decode(ask["frame"])), 5_000
                    )
                    recorded = answers[ask["opaque"]]
                    assert answer.code == recorded["code"], (name, answer.remark)
                    expected = json.loads(b64decode(recorded["body"])) if recorded["body_len"] else None
                    got = orjson.loads(bytes(answer.body)) if answer.body else None
                    for one in [*(expected if isinstance(expected, list) else [expected or {}])]:
                        one.pop("password", None)
                    assert _sorted(got) == _sorted(expected), name

    run(body())


def _sorted(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, list) else value


def test_users_do_what_their_rules_say(tmp_path: Path) -> None:
    async def body() -> None:
        async with Cluster(tmp_path / "a", **settings()) as cluster:
            assert (await asked(cluster, ADMIN, 3001, {"username": "alice", "password": ALICE[1]})).code == 0
            send = lambda: cluster.client.invoke(  # noqa: E731
                cluster.broker.address, signed(cluster.send_command("A"), ALICE), 5_000
            )
            assert (await send()).code == DENIED
            allowed = rules(("Topic:A", "Pub", "Allow"), ips=["127.0.0.0/8"])
            assert (await asked(cluster, ADMIN, 3006, allowed, subject="User:alice")).code == 0
            assert (await send()).code == 0
            assert (await asked(cluster, ALICE, 3004, username="admin")).code == DENIED
            denied = rules(("Topic:A", "Pub", "Deny"))
            assert (await asked(cluster, ADMIN, 3007, denied, subject="User:alice")).code == 0
            assert (await send()).code == DENIED
            assert (await asked(cluster, ADMIN, 3007, allowed, subject="User:alice")).code == 0
            assert (await asked(cluster, ADMIN, 3002, {"userStatus": "disable"}, username="alice")).code == 0
            assert (await send()).code == DENIED
            assert (await asked(cluster, ADMIN, 3002, {"userStatus": "enable"}, username="alice")).code == 0
            assert (await send()).code == 0
        async with Cluster(tmp_path / "a", **settings()) as cluster:
            assert (await send()).code == 0, "users and rules outlive a restart"
            file = tmp_path / "a" / "config" / "rucola-auth.json"
            assert file.stat().st_mode & 0o077 == 0
            assert (await asked(cluster, ADMIN, 3003, username="admin")).code == DENIED, (
                "the last super user cannot be removed"
            )
            assert (await asked(cluster, ADMIN, 3002, {"userType": "Normal"}, username="admin")).code == DENIED
            assert (await asked(cluster, ADMIN, 3003, username="alice")).code == 0
            assert (await send()).code == DENIED
            assert b"alice" not in file.read_bytes()
        async with Cluster(tmp_path / "b", **settings(checked=False)) as cluster:
            assert (await asked(cluster, ADMIN, 3001, {"username": "alice", "password": ALICE[1]})).code == 0
            assert (await send()).code == 0, "without authorization every user may do everything"

    run(body())


@pytest.mark.parametrize(
    ("policies", "allowed"),
    [
        ([], False),
        ([rules(("Topic:A", "Pub", "Allow"))], True),
        ([rules(("Topic:A", "Sub", "Allow"))], False),
        ([rules(("Topic:A", "All", "Allow"))], True),
        ([rules(("Topic:B", "Pub", "Allow"))], False),
        ([rules(("Group:A", "Pub", "Allow"))], False),
        ([rules(("*", "Pub", "Allow"))], True),
        ([rules(("Topic:*", "Pub", "Allow"), ("Topic:A", "Pub", "Deny"))], False),
        ([rules(("Topic:A*", "Pub", "Deny"), ("Topic:A", "Pub", "Allow"))], True),
        ([rules(("Topic:*", "Pub", "Deny"), ("Topic:A*", "Pub", "Allow"))], True),
        ([rules(("*", "Pub", "Deny"), ("Topic:*", "Pub", "Allow"))], True),
        ([rules(("Topic:A", "Pub", "Allow"), policy="Default"), rules(("Topic:*", "Pub", "Deny"))], False),
        ([rules(("Topic:A", "Pub", "Deny")), rules(("Topic:A", "Pub", "Allow"))], True),
        ([rules(("Topic:A", "Pub", "Allow"), ips=["10.0.0.1", "192.168.0.0/16"])], False),
        ([rules(("Topic:A", "Pub", "Allow"), ips=["127.0.0.0/8"])], True),
        ([rules(("Topic:A", "Pub", "Deny"), ips=["10.0.0.1"]), rules(("Topic:*", "Pub", "Allow"))], True),
    ],
)
def test_which_rule_counts(policies: list[dict[str, Any]], allowed: bool) -> None:
    assert user(*policies).allows(topic("A", PUB), LOCAL) is allowed


def test_rules_and_what_nobody_is_granted() -> None:
    everything = user(rules(("*", "All", "Allow")))
    assert everything.allows(topic("A", SUB), LOCAL)
    assert everything.allows(topic("A", ANY), LOCAL)
    assert everything.allows(group("G"), LOCAL)
    assert not everything.allows(NOTHING, LOCAL)
    assert not everything.allows(topic("SCHEDULE_TOPIC_XXXX", SUB), LOCAL), "only a rule that names it"
    assert user(rules(("Topic:SCHEDULE_TOPIC_XXXX", "Sub", "Allow"))).allows(topic("SCHEDULE_TOPIC_XXXX", SUB), LOCAL)
    pattern = user(rules(("Topic:rmq_sys_*", "Sub", "Allow")))
    assert not pattern.allows(topic("rmq_sys_*", SUB), LOCAL), "a client that asks for the pattern itself"
    assert user(rules(("Topic:A", "Get", "Allow"))).allows(topic("A", ANY), LOCAL)
    assert not user(rules(("Topic:A", "Get", "Allow"))).allows(topic("A", SUB), LOCAL)


@pytest.mark.parametrize(
    "body",
    [
        rules(("Topic:", "Pub", "Allow")),
        rules(("Queue:A", "Pub", "Allow")),
        rules(("Topic:*A", "Pub", "Allow")),
        rules(("Topic:A", "Fly", "Allow")),
        rules(("Topic:A", "Pub", "Perhaps")),
        rules(("Topic:A", "Pub", "Allow"), policy="Odd"),
        rules(("Topic:A", "Pub", "Allow"), ips=["10.0.0.1-9"]),
        {"policies": [{"entries": [{"resource": "*", "decision": "Allow"}]}]},
        {"policies": "all"},
        {"policies": [[]]},
    ],
)
def test_rules_that_are_none(body: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        read_rules(body, "AclInfo")


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"init_authentication_user": ""}, "initAuthenticationUser"),
        ({"init_authentication_user": "admin"}, "initAuthenticationUser"),
        ({**settings(user=("admin", "12345678")), "insecure": False}, "initAuthenticationUser"),
        ({"acl_enable": True}, "authenticationEnabled"),
        ({"authentication_enabled": False}, "authorizationEnabled"),
    ],
)  # fmt: skip
def test_settings_that_would_leave_the_door_open_or_shut(tmp_path: Path, more: dict[str, Any], key: str) -> None:
    async def body() -> None:
        async with Cluster(tmp_path, **{**settings(), **more}):
            pass

    with pytest.raises(ConfigError) as caught:
        run(body())
    assert caught.value.key == key
    assert "12345678" not in str(caught.value)


def test_s42_the_first_password_is_not_shown_with_the_options(tmp_path: Path) -> None:
    async def body() -> None:
        async with Cluster(tmp_path, **settings()) as cluster:
            shown = await asked(cluster, ADMIN, 26)
            assert shown.code == 0
            assert b"initAuthenticationUser=******" in bytes(shown.body)
            assert ADMIN[1].encode() not in bytes(shown.body)

    run(body())


def test_passwords_are_not_shown() -> None:
    assert ADMIN[1] not in repr(BrokerConfig(**settings()))
    assert "hidden" not in repr(User("someone", b"hidden"))
