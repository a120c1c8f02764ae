"""What a slave refuses, and how it serves pulls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.brokers import SUBSCRIPTION, SUSPEND, run_virtual
from tests.masters import log_bytes
from tests.pairs import Pair, until
from tests.unit.store.stores import message

from rucola.broker import Broker
from rucola.broker.ha.slave_refusals import SlaveRefusals
from rucola.broker.requests import REQUESTS
from rucola.cli.broker_server import health_of
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import FLAG_ONEWAY
from rucola.store.results import PutMessageStatus

READS: dict[str, Any] = {"slave_read_enable": True}


# -- what is refused ---------------------------------------------------------------------------------------------------


SERVED = """
GET_ALL_TOPIC_CONFIG GET_TOPIC_CONFIG GET_SYSTEM_TOPIC_LIST_FROM_BROKER GET_ALL_SUBSCRIPTIONGROUP_CONFIG
GET_SUBSCRIPTIONGROUP_CONFIG HEART_BEAT UNREGISTER_CLIENT CHECK_CLIENT_CONFIG QUERY_CONSUMER_OFFSET
UPDATE_CONSUMER_OFFSET GET_CONSUMER_LIST_BY_GROUP LOCK_BATCH_MQ UNLOCK_BATCH_MQ QUERY_MESSAGE VIEW_MESSAGE_BY_ID
SEARCH_OFFSET_BY_TIMESTAMP GET_MAX_OFFSET GET_MIN_OFFSET GET_EARLIEST_MSG_STORETIME GET_ALL_CONSUMER_OFFSET
GET_ALL_DELAY_OFFSET QUERY_CORRECTION_OFFSET INVOKE_BROKER_TO_GET_CONSUMER_STATUS GET_CONSUMER_CONNECTION_LIST
GET_PRODUCER_CONNECTION_LIST GET_ALL_PRODUCER_INFO QUERY_TOPIC_CONSUME_BY_WHO QUERY_TOPICS_BY_CONSUMER
QUERY_SUBSCRIPTION_BY_CONSUMER GET_CONSUMER_RUNNING_INFO CONSUME_MESSAGE_DIRECTLY GET_TOPIC_STATS_INFO
GET_CONSUME_STATS QUERY_CONSUME_TIME_SPAN VIEW_BROKER_STATS_DATA GET_BROKER_CONSUME_STATS QUERY_CONSUME_QUEUE
UPDATE_BROKER_CONFIG GET_BROKER_CONFIG GET_BROKER_RUNTIME_INFO GET_BROKER_HA_STATUS UPDATE_COLD_DATA_FLOW_CTR_CONFIG
REMOVE_COLD_DATA_FLOW_CTR_CONFIG GET_COLD_DATA_FLOW_CTR_INFO SET_COMMITLOG_READ_MODE CLEAN_EXPIRED_CONSUMEQUEUE
DELETE_EXPIRED_COMMITLOG EXCHANGE_BROKER_HA_INFO NOTIFY_MIN_BROKER_ID_CHANGE QUERY_ASSIGNMENT
GET_ALL_MESSAGE_REQUEST_MODE GET_TIMER_CHECK_POINT GET_TIMER_METRICS GET_BROKER_LITE_INFO GET_PARENT_TOPIC_INFO
GET_LITE_TOPIC_INFO GET_LITE_CLIENT_INFO GET_LITE_GROUP_INFO
""".split()  # noqa: SIM905 - names read best as a list of words


REFUSED = SlaveRefusals(reads=False, may_act=False).table


def test_each_request_is_decided_on() -> None:
    """A new request must be refused by a slave, or be entered here."""
    assert {RequestCode(code).name for code in REQUESTS.keys() - REFUSED.keys()} == set(SERVED)


def test_what_a_slave_refuses(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.make_group()
            await pair.begin()
            for code, refusal in REFUSED.items():
                answer = await pair.ask_slave(code, {"topic": "T", "consumerGroup": "cg"})
                assert (answer.code, answer.remark) == refusal, code
            for command in (pair.send_command(), pair.send_command(batch=True), pair.pull_command()):
                answer = await pair.client.invoke(pair.slave.address, command, 5000)
                assert (answer.code, answer.remark) == REFUSED[command.code]
            assert pair.same_log()

    run_virtual(scene())


def test_no_request_puts_a_record_into_a_slaves_log(tmp_path: Path) -> None:
    fields = {
        "topic": "T", "a": "T", "b": "T", "queueId": "0", "e": "0", "consumerGroup": "cg", "group": "cg",
        "producerGroup": "pg", "offset": "0", "commitLogOffset": "0", "commitOrRollback": "8", "fromTransactionCheck":
        "false", "tranStateTableOffset": "0", "msgId": "7F00000100002A9F0000000000000000", "delayLevel": "3",
        "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
        "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
        "maxMsgNums": "1", "invisibleTime": "1000", "pollTime": "0", "bornTime": "1", "initMode": "0", "extraInfo":
        "0 1 1000 0 0 broker-a 0 0", "topicSysFlag": "0", "timestamp": "0", "isForce": "true", "attempts": "1",
        "recallHandle": "x", "srcGroup": "cg", "destGroup": "cg2", "isC": "false", "groupName": "cg3",
    }  # fmt: skip

    async def scene() -> None:
        async with Pair(tmp_path, READS) as pair:
            await pair.make_group()
            await pair.send("T", b"delayed", "DELAY\x011\x02UNIQ_KEY\x01K\x02")
            await pair.begin()
            before, topics, groups = (
                log_bytes(pair.slave.store),
                dict(pair.slave.topics.table),
                dict(pair.slave.groups.table),
            )
            codes = pair.slave._serving.processors.codes
            assert codes > set(SlaveRefusals(True, False).table)
            for code in sorted(codes):
                for body in (b"", b"{}", json.dumps({"groupName": "new", "topic": "new", "mode": "POP"}).encode()):
                    await pair.ask_slave(code, fields, body)
            for command in (pair.send_command(), pair.send_command(batch=True), pair.send_command("New")):
                await pair.client.invoke(pair.slave.address, command, 5000)
            raw = await pair.connect()
            raw.send(pair.send_command(), 1, FLAG_ONEWAY)
            raw.close()
            member = {
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [],
            }
            heartbeat = {
                "clientID": "c",
                "producerDataSet": [{"groupName": "pg"}],
                "consumerDataSet": [member | {"groupName": name} for name in ("unknown", "cg")],
            }
            await pair.ask_slave(RequestCode.HEART_BEAT, body=json.dumps(heartbeat).encode())
            status = pair.slave.store.put_message(message(1)).status
            assert status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            await asyncio.sleep(600)  # delays and checks become due
            assert log_bytes(pair.slave.store)[: len(before)] == before and pair.same_log()
            assert pair.slave.topics.table == topics | pair.broker.topics.table
            assert pair.slave.groups.table.keys() == groups.keys() | pair.broker.groups.table.keys()

    run_virtual(scene())


# -- pulls -------------------------------------------------------------------------------------------------------------


def test_a_pull_that_finds_nothing_is_sent_to_the_master(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, READS) as pair:
            await pair.make_group()
            await pair.begin()
            loop = asyncio.get_running_loop()
            for queue_offset, queue_id in ((1, 0), (7, 0), (3, 2)):
                began_s = loop.time()
                answer = await pair.pull_from_slave(
                    "T", queue_id, queue_offset, sys_flag=SUBSCRIPTION | SUSPEND, suspend_ms=15_000
                )
                fields = answer.ext_fields
                assert (answer.code, fields["suggestWhichBrokerId"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
                assert fields["nextBeginOffset"] == str(queue_offset), "the slave may lag: the offset stays"
                assert loop.time() - began_s < 0.5

    run_virtual(scene())


def test_offset_check_in_slave_moves_the_offset(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, READS | {"offset_check_in_slave": True}) as pair:
            await pair.make_group()
            await pair.begin()
            answer = await pair.pull_from_slave("T", 0, 7)
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")

    run_virtual(scene())


def test_without_the_master_a_pull_waits_a_second_and_gets_what_is_there(tmp_path: Path) -> None:
    """RocketMQ's slave answers at once, and the consumer asks again at once, for as long as the master is away."""

    async def scene() -> None:
        async with Pair(tmp_path, READS) as pair:
            await pair.make_group()
            await pair.begin()
            await pair.stop_broker()
            await until(lambda: pair.slave.not_in_sync)
            assert await pair.bodies_at_slave() == [b"x"]
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            answer = await pair.pull_from_slave("T", 0, 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_ms=15_000)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert 0.9 < loop.time() - began_s < 2
            assert health_of(pair.slave).trouble() == "not in sync: not connected to the master"

    run_virtual(scene())


def test_suggestions_of_a_master_and_a_slave(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, READS, slave_read_enable=True) as pair:
            group = {"groupName": "cg", "brokerId": 4, "whichBrokerWhenConsumeSlowly": 5}
            await pair.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode())
            await pair.begin()

            async def suggested(broker: Broker) -> str:
                answer = await pair.client.invoke(broker.address, pair.pull_command(), 5000)
                assert answer.code == 0
                return answer.ext_fields["suggestWhichBrokerId"]

            assert [await suggested(broker) for broker in (pair.broker, pair.slave)] == ["4", "0"]
            for broker in (pair.broker, pair.slave):
                broker.store._reader._in_memory_bytes = -(1 << 40)
            assert [await suggested(broker) for broker in (pair.broker, pair.slave)] == ["5", "5"]

    run_virtual(scene())


def test_a_consumer_that_came_before_its_group_was_copied_is_known_afterwards(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, READS) as pair:
            await pair.start_slave()
            member = {
                "groupName": "cg",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [],
            }
            body = json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [member]}).encode()
            await pair.ask_slave(RequestCode.HEART_BEAT, body=body)
            assert pair.slave.services.consumers.group("cg") is None
            await pair.make_group()
            await until(lambda: "cg" in pair.slave.groups.table)
            await pair.ask_slave(RequestCode.HEART_BEAT, body=body)
            assert pair.slave.services.consumers.group("cg") is not None

    run_virtual(scene())
