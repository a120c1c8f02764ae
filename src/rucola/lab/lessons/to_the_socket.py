"""Five ways to send a response with 32 records from the log to a socket, by size and distance of the records."""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rucola.lab.engine import body_of
from rucola.lab.lesson import Claim, Lesson, Numbers, Quantity, Size
from rucola.lab.loopback import connection
from rucola.lab.text import listed, ratio, size_text
from rucola.lab.workbench import Workbench

RECORDS = 32
APART = 8
SIZES = (128, 1024, 4096, 16_384, 65_536)
HEADER = bytes(120)
LOG_BYTES = RECORDS * APART * SIZES[-1]
COPY, MAP, SENDFILE, GATHER, JOIN = (
    "read, write",
    "map, write",
    "sendfile",
    "gathered write of views",
    "views copied together",
)
NEAR, FAR = 1, APART
Slices = list[tuple[int, int]]
Way = Callable[["Log", socket.socket, Slices], None]


def run(bench: Workbench) -> None:
    """Measures the sending thread's CPU time, user and system time together; the log is in the page cache."""
    answers_max, bytes_max = bench.choose(2, 300, 1000), bench.choose(1, 24, 200) << 20
    with bench.directory() as directory, Log(directory / "log") as log, connection() as out:
        ways: dict[str, Way] = {
            COPY: read_and_write,
            MAP: map_and_write,
            SENDFILE: send_file,
            GATHER: gather,
            JOIN: join,
        }
        for _ in bench.repetitions():
            for size in SIZES:
                count = max(2, min(answers_max, bytes_max // (size * RECORDS)))
                near, far = places(size, NEAR), places(size, FAR)
                for name, way in ways.items():
                    bench.note("near", name, size, cpu_us(partial(way, log, out, near), count))
                    bench.note("far", name, size, cpu_us(partial(way, log, out, far), count))
                for name in (SENDFILE, GATHER):
                    bench.note("filter", name, size, cpu_us(partial(look_and_send, ways[name], log, out, far), count))


def places(size: int, apart: int) -> Slices:
    """Returns position and length of the pieces to send; adjacent records form one piece."""
    if apart == NEAR:
        return [(0, size * RECORDS)]
    return [(number * size * apart, size) for number in range(RECORDS)]


class Log:
    """A file in the page cache, open and mapped."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(body_of(1 << 20) * (LOG_BYTES >> 20))
        self.file = os.open(path, os.O_RDONLY)
        self.map = mmap.mmap(self.file, LOG_BYTES, access=mmap.ACCESS_READ)
        self.view = memoryview(self.map)
        bytes(self.view)  # touches each page once

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.view.release()
        self.map.close()
        os.close(self.file)


def read_and_write(log: Log, out: socket.socket, slices: Slices) -> None:
    """Copies each record into memory of the process, then from there into the socket."""
    out.sendall(HEADER, socket.MSG_MORE)
    for position, length in slices:
        out.sendall(os.pread(log.file, length, position))


def map_and_write(log: Log, out: socket.socket, slices: Slices) -> None:
    """Sends each record from the mapped file: avoids the first copy, but still makes a call for each record."""
    out.sendall(HEADER, socket.MSG_MORE)
    for position, length in slices:
        out.sendall(log.view[position : position + length])


def send_file(log: Log, out: socket.socket, slices: Slices) -> None:
    """Hands the pages of the file to the socket, with a call for each record; the process never sees the bytes."""
    out.sendall(HEADER, socket.MSG_MORE)
    for position, length in slices:
        end = position + length
        while position < end:
            position += os.sendfile(out.fileno(), log.file, position, end - position)  # noqa: PLW2901 - a call may send less


def gather(log: Log, out: socket.socket, slices: Slices) -> None:
    """Makes one call for header and all records; the socket copies each record directly from the map."""
    send_parts(out, [memoryview(HEADER), *(log.view[position : position + length] for position, length in slices)])


def join(log: Log, out: socket.socket, slices: Slices) -> None:
    """Copies header and records together into one buffer, and sends the buffer."""
    send_parts(out, [memoryview(b"".join([HEADER, *(log.view[at : at + length] for at, length in slices)]))])


def send_parts(out: socket.socket, parts: list[memoryview]) -> None:
    """Calls ``sendmsg`` until all bytes are sent; one call is usually enough."""
    sent = out.sendmsg(parts)
    for part in parts:
        if sent < len(part):
            out.sendall(part[sent:])
        sent = max(sent - len(part), 0)


def look_and_send(way: Way, log: Log, out: socket.socket, slices: Slices) -> None:
    """Looks into each record before it is sent, as a filter by property does; here all records pass."""
    way(log, out, [(at, length) for at, length in slices if b"no such property" not in log.map[at : at + 128]])


def cpu_us(work: Callable[[], None], count: int) -> float:
    """Returns the CPU time of this thread for one call of ``work``, in microseconds."""
    begin = time.thread_time()
    for _ in range(count):
        work()
    return (time.thread_time() - begin) / count * 1e6


def _space(size: Size) -> int:
    return LOG_BYTES + (1 << 20)


def say_gathered(n: Numbers) -> str:
    """Says at which sizes a gathered write takes less than half as long as the fastest way with a call per record."""
    half = [
        size_text(size)
        for size in SIZES
        if n["far"][GATHER][size] < 0.5 * min(n["far"][way][size] for way in (COPY, MAP, SENDFILE))
    ]
    if not half:
        return "At no size does a gathered write take less than half as long as the fastest way with a call per record."
    return (
        f"Only with records of {listed(half)} does a gathered write take less than half as long as the fastest way "
        "with a call per record."
    )


def say_large(n: Numbers) -> str:
    """Says at which sizes copying records together into one buffer costs over 1.1 times as much as a gathered write."""
    dearer = [size_text(size) for size in SIZES if n["far"][JOIN][size] > 1.1 * n["far"][GATHER][size]]
    if not dearer:
        return "At no size does copying cost over 1.1 times as much as a gathered write."
    return f"With records of {listed(dearer)}, copying costs over 1.1 times as much as a gathered write."


def say_filter(n: Numbers) -> str:
    """Says how a filter changes the comparison of sendfile and a gathered write."""
    before, after = (ratio(n[quantity][SENDFILE][1024], n[quantity][GATHER][1024]) for quantity in ("far", "filter"))
    if before >= 1 and after > 1:
        return (
            f"For records that lie apart, sendfile is slower even without a filter: it takes {before} times as long as "
            f"a gathered write, and {after} times with a filter."
        )
    return f"Without a filter, sendfile takes {before} times as long as a gathered write; with a filter, {after} times."


LESSON = Lesson(
    title="To the socket: copy, map and write, sendfile, gathered write",
    intro=(
        f"The response to a pull is a header and up to {RECORDS} records from the log. There are five ways to send it. "
        "(1) `read` and `write` copy each record twice: into the process, and into the socket. (2) `write` from a "
        "mapped file avoids the first of these two copies. (3) `sendfile` avoids both copies: the socket is given the "
        "pages of the file, and the process never sees the bytes. This is commonly called **zero copy**. (4) A "
        "**gathered write** (`sendmsg`) sends many pieces of mapped memory with one call. (5) The pieces are first "
        "copied together into one buffer, and one call sends the buffer. If the log has only one queue, the records of "
        "this queue lie side by side, so one call can send them all. In a log of many queues, the records of a queue "
        f"lie apart (here with {APART - 1} other records between two of them), and ways 1 to 3 need a call for each "
        "record. The log is in the page cache, so the figures are CPU time of the sender. With a filter by property, "
        "the broker has to look into each record first."
    ),
    design=(
        "The broker sends a response with one gathered write of views of the mapped log. Neighbouring records share "
        "one view. Small records that lie apart are copied into one buffer by compiled code. The broker never uses "
        "`sendfile`: a filter needs the bytes, and records that lie apart need a call each. TLS and a checksum on "
        "read need the bytes too; TLS and checksums are not measured here."
    ),
    quantities=(
        Quantity("near", "Records side by side", "µs of CPU per response", "record size, bytes"),
        Quantity("far", "Records that lie apart", "µs of CPU per response", "record size, bytes"),
        Quantity("filter", "Records that lie apart, with a filter", "µs of CPU per response", "record size, bytes"),
    ),
    claims=(
        Claim(
            "Kafka's documentation (Design, Efficiency)",
            "sendfile avoids the copies, so it takes the least CPU of all ways for large pieces that lie together (our "
            "test: with 32 records of 64 KiB)",
            lambda n: n["near"][SENDFILE][65_536] < min(n["near"][way][65_536] for way in (COPY, MAP, GATHER, JOIN)),
            f"side by side they take {{near[{SENDFILE}][65536]}} µs by sendfile, {{near[{MAP}][65536]}} µs from the "
            f"map, {{near[{COPY}][65536]}} µs by read and write, {{near[{GATHER}][65536]}} µs gathered, "
            f"{{near[{JOIN}][65536]}} µs copied together",
            "2 MiB are handed over without a copy.",
            "Here, handing over pages costs no less than copying their bytes. Over loopback no network card fetches "
            "the pages itself, so sendfile saves less than it may on a network.",
        ),
        Claim(
            "Texts about RocketMQ's engine",
            "for small pieces, `write` from a mapped file is better than `sendfile` (our test: it takes less CPU with "
            "records of 128 bytes and of 1 KiB)",
            lambda n: all(n["far"][MAP][size] < n["far"][SENDFILE][size] for size in (128, 1024)),
            f"32 records of 128 bytes that lie apart take {{far[{MAP}][128]}} µs from the map and "
            f"{{far[{SENDFILE}][128]}} µs by sendfile; records of 1 KiB take {{far[{MAP}][1024]}} and "
            f"{{far[{SENDFILE}][1024]}} µs",
            "Handing over pages costs more than copying a few bytes.",
            "Both ways make a call for each record, and the two calls cost about the same.",
        ),
        Claim(
            "This project",
            "for records of up to 1 KiB that lie apart, one gathered write takes less than half as long as any way "
            "that makes a call for each record",
            lambda n: all(
                n["far"][GATHER][size] < 0.5 * min(n["far"][way][size] for way in (COPY, MAP, SENDFILE))
                for size in (128, 1024)
            ),
            f"with records of 1 KiB {{far[{GATHER}][1024]}} µs gathered, {{far[{MAP}][1024]}} µs from the map, "
            f"{{far[{SENDFILE}][1024]}} µs by sendfile; with records of 4 KiB {{far[{GATHER}][4096]}}, "
            f"{{far[{MAP}][4096]}} and {{far[{SENDFILE}][4096]}} µs",
            "Each call sends a TCP segment of its own through the network stack.",
            lambda n: f"The calls are only a part of the cost. {say_gathered(n)}",
        ),
        Claim(
            "This project",
            "copying small records together into one buffer costs at most about as much as a gathered write (our test: "
            "at most 1.1 times as much, with records of 128 bytes)",
            lambda n: n["far"][JOIN][128] <= 1.1 * n["far"][GATHER][128],
            f"{{far[{JOIN}][128]}} µs copied together, {{far[{GATHER}][128]}} µs gathered; at 64 KiB "
            f"{{far[{JOIN}][65536]}} and {{far[{GATHER}][65536]}} µs",
            lambda n: (
                "The system spends more on an entry of a gathered write than on copying a hundred bytes. "
                f"{say_large(n)}"
            ),
            "In Python, copying costs more than it saves; the engine copies in compiled code.",
        ),
        Claim(
            "This project",
            "where a filter has to look into each record, sendfile takes more CPU than a gathered write (our test: "
            "with records of 1 KiB)",
            lambda n: n["filter"][SENDFILE][1024] > n["filter"][GATHER][1024],
            f"with a filter {{filter[{SENDFILE}][1024]}} µs by sendfile and {{filter[{GATHER}][1024]}} µs gathered, "
            f"without one {{far[{SENDFILE}][1024]}} and {{far[{GATHER}][1024]}} µs",
            lambda n: (
                f"{say_filter(n)} The filter reads the bytes through the map anyway, so they can be sent from there."
            ),
            lambda n: f"{say_filter(n)} Reading through the map costs little compared with sending.",
        ),
    ),
    space_bytes=_space,
    run=run,
)
