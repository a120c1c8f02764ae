"""Pops from a running broker: messages, receipts, acknowledgements, and messages that are delivered again."""

from __future__ import annotations

import asyncio
import base64
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, properties_text, run_virtual
from tests.unit.broker.stepped import STEP_MS, SteppedBroker
from tests.unit.broker.test_disk_trouble import Disk

from rucola.common.message import MessageExt
from rucola.formats.message import decode_messages
from rucola.formats.pop_journal import FILE_NAME
from rucola.protocol import fastjson
from rucola.protocol.command import RemotingCommand
from rucola.remoting.fairness import steps
from rucola.runtime.clock import SystemClock

POP, ACK, CHANGE, NOTIFICATION, POLLING_INFO, BATCH_ACK = 200050, 200051, 200053, 200054, 200055, 200151
SUCCESS, ILLEGAL, NO_MESSAGE, POLLING_FULL, POLLING_TIMEOUT = 0, 13, 208, 209, 210
QUICK = {"revive_interval_ms": 20, "pop_from_retry_probability": 0}
RETRY = "%RETRY%cg_T"
FIELDS = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}


def pop_fields(**changes: Any) -> dict[str, str]:
    fields = {
        "consumerGroup": "cg",
        "topic": "T",
        "queueId": 0,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": SystemClock().wall_ms(),
        "initMode": 0,
    } | changes
    return {name: str(value) for name, value in fields.items()}


async def pop(cluster: Cluster, **changes: Any) -> RemotingCommand:
    return await cluster.ask(POP, pop_fields(**changes), timeout_ms=90_000)


def messages(answer: RemotingCommand) -> list[MessageExt]:
    return decode_messages(answer.body)


def receipt(answer: RemotingCommand, queue_offset: int, kind: int = 0, queue_id: int = 0) -> str:
    fields = answer.ext_fields
    starts = dict(entry.rsplit(" ", 1) for entry in fields["startOffsetInfo"].split(";"))
    start = starts[f"{kind} {queue_id}"]
    return (
        f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} {kind} broker-a "
        f"{queue_id} {queue_offset}"
    )


async def ack(
    cluster: Cluster, answer: RemotingCommand, queue_offset: int, topic: str = "T", queue_id: int = 0
) -> RemotingCommand:
    fields = {"consumerGroup": "cg", "topic": topic, "queueId": str(queue_id), "offset": str(queue_offset)}
    kind = int(topic != "T")
    return await cluster.ask(ACK, fields | {"extraInfo": receipt(answer, queue_offset, kind, queue_id)})


async def send(cluster: Cluster, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        properties = properties_text(UNIQ_KEY=f"U{number}", TAGS=f"tag{number % 2}")
        assert (await cluster.send(body=b"%d" % number, properties=properties)).code == SUCCESS


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in messages(answer)]


async def all_that_comes(cluster: Cluster, count: int, **changes: Any) -> list[MessageExt]:
    """Pops and acknowledges ``count`` messages, however long they take to come, and checks whether more come after
    them.
    """
    found: list[MessageExt] = []
    while True:
        patience_ms = 60_000 if len(found) < count else 3_000
        answer = await pop(cluster, pollTime=patience_ms, **changes)
        if answer.code != SUCCESS:
            return found
        for message in messages(answer):
            topic = RETRY if "POP_CK" in message.properties else "T"
            assert (await ack(cluster, answer, message.queue_offset, topic, message.queue_id)).code == SUCCESS
            found.append(message)


def test_a_pop_gives_messages_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 5)
            first = await pop(cluster, maxMsgNums=3)
            assert (first.code, first.remark, bodies(first)) == (SUCCESS, "FOUND", [b"0", b"1", b"2"])
            fields = first.ext_fields
            assert fields["startOffsetInfo"] == "0 0 0"
            assert fields["msgOffsetInfo"] == "0 0 0,1,2"
            assert (fields["restNum"], fields["invisibleTime"]) == ("2", "60000")
            assert "orderCountInfo" not in fields
            second = await pop(cluster)
            assert bodies(second) == [b"3", b"4"]
            assert int(second.ext_fields["reviveQid"]) == (int(fields["reviveQid"]) + 1) % 8
            third = await pop(cluster)
            assert (third.code, third.remark) == (POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
            assert (await ack(cluster, first, 1)).code == SUCCESS
            assert (await ack(cluster, first, 1)).code == SUCCESS
            refused = await ack(cluster, first, 99)
            assert (refused.code, refused.remark) == (
                NO_MESSAGE,
                "offset is illegal, key:T@0, commit:99, store:0~5",
            )

    run_virtual(work())


def test_tags_choose_messages(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 6)
            answer = await pop(cluster, exp="tag1", expType="TAG")
            assert bodies(answer) == [b"1", b"3", b"5"]
            assert answer.ext_fields["msgOffsetInfo"] == "0 0 1,3,5"
            assert (await pop(cluster, exp="tag1")).code == POLLING_TIMEOUT
            assert (await pop(cluster, exp="a > > 2", expType="SQL92")).code == 23

    run_virtual(work())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_unacknowledged_messages_come_again_and_no_others(tmp_path: Path, sync_flush: bool) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, sync_flush, **QUICK) as cluster:
            await send(cluster, 4)
            first = await pop(cluster, invisibleTime=1000)
            assert (await ack(cluster, first, 0)).code == SUCCESS
            batch = {
                "b": base64.b64encode(b"\x08").decode(), "c": "cg", "it": 1000, "pt": int(first.ext_fields["popTime"]),
                "q": 0, "r": "0", "rq": int(first.ext_fields["reviveQid"]), "so": 0, "t": "T",
            }  # fmt: skip
            body = fastjson.dumps({"acks": [batch], "brokerName": "broker-a"})
            assert (await cluster.ask(BATCH_ACK, body=body)).code == SUCCESS
            found = await all_that_comes(cluster, 2)
            assert [message.body for message in found] == [b"1", b"2"]
            assert {message.reconsume_times for message in found} == {1}
            assert {message.properties["1ST_POP_TIME"] for message in found} == {first.ext_fields["popTime"]}
            assert {message.topic for message in found} == {"T"}
            assert found[0].properties["POP_CK"].endswith(" 1 broker-a 0 0")

    run_virtual(work())


def batch_of(answer: RemotingCommand, bits: bytes, count: int = 1) -> bytes:
    """A body that acknowledges the messages of one pop, ``count`` times."""
    fields = answer.ext_fields
    batch = {
        "b": base64.b64encode(bits).decode(), "c": "cg", "it": 1000, "pt": int(fields["popTime"]), "q": 0, "r": "0",
        "rq": int(fields["reviveQid"]), "so": 0, "t": "T",
    }  # fmt: skip
    return fastjson.dumps({"acks": [batch] * count, "brokerName": "broker-a"})


def test_a_batch_acknowledges_no_more_messages_than_a_pop_has(tmp_path: Path) -> None:
    """Each bit would be a message, so a request of 256 KiB could acknowledge a million."""

    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 1)
            answer = await pop(cluster)
            for bits, code in ((b"\xff" * 4 + b"\x01", 1), (b"\x00" * 4095 + b"\x80", SUCCESS), (b"\xff" * 4, SUCCESS)):
                acknowledged = await cluster.ask(BATCH_ACK, body=batch_of(answer, bits))
                assert acknowledged.code == code, acknowledged.remark
            assert "32 messages of one pop" in (await cluster.ask(BATCH_ACK, body=batch_of(answer, b"\xff" * 9))).remark

    run_virtual(work())


@pytest.mark.parametrize("count", [32, 200])
def test_a_long_batch_is_acknowledged_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(steps, "PIECE_S", -1.0)

    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 1)
            answer = await pop(cluster, invisibleTime=1000)
            long = asyncio.create_task(cluster.ask(BATCH_ACK, body=batch_of(answer, b"\x01", count)))
            await asyncio.sleep(0)
            await cluster.ask(POLLING_INFO, FIELDS)
            for _ in range(3):
                await asyncio.sleep(0)
            assert long.done() == (count == 32)
            assert (await long).code == SUCCESS
            assert await all_that_comes(cluster, 0) == []

    run_virtual(work())


def test_redeliveries_are_counted_from_the_start_of_their_pop(tmp_path: Path) -> None:
    """A checkpoint stores the distance of each message from the first message of the same pop; here, this first message
    is not the first of the queue.
    """

    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 5)
            first = await pop(cluster, maxMsgNums=2)
            for queue_offset in (0, 1):
                assert (await ack(cluster, first, queue_offset)).code == SUCCESS
            second = await pop(cluster, invisibleTime=1000)
            assert second.ext_fields["msgOffsetInfo"] == "0 0 2,3,4"
            assert (await ack(cluster, second, 3)).code == SUCCESS
            again: list[bytes] = []
            while len(again) < 2:
                again += bodies(await pop(cluster, pollTime=5_000))
            assert again == [b"2", b"4"]

    run_virtual(work())


def test_a_changed_invisible_time_counts(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 2)
            first = await pop(cluster, invisibleTime=60_000)
            fields = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
            change = {"offset": "1", "extraInfo": receipt(first, 1), "invisibleTime": "1000"}
            answer = await cluster.ask(CHANGE, fields | change)
            assert (answer.code, answer.ext_fields["invisibleTime"]) == (SUCCESS, "1000")
            assert int(answer.ext_fields["popTime"]) > int(first.ext_fields["popTime"])
            assert answer.ext_fields["reviveQid"] == first.ext_fields["reviveQid"]
            assert [message.body for message in await all_that_comes(cluster, 1)] == [b"1"]
            assert (await cluster.ask(CHANGE, fields | change | {"offset": "2"})).code == NO_MESSAGE

    run_virtual(work())


@pytest.mark.parametrize("repeated", [True, False], ids=["the same receipt", "the new receipt"])
def test_a_change_repeated_with_the_same_receipt_does_not_take_the_first_one_back(repeated: bool) -> None:
    """Each change makes a checkpoint of its own, and takes away that of its receipt. So if a client repeats a change
    because it has lost the response, the message comes at the time of the first one, too, although it is acknowledged
    with the second receipt. An official broker (5.3.3) was seen to do the same: it came after 8 s.
    """
    broker = SteppedBroker()
    assert broker.send().code == SUCCESS
    broker.passes(STEP_MS)
    place = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
    popped = broker.request(POP, pop_fields(bornTime=broker.clock.wall_ms())).answer
    assert popped is not None

    def changed(text: str, invisible_ms: int) -> str:
        fields = {**place, "offset": "0", "extraInfo": text, "invisibleTime": str(invisible_ms)}
        answer = broker.request(CHANGE, fields).answer
        assert answer is not None and answer.code == SUCCESS
        return f"0 {answer.ext_fields['popTime']} {invisible_ms} {answer.ext_fields['reviveQid']} 0 b 0 0"

    first = receipt(popped, 0).replace("broker-a", "b")
    second = changed(first, 8000)
    broker.passes(500)
    third = changed(first if repeated else second, 40_000)
    assert broker.request(ACK, {**place, "offset": "0", "extraInfo": third}).code == SUCCESS

    def again() -> int:
        for _ in range(3):
            broker.turn(100)
        return len(broker.messages(b"%RETRY%cg_T"))

    broker.passes(7000)
    assert again() == 0
    broker.passes(2000)
    assert again() == repeated
    broker.passes(90_000)
    assert again() == repeated


def test_a_pop_waits_for_a_message(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 1)
            await pop(cluster)
            any_queue = asyncio.create_task(pop(cluster, pollTime=20_000, queueId=-1))
            other_tag = asyncio.create_task(pop(cluster, pollTime=20_000, exp="tag7"))
            where = {"consumerGroup": "cg", "topic": "T"}
            for queue_id in ("-1", "0"):
                while (await cluster.ask(POLLING_INFO, where | {"queueId": queue_id})).ext_fields["pollingNum"] != "1":
                    await asyncio.sleep(0.001)
            assert (await cluster.ask(NOTIFICATION, pop_fields())).ext_fields["hasMsg"] == "false"
            await send(cluster, 1, first=1)
            assert bodies(await any_queue) == [b"1"]
            assert not other_tag.done()
            assert (await cluster.ask(NOTIFICATION, pop_fields(consumerGroup="new"))).ext_fields["hasMsg"] == "true"
            other_tag.cancel()

    run_virtual(work())


def test_only_so_many_pops_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, max_pop_polling_size=1, **QUICK) as cluster:
            await send(cluster, 1)
            await pop(cluster)
            waiting = asyncio.create_task(pop(cluster, pollTime=20_000))
            where = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
            while (await cluster.ask(POLLING_INFO, where)).ext_fields["pollingNum"] != "1":
                await asyncio.sleep(0.001)
            assert (await pop(cluster, pollTime=20_000)).code == POLLING_FULL
            waiting.cancel()

    run_virtual(work())


def test_under_sync_flush_an_acknowledgement_is_answered_when_it_is_on_the_disk(tmp_path: Path) -> None:
    async def work() -> None:
        disk = Disk()
        async with Cluster(tmp_path, sync_flush=True, files=disk.files(), **QUICK) as cluster:
            await send(cluster, 2)
            answer = await pop(cluster)
            changes = {"offset": "1", "extraInfo": receipt(answer, 1), "invisibleTime": "9000"}
            with disk.waiting():
                waiting = [
                    asyncio.create_task(ack(cluster, answer, 0)),
                    asyncio.create_task(cluster.ask(CHANGE, FIELDS | changes)),
                ]
                for _ in range(3):
                    assert (await cluster.ask(POLLING_INFO, FIELDS)).code == SUCCESS
                assert not any(task.done() for task in waiting)
            assert [(await task).code for task in waiting] == [SUCCESS, SUCCESS]

    run_virtual(work())


def crashed_copy(store: Path, target: Path) -> Path:
    """Copies the files as a killed process would leave them, with the abort file of a running broker."""
    shutil.copytree(store, target)
    return target


@pytest.mark.parametrize("sync_flush", [False, True])
def test_nothing_acknowledged_comes_again_after_a_crash(tmp_path: Path, sync_flush: bool) -> None:
    async def work() -> None:
        async with Cluster(tmp_path / "store", sync_flush, flush_consumer_offset_interval_ms=600_000, **QUICK) as first:
            await send(first, 6)
            answer = await pop(first, maxMsgNums=4, invisibleTime=1500)
            for queue_offset in (0, 2):
                assert (await ack(first, answer, queue_offset)).code == SUCCESS
            copy = crashed_copy(tmp_path / "store", tmp_path / "copy")
        async with Cluster(copy, **QUICK) as second:
            found = await all_that_comes(second, 4)
            assert sorted(message.body for message in found) == [b"1", b"3", b"4", b"5"]

    run_virtual(work())


def test_redeliveries_before_a_crash_do_not_come_twice(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path / "store", flush_consumer_offset_interval_ms=600_000, **QUICK) as first:
            await send(first, 2)
            await pop(first, invisibleTime=500)
            assert len(await all_that_comes(first, 2)) == 2
            copy = crashed_copy(tmp_path / "store", tmp_path / "copy")
        async with Cluster(copy, **QUICK) as second:
            assert await all_that_comes(second, 0) == []
            assert second.broker.store.max_queue_offset(RETRY.encode(), 0) == 2

    run_virtual(work())


class _Ahead(SystemClock):
    """The machine's clock, which the test moves forward."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


def test_what_was_acknowledged_a_moment_ago_stays_so_when_the_clock_is_moved(tmp_path: Path) -> None:
    async def work() -> None:
        clock = _Ahead()
        async with Cluster(tmp_path, clock=clock, **QUICK) as cluster:
            await send(cluster, 2)
            answer = await pop(cluster, invisibleTime=30_000)
            assert (await ack(cluster, answer, 0)).code == SUCCESS
            clock.ahead_ms += 60_000
            await cluster.broker.catch_up()
            assert bodies(await pop(cluster, bornTime=0, pollTime=20_000)) == [b"1"]

    run_virtual(work())


def test_a_stop_leaves_acknowledgements_in_the_log_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 1)
            assert (await ack(cluster, await pop(cluster), 0)).code == SUCCESS
            assert (tmp_path / FILE_NAME).exists()
        assert not (tmp_path / FILE_NAME).exists()

    run_virtual(work())


def test_a_stop_and_a_start_change_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as first:
            await send(first, 3)
            answer = await pop(first, maxMsgNums=2, invisibleTime=1000)
            assert (await ack(first, answer, 0)).code == SUCCESS
        async with Cluster(tmp_path, **QUICK) as second:
            assert sorted(message.body for message in await all_that_comes(second, 2)) == [b"1", b"2"]
        async with Cluster(tmp_path, **QUICK) as third:
            assert await all_that_comes(third, 0) == []

    run_virtual(work())
