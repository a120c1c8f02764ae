"""A store with timers on a simulated disk, and promises about its messages, which hold however often the power fails.

An acknowledged message is delivered, but not before its due time. It is not delivered again if the progress on the disk
includes its delivery. A message whose recall was acknowledged is never delivered. The clock and the threads advance
only when the workload makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from tests.brokers import same_queue
from tests.crash.workloads import HOST, config

from rucola.broker.timer.timer_message_service import TimerMessageService
from rucola.common.message import StoreMessage
from rucola.formats.message import decode_messages
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.store.timer.timer_store import TimerGeometry, TimerStore
from rucola.testing.clock import ManualClock
from rucola.testing.crash_explorer import CHANCES
from rucola.testing.crash_states import NOTHING_LOST, CrashState, crash_states
from rucola.testing.interleaver import Interleaver, Task
from rucola.testing.manual_worker import ManualWorker, manual_workers
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.simulated_os import files_on
from rucola.testing.store_life import ROOT, empty_disk

STEP_MS = 1000
ROLL_MS = 20 * STEP_MS
GEOMETRY = TimerGeometry(log_segment_bytes=480, precision_ms=STEP_MS, slots=256)
"""Sizes of timer files: eight units per segment of the log, and a wheel of two pages that turns in four minutes."""
_TIMER = b"rmq_sys_wheel_timer"
_WORKERS = ("rucola.store.log.allocate", "rucola.store.log.flush", "rucola.store.keeper")


class Broken(AssertionError):  # noqa: N818 - reads as what was found
    """Raised if a promise was broken."""


@dataclass
class Promises:
    """The promises to producers and consumers.

    Attributes:
        due_ms: due time of each accepted message, by key; a multiple of ``STEP_MS``.
        ends: physical offset after the record of each accepted message, by key.
        withdrawn: physical offset after the record of each accepted recall, by the key of the recalled message.
        acked_end: records below this offset are acknowledged.
        read_time_ms: the progress on the disk says that all messages due before this time were delivered.
        rolled: keys of messages that are due later than a unit can express; a crash may duplicate each roll, as it may
            duplicate each delivery.
    """

    due_ms: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    withdrawn: dict[str, int] = field(default_factory=dict)
    acked_end: int = 0
    read_time_ms: int = 0
    rolled: set[str] = field(default_factory=set)

    def copy(self) -> Promises:
        return replace(self, due_ms=dict(self.due_ms), ends=dict(self.ends), withdrawn=dict(self.withdrawn))


class TimerLife:
    """Runs one process after another on the same simulated disk.

    Args:
        threads: chooses, at each system call, which thread continues: one of the store's threads or the thread that
            writes the timers' progress. If None, the threads run one after another.
    """

    def __init__(
        self, disk: SimulatedDisk, sync: bool, clock: ManualClock, promises: Promises, threads: Random | None = None
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.promises = promises
        self.config: MessageStoreConfig = config(sync)
        self.store: MessageStore
        self.timers: TimerStore
        self.service: TimerMessageService
        self.interleaver: Interleaver | None = None
        self._threads = threads
        self._writing: Task | None = None

    def open(self) -> None:
        self.end()
        if self._threads is not None:
            random = Random(self._threads.getrandbits(32))
            self.interleaver = Interleaver(random, self._threads.choice(CHANCES[1:]))
            self.interleaver.open_to_start = lambda: [worker.begin for worker in self._workers() if worker.ready]
        files: Files = files_on(self.disk, self.interleaver)
        with manual_workers(*_WORKERS, interleaver=self.interleaver):
            self.store = MessageStore(self.config, files, self.clock)
        self.store.store_host = HOST
        self.store.load()
        self.timers = TimerStore(files, self.store.root, GEOMETRY)
        self.service = TimerMessageService(self.store, self.timers, ROLL_MS, self.clock.wall_ms, same_queue)
        self.service.load()
        self.store.start()

    def end(self) -> None:
        """Ends the process, as a kill does."""
        self._writing = None
        if self.interleaver is not None:
            self.interleaver.drop()

    def finish(self) -> None:
        """Completes all work under way, and delivers the messages to consumers."""
        if self.interleaver is not None:
            self.interleaver.finish()
            self.flush()
            self.interleaver.finish()
            self.store.dispatch()

    def _workers(self) -> list[ManualWorker]:
        workers = (self.store._log._allocator._worker, self.store._flush._worker, self.store._keeper._worker)
        return [worker for worker in workers if isinstance(worker, ManualWorker)]

    def wait(self, key: str, delay_ms: int, withdraws: str = "", size: int = 100) -> None:
        """Accepts a message. If ``withdraws`` is the key of an earlier message, accepts the recall of that message
        instead; the recall has the same due time.
        """
        due_ms = self.promises.due_ms[withdraws] if withdraws else self.clock.wall_ms() + delay_ms
        due_ms -= due_ms % STEP_MS
        if delay_ms >= ROLL_MS:
            self.promises.rolled.add(key)
        names = {"TIMER_OUT_MS": str(due_ms), "REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": key}
        if withdraws:
            names["TIMER_DEL_UNIQKEY"] = f"T+{withdraws}"
        text = "".join(f"{name}\x01{value}\x02" for name, value in names.items())
        message = StoreMessage(_TIMER, 0, b"x" * size, text.encode(), 0, HOST)
        result = self.store.put_message(message)
        if result.status is not PutMessageStatus.PUT_OK:
            return
        end = result.physical_offset + result.size
        if withdraws:
            self.promises.withdrawn[withdraws] = end
        else:
            self.promises.due_ms[key], self.promises.ends[key] = due_ms, end

    def flush(self) -> None:
        for worker in self._workers()[:2]:
            worker.run()
        self.promises.acked_end = max(self.promises.acked_end, self.store.flushed_offset)
        self.disk.step("ack", ROOT)

    def work(self) -> None:
        self.store.dispatch()
        while self.service.work() == 0:
            pass
        self.store.dispatch()

    def write(self) -> None:
        """Lets the timer thread write its progress, one write after another."""
        self._written()
        changes = self.timers.changes(self.store.flushed_offset, self.clock.wall_ms())
        if changes is None:
            return

        def write() -> None:
            self.timers.write(changes)
            self.promises.read_time_ms = changes.checkpoint.read_time_ms
            self.disk.step("written", ROOT)

        if self.interleaver is None:
            write()
        else:
            self._writing = self.interleaver.start("timer", write)

    def _written(self) -> None:
        """Waits until the current write of the progress has ended."""
        writing = self._writing
        if self.interleaver is not None and writing is not None:
            self.interleaver.wait(lambda: writing.done)

    def turn(self, milliseconds: int = 0) -> None:
        self.clock.advance(milliseconds)
        self.flush()
        self.work()
        self.flush()
        self.store.dispatch()

    def stop(self) -> None:
        self._written()
        self.store.shutdown()
        self.write()
        self._written()
        self.timers.close()
        self.promises.acked_end = max(self.promises.acked_end, self.store.flushed_offset)
        self.disk.step("stopped", ROOT)

    def came(self) -> dict[str, list[int]]:
        """Returns the store times of the messages that consumers received, by key."""
        times: dict[str, list[int]] = {}
        queue_offset = self.store.min_queue_offset(b"T", 0)
        while queue_offset < self.store.max_queue_offset(b"T", 0):
            result = self.store.get_message(b"T", 0, queue_offset, 32, 1 << 20)
            queue_offset = result.next_offset
            for message in [message for view in result.views for message in decode_messages(view)]:
                times.setdefault(message.properties["UNIQ_KEY"], []).append(message.store_timestamp_ms)
        return times


class TimerExplorer:
    """Simulates a power failure at one in ``every`` steps of a workload.

    Attributes:
        states: number of recovered disks.
    """

    def __init__(self, sync: bool, seed: int, sample: int, interleaved: bool = False, every: int = 1) -> None:
        self.states = 0
        self._every = every
        self._threads = Random(seed) if interleaved else None
        self._sync = sync
        self._random = Random(seed)
        self._sample = sample
        self._seen: set[int] = set()

    def life(self) -> TimerLife:
        """Returns a ``TimerLife`` with an empty disk; from now on, each call to this disk counts as a step."""
        life = TimerLife(empty_disk(), self._sync, ManualClock(1_700_000_000_000), Promises(), self._threads)
        life.disk.observer = lambda kind, path: self._at_step(life, f"before {kind} {path}")
        return life

    def _at_step(self, life: TimerLife, step: str) -> None:
        if life.disk.steps % self._every:
            return
        for state in crash_states(life.disk, self._random, self._sample, randoms=8):
            promises = life.promises.copy()
            if state.choice == NOTHING_LOST:
                promises.acked_end = max(promises.acked_end, *promises.ends.values(), *promises.withdrawn.values(), 0)
            try:
                self._check(state, promises, life.clock.wall_ms())
            except Exception as error:
                raise Broken(f"step {life.disk.steps} ({step}), {state.choice}: {error!r}") from error

    def _check(self, state: CrashState, promises: Promises, now_ms: int) -> None:
        key = hash((tuple(state.image.items()), promises.acked_end, promises.read_time_ms, now_ms))
        if key in self._seen:
            return
        self._seen.add(key)
        self.states += 1
        life = TimerLife(SimulatedDisk.of(state.image), self._sync, ManualClock(now_ms), promises.copy())
        life.open()
        early = life.came()
        for _ in range(6):
            life.turn(10 * STEP_MS)
        came = life.came()
        life.stop()
        check(promises, early, came)


def check(promises: Promises, before: dict[str, list[int]], came: dict[str, list[int]]) -> None:
    """Compares the deliveries with the promises: those before the crash, and all of them at the end.

    Raises:
        Broken: a promise is not kept.
    """
    for key, times in came.items():
        if any(time_ms < promises.due_ms.get(key, 0) + STEP_MS for time_ms in times):
            raise Broken(f"{key} came at {times}, its step begins at {promises.due_ms.get(key)}")
    for key, due_ms in promises.due_ms.items():
        times = came.get(key, [])
        withdrawn = 0 < promises.withdrawn.get(key, 0) <= promises.acked_end
        maybe_withdrawn = key in promises.withdrawn
        if promises.ends[key] <= promises.acked_end and not times and not maybe_withdrawn:
            raise Broken(f"{key} was acknowledged and is lost")
        if withdrawn and len(times) > len(before.get(key, [])):
            raise Broken(f"{key} was recalled and came at {times}")
        if len(times) > len(before.get(key, [])) + 1 and key not in promises.rolled:
            raise Broken(f"{key} waited twice and came at {times}")
        if due_ms < promises.read_time_ms and len(times) > max(len(before.get(key, [])), 1):
            raise Broken(f"{key} was delivered and counted, and came again: {times}")
