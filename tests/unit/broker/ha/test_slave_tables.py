"""The tables of a slave: in step with the master's, in memory and on the disk."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run_virtual
from tests.pairs import Pair, until
from tests.tables import Tables

from rucola.broker import Broker
from rucola.broker.ha.master_broker import MasterBroker
from rucola.broker.ha.slave import TABLES_S
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.pop.request_mode import RequestMode, RequestModeManager
from rucola.broker.registration import TOGETHER_MAX
from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError, FormatError, RemotingTimeoutError
from rucola.formats.tables import decode_consumer_offsets, decode_delay_offsets
from rucola.formats.timer import TimerCheckpoint
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.remoting.fairness.steps import at_once
from rucola.store.log.flush import FlushService

Offsets = Mapping[str, Mapping[int, int]]


async def commit(pair: Pair, offset: int, at_slave: bool = False, group: str = "cg", topic: str = "T") -> None:
    ask = pair.ask_slave if at_slave else pair.ask
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    assert (await ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


def content(broker: Broker, name: str) -> bytes:
    path = Path(broker.store.root) / "config" / name
    return path.read_bytes() if path.exists() else b"{}"


def table(broker: Broker, name: str) -> Any:
    return json.loads(content(broker, name))


# -- topics, groups, modes ---------------------------------------------------------------------------------------------


def test_topics_and_groups_become_the_masters_with_their_versions(tmp_path: Path) -> None:
    """In RocketMQ 5.3.3, a topic with an attribute empties the slave's table, and no version ever becomes equal."""

    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.make_topic("Batches", "+queue.type=BatchCQ")
            await pair.make_topic("Plain")
            await pair.make_group("cg", retryMaxTimes=3)
            await pair.start_slave()
            await pair.in_step()
            master, slave = pair.broker, pair.slave
            assert slave.topics.table == master.topics.table
            assert slave.topics.data_version == master.topics.data_version
            assert slave.topics.table["Batches"].attributes == {"queue.type": "BatchCQ"}
            assert slave.groups.table == master.groups.table
            assert slave.groups.data_version == master.groups.data_version
            await until(lambda: table(slave, "topics.json") == table(master, "topics.json"))
            await until(lambda: table(slave, "subscriptionGroup.json") == table(master, "subscriptionGroup.json"))

            await pair.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Plain"})
            await pair.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "cg"})
            await asyncio.sleep(2 * TABLES_S)
            assert slave.topics.get("Plain") is None and "cg" not in slave.groups.table
            assert table(slave, "topics.json") == table(master, "topics.json")

    run_virtual(scene())


def test_tables_that_stay_the_same_are_not_written(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.make_topic("T", "+message.type=NORMAL")
            await pair.send("T", b"x")
            await pair.make_group("cg")
            await commit(pair, 1)
            await pair.start_slave()
            await pair.in_step()
            await asyncio.sleep(2 * TABLES_S)
            config = pair.slave_root / "config"
            names = "topics.json", "subscriptionGroup.json", "delayOffset.json"
            before = {name: (config / name).stat().st_mtime_ns for name in names}
            changes: list[int] = []
            pair.slave.topics.on_change(lambda: changes.append(1))
            pair.link._tables._bodies.clear()  # even if the master had another encoding of the same table
            await asyncio.sleep(5 * TABLES_S)
            assert {name: (config / name).stat().st_mtime_ns for name in names} == before and not changes
            await pair.stop_slave()
            await pair.start_slave()
            await pair.in_step()
            await asyncio.sleep(2 * TABLES_S)
            assert {name: (config / name).stat().st_mtime_ns for name in names} == before

    run_virtual(scene())


def test_modes_follow(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.make_topic("T")
            await pair.make_group("cg")
            await pair.start_slave()
            await pair.in_step()
            assert pair.slave.services.pops.started is None
            mode = {"topic": "T", "consumerGroup": "cg", "mode": "POP", "popShareQueueNum": 2}
            assert (await pair.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())).code == 0
            await asyncio.sleep(2 * TABLES_S)
            modes = [await ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE) for ask in (pair.ask, pair.ask_slave)]
            assert json.loads(bytes(modes[1].body)) == json.loads(bytes(modes[0].body))
            name = "messageRequestMode.json"
            await until(lambda: table(pair.slave, name) == table(pair.broker, name))
            await pair.stop_slave()
            await pair.start_slave()
            await pair.in_step()
            again = await pair.ask_slave(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
            assert bytes(again.body) == bytes(modes[1].body)

    run_virtual(scene())


def test_modes_that_cannot_be_read_change_nothing() -> None:
    written: list[bytes] = []
    tables = Tables(written.append)
    modes = RequestModeManager(tables.keep)
    text = b'{"messageRequestModeMap":{"T":{"cg":{"mode":"POP","popShareQueueNum":2}}}}'
    modes.follow(text)
    modes.follow(text)
    tables.write()
    with pytest.raises(FormatError):
        modes.follow(b'{"messageRequestModeMap":{"U":[]}}')
    assert modes.table == {"T": {"cg": RequestMode("POP", 2)}} and len(written) == 1
    modes.follow(b'{"messageRequestModeMap":{}}')
    assert modes.table == {}


def test_forbidden_reads_follow(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.make_topic("T")
            await pair.make_group("cg")
            await pair.start_slave()
            await pair.in_step()
            await pair.broker.groups.set_readable("cg", "T", False)
            await asyncio.sleep(2 * TABLES_S)
            assert not pair.slave.groups.is_readable("cg", "T")
            await pair.broker.groups.set_readable("cg", "T", True)
            await asyncio.sleep(2 * TABLES_S)
            assert pair.slave.groups.is_readable("cg", "T")

    run_virtual(scene())


def test_a_deleted_topic_loses_its_queues_and_may_be_made_again(tmp_path: Path) -> None:
    """A slave of RocketMQ keeps them: messages of the new topic follow the old ones, at other queue offsets."""

    async def scene() -> None:
        async with Pair(tmp_path, {"slave_read_enable": True}) as pair:
            await pair.make_group("cg")
            for number in range(3):
                await pair.send("Old", b"old %d" % number)
            await pair.start_slave()
            await pair.in_step()
            pair.slave.offsets.commit("cg", "Old", 0, 3)
            await pair.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Old"})
            await pair.send("Other", b"x")
            await until(lambda: not pair.slave.store.queue_ids(b"Old"))
            assert pair.slave.offsets.query("cg", "Old", 0) is None
            await pair.send("Old", b"new")
            await pair.in_step()
            assert await pair.bodies_at_slave("Old") == [b"new"]
            await pair.stop_slave()
            await pair.start_slave()
            await pair.in_step()
            assert await pair.bodies_at_slave("Old") == [b"new"]
            assert pair.same_log()

    run_virtual(scene())


def test_a_topic_that_is_made_again_at_once_loses_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, {"slave_read_enable": True}) as pair:
            await pair.make_group("cg")
            await pair.send("Old", b"old")
            await pair.start_slave()
            await pair.in_step()
            await asyncio.sleep(TABLES_S)
            await pair.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Old"})
            await until(lambda: pair.slave.topics.get("Old") is None)
            await pair.send("Old", b"new")
            await asyncio.sleep(4 * TABLES_S)
            assert (await pair.bodies_at_slave("Old"))[-1:] == [b"new"]

    run_virtual(scene())


def test_a_deletion_waits_until_the_log_is_here(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("Old", b"old")
            await pair.start_slave()
            await pair.in_step()
            await asyncio.sleep(TABLES_S)
            tables = pair.link._tables
            synced = tables._synced

            async def never(physical_offset: int) -> bool:
                return False

            tables._synced = never
            await pair.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Old"})
            await asyncio.sleep(4 * TABLES_S)
            assert pair.slave.store.queue_ids(b"Old") == [0] and pair.slave.topics.get("Old") is None
            tables._synced = synced
            await until(lambda: not pair.slave.store.queue_ids(b"Old"))

    run_virtual(scene())


def test_queues_with_messages_of_the_next_topic_are_kept(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, {"slave_read_enable": True}) as pair:
            await pair.make_group("cg")
            await pair.send("T", b"old")
            end = pair.broker.store.max_offset
            await pair.send("T", b"new")
            await pair.start_slave()
            await pair.in_step()
            pair.link._tables._remove("T", end)
            assert await pair.bodies_at_slave() == [b"old", b"new"]
            pair.link._tables._remove("T", pair.broker.store.max_offset)
            assert not pair.slave.store.queue_ids(b"T")

    run_virtual(scene())


def test_a_table_that_a_restart_has_changed_is_the_masters_again(tmp_path: Path) -> None:
    """The slave's own options decide about TBW102 when it reads its file, and leave the version as it is."""

    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.make_topic("T")
            await pair.start_slave()
            await pair.in_step()
            await pair.stop_slave()
            await pair.start_slave(auto_create_topic_enable=False)
            assert pair.slave.topics.get("TBW102") is None
            await pair.in_step()
            assert pair.slave.topics.table == pair.broker.topics.table

    run_virtual(scene())


# -- progress ----------------------------------------------------------------------------------------------------------


def test_progress_waits_for_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress that is ahead of the log would lose messages when the slave becomes the master."""

    async def scene() -> None:
        async with Pair(tmp_path, message_delay_level="1s") as pair:
            await pair.send("T", b"x")
            await pair.make_group("cg")
            await pair.start_slave()
            await pair.in_step()
            with monkeypatch.context() as patched:
                patched.setattr(FlushService, "flush", lambda self: True)
                await pair.send("T", b"delayed", "DELAY\x011\x02UNIQ_KEY\x01K\x02")
                await asyncio.sleep(3)
                await commit(pair, 1)
                await asyncio.sleep(4 * TABLES_S)
                assert pair.slave.store.flushed_offset < pair.slave.store.max_offset
                assert pair.slave.offsets.query("cg", "T", 0) is None
                assert not pair.slave.services.schedule.progress(1)
            await until(lambda: pair.slave.offsets.query("cg", "T", 0) == 1)
            assert pair.slave.services.schedule.progress(1) == 1
            await until(lambda: decode_delay_offsets(content(pair.slave, "delayOffset.json"))[1] == {1: 1})

    run_virtual(scene())


def test_offsets_committed_at_the_slave_stay_if_they_are_larger(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, {"slave_read_enable": True}) as pair:
            for _ in range(5):
                await pair.send("T", b"x")
            await pair.make_group("cg")
            await commit(pair, 1)
            await pair.start_slave()
            await pair.in_step()
            await commit(pair, 4, at_slave=True)
            await commit(pair, 2)
            await asyncio.sleep(2 * TABLES_S)
            assert pair.slave.offsets.query("cg", "T", 0) == 4
            await commit(pair, 5)
            await asyncio.sleep(2 * TABLES_S)
            assert pair.slave.offsets.query("cg", "T", 0) == 5

    run_virtual(scene())


@pytest.mark.parametrize(
    ("before", "own", "now", "kept"),
    [
        (None, None, 5, 5),
        (3, None, 5, 5),
        (3, 4, 5, 5),
        (3, 9, 5, 9),
        (3, 9, 3, 9),
        (5, None, 2, 2),  # reset on the master
        (5, 9, 2, 2),
        (None, 9, 5, 9),  # the first copy after a start
        (None, 4, 5, 5),
        (5, None, None, None),  # the group was deleted on the master
        (5, 9, None, 9),
        (None, 9, None, 9),
    ],
)
def test_which_offset_counts(before: int | None, own: int | None, now: int | None, kept: int | None) -> None:
    offsets = ConsumerOffsetManager(Tables(lambda _content: None).keep, lambda: 1)

    def of(offset: int | None) -> Offsets:
        return {} if offset is None else {"T@g": {0: offset}}

    if before is not None:
        at_once(offsets.follow(DataVersion(0, 1, 1), of(before)))
    if own is not None:
        offsets.commit("g", "T", 0, own)
    at_once(offsets.follow(DataVersion(0, 1, 2), of(now)))
    assert offsets.query("g", "T", 0) == kept
    assert offsets.data_version == DataVersion(0, 1, 2)
    assert offsets.table == ({} if kept is None else {"T@g": {0: kept}})


def test_offsets_beyond_the_slaves_queues_are_moved_when_it_ends(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.begin()
            pair.slave.offsets.commit("cg", "T", 0, 7)
            await pair.stop_slave()
            assert decode_consumer_offsets(content(pair.slave, "consumerOffset.json"))[1]["T@cg"] == {0: 1}

    run_virtual(scene())


def test_timer_files_of_a_former_master_are_removed(tmp_path: Path) -> None:
    """Its progress is another master's, and they would not fit."""

    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            due_ms = pair.broker.store.now_ms() + 600_000
            await pair.send("T", b"timed", f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01B\x02")
            await pair.start_slave()
            await pair.in_step()
            await pair.stop_slave()
            (pair.slave_root / "timerlog").mkdir()
            (pair.slave_root / "timerlog" / ("0" * 20)).write_bytes(b"x")
            (pair.slave_root / "timerwheel").write_bytes(b"x")
            await pair.start_slave()
            await pair.in_step()
            names = {path.name for path in pair.slave_root.iterdir()}
            assert not names & {"timerlog", "timerwheel"}
            await asyncio.sleep(3 * TABLES_S)
            checkpoints = [await ask(RequestCode.GET_TIMER_CHECK_POINT) for ask in (pair.ask, pair.ask_slave)]
            decoded = [TimerCheckpoint.decode(bytes(one.body)) for one in checkpoints]
            assert decoded[0].queue_offset == decoded[1].queue_offset == 1

    run_virtual(scene())


# -- masters that do not answer ----------------------------------------------------------------------------------------


def test_a_table_that_cannot_be_copied_is_said_once_and_the_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask = MasterBroker.table
    fails = {RequestCode.GET_ALL_TOPIC_CONFIG: True}

    async def some(master: MasterBroker, code: RequestCode) -> bytes:
        if code in (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, RequestCode.GET_TIMER_CHECK_POINT):
            raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "4.9 does not know it")
        if fails.get(code):
            raise RemotingTimeoutError("127.0.0.1:1", 3000)
        if code == RequestCode.GET_ALL_DELAY_OFFSET:
            return b"[]"
        return await ask(master, code)

    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.send("T", b"x")
            await pair.make_group("cg")
            await commit(pair, 1)
            monkeypatch.setattr(MasterBroker, "table", some)
            await pair.start_slave()
            await until(lambda: pair.slave.offsets.query("cg", "T", 0) == 1)
            await asyncio.sleep(3 * TABLES_S)
            assert "cg" in pair.slave.groups.table and pair.slave.topics.get("T") is None
            fails.clear()
            await until(lambda: pair.slave.topics.get("T"))

    with caplog.at_level(logging.WARNING, "rucola.broker.ha.slave_tables"):
        run_virtual(scene())
    tables = [vars(record)["rucola_fields"]["table"] for record in caplog.records]
    assert sorted(tables) == ["GET_ALL_DELAY_OFFSET", "GET_ALL_TOPIC_CONFIG"]


def test_a_protected_master_wants_an_account(tmp_path: Path) -> None:
    account = {"accessKey": "inner", "secretKey": "a-long-secret-key"}

    async def scene() -> None:
        home = tmp_path / "home" / "conf"
        home.mkdir(parents=True)
        (home / "plain_acl.yml").write_text("accounts: []\n")
        master: dict[str, Any] = {
            "acl_enable": True,
            "rocketmq_home": str(tmp_path / "home"),
            "inner_client_authentication_credentials": json.dumps(account),
        }
        async with Pair(tmp_path, **master) as pair:
            pair.broker.topics.update(TopicConfig("T"))
            stranger = await pair.start_slave()
            await until(lambda: "No accessKey" in stranger.not_in_sync or "16" in stranger.not_in_sync)
            await pair.stop_slave()
            await pair.start_slave(inner_client_authentication_credentials=json.dumps(account))
            await until(lambda: pair.slave.topics.get("T"))
            await until(lambda: not pair.slave.not_in_sync)

    run_virtual(scene())


# -- registration ------------------------------------------------------------------------------------------------------


def test_many_topics_are_registered_with_the_masters_version(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.broker.topics.update_all([TopicConfig(f"T{number}") for number in range(2 * TOGETHER_MAX)])
            await pair.start_slave()
            await pair.in_step()
            version = pair.slave.topics.data_version
            registration = pair.slave.running.registration
            await registration.register()
            assert pair.slave.topics.data_version == version == pair.broker.topics.data_version
            assert await pair.slave.running.outer_api.is_known(version)
            pair.link._ha_address = ""
            await registration.register()
            assert pair.link.master == pair.broker.ha_address, "told although all topics are known"

    run_virtual(scene())


def test_a_table_that_comes_while_another_is_registered_in_parts_is_registered_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the name servers would take the last part of the old table for the new one, and never ask for it."""

    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.broker.topics.update_all([TopicConfig(f"T{number}") for number in range(2 * TOGETHER_MAX)])
            await pair.start_slave()
            await pair.in_step()
            running, topics = pair.slave.running, pair.slave.topics
            register_all, told = running.outer_api.register_all, []
            newer = topics.data_version.next(0)

            async def registered(part: Mapping[str, TopicConfig], version: DataVersion) -> None:
                if not told:
                    topics.follow(newer, topics.table | {"new": TopicConfig("new")})
                told.append("new" in part)
                await register_all(part, version)

            monkeypatch.setattr(running.outer_api, "register_all", registered)
            await running.registration._register(topics.table)
            assert len(told) > 1 and not any(told)
            assert not await running.outer_api.is_known(newer)
            await running.registration.register()
            assert any(told) and await running.outer_api.is_known(newer)

    run_virtual(scene())


def test_who_reads_a_table_in_several_turns_has_the_whole_of_one(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.make_topic("T")
            await pair.make_group("cg")
            await pair.start_slave()
            await pair.in_step()
            topics, groups = pair.slave.topics, pair.slave.groups
            held = topics.table, groups.table, groups.forbidden
            before = [dict(table) for table in held]
            await pair.make_topic("U")
            await pair.make_group("cg2")
            await until(lambda: "U" in topics.table and "cg2" in groups.table)
            assert [dict(table) for table in held] == before

    run_virtual(scene())


def test_a_topic_that_is_made_again_between_two_copies_of_the_tables_begins_anew(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, {"slave_read_enable": True}) as pair:
            await pair.make_group()
            await pair.begin(b"old", b"older", b"oldest")
            assert (await pair.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
            await pair.make_topic("T")
            await pair.send("T", b"new")
            await until(lambda: pair.same_log() and not pair.slave.store.dispatch_behind_bytes)
            assert await pair.bodies_at_slave() == [b"new"]
            await asyncio.sleep(3 * TABLES_S)
            assert await pair.bodies_at_slave() == [b"new"]
            promoted = await pair.promote()
            sent = await pair.client.invoke(promoted.address, pair.send_command("T", b"next"), 5000)
            assert (sent.code, sent.ext_fields["queueOffset"]) == (0, "1")

    run_virtual(scene())
