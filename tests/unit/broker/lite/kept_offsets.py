"""Offsets of lite topics over a store on a simulated disk, written without threads."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, cast

from tests.lite_ledger import lite_config, lite_message

from rucola.broker.lite.offsets import LiteOffsets
from rucola.formats.light_queue import lite_topic
from rucola.runtime.supervision import Supervisor
from rucola.runtime.table_writer import TableWriter
from rucola.store.lite.lite_topics import LiteTopics
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop
from rucola.testing.simulated_disk import Image, SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import StoreLife, empty_disk


class KeptOffsets:
    """A store with lite topics, and their offsets. ``persist`` writes at once."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.open(disk or empty_disk())

    @classmethod
    def on(cls, image: Image) -> KeptOffsets:
        """What comes back after a power cut."""
        return cls(SimulatedDisk.of(image))

    def open(self, disk: SimulatedDisk) -> None:
        self.life = StoreLife(disk, lite_config(False))
        self.life.load()
        self.life.store.start()
        self.supervisor = Supervisor()
        clock = ManualClock()
        self.writer = TableWriter(self.supervisor, clock.monotonic)
        self.writer.loop = cast(Any, ManualLoop(clock))
        files = files_on(self.life.disk)
        files.hold(self.life.store.root)
        self.offsets = LiteOffsets(files, self.life.store.root, self.topics, self.writer)
        self.offsets.load()

    @property
    def topics(self) -> LiteTopics:
        assert self.life.store.lite is not None
        return self.life.store.lite

    def send(self, names: Iterable[bytes], count: int = 1) -> None:
        for _ in range(count):
            self.life.store.put_message(lite_message(Random(1), names))
        self.life.store.dispatch()

    def id(self, name: bytes) -> int:
        return self.topics.names.find(name)

    def get(self, name: bytes, group: str = "g") -> int:
        return self.offsets.get(group, self.id(name))

    def commit(self, name: bytes, offset: int, group: str = "g") -> None:
        self.offsets.commit(group, self.id(name), offset)

    def persist(self) -> None:
        self.offsets.persist()
        self.writer.write()

    def restart(self) -> None:
        """Stops cleanly, and starts again."""
        self.offsets.finish()
        self.persist()
        self.life.store.shutdown()
        self.open(self.life.disk)

    def kill(self) -> None:
        """Is killed, and starts again."""
        self.open(SimulatedDisk.of(self.life.disk.seen()))

    def topic(self, name: bytes) -> str:
        return lite_topic(name).decode()
