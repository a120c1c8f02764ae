"""The memory of a broker that serves a large store, and the time that a start with very many queues takes.

    python -m bench.memory DIRECTORY TOPICS QUEUES BYTES TURNS fills a store with messages of 1 KiB, shows the progress

Memory is the sum of RssAnon and RssShmem in ``/proc/PID/status``: resident memory that belongs to no file. RssFile is
not counted, because the system keeps these pages of the store's files as page cache and can take them back at any time.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.peers.packages import ROOT, PeerError
from tools.peers.servers import OURS

from bench.context import Context
from bench.figure import Budget, Figure
from bench.program import scratch_directory
from bench.samples import HOST, send_batch
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.formats.tables import topic_pieces
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.store.row_run import RowRun

GROUP = "broker over a large store, messages of 1 KiB"
QUEUES_GROUP = "broker with very many queues"
STORE_BYTES = 20 << 30
QUICK_STORE_BYTES = 2 << 30
TOPICS = 1000
QUEUES = 4
MANY_QUEUES = 200
QUICK_MANY_QUEUES = 20
BODY_BYTES = 1024
BATCH = 64
PLACES = (0.0, 0.5, 0.9)
"""Positions in a queue at which pulls begin, as fractions of the queue's length."""
PULLS = 4
"""Number of pulls from each position in ``PLACES``."""
IN_FLIGHT = 64
ROUNDS = 4
FILL_TIMEOUT_S = 1800
BUDGET_MB = 150.0
START_BUDGET_S = 3.0
SUBSCRIPTION = 4
UNITS_OF_MANY = 100
"""Number of units per queue file in a store with very many queues. Files of the default length would be 1.2 TB of
holes.
"""
STEPS = 20
"""How many times the progress is shown while the store is written."""
RECORD_BYTES = 1300
"""Maximum number of bytes that a message of 1 KiB takes in the log."""
BESIDE_THE_LOG = 1.06
"""Size of the log with its queues and index, as a multiple of the log's size."""
QUEUE_BYTES = 12 << 10
"""Maximum number of bytes on the disk for a queue: its directory and the last block of its file."""
SEGMENTS_BYTES = 2 << 30
"""Bytes of the next segment and index file, which are created before they are needed."""
USED_SHARE_MAX = 0.85
"""``diskSpaceCleanForciblyRatio``: when a larger fraction of the disk is in use, a broker removes its oldest segments.
"""


def measure(context: Context) -> Iterator[Figure]:
    """Measures a broker over a store of many gigabytes while messages are pulled from all its parts."""
    with large_store(context) as (directory, text):
        context.show("memory: starting a broker")
        with _broker(directory) as (process, address, _):
            idle = _memory(process)
            taken, peak = asyncio.run(_pull_all(context, process, address, TOPICS, QUEUES))
    yield _figure(GROUP, f"memory with {text}, after the start", idle["own"], BUDGET_MB)
    yield _figure(
        GROUP, f"peak memory with {text}, while {taken:,} messages are pulled from all queues", peak["own"], BUDGET_MB
    )
    yield _figure(GROUP, "largest size of the mapped pages of the store's files during these pulls", peak["file"])


@contextmanager
def large_store(context: Context) -> Iterator[tuple[str, str]]:
    """Writes the large store, and removes it after the block.

    Yields:
        The directory of the store, and a text with its size and queues.

    Raises:
        PeerError: see ``fill``.
    """
    size = QUICK_STORE_BYTES if context.quick else STORE_BYTES
    text = f"{size >> 30} GiB, {TOPICS:,} topics of {QUEUES} queues"
    with scratch_directory() as directory:
        context.show(f"memory: writing {text}")
        fill(context, directory, TOPICS, QUEUES, size)
        yield directory, text
        context.show("memory: removing the store")


def measure_queues(context: Context) -> Iterator[Figure]:
    """Measures a start with very many queues that all have messages, and the memory after messages were pulled from
    all queues.
    """
    queues = QUICK_MANY_QUEUES if context.quick else MANY_QUEUES
    text = f"{TOPICS * queues:,} queues"
    with scratch_directory() as directory:
        context.show(f"memory: making {text}")
        fill(context, directory, TOPICS, queues, 0)
        context.show(f"memory: starting with {text}")
        with _broker(directory, queues) as (process, address, seconds):
            idle = _memory(process)
            taken, peak = asyncio.run(_pull_all(context, process, address, TOPICS, queues))
        context.show("memory: removing the store")
    yield Figure(QUEUES_GROUP, f"start with {text}", "s", seconds, budgets=(Budget("ours", "max", START_BUDGET_S),))
    yield _figure(QUEUES_GROUP, f"memory with {text}, after the start", idle["own"])
    yield _figure(
        QUEUES_GROUP, f"peak memory with {text}, while {taken:,} messages are pulled from all queues", peak["own"]
    )


def _figure(group: str, what: str, megabytes: float, budget: float | None = None) -> Figure:
    budgets = () if budget is None else (Budget("ours", "max", budget),)
    return Figure(group, what, "MB", megabytes, budgets=budgets)


# -- the broker -------------------------------------------------------------------------------------------------------


@contextmanager
def _broker(directory: str, many: int = 0) -> Iterator[tuple[int, str, float]]:
    """Runs ``rucola broker`` on the store; yields its process id, its address, and the seconds until it was ready."""
    settings = {"listenPort": 0, "namesrvAddr": "", "storePathRootDir": f"{directory}/store"} | _geometry(many)
    conf = Path(directory) / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    environment = {**os.environ, **OURS}
    command = [sys.executable, "-m", "rucola", "broker", "--config", str(conf), "--json"]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise PeerError(f"rucola broker ended with {process.wait()}")
            yield process.pid, json.loads(line)["brokers"][0], time.perf_counter() - begin
        finally:
            process.terminate()


def _geometry(many: int) -> dict[str, object]:
    return {"mappedFileSizeConsumeQueue": UNITS_OF_MANY * 20} if many else {}


def _memory(process: int) -> dict[str, float]:
    """Returns megabytes: ``own`` is RssAnon and RssShmem, ``file`` is RssFile."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    anonymous, shared, file = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("RssAnon", "RssShmem", "RssFile"))
    return {"own": anonymous + shared, "file": file}


async def _pull_all(
    context: Context, process: int, address: str, topics: int, queues: int
) -> tuple[int, dict[str, float]]:
    """Pulls from several positions in each queue; returns the number of messages, and the peak memory."""
    client = RemotingClient(ClientOptions())
    peak = _memory(process)
    waiting = iter([(topic_name(topic), queue) for topic in range(topics) for queue in range(queues)])
    total, done = topics * queues, 0

    async def pull_some() -> int:
        nonlocal done
        taken = 0
        for topic, queue in waiting:
            taken += await _pull(client, address, topic, queue)
            done += 1
            if done * 4 % total < 4:
                context.show(f"memory: pulled from {done:,} of {total:,} queues")
            now = _memory(process)
            peak.update({name: max(value, now[name]) for name, value in peak.items()})
        return taken

    try:
        counts = await asyncio.gather(*(pull_some() for _ in range(IN_FLIGHT)))
    finally:
        await client.close()
    return sum(counts), peak


async def _pull(client: RemotingClient, address: str, topic: str, queue: int) -> int:
    """Pulls from one queue; returns the number of messages."""
    taken, end = 0, 0
    for place in PLACES:
        queue_offset = int(end * place)
        for _ in range(PULLS):
            header = PullMessageRequestHeader(
                "bench", topic, queue, queue_offset, 32, SUBSCRIPTION, 0, 0, 0, "*", "TAG"
            )
            request = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=header.to_ext_fields())
            answer = await client.invoke(address, request, 30_000)
            if answer.code != ResponseCode.SUCCESS:
                break
            facts = PullMessageResponseHeader.from_ext_fields(answer.ext_fields)
            taken += facts.next_begin_offset - queue_offset
            queue_offset, end = facts.next_begin_offset, facts.max_offset
    if not taken:
        raise PeerError(f"{topic}, queue {queue}: nothing could be pulled")
    return taken


# -- the store --------------------------------------------------------------------------------------------------------


def fill(context: Context, directory: str, topics: int, queues: int, size: int, turns: int = ROUNDS) -> None:
    """Fills the store in a separate process, so that this process does not need the memory for it.

    Args:
        turns: how many times each topic gets messages; those of one turn are together in the log.

    Raises:
        PeerError: the disk does not have enough room, or the store could not be written.
    """
    check_room(directory, topics, queues, size)
    command = [sys.executable, "-m", "bench.memory", directory, str(topics), str(queues), str(size), str(turns)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                context.show(f"memory: {line.strip()}")
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise PeerError(f"the process that writes the store ended with {process.returncode}")


def check_room(directory: str, topics: int, queues: int, size: int) -> None:
    """Checks that the disk has enough room, before anything is written.

    Raises:
        PeerError: the store would fill the disk, or fill it so far that a broker removes segments.
    """
    log_bytes = max(size, topics * max(BATCH, queues) * RECORD_BYTES)
    needed = int(log_bytes * BESIDE_THE_LOG) + topics * queues * QUEUE_BYTES + SEGMENTS_BYTES
    _, used, free = shutil.disk_usage(directory)
    room = max(0, int((used + free) * USED_SHARE_MAX) - used)
    if needed > room:
        raise PeerError(
            f"not measured: the store takes up to {needed / 2**30:.1f} GiB, the disk has room for {room / 2**30:.1f}"
            f" GiB until {USED_SHARE_MAX:.0%} of it is in use"
        )


def topic_name(number: int) -> str:
    """Returns the name of a topic of the store."""
    return f"bench_{number:04d}"


def main(directory: str, topics: str, queues: str, size: str, turns: str) -> None:
    """Writes the store in turns. In each turn, every topic gets at least one batch, and about one queue is synced."""
    signal.alarm(FILL_TIMEOUT_S)
    names = [topic_name(number) for number in range(int(topics))]
    root = Path(directory) / "store"
    many = int(queues) > QUEUES
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        mapped_file_size_consume_queue=UNITS_OF_MANY * 20
        if many
        else MessageStoreConfig().mapped_file_size_consume_queue,
    )
    # The filling is not measured, so it need not wait for the disk.
    os.fsync = no_sync  # type: ignore[assignment]
    files = Files()
    files.data_sync = no_sync
    store = MessageStore(config, files, SystemClock())
    store.load()
    store.start()
    batch = send_batch(max(BATCH, int(queues)), BODY_BYTES)
    for row in range(batch.count):
        batch.table[row * ROW_WIDTH + FrameColumn.QUEUE_ID] = row % int(queues)
    share = int(size) // int(turns) // len(names)
    order = names * (int(turns) if share else 1)
    for done, name in enumerate(order, 1):
        end = store.max_offset + share
        while True:
            status = store.append_rows(
                RowRun(batch.source, batch.view, batch.table, 0, batch.count), name.encode(), HOST
            )
            if status is not PutMessageStatus.PUT_OK:
                raise SystemExit(f"append: {status.name}")
            store.dispatch()
            if store.max_offset >= end:
                break
        if done * STEPS % len(order) < STEPS:
            print(f"{done / len(order):.0%} written", flush=True)
    store.shutdown()
    table = {name: TopicConfig(name, int(queues), int(queues)) for name in names}
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_bytes(b"".join(topic_pieces(DataVersion(0, 0, 1), table)))


def no_sync(_descriptor: object, /) -> None:
    """Replaces ``os.fdatasync`` or ``os.fsync``; does nothing."""


if __name__ == "__main__":
    main(*sys.argv[1:])
