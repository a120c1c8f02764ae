"""Starts our store on the damaged stores of ``tests.crash.damages``, and compares it with the official store, which
needs Java.

    python -m tests.crash.damage_starts --variants 2000 --jobs 2
    python -m tests.crash.damage_starts --seed 217 --variants 1

Each damaged store is opened by the official store (the version that wrote it; 5.3.3 for stores of Rucola) and by ours:

* our store starts within 10 s plus the time that the undamaged store takes, or it refuses to start, names file and
  position, and then starts with ``quarantine``;
* our store serves each message that the official store serves, if the record has the same bytes at the same offset as
  in the undamaged store.

The exit code after a violation is 1.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.crash.bitflips import (
    LIMIT_S,
    STORES,
    OutOfTimeError,
    Served,
    Variant,
    Violation,
    ask,
    base,
    clean_seconds,
    limited,
    logged,
    official_command,
    served_by,
    whole,
)
from tests.crash.damages import TARGETS, Damage, damage
from tests.golden.loader import write_files

from rucola.errors import StoreDamagedError
from rucola.store.message_store import MessageStore

VERSION = "5.3.3"
"""Version of the official store that opens stores of Rucola."""


class Result(NamedTuple):
    """The result of starting our store on a damaged directory.

    Attributes:
        ended: "served", "quarantined", or a text about what is wrong.
        compared: "as official", "more than official" or "official fails".
        seconds: start-up time of our store.
    """

    target: str
    ended: str
    compared: str
    seconds: float


def check(one: Damage, official: Served | None, directory: Path) -> Result:
    """Opens a damaged store in the new directory.

    Args:
        one: the damage.
        official: the messages that the official store serves; None if it does not open the store.
        directory: the directory to create for the store.

    Raises:
        Violation: start-up took too long or failed with an error that is not allowed, or the store serves too few
            messages.
    """
    write_files(one.files, directory)
    ended, began = "served", time.monotonic()
    with logged():
        try:
            with limited(LIMIT_S + clean_seconds(one.base.name)):
                store = _opened(one, directory)
                if store is None:
                    ended, store = "quarantined", one.base.opened(directory, quarantine=True)
        except (OutOfTimeError, ValueError, StoreDamagedError) as error:
            raise Violation(f"{one.text}: {ended}: {type(error).__name__}: {error}") from error
        seconds = time.monotonic() - began
        try:
            ours = _served(one, store)
        except StoreDamagedError:  # a queue is checked when it is first used
            ended = "quarantined"
            ours = _served(one, one.base.opened(directory, quarantine=True))
    return Result(one.target, ended, _compared(one, ours, official), seconds)


def _opened(one: Damage, directory: Path) -> MessageStore | None:
    """Opens the store; returns None if it refuses to start and names a file."""
    try:
        return one.base.opened(directory)
    except StoreDamagedError as error:
        if not error.path.startswith(str(directory)) or error.position < 0:
            raise Violation(f"{one.text}: refused without a place: {error}") from error
        return None


def _served(one: Damage, store: MessageStore) -> Served:
    try:
        store.start()
        return served_by(Variant(one.seed, one.base, "", -1, one.files, one.text), store)
    finally:
        store.shutdown()


def _compared(one: Damage, ours: Served, official: Served | None) -> str:
    """Compares our store and the official one by the messages of the undamaged store that each of them serves."""
    if official is None:
        return "official fails"
    intact = _intact(one)
    known = {name: intact.intersection(places) for name, places in whole(one.base.name).items()}
    mine, theirs = (
        {(name, place) for name, places in served.items() for place in places if place in known.get(name, ())}
        for served in (ours, official)
    )
    missing = sorted(theirs - mine)
    if missing:
        raise Violation(f"{one.text}: lacks {missing[:5]} of {len(missing)}, official has {len(theirs)}")
    return "as official" if mine == theirs else "more than official"


def _intact(one: Damage) -> set[int]:
    """Returns the physical offsets of records whose bytes are unchanged. The official store also serves changed
    bytes.
    """
    found = set()
    for place, size in one.base.places:
        position = place % one.base.segment_bytes
        file = f"commitlog/{place - position:020d}"
        record = one.base.files[file][position : position + size]
        if one.files.get(file, b"")[position : position + size] == record:
            found.add(place)
    return found


def _answers(name: str, seeds: list[int]) -> Iterator[tuple[int, Served | None]]:
    """Returns what the official store serves from each variant of one store."""
    store = base(name)
    with (
        tempfile.TemporaryDirectory(prefix="rucola-damages-") as directory,
        subprocess.Popen(
            official_command(store, store.version or VERSION),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as java,
    ):
        for seed in seeds:
            answer: dict[str, Any] = ask(java, damage(seed).files, Path(directory))
            yield seed, None if "error" in answer else answer["queues"]
        java.stdin.close()  # type: ignore[union-attr]


def run_one(seed: int, official: Served | None) -> Result:
    """Runs one variant; returns the result."""
    directory = Path(tempfile.mkdtemp(prefix="rucola-damages-"))
    try:
        return check(damage(seed), official, directory / "store")
    except Exception as error:  # noqa: BLE001 - whatever a start ends with is a violation
        text = str(error) if isinstance(error, Violation) else f"seed {seed}: {type(error).__name__}: {error}"
        return Result(TARGETS[seed % len(TARGETS)], f"VIOLATION: {text}", "", 0.0)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_store(name: str, seeds: list[int]) -> list[Result]:
    return [run_one(seed, official) for seed, official in _answers(name, seeds)]


def main() -> int:
    """Runs the variants; prints a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.damage_starts", description="Opens damaged stores.")
    parser.add_argument("--variants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first variant; the others follow")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    seeds: dict[str, list[int]] = {name: [] for name in STORES}
    for seed in range(options.seed, options.seed + options.variants):
        seeds[damage(seed).base.name].append(seed)
    table: dict[str, Counter[str]] = {target: Counter() for target in TARGETS}
    slowest = 0.0
    with ProcessPoolExecutor(options.jobs) as pool:
        asked = [pool.submit(_run_store, name, some) for name, some in seeds.items() if some]
        for result in (result for one in asked for result in one.result()):
            slowest = max(slowest, result.seconds)
            if result.ended.startswith("VIOLATION"):
                print(result.ended, flush=True)
                table[result.target]["VIOLATION"] += 1
            else:
                table[result.target][f"{result.ended}, {result.compared}"] += 1
    for target, counts in table.items():
        print(f"{target:34}" + ", ".join(f"{count} {text}" for text, count in sorted(counts.items())))
    total = sum(table.values(), Counter[str]())
    print(", ".join(f"{count} {text}" for text, count in sorted(total.items())) + f"; slowest start {slowest:.2f} s")
    return int(total["VIOLATION"] > 0)


if __name__ == "__main__":
    sys.exit(main())
