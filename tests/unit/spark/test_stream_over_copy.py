"""A stream over the directory of a replica, while the replica copies, stops, is killed, and begins again elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.masters import MasterLog, Slave, log_bytes
from tests.unit.store.stores import SEGMENT, crashed, message, opened

from rucola.arrow.offsets import StreamDocument
from rucola.arrow.store_catalog import REFRESH_S, StoreCatalog
from rucola.errors import AnotherLogError, DataLossError, StoreDamagedError
from rucola.spark.archive.tasks import source_schema
from rucola.spark.options import parse_options
from rucola.spark.stream import RocketMQStreamReader
from rucola.store.message_store import MessageStore
from rucola.store.results import StoreState
from rucola.testing.clock import ManualClock

TOPIC = "orders"
Copies = Callable[[Path], Slave]


class Master:
    """A store that sends, and its log as a master sends it.

    Attributes:
        sent: the numbers of all messages.
    """

    def __init__(self, path: Path) -> None:
        self.store: MessageStore = opened(path)
        self.sent: list[int] = []

    def send(self, count: int, topic: str = TOPIC) -> list[int]:
        """Stores messages in two queues; returns their numbers."""
        numbers = list(range(len(self.sent), len(self.sent) + count))
        for number in numbers:
            self.store.put_message(message(number, topic.encode(), number % 2))
        self.store.dispatch()
        self.sent += numbers
        return numbers

    @property
    def log(self) -> MasterLog:
        """The log as it is now."""
        return MasterLog(log_bytes(self.store))


_readers: list[RocketMQStreamReader] = []


@pytest.fixture(autouse=True)
def _close_files() -> Iterator[None]:
    """Closes what readers have open, as Spark does when a query ends."""
    yield
    while _readers:
        _readers.pop().stop()


class Follower:
    """A stream. Each ``read`` is a micro-batch of a query that runs on; after ``restart`` it goes on at its checkpoint,
    as a query that was killed does.
    """

    def __init__(self, path: Path, **options: str) -> None:
        given = {"storePath": str(path), "topic": TOPIC, "startingOffsets": "earliest", **options}
        self._options = parse_options(given)
        self.checkpoint: StreamDocument = {}
        self.restart(path)

    def restart(self, path: Path, **options: str) -> None:
        """Begins again at the checkpoint, perhaps over another directory or with other options."""
        given = {"storePath": str(path), "topic": TOPIC, "startingOffsets": "earliest", **options}
        self._options = parse_options(given)
        self._clock = ManualClock()
        catalog = StoreCatalog(self._options, self._clock)
        self._reader = RocketMQStreamReader(self._options, source_schema(self._options, ["body"]), catalog)
        _readers.append(self._reader)

    def read(self) -> list[int]:
        """The numbers of the messages in the next micro-batch, by number."""
        self._clock.advance(int(REFRESH_S * 1000) + 1)
        end = self._reader.latestOffset(self.checkpoint, ReadAllAvailable())
        found = self.repeat(end)
        self.checkpoint = json.loads(json.dumps(end))
        return found

    def repeat(self, end: StreamDocument) -> list[int]:
        """What the micro-batch up to ``end`` has."""
        pieces = self._reader.partitions(self.checkpoint, end)
        batches = (batch for one in pieces for batch in self._reader.read(one))
        return sorted(int(body.split()[0]) for batch in batches for body in batch.column("body").to_pylist())


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    found = Master(tmp_path / "master")
    yield found
    found.store.shutdown()


@pytest.fixture
def copies() -> Iterator[Copies]:
    """Opens copies, which are closed at the end, if the test has not closed them."""
    made: list[Slave] = []

    def begin(path: Path) -> Slave:
        made.append(Slave(path))
        return made[-1]

    yield begin
    for slave in made:
        if slave.store.state is not StoreState.STOPPED:
            slave.store.shutdown()


def test_a_stream_takes_what_comes_and_nothing_that_is_not_whole(
    tmp_path: Path, master: Master, copies: Copies
) -> None:
    first = master.send(300)
    slave = copies(tmp_path / "copy")
    slave.follow(master.log)
    stream = Follower(tmp_path / "copy")
    assert stream.read() == first
    assert stream.read() == []
    more = master.send(400)
    sent = master.log.stream(slave.connect().request)
    found: list[int] = []
    for cut in range(0, len(sent), 1777):  # most pieces end inside of a record
        slave.take(sent[cut : cut + 1777])
        found += stream.read()
    assert found == more


def test_a_replica_that_is_stopped_and_started_again(tmp_path: Path, master: Master, copies: Copies) -> None:
    stream, found = None, []
    for _ in range(3):
        slave = copies(tmp_path / "copy")
        master.send(150)
        slave.follow(master.log)
        stream = stream or Follower(tmp_path / "copy")
        found += stream.read()
        slave.store.shutdown()
        assert stream.read() == []
    assert found == master.sent


def test_a_replica_that_is_killed_inside_of_a_record(tmp_path: Path, master: Master, copies: Copies) -> None:
    first = master.send(300)
    slave = copies(tmp_path / "copy")
    slave.follow(master.log)
    stream = Follower(tmp_path / "copy")
    assert stream.read() == first
    more = master.send(50)
    part = master.log.stream(slave.connect().request)
    slave.take(part[: len(part) - 100])
    assert stream.read() == more[:-1]
    killed = crashed(slave.store, tmp_path / "copy", tmp_path / "killed")
    stream.restart(killed)
    assert stream.read() == []
    slave = copies(killed)
    assert stream.read() == []
    slave.follow(master.log)
    assert stream.read() == more[-1:]
    assert list((killed / "quarantine").iterdir())


def test_a_copy_that_has_lost_what_was_read(tmp_path: Path, master: Master, copies: Copies) -> None:
    """As after a power cut."""
    master.send(100)
    before = master.log
    master.send(50)
    copies(tmp_path / "copy").follow(master.log)
    stream = Follower(tmp_path / "copy")
    assert stream.read() == master.sent
    slave = copies(tmp_path / "earlier")
    slave.follow(before)
    stream.restart(tmp_path / "earlier")
    with pytest.raises(DataLossError):
        stream.read()
    more = master.send(50)
    slave.link.lost("the replica starts again")
    slave.follow(master.log)
    stream.restart(tmp_path / "earlier")
    assert stream.read() == more


def test_a_stream_that_is_killed_before_it_has_written(tmp_path: Path, master: Master, copies: Copies) -> None:
    slave = copies(tmp_path / "copy")
    master.send(200)
    slave.follow(master.log)
    stream = Follower(tmp_path / "copy")
    assert stream.read() == master.sent
    begun = stream.checkpoint
    more = master.send(100)
    slave.follow(master.log)
    assert stream.read() == more
    end, stream.checkpoint = stream.checkpoint, begun
    master.send(100)
    slave.follow(master.log)
    stream.restart(tmp_path / "copy")
    assert stream.repeat(end) == more  # Spark repeats it with the same offsets, although the copy has grown
    stream.checkpoint = end
    assert stream.read() == master.sent[300:]


def test_two_streams_have_each_its_checkpoint(tmp_path: Path, master: Master, copies: Copies) -> None:
    slave = copies(tmp_path / "copy")
    streams = [Follower(tmp_path / "copy") for _ in range(0)]
    for _ in range(3):
        master.send(60)
        slave.follow(master.log)
        streams.append(Follower(tmp_path / "copy"))
        for stream in streams:
            stream.read()
    found = [stream.checkpoint[TOPIC] for stream in streams]
    assert found == [{"broker-a": {"0": 90, "1": 90}}] * 3


def test_a_copy_that_was_made_anew_elsewhere(tmp_path: Path, master: Master, copies: Copies) -> None:
    slave = copies(tmp_path / "copy")
    master.send(900)
    slave.follow(master.log)
    stream = Follower(tmp_path / "copy")
    assert stream.read() == master.sent
    slave.store.shutdown()
    more = master.send(300)
    whole = copies(tmp_path / "whole")
    whole.follow(master.log)
    rest = copies(tmp_path / "rest")  # without the broker's address, a copy begins at the newest segment
    newest = master.log.end - master.log.end % SEGMENT
    rest.follow(master.log, newest)
    for path in ("whole", "rest"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / path)
        again = Follower(tmp_path / "link")
        again.checkpoint = stream.checkpoint
        if path == "whole":
            assert again.read() == more
        else:
            with pytest.raises(DataLossError):
                again.read()


def test_a_copy_of_another_log(tmp_path: Path, master: Master, copies: Copies) -> None:
    slave = copies(tmp_path / "copy")
    master.send(100)
    slave.follow(master.log)
    stream = Follower(tmp_path / "copy")
    stream.read()
    slave.store.shutdown()
    other = Master(tmp_path / "other master")
    other.send(7, "another")
    other.send(200)
    slave = copies(tmp_path / "other")
    slave.follow(other.log)
    stream.restart(tmp_path / "other")
    with pytest.raises(AnotherLogError):
        stream.read()
    other.store.shutdown()


def test_a_topic_that_is_created_while_the_stream_runs(tmp_path: Path, master: Master, copies: Copies) -> None:
    slave = copies(tmp_path / "copy")
    master.send(100, "first")
    slave.follow(master.log)
    named, pattern = Follower(tmp_path / "copy"), Follower(tmp_path / "copy")
    pattern.restart(tmp_path / "copy", topic="", subscribePattern="orders|first")
    assert (named.read(), pattern.read()) == ([], master.sent)
    more = master.send(40)
    slave.follow(master.log)
    assert (named.read(), pattern.read()) == (more, more)


def test_a_stream_that_begins_before_the_copy(tmp_path: Path, master: Master, copies: Copies) -> None:
    with pytest.raises(StoreDamagedError, match="there is no such directory"):
        Follower(tmp_path / "copy")
    slave = copies(tmp_path / "copy")
    (tmp_path / "copy" / "commitlog").mkdir()  # as ``rucola replica`` does before it says that it is ready
    stream = Follower(tmp_path / "copy")
    assert stream.read() == []
    first = master.send(700)
    sent = memoryview(master.log.stream(slave.connect().request))
    slave.link.receive(sent[:9000])  # a log without queues
    assert stream.read() == []
    slave.take(sent[9000:])
    assert stream.read() == first
    more = master.send(700)
    slave.follow(master.log)
    assert stream.read() == more


def test_a_record_that_the_master_has_damaged_gives_no_row(tmp_path: Path, master: Master, copies: Copies) -> None:
    slave = copies(tmp_path / "copy")
    first = master.send(120)
    slave.follow(master.log)
    stream = Follower(tmp_path / "copy")
    assert stream.read() == first
    at = len(master.log.content) + 120
    _, *others = master.send(10)
    found = []
    for _ in range(2):  # asked for again once
        slave.follow(master.log.changed(at, b"????"))
        found.append(stream.read())
    assert found == [[], others]
    more = master.send(10)
    slave.follow(master.log.changed(at, b"????"))
    assert stream.read() == more


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_deleted_and_made_again(tmp_path: Path, master: Master, copies: Copies, fails: bool) -> None:
    slave = copies(tmp_path / "copy")
    first = master.send(100)
    slave.follow(master.log)
    stream = Follower(tmp_path / "copy")
    assert stream.read() == first
    master.store.delete_topic(TOPIC.encode())
    assert stream.read() == []  # the log does not tell of it
    more = master.send(20)
    slave.follow(master.log)
    stream.restart(tmp_path / "copy", failOnDataLoss=str(fails).lower())
    if fails:
        with pytest.raises(DataLossError):
            stream.read()
    else:
        assert stream.read() == more
        more = master.send(20)
        slave.follow(master.log)
        assert stream.read() == more
