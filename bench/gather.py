"""Compares how the broker sends messages from the log to the socket with other ways that the operating system offers.

The sender's CPU time counts, including system time; a separate process receives. The log lies in the page cache.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from bench.context import Context
from bench.figure import Figure, cost
from bench.program import scratch_directory
from rucola.formats.consume_queue import join_slices
from rucola.store.reader import JOIN_BELOW_BYTES

GROUP = "a response of 32 messages from the log to the socket, CPU of the sender"
MESSAGES = 32
QUEUES = 4
"""Number of queues whose messages alternate in the log, unless adjacent messages are measured."""
LOG_BYTES = 64 << 20
HEADER = bytes(120)


def measure(context: Context) -> Iterator[Figure]:
    """Measures adjacent messages, as in a log with one topic, and messages of one queue out of four."""
    with scratch_directory() as directory, _log(Path(directory) / "log") as log, _receiver() as out:
        for size in (200, 1200, 16_000):
            for apart, name in ((1, "adjacent in the log"), (QUEUES, "every fourth one in the log")):
                context.show(f"gather: {size} B records, {name}")
                answers = Answers(log, out, size, apart)
                # The broker joins small slices by copying; it passes on a single slice or large slices without a copy.
                joins = apart > 1 and size < JOIN_BELOW_BYTES
                ways = {"sendfile": answers.sendfile} | ({"one sendmsg": answers.sendmsg} if joins else {})
                ours = answers.joined if joins else answers.sendmsg
                took: dict[str, list[float]] = {key: [] for key in ("ours", *ways)}
                for _ in range(context.rounds):
                    for key, way in {"ours": ours, **ways}.items():
                        took[key].append(_cpu_us(way, context.seconds / 4))
                how = "copied into one buffer" if joins else "one sendmsg"
                for key in ways:
                    yield cost(GROUP, f"{size} B records, {name}: {how}", min(took["ours"]), min(took[key]), key)


class Answers:
    """Sends responses, with one method for each way of sending; each call uses the next positions in the log."""

    def __init__(self, log: Log, out: socket.socket, size: int, apart: int) -> None:
        self._log, self._out = log, out
        self._size, self._step = size, size * apart
        self._at = 0

    def _slices(self) -> list[tuple[int, int]]:
        """Returns position and length of each piece; adjacent pieces are joined."""
        span = self._step * MESSAGES
        self._at = 0 if self._at + 2 * span > LOG_BYTES else self._at + span
        if self._step == self._size:
            return [(self._at, span)]
        return [(self._at + number * self._step, self._size) for number in range(MESSAGES)]

    def joined(self) -> None:
        """Joins the pieces by copying, and writes them after the header."""
        slices = self._slices()
        pairs = array("q", [number for one in slices for number in one])
        self._send(
            [memoryview(HEADER), memoryview(join_slices(self._log.view, 0, pairs, MESSAGES, self._size * MESSAGES))]
        )

    def sendmsg(self) -> None:
        """Writes header and pieces with one call; the system copies the pieces from the mapped file."""
        view = self._log.view
        self._send([memoryview(HEADER), *(view[at : at + length] for at, length in self._slices())])

    def _send(self, parts: list[memoryview]) -> None:
        sent = self._out.sendmsg(parts)
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
            else:
                self._out.sendall(part[sent:])
                sent = 0

    def sendfile(self) -> None:
        """Writes the header, then each piece from the file."""
        out, file = self._out.fileno(), self._log.descriptor
        self._out.sendall(HEADER, socket.MSG_MORE)
        for at, length in self._slices():
            end = at + length
            while at < end:
                at += os.sendfile(out, file, at, end - at)  # noqa: PLW2901 - sent in as many calls as it takes


class Log:
    """A mapped file whose pages are all in the page cache; it stands in for the commit log."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.view = memoryview(mmap.mmap(descriptor, LOG_BYTES, access=mmap.ACCESS_READ))
        for position in range(0, LOG_BYTES, mmap.PAGESIZE):
            self.view[position]


@contextmanager
def _log(path: Path) -> Iterator[Log]:
    path.write_bytes(os.urandom(LOG_BYTES))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield Log(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _receiver() -> Iterator[socket.socket]:
    """Opens a loopback connection; a separate process reads the other end and discards the bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = get_context("spawn").Process(target=_drain, args=(server.getsockname()[1],))
        process.start()
        out, _ = server.accept()
    try:
        with out:
            yield out
    finally:
        process.join()


def _drain(port: int) -> None:
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as taken:
        while taken.recv_into(buffer):
            pass


def _cpu_us(way: Callable[[], None], seconds: float) -> float:
    """Returns the CPU time of one response in microseconds."""
    count = 0
    begin, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        for _ in range(20):
            way()
        count += 20
    return (time.process_time() - cpu) / count * 1e6
