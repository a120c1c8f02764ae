"""The offsets and ranges that follow from a query's options and bounds."""

from __future__ import annotations

import pickle

import pytest
from tests.unit.arrow.dict_catalog import DictCatalog

from rucola.arrow.catalog import Bounds, checked_ranges, clamp, ending_offsets, existing_queues, starting_offsets
from rucola.arrow.ranges import QueueRange
from rucola.arrow.read_options import Subscription
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, DataLossError
from rucola.spark.options import parse_options

Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
OTHER = MessageQueue("other", "b", 0)
TABLE = {Q0: Bounds(2, 10), Q1: Bounds(0, 4), OTHER: Bounds(0, 1)}


def catalog(**given: str) -> DictCatalog:
    return DictCatalog(parse_options({"storePath": "d", "topic": "t", **given}), TABLE)


def starting(default: str = "earliest", **given: str) -> dict[MessageQueue, int]:
    here = catalog(**given)
    return starting_offsets(here.options, here, here.queues(all_needed=True), default)


def ending(**given: str) -> dict[MessageQueue, int]:
    here = catalog(**given)
    return ending_offsets(here.options, here, here.queues(all_needed=True))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (2, 0)),
        ({"startingOffsets": "latest"}, (10, 4)),
        ({"startingOffsets": "Earliest"}, (2, 0)),
        ({"startingOffsets": '{"t":{"b":{"0":-2,"1":-1}}}'}, (2, 4)),
        ({"startingOffsets": '{"t":{"b":{"0":10,"1":3}}}'}, (10, 3)),
        ({"startingTimestamp": "2500"}, (3, 3)),
        ({"startingOffsetsByTimestamp": '{"t":{"b":{"0":0,"1":3000}}}'}, (2, 3)),
        ({"startingTimestamp": "8000", "startingOffsetsByTimestampStrategy": "latest"}, (8, 4)),
    ],
)
def test_starting_offsets(given: dict[str, str], expected: tuple[int, int]) -> None:
    assert starting(**given) == {Q0: expected[0], Q1: expected[1]}


def test_the_default_start_is_that_of_the_face() -> None:
    assert starting("latest") == {Q0: 10, Q1: 4}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (10, 4)),
        ({"endingOffsets": '{"t":{"b":{"0":-1,"1":1}}}'}, (10, 1)),
        ({"endingTimestamp": "3000"}, (3, 3)),
        ({"endingOffsetsByTimestamp": '{"t":{"b":{"0":99000,"1":0}}}'}, (10, 0)),
    ],
)
def test_ending_offsets(given: dict[str, str], expected: tuple[int, int]) -> None:
    assert ending(**given) == {Q0: expected[0], Q1: expected[1]}


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": '{"t":{"b":{"0":3}}}'},
        {"startingOffsets": '{"t":{"b":{"0":3,"1":0,"2":0}}}'},
        {"startingTimestamp": "5000"},
        {"startingOffsetsByTimestamp": '{"other":{"b":{"0":0}}}'},
    ],
)
def test_starts_that_do_not_fit_the_queues(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        starting(**given)


def test_ends_that_do_not_fit_the_queues() -> None:
    with pytest.raises(ConfigError, match=r"t@b:1"):
        ending(endingOffsets='{"t":{"b":{"0":3}}}')


def test_a_pattern_that_matches_nothing() -> None:
    nothing = Subscription(pattern="x.*")
    with pytest.raises(ConfigError, match=r"subscribePattern: 'x\.\*' .*existing topics: .*t"):
        existing_queues(nothing, TABLE, all_needed=True)
    assert existing_queues(nothing, TABLE, all_needed=False) == []


@pytest.mark.parametrize("offset", [1, 11])
def test_a_start_outside_the_queue_is_data_loss(offset: int) -> None:
    document = f'{{"t":{{"b":{{"0":{offset},"1":0}}}}}}'
    with pytest.raises(DataLossError, match=r"queue t@b:0: .* 2 to 10 exist"):
        starting(startingOffsets=document)
    assert starting(startingOffsets=document, failOnDataLoss="false")[Q0] == min(max(offset, 2), 10)


@pytest.mark.parametrize(
    ("subscription", "expected"),
    [
        (Subscription(topics=("t",)), [Q0, Q1]),
        (Subscription(pattern=".*t.*"), [OTHER, Q0, Q1]),
        (Subscription(queues=(Q1,)), [Q1]),
    ],
)
def test_existing_queues(subscription: Subscription, expected: list[MessageQueue]) -> None:
    assert existing_queues(subscription, TABLE, all_needed=True) == expected


@pytest.mark.parametrize(
    ("subscription", "text"),
    [
        (Subscription(topics=("t", "absent")), "'absent' is not allowed; allowed: existing topics"),
        (
            Subscription(queues=(Q0, MessageQueue("t", "b", 7))),
            "'t@b:7' is not allowed; allowed: existing queues: .*t@b:0",
        ),
    ],
)
def test_missing_queues(subscription: Subscription, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        existing_queues(subscription, TABLE, all_needed=True)
    assert Q0 in existing_queues(subscription, TABLE, all_needed=False)


@pytest.mark.parametrize(
    ("start", "end", "kept"), [(2, 10, (2, 10)), (0, 5, (2, 5)), (4, 12, (4, 10)), (0, 1, (2, 2)), (12, 15, (10, 10))]
)
def test_clamp(start: int, end: int, kept: tuple[int, int]) -> None:
    wanted = QueueRange(Q0, start, end)
    if (start, end) != kept:
        with pytest.raises(DataLossError):
            clamp(wanted, TABLE[Q0], True)
    assert clamp(wanted, TABLE[Q0], False) == QueueRange(Q0, *kept)


def test_ranges_between_two_offsets() -> None:
    assert checked_ranges({Q0: 5}, {Q0: 7, Q1: 3}, TABLE, True) == [QueueRange(Q0, 5, 7), QueueRange(Q1, 0, 3)]
    assert checked_ranges({Q0: 5, Q1: 1}, {Q0: 5, Q1: 1}, TABLE, True) == []
    assert checked_ranges({}, {Q0: 7}, TABLE, True) == [QueueRange(Q0, 2, 7)]


def test_a_queue_missing_from_the_end_is_data_loss() -> None:
    with pytest.raises(DataLossError):
        checked_ranges({Q0: 5, Q1: 1}, {Q0: 7}, TABLE, True)
    assert checked_ranges({Q0: 5, Q1: 1}, {Q0: 7}, TABLE, False) == [QueueRange(Q0, 5, 7)]


def test_a_queue_that_is_gone_is_data_loss() -> None:
    with pytest.raises(DataLossError):
        checked_ranges({Q0: 5}, {Q0: 7}, {}, True)
    assert checked_ranges({Q0: 5}, {Q0: 7}, {}, False) == []


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(DataLossError("t@b:0", 1, 2, 3, 4)))
    assert (error.queue, error.wanted_start, error.available_max) == ("t@b:0", 1, 4)
