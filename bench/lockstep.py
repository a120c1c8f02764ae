"""Requests in lock step: some are written at once, and the next ones follow when all of them are answered.

The broker finds the same number of requests in each read, however busy the machine is. Its CPU time per message then
depends only on what is measured.
"""

from __future__ import annotations

import socket
import time
from array import array

from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch, FrameReader

BROKER_NAME = "broker-a"
_CODE = int(FrameColumn.CODE)


class Lockstep:
    """One blocking connection.

    Attributes:
        latencies_ns: for each response to ``send``, the time since its request was written.
        failed: number of responses to ``send`` with an error.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self.latencies_ns = array("q")
        self.failed = 0

    def send(self, frames: bytes, count: int) -> None:
        """Writes ``count`` requests and waits for all responses; only their codes are read."""
        start_ns = time.perf_counter_ns()
        self._socket.sendall(frames)
        while count > 0:
            batch = self._received()
            passed_ns = time.perf_counter_ns() - start_ns
            for row in range(batch.count):
                self.failed += batch.table[row * ROW_WIDTH + _CODE] != 0
                self.latencies_ns.append(passed_ns)
            count -= batch.count

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        """Sends one request and returns its response."""
        self._socket.sendall(request.encode())
        return self._received().command(0)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def begin(self) -> None:
        """Forgets the results of an earlier round."""
        self.latencies_ns = array("q")
        self.failed = 0

    def _received(self) -> FrameBatch:
        """Returns the frames of one read that completes some.

        Raises:
            ConnectionError: the broker closed the connection.
        """
        while True:
            count = self._socket.recv_into(self._reader.buffer())
            if not count:
                raise ConnectionError("the broker closed the connection")
            batch = self._reader.received(count)
            if batch is not None:
                return batch
