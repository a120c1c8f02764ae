"""Failures about queues are logged when they begin, and then ever more rarely."""

from __future__ import annotations

import logging

import pytest

from rucola import LitePullConsumer, LitePullConsumerConfig, MessageQueue, PushConsumer, PushConsumerConfig
from rucola.client.queue_failures import QueueFailures
from rucola.errors import BrokerError, RemotingClosedError, RemotingConnectError
from rucola.runtime.logs import Recurring
from rucola.sync import LitePullConsumer as BlockingLitePullConsumer
from rucola.sync import PushConsumer as BlockingPushConsumer
from rucola.testing.rocketmq import RocketMQ

A0, A1, B0 = (MessageQueue("t", broker, number) for broker, number in (("a", 0), ("a", 1), ("b", 0)))
AWAY, CLOSED = RemotingConnectError("h:1", "refused"), RemotingClosedError("h:1")
REFUSED = BrokerError(16, "no permission", "h:1")


def test_a_failure_is_worth_a_line_at_powers_of_ten_until_a_success() -> None:
    failures = Recurring()
    assert [count for _ in range(120) if (count := failures.note("x", "away"))] == [1, 10, 100]
    assert failures.note("y", "away") == 1
    failures.end("x")
    assert [failures.note("x", "away"), failures.note("x", "away")] == [1, 0]
    failures.end("never failed")


def test_errors_of_one_thing_that_take_turns_are_told_apart() -> None:
    failures = Recurring()
    assert [failures.note("x", error) for _ in range(3) for error in ("closed", "away")] == [1, 1, 0, 0, 0, 0]


def test_errors_that_are_never_the_same_take_no_room() -> None:
    failures = Recurring()
    assert all(failures.note("x", f"error {number}") == 1 for number in range(1_000))
    assert sum(map(len, failures._counts.values())) <= 32


def test_queues_of_a_broker_that_is_away_count_as_one_and_refusals_each() -> None:
    failures = QueueFailures()
    assert [failures.note(queue, AWAY) for queue in (A0, A1, B0)] == [1, 0, 1]
    assert [failures.note(queue, REFUSED) for queue in (A0, A1, B0)] == [1, 1, 1]
    assert failures.note(A1, CLOSED) == 1
    failures.end(A0)
    assert [failures.note(queue, REFUSED) for queue in (A0, A1)] == [1, 0]
    assert failures.note(A1, AWAY) == 1


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer], ids=lambda kind: kind.__name__)
def test_a_pull_that_is_refused_again_and_again_is_logged_rarely(kind: type, caplog: pytest.LogCaptureFixture) -> None:
    config = PushConsumerConfig if kind is PushConsumer else LitePullConsumerConfig
    face = BlockingPushConsumer if kind is PushConsumer else BlockingLitePullConsumer
    with RocketMQ() as rocketmq, caplog.at_level(logging.WARNING, "rucola.client"):
        rocketmq.create_topic("t", queues=1)
        with rocketmq.faults.refuse("pull", code=16, remark="not now") as refused:
            consumer = face("g", rocketmq.namesrv, config(pull_time_delay_when_exception_ms=1), topics=["t"])
            with consumer:
                refused.wait(60)
    fields = [vars(record)["rucola_fields"] for record in caplog.records if "pull failed" in record.getMessage()]
    about = [entry["times"] for entry in fields if entry["queue"].topic == "t"]
    assert about[:2] == [1, 10] and set(about) <= {1, 10, 100, 1_000}
