"""The handle of a message that waits in the broker for its delivery time. With the handle, a producer can recall the
message.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from rucola.common.numbers import INT64_MAX, number_in
from rucola.errors import FormatError

_HANDLE_VERSION = "v1"


class RecallHandle(NamedTuple):
    """Identifies a waiting message (RocketMQ 5.3.3, ``RecallMessageHandle``)."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def encode(self) -> str:
        """Returns the handle as text."""
        words = (_HANDLE_VERSION, self.topic, self.broker_name, str(self.due_ms), self.unique_key)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Parses the text.

        Raises:
            FormatError: ``text`` is not a handle.
        """
        try:
            words = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)).decode().split(" ")
        except (ValueError, binascii.Error):
            words = []
        if len(words) < 5 or words[0] != _HANDLE_VERSION:
            raise FormatError("recall handle", 0, "a handle from the response to a send", text[:64])
        due_ms = number_in(words[3], 0, INT64_MAX)
        return cls(words[1], words[2], -1 if due_ms is None else due_ms, words[4])
