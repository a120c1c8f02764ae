"""Replays without Spark: which messages and properties are sent, how fast, and what a second run does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.arrow.stores import open_store

from rucola.arrow.ranges import LogRange, QueueRange, RecordRange, WantedRanges
from rucola.cli import replay as command
from rucola.cli.main import main
from rucola.common import message_const
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_queue import MessageQueue
from rucola.common.system_properties import NOT_FORWARDED
from rucola.errors import ConfigError, DataLossError
from rucola.formats.properties import encode_properties
from rucola.spark.options import parse_options
from rucola.spark.replay_rows import COLUMNS, ReplayTally, paced, replay_batches
from rucola.spark.replay_source import Done, _place, plan_replay, read_plan
from rucola.spark.sink_options import parse_sink_options
from rucola.store.offline.offline_store import OfflineStore
from rucola.testing.clock import ManualClock
from rucola.testing.rocketmq import RocketMQ

Capture = pytest.CaptureFixture[str]
COUNT = 1200
QUEUES = 3
BORN_MS = 1_700_000_000_000
USERS = {message_const.KEYS, message_const.TAGS, message_const.SHARDING_KEY, message_const.LITE_TOPIC}
NAMES = {value for name, value in vars(message_const).items() if name.isupper() and isinstance(value, str)}
LEFT_BEHIND = sorted(name for name in NAMES - USERS if len(name) > 1 and not name.startswith(("INNER_", "__CRC32")))
"""Names of properties that a replay leaves out, without ``INNER_*`` and the checksum, which the store itself uses."""


def stored(number: int) -> StoreMessage:
    """Returns message ``number``, with a user's properties and every property that a delivery adds."""
    own = {"TAGS": "T0" if number % 4 else "T1", "KEYS": f"k{number} group{number % 10}", "region": "eu"}
    own["__SHARDINGKEY"] = "s"
    left = dict.fromkeys(LEFT_BEHIND, "7") if number % 2 else {"UNIQ_KEY": f"U{number}"}
    return StoreMessage(
        topic=b"in",
        queue_id=number % QUEUES,
        body=json.dumps({"n": number}).encode(),
        properties=encode_properties(own | left),
        born_timestamp_ms=BORN_MS,
        born_host=bytes(8),
        flag=number,
        sys_flag=0,
        reconsume_times=3,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "store"
    opened = open_store(path, segment_bytes=1 << 20)
    for number in range(COUNT):
        one = stored(number)
        one.store_host = opened.store_host
        opened.put_message(one)
    opened.dispatch()
    opened.shutdown()
    return path


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[RocketMQ]:
    with RocketMQ({"enablePropertyFilter": "true"}) as running:
        yield running


def numbers(messages: Sequence[MessageExt]) -> list[int]:
    return [json.loads(one.body)["n"] for one in messages]


def replayed(rocketmq: RocketMQ, store: Path, to: str, *words: str) -> int:
    return main(["replay", "--store", str(store), "--topic", "in", "-n", rocketmq.namesrv, "--to", to, *words])


def counted(capture: Capture, store: Path, *words: str) -> dict[str, Any]:
    """Returns the result of a dry run."""
    assert main(["replay", "--store", str(store), "--topic", "in", "--to", "t", "--dry-run", "--json", *words]) == 0
    result: dict[str, Any] = json.loads(capture.readouterr().out)
    return result


def test_a_replayed_message_is_new_but_for_body_flag_and_user_properties(rocketmq: RocketMQ, store: Path) -> None:
    assert replayed(rocketmq, store, "copy", "--rate", "100000") == 0
    found = rocketmq.wait_for_messages("copy", COUNT)
    assert sorted(numbers(found)) == list(range(COUNT))
    for one in found:
        number = json.loads(one.body)["n"]
        user = {name: value for name, value in one.properties.items() if name not in NOT_FORWARDED}
        tag = "T0" if number % 4 else "T1"
        assert user == {"TAGS": tag, "KEYS": f"k{number} group{number % 10}", "region": "eu", "__SHARDINGKEY": "s"}
        assert "7" not in one.properties.values()
        assert (one.flag, one.reconsume_times, one.sys_flag) == (number, 0, 0)
        assert one.born_timestamp_ms > BORN_MS
    assert len({one.uniq_key for one in found}) == COUNT


def test_a_second_run_repeats_the_ids(rocketmq: RocketMQ, store: Path) -> None:
    for _ in range(2):
        assert replayed(rocketmq, store, "twice") == 0
    ids = Counter(one.uniq_key for one in rocketmq.wait_for_messages("twice", 2 * COUNT))
    assert set(ids.values()) == {2}
    assert replayed(rocketmq, store, "other", "--id-scope", "again") == 0
    assert ids.keys().isdisjoint(one.uniq_key for one in rocketmq.wait_for_messages("other", COUNT))


def test_queues_are_kept_in_order(rocketmq: RocketMQ, store: Path) -> None:
    assert replayed(rocketmq, store, "ordered", "--keep-queues") == 0
    rocketmq.wait_for_messages("ordered", COUNT)
    opened = OfflineStore(rocketmq.store)
    for queue in range(QUEUES):
        assert numbers(list(opened.messages("ordered", queue, 0, COUNT))) == list(range(queue, COUNT, QUEUES))
    opened.close()


def test_from_brokers(rocketmq: RocketMQ, store: Path, capsys: Capture) -> None:
    assert replayed(rocketmq, store, "origin") == 0
    rocketmq.wait_for_messages("origin", COUNT)
    capsys.readouterr()
    where = ["--from", rocketmq.namesrv, "--topic", "origin", "--to", "target", "--filter", "TAGS = 'T1'"]
    assert main(["replay", *where, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["messages"], result["refused"]) == (COUNT // 4, 0)
    assert sorted(numbers(rocketmq.wait_for_messages("target", COUNT // 4))) == list(range(0, COUNT, 4))


def test_selections(store: Path, capsys: Capture) -> None:
    opened = OfflineStore(str(store))
    all_messages = [one for queue in range(QUEUES) for one in opened.messages("in", queue, 0, COUNT)]
    opened.close()
    middle = sorted(one.store_timestamp_ms for one in all_messages)[COUNT // 2]
    newer = sum(one.store_timestamp_ms >= middle for one in all_messages)
    assert counted(capsys, store, "--since", str(middle))["messages"] == newer
    assert counted(capsys, store, "--until", str(middle))["messages"] == COUNT - newer
    assert counted(capsys, store, "--key", "k77")["messages"] == 1
    assert counted(capsys, store, "--key", "group3", "--key", "U8")["messages"] == COUNT // 10 + 1
    assert counted(capsys, store, "--filter", "T1")["messages"] == COUNT // 4
    assert counted(capsys, store, "--filter", "TAGS = 'T1' AND region = 'eu'")["messages"] == COUNT // 4
    assert counted(capsys, store, "--where", "n between 10 and 19 and queueId = 1")["messages"] == 4
    assert counted(capsys, store, "--where", "n < 100", "--key", "group3", "--filter", "T0")["messages"] == 10
    result = counted(capsys, store)
    assert [(row["queueId"], row["messages"], row["endOffset"]) for row in result["queues"]] == [
        (queue, COUNT // QUEUES, COUNT // QUEUES) for queue in range(QUEUES)
    ]
    assert result["bodyBytes"] == sum(len(one.body) for one in all_messages)


def test_a_dry_run_shows_the_queues(store: Path, capsys: Capture) -> None:
    assert main(["replay", "--store", str(store), "--topic", "in", "--to", "t", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:6] == ["in", "broker-a", "0", "400", "0", "to"]
    assert lines[-1].startswith("would send to t: 1,200 messages, ")


def test_a_checkpoint_continues_where_a_run_failed(
    rocketmq: RocketMQ, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    state = str(tmp_path / "state.json")

    def failing(*arguments: Any) -> Iterator[pa.RecordBatch]:
        first, second = islice(read_plan(*arguments), 2)
        yield from (first, second.slice(0, second.num_rows // 2))
        raise ConfigError("disk", "broken", "whole")

    with monkeypatch.context() as patched:
        patched.setattr(command, "read_plan", failing)
        given = ["--checkpoint", state, "--sink", "maxBytesInFlight=1"]
        assert replayed(rocketmq, store, "continued", *given) == 2
    sent = json.loads(Path(state).read_text())["messages"]
    assert 0 < sent < COUNT
    assert replayed(rocketmq, store, "continued", "--checkpoint", state) == 0
    assert f"sent or refused in all runs: {COUNT:,}\n" in capsys.readouterr().out
    found = rocketmq.wait_for_messages("continued", COUNT)
    assert sorted(numbers(list({one.uniq_key: one for one in found}.values()))) == list(range(COUNT))
    assert len(found) < 2 * COUNT
    assert replayed(rocketmq, store, "continued", "--checkpoint", state) == 0
    assert len(rocketmq.messages("continued")) == len(found)
    assert replayed(rocketmq, store, "elsewhere", "--checkpoint", state) == 2
    assert "these values differ: to" in capsys.readouterr().err


def test_messages_after_a_checkpoint_must_still_be_there(store: Path) -> None:
    options = parse_options({"storePath": str(store), "topic": "in"})
    plan = plan_replay(options)
    lost = Done(dict.fromkeys(plan.end, COUNT), dict.fromkeys(plan.end, 2 * COUNT))
    with pytest.raises(DataLossError, match="offsets 1200 to 2400 are wanted, 0 to 400 exist"):
        plan_replay(options, (), lost)


def test_pieces_of_a_lookup_come_in_the_order_of_the_log() -> None:
    wanted = WantedRanges([QueueRange(MessageQueue("t", "b", 0), 0, 9)])
    indexed = RecordRange((500, 700), (9, 9), wanted, ())
    before, after = LogRange(0, 400, wanted, ()), LogRange(800, 900, wanted, ())
    assert sorted([indexed, before, after], key=_place) == [before, indexed, after]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--rate", "0"], "--rate"),
        (["--sink", "idColumn=body"], "idColumn"),
        (["--sink", "queueColumn=flag"], "queueColumn"),
        (["--source", "schemaStyle=kafka"], "schemaStyle"),
        (["--source", "nonsense"], "NAME=VALUE"),
        (["--sink", "secretKey=@/no/such/file"], "secretKey"),
        (["--checkpoint", "x", "--sink", "deadLetterPath=/x"], "deadLetterTopic"),
        (["--since", "yesterday"], "--since"),
        (["--where", "no_column = 1"], "no_column"),
        (["--topic", "inn"], "existing topics: in"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(store: Path, words: list[str], named: str, capsys: Capture) -> None:
    found = ["replay", "--store", str(store), "--topic", "in", "-n", "127.0.0.1:1", "--to", "t", *words]
    assert main(found) == 2
    error = capsys.readouterr().err
    # On a busy machine, the search for columns takes so long that its progress is shown.
    (line,) = [line for line in error.splitlines() if not line.startswith("replaying: ")]
    assert named in line


def test_columns_that_are_missing() -> None:
    options = parse_sink_options({"nameServer": "h:1", "topic": "t"})
    with pytest.raises(ConfigError, match="with topic, brokerName"):
        replay_batches([pa.record_batch({"body": [b"x"]})], options, dry_run=True)


def test_the_rate_holds_and_lost_time_makes_no_burst() -> None:
    clock = ManualClock()
    batch = pa.record_batch({"n": list(range(100))})
    at: list[tuple[float, int]] = []
    for part in paced([batch, batch], 100, clock, lambda seconds: clock.advance(round(seconds * 1000))):
        at.append((clock.monotonic(), part.num_rows))
        if len(at) == 10:
            clock.advance(5000)
    assert [rows for _, rows in at] == [10] * 20
    assert [round(10 * time) for time, _ in at] == [*range(10), *range(59, 69)]


def test_tallies_add_up() -> None:
    rows = pa.record_batch(
        [
            ["t"] * 3,
            ["b"] * 3,
            pa.array([0, 1, 0], pa.int32()),
            [5, 6, 7],
            pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
            [0] * 3,
            ["{}"] * 3,
            [b"abc", None, b"d"],
        ],
        names=COLUMNS,
    )
    tally = ReplayTally()
    tally.add_rows(rows, {1: ConfigError("a", "b", "c")})
    tally.add_rows(rows.slice(0, 1), {})
    assert (tally.messages, tally.refused, tally.body_bytes) == (4, 1, 7)
    assert {(queue.queue_id, end) for queue, end in tally.ends.items()} == {(0, 8), (1, 7)}
