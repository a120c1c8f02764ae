"""What happens to streams, archives, ``topic_table``, restores and SQL when something changes between two runs: the
cells of ``docs/lake-changes.md``. Which test shows which cell is in ``tests/lake_changes.toml``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.lake.world import TOPIC, World, numbers
from tests.unit.lake.logs import delta_log
from tests.unit.lake.test_archiver import Killed, KilledFiles
from tests.unit.lake.test_two_runs import Between

from rucola.arrow import scan
from rucola.arrow.topic_dataset import topic_options
from rucola.errors import AnotherLogError, ConfigError, DataLossError
from rucola.lake.archiver import Archiver
from rucola.lake.raw_archiver import RawArchiver
from rucola.lake.table_log import TableKind
from rucola.testing.clock import ManualClock

COUNT = f"select count(*) from {TOPIC}"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path)
    one.send(6, queue_id=0)
    one.send(4, queue_id=1)
    one.send(3, "other")
    yield one
    one.close()


class TestTopicMadeAgain:
    def again(self, world: World) -> list[int]:
        world.delete()
        return world.send(9)

    def test_stream(self, world: World) -> None:
        assert world.stream() == list(range(10))
        new = self.again(world)
        with pytest.raises(DataLossError):
            world.stream()
        assert world.stream(failOnDataLoss="false") == new

    def test_archive(self, world: World) -> None:
        world.archive()
        self.again(world)
        assert world.archive() == 9
        assert Counter(row.life for row in world.rows()) == {0: 10, 1: 9}

    def test_topic_table(self, world: World) -> None:
        world.archive()
        new = self.again(world)
        rows = world.topic_table()
        assert numbers(rows) == [*range(10), *new]
        assert [row.number for row in rows if row.life == 1] == new
        world.delete()
        assert numbers(world.topic_table()) == list(range(10))

    def test_restore(self, world: World) -> None:
        world.raw()
        new = self.again(world)
        world.close()
        world.raw()
        world.path = world.restored(rebuild=True)
        assert world.log() == world.log(world.directory / "store")
        assert world.sql(f"select n from {TOPIC} order by n") == new
        world.send(1)
        assert world.sql(COUNT) == [len(new) + 1]

    def test_sql(self, world: World) -> None:
        new = self.again(world)
        assert world.sql(f"select n from {TOPIC} order by n") == new
        assert world.sql("select count(*) from rucola.messages") == [9 + 3]


class TestQueuesAdded:
    def test_stream(self, world: World) -> None:
        world.stream(startingOffsets="latest")
        new = world.send(3, queue_id=7)
        assert world.stream(startingOffsets="latest") == new

    def test_archive(self, world: World) -> None:
        world.archive()
        world.send(3, queue_id=7)
        assert world.archive() == 3

    def test_topic_table(self, world: World) -> None:
        world.archive()
        new = world.send(3, queue_id=7)
        assert numbers(world.topic_table()) == [*range(10), *new]

    def test_restore(self, world: World) -> None:
        world.raw()
        new = world.send(3, queue_id=7)
        world.close()
        world.raw()
        rows = scan(world.restored(rebuild=True), TOPIC, ["queueId", "queueOffset"]).read_all().to_pylist()
        assert len(rows) == 10 + len(new)

    def test_sql(self, world: World) -> None:
        with_new = 10 + len(world.send(3, queue_id=7))
        assert world.sql(COUNT) == [with_new]


class TestBrokerRenamed:
    def test_stream(self, world: World) -> None:
        world.stream()
        new = world.send(2)
        with pytest.raises(ConfigError, match="broker-a, the name that the checkpoint has"):
            world.stream(brokerName="west")
        assert world.stream() == new

    def test_archive(self, world: World) -> None:
        world.archive()
        world.send(2)
        assert world.archive(broker_name="west") == 2
        assert {row.broker for row in world.rows()} == {"broker-a"}

    def test_topic_table(self, world: World) -> None:
        world.archive()
        world.send(2)
        rows = world.topic_table(broker_name="west")
        assert numbers(rows) == [*range(10), 13, 14]
        assert {row.broker for row in rows} == {"broker-a"}

    def test_restore(self, world: World) -> None:
        world.raw()
        world.send(2)
        world.close()
        world.raw(broker_name="west")
        assert world.raw_brokers() == {"broker-a"}
        assert world.log(world.restored()) == world.log()

    def test_sql(self, world: World) -> None:
        query = f"select distinct brokerName from rucola.messages where topic = '{TOPIC}'"
        assert world.sql(query, broker_name="west") == ["west"]


def moved(world: World) -> list[int]:
    """Moves the store, and goes on there."""
    world.close()
    shutil.move(world.path, world.directory / "moved")
    world.path = world.directory / "moved"
    return world.send(2)


def restored(world: World) -> list[int]:
    """Goes on with a store that was restored from the raw table."""
    world.close()
    world.raw()
    world.path = world.restored(rebuild=True)
    return world.send(2)


@pytest.mark.parametrize("change", [moved, restored])
class TestStoreMovedOrRestored:
    def test_stream(self, world: World, change: Any) -> None:
        world.stream()
        assert world.stream() == []
        assert change(world) == world.stream()

    def test_archive(self, world: World, change: Any) -> None:
        world.archive()
        change(world)
        assert world.archive() == 2
        numbers(world.rows())

    def test_topic_table(self, world: World, change: Any) -> None:
        world.archive()
        new = change(world)
        assert numbers(world.topic_table()) == [*range(10), *new]

    def test_restore(self, world: World, change: Any) -> None:
        world.raw()
        change(world)
        world.close()
        world.raw()
        assert world.log(world.restored("again")) == world.log()

    def test_sql(self, world: World, change: Any) -> None:
        change(world)
        assert world.sql(COUNT) == [12]


class TestStoreReplacedByABackup:
    """The backup lacks messages that were read, and other messages follow in it."""

    @pytest.fixture(autouse=True)
    def backup(self, world: World) -> None:
        world.close()
        shutil.copytree(world.path, world.directory / "backup")
        world.send(5)

    def replace(self, world: World, count: int) -> list[int]:
        world.close()
        world.path = world.directory / "backup"
        return world.send(count)

    def test_stream(self, world: World) -> None:
        world.stream()
        new = self.replace(world, 8)
        with pytest.raises(AnotherLogError):
            world.stream()
        assert world.stream(failOnDataLoss="false") == new

    @pytest.mark.parametrize("count", [2, 8])
    def test_archive(self, world: World, count: int) -> None:
        world.archive()
        self.replace(world, count)
        with pytest.raises(DataLossError if count == 2 else AnotherLogError):
            world.archive(topic=TOPIC)
        assert len(world.rows()) == 15

    def test_topic_table(self, world: World) -> None:
        world.archive()
        self.replace(world, 8)
        with pytest.raises(AnotherLogError):
            world.topic_table()

    def test_restore(self, world: World) -> None:
        world.raw()
        log = world.log()
        self.replace(world, 2)
        with pytest.raises(DataLossError):
            world.raw()
        self.replace(world, 8)
        with pytest.raises(AnotherLogError):
            world.raw()
        assert set(world.log(world.restored())) == set(log)

    def test_sql(self, world: World) -> None:
        new = self.replace(world, 8)
        assert world.sql(f"select n from {TOPIC} order by n") == [*range(10), *new]


class TestRetentionOvertakes:
    def overtake(self, world: World) -> list[int]:
        """The first segments go, with messages that nobody has read; returns the messages that are left."""
        world.send(200)
        world.expire(2)
        return world.sql(f"select n from {TOPIC} order by n")

    def test_stream(self, world: World) -> None:
        world.stream()
        left = self.overtake(world)
        with pytest.raises(DataLossError, match="failOnDataLoss"):
            world.stream()
        assert world.stream(failOnDataLoss="false") == left

    def test_archive(self, world: World) -> None:
        world.archive()
        left = self.overtake(world)
        with pytest.raises(DataLossError, match="--skip-lost"):
            world.archive(topic=TOPIC)
        assert world.archive(topic=TOPIC, fail_on_data_loss=False) == len(left)

    def test_topic_table(self, world: World) -> None:
        world.archive()
        left = self.overtake(world)
        with pytest.raises(DataLossError):
            world.topic_table()
        assert numbers(world.topic_table(fail_on_data_loss=False)) == [*range(10), *left]

    def test_restore(self, world: World) -> None:
        world.raw()
        self.overtake(world)
        with pytest.raises(DataLossError):
            world.raw()

    def test_sql(self, world: World) -> None:
        left = self.overtake(world)
        assert 0 < len(left) < 200
        assert world.sql(COUNT) == [len(left)]


class TestTwoWriters:
    def test_stream(self, world: World) -> None:
        first, world.checkpoint = world.stream(), {}
        assert world.stream() == first == list(range(10))

    def test_archive(self, world: World) -> None:
        log = Between(delta_log(world.table), "commit", world.archive)
        assert list(Archiver(log, topic_options(world.path, None, "")).steps()) == []
        assert numbers(world.rows()) == list(range(10))

    def test_topic_table(self, world: World) -> None:
        log = Between(delta_log(world.table), "commit", lambda: world.archive(topic=TOPIC))
        list(Archiver(log, topic_options(world.path, None, "")).steps())
        new = world.send(2)
        assert numbers(world.topic_table()) == [*range(10), *new]

    def test_restore(self, world: World) -> None:
        world.close()
        log = Between(delta_log(world.directory / "raw", TableKind.RAW), "commit", world.raw)
        assert list(RawArchiver(log, str(world.path)).steps()) == []
        assert world.log(world.restored()) == world.log()

    def test_sql(self, world: World) -> None:
        world.archive()
        assert world.sql(COUNT) == [10]


class TestSchemaChanged:
    def test_stream(self, world: World) -> None:
        world.stream()
        new = world.send(2)
        assert world.stream(propertiesAsMap="true") == new

    def test_archive(self, world: World) -> None:
        world.archive()
        world.send(2)
        assert world.archive(record=True) == 2
        with pytest.raises(ConfigError, match="the type of the column in the table"):
            world.send(1)
            world.archive(properties_as_map=True)
        assert numbers(world.rows()) == [*range(10), 13, 14]

    def test_topic_table(self, world: World) -> None:
        world.archive()
        world.send(2)
        world.archive(record=True)
        new = world.send(1)
        assert numbers(world.topic_table()) == [*range(10), 13, 14, *new]

    def test_restore(self, world: World) -> None:
        (world.path / "config").mkdir(exist_ok=True)
        world.close()
        world.raw()
        (world.path / "config" / "topics.json").write_text("{}")
        world.raw()
        assert (world.restored() / "config" / "topics.json").read_text() == "{}"

    def test_sql(self, world: World) -> None:
        world.send(2, price=1.5)
        assert world.sql(f"select price from {TOPIC} order by n") == [*[None] * 10, 1.5, 1.5]


class TestClockSetBack:
    @pytest.fixture(autouse=True)
    def back(self, world: World) -> None:
        world.close()

    def go_back(self, world: World) -> list[int]:
        store = world.opened(ManualClock(1_600_000_000_000, step_ms=1))
        assert store is world.store
        return world.send(3)

    def test_stream(self, world: World) -> None:
        world.stream()
        assert world.stream() == []
        assert self.go_back(world) == world.stream()

    def test_archive(self, world: World) -> None:
        world.archive()
        self.go_back(world)
        assert world.archive() == 3
        assert world.archive() == 0
        numbers(world.rows())

    def test_topic_table(self, world: World) -> None:
        world.archive()
        new = self.go_back(world)
        assert numbers(world.topic_table()) == [*range(10), *new]

    def test_restore(self, world: World) -> None:
        world.raw()
        self.go_back(world)
        world.close()
        world.raw()
        assert world.log(world.restored()) == world.log()

    def test_sql(self, world: World) -> None:
        new = self.go_back(world)
        assert world.sql(f"select n from {TOPIC} order by n") == [*range(10), *new]
        (first,) = world.sql(f"select min(storeTimestamp) from rucola.messages where topic = '{TOPIC}'")
        times = world.sql(f"select storeTimestamp from rucola.messages where topic = '{TOPIC}'")
        assert first == min(times)
        assert max(times) - first < timedelta(days=36_500)


class TestKilled:
    def test_stream(self, world: World) -> None:
        """A micro-batch that was logged, and whose work was lost, has the same messages again."""
        assert world.stream() == list(range(10))
        before = world.checkpoint
        new = world.send(3)
        assert world.stream() == new
        world.checkpoint = before
        assert world.stream() == new

    def test_archive(self, world: World) -> None:
        for countdown in (1, 3, 5):
            files = KilledFiles(countdown, after=False)
            with pytest.raises(Killed):
                Archiver(delta_log(world.table, files=files), topic_options(world.path, None, "")).step()
        world.archive()
        assert numbers(world.rows()) == list(range(10))

    def test_topic_table(self, world: World) -> None:
        world.archive()
        new = world.send(2)
        with pytest.raises(Killed):
            files = KilledFiles(3, after=False)
            Archiver(delta_log(world.table, files=files), topic_options(world.path, None, "")).step()
        assert numbers(world.topic_table()) == [*range(10), *new]

    def test_restore(self, world: World) -> None:
        world.close()
        for countdown in (1, 3, 5):
            log = delta_log(world.directory / "raw", TableKind.RAW, KilledFiles(countdown, after=False))
            with pytest.raises(Killed):
                RawArchiver(log, str(world.path)).step()
        world.raw()
        assert world.log(world.restored()) == world.log()

    def test_sql(self, world: World) -> None:
        """A broker that was killed leaves the beginning of a record."""
        world.close()
        last = max((world.path / "commitlog").iterdir())
        content = bytearray(last.read_bytes())
        end = len(content.rstrip(b"\0"))
        content[end + 8 : end + 40] = content[:32]
        last.write_bytes(content)
        assert world.sql(COUNT) == [10]
