"""Messages with a delay level are rewritten for the schedule topic."""

from __future__ import annotations

import pytest

from rucola.broker.schedule.delay_rewrite import delay_rewrite
from rucola.common.message import StoreMessage
from rucola.errors import BrokerError
from rucola.formats.properties import decode_properties, encode_properties


def _message(**properties: str) -> StoreMessage:
    return StoreMessage(b"flights", 3, b"body", encode_properties(properties), 1, bytes(8), flag=9, reconsume_times=2)


@pytest.mark.parametrize(("level", "stored"), [("1", 1), ("18", 18), ("19", 18), ("2147483647", 18)])
def test_waits_in_the_queue_of_its_level(level: str, stored: int) -> None:
    """A delay level above the highest is replaced by the highest, also in the property."""
    message = delay_rewrite(_message(TAGS="TagA", DELAY=level), 18)
    assert (message.topic, message.queue_id, message.body) == (b"SCHEDULE_TOPIC_XXXX", stored - 1, b"body")
    assert (message.flag, message.reconsume_times) == (9, 2)
    assert decode_properties(message.properties) == {
        "TAGS": "TagA",
        "DELAY": str(stored),
        "REAL_TOPIC": "flights",
        "REAL_QID": "3",
    }


def test_order_of_properties() -> None:
    """Order and values of properties are as recorded from 5.3.3 (store.md 10.1)."""
    names = ["UNIQ_KEY", "WAIT", "TAGS", "DELAY", "MSG_REGION", "TRACE_ON", "CLUSTER"]
    message = delay_rewrite(_message(**dict.fromkeys(names, "1")), 18)
    assert list(decode_properties(message.properties)) == (
        ["MSG_REGION", "UNIQ_KEY", "CLUSTER", "DELAY", "TAGS", "WAIT", "TRACE_ON", "REAL_TOPIC", "REAL_QID"]
    )


@pytest.mark.parametrize("properties", [{}, {"DELAY": "0"}, {"DELAY": "-1"}])
def test_no_delay(properties: dict[str, str]) -> None:
    """A message without delay is not changed."""
    message = _message(TAGS="TagA", **properties)
    assert delay_rewrite(message, 18) is message


@pytest.mark.parametrize("level", ["x", "--1", "1.5", "٣", "99999999999"])
def test_level_that_is_no_number(level: str) -> None:
    """A message whose level is not a number is refused rather than delivered at once."""
    with pytest.raises(BrokerError, match="delay level"):
        delay_rewrite(_message(DELAY=level), 18)
