"""Producers and consumers of a broker that may be killed at any moment; they record its responses in a ``Ledger``."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any, Self

from tests.crash.kill_ledger import Decision, Ledger, Lie

from rucola.common.message import MessageExt
from rucola.errors import RemotingError
from rucola.formats.message import decode_messages
from rucola.protocol import fastjson
from rucola.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient
from rucola.runtime.clock import SystemClock

POPPED, DELAYED, DECIDED, GIVEN_UP = "P", "D", "X", "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP, PRODUCERS = "cg", "pg"
INVISIBLE_MS = 2000
IN_TIME_MS = 300
"""An acknowledgement is in time if its response comes this many milliseconds before the invisible time ends."""
LEVELS_MS = (1000, 2000)
_FIRST = "first"
_wall_ms = SystemClock().wall_ms


class Traffic:
    """All clients of one broker process; use it as ``async with``.

    Args:
        number: number of the broker process, from 1; it is part of the messages' keys.
        pace_s: longest pause between two requests of a producer in seconds.
    """

    def __init__(self, address: str, ledger: Ledger, number: int, random: Random, pace_s: float = 0.01) -> None:
        self._address = address
        self._ledger = ledger
        self._random = random
        self._number = number
        self._numbers = itertools.count(number * 100_000)
        self._pace_s = pace_s
        self._client = RemotingClient()
        self._client.register_processor(RequestCode.CHECK_TRANSACTION_STATE, self._asked)

    async def __aenter__(self) -> Self:
        await self._heartbeat()
        if self._number == 1:  # this creates the topics
            for topic in (POPPED, DELAYED, DECIDED):
                await self._send(topic, _FIRST, {})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def run(self) -> None:
        """Runs all clients concurrently until the broker is killed.

        Raises:
            Lie: the broker broke a promise.
        """
        await asyncio.gather(
            self._until_gone(self._produce()),
            self._until_gone(self._delay()),
            self._until_gone(self._decide()),
            self._until_gone(self._consume()),
        )

    async def settle(self, patience_s: float) -> None:
        """Stops sending, and waits: every message must reach its outcome, and none may come twice afterwards.

        Raises:
            Lie: the broker broke a promise.
        """
        ledger = self._ledger
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            await self._heartbeat()
            await self._pop(wait_ms=300, all_of_them=True)
            late = asyncio.get_running_loop().time() > deadline
            if late and (missing := ledger.missing()):
                raise Lie(f"messages to be popped are lost: {missing[:10]}")
            delayed: dict[str, list[int]] = {}
            for message in await self._read(DELAYED):
                delayed.setdefault(_key(message), []).append(message.store_timestamp_ms)
            committed = Counter(_key(message) for message in await self._read(DECIDED))
            given_up = Counter(_key(message) for message in await self._read(GIVEN_UP))
            done = ledger.check_delayed(delayed, late)
            if ledger.check_halves(committed, given_up, late) and done and not ledger.missing():
                break
        quiet = asyncio.get_running_loop().time() + INVISIBLE_MS / 1000 + 2
        while asyncio.get_running_loop().time() < quiet:
            await self._pop(wait_ms=300, all_of_them=True)

    # -- producers ----------------------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        while True:
            key = f"p{next(self._numbers)}"
            if await self._send(POPPED, key, {}):
                self._ledger.sent.add(key)
            await self._pause()

    async def _delay(self) -> None:
        while True:
            key, now_ms = f"d{next(self._numbers)}", _wall_ms()
            if self._random.random() < 0.5:
                level = self._random.randrange(len(LEVELS_MS))
                due_ms, properties = now_ms + LEVELS_MS[level], {"DELAY": str(level + 1)}
            else:
                due_ms = now_ms + self._random.randrange(100, 2500)
                properties = {"TIMER_DELIVER_MS": str(due_ms)}
            if await self._send(DELAYED, key, properties):
                self._ledger.due_ms[key] = due_ms
            await self._pause()

    async def _decide(self) -> None:
        while True:
            key = f"t{next(self._numbers)}"
            answer = await self._send(DECIDED, key, {"TRAN_MSG": "true", "PGROUP": PRODUCERS}, sys_flag=4)
            if answer is not None:
                self._ledger.halves.add(key)
                decision = Decision.of(key)
                place = answer.ext_fields["queueOffset"], str(int(answer.ext_fields["msgId"][16:], 16))
                if decision in (Decision.COMMIT, Decision.ROLLBACK):
                    await self._end_at_once(key, *place)
            await self._pause()

    async def _end_at_once(self, key: str, queue_offset: str, physical_offset: str) -> None:
        """Sends the decision about a transaction; half of the decisions are one-way, as clients send them."""
        names = self._decision(key, queue_offset, physical_offset, asked=False)
        if self._random.random() < 0.5:
            self._client.invoke_oneway(self._address, RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=names))
        elif (await self._ask(RequestCode.END_TRANSACTION, names)).code == 0:
            self._ledger.ended[key] = self._number

    def _asked(self, _: object, question: RemotingCommand) -> None:
        names = question.ext_fields
        key = names["transactionId"]
        if key != _FIRST:
            self._ledger.asked(key, self._number)
            decision = self._decision(key, names["tranStateTableOffset"], names["commitLogOffset"], asked=True)
            self._client.invoke_oneway(self._address, RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=decision))

    def _decision(self, key: str, queue_offset: str, physical_offset: str, asked: bool) -> dict[str, str]:
        return {
            "producerGroup": PRODUCERS,
            "tranStateTableOffset": queue_offset,
            "commitLogOffset": physical_offset,
            "commitOrRollback": str(Decision.of(key).outcome),
            "fromTransactionCheck": str(asked).lower(),
            "transactionId": key,
        }

    async def _send(
        self, topic: str, key: str, properties: dict[str, str], sys_flag: int = 0
    ) -> RemotingCommand | None:
        """Sends a message; returns the response if the broker accepted it."""
        text = "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": key, **properties}.items())
        header = SendMessageRequestHeaderV2(PRODUCERS, topic, "TBW102", 1, 0, sys_flag, _wall_ms(), 0, text)
        body = key.encode() * self._random.randrange(1, 40)
        answer = await self._ask(RequestCode.SEND_MESSAGE_V2, header.to_ext_fields(), body)
        return answer if answer.code == 0 else None

    async def _heartbeat(self) -> None:
        body = HeartbeatData("me@1", [ProducerData(PRODUCERS)], []).encode()
        await self._ask(RequestCode.HEART_BEAT, {}, body)

    # -- consumers ----------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        while True:
            await self._pop(wait_ms=200, all_of_them=False)

    async def _pop(self, wait_ms: int, all_of_them: bool) -> None:
        """Pops messages, and acknowledges or hides most of them; if ``all_of_them``, acknowledges all."""
        names: dict[str, object] = {"consumerGroup": GROUP, "topic": POPPED, "queueId": 0, "maxMsgNums": 16}
        names |= {"invisibleTime": INVISIBLE_MS, "pollTime": wait_ms, "bornTime": _wall_ms(), "initMode": 0}
        answer = await self._ask(RequestCode.POP_MESSAGE, names)
        if answer.code != 0:
            return
        said = answer.ext_fields
        start = dict(entry.rsplit(" ", 1) for entry in said["startOffsetInfo"].split(";")).get("0 0")
        head = f"{start} {said['popTime']} {said['invisibleTime']} {said['reviveQid']} 0 broker-a 0"
        together: list[MessageExt] = []
        for message in decode_messages(answer.body):
            key = _key(message)
            self._ledger.came(key, int(said["popTime"]), INVISIBLE_MS)
            choice = 0.5 if all_of_them else self._random.random()
            again = message.properties.get("POP_CK")
            if choice < 0.3 and again is None:
                together.append(message)
            elif choice < 0.75:
                await self._ack(message, again or f"{head} {message.queue_offset}")
            elif choice < 0.85:
                await self._hide(message, again or f"{head} {message.queue_offset}")
        if together:
            await self._batch_ack(together, head.split(" "))

    async def _ack(self, message: MessageExt, receipt: str) -> None:
        self._ledger.maybe_acknowledged.add(_key(message))
        await self._ask(RequestCode.ACK_MESSAGE, self._names(message, receipt))
        self._note_answered([message])

    async def _batch_ack(self, together: list[MessageExt], words: list[str]) -> None:
        start, pop_ms, invisible_ms, revive_queue = (int(word) for word in words[:4])
        bits = sum(1 << message.queue_offset - start for message in together)
        batch = {"c": GROUP, "t": POPPED, "r": "0", "so": start, "q": 0, "rq": revive_queue, "pt": pop_ms}
        batch |= {"it": invisible_ms, "b": base64.b64encode(bits.to_bytes(8, "little")).decode()}
        self._ledger.maybe_acknowledged.update(map(_key, together))
        await self._ask(RequestCode.BATCH_ACK_MESSAGE, {}, fastjson.dumps({"brokerName": "broker-a", "acks": [batch]}))
        self._note_answered(together)

    def _note_answered(self, messages: list[MessageExt]) -> None:
        now_ms = _wall_ms()
        for key in map(_key, messages):
            if now_ms < self._ledger.hidden_until_ms[key] - IN_TIME_MS:
                self._ledger.acknowledged.add(key)

    async def _hide(self, message: MessageExt, receipt: str) -> None:
        """Changes the invisible time of a message; half of the messages are acknowledged with the new receipt."""
        key, invisible_ms = _key(message), self._random.choice((800, 3500))
        hidden = self._ledger.hidden_until_ms
        hidden[key] = min(hidden[key], _wall_ms() + invisible_ms)  # without a response, the outcome is unknown
        answer = await self._ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self._names(message, receipt) | {"invisibleTime": invisible_ms}
        )
        if answer.code != 0:
            return
        said = answer.ext_fields
        hidden[key] = int(said["popTime"]) + int(said["invisibleTime"])
        if self._random.random() < 0.5:
            words = [str(message.queue_offset), said["popTime"], said["invisibleTime"], *receipt.split(" ")[3:]]
            await self._ack(message, " ".join(words))

    def _names(self, message: MessageExt, receipt: str) -> dict[str, object]:
        topic = f"%RETRY%{GROUP}_{POPPED}" if "POP_CK" in message.properties else POPPED
        names = {"consumerGroup": GROUP, "topic": topic, "queueId": 0}
        return names | {"extraInfo": receipt, "offset": message.queue_offset}

    async def _read(self, topic: str) -> list[MessageExt]:
        """Returns all messages of a topic's queue except the one that created the topic."""
        found: list[MessageExt] = []
        queue_offset = 0
        while True:
            header = PullMessageRequestHeader("reader", topic, 0, queue_offset, 32, 4, 0, 0, 0, "*", None)
            answer = await self._ask(RequestCode.PULL_MESSAGE, header.to_ext_fields())
            if answer.code != 0:
                return [message for message in found if _key(message) != _FIRST]
            found += decode_messages(answer.body)
            queue_offset = int(answer.ext_fields["nextBeginOffset"])

    # -- both ---------------------------------------------------------------------------------------------------------

    async def _ask(self, code: int, names: dict[str, Any], body: bytes = b"") -> RemotingCommand:
        texts = {name: str(value) for name, value in names.items()}
        command = RemotingCommand(code, ext_fields=texts, body=body)
        return await self._client.invoke(self._address, command, 20_000)

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.random() * self._pace_s)

    async def _until_gone(self, work: Coroutine[Any, Any, None]) -> None:
        with suppress(RemotingError):
            await work


def _key(message: MessageExt) -> str:
    return message.properties["UNIQ_KEY"]
