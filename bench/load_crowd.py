"""Load program with many clients that are connected but nearly idle: each has a producer group and two consumer groups.

Arguments: broker address, number of clients; optionally the number of the first client, which is 0 by default, and how
many clients share their two consumer groups, which is 1 by default. Each client sends a heartbeat when it connects and
every 30 s. When the broker has acknowledged all first heartbeats, one JSON line appears on standard output. The program
ends when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys

from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.runtime.machine import raise_file_limit

GROUPS_EACH = 2
HEARTBEAT_S = 30.0
_OPENING = 64
"""Maximum number of connections that are being opened at the same time."""
_CLIENTS_PER_ADDRESS = 4000
"""Number of clients with the same IP address; brokers limit connections per address, and ports per address are limited.
"""


def heartbeat_of(number: int, members: int = 1) -> bytes:
    """Returns the heartbeat of client ``number``; ``members`` clients have the same consumer groups."""
    team = number // members
    groups = [f"group{team * GROUPS_EACH + each:05d}" for each in range(GROUPS_EACH)]
    consumers = [
        ConsumerData(group, subscription_data_set=[SubscriptionData(f"topic{team:06d}", "*")]) for group in groups
    ]
    data = HeartbeatData(f"client{number}", [ProducerData(f"producer{number}")], consumers)
    return RemotingCommand(RequestCode.HEART_BEAT, number, body=data.encode()).encode()


async def client(
    number: int, frame: bytes, host: str, port: int, opening: asyncio.Semaphore, answered: asyncio.Semaphore
) -> None:
    """Runs one client, whose heartbeat is ``frame``, until the process ends.

    Raises:
        ConnectionError: the broker closed the connection or refused the heartbeat.
    """
    async with opening:
        source = f"127.0.0.{1 + number // _CLIENTS_PER_ADDRESS}"
        reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
        await _beat(reader, writer, frame)
    answered.release()
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        await _beat(reader, writer, frame)


async def _beat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Sends a heartbeat and waits for the response; requests from the broker to its client are skipped."""
    writer.write(frame)
    while True:
        head = await reader.readexactly(4)
        answer = decode_frame(head + await reader.readexactly(int.from_bytes(head, "big")))
        if answer.flag & 1:
            break
    if answer.code:
        raise ConnectionError(f"heartbeat refused: {answer.code} {answer.remark}")


async def main(address: str, clients: int, first: int = 0, members: int = 1) -> None:
    """Runs until the input ends or a client fails."""
    raise_file_limit()
    host, _, port = address.rpartition(":")
    opening, answered = asyncio.Semaphore(_OPENING), asyncio.Semaphore(0)
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(client(number, heartbeat_of(number, members), host, int(port), opening, answered))
            for number in range(first, first + clients)
        ]
        for _ in tasks:
            await answered.acquire()
        print(json.dumps({"clients": clients}), flush=True)
        await ended
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
