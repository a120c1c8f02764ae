"""The console's pages about messages against both kinds of brokers: ``python -m tests.conformance.console_messages``.

A broker gets messages that wait in every way, and traces. What the console tells of them must be the same for our
broker and the official one. Then it changes them: sends, has one consumed, recalls, ends transactions. Exit status: 0
if all is as promised, 1 if something is not, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.brokers import properties_text
from tests.unit.console.visitor import Visitor, console_of
from tools.peers.packages import PeerError
from tools.peers.servers import servers

from rucola.client.admin import AdminClient
from rucola.client.config import ProducerConfig
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.producer import Producer
from rucola.client.push_consumer import PushConsumer
from rucola.common.message import Message, MessageExt
from rucola.common.sysflag import MessageSysFlag
from rucola.common.topic_config import TopicConfig
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pop import PopMessageRequestHeader
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.remoting.client import RemotingClient
from rucola.runtime.clock import SystemClock

SETTINGS = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": 3_600_000,
    "transactionOpBatchInterval": 300,
}
TOPIC, POPPED, GROUP = "T_console", "T_popped", "G_console"
WAIT_S = 30.0


class Scene:
    """A broker, and a console that shows it."""

    def __init__(self, broker: str, visitor: Visitor, client: RemotingClient) -> None:
        self.broker, self.client, self._visitor = broker, client, visitor

    async def api(self, path: str) -> Any:
        answer = await self._visitor.get(f"/api/cluster/{path}")
        assert answer.status == 200, answer.text
        page = await self._visitor.get(f"/cluster/{path}")
        assert page.status == 200, page.text
        self._visitor.cookies.clear()
        return answer.json

    async def change(self, kind: str, **query: object) -> str:
        shown = await self._visitor.send(f"/api/cluster/changes/{kind}", query)
        assert shown.status == 200, shown.text
        word = {"token": shown.json["token"], "confirm": shown.json["confirm"]}
        made = await self._visitor.send("/api/cluster/changes", word)
        assert made.status == 200, made.text
        (result,) = made.json["results"]
        assert result["outcome"] == "done", result
        return str(result["text"])

    async def send(self, topic: str, body: bytes, sys_flag: int = 0, **properties: str) -> RemotingCommand:
        header = SendMessageRequestHeaderV2(
            "P_console", topic, "TBW102", 4, 0, sys_flag, 1_700_000_000_000, 0, properties_text(**properties)
        )
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=header.to_ext_fields(), body=body)
        answer = await self.client.invoke(self.broker, command, 5_000)
        assert answer.code == 0, answer.remark
        return answer


async def until(look: Callable[[], Awaitable[bool]], what: str) -> None:
    """Waits until something is seen."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WAIT_S
    while not await look():
        assert loop.time() < until_s, f"not seen: {what}"
        await asyncio.sleep(0.3)


async def delayed(it: Scene) -> None:
    """By level."""
    for number in range(3):
        await it.send(TOPIC, b"late", UNIQ_KEY=f"D{number}", DELAY="18")

    async def is_seen() -> bool:
        found = await it.api("waiting?kind=delayed")
        counts = {one["what"]: (one["count"], one["targets"]) for one in found["sums"]}
        return counts == {"18 (2 h)": ("3", [TOPIC])} and [row["unique_key"] for row in found["rows"]] == [
            "D0", "D1", "D2",
        ]  # fmt: skip

    await until(is_seen, "three delayed messages")


async def timed(it: Scene) -> None:
    """By time; one is cancelled."""
    for number in range(2):
        await it.send(TOPIC, b"timed", UNIQ_KEY=f"W{number}", TIMER_DELAY_SEC=str(3_600 + number * 60))

    async def keys() -> list[str]:
        return [row["unique_key"] for row in (await it.api("waiting?kind=timed"))["rows"]]

    async def are_both_seen() -> bool:
        return await keys() == ["W0", "W1"]

    await until(are_both_seen, "two timed messages")
    found = await it.api("waiting?kind=timed")
    assert [(one["what"], one["count"]) for one in found["sums"]] == [(TOPIC, "2")], found["sums"]
    first = found["rows"][0]
    await it.change("recall", topic=TOPIC, broker=first["broker"], key="W0", due=first["handle_ms"])

    async def is_one_left() -> bool:
        return await keys() == ["W1"]

    await until(is_one_left, "the recall")


async def half(it: Scene) -> None:
    """For a decision; two are ended."""
    for key in ("H0", "H1", "H2"):
        flag = int(MessageSysFlag.TRANSACTION_PREPARED)
        await it.send(TOPIC, key.encode(), flag, UNIQ_KEY=key, TRAN_MSG="true", PGROUP="P_console")

    async def keys() -> list[str]:
        return [row["unique_key"] for row in (await it.api("waiting?kind=half"))["rows"]]

    async def are_all_seen() -> bool:
        return await keys() == ["H0", "H1", "H2"]

    await until(are_all_seen, "three half messages")
    rows = (await it.api("waiting?kind=half"))["rows"]
    for row, to in zip(rows, ("commit", "rollback"), strict=False):
        await it.change("transaction", broker=row["broker"], offset=row["offset"], to=to)

    async def is_one_left() -> bool:
        return await keys() == ["H2"]

    await until(is_one_left, "two ends")

    async def is_committed() -> bool:
        found = await it.api(f"messages?topic={TOPIC}&by=unique&key=H0")
        return [row["preview"] for row in found["rows"]] == ["H0"]

    await until(is_committed, "the committed message")


async def popped(it: Scene) -> None:
    """For an acknowledgement."""
    for number in range(3):
        await it.send(POPPED, b"popped", UNIQ_KEY=f"P{number}")
    header = PopMessageRequestHeader("G_pop", POPPED, 0, 3, 60_000, 1_000, 0, 0, exp="*", exp_type="TAG")

    async def is_popped() -> bool:
        header.born_time = SystemClock().wall_ms()
        command = RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=header.to_ext_fields())
        return (await it.client.invoke(it.broker, command, 10_000)).code == 0

    await until(is_popped, "a pop")

    async def is_seen() -> bool:
        found = await it.api("waiting?kind=popped")
        return [(row["topic"], row["group"], row["offset"]) for row in found["rows"]] == [
            (POPPED, "G_pop", str(offset)) for offset in range(3)
        ]

    await until(is_seen, "three popped messages")


def traced(namesrv: str) -> Callable[[Scene], Awaitable[None]]:
    """A message from a producer to a consumer, both with traces; it is consumed again."""

    async def work(it: Scene) -> None:
        seen: list[str] = []

        def listen(message: MessageExt) -> None:
            seen.append(message.msg_id)

        consumer = PushConsumer(GROUP, namesrv, PushConsumerConfig(enable_trace=True))
        await consumer.subscribe("T_traced", "*")
        consumer.register_message_listener(listen)
        await consumer.start()
        producer = Producer("P_console", namesrv, ProducerConfig(enable_trace=True))
        await producer.start()
        result = await producer.send(Message("T_traced", b"traced", "TagA"))
        await producer.shutdown()

        async def is_consumed() -> bool:
            return result.msg_id in seen

        await until(is_consumed, "the message at its consumer")

        async def is_told() -> bool:
            found = await it.api(f"trace?topic=T_traced&key={result.msg_id}")
            kinds = [step["what"] for step in found["steps"]]
            return bool(found["traced"]) and {"sent", "stored", "consumed"} <= set(kinds)

        await until(is_told, "its trace")
        queue = result.message_queue
        place = f"{queue.broker_name}:{queue.queue_id}:{result.queue_offset}"

        async def is_member() -> bool:
            found = await it.api("groups")
            return any(row["name"] == GROUP and row["members"] for row in found["rows"])

        await until(is_member, "the consumer in its group")
        seen.clear()
        told = await it.change("consume", topic="T_traced", place=place, group=GROUP)
        assert "CR_SUCCESS" in told and seen == [result.msg_id], told
        await consumer.shutdown()

    return work


async def sent(it: Scene) -> None:
    """A message that the console sends; filters of tails; an export."""
    place = (await it.change("send", topic=TOPIC, body="hello", tag="TagA", properties='{"color": "green"}')).split()
    found = await it.api(f"message?topic={TOPIC}&broker={place[1]}&queue={place[2]}&offset={place[3]}")
    assert found["row"]["preview"] == "hello" and found["properties"]["color"] == "green"
    for query in ("tag=TagA", "sql=color = 'green'"):
        tail = await it.api(f"tail?topic={TOPIC}&{query}")
        assert [row["preview"] for row in tail["rows"]] == ["hello"], tail


async def play(namesrv: str, broker: str) -> int:
    """Runs everything; returns the number of failures."""
    failures = 0
    with TemporaryDirectory(prefix="rucola-console-") as folder:
        async with AdminClient(namesrv) as admin:
            for topic in (TOPIC, POPPED, "T_traced"):
                await admin.api.change_topic(broker, TopicConfig(topic, 1, 1, 6))
        async with console_of(namesrv, Path(folder)) as console:
            client = RemotingClient()
            scene = Scene(broker, Visitor(console), client)
            for name, work in (
                ("delayed", delayed), ("timed", timed), ("half", half), ("popped", popped), ("sent", sent),
                ("traced", traced(namesrv)),
            ):  # fmt: skip
                try:
                    await console.watch("cluster").poller.look()
                    await work(scene)
                    print(f"  {name}: as promised")
                except AssertionError as error:
                    failures += 1
                    print(f"  {name}: {error}")
            await client.close()
    return failures


def main(arguments: list[str]) -> int:
    """Plays the scene against each kind of broker."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.console_messages", description=__doc__)
    parser.add_argument("--server", choices=["rucola", "java"], action="append")
    options = parser.parse_args(arguments)
    failures = 0
    try:
        for name in options.server or ["rucola", "java"]:
            with servers(name, settings=SETTINGS) as target:
                print(f"{name}: name server {target.namesrv}, broker {target.broker}")
                failures += asyncio.run(play(target.namesrv, target.broker))
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
