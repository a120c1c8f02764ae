"""A client that has lost the answer to its pop sends it again with the same attempt id. The older pop, whose client is
no more, then takes no messages; and what it took before is handed out again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from tests.crash.broker_life import Connection
from tests.tables import Tables
from tests.unit.broker.stepped import STEP_MS, Asked, SteppedBroker
from tests.unit.broker.test_pop_hold import Connection as HeldConnection
from tests.unit.broker.test_pop_hold import Scene as HeldScene
from tests.unit.broker.test_pop_withdraw import SQL, STATES
from tests.unit.broker.test_pop_withdraw import Scene as WithdrawScene
from tests.unit.broker.test_wake_ups import ACK, CHANGE, FOUND, PLACE, POLLING_TIMEOUT, POP, bodies, pop_fields

from rucola.broker.offset.offset_resets import Reset
from rucola.broker.pop.hold import Attempt, HeldPop, PopHold
from rucola.broker.pop.order_info import OrderInfoManager
from rucola.broker.pop.pop_offsets import PoppedQueue
from rucola.common.topic_config import TopicConfig
from rucola.protocol.codes import RequestCode
from rucola.testing.clock import ManualClock

POLL_MS = 15_000
INVISIBLE_MS = 60_000


class Scene(WithdrawScene):
    """A stepped broker, two doors, and a pop that waits at it for a client of the first one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sync_flush: bool = False) -> None:
        self.broker = SteppedBroker(sync_flush)
        self._monkeypatch = monkeypatch
        self.paused = []
        self.one, self.other = self.broker.connection, self.broker.connect()
        self.first = self.attempt()

    def attempt(self, connection: Connection | None = None, attempt: str | None = "x", **changes: object) -> Asked:
        usual: dict[str, object] = {"order": "true", "exp": SQL, "expType": "SQL92"}
        if attempt is not None:
            usual["attemptId"] = attempt
        return self.pop(POLL_MS, connection, **usual | changes)

    def close(self, connection: Connection) -> None:
        connection.closed = True
        self.broker.broker.channel_closed(connection)

    def register(self, connection: Connection, client_id: str) -> None:
        data = {"clientID": client_id, "consumerDataSet": [{"groupName": "cg", "subscriptionDataSet": []}]}
        assert self.broker.request(RequestCode.HEART_BEAT, body=orjson.dumps(data), connection=connection).code == FOUND

    def is_empty(self) -> bool:
        return not (self.hold._attempts or self.hold._pops or len(self.hold))


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch, request.param)


@pytest.mark.few
@pytest.mark.parametrize("same", [True, False], ids=["same connection", "another"])
@pytest.mark.parametrize("state", STATES)
def test_the_repeated_pop_gets_the_message_and_the_older_one_nothing(scene: Scene, state: str, same: bool) -> None:
    """Before the fix, the older pop got it, and the repeated one waited until the end of the invisible time."""
    repeated: list[Asked] = []

    def repeat() -> None:
        repeated.append(scene.attempt(scene.one if same else scene.other))

    if state == "held":
        repeat()
        assert (scene.first.code, scene.first.after_ms) == (POLLING_TIMEOUT, 0)
        assert scene.first.answer is not None and scene.first.answer.remark == "NO_MESSAGE_IN_QUEUE"
    elif state == "woken":
        arrived = scene.hold.arrived

        def arrived_and_repeated(topic: bytes, queue_id: int, tags_code: int | None) -> None:
            if topic == b"T" and not repeated:
                scene.broker.loop.call_later(0, repeat)  # it runs before the pop that is woken now
            arrived(topic, queue_id, tags_code)

        scene._monkeypatch.setattr(scene.hold, "arrived", arrived_and_repeated)
    elif state == "disk":
        scene.pause_for_disk()
    else:
        scene.pause_for_parser()
    scene.broker.send()
    scene.broker.passes(STEP_MS)
    if state in ("disk", "parser"):
        assert len(scene.paused) == 1
        repeat()
        assert (scene.first.code, bodies(repeated[0])) == (POLLING_TIMEOUT, [b"body"])
        scene.paused[0]()
        scene.broker.passes(STEP_MS)
    assert bodies(scene.first) == []
    assert (bodies(repeated[0]), repeated[0].after_ms) == ([b"body"], 0)
    assert scene.first.code == POLLING_TIMEOUT
    scene.broker.passes(20_000)
    assert scene.is_empty()


def test_without_a_message_only_the_newest_waits_for_its_whole_time(scene: Scene) -> None:
    pops = [scene.first]
    for _ in range(5):
        scene.broker.passes(1000)
        pops.append(scene.attempt(scene.other if len(pops) % 2 else scene.one))
    assert [asked.code for asked in pops] == [POLLING_TIMEOUT] * 5 + [None]
    assert [asked.after_ms for asked in pops[:5]] == [1000] * 5
    assert (len(scene.hold), len(scene.hold._attempts)) == (1, 1)
    scene.broker.passes(POLL_MS)
    assert pops[-1].after_ms is not None and POLL_MS - 100 <= pops[-1].after_ms <= POLL_MS
    assert scene.is_empty()


@pytest.mark.parametrize("changes", [{"topic": "O"}, {"consumerGroup": "other"}, {"queueId": -1}, {"attempt": "y"}])
def test_a_pop_of_something_else_ends_no_other(scene: Scene, changes: dict[str, Any]) -> None:
    fields = {**PLACE, **changes}
    assert scene.attempt(scene.other, **changes).answer is None, fields
    assert scene.first.answer is None
    scene.broker.passes(20_000)
    assert scene.is_empty()


@pytest.mark.parametrize("attempt", [None, ""], ids=["none", "empty"])
def test_pops_without_an_attempt_id_do_not_know_each_other(scene: Scene, attempt: str | None) -> None:
    pops = [scene.attempt(connection, attempt) for connection in (scene.one, scene.one, scene.other)]
    assert [asked.answer for asked in pops] == [None] * 3
    assert len(scene.hold._attempts) == 1
    scene.broker.send()
    scene.broker.passes(STEP_MS)
    found = [asked for asked in (scene.first, *pops) if asked.answer is not None]
    assert [bodies(asked) for asked in found] == [[b"body"]], "the queue is blocked for the others"
    scene.broker.passes(20_000)
    assert scene.is_empty()


@pytest.mark.parametrize("order", ["true", "false"])
def test_the_queue_is_popped_in_order_or_not(scene: Scene, order: str) -> None:
    older = scene.attempt(attempt="z", order=order)
    newer = scene.attempt(scene.other, "z", order=order)
    assert (older.code, newer.answer) == (POLLING_TIMEOUT, None)


def test_a_retry_topic_has_its_own_pops(scene: Scene) -> None:
    retry_topic = "%RETRY%cg_T"
    scene.broker.broker.topics.create_for_group(retry_topic, 1)
    assert scene.attempt(scene.other, topic=retry_topic).answer is None
    assert scene.first.answer is None
    again = scene.attempt(scene.one, topic=retry_topic)
    assert (again.answer, scene.first.answer) == (None, None)


@pytest.mark.parametrize("closed", ["older", "newer", "both"])
def test_connections_may_be_gone(scene: Scene, closed: str) -> None:
    if closed == "older":
        scene.close(scene.one)
    second = scene.attempt(scene.other)
    if closed in ("newer", "both"):
        scene.close(scene.other)
    if closed == "both":
        scene.close(scene.one)
    assert scene.first.code == (None if closed == "older" else POLLING_TIMEOUT)
    third = scene.attempt(scene.broker.connect())
    scene.broker.send()
    scene.broker.passes(STEP_MS)
    assert (bodies(scene.first), bodies(second), bodies(third)) == ([], [], [b"body"])
    assert scene.is_empty()


def test_a_refused_pop_ends_none(scene: Scene) -> None:
    """A request that arrives after its time is such a one: it was sent before the one that waits."""
    late = scene.attempt(scene.other, bornTime=scene.broker.clock.wall_ms() - 2 * POLL_MS)
    assert (late.code, late.after_ms) == (POLLING_TIMEOUT, 0)
    assert scene.attempt(scene.other, maxMsgNums=33).code not in (FOUND, None)
    assert scene.first.answer is None


# -- whose pops -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "ends"),
    [("c", "c", True), ("c", "", True), ("", "c", True), ("", "", True), ("c", "d", False)],
)
def test_a_client_ends_its_own_pops_only(scene: Scene, one: str, other: str, ends: bool) -> None:
    """A client may pop at its new door before it registers there."""
    for connection, client_id in ((scene.one, one), (scene.other, other)):
        if client_id:
            scene.register(connection, client_id)
    second = scene.attempt(scene.other)
    assert (scene.first.answer is not None, second.answer) == (ends, None)
    scene.broker.passes(20_000)
    assert scene.is_empty()


def test_two_clients_with_one_attempt_id_do_not_keep_each_other_busy(scene: Scene) -> None:
    scene.register(scene.one, "c")
    scene.register(scene.other, "d")
    second = scene.attempt(scene.other)
    scene.broker.passes(5000)
    assert (scene.first.answer, second.answer) == (None, None)
    scene.broker.passes(POLL_MS)
    assert (scene.first.code, second.code) == (POLLING_TIMEOUT, POLLING_TIMEOUT)
    assert scene.is_empty()


def test_one_that_runs_again_ends_no_newer_one(scene: Scene) -> None:
    """Clients that were different when the newer pop came are no longer known as such."""
    scene.register(scene.one, "c")
    scene.register(scene.other, "d")
    second = scene.attempt(scene.other)
    scene.broker.broker.services.consumers.unregister("cg", scene.one)
    scene.broker.send()
    scene.broker.passes(STEP_MS)
    assert (bodies(scene.first), second.answer) == ([b"body"], None)


def test_another_account_does_not_end_a_pop(scene: Scene) -> None:
    senders = scene.broker.broker.services.senders
    scene._monkeypatch.setattr(senders, "account_on", lambda channel: "bob" if channel is scene.other else "")
    theirs = scene.attempt(scene.other)
    assert (scene.first.answer, theirs.answer) == (None, None)
    ours = scene.attempt(scene.broker.connect())
    assert (theirs.answer, ours.answer, scene.first.code) == (None, None, POLLING_TIMEOUT), "nor does it hide one"
    scene.broker.passes(20_000)
    assert scene.is_empty()


# -- handed out again -------------------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> SteppedBroker:
    broker = SteppedBroker()
    broker.broker.topics.update(TopicConfig("F", 8, 8, 6))
    return broker


def pop_all(broker: SteppedBroker, attempt: str, poll_ms: int = 0, count: int = 2, **changes: object) -> Asked:
    fields = pop_fields(broker, poll_ms) | {"topic": "F", "queueId": -1, "order": "true", "attemptId": attempt}
    return broker.request(POP, fields | {"maxMsgNums": count} | changes)


def queues(asked: Asked) -> list[tuple[int, list[int]]]:
    """Queue and queue offsets of the messages in an answer."""
    assert asked.answer is not None
    found = []
    for entry in asked.answer.ext_fields.get("msgOffsetInfo", "").split(";"):
        if entry:
            _, queue_id, offsets = entry.split(" ")
            found.append((int(queue_id), [int(offset) for offset in offsets.split(",")]))
    return sorted(found)


def change(broker: SteppedBroker, asked: Asked, queue_id: int, queue_offset: int, invisible_ms: int | None) -> int:
    """Acknowledges a message, or changes its time; returns the code."""
    assert asked.answer is not None
    fields = asked.answer.ext_fields
    receipt = f"0 {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 b {queue_id} {queue_offset}"
    request = {**PLACE, "topic": "F", "queueId": queue_id, "offset": queue_offset, "extraInfo": receipt}
    if invisible_ms is None:
        asked = broker.request(ACK, request)
    else:
        asked = broker.request(CHANGE, request | {"invisibleTime": invisible_ms})
    assert asked.code is not None
    return asked.code


@pytest.mark.parametrize("begin", range(0, 100, 9))
def test_the_same_messages_come_before_those_of_other_queues(
    broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    """Before the fix, as with RocketMQ, the repeated pop began with a random queue and was full of others' messages:
    those of the lost answer stayed hidden.
    """
    broker.send("F", queue_id=5)
    broker.passes(STEP_MS)
    lost = pop_all(broker, "x")
    assert queues(lost) == [(5, [0])]
    for queue_id in range(8):
        for _ in range(3):
            broker.send("F", queue_id=queue_id)
    broker.passes(STEP_MS)
    monkeypatch.setattr(broker.broker.services, "random_below", lambda _: begin)
    again = pop_all(broker, "x")
    assert queues(again) == [(5, [0, 1])]
    assert again.answer is not None and lost.answer is not None
    assert again.answer.ext_fields["popTime"] != lost.answer.ext_fields["popTime"]
    assert again.answer.ext_fields["orderCountInfo"] == "0 5 0", "it is no further delivery"


def test_messages_of_several_queues_come_again_together(broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """New messages of the first queue do not take the place of those of the second one."""
    monkeypatch.setattr(broker.broker.services, "random_below", lambda _: 0)
    for queue_id in (2, 6):
        broker.send("F", queue_id=queue_id)
    broker.passes(STEP_MS)
    assert queues(pop_all(broker, "x")) == [(2, [0]), (6, [0])]
    for queue_id in range(8):
        for _ in range(3):
            broker.send("F", queue_id=queue_id)
    broker.passes(STEP_MS)
    assert queues(pop_all(broker, "x", count=3)) == [(2, [0, 1]), (6, [0])]


@pytest.mark.parametrize("limit", [{"maxMsgNums": 1}, {"maxBytes": 1}])
def test_what_does_not_fit_into_a_smaller_answer_is_free(broker: SteppedBroker, limit: dict[str, object]) -> None:
    """The client has lost the first answer, so nobody has these messages."""
    for queue_id in (2, 6):
        broker.send("F", queue_id=queue_id)
    broker.passes(STEP_MS)
    assert queues(pop_all(broker, "x")) == [(2, [0]), (6, [0])]
    waiting = pop_all(broker, "y", POLL_MS)
    broker.passes(1000)
    assert waiting.answer is None
    again = pop_all(broker, "x", **limit)
    ((queue_id, _),) = queues(again)
    broker.passes(STEP_MS)
    assert queues(waiting) == [(8 - queue_id, [0])]
    assert change(broker, again, queue_id, 0, None) == change(broker, waiting, 8 - queue_id, 0, None) == FOUND
    assert queues(pop_all(broker, "z")) == []


def test_an_offset_may_be_reset_between_the_pops(broker: SteppedBroker) -> None:
    for queue_id in (2, 6):
        broker.send("F", queue_id=queue_id)
    broker.passes(STEP_MS)
    assert queues(pop_all(broker, "x")) == [(2, [0]), (6, [0])]
    broker.broker.services.resets.add("cg", "F", 6, Reset(1))
    again = pop_all(broker, "x")
    assert queues(again) == [(2, [0])]
    orders = services(broker)._orders
    assert set(orders.table) == {PoppedQueue("F", "cg", 2)} and orders._attempts == {("F", "cg", "x"): {2}}


def test_a_pop_of_one_queue_leaves_the_others_of_its_attempt_alone(broker: SteppedBroker) -> None:
    for queue_id in (2, 6):
        for _ in range(3):
            broker.send("F", queue_id=queue_id)
    broker.passes(STEP_MS)
    assert queues(pop_all(broker, "x", queueId=2, count=3)) == [(2, [0, 1, 2])]
    assert queues(pop_all(broker, "x", queueId=6, count=3)) == [(6, [0, 1, 2])]
    assert queues(pop_all(broker, "x", queueId=2, count=3)) == [(2, [0, 1, 2])]
    assert queues(pop_all(broker, "y")) == []


def test_what_is_acknowledged_does_not_come_first(broker: SteppedBroker) -> None:
    broker.send("F", queue_id=3)
    broker.passes(STEP_MS)
    first = pop_all(broker, "x")
    assert change(broker, first, 3, 0, None) == FOUND
    orders: OrderInfoManager = services(broker)._orders
    assert orders.of_attempt("F", "cg", "x") == {}
    broker.send("F", queue_id=1)
    broker.send("F", queue_id=3)
    broker.passes(STEP_MS)
    assert queues(pop_all(broker, "x", count=32)) == [(1, [0]), (3, [1])]


def test_a_late_change_for_the_lost_answer_does_not_free_the_queue(broker: SteppedBroker) -> None:
    """A door makes visible again what its client has not taken. By then, the client has it through another door."""
    broker.send("F", queue_id=5)
    broker.passes(STEP_MS)
    lost, again = pop_all(broker, "x"), pop_all(broker, "x")
    assert queues(lost) == queues(again) == [(5, [0])]
    change(broker, lost, 5, 0, 1000)
    broker.passes(2000)
    assert queues(pop_all(broker, "y")) == []
    assert change(broker, again, 5, 0, None) == FOUND


@pytest.mark.parametrize("attempt", [None, ""], ids=["none", "empty"])
def test_without_an_attempt_id_a_blocked_queue_gives_nothing(broker: SteppedBroker, attempt: str | None) -> None:
    broker.send("F", queue_id=5)
    broker.passes(STEP_MS)
    changes: dict[str, object] = {} if attempt is None else {"attemptId": attempt}
    fields = pop_fields(broker, 0) | {"topic": "F", "queueId": -1, "order": "true"} | changes
    assert queues(broker.request(POP, fields)) == [(5, [0])]
    assert queues(broker.request(POP, fields)) == []


def test_attempt_ids_are_known_as_long_as_their_pops(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1_700_000_000_000)
    gone: set[PoppedQueue] = set()
    tables = Tables(lambda _: None)
    orders = OrderInfoManager(tables.keep, clock.wall_ms, lambda queue: queue not in gone)

    def known() -> dict[tuple[str, str, str], set[int]]:
        found: dict[tuple[str, str, str], set[int]] = {}
        for (topic, group, queue_id), info in orders.table.items():
            if info.attempt_id:
                found.setdefault((topic, group, info.attempt_id), set()).add(queue_id)
        assert orders._attempts == found
        return found

    places = [PoppedQueue(topic, group, queue_id) for topic in "ST" for group in "gh" for queue_id in range(2)]
    for attempt in ("a", "b", "", None, "c"):
        for queue in places:
            orders.popped(queue, attempt, (clock.wall_ms(), 1000), [1, 2])
            known()
    assert len(known()) == 4
    orders.forget(places[0])
    assert known()[("S", "g", "c")] == {1}
    orders.forget_all(lambda queue: queue.group == "h")
    assert set(known()) == {("S", "g", "c"), ("T", "g", "c")}
    text = b"".join(orders._snapshot())
    again = OrderInfoManager(tables.keep, clock.wall_ms, lambda _: True)
    again.load(text)
    assert (again.table, again._attempts) == (orders.table, orders._attempts)
    gone.update(place for place in places if place.topic == "T")
    orders._snapshot()
    assert set(known()) == {("S", "g", "c")}
    clock.advance(25 * 3_600_000)
    orders._snapshot()
    assert known() == {} and orders.table == {}


class Consumer:
    """A client that repeats its pop elsewhere when it has lost the answer, and acknowledges what it gets."""

    def __init__(self, broker: SteppedBroker, name: str) -> None:
        self._broker, self._name = broker, name
        self._number = 0
        self._pop()

    def _pop(self) -> None:
        self._number += 1
        self._ask()

    def _ask(self) -> None:
        fields = pop_fields(self._broker, POLL_MS) | {"topic": "F", "queueId": -1, "order": "true", "maxMsgNums": 3}
        attempt = {"attemptId": f"{self._name}{self._number}"}
        self.asked = self._broker.request(POP, fields | attempt, connection=self._broker.connect())

    def lose(self) -> None:
        """Its door is stuck: nobody reads what comes there."""
        self._ask()

    def work(self) -> list[tuple[int, int]]:
        """Takes what has come; returns queues and queue offsets."""
        if self.asked.answer is None:
            return []
        found = [(queue_id, offset) for queue_id, offsets in queues(self.asked) for offset in offsets]
        for place in found:
            assert change(self._broker, self.asked, *place, None) == FOUND
        self._pop()
        return found


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(12))
def test_no_queue_stays_blocked_however_often_doors_are_stuck(broker: SteppedBroker, seed: int) -> None:
    """Before the fix, queues stayed blocked for a minute."""
    chooser = random.Random(seed)
    consumers = [Consumer(broker, name) for name in "abc"]
    sent_ms: dict[tuple[int, int], int] = {}
    done: dict[int, list[int]] = {queue_id: [] for queue_id in range(8)}
    slowest_ms = 0
    ends = [0] * 8
    for step in range(400):
        consumer = chooser.choice(consumers)
        event = chooser.randrange(4)
        if event == 0 and step < 380:
            queue_id = chooser.randrange(8)
            broker.send("F", queue_id=queue_id)
            sent_ms[queue_id, ends[queue_id]] = broker.clock.wall_ms()
            ends[queue_id] += 1
        elif event == 1:
            consumer.lose()
        else:
            for queue_id, offset in consumer.work():
                done[queue_id].append(offset)
                slowest_ms = max(slowest_ms, broker.clock.wall_ms() - sent_ms[queue_id, offset])
        broker.passes(chooser.choice([0, STEP_MS, 5 * STEP_MS]))
    for _ in range(20):
        broker.passes(STEP_MS)
        for consumer in consumers:
            for queue_id, offset in consumer.work():
                done[queue_id].append(offset)
    assert done == {queue_id: list(range(end)) for queue_id, end in enumerate(ends)}, "each once, in order"
    assert slowest_ms < 3000
    assert len(services(broker).hold) == len(services(broker).hold._attempts) == 3


def services(broker: SteppedBroker) -> Any:
    return broker.broker.services.pops.get()


# -- many -------------------------------------------------------------------------------------------------------------


def held(scene: HeldScene, number: int, channel: HeldConnection) -> HeldPop:
    place: Any = (channel, "T", "g", 0, scene.clock.monotonic() + 10, lambda: None)
    attempt = Attempt(f"attempt-{number}", "T", "g", 0, "")
    given_up: Callable[[], None] = lambda: scene.given_up.append(str(number))  # noqa: E731
    pop = HeldPop(*place, opaque=number, expression=("TAG", "*"), give_up=given_up, attempt=attempt)
    assert scene.hold.hold(pop)
    return pop


def test_a_repeated_pop_costs_the_same_among_many() -> None:
    scene, channels = HeldScene(), [HeldConnection() for _ in range(20)]
    for number in range(40_000):
        held(scene, number, channels[number % 20])
    began = time.process_time()
    for number in range(20_000):
        assert scene.hold._attempts[Attempt(f"attempt-{number}", "T", "g", 0, "")].opaque == number
        scene.hold.end_older(channels[number % 20], Attempt(f"attempt-{number}", "T", "g", 0, ""))  # type: ignore[arg-type]
        scene.hold.end_older(channels[0], Attempt(f"new-{number}", "T", "g", 0, ""))  # type: ignore[arg-type]
    assert time.process_time() - began < 4
    assert scene.given_up == [str(number) for number in range(20_000)]
    assert (len(scene.hold), len(scene.hold._attempts)) == (20_000, 20_000)
    for channel in channels[:10]:
        scene.hold.channel_closed(channel)  # type: ignore[arg-type]
    assert (len(scene.hold), len(scene.hold._attempts)) == (10_000, 10_000)
    scene.passes(20_000)
    assert scene.is_empty()


def test_repetitions_without_end_leave_nothing() -> None:
    scene, channel = HeldScene(), HeldConnection()
    for number in range(50_000):
        scene.hold.end_older(channel, Attempt("attempt-1", "T", "g", 0, ""))  # type: ignore[arg-type]
        held(scene, 1, channel)
        assert number or scene.given_up == []
    assert (len(scene.hold), len(scene.hold._attempts), len(scene.given_up)) == (1, 1, 49_999)
    heap = scene.hold._queues[("T", 0)][("g", False)].heaps[None]
    assert len(heap) < 100
    scene.hold.release_all()
    assert scene.is_empty()


def test_the_index_forgets_the_older_of_two_different_clients() -> None:
    scene = HeldScene()
    scene.hold = PopHold(
        scene.clock.monotonic, scene.loop.call_later, 10, 10, is_same_client=lambda one, other, group: one is other
    )
    one, other = HeldConnection(), HeldConnection()
    first, second = held(scene, 7, one), held(scene, 7, other)
    scene.hold.end_older(HeldConnection(), first.attempt)  # type: ignore[arg-type]
    assert scene.given_up == []
    scene.hold.channel_closed(one)  # type: ignore[arg-type]
    assert scene.hold._attempts == {first.attempt: second}
    scene.hold.end_older(other, first.attempt)  # type: ignore[arg-type]
    assert scene.given_up == ["7"] and scene.is_empty()
