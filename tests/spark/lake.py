"""Tests archives at full size: ``python -m tests.spark.lake goldens``, ``schedules``, ``kills`` or ``moments``.

``goldens``: each golden store with a log is archived raw and restored; log and configuration must have the same
SHA-256. ``schedules``: random orders of archives, compactions and changes of a store (``raw_schedules``). ``kills``:
processes archive a store that grows, and are killed at random calls of a commit or at random times; in the end the
table must hold the messages of the log. ``moments``: messages are sent, archived, compacted and deleted from the store;
at random moments, ``topic_table`` must hold each sent message exactly once. The exit status is 1 if a test fails.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from tests.golden.loader import BROKER_STORES, DAMAGE_STORES, STORES, load_files, write_files
from tests.lake.raw_schedules import Schedule
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store
from tests.unit.lake.logs import delta_log

from rucola.arrow.topic_dataset import TopicDataset, topic_options
from rucola.errors import RucolaError, StoreDamagedError
from rucola.lake.archiver import Archiver
from rucola.lake.maintenance import compact
from rucola.runtime.files import Files
from rucola.spark.archive import archive, archive_raw, restore, topic_table
from rucola.spark.session import local_session
from rucola.store.message_store import MessageStore

COMMIT_CALLS = ("write_file", "link", "sync_directory", "rename", "sync_file", "remove", "make_directory")
TOPIC = b"flights"
ORDER = [(name, "ascending") for name in ("topic", "queueId", "queueOffset")]


def goldens() -> bool:
    """Archives and restores all golden stores."""
    found: Counter[str] = Counter()
    for place in (STORES, BROKER_STORES, DAMAGE_STORES):
        for path in sorted(place.glob("*.tar.xz")):
            name = path.name.removesuffix(".tar.xz")
            with tempfile.TemporaryDirectory() as directory:
                found[outcome := _same_golden(place, name, Path(directory))] += 1
            if outcome != "identical":
                print(f"{place.name}/{name}: {outcome}", flush=True)
    print(dict(found), flush=True)
    return not found["different"]


def _same_golden(place: Path, name: str, directory: Path) -> str:
    write_files(load_files(place, name), directory / "store")
    if not any((directory / "store" / part).exists() for part in ("commitlog", "consumequeue")):
        return "no store"
    try:
        archive_raw(directory / "table", directory / "store")
    except StoreDamagedError as error:
        return f"refused: {error.args[2]}"
    restore(directory / "table", directory / "new", rebuild=False)
    return "identical" if _digests(directory / "new") == _digests(directory / "store") else "different"


def schedules(count: int, seed: int) -> bool:
    """Runs random schedules of raw archives, and prints the seeds of those that fail."""
    wrong = 0
    for number in range(seed, seed + count):
        with tempfile.TemporaryDirectory() as directory:
            try:
                Schedule(Path(directory), number).run()
            except (RucolaError, AssertionError) as error:
                wrong += 1
                print(f"seed {number}: {str(error)[:300]}", flush=True)
    print(f"{count} schedules, {wrong} wrong", flush=True)
    return not wrong


def _digests(store: Path) -> dict[str, str]:
    """The digests of segments and tables; files of others stay where they are."""
    paths = [path for path in (store / "commitlog").rglob("*") if path.name.isdigit()]
    paths += [path for path in (store / "config").rglob("*") if path.is_file()]
    return {path.relative_to(store).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths}


class DyingFiles(Files):
    """Kills the process that uses it, before or after the n-th call that changes the disk."""

    def __init__(self, countdown: int) -> None:
        self.countdown = countdown

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in COMMIT_CALLS:
            return method

        def call(*arguments: Any) -> Any:
            self.countdown -= 1
            if self.countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            result = method(*arguments)
            self.countdown -= 1
            if self.countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call


def archive_until_killed(store: str, table: str, countdown: int) -> None:
    """Archives until the process is killed; it kills itself if ``countdown`` is not 0."""
    log = delta_log(table, files=DyingFiles(countdown) if countdown else None)
    archiver = Archiver(log, topic_options(store, None, ""), messages_per_commit=400)
    while True:
        for _ in archiver.steps():
            pass
        time.sleep(0.02)


def kills(count: int, seed: int) -> bool:
    """Kills archiving processes; two of them always write the same table at the same time."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        store = open_store(directory / "store", segment_bytes=1 << 20, queue_file_units=4000)
        runs, killed, sent = [], Counter[str](), 0
        try:
            while sum(killed.values()) < count:
                while len(runs) < 2:
                    runs.append(_start_run(directory, choose))
                for _ in range(200):
                    _put(store, sent)
                    sent += 1
                store.dispatch()
                time.sleep(0.05)
                for run in list(runs):
                    process, deadline, countdown = run
                    if countdown == 0 and time.monotonic() > deadline:
                        process.kill()
                    if process.poll() is not None:
                        runs.remove(run)
                        if process.returncode != -signal.SIGKILL:
                            print((directory / "run.log").read_text()[-3000:], flush=True)
                            return False
                        killed["in a commit" if countdown else "at some time"] += 1
        finally:
            for process, _, _ in runs:
                process.kill()
                process.wait()
            store.shutdown()
        archive(directory / "table", store=directory / "store")
        return _same_table(directory, killed)


def _start_run(directory: Path, choose: random.Random) -> tuple[subprocess.Popen[bytes], float, int]:
    countdown = choose.randint(1, 120) if choose.random() < 0.7 else 0
    command = [sys.executable, "-m", "tests.spark.lake", "archive", str(directory / "store"), str(directory / "table")]
    with (directory / "run.log").open("ab") as log:
        process = subprocess.Popen([*command, str(countdown)], stdout=log, stderr=log)
    return process, time.monotonic() + choose.uniform(1.5, 6.0), countdown


def _same_table(directory: Path, killed: Counter[str]) -> bool:
    log = delta_log(directory / "table")
    snapshot = log.snapshot()
    rows = ds.dataset([f"{log.place.root}/{path}" for path in snapshot.files], format="parquet").to_table()
    wanted = TopicDataset(topic_options(directory / "store", None, "")).to_table().sort_by(ORDER)
    same = rows.select(wanted.schema.names).sort_by(ORDER).equals(wanted)
    left = sum(1 for _ in (directory / "table").rglob("*.parquet")) - len(snapshot.files)
    print(
        f"killed {dict(killed)}; {wanted.num_rows} messages, {rows.num_rows} rows in {snapshot.version + 1} commits, "
        f"{left} files left over; table {'equals' if same else 'DIFFERS FROM'} log",
        flush=True,
    )
    return same


def _put(store: MessageStore, number: int) -> None:
    one = message(number, TOPIC)
    one.body = b"%d" % number
    one.store_host = store.store_host
    store.put_message(one)


class Scene:
    """A store that grows in one thread, while other threads archive it, compact the archive and expire segments."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.table = directory / "table"
        self.sent = 0
        self.deleted = 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,)) for work in (self._send, self._archive, self._shorten)
        ]

    def __enter__(self) -> Scene:
        for thread in self._threads:
            thread.start()
            time.sleep(0.5)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.error = error
            self._stop.set()

    def _send(self) -> None:
        store = open_store(self.directory / "store", segment_bytes=64 << 10, queue_file_units=2000)
        while not self._stop.wait(0.05):
            for _ in range(20):
                _put(store, self.sent)
                store.dispatch()
                self.sent += 1
        store.shutdown()

    def _archive(self) -> None:
        archive(self.table, TOPIC.decode(), store=self.directory / "store", every_s=0.3, stop=self._stop)

    def _shorten(self) -> None:
        """Deletes segments whose messages are all archived, as retention does; compacts the archive now and then."""
        round_ = 0
        while not self._stop.wait(0.4):
            round_ += 1
            if round_ % 5 == 0:
                compact(delta_log(self.table))
            offsets = delta_log(self.table).snapshot().offsets
            if not offsets.marks:
                continue
            # Queues get messages in turn and are archived in order, so all records below the smallest offset are
            # archived.
            least = min(mark.physical_offset for mark in offsets.marks.values())
            for path in sorted((self.directory / "store" / "commitlog").iterdir()):
                if int(path.name) + (64 << 10) <= least:
                    path.unlink()
                    self.deleted += 1


def moments(count: int, seed: int) -> bool:
    """Evaluates ``topic_table`` at random moments."""
    choose = random.Random(seed)
    spark = local_session("moments")
    with tempfile.TemporaryDirectory() as name:
        with Scene(Path(name)) as scene:
            wrong = sum(not _right_moment(spark, scene, choose) for _ in range(count))
        if scene.error is not None:
            raise scene.error
        print(f"{count} moments, {scene.sent} messages, {scene.deleted} segments deleted, {wrong} wrong", flush=True)
    spark.stop()
    return not wrong


def _right_moment(spark: Any, scene: Scene, choose: random.Random) -> bool:
    time.sleep(choose.uniform(0.0, 0.5))
    before = scene.sent
    try:
        rows = topic_table(spark, TOPIC.decode(), scene.table, store=scene.directory / "store", columns=["body"])
        after = scene.sent + 20
        time.sleep(choose.uniform(0.0, 1.0))  # retention continues between plan and read
        found = sorted(int(bytes(row.body)) for row in rows.collect())
    except RucolaError as error:
        print(f"at {before} messages: {error!r}", flush=True)
        return False
    right = found == list(range(len(found))) and before <= len(found) <= after
    if not right:
        missing = set(range(before)) - set(found)
        print(f"at {before} messages: {len(found)} rows, {len(missing)} missing, {_twice(found)} twice", flush=True)
    return right


def _twice(found: Iterable[int]) -> int:
    return sum(number > 1 for number in Counter(found).values())


def main(arguments: list[str]) -> int:
    """Runs one of the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["goldens", "schedules", "kills", "moments"])
    parser.add_argument("--count", type=int, default=20, help="number of schedules, kills or moments")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args(arguments)
    print(f"{options.what}, seed {options.seed}", flush=True)
    work = {"schedules": schedules, "kills": kills, "moments": moments}.get(options.what)
    return not (goldens() if work is None else work(options.count, options.seed))


if __name__ == "__main__":
    if sys.argv[1:2] == ["archive"]:
        archive_until_killed(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    sys.exit(main(sys.argv[1:]))
