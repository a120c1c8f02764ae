"""Stores of RocketMQ with one file replaced by hostile bytes: our store serves all provably intact messages, or refuses
to start.

    python -m tests.crash.hostile --variants 500
    python -m tests.crash.hostile --seed 217 --variants 1

The same seed always gives the same variant: a golden store, one of its files, and the change to it. Each result is
compared with the walk of the log in ``tests.plain_log``, which shares no code with the package:

* either the store refuses to start with a path and a position, and has changed nothing;
* or it serves, by queue and by key, exactly those records of its log that have the right position and checksums. Its
  log must not end before the first bytes that are not a record;
* no byte of the log is lost: each is at its old position or in ``quarantine/``;
* start-up takes at most 10 s.

The exit code is 1 at the first violation.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.golden.loader import BROKER_STORES, load, load_broker, write_files
from tests.golden.opening import CASES
from tests.plain_log import BLANK, PlainLog, PlainRecord, read_log
from tests.reading import pulled

from rucola.common.java import parse_properties
from rucola.common.options import options_of, parse_options
from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

BROKER_CASES = sorted(path.name.removesuffix(".tar.xz") for path in BROKER_STORES.glob("*.tar.xz"))
LIMIT_S = 10
NOW_MS = 1_800_000_000_000
QUERY_MAX = 64
DAMAGES = ("random", "truncated", "empty", "zeroed", "swapped", "ten times too long", "a block of it")


class Violation(AssertionError):  # noqa: N818 - what it says
    """Raised if the result of start-up breaks one of the rules."""


@dataclass(frozen=True)
class Variant:
    """One damaged store: its options and files; the files of the log are also listed separately."""

    text: str
    options: dict[str, str]
    files: dict[str, bytes]

    @property
    def log_files(self) -> dict[str, bytes]:
        """Files of the commit log by name."""
        prefix = "commitlog/"
        return {path.removeprefix(prefix): data for path, data in self.files.items() if path.startswith(prefix)}

    @property
    def segment_bytes(self) -> int:
        return int(self.options.get("mappedFileSizeCommitLog", 1 << 30))

    def config(self, path: Path) -> MessageStoreConfig:
        values = self.options | {"storePathRootDir": str(path), "storePathCommitLog": ""}
        return parse_options(MessageStoreConfig, values)


def variant(seed: int, names: list[str] | None = None) -> Variant:
    """Returns the variant that belongs to a seed. Its store is one of ``names``, or any store if there are no names."""
    random = Random(seed)
    name = random.choice(names or [*CASES, *BROKER_CASES])
    known = {entry.key for entry in options_of(MessageStoreConfig)}
    if name in BROKER_CASES:
        broker_case = load_broker(name)
        files, values = dict(broker_case.files), parse_properties(broker_case.broker_conf)
    else:
        case = load(name)
        files, values = dict(case.files), {key: str(value) for key, value in case.case["config"].items()}
    options = {"enabledAppendPropCRC": "false"} | {key: value for key, value in values.items() if key in known}
    files.pop("lock", None)
    # At least half of the variants change a file of the log, although there are many more other files.
    log_paths = sorted(path for path in files if path.startswith("commitlog/"))
    path = random.choice(log_paths if log_paths and random.random() < 0.5 else sorted(files))
    damage = random.choice(DAMAGES)
    before = files[path]
    if damage == "random":
        files[path] = random.randbytes(len(before))
    elif damage == "truncated":
        files[path] = before[: random.randrange(max(len(before), 1))]
    elif damage == "empty":
        files[path] = b""
    elif damage == "zeroed":
        files[path] = bytes(len(before))
    elif damage == "swapped":
        same = [other for other in files if len(files[other]) == len(before) and other != path]
        other = random.choice(sorted(same if same and random.random() < 0.8 else files))
        files[path], files[other] = files[other], before
        damage += f" with {other}"
    elif damage == "ten times too long":
        files[path] = before + random.randbytes(9 * len(before))
    elif before:
        start = random.randrange(len(before))
        length = random.choice((1, 16, 512, 4096))
        filler = random.choice((bytes(length), random.randbytes(length)))
        files[path] = before[:start] + filler[: len(before) - start] + before[start + length :]
        damage = f"{length} bytes at {start}"
    return Variant(f"seed {seed}: {name}, {path}: {damage}", options, files)


def check(damaged: Variant, path: Path) -> str:
    """Opens the variant in the new directory ``path``; returns a description of the result.

    Raises:
        Violation: the result of start-up breaks one of the rules.
    """
    write_files(damaged.files, path)
    begin = time.monotonic()
    store = MessageStore(damaged.config(path), Files(), ManualClock(NOW_MS))
    try:
        store.load()
    except StoreDamagedError as error:
        store.shutdown()
        _check_refusal(damaged, path, error)
        verdict = "refused"
    else:
        store.start()
        log = read_log(damaged.log_files, damaged.segment_bytes)
        _check_served(damaged, store, log)
        store.shutdown()
        _check_bytes(damaged, path)
        # After a clean stop, the next start must serve the same messages.
        store = MessageStore(damaged.config(path), Files(), ManualClock(NOW_MS))
        store.load()
        store.start()
        _check_served(damaged, store, log)
        store.shutdown()
        verdict = "served"
    seconds = time.monotonic() - begin
    if seconds > LIMIT_S:
        raise Violation(f"{damaged.text}: {seconds:.1f} s")
    return verdict


def _check_refusal(damaged: Variant, path: Path, error: StoreDamagedError) -> None:
    if not error.path.startswith(str(path)) or error.position < 0 or "\n" in str(error):
        raise Violation(f"{damaged.text}: refused without a place: {error}")
    left = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    left.pop("lock", None)
    if left != damaged.files:
        changed = sorted(name for name in left | damaged.files if left.get(name) != damaged.files.get(name))
        raise Violation(f"{damaged.text}: refused, yet changed {changed}")


def _check_served(damaged: Variant, store: MessageStore, log: PlainLog) -> None:
    end = store.max_offset
    if not log.sound_end <= end <= log.end:
        raise Violation(f"{damaged.text}: ends at {end}, intact up to {log.sound_end} of {log.end}")
    records = [record for record in log.records if record.physical_offset < end and record.sound]
    queues: dict[tuple[str, int], dict[int, bytes]] = {}
    keys: dict[tuple[str, bytes], dict[int, PlainRecord]] = {}
    for record in records:
        if record.queued:
            queues.setdefault((record.topic, record.queue_id), {})[record.queue_offset] = record.data
            if damaged.options.get("enableMultiDispatch", "").lower() == "true":
                for name in record.light_queues:
                    queues.setdefault((name, 0), {})[record.queue_offset] = record.data
        for key in record.keys:
            keys.setdefault((record.topic, key), {})[record.physical_offset] = record
    names = {(name.decode("utf-8", "surrogateescape"), queue_id) for name, queue_id in store.queue_names()}
    for name in sorted(names | queues.keys()):
        got, expected = pulled(store, *name), queues.get(name, {})
        if got != expected:
            raise Violation(
                f"{damaged.text}: queue {name} gives offsets {sorted(got)}, intact are {sorted(expected)}; "
                f"others at {[at for at in got.keys() & expected.keys() if got[at] != expected[at]]}"
            )
    if not store.config.message_index_enable:
        return
    for (topic, key), found in keys.items():
        name, wanted = topic.encode("utf-8", "surrogateescape"), list(map(found.__getitem__, sorted(found)))
        views = store.query_by_key(name, key, QUERY_MAX).views
        if list(map(bytes, views)) != [record.data for record in wanted[-QUERY_MAX:]]:
            places = [int.from_bytes(bytes(view[28:36]), "big") for view in views]
            raise Violation(f"{damaged.text}: key {key!r} of {topic!r} gives {places}, is at {sorted(found)}")


def _check_bytes(damaged: Variant, path: Path) -> None:
    """Checks that every byte of the log is in its place, or was zero, or is in a file of ``quarantine/``."""
    kept = [
        (int(file.name[:20]), file.read_bytes())
        for file in path.glob("quarantine/" + "[0-9]" * 20 + "*")
        if not file.name.endswith(".json")
    ]
    for name, before in damaged.log_files.items():
        file, start = path / "commitlog" / name, int(name)
        after = bytearray(file.read_bytes()) if file.exists() else bytearray(len(before))
        for offset, content in kept:
            first, last = max(offset, start), min(offset + len(content), start + len(before))
            if first < last:
                after[first - start : last - start] = content[first - offset : last - offset]
        if len(after) != len(before) and before:  # an empty last segment is removed, and perhaps created again
            raise Violation(f"{damaged.text}: {name} has {len(after)} bytes, had {len(before)}")
        lost = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old not in (0, new)), None)
        if lost is not None and not _behind_blank(damaged, start, lost):
            raise Violation(f"{damaged.text}: byte {lost} of {name} is gone")


def _behind_blank(damaged: Variant, start: int, position: int) -> bool:
    """Whether the byte lies after the blank record at the end of a segment: an earlier process left it there, and it is
    never read.
    """
    log = read_log(damaged.log_files, damaged.segment_bytes)
    at = log.end - start
    data = damaged.log_files[f"{start:020d}"]
    return 0 <= at <= position and int.from_bytes(data[at + 4 : at + 8], "big", signed=True) == BLANK


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.hostile", description="Opens damaged stores.")
    parser.add_argument("--variants", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first variant; the others follow")
    parser.add_argument("--keep-going", action="store_true", help="past violations")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begin, verdicts, slowest = time.monotonic(), Counter[str](), 0.0
    print(f"hostile directories: {options.variants} variants from seed {options.seed} on")
    for seed in range(options.seed, options.seed + options.variants):
        damaged = variant(seed)
        directory = Path(tempfile.mkdtemp(prefix="rucola-hostile-"))
        start = time.monotonic()
        try:
            verdicts[check(damaged, directory / "store")] += 1
        except Exception as error:  # noqa: BLE001 - whatever else a start ends with is a violation too
            print(f"VIOLATION: {damaged.text}: {type(error).__name__}: {error}")
            print(f"again: python -m tests.crash.hostile --seed {seed} --variants 1")
            verdicts["violated"] += 1
            if not options.keep_going:
                return 1
        finally:
            shutil.rmtree(directory)
        slowest = max(slowest, time.monotonic() - start)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    print(f"{counts}; slowest {slowest:.1f} s, all {time.monotonic() - begin:.0f} s")
    return int("violated" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
