"""Who may write and read the topics that RocketMQ itself uses, with and without accounts."""

from __future__ import annotations

from pathlib import Path

from tests.attack.guarded import ACCOUNTS, ADMIN, ALICE, Guarded
from tests.brokers import Cluster, properties_text, run
from tests.unit.broker.test_property_gate import header, member

from rucola.broker.acl.permission import ANY, NOTHING, PUB, SUB, topic
from rucola.broker.topic.internal_topics import (
    INTERNAL_TOPICS,
    holds_waiting,
    needs_named_rule,
    only_administrators_read,
    only_broker_writes,
)
from rucola.common.key_builder import SYSTEM_TOPICS
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.protocol.command import RemotingCommand

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
HELD = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", REVIVE)
CLOSED = (*HELD, "rmq_sys_REVIVE_LOG_Other", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT")
OPEN = ("DefaultCluster", "DefaultCluster_REPLY_TOPIC", "BenchmarkTest", "TBW102", "RMQ_SYS_TRACE_TOPIC", "%RETRY%cg")


def ways(name: str) -> list[RemotingCommand]:
    text = properties_text(UNIQ_KEY="U")
    batch = RemotingCommand(320, ext_fields=header(name, "", batch=True), body=member(text))
    half = header(name, text + "TRAN_MSG\x01true\x02PGROUP\x01pg\x02", sys_flag=4)
    single = header(name, text)
    return [
        RemotingCommand(310, ext_fields=single, body=b"body"),
        RemotingCommand(310, ext_fields=half, body=b"body"),
        batch,
        RemotingCommand(325, ext_fields=single, body=b"body"),
    ]


def test_no_client_writes_what_the_broker_trusts(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, trace_topic_enable=True) as cluster:
            cluster.broker.groups.update(SubscriptionGroupConfig("cg"))
            for name in CLOSED:
                end = cluster.broker.store.max_offset
                for command in ways(name):
                    answer = await cluster.client.invoke(cluster.broker.address, command, 5000)
                    assert (answer.code, answer.remark) == (16, f"Sending message to topic[{name}] is forbidden."), name
                assert cluster.broker.store.max_offset == end
            for name in (*OPEN, cluster.broker.config.broker_name):
                answer = await cluster.client.invoke(cluster.broker.address, ways(name)[0], 5000)
                assert answer.code == 0, (name, answer.remark)

    run(scene())


def test_not_even_an_administrator_does(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Guarded(tmp_path) as cluster:
            for name in CLOSED:
                assert await cluster.code(ADMIN, cluster.send_command(name)) == 16

    run(scene())


def test_accounts_that_may_read_are_listed() -> None:
    for needed in (SUB, ANY, PUB):
        assert topic("TRANS_CHECK_MAX_TIME_TOPIC", needed) is NOTHING
    for name in HELD:
        assert (holds_waiting(name), needs_named_rule(name), only_administrators_read(name)) == (True, True, False)
    for name in ("RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_x", "RMQ_SYS_x", "SCHEDULE_TOPIC_x", "rmq_sys_"):
        assert (only_broker_writes(name), needs_named_rule(name), holds_waiting(name)) == (False, True, False)
    for name in ("T", "SCHEDULE_TOPIC", "%DLQ%g", "rmq_sysX", *(set(OPEN) - {"RMQ_SYS_TRACE_TOPIC"})):
        assert not (only_broker_writes(name) or needs_named_rule(name) or only_administrators_read(name)), name


def test_the_table_names_every_system_topic_that_is_not_open() -> None:
    assert set(INTERNAL_TOPICS) - SYSTEM_TOPICS == {"rmq_sys_wheel_timer"}
    assert SYSTEM_TOPICS - set(INTERNAL_TOPICS) == {"TBW102", "BenchmarkTest", "CHECKPOINT_TOPIC"}


def test_given_up_messages_are_for_administrators(tmp_path: Path) -> None:
    """Even a rule that names the topic does not help."""
    accounts = ACCOUNTS.replace("- A=PUB|SUB", "- A=PUB|SUB\n      - TRANS_CHECK_MAX_TIME_TOPIC=PUB|SUB")

    async def scene() -> None:
        async with Guarded(tmp_path, accounts) as cluster:
            cluster.broker.topics.create_for_group("TRANS_CHECK_MAX_TIME_TOPIC", 1)
            for account, code in ((ADMIN, 19), (ALICE, 16)):
                pull = cluster.pull_command("TRANS_CHECK_MAX_TIME_TOPIC", group="GA")
                assert await cluster.code(account, pull) == code

    run(scene())
