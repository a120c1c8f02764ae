"""Responses with a whole table: encoded in a thread, shared, and encoded again after each change."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run

from rucola.broker.processor.whole_table import WholeTable
from rucola.protocol import fastjson
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import FRAME_BYTES_MAX, RemotingCommand
from rucola.remoting.fairness import turn

TOPIC = {"perm": "6", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
TOPIC |= {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1"}


class Table:
    """A table that holds one number, and is encoded when the test allows it."""

    def __init__(self) -> None:
        self.number = 0
        self.copies = 0
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def copy(self) -> Callable[[], bytes]:
        self.copies += 1
        number = self.number

        def encode() -> bytes:
            assert threading.current_thread() is not threading.main_thread()
            self.begun.release()
            assert self.go_on.acquire(timeout=20)
            return b"%d" % number

        return encode


def asked(whole: WholeTable) -> asyncio.Future[RemotingCommand]:
    answer = whole.answer(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert answer is not None and not isinstance(answer, RemotingCommand)
    return asyncio.ensure_future(answer)  # type: ignore[arg-type]


async def begun(table: Table) -> None:
    assert await asyncio.to_thread(table.begun.acquire, timeout=20)


@pytest.mark.parametrize("versioned", [True, False])
def test_requests_during_an_encoding_share_the_next(versioned: bool) -> None:
    async def scene() -> None:
        table = Table()
        whole = WholeTable(table.copy, (lambda: table.number) if versioned else None)
        first = asked(whole)
        await begun(table)
        table.number = 1
        others = [asked(whole) for _ in range(3)]
        await asyncio.sleep(0)
        table.go_on.release()
        assert (await first).body == b"0"
        await begun(table)
        table.go_on.release()
        assert [answer.body for answer in await asyncio.gather(*others)] == [b"1"] * 3
        assert table.copies == 2

    run(scene())


def test_a_table_is_encoded_again_only_after_a_change() -> None:
    async def scene() -> None:
        table = Table()
        whole = WholeTable(table.copy, lambda: table.number)
        table.go_on.release()
        assert (await asked(whole)).body == b"0"
        again = whole.answer(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG, opaque=7))
        assert isinstance(again, RemotingCommand) and (again.body, again.opaque) == (b"0", 7)
        table.number = 5
        table.go_on.release()
        assert (await asked(whole)).body == b"5"
        assert table.copies == 2

    run(scene())


def test_a_table_without_version_is_encoded_for_each_request_that_comes_alone() -> None:
    async def scene() -> None:
        table = Table()
        whole = WholeTable(table.copy)
        for number in range(2):
            table.number = number
            table.go_on.release()
            assert (await asked(whole)).body == b"%d" % number
        assert whole._kept is None and whole._encoding is None, "nobody will use it again"

    run(scene())


def test_requests_end_with_the_error_of_their_own_encoding() -> None:
    async def scene() -> None:
        table = Table()
        failures = [ValueError("first"), None]

        def copy() -> Callable[[], bytes]:
            failure, encode = failures.pop(0), table.copy()

            def failing() -> bytes:
                text = encode()
                if failure is not None:
                    raise failure
                return text

            return failing

        whole = WholeTable(copy, lambda: 0)
        first = [asked(whole), asked(whole)]
        first[0].cancel()
        await begun(table)
        second = asked(whole)
        table.go_on.release()
        with pytest.raises(ValueError, match="first"):
            await first[1]
        table.go_on.release()
        assert (await second).body == b"0"

    run(scene())


@pytest.mark.parametrize(
    ("size", "turns"), [(1, [7]), (turn.ANSWER_BYTES // 2, [3, 3, 1]), (turn.ANSWER_BYTES + 1, [1] * 7)]
)
def test_few_long_responses_are_given_in_one_turn(size: int, turns: list[int]) -> None:
    async def scene() -> None:
        whole = WholeTable(lambda: lambda: bytes(size), lambda: 0)
        answers = [asked(whole) for _ in range(8)]
        answers[1].cancel()
        waiting = {answer for answer in answers if not answer.cancelled()}
        seen = []
        while waiting:
            await asyncio.sleep(0)
            done = {answer for answer in waiting if answer.done()}
            waiting -= done
            if done:
                seen.append(len(done))
        assert seen == turns

    run(scene())


def test_topics_groups_and_offsets_are_listed_as_they_are_now(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:

            async def listed(code: int, member: str) -> dict[str, Any]:
                answer = await cluster.ask(code)
                assert answer.code == 0
                table: dict[str, Any] = fastjson.loads(answer.body)[member]
                return table

            for number in range(2):
                topic = TOPIC | {"topic": f"T{number}"}
                assert (await cluster.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
                assert f"T{number}" in await listed(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")
                group = json.dumps({"groupName": f"G{number}"}).encode()
                answer = await cluster.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
                assert answer.code == 0
                groups = await listed(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable")
                assert f"G{number}" in groups
                fields = {"consumerGroup": "G0", "topic": "T0", "queueId": "0", "commitOffset": str(number)}
                assert (await cluster.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
                offsets = await listed(RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable")
                assert offsets == {"T0@G0": {"0": number}}

    run(scene())


def test_a_response_that_is_too_large_for_a_frame_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            monkeypatch.setattr(fastjson, "dumps", lambda _value: bytes(FRAME_BYTES_MAX))
            answer = await cluster.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
            assert answer.code == ResponseCode.SYSTEM_ERROR and "16777216" in answer.remark

    run(scene())
