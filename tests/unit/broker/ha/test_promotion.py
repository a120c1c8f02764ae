"""A slave becomes the master."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.brokers import run_virtual
from tests.masters import log_bytes
from tests.pairs import Pair, until
from tests.unit.broker.test_pop import pop_fields

from rucola.broker import Broker
from rucola.broker.ha.slave import TABLES_S
from rucola.formats.message import decode_messages
from rucola.protocol.codes import RequestCode

READS: dict[str, Any] = {"slave_read_enable": True}


def test_a_promoted_slave_goes_on_where_the_master_was(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, READS) as pair:
            await pair.make_group()
            for number in range(9):
                await pair.send("T", b"%d" % number, queue_id=number % 3)
            await pair.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "2"},
            )
            await pair.start_slave()
            await pair.in_step()
            newest_ms = pair.broker.store.now_ms()
            promoted = await pair.promote()
            assert promoted.store.now_ms() >= newest_ms - 1000
            for queue_id in range(3):
                sent = await pair.client.invoke(
                    promoted.address, pair.send_command("T", b"new", queue_id=queue_id), 5000
                )
                assert (sent.code, sent.ext_fields["queueOffset"]) == (0, "3")
            offset = await pair.ask_slave(
                RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
            )
            assert offset.ext_fields["offset"] == "2"
            answer = await pair.pull_from_slave("T", 0, 0)
            found = list(decode_messages(answer.body))
            assert [bytes(one.body) for one in found] == [b"0", b"3", b"6", b"new"]
            times = [one.store_timestamp_ms for one in found]
            assert times == sorted(times)

    run_virtual(scene())


def test_store_time_does_not_go_back_at_a_promotion(tmp_path: Path) -> None:
    """The clock of the old master was ahead."""

    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            ahead = pair.broker.store.now_ms() + 3_600_000
            pair.broker.store.not_before(ahead)
            await pair.begin()
            promoted = await pair.promote()
            assert promoted.store.now_ms() >= ahead

    run_virtual(scene())


def test_waiting_messages_are_delivered_once_by_the_promoted_slave(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, message_delay_level="2s 300s") as pair:
            await pair.send("T", b"short", "DELAY\x011\x02UNIQ_KEY\x01A\x02WAIT\x01true\x02")
            due_ms = pair.broker.store.now_ms() + 3000
            await pair.send("T", b"timed", f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01B\x02")
            await pair.send("T", b"long", "DELAY\x012\x02UNIQ_KEY\x01C\x02")
            later_ms = due_ms + 300_000
            await pair.send("T", b"timed later", f"TIMER_DELIVER_MS\x01{later_ms}\x02UNIQ_KEY\x01D\x02")
            await pair.start_slave()
            await asyncio.sleep(60)  # the first two are delivered; progress is written
            await pair.in_step()
            await pair.stop_slave()
            await pair.stop_broker()
            assert (pair.slave_root / "config" / "timercheck").stat().st_size == 4096
            await pair.start_slave(broker_role="ASYNC_MASTER", broker_id=0)
            await pair.make_group(at_slave=True)
            await asyncio.sleep(400)
            assert sorted(await pair.bodies_at_slave()) == [b"long", b"short", b"timed", b"timed later"]

    run_virtual(scene())


def test_undecided_transactions_and_pops_survive_a_promotion(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path, transaction_timeout_ms=1000, transaction_check_interval_ms=1000) as pair:
            half = "TRAN_MSG\x01true\x02UNIQ_KEY\x01H\x02PGROUP\x01pg\x02"
            sent = await pair.send("T", b"half", half, sys_flag=4)
            assert sent.code == 0, sent.remark
            await pair.send("Popped", b"p", "UNIQ_KEY\x01P\x02WAIT\x01true\x02")
            await pair.make_group()
            popped = await pair.ask(
                RequestCode.POP_MESSAGE, pop_fields(consumerGroup="cg", topic="Popped", queueId="0", initMode="0")
            )
            assert popped.code == 0, popped.remark
            await pair.start_slave()
            await pair.in_step()
            await asyncio.sleep(TABLES_S)
            await pair.stop_slave()
            await pair.start_slave()
            assert pair.slave.services.pops.started is None, "nothing is revived on a slave"
            promoted = await pair.promote()
            assert [one.topic for one in promoted.services.halves.pending.values()] == ["T"]
            ended = {
                "producerGroup": "pg", "tranStateTableOffset": "0", "commitOrRollback": "8",
                "commitLogOffset": str(promoted.store.queue_unit(b"RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)[0]),
                "transactionId": "H", "msgId": "H", "topic": "T",
            }  # fmt: skip
            answer = await pair.ask_slave(RequestCode.END_TRANSACTION, ended)
            assert answer.code == 0, answer.remark
            assert await pair.bodies_at_slave() == [b"half"]
            await asyncio.sleep(120)  # the invisible time ends
            again = await pair.ask_slave(
                RequestCode.POP_MESSAGE, pop_fields(consumerGroup="cg", topic="Popped", queueId="0", initMode="0")
            )
            assert again.code == 0, again.remark

    run_virtual(scene())


def test_a_former_master_comes_back_as_a_slave(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Pair(tmp_path) as pair:
            await pair.begin()
            promoted = await pair.promote()
            await pair.client.invoke(promoted.address, pair.send_command("T", b"new"), 5000)
            former = Broker(replace(pair.broker.config, broker_role="SLAVE", broker_id=1), pair._store_config)
            await former.start()
            await until(lambda: log_bytes(former.store) == log_bytes(promoted.store))
            await former.shutdown()

    run_virtual(scene())
