"""Numbers in texts of others: only plain digits, only in their range, and never an error."""

from __future__ import annotations

import pytest

from rucola.common.message import Message
from rucola.common.message_const import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS
from rucola.common.numbers import INT64_MAX, number_in
from rucola.common.system_properties import RESERVED

NONSENSE = (
    "",
    "-",
    "+",
    "1" * 5000,
    "-" + "1" * 5000,
    "\u0661",
    "\u00b2",
    "1_000",
    " 1",
    "1 ",
    "1\n",
    "1.0",
    "0x1",
    "--1",
)


@pytest.mark.parametrize("text", [*NONSENSE, "-6", "11", "9" * 19, "0" * 20])
def test_no_number(text: str) -> None:
    assert number_in(text, -5, 10) is None


@pytest.mark.parametrize(
    ("text", "value"), [("-5", -5), ("10", 10), ("+7", 7), ("0" * 19, 0), ("-0", 0), (str(INT64_MAX), None)]
)
def test_number(text: str, value: int | None) -> None:
    assert number_in(text, -5, 10) == value
    assert number_in(str(INT64_MAX), 0, INT64_MAX) == INT64_MAX


@pytest.mark.parametrize("text", [text for text in NONSENSE if text])
def test_a_received_message_with_nonsense_can_be_looked_at(text: str) -> None:
    """Before, 5,000 digits raised ``ValueError`` in the application that received the message."""
    assert RESERVED.isdisjoint({DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS})
    message = Message("T", b"body")
    message.properties.update({DELAY: text, TIMER_DELAY_MS: text, TIMER_DELIVER_MS: text})
    assert (message.delay_level, message.delay, message.deliver_at) == (0, None, None)


def test_times_beyond_the_calendar_are_none() -> None:
    message = Message("T", b"body")
    message.properties.update({DELAY: "3", TIMER_DELAY_MS: "9" * 18, TIMER_DELIVER_MS: "9" * 18})
    assert (message.delay_level, message.delay, message.deliver_at) == (3, None, None)
