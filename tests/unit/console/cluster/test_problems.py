"""What counts as a problem, and in which order problems are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rucola.console.cluster.asking import Reason, Unknown, signature_refused
from rucola.console.cluster.problems import SLAVE_BEHIND_BYTES, NewLetters, problems
from rucola.console.cluster.snapshot import (
    BrokerState,
    ClusterSnapshot,
    GroupOnTopic,
    GroupState,
    Member,
    NameServerState,
    ReplicaState,
)

SILENT = Unknown(Reason.SILENT, "a:1", "no answer within 1 s")
BROKER = BrokerState("c", "a", 0, "a:1", seen_ms=5, disk_ratio=0.2, runtime={"brokerActive": "true"})
MEMBERS = tuple(Member(f"m{number}", "", "", "", "a:1") for number in range(3))
ON_TOPIC = GroupOnTopic("t", 200, 7, 2)
GROUP = GroupState("g", topics=(ON_TOPIC,), lag=200, members=MEMBERS[:1], model="CLUSTERING", behind_ms=7)


def kinds(snapshot: ClusterSnapshot) -> list[str]:
    return [one.kind for one in problems(snapshot, {})]


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        (BROKER, []),
        (replace(BROKER, unknown=SILENT), ["broker-silent"]),
        (replace(BROKER, unknown=Unknown(Reason.FORBIDDEN, "a:1", "")), []),
        (replace(BROKER, is_listed=False), ["broker-away"]),
        (replace(BROKER, broker_id=1), ["no-master"]),
        (replace(BROKER, disk_ratio=0.75), ["disk"]),
        (replace(BROKER, disk_ratio=0.74), []),
        (replace(BROKER, runtime={"brokerActive": "false"}), ["store-stopped"]),
        (replace(BROKER, slaves=(ReplicaState("s:1", SLAVE_BEHIND_BYTES, True),)), ["slave-behind"]),
        (replace(BROKER, slaves=(ReplicaState("s:1", SLAVE_BEHIND_BYTES - 1, True),)), []),
    ],
)
def test_brokers(broker: BrokerState, expected: list[str]) -> None:
    assert kinds(ClusterSnapshot(brokers=(broker,))) == expected


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (GROUP, []),
        (replace(GROUP, members=()), ["no-members"]),
        (replace(GROUP, members=None), []),
        (replace(GROUP, members=(), lag=0), []),
        (replace(GROUP, members=(), lag=None), []),
        (replace(GROUP, trend=0.5), ["lag-grows"]),
        (replace(GROUP, trend=0.4), []),
        (replace(GROUP, trend=0.0, out_rate=0.0, lag=1), ["stands-still"]),
        (replace(GROUP, trend=5.0, out_rate=0.0), ["stands-still"]),
        (replace(GROUP, trend=5.0, out_rate=0.0, members=()), ["no-members"]),
        (replace(GROUP, trend=-1.0, out_rate=0.0), []),
        (replace(GROUP, trend=None, out_rate=0.0), []),
        (replace(GROUP, trend=0.0, out_rate=0.1), []),
        (replace(GROUP, trend=0.0, out_rate=None), []),
        (replace(GROUP, trend=0.0, out_rate=0.0, lag=0), []),
        (replace(GROUP, trend=9.0, lag=99), []),
        (replace(GROUP, differing=("t: m0: a; m1: b",)), ["differing-subscriptions"]),
        (replace(GROUP, members=MEMBERS), ["idle-members"]),
        (replace(GROUP, members=MEMBERS, model="BROADCASTING"), []),
        (replace(GROUP, retry_rate=0.1), ["retries"]),
        (replace(GROUP, members=(), is_system=True), []),
    ],
)
def test_groups(group: GroupState, expected: list[str]) -> None:
    assert kinds(ClusterSnapshot(groups={"g": group})) == expected


def test_the_worst_comes_first() -> None:
    snapshot = ClusterSnapshot(
        name_servers=(NameServerState("n:1", SILENT, 9),),
        brokers=(replace(BROKER, disk_ratio=0.8),),
        groups={"g": replace(GROUP, members=())},
    )
    found = problems(snapshot, {"g": NewLetters("g", 3, 1)})
    assert [one.kind for one in found] == ["no-members", "name-server-away", "disk", "dead-letters"]
    assert found[0].since_ms == 7 and found[-1].values["count"] == "3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("access denied: no valid signature of an account", True),
        ("AclException: Check signature failed", True),
        ("access denied: request 28 needs an administrator", False),
        ("User:alice has no permission to access", False),
    ],
)
def test_who_refuses_an_account_and_who_only_a_request(text: str, expected: bool) -> None:
    assert signature_refused(Unknown(Reason.FORBIDDEN, "a:1", text, 16)) is expected
    assert not signature_refused(Unknown(Reason.SILENT, "a:1", text))
