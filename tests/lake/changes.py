"""Random schedules of changes against a plain model: a list of messages for each life of each queue.

``python -m tests.lake.changes --count 200`` runs many; a schedule that fails names its seed and its steps.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.lake.world import World, numbers
from tests.unit.lake.logs import delta_log

from rucola.errors import RucolaError
from rucola.lake.maintenance import compact

STEPS = 24
TOPICS = ("orders", "Orders", "größe")
NAMES = ("broker-a", "east", "west")


class Queue:
    """What the model knows of a queue: the messages of each life, and how many of the last life are archived."""

    def __init__(self) -> None:
        self.lives: list[list[int]] = []
        self.archived = 0
        self.is_deleted = True

    def send(self, numbers: list[int]) -> None:
        """Adds messages; the first ones after a deletion begin a life."""
        if self.is_deleted:
            self.lives.append([])
            self.archived, self.is_deleted = 0, False
        self.lives[-1] += numbers

    def delete(self) -> None:
        """What is not archived never will be; a life of which nothing is archived has never been."""
        if not self.is_deleted:
            del self.lives[-1][self.archived :]
            if not self.archived:
                self.lives.pop()
        self.is_deleted = True

    def rows(self) -> list[tuple[int, int, int]]:
        """Life, offset and number of each archived message."""
        ends = [len(life) for life in self.lives]
        if not self.is_deleted:
            ends[-1] = self.archived
        return [
            (life, offset, number)
            for life, sent in enumerate(self.lives)
            for offset, number in enumerate(sent[: ends[life]])
        ]


class Topic:
    """What the model knows of a topic."""

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {}
        self.is_recent = False
        """Whether the log still has an archived record of it, which shows that the log is the table's."""

    @property
    def exists(self) -> bool:
        return any(not queue.is_deleted for queue in self.queues.values())

    @property
    def waiting(self) -> list[Queue]:
        """The queues with messages that are not archived."""
        return [one for one in self.queues.values() if not one.is_deleted and one.archived < len(one.lives[-1])]


class Schedule:
    """A store, a table, and random steps.

    Args:
        directory: an empty directory.
        seed: seed of all choices.
        steps: number of steps.
    """

    def __init__(self, directory: Path, seed: int, steps: int = STEPS) -> None:
        self._count = steps
        self.random = Random(seed)
        self.steps: list[str] = []
        self._world = World(directory)
        self._topics = {name: Topic() for name in TOPICS}
        self._queues = 1
        self._names: tuple[str, ...] = NAMES
        """Names by which the log may be archived: all, until a record expires that shows which log it is."""

    def run(self) -> None:
        """Runs the steps.

        Raises:
            AssertionError: the table differs from the model.
        """
        kinds: dict[Callable[[], None], int] = {
            self._send: 8, self._archive: 6, self._delete: 3, self._add_queue: 1, self._compact: 2, self._restart: 2,
            self._retention: 1, self._move: 1,
        }  # fmt: skip
        try:
            self._send()
            for _ in range(self._count):
                self.random.choices(list(kinds), list(kinds.values()))[0]()
                self._check()
            self._archive()
            self._check()
        finally:
            self._world.close()

    def _send(self) -> None:
        name, queue_id = self.random.choice(TOPICS), self.random.randrange(self._queues)
        count = self.random.choice((1, 3, 8, 30))
        self.steps.append(f"send {count} to {name}:{queue_id}")
        self._topics[name].queues.setdefault(queue_id, Queue()).send(self._world.send(count, name, queue_id))

    def _archive(self) -> None:
        broker = self.random.choice(self._names)
        each = self.random.choice((5, 1000))
        some = [name for name in TOPICS if self._topics[name].exists]
        chosen = self.random.choice((None, None, self.random.choice(some) if some else None))
        self.steps.append(f"archive {chosen or 'all'} as {broker}, {each} in a commit")
        if not some:
            return
        self._world.archive(topic=chosen, broker_name=broker, messages_per_commit=each)
        for name in [chosen] if chosen else some:
            topic = self._topics[name]
            for queue in topic.waiting:
                queue.archived, topic.is_recent = len(queue.lives[-1]), True

    def _delete(self) -> None:
        """Deletes a topic; what is not archived of it never will be."""
        name = self.random.choice(TOPICS)
        topic = self._topics[name]
        if topic.exists and (topic.is_recent or not any(queue.archived for queue in topic.queues.values())):
            self.steps.append(f"delete {name}")
            self._world.delete(name)
            for queue in topic.queues.values():
                queue.delete()

    def _add_queue(self) -> None:
        self.steps.append("add a queue")
        self._queues += 1

    def _compact(self) -> None:
        target = self.random.choice((10_000, 128 << 20))
        self.steps.append(f"compact {target}")
        log = delta_log(self._world.table)
        if log.snapshot().version >= 0:
            compact(log, target_bytes=target)
            log.clean(0)

    def _restart(self) -> None:
        self.steps.append("restart")
        self._world.close()

    def _retention(self) -> None:
        """The oldest segment goes, and only then if all of it is archived: otherwise messages would be lost."""
        self._world.close()
        if len(list((self._world.path / "commitlog").iterdir())) > 1 and not any(
            topic.waiting for topic in self._topics.values()
        ):
            self.steps.append("retention")
            self._world.expire()
            table = [row.broker for name in TOPICS for row in self._world.rows(name)[:1]]
            self._names = tuple(table[:1]) or NAMES
            for topic in self._topics.values():
                topic.is_recent = False

    def _move(self) -> None:
        self.steps.append("move")
        self._world.close()
        place = self._world.path.with_name(f"store{len(self.steps)}")
        shutil.move(self._world.path, place)
        self._world.path = place

    def _check(self) -> None:
        """Compares the table with the model, and ``topic_table`` with both."""
        steps = "; ".join(self.steps)
        for name, topic in self._topics.items():
            archived = [(queue_id, *row) for queue_id, queue in topic.queues.items() for row in queue.rows()]
            rows = self._world.rows(name)
            assert sorted((row.queue_id, row.life, row.offset, row.number) for row in rows) == sorted(archived), steps
            assert len({row.broker for row in rows}) <= 1, steps
            if topic.exists or rows:
                everything = sorted(number for one in topic.queues.values() for life in one.lives for number in life)
                both = self._world.topic_table(name, broker_name=self.random.choice(self._names))
                assert numbers(both) == everything, steps


def main(arguments: list[str]) -> int:
    """Runs schedules; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="number of schedules")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first schedule")
    chosen = parser.parse_args(arguments)
    failed = 0
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        with tempfile.TemporaryDirectory() as directory:
            schedule = Schedule(Path(directory), seed)
            try:
                schedule.run()
            except (AssertionError, RucolaError) as error:
                failed += 1
                print(f"seed {seed}: {repr(error)[:300]}; steps: {'; '.join(schedule.steps)}", flush=True)
    print(f"{chosen.count} schedules of changes, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
