"""Load program with consumers that wait: each has a connection of its own and one long poll at the end of a queue.

Arguments: broker address, topic, number of consumers. When all polls wait, one JSON line appears on standard output.
The program ends when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys

from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.runtime.machine import raise_file_limit

POLL_MS = 15_000
"""How long the clients of RocketMQ let a pull wait."""
SUSPEND_AND_SUBSCRIPTION = 6
SETTLE_S = 2.0
_OPENING = 64


def poll_of(number: int, topic: str, queue_offset: int) -> bytes:
    """Returns the pull of consumer ``number``, which is the only member of its group."""
    fields = {
        "consumerGroup": f"bench_idle_{number}",
        "topic": topic,
        "queueId": 0,
        "queueOffset": queue_offset,
        "maxMsgNums": 32,
        "sysFlag": SUSPEND_AND_SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": POLL_MS,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
    texts = {name: str(value) for name, value in fields.items()}
    return RemotingCommand(RequestCode.PULL_MESSAGE, number, ext_fields=texts).encode()


async def consumer(number: int, host: str, port: int, topic: str, opening: asyncio.Semaphore, sent: list[int]) -> None:
    """Polls until the process ends.

    Raises:
        ConnectionError: the broker refused a poll, or closed the connection.
    """
    async with opening:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(poll_of(number, topic, 0))
    sent.append(number)
    while True:
        head = await reader.readexactly(4)
        answer = decode_frame(head + await reader.readexactly(int.from_bytes(head, "big")))
        if not answer.flag & 1:
            continue
        if "nextBeginOffset" not in answer.ext_fields:
            raise ConnectionError(f"poll refused: {answer.code} {answer.remark}")
        writer.write(poll_of(number, topic, int(answer.ext_fields["nextBeginOffset"])))


async def main(address: str, topic: str, consumers: int) -> None:
    """Runs until the input ends or a consumer fails."""
    raise_file_limit()
    host, _, port = address.rpartition(":")
    opening, sent = asyncio.Semaphore(_OPENING), list[int]()
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(consumer(number, host, int(port), topic, opening, sent)) for number in range(consumers)
        ]
        while len(sent) < consumers:
            await asyncio.sleep(0.05)
        await asyncio.sleep(SETTLE_S)
        print(json.dumps({"consumers": consumers}), flush=True)
        await ended
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
