"""A slave that acts for its master, and a master that comes back."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.brokers import SUSPEND, run_virtual
from tests.masters import log_bytes
from tests.pairs import Pair, until
from tests.slaves import ScriptedSlave

from rucola.broker import Broker, BrokerConfig
from rucola.broker.ha import pre_online
from rucola.broker.ha.acting import Duty, MasterAddresses
from rucola.broker.ha.acting_slave import ActingSlave
from rucola.broker.ha.group_watch import GroupWatch
from rucola.broker.ha.master import HaServer
from rucola.broker.ha.pre_online import PreOnline
from rucola.broker.outer_api import BrokerOuterApi
from rucola.cli.broker_server import health_of
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, ConfigError, FormatError, RemotingConnectError
from rucola.formats.message import decode_messages
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.protocol.bodies.lock import LockBatchRequestBody, LockBatchResponseBody
from rucola.protocol.bodies.offsets import ConsumerOffsetSerializeWrapper
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.headers.route import ExchangeHAInfoRequestHeader
from rucola.remoting.name_server_api import NameServerApi
from rucola.runtime.supervision import Supervisor
from rucola.store.results import StoreState

ACTS: dict[str, Any] = {"enable_slave_acting_master": True}
MASTER: dict[str, Any] = {**ACTS, "total_replicas": 2}
NAMESRV: dict[str, Any] = {"support_acting_master": True, "notify_min_broker_id_changed": True}


class ActingPair(Pair):
    """A pair whose slave may act, and whose master asks it before it comes back."""

    def __init__(
        self, directory: Path, slave: dict[str, Any] | None = None, namesrv: dict[str, Any] | None = None, **master: Any
    ) -> None:
        namesrv = NAMESRV if namesrv is None else namesrv
        super().__init__(directory, ACTS | (slave or {}), namesrv_tls=namesrv, **(MASTER | master))

    @property
    def acting(self) -> ActingSlave:
        found = self.slave.running.acting
        assert found is not None
        return found

    async def left_alone(self) -> None:
        """Stops the master; returns when the slave acts."""
        await self.stop_broker()
        await until(lambda: self.acting.acts)

    async def back(self, same_ports: bool = False) -> Broker:
        """Starts the master again; returns when it is started, perhaps not online yet."""
        config = self.broker.config
        if same_ports:
            ports = [int(address.rpartition(":")[2]) for address in (self.broker.address, self.link.master)]
            config = replace(config, listen_port=ports[0], ha_listen_port=ports[1])
        self.broker = Broker(config, self._store_config, None, self._clock)
        await self.broker.start()
        self._stopped = False
        return self.broker

    async def addresses(self, topic: str = "T") -> tuple[dict[int, str], int]:
        """The brokers in the route of a topic, by number, and the permissions of its queues."""
        route = await NameServerApi(self.client).route_info(self.namesrv.address, topic)
        return dict(route.broker_datas[0].broker_addrs), route.queue_datas[0].perm

    async def commit(self, offset: int, at_slave: bool = True, group: str = "cg") -> None:
        fields = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": str(offset)}
        ask = self.ask_slave if at_slave else self.ask
        answer = await ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert answer.code == 0, answer.remark

    def offset(self, group: str = "cg") -> int | None:
        return self.broker.offsets.query(group, "T", 0)


# -- the slave acts ----------------------------------------------------------------------------------------------------


def test_a_slave_acts_while_there_is_no_master(tmp_path: Path) -> None:
    """It serves reads without ``slaveReadEnable``, and stores nothing."""

    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(b"0", b"1")
            refused = await pair.pull_from_slave("T", 0, 0)
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert "acts" not in pair.slave.role_text
            await pair.left_alone()
            assert pair.link._master is None, "tables are not followed"
            assert await pair.bodies_at_slave() == [b"0", b"1"]
            assert await pair.addresses() == ({0: pair.slave.address}, 4), "shown as the master, read-only"
            assert pair.slave.role_text.endswith("acts for it")
            health = health_of(pair.slave)
            assert not health.trouble() and health.remark().startswith("acts for its master, not in sync")
            send = await pair.client.invoke(pair.slave.address, pair.send_command("T", b"x"), 5000)
            assert send.code == ResponseCode.SERVICE_NOT_AVAILABLE
            back = await pair.ask_slave(RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "cg", "offset": "0"})
            assert back.code == ResponseCode.SYSTEM_ERROR
            await pair.commit(2)
            assert pair.slave.offsets.query("cg", "T", 0) == 2
            member = await pair.addresses(f"rmq_sys_SYNC_BROKER_MEMBER_{pair.broker.config.broker_name}")
            assert member[0] == {1: pair.slave.address}, "brokers learn the real numbers"

    run_virtual(scene())


def test_a_pull_at_an_acting_slave_waits_and_never_moves_beyond_its_queue(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(b"0")
            await pair.left_alone()
            loop = asyncio.get_running_loop()
            for offset in (1, 100):  # the next message, and one that only the master has
                began_s = loop.time()
                answer = await pair.pull_from_slave("T", 0, offset, sys_flag=SUSPEND | 4, suspend_ms=15_000)
                assert answer.code == ResponseCode.PULL_NOT_FOUND
                assert answer.ext_fields["nextBeginOffset"] == str(offset)
                assert answer.ext_fields["suggestWhichBrokerId"] == "0"
                assert loop.time() - began_s > 14

    run_virtual(scene())


def test_queue_locks_at_an_acting_slave(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(b"0")
            await pair.left_alone()
            member = {
                "groupName": "cg",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [],
            }
            beat = json.dumps({"clientID": "c1", "producerDataSet": [], "consumerDataSet": [member]}).encode()
            assert (await pair.ask_slave(RequestCode.HEART_BEAT, body=beat)).code == 0
            queue = MessageQueue("T", pair.broker.config.broker_name, 0)
            body = LockBatchRequestBody("cg", "c1", mq_set=[queue]).encode()
            answer = await pair.ask_slave(RequestCode.LOCK_BATCH_MQ, body=body)
            assert answer.code == 0, answer.remark
            assert LockBatchResponseBody.decode(answer.body).lock_ok_mq_set == [queue]

    run_virtual(scene())


@pytest.mark.parametrize("old_requests", [True, False])
def test_both_kinds_of_requests_to_name_servers(tmp_path: Path, old_requests: bool) -> None:
    """A broker that is silent for 10 s is forgotten; signs of life come every second."""

    async def scene() -> None:
        kind = {"compatible_with_old_name_srv": old_requests, "register_name_server_period_ms": 60_000}
        async with ActingPair(tmp_path, kind, namesrv={}, **kind) as pair:
            await pair.begin(b"0")
            await asyncio.sleep(50)
            assert await pair.addresses() == ({0: pair.broker.address, 1: pair.slave.address}, 6)
            assert pair.acting._acting.duty is Duty.FOLLOWS
            await pair.left_alone()
            assert await pair.addresses() == ({1: pair.slave.address}, 4), "not shown: supportActingMaster=false"

    run_virtual(scene())


def test_name_servers_that_are_gone_or_know_nobody_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.begin(b"0")
            await until(lambda: pair.acting._acting.duty is Duty.FOLLOWS)
            await pair.namesrv.shutdown()
            await asyncio.sleep(20)
            assert pair.acting._acting.duty is Duty.FOLLOWS and not pair.slave.not_in_sync
            assert caplog.text.count("brokers of the group not known") == 2, "said once by each"
            pair.namesrv = type(pair.namesrv)(pair.namesrv._config)
            await pair.namesrv.start()

    with caplog.at_level(logging.WARNING):
        run_virtual(scene())


@pytest.mark.parametrize("old_requests", [True, False])
def test_a_master_that_one_name_server_knows_lives(tmp_path: Path, old_requests: bool) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path, {"compatible_with_old_name_srv": old_requests}) as pair:
            other = NameServer(NamesrvConfig(listen_port=0))
            await other.start()
            await pair.send("T", b"0")
            await pair.start_slave(namesrv_addr=f"{other.address};{pair.namesrv.address};127.0.0.1:1")
            await pair.in_step()
            await asyncio.sleep(20)
            api = NameServerApi(pair.client)
            route = await api.route_info(other.address, "T")
            assert route.broker_datas[0].broker_addrs == {1: pair.slave.address}
            assert pair.acting._acting.duty is Duty.FOLLOWS
            await pair.left_alone()
            await pair.stop_slave()
            await other.shutdown()

    run_virtual(scene())


def test_a_second_slave_stands_by_and_takes_over(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.begin(b"0")
            first, options = pair.slave, pair._slave_options
            pair.slave_root = tmp_path / "second"
            second = await pair.start_slave(broker_id=2)
            assert options["broker_id"] == 1 and second.running.acting is not None
            await pair.in_step()
            await pair.stop_broker()
            await until(lambda: first.running.acting is not None and first.running.acting.acts)
            assert pair.acting._acting.duty is Duty.STANDS_BY
            await first.shutdown()
            await until(lambda: pair.acting.acts)
            assert await pair.addresses() == ({0: second.address}, 4)

    run_virtual(scene())


# -- the master returns ------------------------------------------------------------------------------------------------


def test_offsets_committed_at_an_acting_slave_reach_the_master(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.make_group("still")
            await pair.begin(*[b"%d" % number for number in range(10)])
            await pair.commit(3, at_slave=False)
            await pair.commit(7, at_slave=False, group="still")
            await pair.in_step()
            await pair.commit(8, at_slave=False, group="still")  # the slave knows 7
            await pair.left_alone()
            await pair.commit(9)
            pair.slave.offsets.commit("cg", "Unknown", 0, 1)
            pair.slave.offsets.commit("unknown", "T", 0, 1)
            await pair.back()
            await until(lambda: pair.broker.ready)
            assert pair.offset("unknown") is None and pair.broker.offsets.query("cg", "Unknown", 0) is None
            assert pair.offset() == 9 and pair.offset("still") == 8, "no smaller offset is taken"
            assert await pair.addresses() == ({0: pair.broker.address, 1: pair.slave.address}, 6)
            await until(lambda: pair.acting._acting.duty is Duty.FOLLOWS)
            assert (await pair.pull_from_slave("T", 0, 0)).code == ResponseCode.SYSTEM_BUSY, "its duties have ended"
            answer = await pair.send("T", b"new")
            assert answer.code == 0
            await pair.in_step()
            assert pair.same_log()
            assert pair.slave.offsets.query("cg", "T", 0) == 9
            assert pair.slave.offsets.query("still", "T", 0) == 8

    run_virtual(scene())


def test_a_slave_that_restarts_acts_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(b"0", b"1")
            await pair.left_alone()
            await pair.commit(2)
            await pair.stop_slave()
            await pair.start_slave()
            await until(lambda: pair.acting.acts)
            assert await pair.addresses() == ({0: pair.slave.address}, 4)
            assert await pair.bodies_at_slave() == [b"0", b"1"]
            await pair.back()
            await until(lambda: pair.broker.ready)
            assert pair.offset() == 2

    run_virtual(scene())


@pytest.mark.parametrize("same_ports", [True, False])
def test_a_master_that_returns_before_its_slave_acts(tmp_path: Path, same_ports: bool) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path, {"sync_broker_member_group_period_ms": 60_000}, namesrv={}) as pair:
            await pair.begin(b"0")
            await pair.stop_broker()
            await pair.back(same_ports)
            await until(lambda: pair.broker.ready)
            await pair.send("T", b"1")
            await pair.in_step()
            assert pair.same_log() and not pair.acting.acts

    run_virtual(scene())


def test_a_held_pull_is_sent_to_the_master_that_is_back(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(b"0")
            await pair.left_alone()
            pull = asyncio.ensure_future(pair.pull_from_slave("T", 0, 1, sys_flag=SUSPEND | 4, suspend_ms=50_000))
            await asyncio.sleep(30)
            assert not pull.done()
            loop = asyncio.get_running_loop()
            await pair.back()
            began_s = loop.time()
            answer = await pull
            assert loop.time() - began_s < 5
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.ext_fields["nextBeginOffset"] == "1"

    run_virtual(scene())


@pytest.mark.parametrize("same_ports", [True, False])
def test_the_slave_connects_at_once_to_the_master_that_is_back(tmp_path: Path, same_ports: bool) -> None:
    """It is told the addresses: name servers do not know a master that is not online."""

    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            if same_ports:  # and nothing that the slave is told is new
                known = {"ha_master_address": pair.broker.ha_address, "master_broker_address": pair.broker.address}
                pair._slave_options |= known
            await pair.begin(b"0")
            await pair.left_alone()
            await asyncio.sleep(103)  # the pauses have grown to 10 s
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await pair.back(same_ports)
            await until(lambda: pair.broker.ready)
            assert loop.time() - began_s < 2
            assert pair.link.master == pair.broker.ha_address

    run_virtual(scene())


def test_a_master_waits_for_its_slave_before_it_registers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(b"0")
            await pair.left_alone()
            slave = pair.slave.running
            assert slave.slave is not None
            told, slave.slave.told = slave.slave.told, lambda *_: None  # type: ignore[method-assign]
            slave.slave._ha_address = "127.0.0.1:1"
            await pair.back()
            await asyncio.sleep(3 * pre_online.CONNECT_S)
            assert not pair.broker.ready and "waits for slave 1" in pair.broker.trouble
            assert health_of(pair.broker).trouble() == pair.broker.trouble
            assert await pair.addresses() == ({0: pair.slave.address}, 4)
            assert pair.acting.acts
            await pair.make_topic("New")
            await asyncio.sleep(2)
            assert await pair.addresses() == ({0: pair.slave.address}, 4), "a new topic registers nobody"
            slave.slave.told = told  # type: ignore[method-assign]
            await until(lambda: pair.broker.ready)
            assert not pair.broker.trouble

    with caplog.at_level(logging.WARNING):
        run_virtual(scene())
    assert caplog.text.count("master not online yet") == 1


def test_a_master_stops_before_it_is_online(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.begin(b"0")
            await pair.left_alone()
            assert pair.slave.running.slave is not None
            pair.slave.running.slave.told = lambda *_: None  # type: ignore[method-assign]
            pair.slave.running.slave._ha_address = "127.0.0.1:1"
            await pair.back()
            await asyncio.sleep(2)
            await pair.stop_broker()
            assert pair.broker.store.state is StoreState.STOPPED
            assert await pair.addresses() == ({0: pair.slave.address}, 4)

    run_virtual(scene())


@pytest.mark.parametrize("options", [{"skip_pre_online": True}, {"total_replicas": 1}])
def test_a_master_that_asks_nobody(tmp_path: Path, options: dict[str, Any]) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path, **options) as pair:
            await pair.make_group()
            await pair.begin(b"0")
            await pair.left_alone()
            await pair.commit(1)
            await pair.back()
            assert pair.broker.ready and pair.broker.running.pre_online is None
            assert pair.offset() is None
            await until(lambda: pair.acting._acting.duty is Duty.FOLLOWS)

    run_virtual(scene())


def test_a_slave_that_does_not_know_the_request_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.begin(b"0")
            await pair.left_alone()

            async def exchange(*_: object) -> ExchangeHAInfoRequestHeader:
                raise BrokerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "of RocketMQ 4")

            monkeypatch.setattr("rucola.broker.outer_api.BrokerOuterApi.exchange", exchange)
            await pair.back()
            await until(lambda: pair.broker.ready)

    run_virtual(scene())


def test_deliveries_begin_when_the_master_is_online(tmp_path: Path) -> None:
    """A delayed message that becomes due while there is no master waits for it, and is not lost."""

    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(b"0")
            await pair.send("T", b"late", "DELAY\x015\x02UNIQ_KEY\x01D\x02")  # 1 minute
            await pair.in_step()
            await pair.left_alone()
            assert pair.slave.running.slave is not None
            told = pair.slave.running.slave.told
            pair.slave.running.slave.told = lambda *_: None  # type: ignore[method-assign]
            pair.slave.running.slave._ha_address = "127.0.0.1:1"
            await asyncio.sleep(100)
            assert await pair.bodies_at_slave() == [b"0"]
            await pair.back()
            await asyncio.sleep(5)
            await pair.broker.catch_up()
            assert pair.broker.store.max_queue_offset(b"T", 0) == 1, "not before it is online"
            pair.slave.running.slave.told = told  # type: ignore[method-assign]
            await until(lambda: pair.broker.store.max_queue_offset(b"T", 0) == 2)
            assert await pair.bodies() == [b"0", b"late"]

    run_virtual(scene())


# -- which progress is taken over --------------------------------------------------------------------------------------


def test_a_reset_that_the_slave_does_not_know_is_not_undone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(*[b"%d" % number for number in range(10)])
            await pair.commit(9, at_slave=False)
            await pair.in_step()
            pair.broker.offsets.reset("cg", "T", 0, 2)
            await pair.left_alone()
            assert pair.slave.offsets.query("cg", "T", 0) == 9
            await pair.back()
            await until(lambda: pair.broker.ready)
            assert pair.offset() == 2

    run_virtual(scene())


def test_the_table_of_a_slave_that_acted_is_newer_than_its_masters(tmp_path: Path) -> None:
    """RocketMQ's master takes only a table that is not older than its own, and steps every 500 commits."""

    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(b"0")

            async def version_at_slave() -> tuple[int, int, int]:
                answer = await pair.ask_slave(RequestCode.GET_ALL_CONSUMER_OFFSET)
                table = ConsumerOffsetSerializeWrapper.decode(answer.body)
                assert table.data_version is not None
                return table.data_version.age

            before = await version_at_slave()
            await pair.commit(0)
            assert await version_at_slave() == before
            await pair.left_alone()
            assert await version_at_slave() == before, "a slave at which nobody consumed has nothing new"
            await pair.commit(1)
            leapt = await version_at_slave()
            assert leapt[1] - before[1] > 100_000
            await pair.commit(1)
            assert await version_at_slave() == leapt, "once"
            await pair.back()
            await until(lambda: pair.broker.ready)
            assert pair.broker.offsets.data_version.age == leapt
            await until(lambda: pair.acting._acting.duty is Duty.FOLLOWS)
            await pair.left_alone()
            await pair.back()
            await until(lambda: pair.acting._acting.duty is Duty.FOLLOWS)
            await pair.in_step()
            await pair.commit(1)
            assert await version_at_slave() == leapt, "not when it has ceased to act"

    run_virtual(scene())


def test_offsets_beyond_the_queues_of_the_master_are_clamped(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin(b"0", b"1")
            await pair.left_alone()
            await pair.commit(100)
            await pair.back()
            await until(lambda: pair.broker.ready)
            assert pair.offset() == 2

    run_virtual(scene())


# -- request 906 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("duty", "copies"), [(Duty.UNKNOWN, False), (Duty.ACTS, False), (Duty.FOLLOWS, True)])
def test_tables_of_a_master_that_has_not_fetched_the_progress_are_not_copied(
    tmp_path: Path, duty: Duty, copies: bool
) -> None:
    """The slave copied them as soon as it was told of the master, which then fetched its own old offsets."""

    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.begin(b"0")
            await pair.left_alone()
            told: list[tuple[str, str]] = []
            running = pair.slave.running
            running.slave.told = lambda *addresses: told.append(addresses)  # type: ignore
            running.acting._acting.duty = duty  # type: ignore
            fields = {"masterHaAddress": "127.0.0.1:1", "masterAddress": "127.0.0.1:2", "masterFlushOffset": "0"}
            assert (await pair.ask_slave(RequestCode.EXCHANGE_BROKER_HA_INFO, fields)).code == 0
            assert told == [("127.0.0.1:1", "127.0.0.1:2" if copies else "")]

    run_virtual(scene())


def test_who_answers_request_906(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.begin(b"0")
            answer = await pair.ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
            assert answer.code == 0
            assert answer.ext_fields == {
                "masterHaAddress": pair.broker.ha_address,
                "masterFlushOffset": str(pair.broker.store.max_offset),
                "masterAddress": pair.broker.address,
            }
            of_slave = await pair.ask_slave(RequestCode.EXCHANGE_BROKER_HA_INFO)
            assert of_slave.code == 0 and not of_slave.ext_fields

    run_virtual(scene())


def test_a_slave_that_follows_its_master_is_not_led_away(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.begin(b"0")
            elsewhere = ExchangeHAInfoRequestHeader("127.0.0.1:1", 0, "127.0.0.1:2")
            for fields in (elsewhere.to_ext_fields(), {"masterHaAddress": "nonsense"}):
                assert (await pair.ask_slave(RequestCode.EXCHANGE_BROKER_HA_INFO, fields)).code == 0
                assert pair.link.master == pair.broker.ha_address
            await pair.send("T", b"1")
            await pair.in_step()
            assert pair.same_log()

    run_virtual(scene())


def test_a_slave_led_to_another_log_takes_nothing_from_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair, Pair(tmp_path / "other") as other:
            await pair.begin(b"0")
            for _ in range(5):
                await other.send("Other", b"other")
            before = log_bytes(pair.slave.store)
            await pair.left_alone()
            header = ExchangeHAInfoRequestHeader(other.broker.ha_address, 0, other.broker.address)
            await pair.ask_slave(RequestCode.EXCHANGE_BROKER_HA_INFO, header.to_ext_fields())
            await asyncio.sleep(30)
            assert log_bytes(pair.slave.store) == before
            assert pair.slave.topics.get("Other") is None
            await pair.back()
            await until(lambda: pair.broker.ready)
            await pair.send("T", b"1")
            await until(pair.same_log)

    run_virtual(scene())


# -- request 905 -------------------------------------------------------------------------------------------------------


def test_name_servers_tell_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        slow = {"sync_broker_member_group_period_ms": 60_000}
        async with ActingPair(tmp_path, slow, **slow) as pair:
            await pair.begin(b"0")
            await asyncio.sleep(61)
            assert pair.acting._acting.duty is Duty.FOLLOWS
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await pair.left_alone()
            await pair.back()
            await until(lambda: pair.acting._acting.duty is Duty.FOLLOWS)
            assert loop.time() - began_s < 5

    run_virtual(scene())


# -- SYNC_MASTER -------------------------------------------------------------------------------------------------------


def test_a_sync_master_refuses_if_too_few_live(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path, broker_role="SYNC_MASTER") as pair:
            refused = await pair.send("T", b"0")
            assert refused.code == ResponseCode.SYSTEM_ERROR and "in-sync replicas not enough" in refused.remark
            await pair.start_slave()
            await until(lambda: pair.broker.in_sync_replicas == 2)
            assert (await pair.send("T", b"0")).code == 0
            assert pair.broker.running.group is not None
            await pair.stop_slave()
            assert (await pair.send("T", b"1")).code == ResponseCode.SYSTEM_ERROR
            assert pair.broker.store.max_queue_offset(b"T", 0) == 1

    run_virtual(scene())


def test_a_slave_that_name_servers_do_not_know_does_not_count(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path, broker_role="SYNC_MASTER") as pair:
            await pair.start_slave()
            await until(lambda: pair.broker.in_sync_replicas == 2)
            await pair.slave.running.outer_api.unregister()
            await until(lambda: pair.broker.in_sync_replicas == 1)
            assert pair.broker.slaves == 1
            assert (await pair.send("T", b"0")).code == ResponseCode.SYSTEM_ERROR

    run_virtual(scene())


def test_a_sync_master_that_adapts_waits_for_those_that_live(tmp_path: Path) -> None:
    async def scene() -> None:
        adapts = {"broker_role": "SYNC_MASTER", "enable_auto_in_sync_replicas": True, "slave_timeout_ms": 60_000}
        async with ActingPair(tmp_path, **adapts) as pair:
            await asyncio.sleep(2)
            assert (await pair.send("T", b"0")).code == 0, "alone"
            await pair.start_slave()
            await until(lambda: pair.broker.in_sync_replicas == 2)
            replication = pair.broker.running.replication
            assert replication is not None and replication.waits
            assert (await pair.send("T", b"1")).code == 0
            assert pair.slave.store.max_offset == pair.broker.store.max_offset, "the answer waited for the slave"
            await pair.stop_slave()
            assert (await pair.send("T", b"2")).code == 0
            assert pair.broker.ready

    run_virtual(scene())


@pytest.mark.parametrize("least", [1, 2])
def test_what_waits_for_a_slave_that_leaves_is_not_confirmed(tmp_path: Path, least: int) -> None:
    async def scene() -> None:
        adapts = {"enable_auto_in_sync_replicas": True, "min_in_sync_replicas": least, "in_sync_replicas": 2}
        options = {"broker_role": "SYNC_MASTER", "slave_timeout_ms": 60_000}
        async with ActingPair(tmp_path, **adapts, **options) as pair:
            slave = await ScriptedSlave.connect(pair)
            slave.report(0)
            replication = pair.broker.running.replication
            assert replication is not None
            replication.alive = lambda: 2  # name servers do not know a scripted slave
            await until(lambda: replication.in_sync_count == 2 and replication.waits)
            sending = asyncio.ensure_future(pair.send("T", b"0"))
            await asyncio.sleep(2)
            assert not sending.done()
            slave.close()
            assert (await sending).code == ResponseCode.SLAVE_NOT_AVAILABLE
            answer = await pair.send("T", b"1")
            assert answer.code == (0 if least == 1 else ResponseCode.SYSTEM_ERROR)

    run_virtual(scene())


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_a_slave_that_was_asked_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    outcomes = {
        "a": [True],
        "b": [FormatError("offsets", 0, "a table", "nonsense")],
        "c": [False, RemotingConnectError("c", "gone"), BrokerError(1, "not now"), ValueError("a defect"), True],
    }

    async def ask(_self: PreOnline, address: str) -> bool:
        asked.append(address)
        outcome = outcomes[address].pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return bool(outcome)

    class Api:
        async def members(self) -> dict[int, str]:
            return {0: "m", 2: "b", 3: "c", 1: "a"}

    async def scene() -> None:
        monkeypatch.setattr(PreOnline, "_ask", ask)
        services: Any = SimpleNamespace(supervisor=Supervisor())
        api, server = cast("BrokerOuterApi", Api()), cast("HaServer", None)
        made = PreOnline(services, api, server, lambda: MasterAddresses("", ""))
        await made.run()
        assert asked == ["a", "b", "c", "c", "c", "c", "c"] and not made.waits_for
        assert sum(services.supervisor.failures.values()) == 1

    run_virtual(scene())


def test_a_broker_that_is_not_registered_yet_counts_itself() -> None:
    changes: list[int] = []

    class Api:
        answers = ({1: "a"}, {}, {0: "m", 1: "a"}, {0: "m"})

        async def members(self) -> dict[int, str]:
            self.answers, answer = self.answers[1:], self.answers[0]
            return answer

    async def scene() -> None:
        config = BrokerConfig(enable_slave_acting_master=True, total_replicas=3, namesrv_addr="127.0.0.1:1")
        topics: Any = None
        watch = GroupWatch(config, cast("BrokerOuterApi", Api()), topics, None, lambda: changes.append(watch.alive))
        assert watch.alive == 3, "until it is known"
        for _ in range(4):
            await watch.look()
        assert changes == [2, 1]

    run_virtual(scene())


def test_how_long_name_servers_remember_a_silent_broker(tmp_path: Path) -> None:
    async def scene() -> None:
        async with ActingPair(tmp_path) as pair, Pair(tmp_path / "other") as other:
            for one, seconds in ((pair, 10), (other, 120)):
                assert one.namesrv.routes._live[one.broker.address].timeout_s == seconds

    run_virtual(scene())


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_that_are_refused() -> None:
    with pytest.raises(ConfigError, match="lost or delivered twice"):
        BrokerConfig(enable_remote_escape=True)
    with pytest.raises(ConfigError, match="namesrvAddr"):
        addresses = {"ha_master_address": "127.0.0.1:1", "master_broker_address": "127.0.0.1:2"}
        BrokerConfig(enable_slave_acting_master=True, broker_role="SLAVE", broker_id=1, **addresses)


def test_messages_can_be_decoded_at_an_acting_slave(tmp_path: Path) -> None:
    """A consumer of the route's master gets the messages of all queues, as from the master."""

    async def scene() -> None:
        async with ActingPair(tmp_path) as pair:
            await pair.make_group()
            for queue_id in range(4):
                await pair.send("T", b"%d" % queue_id, queue_id=queue_id)
            await pair.start_slave()
            await pair.in_step()
            await pair.left_alone()
            address = (await pair.addresses())[0][0]
            for queue_id in range(4):
                answer = await pair.client.invoke(address, pair.pull_command("T", queue_id), 5000)
                assert [bytes(one.body) for one in decode_messages(answer.body)] == [b"%d" % queue_id]

    run_virtual(scene())
