"""What a replay tells while it runs: messages are counted where they are read, also if a condition chooses none."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from tests.unit.arrow.stores import open_store, put

from rucola.arrow.ranges import LogRange, UnitRange
from rucola.arrow.reading import open_catalog
from rucola.cli import replay as command
from rucola.cli import replay_progress
from rucola.cli.main import main
from rucola.cli.replay_progress import ReplayProgress
from rucola.client.pull_consumer import PullConsumer
from rucola.common.message import Message
from rucola.spark.options import parse_options
from rucola.spark.replay_source import plan_replay, read_plan
from rucola.sync import Producer
from rucola.testing.clock import ManualClock
from rucola.testing.rocketmq import RocketMQ

Capture = pytest.CaptureFixture[str]
COUNT = 9000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages of four topics, a quarter of them in topic ``flights``."""
    path = tmp_path_factory.mktemp("progress") / "store"
    one = open_store(path, segment_bytes=1 << 20, queue_file_units=4000)
    put(one, 0, COUNT)
    one.shutdown()
    return path


@pytest.mark.few
@pytest.mark.parametrize("order", ["log", "queue"])
@pytest.mark.parametrize("expression", ["*", "UA", "nothing = 1", "TAGS = 'AA'"])
def test_every_message_of_the_topic_is_counted_once(store: Path, order: str, expression: str) -> None:
    given = {"storePath": str(store), "topic": "flights", "scanOrder": order, "subExpression": expression}
    plan = plan_replay(parse_options(given))
    catalog = open_catalog(plan.options)
    assert {type(piece) for piece in catalog.plan(plan.ranges)} == {LogRange if order == "log" else UnitRange}
    catalog.close()
    counts: list[int] = []
    rows = sum(batch.num_rows for batch in read_plan(plan, ["queueId"], counts.append))
    assert plan.count == COUNT // 4 == sum(counts)
    assert max(counts) <= 4096
    assert (rows == COUNT // 4) is (expression == "*")


def test_messages_found_by_an_index_are_counted(store: Path) -> None:
    plan = plan_replay(parse_options({"storePath": str(store), "topic": "flights"}), ["k28"])
    counts: list[int] = []
    assert sum(batch.num_rows for batch in read_plan(plan, ["queueId"], counts.append)) == 1
    assert 0 < sum(counts) < COUNT // 4


class Pulls:
    """Counts the pulls that run at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = self.peak = 0
        original = PullConsumer.pull_raw

        async def pull_raw(consumer: PullConsumer, *arguments: Any) -> Any:
            self.running += 1
            self.peak = max(self.peak, self.running)
            try:
                return await original(consumer, *arguments)
            finally:
                self.running -= 1

        monkeypatch.setattr(PullConsumer, "pull_raw", pull_raw)


@pytest.mark.parametrize("filters", ["true", "false"])
def test_messages_that_brokers_skip_are_counted(filters: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``enablePropertyFilter``, RocketMQ's default, a broker refuses SQL92: the reader filters, at once."""
    with RocketMQ({"enablePropertyFilter": filters}) as running:
        running.create_topic("counted", queues=1)
        with Producer("tests", running.namesrv) as producer:
            producer.send_many([Message("counted", b"x", tags="A" if number % 50 else "B") for number in range(200)])
        running.wait_for_messages("counted", 200)
        pulls = Pulls(monkeypatch)
        for expression, chosen in (("B", 4), ("TAGS = 'B'", 4), ("C", 0), ("TAGS = 'C'", 0), ("*", 200)):
            for rows_max in ("200", "37"):
                given = {"nameServer": running.namesrv, "topic": "counted", "retryTimeoutMs": "10000"}
                given |= {"subExpression": expression, "maxRecordsPerPartition": rows_max}
                plan = plan_replay(parse_options(given))
                counts: list[int] = []
                pulls.peak = 0
                assert sum(batch.num_rows for batch in read_plan(plan, ["queueId"], counts.append)) == chosen
                assert sum(counts) == plan.count == 200
                # Only pulls that skip nothing can be divided among several requests.
                divided = expression == "*" or (filters == "false" and "=" in expression)
                assert rows_max == "37" or (pulls.peak > 1) is divided


def test_the_text() -> None:
    clock = ManualClock()
    progress = ReplayProgress(clock)
    assert progress.text() == "0 messages scanned, 0 matched, 0/s"
    progress.expect(24_000_000)
    clock.advance(6000)
    assert progress.text() == "0 of 24,000,000 messages scanned, 0 matched, 0/s"
    progress.scanned(1_200_000)
    assert list(progress.matched(iter([pa.RecordBatch.from_pylist([{"a": 1}] * 312)])))
    assert progress.text() == "1,200,000 of 24,000,000 messages scanned, 312 matched, 200,000/s, 1 min 54 s left"
    progress.scanned(22_800_000)
    assert progress.text().endswith("4,000,000/s, 0 s left")
    assert progress.done == progress.total


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Reads a plan in which nothing is chosen until progress was shown twice."""
    shown: list[str] = []
    text = ReplayProgress.text
    monkeypatch.setattr(ReplayProgress, "text", lambda self: shown.append("") or text(self))

    def read(plan: Any, columns: Any, scanned: Any) -> Iterator[pa.RecordBatch]:
        scanned(plan.count // 2)
        shown.clear()
        while len(shown) < 3:  # the third is made when the second has been shown
            time.sleep(0.01)
        scanned(plan.count // 2)
        yield from ()

    return read


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_replay_that_chooses_nothing_is_not_silent(
    store: Path, slowly: Any, monkeypatch: pytest.MonkeyPatch, capsys: Capture, terminal: bool, more: list[str]
) -> None:
    monkeypatch.setattr(command, "read_plan", slowly)
    monkeypatch.setattr(Console, "is_terminal", property(lambda _: terminal))
    monkeypatch.setattr(replay_progress, "FIRST_S", 0.05)
    monkeypatch.setattr(replay_progress, "NEXT_S", 0.05)
    given = ["--store", str(store), "--topic", "flights", "--filter", "a = 1", "--to", "t", "--dry-run"]
    assert main(["replay", *given, *more]) == 0
    printed = capsys.readouterr()
    said = re.findall(r"1,125 of 2,250 messages scanned, 0 matched, [\d,]+/s, \d+ s left", printed.err)
    assert len(said) >= (1 if terminal else 2)
    assert "scanned" not in printed.out
    assert ("\x1b" in printed.err) is terminal


def test_the_first_line_comes_within_a_second(store: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    came: list[str] = []
    monkeypatch.setattr(Console, "print", lambda *_, **__: came.append(""))

    def waits(plan: Any, columns: Any, scanned: Any) -> Iterator[pa.RecordBatch]:
        while not came:
            time.sleep(0.01)
        yield from ()

    monkeypatch.setattr(command, "read_plan", waits)
    main(["replay", "--store", str(store), "--topic", "flights", "--to", "t", "--dry-run", "--json"])
    assert came
    assert replay_progress.FIRST_S < 1
