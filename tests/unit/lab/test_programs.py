"""Lessons measure what they claim to measure: calls are counted, bytes compared, pages examined."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rucola.formats.message import decode_messages
from rucola.lab import page_cache
from rucola.lab.engine import Run, message, open_store
from rucola.lab.lesson import Size
from rucola.lab.lessons import (
    expiry,
    group_commit,
    kafka_reading,
    kafka_writing,
    long_polling,
    sequential_random,
    stream_map,
    to_the_socket,
    transient_pool,
)
from rucola.lab.machine import has_no_disk
from rucola.lab.small_server import ANSWER, LONG, PUSH, REQUEST, SHORT, SmallServer
from rucola.runtime.files import Files


class Notes:
    """Stands in for the workbench of a lesson, which records measured values."""

    size = Size.SMALL

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], float] = {}

    def note(self, quantity: str, series: str, row: object, value: float) -> None:
        self.found[quantity, series] = value


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces syncs: each one only appends its file descriptor to the list that is returned."""
    found: list[int] = []
    monkeypatch.setattr(os, "fdatasync", found.append)
    return found


def test_each_group_and_each_transaction_is_synced(tmp_path: Path, syncs: list[int]) -> None:
    group_commit.by_plain_log(tmp_path, 4, 10)
    assert len(syncs) == 11
    syncs.clear()
    group_commit.in_place(tmp_path, 7, 4, Random(1))
    assert len(syncs) == 7
    syncs.clear()
    group_commit.by_redo_log(tmp_path, 7, 4, Random(1))
    assert len(syncs) == 8 and len(set(syncs)) == 2, "the log is synced each time, the pages once"


def test_senders_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "data_sync", staticmethod(lambda descriptor: time.sleep(0.005)))
    assert group_commit.by_engine(tmp_path, 4, 10) >= 10 * 0.005


def test_a_layout_syncs_what_it_has_to(tmp_path: Path, syncs: list[int]) -> None:
    for name in ("partitions", "log"):
        (tmp_path / name).mkdir()
    with kafka_writing.partitions(tmp_path / "partitions", 5, 20) as burst:
        burst()
        assert len(set(syncs)) == len(syncs) == 5
    syncs.clear()
    with kafka_writing.one_log(tmp_path / "log", 5, 20) as burst:
        burst()
        assert len(syncs) == 1
    assert (tmp_path / "log" / "log").stat().st_size == sum(
        kafka_writing.HEAD.size + 1024 + len(f"key{number}") for number in range(20)
    )
    assert (tmp_path / "log" / "3").stat().st_size == 4 * 20


def test_a_page_that_is_dirty_already_is_not_counted_again(tmp_path: Path) -> None:
    if has_no_disk(tmp_path):
        pytest.skip("pages of a file system in memory are never dirty")
    with kafka_writing.one_log(tmp_path, 40, 40) as burst:
        burst()
        page_cache.sync(page_cache.files_below(tmp_path))
        clean, dirty = kafka_writing.counted(burst)[2], kafka_writing.counted(burst)[2]
    assert clean >= dirty + 30 * page_cache.PAGE / 1024, "one page for each of 40 queues"


def test_a_file_per_queue_syncs_each_file_that_a_group_touched(tmp_path: Path, syncs: list[int]) -> None:
    files = sequential_random.Files(tmp_path / "queue", 4, 1 << 16)
    files.write(3, 2)
    assert len(syncs) == 6
    syncs.clear()
    files.write(100, 2)
    assert len(syncs) == 8
    files.close()


def test_a_cold_file_is_not_in_memory_and_a_warm_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_no_disk(tmp_path):
        pytest.skip("pages of a file system in memory cannot be dropped")
    seen: list[int] = []

    asked: list[list[int]] = []
    copied: list[list[int]] = []

    def look(path: Path, size: int, places: list[int], in_order: bool) -> float:
        seen.append(page_cache.resident_pages([path]))
        asked.append(places)
        assert in_order == (places == sorted(places))
        return 1.0

    def copy(content: bytes, size: int, places: list[int]) -> float:
        assert len(content) == 1 << 20 and all(place % size == 0 for place in places)
        copied.append(places)
        return 1.0

    monkeypatch.setattr(sequential_random, "read", look)
    monkeypatch.setattr(sequential_random, "copy", copy)
    bench: Any = Notes()
    bench.choose = lambda small, normal, large: small
    bench.directory = lambda: _Directory(tmp_path)
    sequential_random.read_back(bench, Random(1))
    assert seen == [0, 256] * 3
    assert asked == [places for places in copied for _ in ("cold", "warm")], (
        "memory is read in the same way as the file"
    )


class _Directory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Path:
        return self._path

    def __exit__(self, *_: object) -> None:
        pass


def test_warmed_pages_do_not_fault(tmp_path: Path) -> None:
    size = 1 << 20
    record = bytes(4096)
    _, fresh = stream_map.store_to_fresh_map(stream_map.allocated(tmp_path / "fresh", size), record, size // 4096)
    _, warm = stream_map.store_to_warm_map(stream_map.allocated(tmp_path / "warm", size), record, size // 4096)
    assert fresh > 10 and warm < fresh / 4


def test_uncommitted_bytes_are_in_memory_only(tmp_path: Path) -> None:
    one = Run.of([message(0, 1024)])
    never = {"wake_commit_when_put_message": False, "commit_interval_commit_log_ms": 600_000}
    with open_store(tmp_path / "pool", **never, **transient_pool.WAYS[transient_pool.POOL]) as store:  # type: ignore[arg-type]
        one.append(store)
        one.append(store)
        assert transient_pool.in_memory(store, one) > 2 * 1024
    with open_store(tmp_path / "map") as store:
        one.append(store)
        assert transient_pool.in_memory(store, one) == 0


def test_compaction_keeps_the_newest_message_of_each_key(tmp_path: Path) -> None:
    segments = expiry.write(tmp_path, 3000, 200)
    keys = [key for path in segments for key, _, _ in expiry.records(path.read_bytes())]
    assert len(segments) >= 2 and len(set(keys)) == 200 < len(keys)
    newest = list(dict.fromkeys(reversed(keys)))[::-1]
    left = expiry.compact(segments)
    assert [key for path in segments for key, _, _ in expiry.records(path.read_bytes())] == newest
    assert left == sum(path.stat().st_size for path in segments)
    assert expiry.remove(segments) == 0 and not any(path.exists() for path in segments)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@pytest.mark.parametrize("apart", [to_the_socket.NEAR, to_the_socket.FAR])
def test_all_ways_send_the_same_bytes(
    tmp_path: Path, pair: tuple[socket.socket, socket.socket], apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_the_socket, "body_of", os.urandom)
    out, receiver = pair
    slices = to_the_socket.places(128, apart)
    with to_the_socket.Log(tmp_path / "log") as log:
        wanted = to_the_socket.HEADER + b"".join(log.view[at : at + length] for at, length in slices)
        assert len(wanted) == len(to_the_socket.HEADER) + 32 * 128
        ways = ("read_and_write", "map_and_write", "send_file", "gather", "join")
        for way in ways:
            getattr(to_the_socket, way)(log, out, slices)
            assert receiver.recv(1 << 16, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == wanted, way
        to_the_socket.look_and_send(to_the_socket.gather, log, out, slices)
        assert receiver.recv(1 << 16, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == wanted


def test_the_request_that_begins_a_reading_is_not_counted(tmp_path: Path) -> None:
    async def play(how: bytes) -> float:
        with open_store(tmp_path / how.decode()) as store:
            server, took = SmallServer(store), list[float]()
            async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
                address = listening.sockets[0].getsockname()
                reading = long_polling.consume(address, how, 0.0, 0, took)
                spent = long_polling.spend(reading, 20, 0.1, server.append, took, server.asked, Random(1))
                _, requests = await spent
            assert len(took) == 2
            return requests

    assert asyncio.run(play(PUSH)) == 0
    assert 5 < asyncio.run(play(LONG)) <= 20, "one request after each response, within 0.1 s"


def test_disk_and_memory_are_counted_in_kib(tmp_path: Path) -> None:
    if has_no_disk(tmp_path):
        pytest.skip("pages of a file system in memory cannot be dropped")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(16 * page_cache.PAGE))
    page_cache.sync([path])
    page_cache.drop([path])

    def read_two_pages() -> int:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        found = len(os.pread(file, 10, 0)) + len(os.pread(file, 10, 9 * page_cache.PAGE))
        os.close(file)
        return found

    bench: Any = Notes()
    kafka_reading.measure(bench, "series", "row", tmp_path, read_two_pages)
    assert bench.found["disk", "series"] == bench.found["memory", "series"] == 2 * page_cache.PAGE / 1024


class Writer:
    """Receives the bytes that the small server writes."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def bodies(self) -> list[bytes]:
        """Returns the bodies of all messages in all responses."""
        found: list[bytes] = []
        at = 0
        while at < len(self.written):
            size, _ = ANSWER.unpack_from(self.written, at)
            at += ANSWER.size
            found += [one.body for one in decode_messages(self.written[at : at + size])]
            at += size
        return found


@pytest.mark.parametrize(
    ("how", "before", "bodies"),
    [(SHORT, ANSWER.pack(0, 0), []), (LONG, b"", [b"first"]), (PUSH, b"", [b"first", b"second"])],
)
def test_the_small_server_answers_holds_and_pushes(
    tmp_path: Path, how: bytes, before: bytes, bodies: list[bytes]
) -> None:
    async def play() -> None:
        with open_store(tmp_path) as store:
            server, reader, writer = SmallServer(store), asyncio.StreamReader(), Writer()
            served = asyncio.ensure_future(server.serve(reader, writer))  # type: ignore[arg-type]
            reader.feed_data(REQUEST.pack(how, 0))
            while not server.asked:
                await asyncio.sleep(0)
            assert writer.written == before
            await server.append(b"first")
            await server.append(b"second")
            assert writer.bodies() == bodies
            reader.feed_eof()
            await served
            assert writer.closed
            await server.append(b"third")
            assert writer.bodies() == bodies

    asyncio.run(play())
