"""The smallest server that an official client accepts: what a Python process on uvloop cannot go below.

Arguments: ``send|relay|pull``, directory, ``none|write|sync``, size of its file in bytes. It is name server and broker
on one port, which it prints as JSON. It finds two fields in the header of a request, checks nothing, and keeps no
messages.

``send`` answers every send. ``relay`` also makes a record of each send for the pull that waits for its queue. ``pull``
answers pulls with records that were prepared at the start. ``write`` puts all bytes of a read into a preallocated file
with one ``pwrite`` before it answers, and ``sync`` also waits for one ``fdatasync`` for all reads that came meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import cast

import uvloop

QUEUES = 4
PULL_MESSAGES = 32
PREPARED = 100_000
BODY_BYTES = 1024
RECORD = Struct(">iiIiiqqiqQqQiqi")
MAGIC = -626843481
HOST = 0x7F000001_00002A9F
TAIL = b"\x05bench\x00\x0aTAGS\x01TagA\x02"
SEND, PULL, HEARTBEAT, ROUTE = (310, 320, 10), 11, 34, 105
QUERY_CONSUMER_OFFSET, CONSUMER_LIST, MAX_OFFSET, MIN_OFFSET = 14, 38, 30, 31
OFFSET_NOT_FOUND, PULL_NOT_FOUND = 22, 19
SUSPEND = 2
"""Flag of a pull that waits for messages."""
ONEWAY = 2
SENT = b'"msgId":"7F00000100002A9F0000000000000000","queueId":"0","queueOffset":"1"'


class Disk:
    """The preallocated file. ``note`` is called with the bytes of each read and the call that answers them."""

    def __init__(self, directory: str, kind: str, size: int) -> None:
        self._kind = kind
        self._size = size
        self._position = 0
        self._waiting: list[Callable[[], None]] = []
        self._syncs = False
        self._descriptor = os.open(Path(directory) / "floor", os.O_RDWR | os.O_CREAT)
        if kind != "none":
            os.posix_fallocate(self._descriptor, 0, size)

    def note(self, data: bytes, answer: Callable[[], None]) -> None:
        """Writes ``data`` if wanted, then answers: at once, or after the next sync."""
        if self._kind != "none":
            if self._position + len(data) > self._size:
                self._position = 0
            os.pwrite(self._descriptor, data, self._position)
            self._position += len(data)
        if self._kind != "sync":
            answer()
            return
        self._waiting.append(answer)
        if not self._syncs:
            self._sync()

    def _sync(self) -> None:
        self._syncs = True
        group, self._waiting = self._waiting, []
        done = asyncio.get_running_loop().run_in_executor(None, os.fdatasync, self._descriptor)
        done.add_done_callback(lambda _: self._synced(group))

    def _synced(self, group: list[Callable[[], None]]) -> None:
        self._syncs = False
        for answer in group:
            answer()
        if self._waiting:
            self._sync()


@dataclass
class Queue:
    """Messages on their way to a consumer.

    Attributes:
        records: records that no pull has taken yet.
        first: queue offset of the first of them.
        pull: the connection and the opaque of the pull that waits; None if there is none.
    """

    records: list[bytes] = field(default_factory=list)
    first: int = 0
    pull: tuple[Floor, int] | None = None

    def deliver(self) -> None:
        """Answers the pull that waits with all records."""
        if self.pull is not None and self.records:
            (connection, opaque), self.pull = self.pull, None
            end = self.first + len(self.records)
            connection.write([found(opaque, end, b"".join(self.records))])
            self.records, self.first = [], end


class Shared:
    """What all connections of the server have in common."""

    def __init__(self, kind: str, disk: Disk) -> None:
        self.relays = kind == "relay"
        self.disk = disk
        self.address = ""
        self.queues = [Queue() for _ in range(QUEUES)]
        self.prepared = memoryview(b"")
        self.record_bytes = 0
        self.members: dict[str, set[str]] = {}
        if kind == "pull":
            body = os.urandom(BODY_BYTES)
            self.prepared = memoryview(b"".join(record(offset, body) for offset in range(PREPARED)))
            self.record_bytes = len(self.prepared) // PREPARED


class Floor(asyncio.Protocol):
    """One connection."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self.write = cast(asyncio.Transport, transport).writelines

    def data_received(self, data: bytes) -> None:
        """Answers all complete requests of a read with one write."""
        whole = self._rest + data if self._rest else data
        answers: list[bytes | memoryview] = []
        position, end, sends = 0, len(whole), False
        while position + 4 <= end:
            stop = position + 4 + int.from_bytes(whole[position : position + 4], "big")
            if stop > end:
                break
            body = position + 8 + int.from_bytes(whole[position + 5 : position + 8], "big")
            code, opaque = number(whole, b'"code":', position, body), number(whole, b'"opaque":', position, body)
            if code in SEND:
                sends = True
                answers.append(answer(opaque, 0, SENT))
                if self._shared.relays:
                    self._relay(whole, position, body, stop)
            else:
                answers += self._other(code, opaque, whole[position + 8 : body], whole[body:stop])
            position = stop
        self._rest = whole[position:]
        if sends:
            self._shared.disk.note(data, lambda: self._sent(answers))
        elif answers:
            self.write(answers)

    def _sent(self, answers: list[bytes | memoryview]) -> None:
        self.write(answers)
        for queue in self._shared.queues:
            queue.deliver()

    def _relay(self, whole: bytes, position: int, body: int, stop: int) -> None:
        queue = self._shared.queues[number(whole, b'"e":"', position, body)]
        queue.records.append(record(queue.first + len(queue.records), whole[body:stop]))

    def _other(self, code: int, opaque: int, header: bytes, body: bytes) -> list[bytes | memoryview]:
        if code == PULL:
            return self._pull(opaque, header)
        fields = json.loads(header)
        if fields["flag"] & ONEWAY:
            return []
        extra = fields.get("extFields", {})
        if code == HEARTBEAT:
            beat = json.loads(body)
            for group in beat["consumerDataSet"]:
                self._shared.members.setdefault(group["groupName"], set()).add(beat["clientID"])
        if code == ROUTE:
            return [answer(opaque, 17 if extra["topic"].startswith("%") else 0, b"", route(self._shared.address))]
        if code == CONSUMER_LIST:
            members = sorted(self._shared.members.get(extra["consumerGroup"], ()))
            return [answer(opaque, 0, b"", json.dumps({"consumerIdList": members}).encode())]
        if code == QUERY_CONSUMER_OFFSET:
            return [answer(opaque, OFFSET_NOT_FOUND)]
        if code in (MAX_OFFSET, MIN_OFFSET):
            queue = self._shared.queues[int(extra["queueId"])]
            return [answer(opaque, 0, b'"offset":"%d"' % (queue.first + len(queue.records)))]
        return [answer(opaque, 0)]

    def _pull(self, opaque: int, header: bytes) -> list[bytes | memoryview]:
        shared = self._shared
        if not shared.prepared:
            queue = shared.queues[number(header, b'"queueId":"', 0, len(header))]
            queue.pull = self, opaque
            queue.deliver()
            return []
        offset = number(header, b'"queueOffset":"', 0, len(header))
        if offset >= PREPARED:
            waits = number(header, b'"sysFlag":"', 0, len(header)) & SUSPEND
            return [] if waits else [found(opaque, PREPARED, code=PULL_NOT_FOUND)]
        end = min(offset + PULL_MESSAGES, PREPARED)
        records = shared.prepared[offset * shared.record_bytes : end * shared.record_bytes]
        return [found(opaque, end, size=len(records)), records]


def number(data: bytes, name: bytes, begin: int, end: int) -> int:
    """Returns the number that stands after ``name`` in a JSON header; -1 without one."""
    at = data.find(name, begin, end)
    if at < 0:
        return -1
    at += len(name)
    while data[at] == 0x20:
        at += 1
    stop = at
    while 0x30 <= data[stop] <= 0x39:
        stop += 1
    return int(data[at:stop])


def answer(opaque: int, code: int, fields: bytes = b"", body: bytes = b"", size: int = 0) -> bytes:
    """Returns a response; ``size`` is the number of further bytes of its body."""
    head = b'{"code":%d,"extFields":{%s},"flag":1,"language":"JAVA","opaque":%d,"version":477}' % (code, fields, opaque)
    total = 4 + len(head) + len(body) + size
    return total.to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + body


def found(opaque: int, end: int, body: bytes = b"", size: int = 0, code: int = 0) -> bytes:
    """Returns the response to a pull whose messages end before the queue offset ``end``."""
    fields = b'"maxOffset":"%d","minOffset":"0","nextBeginOffset":"%d","suggestWhichBrokerId":"0"' % (
        max(end, PREPARED),
        end,
    )
    return answer(opaque, code, fields, body, size)


def record(queue_offset: int, body: bytes) -> bytes:
    """Returns a record as consumers expect it."""
    size = RECORD.size + len(body) + len(TAIL)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    head = RECORD.pack(
        size, MAGIC, crc, 0, 0, queue_offset, 0, 0, 1_700_000_000_000, HOST, 1_700_000_000_000, HOST, 0, 0, len(body)
    )
    return head + body + TAIL


def route(address: str) -> bytes:
    """Returns the route of a topic with four queues."""
    broker = {"brokerAddrs": {"0": address}, "brokerName": "broker-a", "cluster": "DefaultCluster"}
    queues = {
        "brokerName": "broker-a",
        "perm": 6,
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "topicSysFlag": 0,
    }
    return json.dumps({"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queues]}).encode()


async def main(kind: str, directory: str, disk: str, size: str) -> None:
    """Serves until the process is ended."""
    shared = Shared(kind, Disk(directory, disk, int(size)))
    server = await asyncio.get_running_loop().create_server(lambda: Floor(shared), "127.0.0.1", 0)
    shared.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(json.dumps({"namesrv": shared.address, "brokers": [shared.address]}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
