"""Repeats every recorded exchange with our servers: codes, fields and kinds of bodies must be equal.

Each group has its own servers, and the scenarios of a group run concurrently, because they mostly wait. Everything that
is not compared or may differ is listed here, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import Guarded
from tests.attack.test_users import settings as users
from tests.brokers import Cluster, run
from tests.golden.exchanges import Replay
from tests.unit.broker.administered import administered
from tests.unit.broker.test_admin_golden import BROKER_CODES, NAMESRV_CODES
from tests.unit.protocol.golden import DIRECTORY, SCENARIOS, records

from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.namesrv import NameServer, NamesrvConfig

INDEX = Path(__file__).parent / "frames" / "index.txt"
COMMON: dict[str, Any] = {
    "broker_name": "broker-a",
    "broker_ip1": "127.0.0.1",
    "enable_property_filter": True,
    "transaction_timeout_ms": 3000,
    "transaction_op_batch_interval_ms": 300,
    "transaction_check_interval_ms": 1000,
    "message_delay_level": "1s 2s 2s",
}
NO_REPLICAS = "replication: brokers of ours have no slaves"
COLD_READS = "control of cold reads: not built"
LEFT_OUT = {
    "slave_sync": NO_REPLICAS,
    "register_acting_master": NO_REPLICAS,
    "register_acting_master_new": NO_REPLICAS,
    "mqadmin_getColdDataFlowCtrInfo": COLD_READS,
    "mqadmin_removeColdDataFlowCtrGroupConfig": COLD_READS,
    "mqadmin_setCommitLogReadAheadMode": COLD_READS,
    "mqadmin_updateColdDataFlowCtrGroupConfig": COLD_READS,
    "errors_bad_frames": "no frames: refused in unit/protocol/test_golden_frames.py",
    "errors_busy": "one answer of a burst of 6000: our answer when busy is looked at in unit/broker/test_limits.py",
    "errors_offset_too_small": "needs a log whose beginning was deleted: unit/broker/test_broker.py",
}
"""Scenarios of requests that Rucola does not serve, or that other tests compare."""
CODES_LEFT_OUT = dict.fromkeys((901, 906), NO_REPLICAS) | {2003: COLD_READS}
CODES_OF_ADMIN = BROKER_CODES | NAMESRV_CODES | {220, 221, 222, 223, 323}
"""Codes in ``mqadmin_*`` and ``raw_*`` that unit/broker/test_admin_golden.py compares, with the state that they
need.
"""
OTHER_MESSAGES = "asks for a message by an id or key of the recording"
EARLY_PULL = "the reference served the pull before the heartbeat that came first, ours in their order"
NO_CHECK = "the reference stumbles over it before it has put fields into the answer"
PLAIN_MEMBERS = "up to 5.3.3 members of a batch get the properties of its envelope; later ones, and ours, do not"
DEFLATED = "the name server of 5.3.3 refuses every deflated registration, because of a defect"
MAY_DIFFER = {
    ("acl1_admin", 2): "a field more, which mqadmin of 4.9 asks for",
    ("acl1_admin", 6): "request 54 of mqadmin 4.9 is served, by 5.3.2 it is not",
    ("acl2_mqadmin_getUser", 2): "ours never shows a password",
    ("errors_other", 330): "without users the requests about them are unknown: 3, not 16",
    ("errors_send", 50): NO_CHECK,
    ("errors_send", 78): NO_CHECK,
    ("go_v2", 56): PLAIN_MEMBERS,
    ("go_v2", 121): PLAIN_MEMBERS,
    ("java498_rebalance_two", 40): EARLY_PULL,
    ("java498_rebalance_two", 129): EARLY_PULL,
    ("java498_rebalance_two", 130): EARLY_PULL,
    ("java533_pop_api", 34): "the reference looked at the held pop late and said so; in time it says what ours says",
    ("mqadmin_consumeMessage", 11): OTHER_MESSAGES,
    ("mqadmin_consumeMessageDirectly", 10): OTHER_MESSAGES,
    ("mqadmin_queryMsgById", 2): OTHER_MESSAGES,
    ("mqadmin_queryMsgByKey", 5): OTHER_MESSAGES,
    ("mqadmin_queryMsgByOffset", 4): OTHER_MESSAGES,
    ("mqadmin_queryMsgByUniqueKey", 6): OTHER_MESSAGES,
    ("raw_broker", 30): "a mode was set before",
    ("raw_broker", 163): "nobody had consumed the topic that is peeked into",
    ("raw_namesrv", 34): "no such broker is there now, whose data version would be the body",
    ("raw_namesrv", 82): "a request without its topic: 1, not 17",
} | {("register_deflated", number): DEFLATED for number in (2, 4, 8, 12)}
"""Numbers of recorded responses from which our responses may differ, and why."""


@asynccontextmanager
async def clients_cluster(path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(path, **COMMON) as cluster:
        yield cluster


@asynccontextmanager
async def errors_cluster(path: Path) -> AsyncIterator[Cluster]:
    """Starts servers with the topics and groups that existed when the scenario was recorded."""
    options = COMMON | {"auto_create_topic_enable": False, "auto_create_subscription_group": False}
    async with Cluster(path, max_body=262_144, **options) as cluster:
        for topic, queues, perm in (("T_err", 2, 6), ("T_err_empty", 1, 6), ("T_err_one", 1, 6)):
            await cluster.broker.topics.update(TopicConfig(topic, queues, queues, perm))
        for topic, perm in (("T_err_readonly", 4), ("T_err_writeonly", 2)):
            await cluster.broker.topics.update(TopicConfig(topic, 1, 1, perm))
        for group in ("G_err", "G_err_P"):
            cluster.broker.groups.update(SubscriptionGroupConfig(group))
        cluster.broker.groups.update(SubscriptionGroupConfig("G_err_off", consume_enable=False))
        assert (await cluster.send("T_err_one", b"the only one", "")).code == 0
        yield cluster


@asynccontextmanager
async def accounts_cluster(path: Path) -> AsyncIterator[Cluster]:
    text = "\n".join(head("acl1_admin")["plain_acl.yml"]) + "\n"
    async with Guarded(path, text, **COMMON, insecure=True) as cluster:
        for topic in ("T_acl", "T_acl_deny", "T_acl_sub"):
            await cluster.broker.topics.update(TopicConfig(topic, 2, 2))
        yield cluster


@asynccontextmanager
async def users_cluster(path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(path, **users(), **COMMON) as cluster:
        yield cluster


@asynccontextmanager
async def administered_cluster(path: Path) -> AsyncIterator[Cluster]:
    async with administered(path, **COMMON) as there:
        for number in range(8):  # the recorded bodies from message 0 on
            await there.cluster.send("T_l1", f"live message {number}".encode(), queue_id=number % 2)
        yield there.cluster


USERS_IN_ORDER = (
    *(f"acl2_mqadmin_{name}" for name in ("createUser", "createUserAgain", "listUser", "getUser", "getUserNone")),
    *(f"acl2_mqadmin_{name}" for name in ("updateUser", "createAcl", "updateAcl", "listAcl", "getAcl", "getAclNone")),
    *(f"acl2_mqadmin_{name}" for name in ("createTopic", "createTopicDenied")),
    *(f"acl2_java533_{name}" for name in ("allowed", "denied_topic", "wrong_secret", "unsigned")),
    *(f"acl2_mqadmin_{name}" for name in ("deleteAcl", "deleteUser")),
)


def scenarios(pattern: str) -> list[str]:
    return [name for name in SCENARIOS if re.fullmatch(pattern, name) and name not in LEFT_OUT]


ACCOUNTS_IN_ORDER = ("allowed", "denied_topic", "wrong_secret", "unknown_key", "unsigned")
"""The failing accounts come last, because an account that fails too often is locked out."""
GROUPS: dict[str, tuple[Any, list[list[str]]]] = {
    "java533": (clients_cluster, [[name] for name in scenarios("java533_(?!acl).*")]),
    "java498": (clients_cluster, [[name] for name in scenarios("java498_(?!acl).*")]),
    "others": (clients_cluster, [[name] for name in scenarios("go_v2|node_alions|python_cpp")]),
    "errors": (errors_cluster, [["errors_send", "errors_other"]]),
    "accounts533": (accounts_cluster, [[f"java533_acl1_{name}" for name in ACCOUNTS_IN_ORDER]]),
    "accounts498": (
        accounts_cluster,
        [["java533_acl1_allowed", *(f"java498_acl1_{name}" for name in ACCOUNTS_IN_ORDER)]],
    ),
    "accounts": (accounts_cluster, [["acl1_admin"]]),
    "users": (users_cluster, [list(USERS_IN_ORDER)]),
    "mqadmin": (administered_cluster, [scenarios("mqadmin_.*|raw_.*")]),
}
"""For each group, a function that prepares the servers, and rows of scenarios. Rows run concurrently, their scenarios
one after another.
"""
SWITCHES: dict[int, dict[str, Any]] = {
    5: {"broker_permission": 4},
    9: {"broker_permission": 4},
    13: {"broker_permission": 2},
    17: {"reject_transaction_message": True},
}
"""Requests of ``errors_switches`` and the options that were set for them. Two other requests are missing, because they
need options that our broker reads only at start-up.
"""


def head(scenario: str) -> dict[str, Any]:
    """Returns the first line of a file."""
    with lzma.open(DIRECTORY / f"{scenario}.jsonl.xz", "rt", encoding="utf-8") as lines:
        found: dict[str, Any] = json.loads(next(iter(lines)))
        return found


def comparable(scenario: str, asking: str = "client") -> set[int]:
    """Returns the record numbers of the requests and responses that were sent to ``asking``, were recorded in full and
    are not left out.
    """
    found = set()
    for record in records(scenario):
        if "event" in record or not record["dir"].endswith(f"->{asking}") or record["conn"].startswith("b"):
            continue
        code = record["request_code"] if record["kind"] == "response" else record["code"]
        if code not in left_out(scenario) and "frame" in record:
            found.add(record["n"])
    return found


def left_out(scenario: str) -> set[int]:
    return {*CODES_LEFT_OUT, *(CODES_OF_ADMIN if scenario.startswith(("mqadmin_", "raw_")) else ())}


def check(replay: Replay, asking: str = "client") -> list[str]:
    """Returns the differences of a replay, without those that are allowed."""
    scenario = replay.scenario
    wrong = []
    for number in sorted(comparable(scenario, asking) | {n for n, found in replay.problems.items() if found}):
        problems = replay.problems.get(number) or []
        if number not in replay.compared and not problems:
            problems = ["not compared"]
        if problems and (scenario, number) not in MAY_DIFFER:
            wrong.append(f"{scenario} {number}: {'; '.join(problems)}")
    return wrong


async def line(cluster: Cluster, names: list[str]) -> list[str]:
    """Runs scenarios one after another; returns the differences."""
    wrong, replay = [], None
    for name in names:
        servers = {"namesrv": cluster.namesrv.address, "broker": cluster.broker.address}
        secret = (head(name).get("secret_key") or "").partition(" ")[0]
        replay = Replay(name, servers, secret, left_out=left_out(name), before=replay)
        for topic in replay.topics():
            if cluster.broker.topics.get(topic.topic_name) is None:
                await cluster.broker.topics.update(topic)
        await replay.run()
        wrong += check(replay)
    return wrong


async def replayed(group: str, path: Path) -> list[str]:
    prepare, lines = GROUPS[group]
    async with prepare(path) as cluster:
        found = await asyncio.gather(*(line(cluster, names) for names in lines))
    return [problem for problems in found for problem in problems]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str] | BaseException]:
    """Runs all groups; returns the errors of each group, or the exception that stopped it."""

    async def work() -> list[list[str] | BaseException]:
        replays = [replayed(group, tmp_path_factory.mktemp(group)) for group in GROUPS]
        return await asyncio.gather(*replays, return_exceptions=True)

    return dict(zip(GROUPS, run(work()), strict=True))


@pytest.mark.parametrize("group", GROUPS)
def test_exchanges(group: str, outcomes: dict[str, list[str] | BaseException]) -> None:
    found = outcomes[group]
    if isinstance(found, BaseException):
        raise found
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("scenario", scenarios("register_.*"))
def test_registrations(scenario: str) -> None:
    async def work() -> list[str]:
        namesrv = NameServer(NamesrvConfig(listen_port=0))
        await namesrv.start()
        try:
            replay = Replay(scenario, {"namesrv": namesrv.address}, asking="broker")
            await replay.run()
            return check(replay, "broker")
        finally:
            await namesrv.shutdown()

    problems = run(work())
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize("number", SWITCHES)
def test_switches(number: int, tmp_path: Path) -> None:
    async def work() -> list[str]:
        async with Cluster(tmp_path, **COMMON, **SWITCHES[number]) as cluster:
            await cluster.broker.topics.update(TopicConfig("T_err", 2, 2))
            servers = {"namesrv": cluster.namesrv.address, "broker": cluster.broker.address}
            replay = Replay("errors_switches", servers, only=number)
            await replay.run()
            assert replay.compared == {number + 1}
            return replay.problems[number + 1]

    assert run(work()) == []


def test_none_is_left_out() -> None:
    """Every file of the recording is complete, and each scenario is replayed, or left out with a reason."""
    recorded = {name: int(count) for name, count in (line.split() for line in INDEX.read_text().splitlines())}
    assert {name: len(records(name)) for name in SCENARIOS} == recorded
    replayed = {name for _, lines in GROUPS.values() for names in lines for name in names}
    replayed |= {*scenarios("register_.*"), "errors_switches"}
    assert replayed | LEFT_OUT.keys() == recorded.keys() and not replayed & LEFT_OUT.keys()
    assert {name for name, _ in MAY_DIFFER} <= replayed
