"""Raw archives under change: random schedules of sends, crash tails, changed configurations, archives, compactions and
deletions of old files. After each archive, restored log and configuration must be those of the store, byte for byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store
from tests.unit.lake.logs import delta_log

from rucola.lake import restore
from rucola.lake.delta_log import DeltaLog
from rucola.lake.maintenance import compact
from rucola.lake.raw_archiver import RawArchiver
from rucola.lake.table_log import TableKind

STEPS = 20
TOPICS = (b"orders", b"Orders")


class Schedule:
    """A store, a raw table of it, and random steps.

    Args:
        directory: an empty directory.
        seed: seed of all choices.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = Random(seed)
        self.steps: list[str] = []
        self._directory = directory
        self._store, self._table = directory / "store", directory / "table"
        self._sent = 0
        self._restored = 0

    def run(self) -> None:
        """Runs the steps.

        Raises:
            AssertionError: a restored file differs.
        """
        kinds: tuple[Callable[[], None], ...] = (self._send, self._tail, self._configure, self._archive, self._compact)
        self._send()
        self._archive()
        for _ in range(STEPS):
            self.random.choices((*kinds, self._clean), (6, 1, 1, 7, 3, 1))[0]()
        self._archive()
        self._check()

    def _log(self) -> DeltaLog:
        return delta_log(self._table, TableKind.RAW)

    def _send(self) -> None:
        """Sends messages of very different sizes, so that some data files are large, and stops the store."""
        count = self.random.choice((1, 3, 8))
        self.steps.append(f"send {count}")
        store = open_store(self._store, segment_bytes=64 << 10)
        for _ in range(count):
            one = message(self._sent, self.random.choice(TOPICS))
            one.body = self.random.randbytes(self.random.choice((10, 200, 4000)))
            one.store_host = store.store_host
            store.put_message(one)
            self._sent += 1
        store.dispatch()
        store.shutdown()

    def _tail(self) -> None:
        """Writes behind the end of the log what a crash leaves there; the next start cuts it off."""
        self.steps.append("tail")
        last = max((self._store / "commitlog").iterdir())
        content = bytearray(last.read_bytes())
        end = len(content.rstrip(b"\0"))
        room = len(content) - end - 8
        if room > 0:
            torn = self.random.randbytes(min(room, self.random.choice((5, 90, 3000))))
            content[end + 8 : end + 8 + len(torn)] = torn
            last.write_bytes(content)

    def _configure(self) -> None:
        self.steps.append("configure")
        place = self._store / "config"
        place.mkdir(exist_ok=True)
        (place / self.random.choice(("topics.json", "other.json"))).write_bytes(self.random.randbytes(30))

    def _archive(self) -> None:
        segments = self.random.choice((1, 16))
        self.steps.append(f"archive {segments}")
        archiver = RawArchiver(self._log(), str(self._store), segments_per_commit=segments)
        for _ in archiver.steps():
            if self.random.random() < 0.5:
                self._compact()
        self._check()

    def _compact(self) -> None:
        target = self.random.choice((12_000, 20_000, 20_000, 60_000, 128 << 20))
        self.steps.append(f"compact {target}")
        compact(self._log(), target_bytes=target)

    def _clean(self) -> None:
        self.steps.append("clean")
        self._log().clean(0)

    def _check(self) -> None:
        self._restored += 1
        new = self._directory / f"new{self._restored}"
        restore(self._table, new, rebuild=False)
        assert files_of(new) == files_of(self._store), "; ".join(self.steps)
        shutil.rmtree(new)


def files_of(store: Path) -> dict[str, bytes]:
    """The files that a restore must bring back: log and configuration."""
    paths = [path for part in ("commitlog", "config") for path in (store / part).rglob("*") if path.is_file()]
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in paths}
