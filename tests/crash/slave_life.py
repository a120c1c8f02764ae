"""A slave on a simulated disk, and what must hold wherever the power fails: the copy opens, has only bytes of its
master, has everything that was reported, and goes on to the end of the master's log.
"""

from __future__ import annotations

from functools import cache
from random import Random

from tests.crash.workloads import config, message
from tests.masters import MasterLog, log_bytes

from rucola.errors import RucolaError
from rucola.formats.ha import FIRST_BYTE
from rucola.formats.message import BLANK, MAGIC_BLANK
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.ha.slave_link import SlaveLink
from rucola.store.ha.slave_log import SlaveLog
from rucola.store.ha.slave_state import SlaveState
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock
from rucola.testing.crash_states import NOTHING_LOST, CrashState, crash_states
from rucola.testing.manual_worker import ManualWorker, manual_workers
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT, empty_disk

SEGMENT = 16_384
_WORKERS = ("rucola.store.log.allocate", "rucola.store.log.flush", "rucola.store.keeper")


class Broken(AssertionError):  # noqa: N818 - reads as what was found
    """Raised if a promise was broken."""


@cache
def master_log(seed: int = 3, count: int = 70) -> MasterLog:
    """A log with several segments, and with left-over bytes behind its blank records, as masters of RocketMQ have."""
    random = Random(seed)
    with manual_workers(*_WORKERS):
        store = MessageStore(config(False), files_on(empty_disk()), ManualClock(step_ms=1))
        store.load()
        store.start()
        for number in range(count):
            store.put_message(message(random, b"T%d" % (number % 2), number % 3, size=random.choice((200, 900, 6000))))
        master = MasterLog(log_bytes(store), segment_bytes=SEGMENT)
        store.shutdown()
    for at in starts(master):
        size, magic = BLANK.unpack(master.bytes_at(at, BLANK.size))
        if magic == MAGIC_BLANK:
            master = master.changed(at + BLANK.size, bytes(number % 255 + 1 for number in range(size - BLANK.size)))
    return master


def starts(master: MasterLog) -> list[int]:
    """Physical offsets of all records, blank ones included."""
    found, at = [], 0
    while at < master.end:
        found.append(at)
        at += BLANK.unpack(master.bytes_at(at, BLANK.size))[0]
    return found


def left_over(master: MasterLog) -> list[tuple[int, int]]:
    """Start and end of the bytes behind each blank record; a power cut may take them from a slave for a while."""
    return [
        (at + BLANK.size, at + size)
        for at in starts(master)
        for size, magic in (BLANK.unpack(master.bytes_at(at, BLANK.size)),)
        if magic == MAGIC_BLANK
    ]


class SlaveLife:
    """A slave that may be started, stopped and killed many times on the same disk. Its threads work when called.

    Attributes:
        disk: the disk.
        log: the slave's log.
        store: the running store.
        link: the newest connection.
        promised: physical offset up to which the slave has reported.
    """

    store: MessageStore
    log: SlaveLog
    link: SlaveLink

    def __init__(self, disk: SimulatedDisk, master: MasterLog, sync: bool = False) -> None:
        self.disk = disk
        self.master = master
        self.promised = 0
        self._config: MessageStoreConfig = config(sync)
        self._clock = ManualClock(step_ms=1)
        self.running = False

    def open(self) -> None:
        """Opens the directory in a new process."""
        files: Files = files_on(self.disk)
        with manual_workers(*_WORKERS):
            self.store = MessageStore(self._config, files, self._clock)
            self.store.load()
            self.log = self.store.slave_log()
        if not self.log.is_empty:
            self.store.start()
        self.running = True

    def connect(self, start: int = FIRST_BYTE) -> None:
        self.link = SlaveLink(self.log, start, ROOT)

    def follow(self, count: int, piece: int = 1000, end: int | None = None) -> None:
        """Connects if there is no good connection, and takes ``count`` bytes of the stream."""
        self.connect()
        stream = memoryview(self.master.stream(self.link.request, end=end))[:count]
        for at in range(0, len(stream), piece):
            self.link.receive(stream[at : at + piece])

    def dispatch(self) -> None:
        self.store.dispatch()
        self.store.take_arrivals()

    def flush(self) -> None:
        """Does the work of the flush thread; what it has synced is reported."""
        self._worker(self.store._flush._worker).wake()
        self._worker(self.store._flush._worker).run()
        if self.running:
            self.link.report(self.store.flushed_offset)
            self.promised = max(self.promised, self.store.flushed_offset)

    def keep(self) -> None:
        self._clock.advance(1000)
        self._worker(self.store._keeper._worker).run()

    def allocate(self) -> None:
        self._worker(self.store._log._allocator._worker).run()

    def stop(self) -> None:
        self.store.shutdown()
        self.running = False

    def kill(self) -> None:
        """Ends the process; what it wrote stays."""
        self.running = False

    @staticmethod
    def _worker(worker: object) -> ManualWorker:
        assert isinstance(worker, ManualWorker)
        return worker


def check(state: CrashState, life: SlaveLife, checked_end: int, gaps: tuple[tuple[int, int], ...] = ()) -> None:
    """Opens what a crash has left, and follows the master to its end.

    Args:
        checked_end: physical offset up to which the killed process had taken the log.
        gaps: start and end of each record that is damaged on the master.

    Raises:
        Broken: a promise was broken.
    """
    again = SlaveLife(SimulatedDisk.of(state.image), life.master)
    again.disk.versions = False
    again.open()
    end = again.log.end_offset
    if end < life.promised:
        raise Broken(f"the log ends at {end}, and {life.promised} was reported")
    if state.choice == NOTHING_LOST and end < checked_end:
        raise Broken(f"the log ends at {end}, although {checked_end} was taken and nothing was lost")
    compare(again, end, (*gaps, *left_over(life.master)))
    for _ in range(3):
        again.follow(1 << 30)
        if again.link.state is SlaveState.COPYING:
            break
    if again.link.state is not SlaveState.COPYING:
        raise Broken(f"the copy does not go on: {again.link.reason or again.link.refusal}")
    # After a kill, even the bytes behind blank records are the master's.
    compare(again, life.master.end, gaps if state.choice == NOTHING_LOST else (*gaps, *left_over(life.master)))
    again.dispatch()
    if again.store.dispatch_behind_bytes:
        raise Broken(f"{again.store.dispatch_behind_bytes} bytes are not dispatched")
    units = sum(again.store.max_queue_offset(*name) for name in again.store.queue_names())
    wanted = sum(BLANK.unpack(life.master.bytes_at(at, 8))[1] != MAGIC_BLANK for at in starts(life.master))
    if units != wanted:
        raise Broken(f"{units} entries of queues, expected {wanted}")
    for start, stop in gaps:
        files, place = files_on(again.disk), f"{ROOT}/quarantine"
        names = [name for name in files.list_files(place) if name.startswith(f"{start:020d}")]
        # An earlier recovery may have kept more bytes from there on.
        kept = [files.read_file(f"{place}/{name}") or b"" for name in names]
        if not any(content.startswith(life.master.bytes_at(start, stop - start)) for content in kept):
            raise Broken(f"the damaged bytes at {start} are not in quarantine")
    again.stop()
    if f"{ROOT}/abort" in again.disk.names:
        raise Broken("no clean stop")


def compare(slave: SlaveLife, end: int, gaps: tuple[tuple[int, int], ...]) -> None:
    """Compares a slave's log with its master's."""
    log = bytearray(log_bytes(slave.store))
    expected = bytearray(slave.master.content[slave.log.min_offset : end])
    for first, last in gaps:
        for content in (log, expected):
            content[first:last] = bytes(len(content[first:last]))
    if slave.log.end_offset != end or log != expected:
        at = next((at for at, (ours, theirs) in enumerate(zip(log, expected, strict=False)) if ours != theirs), -1)
        raise Broken(f"the log ends at {slave.log.end_offset} of {end}, and differs at {at}")


class SlaveExplorer:
    """Cuts the power at the steps of a workload.

    Attributes:
        states: number of disk contents that were opened.

    Args:
        sample: number of random states at each step, in addition to the fixed ones.
        every: the power fails at one in this many steps.
    """

    def __init__(self, seed: int, sample: int, every: int, gaps: tuple[tuple[int, int], ...] = ()) -> None:
        self.states = self.steps = 0
        self._random = Random(seed)
        self._sample = sample
        self._every = every
        self._gaps = gaps
        self._known: set[int] = set()

    def watch(self, life: SlaveLife) -> None:
        """From now on, cuts the power at the steps of ``life``."""
        life.disk.observer = lambda kind, path: self._at_step(life, f"before {kind} {path}")

    def _at_step(self, life: SlaveLife, step: str) -> None:
        self.steps += 1
        if self.steps % self._every:
            return
        checked_end = life.log.end_offset if life.running and not life.log.is_empty else 0
        for state in crash_states(life.disk, self._random, self._sample, randoms=8):
            key = hash((life.promised, *((path, content) for path, content in state.image.items())))
            if key in self._known:
                continue
            self._known.add(key)
            self.states += 1
            try:
                check(state, life, checked_end, self._gaps)
            except (RucolaError, ValueError, AssertionError) as error:
                raise Broken(f"step {self.steps} ({step}), {state.choice}: {error!r}") from error
