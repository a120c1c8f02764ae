"""A listener that is not called again for a message that it has consumed.

RocketMQ delivers at least once: a send that is made again, a Spark task that is repeated, or a consumer that dies
before its progress is stored brings a message twice, with the same UNIQ_KEY. Here the keys of consumed messages are
kept for a while, in this process only: repeats that come to another consumer of the group are not known there, nor
those that come after a restart.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import OrderedDict
from datetime import timedelta
from typing import Any

from rucola.client.listener import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageListener, ReconsumeLater
from rucola.common.message import MessageExt
from rucola.errors import ClientError
from rucola.runtime.clock import Clock, SystemClock

KEYS_MAX = 1_000_000
"""Keys kept at most, some 200 bytes each; the oldest go first."""
_GOOD = (
    None,
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
    ConsumeOrderlyStatus.SUCCESS,
    ConsumeOrderlyStatus.COMMIT,
)
_Key = tuple[str, str]


def drop_repeats(
    listener: MessageListener, *, within: timedelta, keys_max: int = KEYS_MAX, clock: Clock | None = None
) -> MessageListener:
    """``listener`` for ``register_message_listener``, called once for messages of a topic with one UNIQ_KEY.

    A repeat of a message that the listener has consumed is consumed without a call. One of a message that it is just
    consuming comes again later. A message on which it failed is no repeat.

    Args:
        listener: a function of one message, plain or a coroutine function.
        within: how long after a message its repeats are known.
        keys_max: how many keys are kept at most.
        clock: measures the time.

    Raises:
        ClientError: the time is not positive.
    """
    if within <= timedelta(0):
        raise ClientError(f"within must be positive, not {within}")
    keys = _ConsumedKeys(within.total_seconds(), keys_max, clock or SystemClock())
    if inspect.iscoroutinefunction(listener):

        @functools.wraps(listener)
        async def on_loop(message: MessageExt) -> Any:
            key = keys.begin(message)
            if key is None:
                return None
            good = False
            try:
                answer = await listener(message)
                good = answer in _GOOD
            finally:
                keys.end(key, good)
            return answer

        return on_loop

    @functools.wraps(listener)
    def in_thread(message: MessageExt) -> Any:
        key = keys.begin(message)
        if key is None:
            return None
        good = False
        try:
            answer = listener(message)
            good = answer in _GOOD
        finally:
            keys.end(key, good)
        return answer

    return in_thread


class _ConsumedKeys:
    """The keys of messages that were consumed, the oldest first, and of those that are being. Any thread may call."""

    def __init__(self, seconds: float, keys_max: int, clock: Clock) -> None:
        self._seconds = seconds
        self._keys_max = keys_max
        self._clock = clock
        self._lock = threading.Lock()
        self._consumed: OrderedDict[_Key, float] = OrderedDict()
        self._under_way: set[_Key] = set()

    def begin(self, message: MessageExt) -> _Key | None:
        """What to give ``end`` for a message that is to be consumed; None for a repeat.

        Raises:
            ReconsumeLater: it is a repeat of one that is not yet consumed, and may fail.
        """
        key = message.topic, message.uniq_key or message.offset_msg_id
        with self._lock:
            self._forget()
            if key in self._consumed:
                return None
            if key in self._under_way:
                raise ReconsumeLater
            self._under_way.add(key)
        return key

    def end(self, key: _Key, consumed: bool) -> None:
        """The listener is done with the message."""
        with self._lock:
            self._under_way.discard(key)
            if consumed:
                self._consumed[key] = self._clock.monotonic()

    def _forget(self) -> None:
        oldest = self._clock.monotonic() - self._seconds
        while self._consumed:
            key, at = next(iter(self._consumed.items()))
            if at > oldest and len(self._consumed) < self._keys_max:
                return
            del self._consumed[key]
