"""Load program that sends prepared requests. It needs hardly any CPU time itself, so only the broker limits the rate.

Arguments: name server address, broker address, topic, body bytes. Each line on standard input, ``IN_FLIGHT MESSAGES``,
starts one round over one connection; each round prints one JSON line. Each write contains as many requests as
responses have come since the previous write.
"""

from __future__ import annotations

import json
import socket
import sys
import time

from tools.peers.wire import make_topic

from bench.samples import send_frames
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.protocol.frame import FrameReader

PREPARED = 4096
_CODE = int(FrameColumn.CODE)


class Connection:
    """A blocking connection that sends frames and receives responses."""

    def __init__(self, address: str, topic: str, body_bytes: int) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames, self._starts = _prepare(topic, body_bytes)
        self._next = 0

    def round(self, in_flight: int, messages: int) -> int:
        """Sends this many messages and waits for the responses; returns how many were refused."""
        reader = FrameReader()
        self._send(min(in_flight, messages))
        sent, answered, failed = min(in_flight, messages), 0, 0
        while answered < messages:
            count = self._socket.recv_into(reader.buffer())
            if not count:
                raise ConnectionError("the broker closed the connection")
            batch = reader.received(count)
            if batch is None:
                continue
            failed += sum(batch.table[row * ROW_WIDTH + _CODE] != 0 for row in range(batch.count))
            answered += batch.count
            more = min(batch.count, messages - sent)
            self._send(more)
            sent += more
        return failed

    def _send(self, count: int) -> None:
        while count:
            part = min(count, PREPARED - self._next)
            self._socket.sendall(self._frames[self._starts[self._next] : self._starts[self._next + part]])
            self._next = (self._next + part) % PREPARED
            count -= part


def _prepare(topic: str, body_bytes: int) -> tuple[memoryview, list[int]]:
    """Returns ``PREPARED`` consecutive frames with different opaque values, and the start of each frame."""
    frames = send_frames(PREPARED, body_bytes, topic)
    starts = [0]
    while starts[-1] < len(frames):
        starts.append(starts[-1] + 4 + int.from_bytes(frames[starts[-1] : starts[-1] + 4], "big"))
    return memoryview(frames), starts


def main(namesrv: str, broker: str, topic: str, body_bytes: int) -> None:
    """Runs rounds until the input ends."""
    make_topic(namesrv, broker, topic)
    connection = Connection(broker, topic, body_bytes)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        in_flight, messages = map(int, line.split())
        start = time.perf_counter()
        failed = connection.round(in_flight, messages)
        seconds = time.perf_counter() - start
        print(json.dumps({"messages": messages, "failed": failed, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
