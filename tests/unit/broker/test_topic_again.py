"""A topic is deleted and created again under running consumers: they miss nothing of the new topic, and meet nothing of
the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.crash.broker_life import Connection
from tests.tables import Tables
from tests.unit.broker.stepped import STEP_MS, Asked, SteppedBroker
from tests.unit.broker.test_wake_ups import ACK, CHANGE, NOTIFICATION, PLACE, bodies, pop, receipt, revive

from rucola.broker.offset.offset_resets import FILE_NAME, KEYS_MAX, OffsetResets, Reset
from rucola.broker.processor.offset_reset import OffsetResetProcessor
from rucola.common.topic_config import TopicConfig
from rucola.errors import FormatError
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand

FOUND, NOT_FOUND, MOVED, NO_TOPIC, NO_OFFSET, NO_MESSAGE = 0, 19, 21, 17, 22, 208
Event = Callable[[SteppedBroker], None]


def nothing(_broker: SteppedBroker) -> None:
    """Lets nothing happen between deletion and creation."""


EVENTS = pytest.mark.parametrize("event", [nothing, SteppedBroker.restart, SteppedBroker.kill])


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def broker(request: pytest.FixtureRequest) -> SteppedBroker:
    broker = SteppedBroker(request.param)
    create(broker)
    return broker


def create(broker: SteppedBroker, queues: int = 1) -> None:
    broker.broker.topics.update(TopicConfig("N", queues, queues, 6))
    broker._happen()


def delete(broker: SteppedBroker, topic: str = "N") -> None:
    assert broker.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == FOUND


def send(broker: SteppedBroker, life: str, count: int) -> None:
    for number in range(count):
        assert broker.send("N", f"{life} {number}".encode()).code == FOUND
    broker.passes(STEP_MS)


def next_offset(asked: Asked) -> int:
    assert asked.answer is not None
    return int(asked.answer.ext_fields["nextBeginOffset"])


def commit(broker: SteppedBroker, consumer_offset: int, group: str = "cg") -> int | None:
    fields = {"consumerGroup": group, "topic": "N", "queueId": 0, "commitOffset": consumer_offset}
    return broker.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code


def stored(broker: SteppedBroker, group: str = "cg") -> int | None:
    return broker.broker.offsets.query(group, "N", 0)


def look_up(broker: SteppedBroker, group: str = "cg") -> Asked:
    fields = {"consumerGroup": group, "topic": "N", "queueId": 0, "setZeroIfNotFound": "false"}
    return broker.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def consume(broker: SteppedBroker, queue_offset: int, group: str = "cg", connection: Connection | None = None) -> int:
    """Pulls as a client does, which goes on where the responses say; returns the offset after the last message."""
    asked = broker.pull(queue_offset, 0, "N", group, connection=connection)
    return next_offset(asked)


# -- requests that wait -----------------------------------------------------------------------------------------------


def test_a_waiting_pull_is_told_to_begin_at_0(broker: SteppedBroker) -> None:
    """Before, the pull waited on at the old offset, and the new topic's first messages were skipped."""
    send(broker, "old", 3)
    assert consume(broker, 0) == 3
    waiting = broker.pull(3, 20_000, "N")
    elsewhere = broker.pull(0, 20_000, "D")
    delete(broker)
    assert (waiting.code, next_offset(waiting), waiting.after_ms) == (MOVED, 0, 0)
    assert elsewhere.answer is None
    assert broker.pull(0, 20_000, "N").code == NO_TOPIC
    create(broker)
    send(broker, "new", 2)
    assert bodies(broker.pull(0, 20_000, "N")) == [b"new 0", b"new 1"]


def test_many_waiting_pulls_are_told_even_if_the_topic_is_there_again(broker: SteppedBroker) -> None:
    """More pulls than one turn resumes: the topic exists again before the last of them is answered."""
    send(broker, "old", 1)
    waiting = [broker.pull(1, 20_000, "N", f"g{number}") for number in range(200)]
    hold = broker.broker.running.hold
    delete(broker)
    create(broker)
    send(broker, "new", 1)
    assert [(asked.code, next_offset(asked)) for asked in waiting] == [(MOVED, 0)] * 200
    assert len(hold) == 0


def test_a_pull_that_waits_for_a_queue_that_was_taken_away_is_told_as_well(broker: SteppedBroker) -> None:
    broker.broker.topics.update(TopicConfig("N", 2, 2, 6))
    assert broker.send("N", b"m", 1).code == FOUND
    broker.passes(STEP_MS)
    assert next_offset(broker.pull(0, 0, "N", queue_id=1)) == 1
    waiting = broker.pull(1, 20_000, "N", queue_id=1)
    create(broker, 1)
    delete(broker)
    assert (waiting.code, next_offset(waiting)) == (MOVED, 0)


def test_waiting_pops_and_questions_end(broker: SteppedBroker) -> None:
    send(broker, "old", 1)
    assert len(bodies(pop(broker, topic="N"))) == 1
    waiting = [
        pop(broker, 20_000, topic="N"),
        pop(broker, 20_000, topic="N"),
        pop(broker, 20_000, topic="N", queueId=-1),
    ]
    fields = PLACE | {"topic": "N", "pollTime": 20_000, "bornTime": broker.clock.wall_ms()}
    waiting.append(broker.request(NOTIFICATION, fields))
    elsewhere = pop(broker, 20_000)
    delete(broker)
    assert [asked.code for asked in waiting] == [NO_TOPIC] * 4
    assert [asked.after_ms for asked in waiting] == [0] * 4
    assert elsewhere.answer is None
    assert broker.broker.services.pops.waiting == 1


# -- clients that go on at an old offset ------------------------------------------------------------------------------


@pytest.mark.few
@EVENTS
@pytest.mark.parametrize("old", [1, 2, 3, 5])
def test_a_client_with_an_old_offset_is_told_once(broker: SteppedBroker, event: Event, old: int) -> None:
    """The old offset lies inside of the new queue, at its end, or behind it."""
    send(broker, "old", old)
    assert consume(broker, 0) == old
    assert commit(broker, old) == FOUND
    broker.passes(6000)
    delete(broker)
    event(broker)
    create(broker)
    send(broker, "new", 3)
    assert commit(broker, old) == FOUND
    assert stored(broker) is None, "this offset counts messages of the old topic"
    told = broker.pull(old, 20_000, "N")
    assert (told.code, next_offset(told)) == (MOVED, 0)
    assert bodies(broker.pull(0, 20_000, "N")) == [b"new 0", b"new 1", b"new 2"]
    assert commit(broker, 3) == FOUND
    assert stored(broker) == 3
    assert broker.pull(3, 0, "N").code == NOT_FOUND


@EVENTS
def test_a_client_that_starts_now_begins_at_the_first_message(broker: SteppedBroker, event: Event) -> None:
    """It asks for the group's offset; with NOT FOUND it might begin at the end of the queue."""
    send(broker, "old", 2)
    assert consume(broker, 0) == 2
    broker.passes(6000)
    delete(broker)
    event(broker)
    create(broker)
    send(broker, "new", 3)
    found = look_up(broker)
    assert found.answer is not None
    assert (found.code, found.answer.ext_fields.get("offset")) == (FOUND, "0")
    assert len(bodies(broker.pull(0, 0, "N"))) == 3
    assert not broker.broker.services.resets.table, "the pull at offset 0 settles the reset"
    assert look_up(broker, "never read it").code == NO_OFFSET


@EVENTS
def test_a_group_that_was_given_messages_but_committed_none_is_told(broker: SteppedBroker, event: Event) -> None:
    send(broker, "old", 2)
    assert consume(broker, 0) == 2
    delete(broker)
    event(broker)
    create(broker)
    send(broker, "new", 3)
    told = broker.pull(2, 0, "N")
    assert (told.code, next_offset(told)) == (MOVED, 0)


def test_a_reset_that_was_told_does_not_come_again_after_a_restart(broker: SteppedBroker) -> None:
    send(broker, "old", 2)
    assert consume(broker, 0) == 2
    delete(broker)
    create(broker)
    send(broker, "new", 3)
    assert consume(broker, 2) == 0
    assert consume(broker, 0) == 3
    broker.restart()
    assert consume(broker, 3) == 3


def test_a_third_topic_of_the_name_begins_at_0_too(broker: SteppedBroker) -> None:
    """An administrator had set an offset of the second topic, which nobody was told before it was deleted."""
    send(broker, "old", 2)
    assert consume(broker, 0) == 2
    delete(broker)
    create(broker)
    send(broker, "new", 3)
    fields = {"topic": "N", "group": "cg", "timestamp": "-1", "isForce": "true", "queueId": "0", "offset": "2"}
    request = RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext_fields=fields)
    resets = OffsetResetProcessor(broker.broker.services, broker.broker.running.hold)
    assert asyncio.run(resets.reset_offset(cast(Any, broker.connection), request)).code == FOUND  # it needs a real loop
    delete(broker)
    create(broker)
    send(broker, "third", 3)
    assert consume(broker, 2) == 0


def heartbeat(broker: SteppedBroker, connection: Connection, client_id: str) -> None:
    data = ConsumerData("bg", message_model="BROADCASTING", subscription_data_set=[SubscriptionData("N", "*")])
    body = HeartbeatData(client_id, [], [data]).encode()
    assert broker.request(RequestCode.HEART_BEAT, body=body, connection=connection).code == FOUND


@EVENTS
def test_every_member_of_a_broadcasting_group_is_told(broker: SteppedBroker, event: Event) -> None:
    """They keep their offsets themselves."""
    members = [broker.connect() for _ in range(3)]
    for number, member in enumerate(members):
        heartbeat(broker, member, f"client{number}")
    send(broker, "old", 2)
    assert [consume(broker, 0, "bg", member) for member in members] == [2, 2, 2]
    delete(broker)
    event(broker)
    create(broker)
    send(broker, "new", 3)
    if event is not nothing:
        members = [broker.connect() for _ in range(3)]
        assert consume(broker, 2, "bg", members[0]) == 3, "nobody knows which member this is"
    for number, member in enumerate(members):
        heartbeat(broker, member, f"client{number}")
    assert consume(broker, 2, "bg", members[0]) == 0
    assert consume(broker, 0, "bg", members[0]) == 3
    assert consume(broker, 3, "bg", members[0]) == 3
    assert [consume(broker, 2, "bg", member) for member in members[1:]] == [0, 0]
    assert not broker.broker.services.resets.table


def test_a_deleted_group_is_told_nothing(broker: SteppedBroker) -> None:
    send(broker, "old", 2)
    assert consume(broker, 0) == 2
    delete(broker)
    fields = {"groupName": "cg", "cleanOffset": "true"}
    assert broker.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields).code == FOUND
    create(broker)
    send(broker, "new", 3)
    assert look_up(broker).code == NO_OFFSET
    assert consume(broker, 2) == 3


# -- messages on their way --------------------------------------------------------------------------------------------


def everything(broker: SteppedBroker, topic: str = "N") -> list[bytes]:
    return [bytes(message.body) for message in broker.messages(topic.encode())]


DELAYS: list[dict[str, str]] = [{"DELAY": "2"}, {"TIMER_DELAY_MS": "2000"}]


@pytest.mark.few
@EVENTS
@pytest.mark.parametrize("delay", DELAYS, ids=["level", "timer"])
@pytest.mark.parametrize("again", [True, False])
def test_a_delayed_message_is_deleted_with_its_topic(
    broker: SteppedBroker, event: Event, delay: dict[str, str], again: bool
) -> None:
    """Before, it came into the new topic, or into a queue without a topic."""
    broker.send("N", b"old", **delay)
    broker.send("D", b"elsewhere", **delay)
    broker.passes(100)
    delete(broker)
    event(broker)
    if again:
        create(broker)
        broker.send("N", b"new", **delay)
    broker.passes(6000)
    assert everything(broker) == ([b"new"] if again else [])
    assert everything(broker, "D") == [b"elsewhere"]
    assert broker.broker.services.schedule.pending() == 0
    if event is not SteppedBroker.kill:  # the number may be wrong after a crash
        assert broker.broker.services.timers.service.pending() == 0


def test_a_timed_message_that_rolls_is_deleted_with_its_topic() -> None:
    """A roll stores the message again, behind the deletion."""
    broker = SteppedBroker()
    create(broker)
    broker.broker.services.timers.service._roll_window_ms = 4000
    broker.send("N", b"old", TIMER_DELAY_MS="9000")
    broker.passes(1000)
    delete(broker)
    create(broker)
    broker.passes(10_000)
    assert everything(broker) == []
    assert broker.broker.services.timers.service.pending() == 0


def test_a_timed_message_that_was_due_in_the_queue_is_deleted_with_its_topic(broker: SteppedBroker) -> None:
    """It is due before the timer has taken it from its queue."""
    broker.send("N", b"old", TIMER_DELAY_MS="1500")
    broker.kill()
    broker.clock.advance(10_000)
    delete(broker)
    create(broker)
    broker.passes(3000)
    assert everything(broker) == []


@EVENTS
def test_a_transaction_ends_with_its_topic(broker: SteppedBroker, event: Event) -> None:
    half, elsewhere = broker.half("N"), broker.half("D")
    broker.passes(STEP_MS)
    delete(broker)
    event(broker)
    create(broker)
    refused = broker.end(half, 8)
    assert (refused.code, refused.answer and refused.answer.remark) == (17, "the topic of the transaction was deleted")
    assert broker.end(elsewhere, 8).code == FOUND
    broker.passes(1000)
    assert everything(broker) == []
    assert everything(broker, "D") == [b"half"]
    assert not broker.broker.services.halves.pending


def test_nobody_is_asked_about_a_transaction_of_a_deleted_topic(broker: SteppedBroker) -> None:
    """A check would store a copy behind the deletion, which could be committed into the new topic."""
    broker.half("N")
    broker.online()
    delete(broker)
    create(broker)
    broker.passes(5000)
    broker.check_transactions()
    assert not broker.connection.questions
    assert not broker.broker.services.halves.pending
    broker.restart()
    broker.passes(1000)
    assert not broker.broker.services.halves.pending


def receipt_of(asked: Asked, queue_offset: int) -> dict[str, object]:
    return {**PLACE, "topic": "N", "offset": queue_offset, "extraInfo": receipt(asked, queue_offset)}


@pytest.mark.few
@EVENTS
def test_pops_of_the_old_topic_do_not_touch_the_new_one(broker: SteppedBroker, event: Event) -> None:
    """Before, their checkpoints made messages of the new topic come twice, and a changed invisible time as well."""
    send(broker, "old", 4)
    old = pop(broker, topic="N", invisible_ms=3000)
    assert len(bodies(old)) == 4
    broker.passes(100)
    delete(broker)
    event(broker)
    create(broker)
    send(broker, "new", 4)
    for code, more in ((CHANGE, {"invisibleTime": 1000}), (ACK, {})):
        assert broker.request(code, receipt_of(old, 1) | more).code == NO_MESSAGE
    assert bodies(pop(broker, topic="N", invisible_ms=60_000)) == [b"new 0", b"new 1", b"new 2", b"new 3"]
    broker.passes(8000)
    revive(broker)
    assert everything(broker, "%RETRY%cg_N") == []
    assert bodies(pop(broker, topic="N")) == []
    broker.passes(60_000)
    revive(broker)
    assert everything(broker, "%RETRY%cg_N") == [b"new 0", b"new 1", b"new 2", b"new 3"]


def test_a_pop_in_the_millisecond_of_the_deletion_belongs_to_the_old_topic(broker: SteppedBroker) -> None:
    """Before, its checkpoint made acknowledged messages of the new topic come again."""
    send(broker, "old", 2)
    old = pop(broker, topic="N", invisible_ms=3000)
    delete(broker)
    create(broker)
    assert broker.request(ACK, receipt_of(old, 0)).code == NO_MESSAGE
    for number in range(2):
        assert broker.send("N", b"new %d" % number).code == FOUND
    new = pop(broker, topic="N", invisible_ms=3000)
    assert bodies(new) == [b"new 0", b"new 1"]
    assert broker.request(ACK, receipt_of(new, 0)).code == FOUND
    broker.passes(8000)
    revive(broker)
    assert everything(broker, "%RETRY%cg_N") == [b"new 1"]


def test_the_time_of_a_deletion_holds_although_the_clock_was_set_back(broker: SteppedBroker) -> None:
    send(broker, "old", 1)
    broker.passes(5000)
    delete(broker)
    create(broker)
    broker.clock.set_wall_ms(broker.clock.wall_ms() - 60_000)
    broker.restart()
    assert broker.broker.store.now_ms() >= broker.broker.store.deleted_ms(b"N") > 0


@EVENTS
def test_an_old_receipt_of_an_orderly_pop_moves_nothing(broker: SteppedBroker, event: Event) -> None:
    send(broker, "old", 2)
    old = pop(broker, topic="N", order="true", invisible_ms=60_000)
    assert len(bodies(old)) == 2
    broker.passes(6000)  # the table with this pop is written
    delete(broker)
    event(broker)
    create(broker)
    send(broker, "new", 3)
    ordered = {"extraInfo": f"0 {int(old.answer.ext_fields['popTime'])} 60000 999 0 b 0 1"}  # type: ignore[union-attr]
    assert broker.request(ACK, receipt_of(old, 1) | ordered).code == NO_MESSAGE
    assert bodies(pop(broker, topic="N", order="true")) == [b"new 0", b"new 1", b"new 2"]


def test_a_crash_after_the_new_topic_was_popped_skips_nothing() -> None:
    """The newest checkpoints, which tell after a crash how far a group has popped, are those of the old topic."""
    broker = SteppedBroker(True)
    create(broker)
    send(broker, "old", 4)
    assert len(bodies(pop(broker, topic="N", invisible_ms=30_000))) == 4
    broker.passes(100)
    delete(broker)
    create(broker)
    send(broker, "new", 4)
    assert bodies(pop(broker, topic="N", maxMsgNums=1, invisible_ms=30_000)) == [b"new 0"]
    broker.passes(6000)
    broker.kill()
    assert bodies(pop(broker, topic="N", invisible_ms=30_000)) == [b"new 1", b"new 2", b"new 3"]


# -- a group is deleted and created again -----------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
def test_a_group_that_is_there_again_misses_nothing(broker: SteppedBroker, clean: bool) -> None:
    """Without its offsets, it reads everything again. With them, it goes on after the popped messages, so these come
    again from the retry topic; before, they were lost if the group was missing when they became visible.
    """
    send(broker, "old", 2)
    assert len(bodies(pop(broker, topic="N", invisible_ms=3000))) == 2
    broker.passes(6000 if clean else 100)
    broker.persist()
    fields = {"groupName": "cg", "cleanOffset": str(clean).lower()}
    assert broker.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields).code == FOUND
    broker.passes(8000)
    revive(broker)
    found = []
    for _ in range(4):
        found += bodies(pop(broker, topic="N", queueId=-1))
    assert sorted(set(found)) == [b"old 0", b"old 1"]


def test_messages_on_their_way_to_queues_that_were_taken_away_come_in_others(broker: SteppedBroker) -> None:
    """Popped, delayed, timed and half messages."""
    create(broker, 2)
    for number, more in enumerate(({}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "2000"})):
        assert broker.send("N", b"%d" % number, 1, **more).code == FOUND
    half = broker.half("N", b"3", 1)
    broker.passes(100)
    assert bodies(pop(broker, topic="N", queueId=1, invisible_ms=3000)) == [b"0"]
    create(broker, 1)
    assert broker.end(half, 8).code == FOUND
    broker.passes(8000)
    revive(broker)
    assert bodies(broker.pull(0, 0, "N", queue_id=0)) == [b"3", b"1", b"2"]
    assert everything(broker, "%RETRY%cg_N") == [b"0"]


# -- the table of resets ----------------------------------------------------------------------------------------------


def test_the_resets_are_written_and_read() -> None:
    written: list[bytes] = []
    tables = Tables(written.append)
    resets = OffsetResets(tables.keep)
    assert resets.persist() is None
    resets.add("g", "T", 0, Reset(0))
    resets.add("g", "T", 1, Reset(7))
    resets.add("b", "T", 0, Reset(0, {"me", "you"}))
    assert resets.persist() is not None
    assert resets.persist() is None
    tables.write()
    again = OffsetResets(tables.keep)
    again.load(written[0])
    assert again.table == resets.table
    assert again.find("g", "T", 1) == 7
    again.remove_group("g")
    assert list(again.table) == ["T@b"]


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"table":[1]}',
        b'{"table":{"T@g":{"x":{"offset":1}}}}',
        b'{"table":{"T@g":{"0":{}}}}',
        b'{"table":{"T@g":{"0":1}}}',
    ],
)
def test_a_damaged_table_of_resets_is_no_empty_one(text: bytes) -> None:
    with pytest.raises(FormatError, match=FILE_NAME if b"{" in text else "object"):
        OffsetResets(Tables(lambda _: None).keep).load(text)


def test_the_oldest_resets_are_forgotten_when_there_are_too_many() -> None:
    resets = OffsetResets(Tables(lambda _: None).keep)
    for number in range(KEYS_MAX + 1):
        resets.add("g", f"T{number}", 0, Reset(0))
    assert len(resets.table) == KEYS_MAX
    assert (resets.find("g", "T0", 0), resets.find("g", "T1", 0)) == (None, 0)


def test_a_write_that_failed_is_repeated() -> None:
    def refuse(_content: bytes) -> None:
        raise OSError("disk full")

    tables = Tables(refuse)
    resets = OffsetResets(tables.keep)
    resets.add("g", "T", 0, Reset(0))
    for _ in range(2):
        written: Any = resets.persist()
        tables.write()
        with pytest.raises(OSError, match="disk full"):
            written.result()
