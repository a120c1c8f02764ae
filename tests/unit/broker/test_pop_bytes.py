"""A pop with ``maxBytes`` gets no more bytes, but at least one message; what does not fit is not popped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.broker.stepped import Asked, SteppedBroker
from tests.unit.broker.test_wake_ups import FOUND, POLLING_TIMEOUT, SYSTEM_ERROR, ack, bodies, pop, revive, sent

from rucola.common.topic_config import TopicConfig
from rucola.formats.message import decode_messages

ORDER = {"order": "true", "attemptId": "a"}
KINDS: dict[str, dict[str, Any]] = {
    "all": {},
    "in order": ORDER,
    "tag": {"exp": "wanted", "expType": "TAG"},
    "SQL92": {"exp": "TAGS = 'wanted'", "expType": "SQL92"},
}


def field(asked: Asked, name: str) -> str:
    assert asked.answer is not None
    return asked.answer.ext_fields[name]


def rest(asked: Asked) -> int:
    return int(field(asked, "restNum"))


def size(asked: Asked) -> int:
    assert asked.answer is not None
    return len(asked.answer.body)


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def broker(request: pytest.FixtureRequest) -> SteppedBroker:
    return SteppedBroker(request.param)


def record_bytes(broker: SteppedBroker) -> int:
    """The number of bytes of one message of ``send_tagged``."""
    return size(pop(broker, consumerGroup="other", maxMsgNums=1, exp="wanted"))


def send_tagged(broker: SteppedBroker, count: int, topic: str = "T", queue_id: int = 0) -> None:
    """Sends ``count`` messages with the wanted tag; another message follows each."""
    for number in range(count):
        assert broker.send(topic, b"%d" % number, queue_id, TAGS="wanted").code == FOUND
        assert broker.send(topic, b"x", queue_id, TAGS="other").code == FOUND


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_not_popped(broker: SteppedBroker, kind: str) -> None:
    send_tagged(broker, 4)
    one = record_bytes(broker)
    wanted = [b"0", b"1", b"2", b"3"] if kind in ("tag", "SQL92") else [b"0", b"x", b"1", b"x"]
    full = pop(broker, maxBytes=2 * one + one - 4, **KINDS[kind])
    assert bodies(full) == wanted[:2]
    assert size(full) <= 3 * one - 4
    assert rest(full) == (4 if kind in ("tag", "SQL92") else 6), "from the first message that did not fit"
    offsets = "0 0 0,2" if kind in ("tag", "SQL92") else "0 0 0,1"
    assert (field(full, "startOffsetInfo"), field(full, "msgOffsetInfo")) == ("0 0 0", offsets)
    if kind == "in order":
        assert pop(broker, order="true", attemptId="b").code == POLLING_TIMEOUT
        ack(broker, full, 0)
        ack(broker, full, 1)
    following = pop(broker, maxBytes=2 * one, **KINDS[kind] | ({"attemptId": "b"} if kind == "in order" else {}))
    assert bodies(following) == wanted[2:4]


@pytest.mark.parametrize("limit", [-(2**31), -1, 0, 1])
def test_the_first_message_always_fits(broker: SteppedBroker, limit: int) -> None:
    sent(broker, 3)
    for number in range(3):
        asked = pop(broker, maxBytes=limit)
        assert (bodies(asked), rest(asked)) == ([b"%d" % number], 2 - number)
    assert pop(broker, maxBytes=limit).code == POLLING_TIMEOUT


def test_a_limit_that_is_not_reached_changes_nothing(broker: SteppedBroker) -> None:
    sent(broker, 3)
    exact = size(pop(broker, consumerGroup="other"))
    assert bodies(pop(broker, maxBytes=exact)) == [b"0", b"1", b"2"]
    assert bodies(pop(broker, consumerGroup="third", maxBytes=2**31 - 1)) == [b"0", b"1", b"2"]
    less = pop(broker, consumerGroup="fourth", maxBytes=exact - 1)
    assert (bodies(less), rest(less)) == ([b"0", b"1"], 1)


def test_what_is_no_number_is_refused(broker: SteppedBroker) -> None:
    sent(broker, 1)
    for text in ("", "many", str(2**31)):
        assert pop(broker, maxBytes=text).code == SYSTEM_ERROR
    assert bodies(pop(broker)) == [b"0"]


def test_a_small_message_of_another_queue_does_not_overtake(broker: SteppedBroker) -> None:
    broker.broker.topics.update(TopicConfig("N", 3, 3, 6))
    broker.broker.services.pops.get().messages._services.random_below = lambda _: 90  # begins with queue 0
    for queue_id, body in ((0, b"small"), (1, b"b" * 2000), (2, b"tiny")):
        broker.send("N", body, queue_id)
    first = pop(broker, topic="N", queueId=-1, maxBytes=1000)
    assert (bodies(first), rest(first)) == ([b"small"], 2)
    second = pop(broker, topic="N", queueId=-1, maxBytes=1000)
    assert (bodies(second), rest(second)) == ([b"b" * 2000], 1)
    assert bodies(pop(broker, topic="N", queueId=-1, maxBytes=1000)) == [b"tiny"]


def test_messages_that_come_again_count_as_the_client_gets_them(broker: SteppedBroker) -> None:
    """Their records become longer by the receipt."""
    sent(broker, 4)
    assert len(bodies(pop(broker, invisible_ms=1000))) == 4
    broker.passes(1500)
    revive(broker)
    broker.passes(1000)
    revive(broker)
    one = size(pop(broker, maxMsgNums=1))
    asked = pop(broker, maxBytes=2 * one - 1)
    assert (bodies(asked), rest(asked)) == ([b"1"], 2)
    assert asked.answer is not None
    assert "POP_CK" in decode_messages(asked.answer.body)[0].properties
    asked = pop(broker, maxBytes=2 * one)
    assert (bodies(asked), size(asked), rest(asked)) == ([b"2", b"3"], 2 * one, 0)


def test_what_does_not_fit_wakes_the_next_pop_at_once(broker: SteppedBroker) -> None:
    waiting = [pop(broker, poll_ms, maxBytes=1) for poll_ms in (5000, 6000, 7000)]
    broker.passes(500)
    for number in range(2):
        broker.send(body=b"%d" % number)
    broker.passes(100)
    assert [bodies(asked) for asked in waiting] == [[b"0"], [b"1"], []]
    assert waiting[0].after_ms == waiting[1].after_ms == 500


@pytest.mark.parametrize("ends", [SteppedBroker.restart, SteppedBroker.kill])
def test_after_a_restart_the_rest_comes(ends: Callable[[SteppedBroker], None]) -> None:
    broker = SteppedBroker(True)
    sent(broker, 3)
    assert bodies(pop(broker, maxBytes=1)) == [b"0"]
    broker.turn(10)
    ends(broker)
    assert bodies(pop(broker)) == [b"1", b"2"]
