"""Waiting requests are woken in time, and a failure affects only one request: tests that advance the clock of a whole
broker.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.broker_life import Connection
from tests.unit.broker.stepped import STEP_MS, Asked, SteppedBroker

from rucola.common.topic_config import TopicConfig
from rucola.errors import DiskError, DiskFullError
from rucola.formats.message import decode_messages
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.store.results import StoreState

POP, ACK, CHANGE, NOTIFICATION = 200050, 200051, 200053, 200054
FOUND, SYSTEM_ERROR, NOT_FOUND, RETRY_IMMEDIATELY, POLLING_TIMEOUT = 0, 1, 19, 20, 210
PLACE = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def broker(request: pytest.FixtureRequest) -> SteppedBroker:
    return SteppedBroker(request.param)


def pop_fields(broker: SteppedBroker, poll_ms: int, invisible_ms: int = 60_000) -> dict[str, object]:
    return {
        **PLACE,
        "maxMsgNums": 32,
        "invisibleTime": invisible_ms,
        "pollTime": poll_ms,
        "bornTime": broker.clock.wall_ms(),
        "initMode": 0,
    }


def pop(broker: SteppedBroker, poll_ms: int = 0, invisible_ms: int = 60_000, **changes: object) -> Asked:
    return broker.request(POP, pop_fields(broker, poll_ms, invisible_ms) | changes)


def pop_in_order(broker: SteppedBroker, attempt: str, poll_ms: int = 0, **changes: object) -> Asked:
    return pop(broker, poll_ms, order="true", attemptId=attempt, **changes)


def bodies(asked: Asked) -> list[bytes]:
    return [] if asked.answer is None else [bytes(message.body) for message in decode_messages(asked.answer.body)]


def receipt(asked: Asked, queue_offset: int) -> str:
    assert asked.answer is not None
    fields = asked.answer.ext_fields
    start = fields["startOffsetInfo"].rpartition(" ")[2]
    return f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 b 0 {queue_offset}"


def ack(broker: SteppedBroker, asked: Asked, queue_offset: int) -> None:
    fields = {**PLACE, "offset": queue_offset, "extraInfo": receipt(asked, queue_offset)}
    assert broker.request(ACK, fields).code == FOUND


def hide(broker: SteppedBroker, asked: Asked, queue_offset: int, invisible_ms: int) -> None:
    fields = {**PLACE, "offset": queue_offset, "extraInfo": receipt(asked, queue_offset)}
    assert broker.request(CHANGE, fields | {"invisibleTime": invisible_ms}).code == FOUND


def sent(broker: SteppedBroker, count: int) -> None:
    for number in range(count):
        assert broker.send(body=b"%d" % number).code == FOUND


def revive(broker: SteppedBroker) -> None:
    """Makes popped messages visible again; their retry topic may have to be created first."""
    for _ in range(3):
        broker.turn(100)


# -- pulls ------------------------------------------------------------------------------------------------------------


def test_a_message_wakes_a_pull_at_once(broker: SteppedBroker) -> None:
    waiting = broker.pull(0)
    broker.passes(500)
    assert waiting.answer is None
    sent(broker, 1)
    broker.passes(STEP_MS)
    assert (waiting.code, waiting.after_ms) == (FOUND, 500)


def test_a_pull_is_answered_when_its_time_is_over(broker: SteppedBroker) -> None:
    sent(broker, 1)
    short, long = broker.pull(1, 3000), broker.pull(1, 7000)
    broker.passes(2990)
    assert (short.answer, long.answer) == (None, None)
    broker.passes(2 * STEP_MS)
    assert (short.code, long.answer) == (NOT_FOUND, None)
    broker.passes(4000)
    assert long.code == NOT_FOUND
    assert len(broker.broker.running.hold) == 0


def test_a_pull_behind_messages_that_it_filters_out_moves_on_with_the_recheck(broker: SteppedBroker) -> None:
    sent(broker, 1)
    waiting = broker.pull(1, 60_000, expression="wanted")
    broker.send(TAGS="other")
    broker.passes(4500)
    assert waiting.answer is None
    broker.passes(1000)
    assert waiting.code == RETRY_IMMEDIATELY
    assert waiting.answer is not None
    assert waiting.answer.ext_fields["nextBeginOffset"] == "2"


def test_the_recheck_covers_a_lost_wake_up(broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = broker.pull(0, 60_000)
    monkeypatch.setattr(broker.broker.store, "take_arrivals", list)
    sent(broker, 1)
    broker.passes(4980)
    assert waiting.answer is None
    broker.passes(3 * STEP_MS)
    assert waiting.code == FOUND


def test_a_delayed_message_wakes_a_pull_when_it_is_due(broker: SteppedBroker) -> None:
    waiting = broker.pull(0)
    broker.send(DELAY="1")
    broker.passes(900)
    assert waiting.answer is None
    broker.passes(100 + 2 * STEP_MS)
    assert waiting.code == FOUND


def test_a_timed_message_wakes_a_pull_when_it_is_due(broker: SteppedBroker) -> None:
    waiting = broker.pull(0)
    broker.send(TIMER_DELIVER_MS=str(broker.clock.wall_ms() + 3000))
    broker.passes(1900)
    assert waiting.answer is None
    broker.passes(1100 + 2 * STEP_MS)
    assert waiting.code == FOUND


# -- pops -------------------------------------------------------------------------------------------------------------


def test_a_message_wakes_a_pop_at_once(broker: SteppedBroker) -> None:
    waiting = pop(broker, 20_000)
    broker.passes(500)
    assert waiting.answer is None
    sent(broker, 1)
    broker.passes(STEP_MS)
    assert (bodies(waiting), waiting.after_ms) == ([b"0"], 500)


def test_a_pop_is_answered_a_little_before_its_client_gives_up(broker: SteppedBroker) -> None:
    waiting = pop(broker, 3000)
    broker.passes(2940)
    assert waiting.answer is None
    broker.passes(2 * STEP_MS)
    assert waiting.code == POLLING_TIMEOUT


def test_a_message_that_nobody_acknowledged_wakes_a_pop_when_it_comes_again(broker: SteppedBroker) -> None:
    sent(broker, 1)
    assert bodies(pop(broker, invisible_ms=5000)) == [b"0"]
    waiting = pop(broker, 30_000)
    broker.passes(4000)
    for _ in range(30):  # the test runs the tasks of the broker
        broker.passes(100)
        broker.work()
    broker.passes(STEP_MS)
    assert (waiting.code, bodies(waiting)) == (FOUND, [b"0"])


def test_an_acknowledgement_in_order_wakes_a_waiting_pop_at_once(broker: SteppedBroker) -> None:
    sent(broker, 3)
    first = pop_in_order(broker, "a", maxMsgNums=2)
    assert bodies(first) == [b"0", b"1"]
    waiting = pop_in_order(broker, "b", 20_000)
    ack(broker, first, 0)
    broker.passes(500)
    assert waiting.answer is None
    ack(broker, first, 1)
    broker.passes(STEP_MS)
    assert (bodies(waiting), waiting.after_ms) == ([b"2"], 500)


def test_a_changed_invisible_time_wakes_a_waiting_pop_in_order_when_it_is_over(broker: SteppedBroker) -> None:
    """The invisible time of a popped message is changed from 8 s to 0.5 s. Before the fix, the next
    pop waited for 8 s.
    """
    sent(broker, 1)
    first = pop_in_order(broker, "a", invisible_ms=8000)
    waiting = pop_in_order(broker, "b", 20_000)
    hide(broker, first, 0, 500)
    broker.passes(490)
    assert waiting.answer is None
    broker.passes(2 * STEP_MS)
    assert bodies(waiting) == [b"0"]


def test_an_acknowledgement_that_leaves_a_shorter_time_wakes_when_that_is_over(broker: SteppedBroker) -> None:
    sent(broker, 2)
    first = pop_in_order(broker, "a", invisible_ms=8000)
    hide(broker, first, 0, 700)
    waiting = pop_in_order(broker, "b", 20_000)
    broker.passes(200)
    ack(broker, first, 1)
    broker.passes(480)
    assert waiting.answer is None
    broker.passes(3 * STEP_MS)
    assert bodies(waiting)[:1] == [b"0"]


def test_a_longer_invisible_time_keeps_a_waiting_pop_in_order_until_it_is_over(broker: SteppedBroker) -> None:
    sent(broker, 1)
    first = pop_in_order(broker, "a", invisible_ms=1000)
    waiting = pop_in_order(broker, "b", 20_000)
    hide(broker, first, 0, 3000)
    broker.passes(2980)
    assert waiting.answer is None
    broker.passes(3 * STEP_MS)
    assert bodies(waiting) == [b"0"]
    assert len(broker.broker.services.pops.get()._locks) == 0


def test_a_blocked_queue_has_one_timer_however_often_its_time_changes(broker: SteppedBroker) -> None:
    sent(broker, 1)
    first = pop_in_order(broker, "a", invisible_ms=60_000)
    waiting = pop_in_order(broker, "b", 50_000)
    broker.passes(STEP_MS)
    before = len([call for call in broker.loop._calls if not call.cancelled])
    for number in range(20):
        hide(broker, first, 0, 40_000 - number)
    broker.passes(STEP_MS)
    assert len([call for call in broker.loop._calls if not call.cancelled]) <= before
    assert waiting.answer is None


def test_longer_waits_are_woken_by_the_end_of_the_next_pop(broker: SteppedBroker) -> None:
    sent(broker, 1)
    pop_in_order(broker, "a", invisible_ms=1000)
    second = pop_in_order(broker, "b", 20_000, invisible_ms=2000)
    third = pop_in_order(broker, "c", 20_000, invisible_ms=2000)
    broker.passes(1000 + STEP_MS)
    assert (bodies(second), third.answer) == ([b"0"], None)
    broker.passes(1960)
    assert third.answer is None
    broker.passes(6 * STEP_MS)
    assert bodies(third) == [b"0"]


def test_a_question_about_a_blocked_queue_is_answered_when_it_is_free(broker: SteppedBroker) -> None:
    sent(broker, 1)
    first = pop_in_order(broker, "a", invisible_ms=8000)
    fields = {**PLACE, "order": "true", "attemptId": "b", "pollTime": 20_000, "bornTime": broker.clock.wall_ms()}
    question = broker.request(NOTIFICATION, fields)
    hide(broker, first, 0, 500)
    broker.passes(480)
    assert question.answer is None
    broker.passes(3 * STEP_MS)
    assert question.answer is not None
    assert question.answer.ext_fields["hasMsg"] == "true"


@pytest.mark.parametrize("order", [False, True])
def test_a_topic_deleted_and_made_again_after_a_pop_loses_nothing(order: bool) -> None:
    """A deleted topic is created again. Before the fix, earlier pops counted for the new topic, so its first messages
    were skipped.
    """
    broker = SteppedBroker(False)
    broker.broker.topics.update(TopicConfig("N", 1, 1, 6))
    broker.send("N", b"old 0")
    broker.send("N", b"old 1")
    changes: dict[str, Any] = {"topic": "N", "order": str(order).lower()}
    assert len(bodies(pop(broker, **changes))) == 2
    assert broker.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "N"}).code == FOUND
    broker.broker.topics.update(TopicConfig("N", 1, 1, 6))
    broker.send("N", b"new 0")
    broker.send("N", b"new 1")
    broker.passes(6000)
    assert bodies(pop(broker, **changes)) == [b"new 0", b"new 1"]


def test_a_group_deleted_with_its_offsets_after_a_pop_begins_anew() -> None:
    broker = SteppedBroker(True)
    sent(broker, 2)
    assert len(bodies(pop(broker))) == 2
    fields = {"groupName": "cg", "cleanOffset": "true"}
    assert broker.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields).code == FOUND
    broker.passes(6000)
    assert bodies(pop(broker)) == [b"0", b"1"]


# -- one failure costs one request ------------------------------------------------------------------------------------


def full_disk(*_: object) -> None:
    raise DiskFullError("subscriptionGroup.json", "write", "no space left")


def test_a_group_that_cannot_be_made_again_costs_its_own_pull_only(
    broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted group cannot be created again. Before the fix, a different group's pull therefore waited forever, and
    long polling on other queues stopped until the broker was restarted.
    """
    others = [Connection(broker.broker, broker.loop) for _ in range(3)]
    before = broker.pull(0, 60_000, group="healthy1", connection=others[0])
    lost = broker.pull(0, 60_000, group="lost", connection=others[1])
    after = broker.pull(0, 60_000, group="healthy2", connection=others[2])
    elsewhere = broker.pull(0, 60_000, topic="D", group="healthy1", connection=others[0])
    broker.broker.groups.delete("lost")
    monkeypatch.setattr(broker.broker.groups, "before_create", full_disk)
    sent(broker, 1)
    broker.send("D")
    broker.passes(STEP_MS)
    assert [asked.code for asked in (before, lost, after, elsewhere)] == [FOUND, SYSTEM_ERROR, FOUND, FOUND]
    assert lost.answer is not None
    assert "no space left" in (lost.answer.remark or "")
    assert len(broker.broker.running.hold) == 0
    assert broker.broker.store.state is StoreState.RUNNING
    again = broker.pull(1, 60_000, group="healthy1", connection=others[0])
    sent(broker, 1)
    broker.passes(STEP_MS)
    assert (again.code, again.after_ms) == (FOUND, 0)


def test_a_group_that_cannot_be_made_again_costs_its_own_pop_only(
    broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = pop(broker, 20_000, consumerGroup="healthy")
    lost = pop(broker, 20_000, consumerGroup="lost")
    pull = broker.pull(0)
    broker.broker.groups.delete("lost")
    monkeypatch.setattr(broker.broker.groups, "before_create", full_disk)
    sent(broker, 1)
    broker.passes(STEP_MS)
    assert (healthy.code, lost.code, pull.code) == (FOUND, SYSTEM_ERROR, FOUND)
    assert len(broker.broker.services.pops.get().hold) == 0


def test_a_read_that_the_disk_refuses_costs_its_pull_only(
    broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, one failed read from the disk made the whole store read-only until a restart."""
    store = broker.broker.store
    get_message = store.get_message
    refused, served = broker.pull(0, group="one"), broker.pull(0, group="two")
    reads: list[int] = []

    def one_fails(*arguments: Any) -> Any:
        reads.append(1)
        if len(reads) == 1:
            raise DiskError("commitlog", "read", "input/output error")
        return get_message(*arguments)

    monkeypatch.setattr(store, "get_message", one_fails)
    sent(broker, 1)
    broker.passes(STEP_MS)
    assert (refused.code, served.code) == (SYSTEM_ERROR, FOUND)
    assert store.state is StoreState.RUNNING
    assert broker.send().code == FOUND


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("services.pops", "arrived"),
        ("running.delivery", "arrived"),
        ("services.timers", "arrived"),
        ("running.hold", "arrived"),
    ],
)
def test_each_callback_may_fail_and_the_next_message_wakes_again(
    broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch, part: str, method: str
) -> None:
    pull, waiting = broker.pull(0), pop(broker, 20_000)
    owner: Any = broker.broker
    for name in part.split("."):
        owner = getattr(owner, name)

    def fail(*_: object) -> None:
        raise ValueError("a defect")

    def send_all_kinds() -> None:
        broker.send(DELAY="1")
        broker.send(TIMER_DELIVER_MS=str(broker.clock.wall_ms() + 1000))
        sent(broker, 1)
        broker.passes(STEP_MS)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fail)
        send_all_kinds()
    assert (pull.code is None) is (part == "running.hold")
    assert (waiting.code is None) is (part == "services.pops")
    send_all_kinds()
    broker.passes(3000)
    assert (pull.code, waiting.code) == (FOUND, FOUND)
    assert broker.broker.store.max_queue_offset(b"T", 0) == 6
    assert sum(broker.broker.services.supervisor.failures.values()) >= 1


# -- consumers --------------------------------------------------------------------------------------------------------


def beat(broker: SteppedBroker, connection: Connection, client_id: str) -> None:
    data = HeartbeatData(client_id, [], [ConsumerData("cg", subscription_data_set=[SubscriptionData("T", "*")])])
    assert broker.request(RequestCode.HEART_BEAT, body=data.encode(), connection=connection).code == FOUND


def told(connection: Connection) -> list[int]:
    return [question.code for question in connection.questions]


def test_a_consumer_that_falls_silent_expires_and_the_others_share_its_queues(
    broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent consumer is removed two minutes after its last heartbeat, at the next check; checks run every 10 s."""
    silent, alive = broker.connect(), broker.connect()
    closed: list[Connection] = []

    def close(connection: Connection) -> None:
        closed.append(connection)
        broker.broker.channel_closed(connection)

    monkeypatch.setattr(Connection, "close", close)
    beat(broker, silent, "silent")
    beat(broker, alive, "alive")
    alive.questions.clear()
    members = {"consumerGroup": "cg"}
    for _ in range(4):
        broker.passes(30_000)
        beat(broker, alive, "alive")
    assert closed == []
    assert broker.broker.services.consumers.group("cg") is not None
    broker.passes(10_000 + STEP_MS)
    assert closed == [silent]
    assert told(alive) == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    listed = broker.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, members).answer
    assert isinstance(listed, RemotingCommand)
    assert b"silent" not in listed.body
    assert b"alive" in listed.body


def test_a_heartbeat_after_a_reconnect_makes_the_client_a_member_at_once(broker: SteppedBroker) -> None:
    first, other = broker.connect(), broker.connect()
    beat(broker, first, "mine")
    beat(broker, other, "other")
    broker.broker.channel_closed(first)
    info = broker.broker.services.consumers.group("cg")
    assert info is not None
    assert info.client_ids() == ["other"]
    other.questions.clear()
    again = broker.connect()
    beat(broker, again, "mine")
    assert info.client_ids() == ["other", "mine"]
    assert told(other) == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
