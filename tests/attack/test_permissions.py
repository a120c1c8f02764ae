"""Attacks S-20 to S-28 and S-39 to S-45: requests that an account may send, and requests that nobody may send."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from tests.attack.guarded import (
    ACCOUNTS,
    ADMIN,
    ALICE,
    BOB,
    DENIED,
    Guarded,
    signed,
    until,
    write_accounts,
)
from tests.brokers import Cluster, properties_text, run, run_virtual

from rucola.broker.acl.requirements import REQUIREMENTS
from rucola.broker.config import broker_options
from rucola.common.columns import FrameColumn, FrameKind
from rucola.common.message_const import DELAY, REAL_QID, REAL_TOPIC
from rucola.errors import ConfigError, ForeignEntryError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameReader
from rucola.runtime.files import Files

EXAMPLES: dict[int, tuple[dict[str, str], object]] = {
    10: ({"topic": "B"}, None),
    310: ({"b": "B"}, None),
    320: ({"b": "B"}, None),
    324: ({"topic": "B"}, None),
    325: ({"b": "B"}, None),
    370: ({"topic": "B", "recallHandle": "x"}, None),
    37: ({"topic": "A", "commitLogOffset": "0"}, None),
    36: ({"group": "GA", "offset": "0"}, None),
    33: ({"offset": "0", "topic": "A"}, None),
    35: ({"clientID": "c", "consumerGroup": "GB"}, None),
    38: ({"consumerGroup": "GB"}, None),
    34: ({}, {"clientID": "c", "consumerDataSet": [{"groupName": "GB", "subscriptionDataSet": []}]}),
    46: ({}, {"clientId": "c", "group": "GA", "subscriptionData": {"topic": "B"}}),
    41: ({}, {"consumerGroup": "GA", "clientId": "c", "mqSet": [{"topic": "B", "brokerName": "b", "queueId": 0}]}),
    42: ({}, {"consumerGroup": "GB", "clientId": "c", "mqSet": []}),
    400: ({}, {"consumerGroup": "GA", "topic": "B"}),
    200151: ({}, {"acks": [{"c": "GA", "t": "B"}]}),
}
"""Requests by alice about bob's topics and groups. Requests with other codes state topic and group in the usual fields.
"""


def test_s39_nothing_of_others_by_any_request_code(tmp_path: Path) -> None:
    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A", "B")
            assert await cluster.code(BOB, cluster.send_command("B")) == 0  # the message at physical offset 0
            for code in sorted(REQUIREMENTS):
                fields, content = EXAMPLES.get(code, ({"topic": "B", "consumerGroup": "GB", "queueId": "0"}, None))
                body = orjson.dumps(content) if content is not None else b""
                answer = await cluster.as_account(ALICE, RemotingCommand(code, ext_fields=dict(fields), body=body))
                assert answer.code == DENIED, code
                assert answer.remark.startswith("access denied"), code
                empty = await cluster.as_account(ALICE, RemotingCommand(code))
                assert empty.code == DENIED or code == 35, code
            assert cluster.broker.store.stats.put_messages == 1
            assert set(cluster.broker.topics.table) >= {"A", "B"}

    run(body())


def test_s39_each_role_may_do_its_part(tmp_path: Path) -> None:
    async def body() -> None:
        async with Guarded(tmp_path, auto_create_subscription_group=True) as cluster:
            await cluster.made("A", "WriteOnly")
            assert await cluster.code(ALICE, cluster.send_command("A")) == 0
            assert await cluster.code(BOB, cluster.send_command("A")) == DENIED
            assert await cluster.code(ALICE, cluster.pull_command("A", group="GA")) == 0
            assert await cluster.code(BOB, cluster.pull_command("A", group="GB")) == 0
            assert await cluster.code(BOB, cluster.pull_command("A", group="GA")) == DENIED
            assert await cluster.code(ALICE, cluster.send_command("WriteOnly")) == 0
            assert await cluster.code(ALICE, cluster.pull_command("WriteOnly", group="GA")) == DENIED
            assert await cluster.code(ALICE, cluster.pull_command("%RETRY%GB", group="GA")) == DENIED
            offsets = {"consumerGroup": "GA", "topic": "A", "queueId": "0", "commitOffset": "1"}
            assert await cluster.code(ALICE, RemotingCommand(15, ext_fields=dict(offsets))) == 0
            assert await cluster.code(BOB, RemotingCommand(15, ext_fields=dict(offsets))) == DENIED
            view = {"offset": "0", "topic": "WriteOnly"}
            assert await cluster.code(BOB, RemotingCommand(33, ext_fields=dict(view))) == 0

    run(body())


def test_s39_a_message_of_others_is_not_fetched_by_its_position(tmp_path: Path) -> None:
    """Requests 33 and 36 contain a physical offset. The permission for the topic of the message at this offset decides,
    not the permission for the topic in the request.
    """

    async def body() -> None:
        async with Guarded(tmp_path, auto_create_subscription_group=True) as cluster:
            await cluster.made("A", "B")
            assert await cluster.code(BOB, cluster.send_command("B", b"not for alice")) == 0
            for code, fields in (
                (33, {"offset": "0", "topic": "A"}),
                (36, {"offset": "0", "group": "GA", "delayLevel": "0", "originTopic": "A"}),
                (36, {"offset": "0x0", "group": "GA", "delayLevel": "0", "originTopic": "A"}),
            ):
                assert await cluster.code(ALICE, RemotingCommand(code, ext_fields=fields)) == DENIED
            assert "%RETRY%GA" not in cluster.broker.topics.table

    run(body())


def test_s39_a_header_that_can_be_read_in_two_ways(tmp_path: Path) -> None:
    """If a header has a field name twice, or in escaped form, the kernel must read the value that was authorized."""

    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A", "B")
            for twice in ('"b":"B","b":"A"', '"b":"A","b":"B"', '"\\u0062":"A","b":"B"', '"b":"B","\\u0062":"A"'):
                command = signed(cluster.send_command("A"), ALICE)
                frame = command.encode().replace(b'"b":"A"', twice.encode())
                size = (len(frame) - 4).to_bytes(4, "big")
                header = (int.from_bytes(frame[4:8], "big") + len(twice) - 7).to_bytes(4, "big")
                raw = await cluster.connect()
                raw._writer.write(size + header + frame[8:])
                with contextlib.suppress(asyncio.IncompleteReadError):  # closing the connection is also correct
                    await asyncio.wait_for(raw.receive(), 5)
                raw.close()
            cluster.broker.store.dispatch()
            assert cluster.broker.store.max_queue_offset(b"B", 0) == 0

    run(body())


def test_s39_what_the_kernel_read_must_be_what_was_judged(tmp_path: Path) -> None:
    """A second check refuses a request if topic, group or code in the kernel's row differ from the decoded header."""

    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            refused: list[bytes] = []
            channel = SimpleNamespace(attributes={}, remote_address="127.0.0.1:1", secure=False, send=refused.append)
            send, pull = cluster.send_command("A"), cluster.pull_command("A", group="GA")
            for command, column in ((send, "TOPIC_POS"), (send, "CODE"), (pull, "TOPIC_POS"), (pull, "GROUP_POS")):
                for shift in (0, 1):
                    frame = signed(command, ALICE).encode()
                    reader = FrameReader()
                    reader.buffer()[: len(frame)] = frame
                    batch = reader.received(len(frame))
                    assert batch is not None
                    assert batch.table[FrameColumn.KIND] != FrameKind.PLAIN
                    batch.table[FrameColumn[column]] += shift
                    cluster.access.guard.refuse(channel, batch, 0, batch.count, cluster.broker._serving.handler._late)
                    assert len(refused) == shift, column
                    assert batch.table[FrameColumn.FLAG] & 1 == shift
                refused.clear()

    run(body())


def test_s39_s44_the_end_of_a_transaction_is_its_topic_s_publisher_s(tmp_path: Path) -> None:
    """An account that may not publish to a topic cannot commit or roll back a half message for it."""

    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A", "B")
            half = cluster.send_command(
                "B", properties=properties_text(UNIQ_KEY="U", TRAN_MSG="true", PGROUP="pg", WAIT="true"), sys_flag=4
            )
            assert await cluster.code(BOB, half) == 0
            end = {"producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": "0"}
            end |= {"commitOrRollback": "12", "fromTransactionCheck": "false", "msgId": "U", "transactionId": "U"}
            assert await cluster.code(ALICE, RemotingCommand(37, ext_fields={**end, "topic": "A"})) == DENIED
            assert await cluster.code(BOB, RemotingCommand(37, ext_fields={**end, "producerGroup": "others"})) != 0
            assert await cluster.code(BOB, RemotingCommand(37, ext_fields=dict(end))) == 0

    run(body())


def test_s39_popped_messages_of_a_retry_topic(tmp_path: Path) -> None:
    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A", "B")
            judge = cluster.access.guard.judge
            channel = SimpleNamespace(attributes={}, remote_address="127.0.0.1:1", secure=False)
            for name, group, allowed in (
                ("A", "GA", True),
                ("%RETRY%GA_A", "GA", True),
                ("%RETRY%GA+A", "GA", True),
                ("%RETRY%GA", "GA", True),
                ("%RETRY%GA_B", "GA", False),
                ("%RETRY%GB_A", "GA", False),
                ("%RETRY%GB_A", "GB", False),
                ("%RETRY%_A", "", False),
                ("%RETRY%GA_", "GA", False),
            ):
                for code in (200051, 200053):
                    command = RemotingCommand(code, ext_fields={"topic": name, "consumerGroup": group})
                    assert (judge(channel, signed(command, ALICE)) == "") is allowed, (name, group)
            read = RemotingCommand(200050, ext_fields={"topic": "%RETRY%GA_A", "consumerGroup": "GA"})
            assert judge(channel, signed(read, ALICE)), "the name could be the retry topic of group GA_A"

    run(body())


def test_s40_a_code_without_a_rule_is_for_administrators(tmp_path: Path) -> None:
    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            served = cluster.broker._serving.processors.codes
            for code in sorted({*served, *map(int, RequestCode), 9999, -1} - set(REQUIREMENTS)):
                answer = await cluster.as_account(ALICE, RemotingCommand(code))
                assert answer.code == DENIED, code
                assert "needs an administrator" in answer.remark

    run(body())


def test_s42_tables_and_connections_are_for_administrators_and_secrets_for_nobody(tmp_path: Path) -> None:
    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            for code in (21, 26, 28, 43, 45, 52, 54, 201, 203, 204, 328):
                assert await cluster.code(ALICE, RemotingCommand(code)) == DENIED, code
            shown = await cluster.as_account(ADMIN, RemotingCommand(54))
            accounts = {entry["accessKey"]: entry for entry in orjson.loads(bytes(shown.body))["plainAccessConfigs"]}
            assert accounts[ALICE[0]]["topicPerms"] == ["A=PUB|SUB", "WriteOnly=PUB"]
            assert {entry["secretKey"] for entry in accounts.values()} == {"******"}

    run(body())


def test_s43_resets_and_deletions_are_the_administrator_s_and_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rucola.broker.acl.guard")

    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            reset = {"topic": "A", "group": "GA", "timestamp": "0", "isForce": "true"}
            assert await cluster.code(ALICE, RemotingCommand(222, ext_fields=reset)) == DENIED
            assert await cluster.code(ALICE, RemotingCommand(215, ext_fields={"topic": "A"})) == DENIED
            assert "A" in cluster.broker.topics.table
            assert await cluster.code(ADMIN, RemotingCommand(215, ext_fields={"topic": "A"})) == 0

    run(body())
    notes = [record.rucola_fields for record in caplog.records if vars(record)["rucola_event"] == "administration"]
    assert {"code": 215, "account": ADMIN[0], "peer": "127.0.0.1"} in notes


def test_s45_a_file_counts_when_it_is_whole_and_good(tmp_path: Path) -> None:
    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            accounts = cluster.access.accounts
            await cluster.made("A", "B")
            write_accounts(cluster.home, ACCOUNTS.replace("A=PUB|SUB", "B=PUB|SUB"))
            await until(lambda: "B" in accounts.snapshot.accounts[ALICE[0]].topics, "the new file")
            assert await cluster.code(ALICE, cluster.send_command("A")) == DENIED
            assert await cluster.code(ALICE, cluster.send_command("B")) == 0
            for broken in ("accounts: [", "", ACCOUNTS.replace("admin: true", "admin: perhaps"), ACCOUNTS + "x: 1\n"):
                failures = accounts.failures
                write_accounts(cluster.home, broken)
                if broken:
                    await until(lambda: accounts.failures > failures, "the refusal")  # noqa: B023
                    assert accounts.error
                    assert await cluster.code(ALICE, cluster.send_command("B")) == 0
            write_accounts(cluster.home)
            await until(lambda: "A" in accounts.snapshot.accounts[ALICE[0]].topics, "the good file")
            assert not accounts.error

    run_virtual(body())


def test_s45_a_half_written_file_is_left_alone(tmp_path: Path) -> None:
    from rucola.broker.acl.plain_manager import PlainPermissionManager

    write_accounts(tmp_path)
    manager = PlainPermissionManager(Files(), str(tmp_path), False, lambda: 0)
    manager.load()
    before = manager.snapshot
    write_accounts(tmp_path, ACCOUNTS[: ACCOUNTS.index("  - accessKey: " + BOB[0])])
    manager.reload()
    assert manager.snapshot is before, "the change is seen only once"
    write_accounts(tmp_path, ACCOUNTS + "\n")
    manager.reload()
    assert manager.snapshot is before
    manager.reload()
    assert set(manager.snapshot.accounts) == {ADMIN[0], ALICE[0], BOB[0]}
    assert manager.snapshot is not before
    (tmp_path / "conf" / "plain_acl.yml").unlink()
    manager.reload()
    manager.reload()
    assert len(manager.snapshot.accounts) == 3, "a missing file does not lock everybody out"
    assert manager.failures == 1
    write_accounts(tmp_path)
    more = ACCOUNTS[: ACCOUNTS.index("  - accessKey: " + ALICE[0])].replace(ADMIN[0], "second-administrator")
    write_accounts(tmp_path, more, "acl/more.yaml")
    manager.reload()
    manager.reload()
    assert len(manager.snapshot.accounts) == 4
    write_accounts(tmp_path, ACCOUNTS, "acl/again.yml")
    manager.reload()
    manager.reload()
    assert len(manager.snapshot.accounts) == 4, "an account in two files is an error"
    assert "one file" in manager.error


def test_accounts_are_changed_over_the_wire(tmp_path: Path) -> None:
    new = ("new-account", "a-secret-set-over-the-wire")

    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")

            async def ask(code: int, account: tuple[str, str] = ADMIN, **fields: str) -> RemotingCommand:
                return await cluster.as_account(account, RemotingCommand(code, ext_fields=fields))

            made = {"accessKey": new[0], "secretKey": new[1], "topicPerms": "A=PUB,B=SUB", "admin": "false"}
            assert (await ask(50, ALICE, **made)).code == DENIED
            assert (await ask(50, **made)).code == 0
            assert await cluster.code(new, cluster.send_command("A")) == 0
            assert (await ask(50, accessKey=new[0], topicPerms="A=SUB")).code == 0
            assert await cluster.code(new, cluster.send_command("A")) == DENIED
            assert (await ask(50, accessKey="short", secretKey="1")).code == 209
            assert (await ask(50, accessKey=new[0], topicPerms="A")).code == 209
            assert (await ask(53, globalWhiteAddrs="10.1.1.*,10.2.2.2")).code == 0
            assert (await ask(53, globalWhiteAddrs="10.1.1.1*")).code == 211
            assert [one.pattern for one in cluster.access.accounts.snapshot.global_addresses] == [
                "10.1.1.*",
                "10.2.2.2",
            ]
            assert orjson.loads((await ask(52)).ext_fields["version"])["counter"] == 3
            assert (await ask(51, accessKey=new[0])).code == 0
            assert (await ask(51, accessKey=new[0])).code == 210
            assert await cluster.code(new, cluster.send_command("A")) == DENIED
            await asyncio.sleep(0)
            text = cluster.accounts_file.read_text()
            assert new[0] not in text
            assert "10.1.1.*" in text
            cluster.accounts_file.write_text("accounts: [")
            assert (await ask(50, **made)).code == 209, "a broken file must not be overwritten: it has to be repaired"
            assert cluster.accounts_file.read_text() == "accounts: ["

    run(body())


# -- names, reserved properties, ranges ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a/../../x", "..", ".", "", "/abs", "C:\\x", "a\\b", "a\x00b", "a\u202eb", "x" * 128, "a\x01b", "a\x02b"]
)
def test_s20_s21_names_are_data_and_not_paths(tmp_path: Path, name: str) -> None:
    async def body() -> None:
        async with Cluster(tmp_path / "store") as cluster:
            before = {*tmp_path.rglob("*")}
            assert (await cluster.send(name)).code != 0
            fields = {"topic": name, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "defaultTopic": "TBW102"}
            assert (await cluster.ask(17, {**fields, "topicFilterType": "SINGLE_TAG"})).code != 0
            assert (await cluster.ask(200, body=orjson.dumps({"groupName": name}))).code != 0
            assert name not in cluster.broker.topics.table
            assert name not in cluster.broker.groups.table
            made = {path.relative_to(tmp_path).parts[1] for path in {*tmp_path.rglob("*")} - before}
            assert made <= {"config", "commitlog", "consumequeue", "index", "checkpoint", "rucola-watermark"}

    run(body())


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"])
def test_s22_nobody_writes_into_the_broker_s_own_topics(tmp_path: Path, topic: str) -> None:
    async def body() -> None:
        async with Cluster(tmp_path) as cluster:
            forged = properties_text(UNIQ_KEY="U", REAL_TOPIC="T", REAL_QID="0")
            assert (await cluster.send(topic, properties=forged)).code != 0
            assert (await cluster.send("t")).code == (await cluster.send("T")).code == 0
            assert {"t", "T"} <= set(cluster.broker.topics.table), "kept apart"

    run(body())


def test_s23_a_message_does_not_choose_another_topic_by_its_properties(tmp_path: Path) -> None:
    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A", "B")
            forged = properties_text(**{"UNIQ_KEY": "U", DELAY: "1", REAL_TOPIC: "B", REAL_QID: "0"})
            assert await cluster.code(ALICE, cluster.send_command("A", properties=forged)) == 0
            record = cluster.broker.store.message_at(0)
            assert record is not None
            assert cluster.access._topic_at(0) == "A"
            half = properties_text(UNIQ_KEY="U", TRAN_MSG="true", PGROUP="pg", REAL_TOPIC="B", REAL_QID="0")
            position = cluster.broker.store.max_offset
            assert await cluster.code(ALICE, cluster.send_command("A", properties=half, sys_flag=4)) == 0
            assert cluster.access._topic_at(position) == "A"

    run(body())


@pytest.mark.parametrize(("level", "queue"), [("1000", 17), ("-5", None), ("99999999999", None)])
def test_s24_delay_levels_out_of_range(tmp_path: Path, level: str, queue: int | None) -> None:
    async def body() -> None:
        async with Cluster(tmp_path) as cluster:
            answer = await cluster.send(properties=properties_text(**{"UNIQ_KEY": "U", DELAY: level}))
            cluster.broker.store.dispatch()
            schedule = [cluster.broker.store.max_queue_offset(b"SCHEDULE_TOPIC_XXXX", number) for number in range(18)]
            assert schedule == [int(number == queue) for number in range(18)]
            assert (answer.code == 0) is (len(level) < 11)

    run(body())


@pytest.mark.parametrize("case", ["link", "deep link", "group", "world", "owner"])
def test_s25_a_store_that_others_can_write_to_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    elsewhere, store = tmp_path / "elsewhere", tmp_path / "store"
    for directory in (elsewhere, store, store / "consumequeue"):
        directory.mkdir(mode=0o755)
    if case == "link":
        (store / "commitlog").symlink_to(elsewhere)
    elif case == "deep link":
        (store / "consumequeue" / "topic").symlink_to(elsewhere)
    elif case == "group":
        (store / "consumequeue").chmod(0o775)
    elif case == "world":
        store.chmod(0o777)
    else:
        monkeypatch.setattr("rucola.runtime.files.os.geteuid", lambda: store.stat().st_uid + 1)

    async def body(**options: bool) -> None:
        async with Cluster(store, **options):
            pass

    with pytest.raises(ConfigError) as caught:
        run(body())
    assert caught.value.key == "storePathRootDir"
    assert not list(elsewhere.iterdir())
    if case == "deep link":
        with pytest.raises(ForeignEntryError, match="consumequeue/topic is a symbolic link"):
            run(body(insecure=True))
    else:
        run(body(insecure=True))
    assert case == "link" or not list(elsewhere.iterdir())


@pytest.mark.parametrize("queue_id", [-1, 2**31 - 1])
@pytest.mark.parametrize("queue_offset", [-1, 2**63 - 1])
def test_s26_places_out_of_range(tmp_path: Path, queue_id: int, queue_offset: int) -> None:
    async def body() -> None:
        async with Cluster(tmp_path) as cluster:
            assert (await cluster.send()).code == 0
            assert (await cluster.pull(queue_id=queue_id)).code in (1, 29)
            answer = await cluster.pull(queue_offset=queue_offset)
            assert answer.code in (19, 20, 21)
            assert answer.ext_fields["nextBeginOffset"] in ("0", "1")
            command = cluster.pull_command()
            command.ext_fields["maxMsgNums"] = str(2**31 - 1)
            for number in range(40):
                await cluster.send(body=b"%d" % number, queue_id=0)
            answer = await cluster.client.invoke(cluster.broker.address, command)
            assert int(answer.ext_fields["nextBeginOffset"]) <= 32

    run(body())


def test_s28_names_are_not_made_by_whoever_asks(tmp_path: Path) -> None:
    plain, _ = broker_options({})
    assert plain.auto_create_topic_enable
    guarded, _ = broker_options({"aclEnable": "true"})
    assert not guarded.auto_create_topic_enable
    assert not guarded.auto_create_subscription_group
    asked_for, _ = broker_options({"aclEnable": "true", "autoCreateTopicEnable": "true"})
    assert asked_for.auto_create_topic_enable

    async def body() -> None:
        async with Guarded(
            tmp_path,
            auto_create_topic_enable=guarded.auto_create_topic_enable,
            auto_create_subscription_group=guarded.auto_create_subscription_group,
        ) as cluster:
            assert await cluster.code(ALICE, cluster.send_command("A")) != 0
            assert "A" not in cluster.broker.topics.table

    run(body())


def test_s28_an_account_makes_so_many_names_and_no_more(tmp_path: Path) -> None:
    """A flood of names that are created at their first use is stopped; other accounts and existing names still work."""
    accounts = ACCOUNTS.replace("defaultTopicPerm: DENY", "defaultTopicPerm: PUB|SUB").replace(
        "defaultGroupPerm: DENY", "defaultGroupPerm: SUB"
    )

    async def body() -> None:
        async with Guarded(tmp_path, accounts, auto_create_per_account_max=3) as cluster:
            codes = [await cluster.code(ALICE, cluster.send_command(f"flood{number}")) for number in range(6)]
            assert codes == [0, 0, 0, DENIED, DENIED, DENIED]
            pull = await cluster.as_account(ALICE, cluster.pull_command("flood0", group="new"))
            assert (pull.code, "has reached its limit" in (pull.remark or "")) == (DENIED, True)
            assert await cluster.code(ALICE, cluster.send_command("flood0")) == 0
            assert "flood3" not in cluster.broker.topics.table
            assert "new" not in cluster.broker.groups.table
            assert await cluster.code(BOB, cluster.send_command("B")) == 0
            assert await cluster.code(ADMIN, cluster.send_command("unbounded")) == 0
            assert await cluster.code(ALICE, cluster.send_command("flood4")) == DENIED

    run(body())


def test_files_with_secrets_are_the_owner_s(tmp_path: Path) -> None:
    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            assert await cluster.code(ADMIN, RemotingCommand(53, ext_fields={"globalWhiteAddrs": "10.1.1.1"})) == 0
            assert cluster.accounts_file.stat().st_mode & 0o077 == 0

    run(body())


def test_the_name_in_a_refused_request_changes_no_account(tmp_path: Path) -> None:
    """The share of an account must not be used up by others who only name it."""

    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            assert await cluster.code(BOB, cluster.send_command("A")) == 16
            assert await cluster.code(ALICE, cluster.send_command("A")) == 0
            (channel,) = cluster.broker._server.channels
            account_on = cluster.broker.services.senders.account_on
            assert account_on(channel) == ALICE[0]
            for forger in ((BOB[0], "a wrong secret, long enough"), BOB, ("nobody", "a secret that is long enough")):
                assert await cluster.code(forger, cluster.send_command("A")) == 16
                assert (account_on(channel), cluster.access.guard.account) == (ALICE[0], "")

    run(body())
