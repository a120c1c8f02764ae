"""Stores with one flipped bit in a record of their log: they must start, and may lose at most that message.

    python -m tests.crash.bitflips --variants 2000 --jobs 2
    python -m tests.crash.bitflips --seed 217 --variants 1
    python -m tests.crash.bitflips --variants 2000 --record        # runs the official store, needs Java

The same seed always gives the same variant. Seeds go through the stores and the fields in turn; record and bit are
random. The stores were written by RocketMQ 4.9.7 or 5.3.3, stopped or killed, or by Rucola. Each result is compared
with what the official store of that version serves from the same bytes (``damage_stores/answers.json.xz``):

* start-up ends within 10 s plus the time that the undamaged store takes, and creates files of at most twice the log's
  length;
* the store serves every message that the official store serves, except perhaps the message with the flipped bit, which
  may be withheld if a log line and a finding of ``verify`` name its position;
* a store that refuses to start reports file and position, and serves the same messages with ``quarantine``;
* ``verify`` reports only this record, and leaves no descriptor open.

If Rucola wrote the store, or the official store does not open the variant, all other messages must be served. The exit
code is 1 after a violation.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import lzma
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from tests.golden.loader import DAMAGE_STORES, load, load_files, write_files
from tests.plain_log import read_log

from rucola.common.message import StoreMessage
from rucola.common.options import options_of, parse_options
from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files
from rucola.runtime.logs import KeyValueFormatter
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.recovery.watermark import WatermarkFile
from rucola.store.results import GetMessageStatus, PutMessageStatus
from rucola.store.verify.check import VerifyReport, verify
from rucola.store.verify.findings import FindingKind
from rucola.testing.clock import ManualClock

LIMIT_S = 10
NOW_MS = 1_900_000_000_000
ANSWERS = DAMAGE_STORES / "answers.json.xz"
RECORDED = 2000
"""Number of variants for which the result of the official store is recorded."""
GEOMETRY = {
    "mappedFileSizeCommitLog": "16384",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
FIXED = {
    "total_size": (0, 4),
    "magic": (4, 4),
    "body_crc": (8, 4),
    "queue_id": (12, 4),
    "flag": (16, 4),
    "queue_offset": (20, 8),
    "physical_offset": (28, 8),
    "sys_flag": (36, 4),
    "born_timestamp": (40, 8),
    "born_host": (48, 8),
    "store_timestamp": (56, 8),
    "store_host": (64, 8),
    "reconsume_times": (72, 4),
    "prepared_transaction_offset": (76, 8),
    "body_length": (84, 4),
}
"""Position and length of the fields before the body; both hosts are IPv4."""
FIELDS = [*FIXED, "body", "topic_length", "topic", "properties_length", "properties"]
NAMED = ("queue_id", "queue_offset", "physical_offset", "topic")
"""Fields that say which message a record contains. If one is damaged, the record is reported, not its unit or
its keys.
"""
BLAMES_OTHERS = (
    FindingKind.UNIT,
    FindingKind.UNIT_TAGS,
    FindingKind.UNIT_WITHOUT_RECORD,
    FindingKind.RECORD_WITHOUT_UNIT,
    FindingKind.QUEUE_HOLE,
    FindingKind.INDEX_ENTRY,
    FindingKind.STALE_UNIT,
)
Served = dict[str, list[int]]
"""Physical offsets of the pulled messages, by ``topic/queueId``."""


class Violation(AssertionError):  # noqa: N818 - what it says
    """Raised if the store did something at start-up that it must not do."""


class OutOfTimeError(Exception):
    """Raised if start-up did not end in time."""


@dataclass(frozen=True)
class Base:
    """A store without damage.

    Attributes:
        version: version of the official store that wrote it; empty for a store of Rucola.
        places: physical offset and length of each record.
    """

    name: str
    version: str
    options: dict[str, str]
    files: dict[str, bytes]
    places: list[tuple[int, int]]
    batch_topic: str = ""

    @property
    def segment_bytes(self) -> int:
        return int(self.options["mappedFileSizeCommitLog"])

    @property
    def log_bytes(self) -> int:
        return sum(len(data) for path, data in self.files.items() if path.startswith("commitlog/"))

    def config(self, path: Path, quarantine: bool) -> MessageStoreConfig:
        known = {entry.key for entry in options_of(MessageStoreConfig)}
        values = {key: value for key, value in self.options.items() if key in known}
        values |= {"storePathRootDir": str(path), "quarantine": str(quarantine).lower()}
        return parse_options(MessageStoreConfig, values)

    def opened(self, path: Path, quarantine: bool = False) -> MessageStore:
        """Opens and starts the store in ``path``."""
        topic = self.batch_topic.encode()
        store = MessageStore(
            self.config(path, quarantine), Files(), ManualClock(NOW_MS), is_batch_topic=lambda name: name == topic
        )
        store.load()
        return store


STORES = (
    "rocketmq_4_9_7_clean",
    "rocketmq_4_9_7_killed",
    "rocketmq_5_3_3_clean",
    "rocketmq_5_3_3_killed",
    "inner_batch_roll",
    "ours_clean",
    "ours_killed",
    "ours_killed_without_crc",
)


@cache
def base(name: str) -> Base:
    """Returns the store called ``name``."""
    options, version, batch_topic = GEOMETRY | {"enabledAppendPropCRC": "false"}, "", ""
    if name.startswith("rocketmq"):
        files = load_files(DAMAGE_STORES, name)
        version = ".".join(name.split("_")[1:4])
    elif name.startswith("ours"):
        options["enabledAppendPropCRC"] = str(not name.endswith("without_crc")).lower()
        files = _written(options, killed="killed" in name)
    else:
        case = load(name)
        files, version, batch_topic = dict(case.files), "5.3.3", "BatchTopic"
        options |= {key: str(value) for key, value in case.case["config"].items()}
    files.pop("lock", None)
    files.setdefault("config/topics.json", b'{"topicConfigTable":{}}')  # as if a broker had used the store
    log = read_log(_log_files(files), int(options["mappedFileSizeCommitLog"]))
    return Base(
        name, version, options, files, [(one.physical_offset, len(one.data)) for one in log.records], batch_topic
    )


def _log_files(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: data for path, data in files.items() if path.startswith("commitlog/")}


def _written(options: dict[str, str], killed: bool) -> dict[str, bytes]:
    """Writes a store with Rucola and syncs all of it."""
    with tempfile.TemporaryDirectory(prefix="rucola-flips-") as directory:
        path = Path(directory) / "store"
        known = {entry.key for entry in options_of(MessageStoreConfig)}
        values = {key: value for key, value in options.items() if key in known} | {"storePathRootDir": str(path)}
        config = replace(
            parse_options(MessageStoreConfig, values),
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
            flush_interval_consume_queue_ms=1,
            flush_consume_queue_thorough_interval_ms=1,
        )
        clock = ManualClock(1_700_000_000_000, step_ms=1)
        store = MessageStore(config, Files(), clock)
        store.load()
        store.start()
        for number in range(214):
            topic, queue_id = ((b"Orders", number % 4), (b"Flights", number % 2), (b"Orders", number % 4))[number % 3]
            properties = b"UNIQ_KEY\x01%032X\x02KEYS\x01order-%d k%d\x02TAGS\x01Tag%d\x02" % (
                number,
                number,
                number % 7,
                number % 3,
            )
            body = b"body %d " % number + b"x" * (30 + 37 * number % 200)
            message = StoreMessage(topic, queue_id, body, properties, 1_700_000_000_000, bytes(8))
            assert store.put_message(message).status is PutMessageStatus.PUT_OK
        if killed:
            _settle(store, clock)
        else:
            store.dispatch()
            store.shutdown()
        # The lock file is not read, because closing it would release the lock.
        files = {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if _is_kept(one)}
        if killed:
            store.shutdown()
            files["abort"] = b"1"
        return files


def _settle(store: MessageStore, clock: ManualClock) -> None:
    """Waits until the watermark covers the whole store."""
    deadline, watermark = time.monotonic() + LIMIT_S, WatermarkFile(Files(), store.root)
    while time.monotonic() < deadline:
        store.dispatch()
        clock.advance(10)
        known = watermark.read()
        if known is not None and min(known.flushed_offset, known.queues_offset) == store.max_offset:
            return
        time.sleep(0.002)
    raise TimeoutError("the watermark does not follow")


def _is_kept(path: Path) -> bool:
    return path.is_file() and path.name != "lock"


@dataclass(frozen=True)
class Variant:
    """One store with one flipped bit in a record.

    Attributes:
        place: physical offset of the record.
    """

    seed: int
    base: Base
    field: str
    place: int
    files: dict[str, bytes]
    text: str

    @property
    def log_file(self) -> str:
        """Path of the segment that holds the record, relative to the store."""
        return f"commitlog/{self.place - self.place % self.base.segment_bytes:020d}"


def variant(seed: int) -> Variant:
    """Returns the variant that belongs to a seed."""
    random = Random(seed)
    name = FIELDS[seed % len(FIELDS)]
    store = base(STORES[seed // len(FIELDS) % len(STORES)])
    place, size = random.choice(store.places)
    path, position = f"commitlog/{place - place % store.segment_bytes:020d}", place % store.segment_bytes
    data = bytearray(store.files[path])
    start, length = _span(bytes(data[position : position + size]), name)
    bit = random.randrange(8 * length)
    data[position + start + bit // 8] ^= 128 >> bit % 8
    text = f"seed {seed}: {store.name}, record at {place}, {name}, bit {bit}"
    return Variant(seed, store, name, place, store.files | {path: bytes(data)}, text)


def _span(record: bytes, name: str) -> tuple[int, int]:
    """Returns position and length of a field; if the field is empty, those of the body or the topic."""
    if name in FIXED:
        return FIXED[name]
    body = int.from_bytes(record[84:88], "big")
    topic_at = 88 + body
    width = 2 if record[7] & 0xF == 0xB else 1
    topic = int.from_bytes(record[topic_at : topic_at + width], "big")
    properties_at = topic_at + width + topic
    spans = {
        "body": (88, body) if body else FIXED["body_length"],
        "topic_length": (topic_at, width),
        "topic": (topic_at + width, topic),
        "properties_length": (properties_at, 2),
        "properties": (properties_at + 2, int.from_bytes(record[properties_at : properties_at + 2], "big")),
    }
    return spans[name]


# -- the official store -----------------------------------------------------------------------------------------------


@cache
def answers() -> dict[str, Any]:
    """Returns what the official store serves: all messages of each undamaged store, and the differences for
    each seed.
    """
    recorded: dict[str, Any] = json.loads(lzma.decompress(ANSWERS.read_bytes()))
    return recorded


def official(damaged: Variant) -> Served | None:
    """Returns the messages that the official store serves from a variant; None if it does not open the variant, or if
    Rucola wrote the store.
    """
    recorded = answers().get(damaged.base.name)
    if recorded is None:
        return None
    if damaged.seed >= RECORDED:
        raise SystemExit(f"seed {damaged.seed}: answers are recorded for seeds below {RECORDED}; see --record")
    change = recorded["flips"].get(str(damaged.seed), {})
    if change is None:
        return None
    return {name: change.get(name, places) for name, places in (recorded["whole"] | change).items()}


def official_command(store: Base, version: str) -> list[str]:
    """Returns the command of a program that reads names of directories, opens the store in each, and prints what it
    serves.
    """
    from tests.conformance.store.run import HERE, JAVA_OPENS
    from tools.peers.packages import PEERS, java_program

    options = store.options | ({"batchTopic": store.batch_topic} if store.batch_topic else {})
    options.pop("enabledAppendPropCRC")
    limits = [f"-Drocketmq.broker.diskSpace{key}Ratio=0.99" for key in ("WarningLevel", "CleanForcibly")]
    return [
        *("java", "-Xmx1g", f"-Duser.home={PEERS}", *limits),
        *(f"--add-opens={opened}=ALL-UNNAMED" for opened in JAVA_OPENS),
        *("-cp", java_program(HERE / "java", version), "stores.DamagedStores"),
        *(f"{key}={value}" for key, value in options.items()),
    ]


def record(variants: int) -> None:
    """Runs the official stores and records what they serve."""
    recorded = {}
    for name in STORES:
        store = base(name)
        if not store.version:
            continue
        command = official_command(store, store.version)
        seeds = [seed for seed in range(variants) if STORES[seed // len(FIELDS) % len(STORES)] == name]
        with (
            tempfile.TemporaryDirectory(prefix="rucola-flips-") as directory,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java,
        ):
            whole = ask(java, store.files, Path(directory))["queues"]
            flips: dict[str, Any] = {}
            for seed in seeds:
                answer = ask(java, variant(seed).files, Path(directory))
                if "error" in answer:
                    print(f"{variant(seed).text}: {answer['error']}")
                    flips[str(seed)] = None
                elif answer["queues"] != whole:
                    flips[str(seed)] = {
                        queue: answer["queues"].get(queue, [])
                        for queue in whole | answer["queues"]
                        if answer["queues"].get(queue, []) != whole.get(queue)
                    }
            java.stdin.close()  # type: ignore[union-attr]
        recorded[name] = {"whole": whole, "flips": flips}
        print(f"{name}: {len(seeds)} variants, {len(flips)} differ")
    ANSWERS.write_bytes(lzma.compress(json.dumps(recorded, separators=(",", ":")).encode(), preset=9))


def ask(java: subprocess.Popen[str], files: dict[str, bytes], directory: Path) -> dict[str, Any]:
    """Writes ``files`` below ``directory`` and opens them with the official store; returns what this store serves."""
    assert java.stdin is not None and java.stdout is not None
    path = directory / "store"
    write_files(files, path)
    java.stdin.write(f"{path}\n")
    java.stdin.flush()
    answer: dict[str, Any] = json.loads(java.stdout.readline())
    shutil.rmtree(path, ignore_errors=True)
    return answer


# -- our store --------------------------------------------------------------------------------------------------------


@dataclass
class Lines(logging.Handler):
    """The lines that the package logs."""

    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.setFormatter(KeyValueFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    __hash__ = logging.Handler.__hash__


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yields a list to which the lines that the package logs are added."""
    handler, logger = Lines(), logging.getLogger("rucola")
    before = logger.level, logger.propagate, logging.root.manager.disable
    logging.disable(logging.NOTSET)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        logging.disable(before[2])


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises ``OutOfTimeError`` if the block takes longer than ``seconds``."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError(f"not finished after {seconds:.1f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@cache
def clean_seconds(name: str) -> float:
    """Returns the start-up time of the undamaged store in seconds."""
    store = base(name)
    with tempfile.TemporaryDirectory(prefix="rucola-flips-") as directory:
        path = Path(directory) / "store"
        write_files(store.files, path)
        begin = time.monotonic()
        store.opened(path).shutdown()
        return time.monotonic() - begin


def check(damaged: Variant, path: Path) -> str:
    """Opens the variant in the new directory ``path``; returns a description of the result.

    Raises:
        Violation: the store did something at start-up that it must not do.
    """
    store, text = damaged.base, damaged.text
    write_files(damaged.files, path)
    report = _verified(damaged, path)
    verdict, seconds = "", LIMIT_S + clean_seconds(store.name)
    with logged() as lines:
        try:
            with limited(seconds):
                opened = _open(damaged, path)
                if opened is None:
                    verdict = "refused, "
                    opened = store.opened(path, quarantine=True)
        except (OutOfTimeError, ValueError, StoreDamagedError) as error:
            raise Violation(f"{text}: {verdict}{type(error).__name__}: {error}") from error
        grown = sum(one.stat().st_size for one in path.rglob("*") if one.is_file()) - sum(
            map(len, damaged.files.values())
        )
        if grown > 2 * store.log_bytes:
            raise Violation(f"{text}: {grown} bytes of new files, the log has {store.log_bytes}")
        opened.start()
        served = served_by(damaged, opened)
        again = served_by(damaged, opened)
        opened.shutdown()
        if served != again:
            raise Violation(f"{text}: the second pulls give something else")
        opened = store.opened(path, quarantine=bool(verdict))
        opened.start()
        if (later := served_by(damaged, opened)) != served:
            raise Violation(f"{text}: the next start serves {_difference(later, served)}")
        opened.shutdown()
    return verdict + _judge(damaged, served, lines, report)


def _open(damaged: Variant, path: Path) -> MessageStore | None:
    """Opens the store; returns None if it refuses to start, which is allowed."""
    try:
        return damaged.base.opened(path)
    except StoreDamagedError as error:
        segment = str(path / damaged.log_file)
        if error.path != segment or error.position != damaged.place % damaged.base.segment_bytes:
            raise Violation(f"{damaged.text}: refused with another place: {error}") from error
        return None


def served_by(damaged: Variant, store: MessageStore) -> Served:
    """Pulls all messages and compares them with the bytes of the log; returns them."""
    log = _log_files(damaged.files)
    size_of = dict(damaged.base.places)
    served: Served = {}
    for topic, queue_id in store.queue_names():
        found: list[int] = []
        at = store.min_queue_offset(topic, queue_id)
        end = store.max_queue_offset(topic, queue_id)
        if end - at > len(damaged.base.places) * 40:
            raise Violation(f"{damaged.text}: {topic!r} {queue_id} goes from {at} to {end}")
        while at < end:
            result = store.get_message(topic, queue_id, at, 1, 1 << 20)
            if result.status is GetMessageStatus.FOUND:
                place = store.queue_unit(topic, queue_id, result.next_offset - 1)[0]
                segment = place - place % damaged.base.segment_bytes
                data = b"".join(map(bytes, result.views))
                if log[f"{segment:020d}"][place - segment :][: len(data)] != data or size_of.get(place) != len(data):
                    raise Violation(f"{damaged.text}: {topic!r} {queue_id} {at} gives other bytes")
                found.append(place)
            if result.next_offset <= at:
                raise Violation(f"{damaged.text}: {topic!r} {queue_id} stays at {at}: {result.status}")
            at = result.next_offset
        served[f"{topic.decode('utf-8', 'surrogateescape')}/{queue_id}"] = found
    return served


@cache
def whole(name: str) -> Served:
    """Returns the messages that the undamaged store serves."""
    store = base(name)
    with tempfile.TemporaryDirectory(prefix="rucola-flips-") as directory:
        path = Path(directory) / "store"
        write_files(store.files, path)
        opened = store.opened(path)
        opened.start()
        served = served_by(Variant(-1, store, "", -1, store.files, store.name), opened)
        opened.shutdown()
        return served


def _judge(damaged: Variant, served: Served, lines: list[str], report: VerifyReport) -> str:
    expected = official(damaged)
    verdict = "as official"
    if expected is None:
        expected, verdict = whole(damaged.base.name), "official fails" if damaged.base.version else "ours"
    for name, places in expected.items():
        missing = set(places) - set(served.get(name, [])) - {damaged.place}
        if missing and name in whole(damaged.base.name):
            raise Violation(f"{damaged.text}: {name} lacks {sorted(missing)}; official has {len(places)}")
    for name, places in served.items():
        if places != sorted(set(places)):
            raise Violation(f"{damaged.text}: {name} gives {places}")
        if name not in whole(damaged.base.name) and set(places) - {damaged.place}:
            raise Violation(f"{damaged.text}: a new queue {name} gives {places}")
    count = sum(map(len, served.values()))
    if count > sum(map(len, expected.values())):
        verdict += ", more" if verdict == "as official" else ""
    if damaged.place not in (place for places in served.values() for place in places):
        position = damaged.place % damaged.base.segment_bytes
        named = [line for line in lines if f"position={position}" in line or f"start={damaged.place}" in line]
        if not named and not any(f"physicalOffset={damaged.place}" in line for line in lines):
            raise Violation(f"{damaged.text}: withheld, and no line names it: {lines}")
        if not any(_names(finding.file, finding.position, damaged) for finding in report.findings):
            raise Violation(f"{damaged.text}: withheld, verify finds {report.findings}")
        verdict += ", withheld"
    return verdict


def _names(file: str, position: int, damaged: Variant) -> bool:
    return file == damaged.log_file and position == damaged.place % damaged.base.segment_bytes


def _verified(damaged: Variant, path: Path) -> VerifyReport:
    """Returns the findings of ``verify``."""
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    report = verify(str(path))
    gc.collect()
    if (after := len(list(Path("/proc/self/fd").iterdir()))) > before:
        raise Violation(f"{damaged.text}: verify left {after - before} descriptors open")
    if damaged.field in NAMED:
        known = whole_report(damaged.base.name).counts
        others = [found for found in report.findings if found.kind in BLAMES_OTHERS and not known.get(found.kind)]
        if others:
            raise Violation(f"{damaged.text}: verify blames {others}")
        if not any(_names(found.file, found.position, damaged) for found in report.findings):
            raise Violation(f"{damaged.text}: verify does not name the record: {report.findings}")
    return report


@cache
def whole_report(name: str) -> VerifyReport:
    """Returns the findings of ``verify`` in the undamaged store."""
    with tempfile.TemporaryDirectory(prefix="rucola-flips-") as directory:
        path = Path(directory) / "store"
        write_files(base(name).files, path)
        return verify(str(path))


def _difference(one: Served, other: Served) -> str:
    return ", ".join(
        f"{name}: {sorted(set(one.get(name, [])) ^ set(other.get(name, [])))}"
        for name in one | other
        if one.get(name) != other.get(name)
    )


def run_one(seed: int) -> tuple[int, str, str, float]:
    """Runs one variant; returns its seed, its field, the verdict or violation, and the seconds."""
    damaged = variant(seed)
    directory = Path(tempfile.mkdtemp(prefix="rucola-flips-"))
    begin = time.monotonic()
    try:
        verdict = check(damaged, directory / "store")
    except Violation as error:
        verdict = f"VIOLATION: {error}"
    except Exception as error:  # noqa: BLE001 - whatever else a start ends with is a violation too
        verdict = f"VIOLATION: {damaged.text}: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return seed, damaged.field, verdict, time.monotonic() - begin


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.bitflips", description="Opens damaged stores.")
    parser.add_argument("--variants", type=int, default=RECORDED)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first variant; the others follow")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="run the official stores again")
    options = parser.parse_args()
    if options.record:
        record(options.variants)
        return 0
    begin, slowest, violations = time.monotonic(), 0.0, 0
    table: dict[str, Counter[str]] = {name: Counter() for name in FIELDS}
    seeds = range(options.seed, options.seed + options.variants)
    print(f"flipped bits: {options.variants} variants from seed {options.seed} on")
    with ProcessPoolExecutor(options.jobs) as pool:
        for seed, name, verdict, seconds in pool.map(run_one, seeds, chunksize=8):
            slowest = max(slowest, seconds)
            if verdict.startswith("VIOLATION"):
                violations += 1
                print(f"{verdict}\nagain: python -m tests.crash.bitflips --seed {seed} --variants 1", flush=True)
            table[name]["violated" if verdict.startswith("VIOLATION") else verdict] += 1
    for name, counts in table.items():
        print(f"{name:28} " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    print(f"{violations} violations; slowest {slowest:.1f} s, all {time.monotonic() - begin:.0f} s")
    return int(violations > 0)


if __name__ == "__main__":
    sys.exit(main())
