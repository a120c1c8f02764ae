"""Stores with one damage: ``verify`` must name the damaged file and field, and find nothing in undamaged stores.

    python -m tests.crash.damages --variants 2000 --jobs 2
    python -m tests.crash.damages --seed 217 --variants 1

The same seed always gives the same variant. Seeds go through stores and targets in turn; item and bit are random. The
stores, written by RocketMQ or by Rucola, come from ``tests.crash.bitflips``. Targets are every field of log, queues,
index and checkpoint, missing units, and files that are cut, lost, exchanged or foreign.

Some damage cannot be seen, because nothing in the store repeats the bytes or depends on them. ``unseen`` says why, and
is computed from the damaged bytes; such variants are counted by reason. The exit code is 1 if other damage was not
named.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from array import array
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

from tests.crash.bitflips import FIELDS, FIXED, STORES, Base, _span, base, whole_report
from tests.golden.loader import write_files

from rucola.common.columns import RecordColumn as C
from rucola.common.columns import new_table
from rucola.common.message_const import INNER_BASE, INNER_NUM
from rucola.common.sysflag import MessageSysFlag as F
from rucola.formats.checkpoint import CHECKPOINT, StoreCheckpoint
from rucola.formats.checksum import crc32
from rucola.formats.consume_queue import UNIT, UNIT_BYTES
from rucola.formats.index_file import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, IndexHeader
from rucola.formats.layout import Layout
from rucola.formats.message import BLANK, CHECK_BODY_CRC, MAGIC_BLANK, walk_records
from rucola.formats.properties import decode_properties
from rucola.store.verify.check import verify
from rucola.store.verify.findings import Finding, FindingKind

K = FindingKind
_HOSTS = {name: FIXED[name][0] for name in ("born_host", "store_host")}
ONLY_THERE = "only the record has it"
NEIGHBOURS = "a clock may be set back by less than a minute"
HALF = "half messages expire, so the offset of an ended transaction may be any"
STATE = "copies of a message keep the state of the transaction"
UNWRAPPED = "the producer decides whether a batch is unwrapped"
LAGGING = "a record has this time, and the checkpoint may lag behind the log"
SLAVE = "only a slave has this value, and its log may lag behind"
SLAVE_BORDER = "only a slave has this value, and a record begins there"
EXPIRED = "the log looks as if its oldest segment had expired"
REMADE = "the next start makes the newest index file of a crashed store again"
NO_INDEX = "without any index file, the store looks like one without an index"
BORDER = "a record begins at that offset, too"
PREALLOCATED = "the segment was made beforehand and holds no record"
AFTER_BLANK = "the bytes after an end-of-file record may have any value"
AFTER_ENTRIES = "a crash may leave bytes after the newest index entry"


@dataclass(frozen=True)
class Damage:
    """One damaged store.

    Attributes:
        file: the damaged file, relative to the store.
        first, last: first and last byte of the damaged item in that file; ``verify`` must report a position between
            them, inclusive.
        kinds: the kinds of findings that report this field.
        unseen: why the damage cannot be detected; empty if it must be found.
        other: a second damaged file.
    """

    seed: int
    base: Base
    target: str
    file: str
    first: int
    last: int
    kinds: frozenset[FindingKind]
    unseen: str
    files: dict[str, bytes]
    text: str
    other: str = ""


TARGETS = (
    *(f"log {name}" for name in FIELDS),
    "log blank size",
    "log blank magic",
    *(f"queue {field.name}" for field in UNIT.fields),
    "queue unit missing",
    *(f"index {field.name}" for field in INDEX_HEADER.fields),
    "index slot",
    *(f"index entry {field.name}" for field in INDEX_ENTRY.fields),
    *(f"checkpoint {field.name}" for field in CHECKPOINT.fields),
    "checkpoint padding",
    "file cut",
    "file lost",
    "files exchanged",
    "file foreign",
    "padding",
)


def damage(seed: int) -> Damage:
    """Returns the damage that belongs to a seed."""
    random = Random(seed)
    target = TARGETS[seed % len(TARGETS)]
    store = base(STORES[seed // len(TARGETS) % len(STORES)])
    part, _, name = target.partition(" ")
    make = {"log": _log, "queue": _queue, "index": _index, "checkpoint": _checkpoint}.get(part, _file)
    return make(seed, store, target, name, random)


def _flipped(
    seed: int, store: Base, target: str, file: str, place: tuple[int, int], item: tuple[int, int], kinds: set[K],
    random: Random, unseen: str = "",
) -> Damage:  # fmt: skip
    """Flips one bit in ``place`` (position and length) of a file."""
    data = bytearray(store.files[file])
    bit = random.randrange(8 * place[1])
    data[place[0] + bit // 8] ^= 128 >> bit % 8
    text = f"seed {seed}: {store.name}, {target}, {file} at {place[0]}, bit {bit}"
    files = store.files | {file: bytes(data)}
    return Damage(seed, store, target, file, *item, frozenset(kinds), unseen, files, text)


def _log(seed: int, store: Base, target: str, name: str, random: Random) -> Damage:
    if name.startswith("blank"):
        file, position = random.choice(_blanks(store))
        at = position + BLANK.position("magic" if name == "blank magic" else "space_left")
        kinds = {K.BLANK, K.RECORD, K.TORN_TAIL}
        return _flipped(seed, store, target, file, (at, 4), (position, position), kinds, random)
    physical_offset, size = random.choice(store.places)
    start = physical_offset - physical_offset % store.segment_bytes
    file, position = f"commitlog/{start:020d}", physical_offset - start
    span_at, length = _span(store.files[file][position : position + size], name)
    kinds = {
        K.RECORD, K.TORN_TAIL, K.BODY_CRC, K.RECORD_CRC, K.PHYSICAL_OFFSET, K.QUEUE_ID, K.QUEUE_OFFSET, K.TOPIC,
        K.STORE_TIME, K.SYS_FLAG, K.HOST, K.RECONSUME_TIMES, K.PREPARED_OFFSET,
    }  # fmt: skip
    item = (position, position)
    one = _flipped(seed, store, target, file, (position + span_at, length), item, kinds, random)
    if _protected(store):
        return one
    before, after = (data[file][position : position + size] for data in (store.files, one.files))
    return replace(one, unseen=_unseen(name, before, after, _times(store, physical_offset)))


def _unseen(name: str, before: bytes, after: bytes, neighbours_ms: list[int]) -> str:
    """Returns why a changed field of a record cannot be detected; empty if it must be found.

    Queues and index hold values computed from the record. If these values stay the same, no other file contradicts the
    record; the change can only be detected if the field cannot have the new value.
    """
    old, new = _row(before), _row(after)
    if new is None or old is None or _elsewhere(old, before) != _elsewhere(new, after):
        return ""
    flags, changed = new[C.SYS_FLAG], old[C.SYS_FLAG] ^ new[C.SYS_FLAG]
    port = int.from_bytes(after[_HOSTS[name] + 4 :][:4], "big") if name in _HOSTS else 0
    in_batch = flags & (F.INNER_BATCH if changed == F.NEED_UNWRAP else F.NEED_UNWRAP) > 0
    reasons = {
        "flag": ONLY_THERE,
        "born_timestamp": ONLY_THERE,
        "properties": ONLY_THERE,
        "born_host": ONLY_THERE if port < 1 << 16 else "",
        "store_host": ONLY_THERE if port < 1 << 16 else "",
        "reconsume_times": ONLY_THERE if new[C.RECONSUME_TIMES] >= 0 else "",
        "prepared_transaction_offset": HALF if flags & F.TRANSACTION_COMMIT else "",
        "store_timestamp": NEIGHBOURS if _is_near(new[C.STORE_TIMESTAMP], neighbours_ms) else "",
        "sys_flag": {
            F.TRANSACTION_COMMIT: STATE if not new[C.PREPARED_TRANSACTION_OFFSET] else "",
            F.MULTI_TAGS: ONLY_THERE,
            F.NEED_UNWRAP: UNWRAPPED if in_batch else "",
        }.get(changed, ""),
    }
    return reasons.get(name, "")


def _row(record: bytes) -> array[int] | None:
    """Returns the row of a record; None if it cannot be read."""
    table = new_table(1)
    rows, _, _ = walk_records(record, memoryview(record), 0, len(record), 0, table, 1, crc32, CHECK_BODY_CRC)
    return table if rows else None


def _elsewhere(row: array[int], record: bytes) -> tuple[object, ...]:
    """Returns all values of a record that queues or index repeat, or that the walk over the log checks, except the
    store time.
    """
    spans = ((C.TOPIC_POS, C.TOPIC_LEN), (C.KEYS_POS, C.KEYS_LEN), (C.UNIQ_KEY_POS, C.UNIQ_KEY_LEN))
    texts = [record[row[at] : row[at] + max(row[length], 0)] for at, length in spans]
    numbers = [row[column] for column in (C.RECORD_SIZE, C.QUEUE_ID, C.QUEUE_OFFSET, C.PHYSICAL_OFFSET, C.TAGS_CODE)]
    properties = decode_properties(record[row[C.PROPERTIES_POS] :][: row[C.PROPERTIES_LEN]])
    batch = [properties.get(name) for name in (INNER_BASE, INNER_NUM)]
    return (*texts, *numbers, *batch, row[C.SYS_FLAG] & F.TRANSACTION_PREPARED)


def _times(store: Base, physical_offset: int) -> list[int]:
    """Returns the store times of the records before and after a record."""
    offsets = [offset for offset, _ in store.places]
    at = offsets.index(physical_offset)
    return [
        _store_ms(store.files, store, offset) for offset in (*offsets[max(at - 1, 0) : at], *offsets[at + 1 : at + 2])
    ]


def _store_ms(files: dict[str, bytes], store: Base, physical_offset: int) -> int:
    start = physical_offset - physical_offset % store.segment_bytes
    return int.from_bytes(files[f"commitlog/{start:020d}"][physical_offset - start + 56 :][:8], "big", signed=True)


def _is_near(time_ms: int, others_ms: list[int]) -> bool:
    return all(abs(time_ms - other) <= 60_000 for other in others_ms)


def _protected(store: Base) -> bool:
    return store.options["enabledAppendPropCRC"] == "true"


@cache
def _blank_places(name: str) -> list[tuple[str, int]]:
    store, found = base(name), []
    ends: dict[int, int] = {}
    for physical_offset, size in store.places:
        ends[physical_offset // store.segment_bytes] = physical_offset + size
    for end in ends.values():
        start = (end - 1) // store.segment_bytes * store.segment_bytes
        file = f"commitlog/{start:020d}"
        if end < start + store.segment_bytes and BLANK.unpack(store.files[file], end - start)[1] == MAGIC_BLANK:
            found.append((file, end - start))
    return found


def _blanks(store: Base) -> list[tuple[str, int]]:
    return _blank_places(store.name)


def _queue_places(store: Base) -> list[tuple[str, int]]:
    """Returns file and position of every unit that points to a record."""
    records = dict(store.places)
    return [
        (file, at)
        for file, data in store.files.items()
        if file.startswith("consumequeue/")
        for at in range(0, len(data), UNIT_BYTES)
        if records.get(UNIT.unpack(data, at)[0]) == UNIT.unpack(data, at)[1]
    ]


def _queue(seed: int, store: Base, target: str, name: str, random: Random) -> Damage:
    places = _queue_places(store)
    if not places:
        return damage(seed + len(TARGETS))
    file, at = random.choice(places)
    kinds = {K.UNIT, K.UNIT_WITHOUT_RECORD, K.RECORD_WITHOUT_UNIT, K.QUEUE_HOLE, K.STALE_UNIT}
    if name == "unit missing":
        data = bytearray(store.files[file])
        data[at : at + UNIT_BYTES] = bytes(UNIT_BYTES)
        text = f"seed {seed}: {store.name}, {target}, {file} at {at}"
        files = store.files | {file: bytes(data)}
        return Damage(seed, store, target, file, at, at, frozenset(kinds), "", files, text)
    if name == "tags_code":
        kinds = {K.UNIT_TAGS}
    field = next(field for field in UNIT.fields if field.name == name)
    return _flipped(seed, store, target, file, _place_of(UNIT, field.name, at), (at, at), kinds, random)


def _place_of(layout: Layout, name: str, at: int) -> tuple[int, int]:
    position = layout.position(name)
    later = [layout.position(field.name) for field in layout.fields if layout.position(field.name) > position]
    return at + position, min([*later, layout.size]) - position


def _index(seed: int, store: Base, target: str, name: str, random: Random) -> Damage:
    names = [file for file in store.files if file.startswith("index/") and IndexHeader.decode(store.files[file])[5] > 1]
    file = random.choice(sorted(names))
    slots = int(store.options["maxHashSlotNum"])
    count = IndexHeader.decode(store.files[file]).index_count
    if name == "slot":
        at = INDEX_HEADER.size + INDEX_SLOT.size * random.randrange(slots)
        return _flipped(seed, store, target, file, (at, 4), (at, at), {K.INDEX_CHAIN}, random)
    if name.startswith("entry "):
        number = random.randrange(1, count)
        at = INDEX_HEADER.size + INDEX_SLOT.size * slots + INDEX_ENTRY.size * number
        kinds = {K.INDEX_CHAIN, K.INDEX_ENTRY, K.INDEX_HEADER}
        place = _place_of(INDEX_ENTRY, name.removeprefix("entry "), at)
        return _flipped(seed, store, target, file, place, (at, at), kinds, random)
    place = _place_of(INDEX_HEADER, name, 0)
    return _flipped(seed, store, target, file, place, (0, place[0]), {K.INDEX_HEADER, K.INDEX_ENTRY}, random)


def _checkpoint(seed: int, store: Base, target: str, name: str, random: Random) -> Damage:
    if name == "padding":
        place = (CHECKPOINT.size, len(store.files["checkpoint"]) - CHECKPOINT.size)
        item = (place[0], sum(place))
    else:
        place = _place_of(CHECKPOINT, name, 0)
        item = (place[0], place[0])
    one = _flipped(seed, store, target, "checkpoint", place, item, {K.CHECKPOINT}, random)
    if name == "confirm_physical_offset":
        value = int.from_bytes(one.files["checkpoint"][place[0] : sum(place)], "big", signed=True)
        return replace(one, unseen=BORDER) if value in _borders(store) else one
    if name == "master_flushed_offset":
        end = sum(store.places[-1])
        value = int.from_bytes(one.files["checkpoint"][place[0] : sum(place)], "big", signed=True)
        return replace(one, unseen=SLAVE if value > end else SLAVE_BORDER if value in _borders(store) else "")
    return replace(one, unseen=LAGGING) if name.endswith("timestamp_ms") and _lags(one, place) else one


def _borders(store: Base) -> set[int]:
    return {0, *(offset for offset, _ in store.places), *(offset + size for offset, size in store.places)}


def _lags(one: Damage, place: tuple[int, int]) -> bool:
    """True if this time in the checkpoint equals a record's store time."""
    time_ms = int.from_bytes(one.files["checkpoint"][place[0] : sum(place)], "big", signed=True)
    return any(_store_ms(one.files, one.base, offset) == time_ms for offset, _ in one.base.places)


def _file(seed: int, store: Base, target: str, _name: str, random: Random) -> Damage:
    parts = ("commitlog/", "consumequeue/", "index/")
    part = random.choice([part for part in parts if any(file.startswith(part) for file in store.files)])
    names = sorted(file for file in store.files if file.startswith(part))
    file, files, second = random.choice(names), dict(store.files), ""
    if target == "file cut":
        files[file] = files[file][: random.randrange(len(files[file]))]
    elif target == "file lost":
        del files[file]
    elif target == "files exchanged":
        other = random.choice(names)
        files[file], files[other] = files[other], files[file]
        second = other
        if files[file] == files[other]:
            return damage(seed + len(TARGETS) * len(STORES))
    elif target == "file foreign":
        file = f"{file.rpartition('/')[0]}/{random.choice(('notes.txt', '00000000000000000007', '1', 'x' * 20))}"
        files[file] = random.randbytes(random.choice((0, 10, 4096)))
    else:
        return _padding(seed, store, target, random)
    text = f"seed {seed}: {store.name}, {target}, {file}"
    unseen = ""
    if target == "file lost" and part == "commitlog/" and file == names[0]:
        unseen = EXPIRED
    elif target == "file lost" and not store.files[file].strip(b"\0"):
        unseen = PREALLOCATED
    elif target == "file lost" and part == "index/" and len(names) == 1:
        full = StoreCheckpoint.decode(files["checkpoint"]).index_msg_timestamp_ms
        unseen = NO_INDEX if not full else ""
    elif target == "file lost" and part == "index/" and file == names[-1] and "abort" in files:
        unseen = REMADE
    return Damage(seed, store, target, file, 0, 1 << 62, frozenset(K), unseen, files, text, second)


def _padding(seed: int, store: Base, target: str, random: Random) -> Damage:
    """Sets a bit in the zeros that follow the last record of the log, the last unit of a queue, or the last entry of an
    index file.
    """
    file = random.choice(
        sorted(file for file in store.files if file.startswith(("commitlog/", "consumequeue/", "index/")))
    )
    data = store.files[file]
    end = len(data.rstrip(b"\0"))
    if end == len(data):
        return damage(seed + len(TARGETS))
    item = (end // UNIT_BYTES * UNIT_BYTES, len(data))
    unseen = AFTER_BLANK if file.startswith("commitlog/") and (file, end - BLANK.size) in _blanks(store) else ""
    if file.startswith("index/") and "abort" in store.files:
        unseen = AFTER_ENTRIES
    return _flipped(seed, store, target, file, (end, len(data) - end), item, set(K), random, unseen)


def named(one: Damage, findings: list[Finding]) -> bool:
    """Whether a finding names the damaged file and field. A queue without any file is named by its directory."""
    directory = one.file.rpartition("/")[0]
    return any(
        found.kind in one.kinds
        and (
            (found.file in (one.file, one.other) and one.first <= found.position <= one.last)
            or (one.target == "file lost" and found.file == directory)
        )
        for found in findings
    )


def named_by_copy(one: Damage, findings: list[Finding]) -> bool:
    """Whether a finding names the queue or index entry that repeats a field of the damaged record. Record and entry
    disagree, and nothing tells which one is wrong.
    """
    copies = {
        "log properties": (K.UNIT, K.UNIT_TAGS, K.INDEX_ENTRY),
        "log store_timestamp": (K.INDEX_ENTRY, K.INDEX_HEADER, K.CHECKPOINT),
    }
    return any(found.kind in copies.get(one.target, ()) for found in findings)


def check(one: Damage, directory: Path) -> str:
    """Runs ``verify``; returns "named", "named by its copy" (in a queue or the index), "noted" (bytes after the end of
    the log), "unseen: ...", or a text about what is wrong.
    """
    write_files(one.files, directory)
    report = verify(str(directory))
    known = {(found.kind, found.file, found.position, found.count) for found in whole_report(one.base.name).findings}
    findings = [
        found for found in report.findings if (found.kind, found.file, found.position, found.count) not in known
    ]
    if named(one, findings):
        return "named"
    if named_by_copy(one, findings):
        return "named by its copy"
    if one.target == "padding" and any(one.file in note for note in report.notes):
        return "noted"
    if one.unseen:
        return f"unseen: {one.unseen}"
    shown = [(str(found.kind), found.file, found.position, found.count) for found in findings]
    return f"MISSED: {one.text}: {shown[:4]}"


def run_one(seed: int) -> tuple[str, str]:
    """Runs one variant; returns target and result."""
    directory = Path(tempfile.mkdtemp(prefix="rucola-damages-"))
    try:
        one = damage(seed)
        return one.target, check(one, directory / "store")
    except Exception as error:  # noqa: BLE001 - verify must end whatever it reads
        return TARGETS[seed % len(TARGETS)], f"MISSED: seed {seed}: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    """Runs the variants; prints a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.damages", description="Verifies damaged stores.")
    parser.add_argument("--variants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first variant; the others follow")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    table: dict[str, Counter[str]] = {target: Counter() for target in TARGETS}
    seeds = range(options.seed, options.seed + options.variants)
    with ProcessPoolExecutor(options.jobs) as pool:
        for target, result in pool.map(run_one, seeds, chunksize=8):
            if result.startswith("MISSED"):
                print(result, flush=True)
            table[target]["MISSED" if result.startswith("MISSED") else result] += 1
    for target, counts in table.items():
        print(f"{target:34}" + ", ".join(f"{count} {result}" for result, count in sorted(counts.items())))
    total = sum(table.values(), Counter[str]())
    print(", ".join(f"{count} {result}" for result, count in sorted(total.items())))
    unseen = sum(count for result, count in total.items() if result.startswith("unseen"))
    found = options.variants - unseen - total["MISSED"]
    print(f"{options.variants} damages: {found} found, {unseen} that no check can see, {total['MISSED']} missed")
    return int(total["MISSED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
