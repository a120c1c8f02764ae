"""Runs a workload, and simulates power failures before every disk call that changes something or syncs. Recovers the
store from several states in which a power failure may leave the disk, and compares the recovered store with a model of
its expected content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from rucola.common.message import StoreMessage
from rucola.errors import RucolaError
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.results import StoreState
from rucola.testing.crash_states import NOTHING_LOST, CrashState, crash_states
from rucola.testing.fault_plan import FaultPlan, Killed
from rucola.testing.interleaver import Interleaver
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.store_life import (
    ROOT,
    StartRefused,
    StoreLife,
    check_kept_aside,
    check_recovered,
    empty_disk,
    quarantine,
)
from rucola.testing.store_model import Mismatch, StoreModel

CHANCES = (0.0, 0.03, 0.1, 0.3)
"""Probabilities that a thread pauses for another thread at a system call; each simulated process uses one of them."""

Workload = Callable[[StoreLife, Random], None]


class Violation(AssertionError):  # noqa: N818 - the name says what was found
    """The store breaks a promise, for example in a recovery from a crash state; the text says how to reproduce it."""


@dataclass
class Counts:
    """Statistics of an exploration.

    Attributes:
        steps: number of disk calls, and of events such as ``ack``, before which power failures were simulated.
        states: number of distinct disk contents that were recovered.
        compound: number of states left by a crash during a recovery, or soon after a recovery.
        switches: number of times that a thread paused for another thread.
    """

    steps: int = 0
    states: int = 0
    compound: int = 0
    switches: int = 0


class CrashExplorer:
    """One exploration of crashes, with one seed.

    Attributes:
        counts: statistics so far.

    Args:
        config: configuration of the stores.
        seed: seed of all choices.
        sample: number of random crash states per step, in addition to the fixed ones.
        compound_every: one in this many states is recovered under further power failures; 0 for none.
        prepare: function that changes the ``Files`` of each simulated process, for example to plant a defect.
        interleaved: whether the store's threads may pause for each other at system calls; otherwise the work of each
            thread runs without interruption.
        every: power failures are simulated at one in this many steps. The reported progress is checked at each.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        seed: int,
        sample: int,
        compound_every: int = 0,
        prepare: Callable[[Files], None] | None = None,
        interleaved: bool = False,
        every: int = 1,
    ) -> None:
        self.counts = Counts()
        self._config = config
        self._random = Random(seed)
        self._sample = sample
        self._compound_every = compound_every
        self._every = every
        self._prepare = prepare
        self._threads = Random(seed) if interleaved else None
        self._where = f"seed {seed}"
        self._known: dict[int, int] = {}
        self._expected_aside: dict[str, bytes] = {}

    def run(self, workload: Workload) -> None:
        """Runs ``workload`` on an empty disk.

        Raises:
            Violation: the store breaks a promise.
        """
        life = self._life()
        self.watch(life)
        try:
            workload(life, Random(self._random.getrandbits(32)))
            life.settle()
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{self._where}, step {life.disk.steps}: {type(error).__name__}: {error}") from error
        finally:
            life.disk.observer = None
            life.end()

    def _life(self) -> StoreLife:
        """A new ``StoreLife`` on an empty disk."""
        return StoreLife(empty_disk(), self._config, prepare=self._prepare, interleave=self._interleave)

    def _interleave(self) -> Interleaver | None:
        if self._threads is None:
            return None
        return Interleaver(Random(self._threads.getrandbits(32)), self._threads.choice(CHANCES), self._switched)

    def _switched(self) -> None:
        self.counts.switches += 1

    def watch(self, life: StoreLife) -> None:
        """From now on, simulates a power failure at each step of ``life``."""
        life.disk.observer = lambda kind, path: self._at_step(life, f"before {kind} {path}")

    def _at_step(self, life: StoreLife, step: str) -> None:
        self.counts.steps += 1
        life.check_progress()
        if self.counts.steps % self._every:
            return
        model = life.model.copy()
        model.acked_end, model.kept_end = life.promised_end, life.kept_end
        for state in crash_states(life.disk, self._random, self._sample):
            try:
                self.check(state, model)
            except (Mismatch, RucolaError, ValueError, AssertionError) as error:
                if isinstance(error, Violation):
                    raise
                where = f"{self._where}, step {life.disk.steps} ({step}), {state.choice}"
                raise Violation(f"{where}: {type(error).__name__}: {error}") from error

    def check(self, state: CrashState, model: StoreModel) -> None:
        """Recovers ``state`` and compares the result with ``model``; skips a state that was recovered before."""
        if state.choice == NOTHING_LOST:
            # Only the process was killed, so everything that it wrote remains. Messages may be lost only if they were
            # still in its own memory.
            model = model.copy()
            model.acked_end = max(model.acked_end, min(model.kept_end, model.end))
        key = hash(tuple((path, content) for path, content in state.image.items()))
        end = self._known.get(key)
        if end is not None:
            if end < model.acked_end:
                raise Mismatch(f"log ends at {end}, but messages up to {model.acked_end} were acknowledged")
            return
        life = StoreLife(SimulatedDisk.of(state.image), self._config, model, self._prepare)
        life.disk.versions = False
        life.load()
        recovered = check_recovered(life)
        aside = quarantine(life.disk)
        for path, content in self._expected_aside.items():
            if aside.get(path) != content:
                raise Mismatch(f"{path} was in the quarantine before and has changed")
        if not self._expected_aside:
            check_kept_aside(life, state.image)
        self._known[key] = life.store.max_offset
        self.counts.states += 1
        if self._compound_every and self.counts.states % self._compound_every == 0:
            self._recover_under_crashes(state, recovered, aside)

    def _recover_under_crashes(self, state: CrashState, recovered: StoreModel, aside: dict[str, bytes]) -> None:
        """Interrupts the recovery of ``state`` at each step; checks that the result is the same and the store still
        works.
        """
        inner = CrashExplorer(self._config, self._random.getrandbits(32), 1, prepare=self._prepare)
        inner._where = f"{self._where}, recovery of {state.choice!r}"
        inner._expected_aside = aside
        model = recovered.copy()
        model.acked_end = model.end
        life = StoreLife(SimulatedDisk.of(state.image), self._config, model, self._prepare)
        inner.watch(life)
        life.open()
        topic = model.records[0].message.topic if model.records else b"Second"
        for number in range(2):
            life.put(StoreMessage(topic, number, b"second life %d" % number, b"KEYS\x01second\x02", 0, b"\0" * 8))
        life.turn()
        life.keep()
        life.put(StoreMessage(topic, 0, b"second life 2", b"", 0, b"\0" * 8))
        life.disk.step("killed", "/store")
        life.load()
        check_recovered(life)
        self.counts.states += inner.counts.states
        self.counts.compound += inner.counts.states

    def run_with_faults(self, workload: Workload, plan: FaultPlan, sample: int = 1) -> bool:
        """Runs ``workload`` on a failing disk; then simulates power failures, or a kill and restart of the process.

        Args:
            sample: number of random crash states in addition to the fixed ones, at each simulated power failure.

        Returns:
            True if a call failed; False if the workload made too few calls to reach the call that was to fail.

        Raises:
            Violation: the store breaks a promise.
        """
        life = self._life()
        try:
            self._live_with_faults(life, workload, plan)
            if plan.fired:
                self._check_all(life, sample, "power cut after the fault")
                self.watch(life)
                life.open()
                life.put(StoreMessage(b"Restart", 0, b"after the fault", b"", 0, bytes(8)))
                life.turn()
                life.disk.step("end", ROOT)
        except (Mismatch, RucolaError, StartRefused, AssertionError) as error:
            if isinstance(error, Violation):
                raise
            raise Violation(f"{self._where}: {type(error).__name__}: {error}") from error
        finally:
            life.end()
        return plan.fired

    def run_on_full_disk(self, workload: Workload, plan: FaultPlan) -> bool:
        """Runs ``workload`` on a disk that becomes full; checks that the store resumes by itself when space is
        available.

        Returns:
            Whether a call failed for lack of space.

        Raises:
            Violation: the store breaks a promise.
        """
        life = self._life()
        try:
            self._live_with_faults(life, workload, plan)
            if plan.fired:
                if life.store.state is StoreState.STOPPED:
                    life.open()
                life.finish()
                for step in (life.allocate, life.keep, life.dispatch):
                    step()
                    life.finish()
                if not life.put(StoreMessage(b"Space", 0, b"there is space again", b"", 0, bytes(8))):
                    raise Mismatch(f"the store is {life.store.state} although space is available again")
                life.stop()
                life.open()
        except (Mismatch, RucolaError, StartRefused, AssertionError) as error:
            raise Violation(f"{self._where}: {type(error).__name__}: {error}") from error
        finally:
            life.end()
        return plan.fired

    def _live_with_faults(self, life: StoreLife, workload: Workload, plan: FaultPlan) -> None:
        life.disk.faults = plan
        life.disk.observer = lambda _kind, _path: life.check_progress()
        try:
            workload(life, Random(self._random.getrandbits(32)))
        except StartRefused:
            life.refused()
        except Killed:
            return
        finally:
            life.disk.faults = life.disk.observer = None

    def _check_all(self, life: StoreLife, sample: int, moment: str) -> None:
        model = life.model.copy()
        model.acked_end, model.kept_end = life.promised_end, life.kept_end
        for state in crash_states(life.disk, self._random, sample, randoms=4):
            try:
                self.check(state, model)
            except (Mismatch, RucolaError, ValueError, AssertionError) as error:
                raise Violation(f"{self._where}, {moment}, {state.choice}: {type(error).__name__}: {error}") from error
