"""Cuts the power of master and slaves at the steps of their disks, in any combination, and lets them go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tests.crash.pair_ledger import Broken, Ledger
from tests.crash.pair_life import PairOptions
from tests.crash.pair_workloads import TURNS, play
from tests.crash.pair_world import Pair

from rucola.errors import RucolaError
from rucola.testing.crash_states import NOTHING_LOST, CrashState, crash_states
from rucola.testing.simulated_disk import SimulatedDisk

STATE_MS, STATE_CONNECTIONS = 30_000, 3
"""A pair whose hosts were all started again comes to rest within this time, with so many connections of each slave."""


@dataclass
class Counts:
    """Statistics of an exploration.

    Attributes:
        steps: number of disk calls before which the power was cut.
        states: number of distinct contents of all disks from which the pair went on.
        promoted: number of them after which a slave's directory was also opened as the master's.
    """

    steps: int = 0
    states: int = 0
    promoted: int = 0


@dataclass(frozen=True)
class _Moment:
    """What crashes may leave at one step, and what was promised then."""

    text: str
    ledger: Ledger
    lost_power: frozenset[str]
    disks: list[dict[str, CrashState]]


class PairExplorer:
    """One exploration, with one seed.

    Attributes:
        counts: what was explored so far.
        known: for each content of all disks, where the logs of master and slaves end.

    Args:
        options: how the pair is configured.
        sample: number of random contents of each disk, in addition to the fixed ones, at each step.
        every: the power is cut at one in this many steps.
        promote_every: after one in this many states, a slave takes over.
    """

    def __init__(self, options: PairOptions, seed: int, sample: int, every: int = 1, promote_every: int = 8) -> None:
        self.counts = Counts()
        self._options = options
        self._random = Random(seed)
        self._where = f"seed {seed}"
        self._sample, self._every, self._promote_every = sample, every, promote_every
        self._calls = 0
        self._moments: list[_Moment] = []
        self.known: dict[int, dict[str, int]] = {}

    def run(self, weights: Mapping[str, int], turns: int = TURNS) -> None:
        """Plays a workload, and explores each of its steps.

        Raises:
            Broken: a promise is broken; the text says where.
        """
        pair = _Watched(self, self._options, Random(self._random.getrandbits(32)))
        try:
            play(pair, Random(self._random.getrandbits(32)), weights, turns)
        except (AssertionError, RucolaError, RuntimeError, ValueError) as error:
            if isinstance(error, _Found):
                raise
            raise _Found(f"{self._where}, step {self._calls} of the run: {error!r}") from error
        finally:
            for disk in pair.disks.values():
                disk.observer = None
            pair.kill_all()

    def at_step(self, pair: Pair, kind: str, path: str) -> None:
        """Notes what a crash may leave before a call of a disk."""
        self._calls += 1
        if self._calls % self._every:
            return
        self.counts.steps += 1
        ledger = pair.ledger.copy()
        if pair.master is not None:
            ledger.written(pair.master.store)
        states = {name: self._states(disk) for name, disk in pair.disks.items()}
        count = max(map(len, states.values()))
        combined = [{name: found[number % len(found)] for name, found in states.items()} for number in range(count)]
        text = f"step {self._calls}, before {kind} {path}"
        self._moments.append(_Moment(text, ledger, frozenset(pair.lost_power), combined))

    def _states(self, disk: SimulatedDisk) -> list[CrashState]:
        states = list(crash_states(disk, self._random, self._sample, randoms=8))
        self._random.shuffle(states)
        return states

    def explore(self) -> None:
        """Explores what was noted, outside of all calls of the code under test."""
        moments, self._moments = self._moments, []
        for moment in moments:
            for images in moment.disks:
                try:
                    self._check(moment, images)
                except (AssertionError, RucolaError, RuntimeError, ValueError) as error:
                    choices = ", ".join(f"{name}: {state.choice}" for name, state in images.items())
                    raise _Found(f"{self._where}, {moment.text}, {choices}: {error!r}") from error

    def _check(self, moment: _Moment, images: dict[str, CrashState]) -> None:
        key = hash(tuple((name, *state.image.items()) for name, state in images.items()))
        copies = self._options.replicas - 1
        if (ends := self.known.get(key)) is not None:
            moment.ledger.check_ends(ends, copies)
            return
        self.counts.states += 1
        pair = self._opened(moment, images)
        try:
            ends = self._go_on(pair, copies)
        finally:
            pair.kill_all()
        self.known[key] = ends
        if self.counts.states % self._promote_every == 0:
            self._take_over(moment, images, max((end, name) for name, end in ends.items() if name != "master"))

    def _opened(self, moment: _Moment, images: dict[str, CrashState]) -> Pair:
        disks = {name: SimulatedDisk.of(state.image) for name, state in images.items()}
        for disk in disks.values():
            disk.versions = False
        pair = Pair(self._options, Random(self._random.getrandbits(32)), disks, moment.ledger.copy())
        pair.lost_power = {
            name for name, state in images.items() if state.choice != NOTHING_LOST or name in moment.lost_power
        }
        for name in pair.lost_power:
            pair.ledger.checked.pop(name, None)
        return pair

    def _go_on(self, pair: Pair, copies: int) -> dict[str, int]:
        """Starts all again, in any order; returns the ends of their logs."""
        ledger = pair.ledger.copy()
        names = ["master", *pair.names]
        self._random.shuffle(names)
        for name in names:
            if name == "master":
                pair.start_master()
            else:
                pair.start_slave(name)
        assert pair.master is not None
        ends = {name: slave.log.end_offset for name, slave in pair.slaves.items()}
        ends["master"] = pair.master.store.max_offset
        ledger.check_ends(ends, copies)
        pair.put(self._random.choice((60, 200, 800)))
        pair.come_to_rest(STATE_MS, STATE_CONNECTIONS)
        return ends

    def _take_over(self, moment: _Moment, images: dict[str, CrashState], best: tuple[int, str]) -> None:
        """The master's disk is lost for ever; the slave that has most takes over, and gets slaves of its own."""
        self.counts.promoted += 1
        pair = self._opened(moment, images)
        try:
            for name in pair.names:
                if name == best[1]:
                    pair.start_slave(name)
            pair.promote(best[1])
            self._go_on(pair, 0)
        finally:
            pair.kill_all()


class _Found(Broken):
    """A broken promise, with what reproduces it."""


class _Watched(Pair):
    """The pair whose steps are explored."""

    def __init__(self, explorer: PairExplorer, options: PairOptions, random: Random) -> None:
        super().__init__(options, random)
        self._explorer = explorer
        for disk in self.disks.values():
            disk.observer = lambda kind, path: explorer.at_step(self, kind, path)

    def look(self) -> None:
        """See ``Pair``; also explores what was noted since."""
        super().look()
        self._explorer.explore()
