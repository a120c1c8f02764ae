"""``python -m bench.start_growth [--java] [--quick] [AXIS ...]``: how the start of a broker grows with what is stored.

For each axis, stores of growing size are written. The servers then start after a clean stop and after SIGKILL, until
the first send is acknowledged. A line shows seconds, processor seconds and the peak of resident memory, which includes
mapped pages of files. With ``--java``, the official servers start on the same files afterwards.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tools.peers.packages import ROOT, PeerError
from tools.peers.servers import OURS, Servers, cpu_seconds, servers
from tools.peers.wire import make_topic

from bench.delay import fill_delayed
from bench.memory import no_sync
from bench.program import scratch_directory
from bench.samples import HOST, send_batch
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.formats.tables import consumer_offset_pieces, topic_pieces
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.store.row_run import RowRun

TOPIC = "bench_growth"
QUEUES = 8
BATCH = 64
TOPICS_OF_LOG = 8
GROUP_TOPICS = 1000
MIB = 1 << 20
NEVER_MS = 600_000
WAIT_S = 7200
"""Delayed messages are due after the measurement."""
FEW_UNITS = {"mappedFileSizeConsumeQueue": 2_000}
"""Short queue files; those of 200,000 queues would otherwise be terabytes of holes."""
FEW_KEYS = {"maxHashSlotNum": 1_000, "maxIndexNum": 4_000}
FILL_TIMEOUT_S = 1200.0


class Start(NamedTuple):
    """What one start took: seconds, processor seconds, and the peak of memory in MB, of all servers together."""

    seconds: float
    cpu_s: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.seconds:8.2f} {self.cpu_s:6.2f} {self.peak_mb:5.0f}"


@dataclass(frozen=True)
class Axis:
    """One direction in which a store grows.

    Attributes:
        unit: what the sizes count.
        sizes: the sizes to measure, the smallest first.
        fill: writes a store of a given size into a directory.
        settings: further lines of ``broker.conf``.
        is_lost: whether ``fill`` leaves the store as after a kill; the start after it is the one after a kill.
    """

    unit: str
    sizes: tuple[int, ...]
    fill: Callable[[Path, int], None]
    settings: Mapping[str, object] = field(default_factory=dict)
    is_lost: bool = False


# -- stores -----------------------------------------------------------------------------------------------------------


class Filling:
    """A store that is being written.

    Args:
        directory: the store's directory.
        settings: options of the store by their names in Python.
        keeps: whether to write the watermark, as a running broker does.
    """

    def __init__(self, directory: Path, keeps: bool = True, **settings: int) -> None:
        # The filling is not measured, so it need not wait for the disk.
        os.fsync = no_sync  # type: ignore[assignment]
        files = Files()
        files.data_sync = no_sync
        if not keeps:
            settings |= {"flush_interval_consume_queue_ms": NEVER_MS}
        config = MessageStoreConfig(store_path_root_dir=str(directory), **settings)  # type: ignore[arg-type]
        self.store = MessageStore(config, files, SystemClock())
        self.store.load()
        self.store.start()
        self._made: dict[tuple[int, int, int], RowRun] = {}

    def append(self, topic: str, count: int, body_bytes: int, queues: int = QUEUES) -> None:
        """Appends messages to a topic, to its queues in turn."""
        run = self._made.get((count, body_bytes, queues))
        if run is None:
            batch = send_batch(count, body_bytes)
            for row in range(count):
                batch.table[row * ROW_WIDTH + FrameColumn.QUEUE_ID] = row % queues
            run = self._made[count, body_bytes, queues] = RowRun(batch.source, batch.view, batch.table, 0, count)
        status = self.store.append_rows(run, topic.encode(), HOST)
        if status is not PutMessageStatus.PUT_OK:
            raise SystemExit(f"append: {status.name}")
        self.store.dispatch()


def fill_topics(directory: Path, count: int) -> None:
    """Writes the table of topics, which have no message yet."""
    table = {name: TopicConfig(name, QUEUES, QUEUES) for name in _names(count)}
    _write(directory, "topics.json", b"".join(topic_pieces(DataVersion(0, 1, 1), table)))


def fill_offsets(directory: Path, count: int) -> None:
    """Writes consumer offsets; each group has read one topic."""
    fill_topics(directory, GROUP_TOPICS)
    topics = _names(GROUP_TOPICS)
    table = {
        f"{topics[number % GROUP_TOPICS]}@group{number:06d}": dict.fromkeys(range(QUEUES), 0)
        for number in range(-(-count // QUEUES))
    }
    _write(directory, "consumerOffset.json", b"".join(consumer_offset_pieces(DataVersion(0, 1, 1), table)))


def fill_queues(directory: Path, count: int) -> None:
    """Writes queues with one message each."""
    fill_topics(directory, -(-count // QUEUES))
    filling = Filling(directory, mapped_file_size_consume_queue=FEW_UNITS["mappedFileSizeConsumeQueue"])
    for name in _names(-(-count // QUEUES)):
        filling.append(name, QUEUES, 100)
    filling.store.shutdown()


def fill_log(directory: Path, mib: int) -> None:
    """Writes messages of 1 KiB into a few topics, and stops."""
    _log_of(directory, mib, True).shutdown()


def fill_unsynced(directory: Path, mib: int) -> None:
    """Writes the same, of which no watermark tells, and ends as if it was killed."""
    _log_of(directory, mib, False)
    os._exit(0)


def fill_entries(directory: Path, count: int) -> None:
    """Writes small messages into a single queue."""
    fill_topics(directory, 1)
    filling = Filling(directory)
    for _ in range(0, count, BATCH):
        filling.append(_names(1)[0], BATCH, 1, 1)
    filling.store.shutdown()


def fill_index(directory: Path, files: int) -> None:
    """Writes messages whose keys fill this many index files."""
    fill_topics(directory, 1)
    filling = Filling(directory, max_hash_slot_num=FEW_KEYS["maxHashSlotNum"], max_index_num=FEW_KEYS["maxIndexNum"])
    for _ in range(0, files * FEW_KEYS["maxIndexNum"] // 2, BATCH):  # UNIQ_KEY and one key
        filling.append(_names(1)[0], BATCH, 1)
    filling.store.shutdown()


def fill_waiting(directory: Path, count: int) -> None:
    """Writes delayed messages that wait."""
    if count:
        fill_delayed(directory, count, WAIT_S)
    else:
        fill_topics(directory, 1)


def _log_of(directory: Path, mib: int, keeps: bool) -> MessageStore:
    fill_topics(directory, TOPICS_OF_LOG)
    filling = Filling(directory, keeps)
    while filling.store.max_offset < mib * MIB:
        for name in _names(TOPICS_OF_LOG):
            filling.append(name, BATCH, 1024)
    return filling.store


def _names(count: int) -> list[str]:
    return [f"topic{number:06d}" for number in range(count)]


def _write(directory: Path, name: str, content: bytes) -> None:
    (directory / "config").mkdir(parents=True, exist_ok=True)
    (directory / "config" / name).write_bytes(content)


AXES = {
    "topics": Axis("topics", (1, 1_000, 10_000, 100_000), fill_topics),
    "offsets": Axis("consumer offsets", (1_000, 10_000, 100_000, 1_000_000), fill_offsets),
    "queues": Axis("queues", (8, 2_000, 20_000, 200_000), fill_queues, FEW_UNITS),
    "log": Axis("MiB of log", (100, 1_000, 5_000, 20_000), fill_log),
    "unsynced": Axis("MiB of log after the watermark", (1, 100, 500, 2_000), fill_unsynced, is_lost=True),
    "entries": Axis("entries of one queue", (10_000, 100_000, 1_000_000, 10_000_000), fill_entries),
    "index": Axis("index files", (1, 10, 100, 1_000), fill_index, FEW_KEYS),
    "delayed": Axis("delayed messages", (0, 10_000, 100_000, 1_000_000), fill_waiting),
}


# -- starts -----------------------------------------------------------------------------------------------------------


def measure(name: str, size: int, with_java: bool) -> Iterator[tuple[str, Start | str]]:
    """Yields what was done and what the start took, or why there was none."""
    axis = AXES[name]
    with scratch_directory() as scratch:
        directory = Path(scratch) / "store"
        _fill_elsewhere(name, directory, size)
        for kind in ("rucola", "java") if with_java else ("rucola",):
            try:
                yield from _starts(kind, axis, directory)
            except PeerError as error:
                yield f"{kind}, no start", str(error).partition("\n")[0]


def _starts(kind: str, axis: Axis, directory: Path) -> Iterator[tuple[str, Start | str]]:
    pair = servers(kind, settings=axis.settings, store=directory)
    with _started(pair) as first:
        if axis.is_lost:
            yield f"{kind}, killed", first
    if axis.is_lost:
        return
    with _started(pair := servers(kind, settings=axis.settings, store=directory)) as clean:
        yield f"{kind}, stopped", clean
        begin = time.perf_counter()
        pair.restart()
        yield f"{kind}, killed", _first_send(pair, begin)


@contextmanager
def _started(pair: Servers) -> Iterator[Start]:
    begin = time.perf_counter()
    with pair:
        yield _first_send(pair, begin)


def _first_send(pair: Servers, begin: float) -> Start:
    make_topic(pair.namesrv, pair.broker, TOPIC)
    seconds = time.perf_counter() - begin
    return Start(seconds, sum(map(cpu_seconds, pair.pids)), sum(map(_peak_mb, pair.pids)))


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise PeerError(f"process {pid} has no memory")


def _fill_elsewhere(name: str, directory: Path, size: int) -> None:
    """Fills the store in a process of its own, whose memory and patched syncs end with it."""
    command = [sys.executable, "-m", "bench.start_growth", "--fill", str(directory), "--size", str(size), name]
    environment = {**os.environ, **OURS, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=FILL_TIMEOUT_S)
    os.sync()


def main() -> int:
    """Prints a line for each start."""
    parser = argparse.ArgumentParser(prog="python -m bench.start_growth", description=__doc__)
    parser.add_argument("--java", action="store_true", help="also start the official servers")
    parser.add_argument("--quick", action="store_true", help="leave out the largest size of each axis")
    parser.add_argument("--size", type=int, help="measure this size only")
    parser.add_argument("--fill", type=Path, metavar="DIRECTORY", help="only write the store of one axis and size")
    parser.add_argument("axis", nargs="*", help=f"axes to measure: {', '.join(AXES)}; all by default")
    options = parser.parse_args()
    if unknown := [name for name in options.axis if name not in AXES]:
        parser.error(f"no axis {', '.join(unknown)}; there are {', '.join(AXES)}")
    if options.fill is not None:
        AXES[options.axis[0]].fill(options.fill, options.size)
        return 0
    print(f"{'':44}{'':20}{'s':>8} {'CPU s':>6} {'MB':>5}")
    for name in options.axis or AXES:
        sizes = AXES[name].sizes[: -1 if options.quick else None] if options.size is None else (options.size,)
        for size in sizes:
            for what, start in measure(name, size, options.java):
                print(f"{size:>12,} {AXES[name].unit:<31}{what:<20}{start}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
