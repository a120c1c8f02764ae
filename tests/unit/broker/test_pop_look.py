"""Requests about messages to pop: peeks, requests that wait for a message, request modes; and pops of messages that are
not in memory.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests import places
from tests.brokers import Cluster, run
from tests.unit.broker.test_cold_reads import Disk
from tests.unit.broker.test_pop import (
    FIELDS,
    NOTIFICATION,
    POLLING_FULL,
    POLLING_INFO,
    POLLING_TIMEOUT,
    QUICK,
    SUCCESS,
    ack,
    bodies,
    pop,
    pop_fields,
    send,
)

from rucola.broker.pop.look_processor import Peek, Peeker
from rucola.broker.pop.pop_offsets import PoppedQueue
from rucola.protocol import fastjson
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pop import PeekMessageRequestHeader
from rucola.store.results import GetMessageResult, GetMessageStatus

tmp_path = places.tmp_path  # memory cannot tell what of a file is in memory

PEEK, ROLLBACK, MODES, SET_MODE = 200052, 200056, 402, 401
NOT_FOUND, BUSY, NO_PERMISSION, NO_TOPIC, NO_GROUP, INVALID = 19, 2, 16, 17, 26, 29


async def peek(cluster: Cluster, queue_id: int = 0, count: int = 32, topic: str = "T") -> RemotingCommand:
    return await cluster.ask(PEEK, PeekMessageRequestHeader("cg", topic, queue_id, count).to_ext_fields())


def question(cluster: Cluster, **changes: Any) -> asyncio.Task[RemotingCommand]:
    return asyncio.create_task(cluster.ask(NOTIFICATION, pop_fields(**changes), timeout_ms=90_000))


async def held(cluster: Cluster, count: int) -> None:
    while cluster.broker.services.pops.waiting != count:
        await asyncio.sleep(0.001)


def test_a_peek_takes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 5)
            for _ in range(2):
                first = await peek(cluster, count=2)
                assert (first.code, first.remark, bodies(first)) == (SUCCESS, "FOUND", [b"0", b"1"])
                assert first.ext_fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "5"}
            assert bodies(await pop(cluster, maxMsgNums=3)) == [b"0", b"1", b"2"]
            assert bodies(await peek(cluster, -1)) == [b"3", b"4"]
            await pop(cluster)
            last = await peek(cluster)
            assert (last.code, last.remark, last.ext_fields["restNum"]) == (NOT_FOUND, "NO_MESSAGE_IN_QUEUE", "0")

    run(work())


def test_a_peek_sees_what_comes_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 1)
            await pop(cluster, invisibleTime=1000)
            while not bodies(answer := await peek(cluster)):
                await asyncio.sleep(0.02)
            assert (bodies(answer), answer.ext_fields["restNum"]) == ([b"0"], "1")

    run(work())


def test_a_peek_that_begins_anew_where_the_queue_does_has_the_room_that_is_left() -> None:
    """The messages at the group's offset in the second queue have expired, so the peek begins again at the first
    message that this queue still has.
    """
    asked: list[tuple[bytes, int, int, int]] = []

    class Store:
        def max_queue_offset(self, topic: bytes, queue_id: int) -> int:
            return 9

        def get_message(
            self, topic: bytes, queue_id: int, queue_offset: int, count: int, max_bytes: int, *, may_block: bool
        ) -> GetMessageResult:
            asked.append((topic, queue_id, queue_offset, count))
            if queue_offset < 5:
                return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, 5, 5, 9)
            return GetMessageResult(GetMessageStatus.FOUND, 8, 5, 9, [memoryview(b"x")] * 3, 3, 3)

    class Popped:
        def query(self, queue: PoppedQueue) -> int:
            return 6 if queue.queue_id == 0 else 2

    peeker = Peeker(cast(Any, Store()), cast(Any, Popped()))
    peek = Peek(PeekMessageRequestHeader("cg", "T", -1, 8), begin=0)
    for queue_id in (0, 1):
        peeker.look(peek, PoppedQueue("T", "cg", queue_id), 8)
    assert asked == [(b"T", 0, 6, 8), (b"T", 1, 2, 5), (b"T", 1, 5, 5)]
    assert (peek.count, len(peek.views), peek.rest) == (6, 6, 10)


def test_forbidden_looks_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, auto_create_subscription_group=False, **QUICK) as cluster:
            await send(cluster, 1)
            config = cluster.broker.config
            for code in (PEEK, NOTIFICATION):
                fields = pop_fields(consumerGroup="TOOLS_CONSUMER")
                assert (await cluster.ask(code, fields)).code in (SUCCESS, NOT_FOUND)
                for change, refusal in (
                    ({"topic": "None"}, NO_TOPIC),
                    ({"queueId": "4"}, INVALID),
                    ({"consumerGroup": "unknown"}, NO_GROUP),
                ):
                    assert (await cluster.ask(code, fields | change)).code == refusal
                object.__setattr__(config, "broker_permission", 2)
                assert (await cluster.ask(code, fields)).code == NO_PERMISSION
                object.__setattr__(config, "broker_permission", 6)
            assert (await cluster.ask(POLLING_INFO, FIELDS | {"topic": "None"})).code == NO_TOPIC

    run(work())


@pytest.mark.parametrize("queue_id", [0, -1])
def test_a_question_waits_for_a_message(tmp_path: Path, queue_id: int) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 1)
            await pop(cluster)
            asked = question(cluster, queueId=queue_id, pollTime=60_000, bornTime=0)
            await held(cluster, 1)
            assert (await cluster.ask(POLLING_INFO, FIELDS | {"queueId": str(queue_id)})).ext_fields[
                "pollingNum"
            ] == "0"
            await send(cluster, 1, first=1)
            answer = await asked
            assert (answer.code, answer.ext_fields) == (SUCCESS, {"hasMsg": "true", "pollingFull": "false"})
            assert bodies(await pop(cluster)) == [b"1"]
            for poll_ms in (0, 60):  # the second request waits until its time is over
                answer = await question(cluster, pollTime=poll_ms)
                assert answer.ext_fields == {"hasMsg": "false", "pollingFull": "false"}

    run(work())


def test_a_question_waits_beside_a_pop_that_takes_the_message(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 1)
            await pop(cluster)
            popping = asyncio.create_task(pop(cluster, pollTime=60_000))
            await held(cluster, 1)
            asked = question(cluster, pollTime=60_000)
            await held(cluster, 2)
            await send(cluster, 1, first=1)
            assert bodies(await popping) == [b"1"]
            await held(cluster, 1)
            await send(cluster, 1, first=2)
            assert (await asked).ext_fields["hasMsg"] == "true"

    run(work())


def test_a_question_about_a_blocked_queue_waits_for_the_acknowledgement(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            await send(cluster, 2)
            first = await pop(cluster, maxMsgNums=1, order="true", attemptId="a")
            asked = question(cluster, pollTime=60_000, order="true", attemptId="b")
            await held(cluster, 1)
            assert (await question(cluster, order="true", attemptId="a")).ext_fields["hasMsg"] == "true"
            assert (await ack(cluster, first, 0)).code == SUCCESS
            assert (await asked).ext_fields["hasMsg"] == "true"

    run(work())


def test_only_so_many_questions_wait_and_a_stop_answers_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, max_pop_polling_size=2, **QUICK) as cluster:
            await send(cluster, 1)
            await pop(cluster)
            asked = question(cluster, pollTime=60_000)
            popping = asyncio.create_task(pop(cluster, pollTime=60_000))
            await held(cluster, 2)
            full = await question(cluster, pollTime=60_000)
            assert full.ext_fields == {"hasMsg": "false", "pollingFull": "true"}
            assert (await pop(cluster, pollTime=60_000)).code == POLLING_FULL
            await cluster.stop_broker()
            assert (await asked).ext_fields == {"hasMsg": "false", "pollingFull": "false"}
            assert (await popping).code == POLLING_TIMEOUT

    run(work())


def test_the_state_of_pops_is_in_files_and_modes_are_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, **QUICK) as cluster:
            assert (await cluster.ask(ROLLBACK)).code == SUCCESS
            assert bytes((await cluster.ask(MODES)).body) == b'{"messageRequestModeMap":{}}'
            await send(cluster, 1)
            mode = {"topic": "T", "consumerGroup": "cg", "mode": "POP", "popShareQueueNum": 2}
            assert (await cluster.ask(SET_MODE, body=fastjson.dumps(mode))).code == SUCCESS
            assert fastjson.loads(bytes((await cluster.ask(MODES)).body)) == {
                "messageRequestModeMap": {"T": {"cg": mode}}
            }

    run(work())


@pytest.mark.parametrize("request_kind", ["pop", "filtered pop", "peek"])
def test_others_are_served_while_the_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_kind: str
) -> None:
    """The test decides when the fetch from the disk ends. Until then, the event loop must not wait but serve other
    requests.
    """

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await send(cluster, 2)
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path, **QUICK) as cluster:
            if request_kind == "peek":
                cold = asyncio.create_task(peek(cluster))
            else:
                filtered = {"exp": "a is null", "expType": "SQL92"} if request_kind != "pop" else {}
                cold = asyncio.create_task(pop(cluster, **filtered))
            while not disk.asked:
                await asyncio.sleep(0.001)
            assert (await cluster.send("T", b"new", queue_id=1)).code == SUCCESS
            assert bodies(await pop(cluster, queueId=1)) == [b"new"]
            assert not cold.done()
            disk.answer.set()
            assert bodies(await cold) == [b"0", b"1"]
            assert disk.asked == 1

    run(work())


def test_messages_in_memory_do_not_wait_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in memory are returned at once; the disk is read meanwhile, so that the queue with old messages gets its
    turn.
    """

    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await send(cluster, 1)
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path, **QUICK) as cluster:
            await cluster.send("T", b"new", queue_id=1)
            answer = await pop(cluster, queueId=-1)
            assert (bodies(answer), answer.ext_fields["restNum"]) == ([b"new"], "1")
            while not disk.asked:
                await asyncio.sleep(0.001)
            disk.answer.set()
            assert bodies(await pop(cluster, queueId=-1)) == [b"0"]

    run(work())


def test_more_than_may_wait_for_the_disk_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with Cluster(tmp_path) as cluster:
            await send(cluster, 1)
        disk = Disk(monkeypatch)
        async with Cluster(tmp_path, pull_thread_pool_queue_capacity=1, **QUICK) as cluster:
            cold = asyncio.create_task(pop(cluster))
            while not disk.asked:
                await asyncio.sleep(0.001)
            for refused in (await pop(cluster), await peek(cluster)):
                assert (refused.code, refused.remark) == (BUSY, "[OVERLOAD]system busy, start flow control for a while")
            disk.answer.set()
            assert bodies(await cold) == [b"0"]

    run(work())


def test_a_filter_that_passes_over_much_is_tried_on_at_once(tmp_path: Path) -> None:
    """A read that reached its limit found no matching message. The waiting pop must read on by itself, because no
    arriving message would resume it.
    """

    async def work() -> None:
        async with Cluster(tmp_path, enable_property_filter=True, **QUICK) as cluster:
            object.__setattr__(cluster.broker.store.config, "max_filter_message_size", 0)
            for number in range(4):
                await cluster.send("T", b"%d" % number)
            wanted = cluster.send_command("T", b"wanted", "a\x01x\x02")
            assert (await cluster.client.invoke(cluster.broker.address, wanted, 5000)).code == SUCCESS
            answer = await pop(cluster, maxMsgNums=2, exp="a = 'x'", expType="SQL92", pollTime=60_000)
            assert bodies(answer) == [b"wanted"]

    run(work())
