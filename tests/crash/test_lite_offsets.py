"""The power fails, or the process is killed, while lite topics get messages, groups commit offsets in them, lite topics
expire, names are forgotten and come again, and all journals are compacted: no acknowledged message is lost, no offset
of a lite topic is given twice while the log has a record or a group has an offset of its name, and no group's offset is
ahead of what it has acknowledged or of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from random import Random

import pytest
from tests.crash.lite_life import GROUP, SEGMENT_BYTES, LiteLives, OffsetLedger
from tests.lite_ledger import NAMES, LiteLedger
from tests.sizes import size

from rucola.broker.lite import offset_files
from rucola.formats.light_queue import lite_topic
from rucola.testing.crash_states import NOTHING_LOST, CrashState, crash_states
from rucola.testing.interleaver import Interleaver
from rucola.testing.simulated_disk import SimulatedDisk
from rucola.testing.store_life import empty_disk

ONE_IN = size(113, 3)


def work(lives: LiteLives, random: Random) -> None:
    """Sends, commits, lets lite topics expire and names be forgotten, compacts, stops, is killed."""
    for last in range(4):
        lives.open()
        for number in range(10):
            lives.send(random, random.sample(NAMES, random.randrange(1, 3)))
            if number % 2:
                lives.turn()
                for name in random.sample(NAMES, 2):
                    acknowledged = lives.life.store.max_queue_offset(lite_topic(name), 0)
                    lives.commit(name, random.randrange(acknowledged + 1))
            if number % 4 == 3:
                lives.persist()
            if number == 5:
                lives.topics._table_due = True
            if number == 6 and last:
                lives.send(random, [NAMES[-1]])
                lives.delete_parent(b"Other")
            if number == 7:
                lives.look()
        lives.turn()
        lives.persist()
        if last % 2:
            lives.look()
            lives.life.expire()
            for _ in range(3):
                lives.turn()
            lives.look(2000)
            lives.turn()
        if last in (0, 2):
            lives.stop()


class Explorer:
    """Looks at crash states of a workload."""

    def __init__(self, sync: bool, seed: int, every: int, plant: Callable[[LiteLives], None] = lambda _: None) -> None:
        self._sync, self._seed, self._every = sync, seed, every
        self._random, self._steps = Random(seed), count()
        self.known: set[int] = set()
        threads = Random(seed)
        self.lives = LiteLives(
            empty_disk(), sync, lambda: Interleaver(threads, 0.05, lambda: None, starts_max=20), plant
        )

    def run(self) -> None:
        lives = self.lives
        lives.life.disk.observer = self._at_step
        work(lives, Random(self._seed))
        lives.life.disk.observer = None
        lives.life.end()

    def _at_step(self, _kind: str, _path: str) -> None:
        if next(self._steps) % self._every != self._seed % self._every:
            return
        ledger, kept, acked_end = self.lives.ledger, self.lives.kept, self.lives.acked_end
        for state in crash_states(self.lives.life.disk, self._random, 2):
            key = hash(tuple(state.image.items()))
            if key not in self.known:
                self.known.add(key)
                self._recover(state, ledger.copy(), kept.copy(), acked_end)

    def _recover(self, state: CrashState, ledger: LiteLedger, kept: OffsetLedger, acked_end: int) -> None:
        again = LiteLives(SimulatedDisk.of(state.image), self._sync)
        again.ledger, again.kept = LiteLedger(), OffsetLedger()
        again.open()
        store = again.life.store
        acked_end = max(acked_end, ledger.end) if state.choice == NOTHING_LOST else acked_end
        assert store.max_offset >= acked_end, state.choice
        ledger.adopt(store, SEGMENT_BYTES)
        ledger.check(store, acked_end)
        again.kept = kept
        again.check_offsets()
        before = {name: again.topics.next_offset(lite_topic(name)) for name in NAMES}
        again.send(Random(1), NAMES, size=40)
        again.turn()
        for name, offset in before.items():
            assert offset >= (again.offsets.query_topic(GROUP, lite_topic(name).decode()) or 0), name
        again.stop()
        found = again.found()
        again.open()
        assert again.found() == found
        for name, offset in before.items():
            assert store.max_queue_offset(lite_topic(name), 0) == offset + 1
        again.life.store.shutdown()


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("seed", range(size(2, 12)))
def test_everything_together(sync: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_files, "_JOURNAL_ROWS_LEAST", 5)
    explorer = Explorer(sync, seed, ONE_IN)
    explorer.run()
    assert len(explorer.known) > 15
    assert explorer.lives.ends.removed > 0 and (explorer.lives.dropped > 0 or sync)


def _sends_are_answered_too_early(lives: LiteLives) -> None:
    lives.early = True


def _names_go_before_their_offsets(lives: LiteLives) -> None:
    async def at_once() -> None:
        pass

    lives.ends.written = at_once  # type: ignore[method-assign]


def _names_go_though_the_log_has_records(lives: LiteLives) -> None:
    lives.topics._has_no_record = lambda name_id: True  # type: ignore[method-assign]


def _deletions_count_before_they_are_synced(lives: LiteLives) -> None:
    topics, delete = lives.topics, lives.topics.delete

    def at_once(names: Iterable[bytes]) -> int:
        names = list(names)
        done = delete(names)
        for name in names:
            lives.ledger.deleted[name] = topics.next_offset(lite_topic(name))
        return done

    topics.delete = at_once  # type: ignore[method-assign]


def _every_third_commit_is_not_noted(lives: LiteLives) -> None:
    files, note, number = lives.offsets._files, lives.offsets._files.note, count()

    def some(key: int, name_hash: int, consumer_offset: int) -> None:
        if next(number) % 3:
            note(key, name_hash, consumer_offset)

    files.note = some  # type: ignore[method-assign]


def _a_batch_goes_to_the_former_journal(lives: LiteLives) -> None:
    files = lives.offsets._files
    files._journal = lambda generation: f"{files._base}.{max(generation - 1, 0)}"  # type: ignore[method-assign]


def _a_table_is_ahead_of_deletions(lives: LiteLives) -> None:
    topics, write = lives.topics, lives.topics.write_table

    def without_marks() -> None:
        marks = topics._marks.copy()
        topics._marks.clear()
        write()
        topics._marks.extend(marks)

    topics.write_table = without_marks  # type: ignore[method-assign]


def _an_offset_is_ahead_of_its_queue(lives: LiteLives) -> None:
    put = lives.offsets._files.note

    def ahead(key: int, name_hash: int, consumer_offset: int) -> None:
        put(key, name_hash, consumer_offset + 50)

    lives.offsets._files.note = ahead  # type: ignore[method-assign]


PLANTS = (
    _sends_are_answered_too_early,
    _names_go_before_their_offsets,
    _names_go_though_the_log_has_records,
    _deletions_count_before_they_are_synced,
    _every_third_commit_is_not_noted,
    _a_batch_goes_to_the_former_journal,
    _a_table_is_ahead_of_deletions,
    _an_offset_is_ahead_of_its_queue,
)


@pytest.mark.few(2)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__[1:])
def test_planted_defects_are_found(plant: Callable[[LiteLives], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_files, "_JOURNAL_ROWS_LEAST", 5)
    with pytest.raises(Exception) as caught:
        for seed in range(6):
            Explorer(True, seed, 17, plant).run()
    assert caught.type.__name__ in ("AssertionError", "StoreDamagedError"), caught
