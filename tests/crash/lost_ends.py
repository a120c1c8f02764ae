"""Stores that lost one sector of their log: no reader may deliver a record with other bytes than were stored.

    python -m tests.crash.lost_ends --variants 2000 --jobs 2
    python -m tests.crash.lost_ends --seed 217 --variants 1

The log of the store was written in turn by RocketMQ (here: records without checksum, and the watermark left alone), by
Rucola, by RocketMQ, by Rucola without ``enabledAppendPropCRC``, and by Rucola. The same seed always gives the same
variant: one sector of 512 bytes becomes zeros, 0xA5 bytes or another sector of the log. Even seeds choose a sector of a
stretch that Rucola wrote with checksums, odd ones a sector outside.

Five readers are asked for every message: a broker's pull and its query by key, ``OfflineStore`` (``store cat``), and a
scan of Arrow and Spark in log order and in queue order. A start that refuses the store is repeated with ``quarantine``.
The exit code is 1 if a reader delivered wrong bytes of a stretch, or if ``verify`` missed the loss of a sector there.
Scans do not compare checksums, so for them only records count that lost their end; the others are printed. Outside of
the stretches, a lost end cannot be told from a record that never had a checksum; the share is printed.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pyarrow as pa
from tests.golden.loader import write_files
from tests.unit.store.stores import with_topics

from rucola.arrow.ranges import QueueRange
from rucola.arrow.read_options import ReadOptions, ScanOrder, Subscription
from rucola.arrow.reading import open_catalog, read_range
from rucola.common.message import MessageExt, StoreMessage
from rucola.errors import FormatError, StoreDamagedError
from rucola.formats.message import decode_message
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.results import GetMessageStatus
from rucola.store.verify.check import verify
from rucola.testing.clock import ManualClock

SECTOR = 512
SEGMENT = 32768
TOPICS, QUEUES = 3, 2
RUNS = (("java", 60), ("ours", 90), ("java", 40), ("ours", 80), ("unchecked", 40), ("ours", 90))
KINDS = ("zeros", "0xA5", "another sector")


@dataclass(frozen=True)
class Base:
    """The undamaged store: its files, its records by physical offset, and its stretches as pairs of offsets."""

    files: dict[str, bytes]
    records: dict[int, bytes]
    stretches: tuple[int, ...]
    end: int

    def is_inside(self, physical_offset: int) -> bool:
        """Whether Rucola wrote the record there with a checksum."""
        pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
        return any(start <= physical_offset < end for start, end in pairs)

    def has_record(self, at: int) -> bool:
        """Whether a record has bytes in the sector at ``at``; behind the last record of a segment there is none."""
        return any(place < at + SECTOR and place + len(record) > at for place, record in self.records.items())


@dataclass(frozen=True)
class Outcome:
    """What the readers made of one variant.

    Attributes:
        wrong: for each wrong record that was delivered: whether it lies in a stretch, and the reader.
        unchecked: whether a scan delivered a record of a stretch that still has its end, but is damaged elsewhere.
    """

    text: str
    inside: bool
    wrong: tuple[tuple[bool, str], ...]
    missed: bool
    unchecked: bool


def opened(path: Path, **options: object) -> MessageStore:
    config = MessageStoreConfig(
        store_path_root_dir=str(path),
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=20000,
        max_hash_slot_num=500,
        max_index_num=4000,
        **options,  # type: ignore[arg-type]
    )
    store = MessageStore(config, Files(), ManualClock(step_ms=1))
    store.load()
    store.start()
    return store


@cache
def base() -> Base:
    """Writes the store."""
    random, number = Random(1), 0
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        mark, kept = path / "rucola-watermark", path / "kept"
        for writer, count in RUNS:
            if writer == "java" and mark.exists():
                mark.rename(kept)
            store = opened(path, enabled_append_prop_crc=writer == "ours")
            for _ in range(count):
                text = b"KEYS\x01k%d\x02a\x01%d\x02" % (number, number) + b"note\x01%s\x02" % (
                    b"n" * random.randrange(600)
                )
                text += b"".join(b"p%d\x01%d\x02" % (at, number) for at in range(random.randrange(12)))
                topic, body = b"T%d" % random.randrange(TOPICS), random.randbytes(random.randrange(400))
                store.put_message(StoreMessage(topic, random.randrange(QUEUES), body, text, 1, bytes(8)))
                number += 1
            store.dispatch()
            store.shutdown()
            if writer == "java":
                mark.unlink()
                if kept.exists():
                    kept.rename(mark)
        offline = OfflineStore(str(path))
        records = {
            place: bytes(offline.record_at(place) or b"")
            for topic, queue_id in offline.queue_names()
            for _, place, _, _ in offline.units(topic, queue_id, 0, 1 << 40)
        }
        stretches, end = tuple(offline.log.stretches or ()), offline.end_offset()
        offline.close()
        files = {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}
        return Base(files, records, stretches, end)


def variant(seed: int) -> Outcome:
    """Makes the variant of a seed and asks all readers."""
    store, random = base(), Random(seed)
    while True:
        at = random.randrange(store.end // SECTOR) * SECTOR
        if store.is_inside(at) == store.is_inside(at + SECTOR - 1) == (seed % 2 == 0) and store.has_record(at):
            break
    kind = random.choice(KINDS)
    other = random.randrange(store.end // SECTOR) * SECTOR
    lost = {"zeros": bytes(SECTOR), "0xA5": b"\xa5" * SECTOR}.get(kind) or _bytes(store, other)
    name = f"commitlog/{at - at % SEGMENT:020d}"
    content = bytearray(store.files[name])
    unchanged = content[at % SEGMENT :][:SECTOR] == lost
    content[at % SEGMENT : at % SEGMENT + SECTOR] = lost
    text = f"seed {seed}: sector at {at} becomes {kind}"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        write_files(store.files | {name: bytes(content)}, path)
        wrong, unchecked = set(), False
        for reader, place, right in _read(path, store):
            if not right:
                inside = store.is_inside(place)
                whole_end = not at < place + len(store.records[place]) <= at + SECTOR + 20
                if inside and whole_end and reader.startswith("scan"):
                    unchecked = True
                else:
                    wrong.add((inside, reader))
        missed = seed % 2 == 0 and not unchanged and verify(with_topics(path)).clean
    return Outcome(text, seed % 2 == 0, tuple(sorted(wrong)), missed, unchecked)


def _bytes(store: Base, at: int) -> bytes:
    return store.files[f"commitlog/{at - at % SEGMENT:020d}"][at % SEGMENT :][:SECTOR]


def _read(path: Path, store: Base) -> Iterator[tuple[str, int, bool]]:
    """Yields for each delivered message the reader, its physical offset, and whether its bytes are right."""
    yield from _offline(path, store)
    yield from _scans(path, store)
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    try:
        broker = opened(copy)
    except StoreDamagedError:
        broker = opened(copy, quarantine=True)
    try:
        yield from _pulled(broker, store)
    finally:
        broker.shutdown()


def _offline(path: Path, store: Base) -> Iterator[tuple[str, int, bool]]:
    offline = OfflineStore(str(path))
    for topic, queue_id in offline.queue_names():
        for queue_offset, place, _, _ in list(offline.units(topic, queue_id, 0, 1 << 40)):
            with suppress(StoreDamagedError):
                for message in offline.messages(topic, queue_id, queue_offset, queue_offset + 1):
                    yield "offline", place, _content(message) == _content(decode_message(store.records[place]))
    offline.close()


def _content(message: MessageExt) -> tuple[object, ...]:
    return (
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.body,
        message.properties,
        message.born_timestamp_ms,
    )


def _scans(path: Path, store: Base) -> Iterator[tuple[str, int, bool]]:
    topics = tuple(f"T{topic}" for topic in range(TOPICS))
    for order in (ScanOrder.LOG, ScanOrder.QUEUE):
        options = ReadOptions(
            store_path=str(path),
            subscription=Subscription(topics=topics),
            scan_order=order,
            partitions_min=16,
            include_record=True,
        )
        schema = pa.schema([("physicalOffset", pa.int64()), ("record", pa.binary())])
        catalog = open_catalog(options)
        bounds = catalog.bounds(catalog.queues(all_needed=True))
        ranges = [QueueRange(queue, least, most) for queue, (least, most) in bounds.items()]
        for piece in catalog.plan(ranges):
            with suppress(FormatError, StoreDamagedError):
                for batch in read_range(options, schema, piece):
                    for row in batch.to_pylist():
                        right = row["record"] == store.records.get(row["physicalOffset"])
                        yield f"scan in {order} order", row["physicalOffset"], right
        catalog.close()


def _pulled(broker: MessageStore, store: Base) -> Iterator[tuple[str, int, bool]]:
    for topic in range(TOPICS):
        for queue_id in range(QUEUES):
            at = 0
            while True:
                result = broker.get_message(b"T%d" % topic, queue_id, at, 32, 1 << 20)
                if result.next_offset <= at:
                    break
                at = result.next_offset
                if result.status is GetMessageStatus.FOUND:
                    for view in result.views:
                        yield from _records("pull", bytes(view), store)
    for number in range(0, sum(count for _, count in RUNS), 7):
        for topic in range(TOPICS):
            for view in broker.query_by_key(b"T%d" % topic, b"k%d" % number).views:
                yield from _records("query", bytes(view), store)


def _records(reader: str, data: bytes, store: Base) -> Iterator[tuple[str, int, bool]]:
    while data:
        size, place = int.from_bytes(data[:4], "big"), int.from_bytes(data[28:36], "big")
        yield reader, place, data[:size] == store.records.get(place)
        data = data[size:]


def main() -> int:
    """Runs the variants and prints what was delivered."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--variants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    logging.disable()
    counts: Counter[str] = Counter()
    seeds = range(arguments.seed, arguments.seed + arguments.variants)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for outcome in pool.map(variant, seeds, chunksize=10):
            side = "inside" if outcome.inside else "outside"
            counts[side] += 1
            counts[f"{side} wrong"] += bool(outcome.wrong)
            counts["unchecked"] += outcome.unchecked
            for inside, reader in outcome.wrong:
                if inside:
                    counts["failed"] += 1
                    print(f"{outcome.text}: {reader} delivers wrong bytes")
            if outcome.missed:
                counts["failed"] += 1
                print(f"{outcome.text}: verify finds nothing")
    for side in ("inside", "outside"):
        print(f"{counts[side]} lost sectors {side} of stretches, wrong bytes delivered after {counts[f'{side} wrong']}")
    print(
        f"scans, which do not compare checksums, delivered a record of a stretch that was damaged elsewhere after "
        f"{counts['unchecked']}"
    )
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
