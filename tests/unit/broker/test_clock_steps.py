"""The wall clock is set back or forward under a running broker, or while it is stopped: nothing stops, nothing is lost,
and after a step back nothing comes too early.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.broker_life import Connection
from tests.unit.broker.stepped import NOW_MS, Asked, SteppedBroker
from tests.unit.broker.test_waiting_kept import check, everything, nothing
from tests.unit.broker.test_wake_ups import ack, bodies, hide, pop, revive

from rucola.broker.pop.request_age import TOO_LATE_MS, RequestAges
from rucola.protocol.codes import RequestCode
from rucola.testing.clock import ManualClock

FOUND, NOT_FOUND, TIMEOUT, COMMIT = 0, 19, 210, 8
S, HOUR, DAY = 1000, 3_600_000, 86_400_000
Event = Callable[[SteppedBroker], None]
BACK = (-S, -HOUR, -26 * DAY, -70 * DAY)
FORWARD = (S, HOUR, 26 * DAY, 70 * DAY)

steps_back = pytest.mark.parametrize("step_ms", BACK, ids=["1s", "1h", "26d", "70d"])
all_steps = pytest.mark.parametrize("step_ms", BACK + FORWARD)
events = pytest.mark.parametrize("event", [nothing, SteppedBroker.restart, SteppedBroker.kill])


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def broker(request: pytest.FixtureRequest) -> SteppedBroker:
    return SteppedBroker(request.param)


def step(broker: SteppedBroker, step_ms: int, event: Event = nothing) -> None:
    """Sets the wall clock, which the clients share, and lets ``event`` happen to the broker. The first pop after a step
    back may be refused.
    """
    broker.passes(100)
    broker.clock.set_wall_ms(broker.clock.wall_ms() + step_ms)
    event(broker)
    pop(broker, topic="O")


def begin(broker: SteppedBroker) -> None:
    """Lets the timer run for a while before the step."""
    broker.send("D", TIMER_DELAY_MS="1000")
    broker.passes(3000)
    broker.persist()


# -- after a step back ------------------------------------------------------------------------------------------------


@pytest.mark.few
@events
@steps_back
@pytest.mark.parametrize("delay", [{"TIMER_DELAY_MS": "5000"}, {"DELAY": "3"}], ids=["timer", "level"])
def test_delayed_messages_from_before_and_after_the_step_come_in_time(
    broker: SteppedBroker, step_ms: int, event: Event, delay: dict[str, str]
) -> None:
    """At most twice as late as asked for, and never too early. Before, timed messages came when the clock had caught
    up; after a step of 26 days, the timer failed for good.
    """
    begin(broker)
    broker.send(body=b"before", **delay)
    step(broker, step_ms, event)
    broker.send(body=b"after", **delay)
    broker.passes(3700)
    assert everything(broker) == []
    broker.passes(9000)
    assert everything(broker) == [b"before", b"after"]
    assert broker.broker.services.supervisor.failures["delivery of timed messages"] == 0


@steps_back
def test_a_clock_that_was_ahead_while_nothing_was_stored_does_not_stop_the_timer(
    broker: SteppedBroker, step_ms: int
) -> None:
    """The timer has seen the later time, although no message has it."""
    begin(broker)
    step(broker, -step_ms)
    broker.passes(2000)
    broker.persist()
    step(broker, step_ms)
    broker.send(body=b"after", TIMER_DELAY_MS="3000")
    broker.passes(2700)
    assert everything(broker) == []
    broker.passes(6000)
    assert everything(broker) == [b"after"]


@pytest.mark.parametrize("step_ms", [-10 * S, -60 * S])
@pytest.mark.parametrize("event", [SteppedBroker.restart, SteppedBroker.kill])
def test_the_same_with_a_restart(step_ms: int, event: Event) -> None:
    """The checkpoint of the timer tells the next process of the later time."""
    broker = SteppedBroker()
    begin(broker)
    # The timer goes on, but stores nothing.
    broker.send("D", TIMER_DELAY_MS="5000")
    assert broker.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "D"}).code == FOUND
    before_ms = broker.clock.wall_ms()
    broker.clock.set_wall_ms(before_ms - step_ms)
    broker.passes(2000)
    broker.persist()
    reached_ms = broker.broker.services.timers._timers.checkpoint.read_time_ms
    broker.clock.set_wall_ms(before_ms + 2000)
    assert reached_ms > before_ms + 2000
    event(broker)
    assert broker.broker.store.now_ms() >= reached_ms
    broker.send(body=b"after", TIMER_DELAY_MS="3000")
    broker.passes(2700)
    assert everything(broker) == []
    broker.passes(6000)
    assert everything(broker) == [b"after"]


@pytest.mark.few
@events
@steps_back
def test_popped_messages_are_revived(broker: SteppedBroker, step_ms: int, event: Event) -> None:
    """One was popped before the step, one after it, by an old and by a new group; a changed invisible time counts."""
    begin(broker)
    broker.send(body=b"0")
    broker.passes(100)
    assert bodies(pop(broker, invisible_ms=5000)) == [b"0"]
    step(broker, step_ms, event)
    broker.send(body=b"1")
    broker.passes(100)
    assert bodies(pop(broker, invisible_ms=5000)) == [b"1"]
    new = pop(broker, invisible_ms=50_000, consumerGroup="new")
    assert bodies(new) == [b"0", b"1"]
    broker.passes(4500)
    revive(broker)
    assert everything(broker, "%RETRY%cg_T") == []
    broker.passes(8000)
    revive(broker)
    broker.passes(3000)
    revive(broker)
    assert sorted(everything(broker, "%RETRY%cg_T")) == [b"0", b"1"]
    assert everything(broker, "%RETRY%new_T") == []


@steps_back
def test_a_changed_invisible_time_and_an_acknowledgement_hold(broker: SteppedBroker, step_ms: int) -> None:
    begin(broker)
    for number in range(2):
        broker.send(body=b"%d" % number)
    broker.passes(100)
    popped = pop(broker, invisible_ms=8000)
    step(broker, step_ms)
    broker.passes(4000)
    ack(broker, popped, 0)
    hide(broker, popped, 1, 10_000)
    broker.passes(9000)
    revive(broker)
    assert everything(broker, "%RETRY%cg_T") == []
    broker.passes(14_000)
    revive(broker)
    broker.passes(2000)
    revive(broker)
    assert everything(broker, "%RETRY%cg_T") == [b"1"]


@steps_back
def test_a_queue_that_was_popped_in_order_becomes_free(broker: SteppedBroker, step_ms: int) -> None:
    broker.send(body=b"0")
    broker.passes(100)
    assert bodies(pop(broker, order="true", attemptId="a", invisible_ms=3000)) == [b"0"]
    step(broker, step_ms)
    waiting = pop(broker, 20_000, order="true", attemptId="b", invisible_ms=3000)
    broker.passes(2500)
    assert waiting.answer is None
    broker.passes(4000)
    assert bodies(waiting) == [b"0"]


@pytest.mark.few
@all_steps
def test_transactions_are_asked_about_once_in_an_interval(broker: SteppedBroker, step_ms: int) -> None:
    """They are not asked about at once, again and again, until they are given up."""
    broker.online()
    broker.half()
    step(broker, step_ms)
    check(broker)
    asked = int(step_ms > 3000)
    assert len(broker.connection.questions) == asked
    broker.passes(7000)
    check(broker)
    broker.passes(100)
    if step_ms > 3 * DAY:
        return  # the message is older than the retention of the log, and has been asked about once
    assert len(broker.connection.questions) == asked + 1
    assert len(broker.broker.services.halves.pending) == 1


def test_a_producer_whose_clock_is_ahead_is_not_asked_at_once() -> None:
    broker = SteppedBroker(now_ms=NOW_MS - HOUR)  # the born time of a half message is NOW_MS
    broker.online()
    broker.half()
    broker.passes(1000)
    check(broker)
    assert not broker.connection.questions
    broker.passes(3000)
    check(broker)
    assert len(broker.connection.questions) == 1


def wait(broker: SteppedBroker, connection: Connection, born_ms: int, poll_ms: int = 3000) -> Asked:
    """Sends a pop that waits."""
    fields = {
        "consumerGroup": "cg",
        "topic": "T",
        "queueId": 0,
        "maxMsgNums": 1,
        "invisibleTime": 1000,
        "pollTime": poll_ms,
        "bornTime": born_ms,
        "initMode": 0,
    }
    return broker.request(RequestCode.POP_MESSAGE, fields, connection=connection)


@pytest.mark.few
@events
@all_steps
@pytest.mark.parametrize("shared", [True, False])
def test_waiting_requests_end_in_time(broker: SteppedBroker, step_ms: int, event: Event, shared: bool) -> None:
    """Long polling counts by the monotonic clock, whether or not clients share the broker's clock."""

    def client_ms() -> int:
        return broker.clock.wall_ms() if shared else NOW_MS + round(1000 * broker.clock.monotonic())

    connection = broker.connect()
    before = wait(broker, connection, client_ms())
    broker.passes(2000)
    step(broker, step_ms, event)
    if event is nothing:
        broker.passes(840)
        assert before.answer is None
        broker.passes(40)
        assert before.code == TIMEOUT
    else:
        connection = broker.connect()
        wait(broker, connection, client_ms())  # judged by the wall clocks; it may be refused
    if shared:
        wait(broker, connection, client_ms(), 0)  # the first pop after a step back is refused
    after = wait(broker, connection, client_ms())
    pull = broker.pull(0, 3000)
    broker.passes(2900)
    assert (after.answer, pull.answer) == (None, None)
    broker.passes(200)
    assert (after.code, pull.code) == (TIMEOUT, NOT_FOUND)


# -- after a step forward ---------------------------------------------------------------------------------------------


@pytest.mark.few
@events
@pytest.mark.parametrize("step_ms", FORWARD, ids=["1s", "1h", "26d", "70d"])
def test_after_a_step_forward_nothing_is_lost(broker: SteppedBroker, step_ms: int, event: Event) -> None:
    """What is due by the new time comes at once; what is sent later, in its time."""
    begin(broker)
    broker.send(body=b"timed", TIMER_DELAY_MS="60000")
    broker.send(body=b"level", DELAY="3")
    half = broker.half("D", b"half")
    broker.passes(1100)
    step(broker, step_ms, event)
    broker.send(body=b"after", TIMER_DELAY_MS="3000")
    broker.passes(2500)
    assert (b"timed" in everything(broker)) == (step_ms >= HOUR)
    assert b"after" not in everything(broker)
    broker.passes(4000)
    assert b"after" in everything(broker)
    assert broker.end(half, COMMIT).code == FOUND
    broker.passes(65_000)
    assert sorted(everything(broker)) == [b"after", b"level", b"timed"]
    assert b"half" in everything(broker, "D")


# -- the age of requests ----------------------------------------------------------------------------------------------


class Client:
    """One connection, whose client's clock may be wrong."""

    def __init__(self) -> None:
        self.clock, self.own = ManualClock(NOW_MS), ManualClock(NOW_MS)
        self.ages = RequestAges(self.clock.monotonic, self.clock.wall_ms)
        self.channel = SteppedBroker().connection

    def passes(self, milliseconds: int) -> None:
        for clock in (self.clock, self.own):
            clock.advance(milliseconds)

    def is_late(self, under_way_ms: int = 0, poll_ms: int = 1000) -> bool:
        born_ms = self.own.wall_ms()
        self.passes(under_way_ms)
        began_ms = self.ages.began_ms(self.channel, born_ms, poll_ms)
        return self.ages.is_too_late(began_ms, poll_ms)


@pytest.mark.parametrize("under_way_ms", [0, 1000 + TOO_LATE_MS, 1001 + TOO_LATE_MS, HOUR])
def test_a_request_that_took_too_long_is_late(under_way_ms: int) -> None:
    client = Client()
    late = under_way_ms > 1000 + TOO_LATE_MS
    assert client.is_late(under_way_ms) is late
    assert not client.is_late()
    assert client.is_late(under_way_ms) is late


@pytest.mark.parametrize("step_ms", BACK + FORWARD)
def test_a_step_of_the_brokers_clock_makes_no_request_late(step_ms: int) -> None:
    client = Client()
    assert not client.is_late()
    client.clock.set_wall_ms(client.clock.wall_ms() + step_ms)
    assert not client.is_late()
    assert client.is_late(2000)


@pytest.mark.parametrize("step_ms", BACK + FORWARD)
def test_a_step_of_the_clients_clock_costs_at_most_one_request(step_ms: int) -> None:
    client = Client()
    assert not client.is_late()
    client.own.set_wall_ms(client.own.wall_ms() + step_ms)
    assert client.is_late(poll_ms=100) is (step_ms < 0)
    assert not client.is_late(poll_ms=100)
    assert client.is_late(2000)


def test_a_small_step_back_of_the_clients_clock_is_learned() -> None:
    client = Client()
    assert not client.is_late()
    client.own.set_wall_ms(client.own.wall_ms() - 1000)
    ages = []
    for _ in range(60):
        client.passes(1000)
        began_ms = client.ages.began_ms(client.channel, client.own.wall_ms(), 15_000)
        ages.append(client.ages.now_ms() - began_ms)
    assert ages[0] == 1000
    assert ages[-1] < 10


def test_a_request_that_is_served_again_keeps_its_age(broker: SteppedBroker) -> None:
    """It was woken although there is no message, and waits for the rest of its time."""
    waiting = wait(broker, broker.connection, NOW_MS)
    fields = {"consumerGroup": "cg", "topic": "T", "queueId": 0, "pollTime": 3000, "bornTime": NOW_MS}
    question = broker.request(RequestCode.NOTIFICATION, fields)
    for _ in range(2):
        broker.passes(1000)
        broker.broker.services.pops.get().hold.wake("T", "cg", 0)
    broker.passes(940)
    assert (waiting.answer, question.answer) == (None, None)
    broker.passes(20)
    assert (waiting.code, question.code) == (TIMEOUT, FOUND)


def test_a_closed_connection_is_forgotten(broker: SteppedBroker) -> None:
    connection = broker.connect()
    wait(broker, connection, NOW_MS)
    ages = broker.broker.services.pops.get()._ages  # type: ignore[attr-defined]
    assert connection in ages._least_ms
    connection.closed = True
    broker.broker.channel_closed(connection)
    assert connection not in ages._least_ms
    ages.began_ms(connection, NOW_MS, 0)
    assert connection not in ages._least_ms


def test_a_request_without_a_time_is_as_old_as_its_arrival() -> None:
    client = Client()
    client.passes(5000)
    assert client.ages.began_ms(client.channel, 0, 1000) == client.ages.now_ms()
