"""Wraps a listener so that it skips messages that were already consumed.

RocketMQ delivers at least once. A message may arrive twice with the same UNIQ_KEY: if its send was retried, if the
Spark task that sent it ran again, or if a consumer dies before the consumer offset is stored. The wrapper keeps the
keys of consumed messages for some time, and only in this process. It does not recognise repeats that reach another
consumer of the group or that arrive after a restart.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from datetime import timedelta
from typing import Any

from rucola.client.listener import Listener, MessageListener, ReconsumeLater, completed, is_pending
from rucola.common.message import MessageExt
from rucola.errors import ClientError
from rucola.runtime.clock import Clock, SystemClock

KEYS_MAX = 1_000_000
"""Default for the largest number of keys that are kept, at about 200 bytes each; the oldest keys are removed first."""
_Key = tuple[str, str]


def drop_repeats(
    listener: MessageListener, *, within: timedelta, keys_max: int = KEYS_MAX, clock: Clock | None = None
) -> MessageListener:
    """Wraps ``listener`` for ``register_message_listener``, so that it consumes only one of several messages with the
    same topic and UNIQ_KEY.

    A repeat of a consumed message counts as consumed; the listener is not called. A repeat of a message still being
    consumed is delivered again later. If the listener fails, the next delivery of the message is not a repeat.

    Args:
        listener: a function of one message, plain or a coroutine function.
        within: how long repeats of a message are recognised.
        keys_max: largest number of keys kept.
        clock: measures the time.

    Raises:
        ClientError: ``within`` is not positive, or ``listener`` cannot be a listener.
    """
    if within <= timedelta(0):
        raise ClientError(f"within must be positive, not {within}")
    keys = _ConsumedKeys(within.total_seconds(), keys_max, clock or SystemClock())
    inner = Listener(listener, batch=False)

    async def finish(key: _Key, pending: Any) -> Any:
        """Waits for the listener's work."""
        good = False
        try:
            answer = await completed(pending)
            good = inner.is_good(answer)
        finally:
            keys.end(key, good)
        return answer

    @functools.wraps(listener)
    def call(message: MessageExt) -> Any:
        key = keys.begin(message)
        if key is None:
            return None
        good = pending = False
        try:
            answer = listener(message)
            pending = is_pending(answer)
            good = not pending and inner.is_good(answer)
        finally:
            if not pending:
                keys.end(key, good)
        return finish(key, answer) if pending else answer

    @functools.wraps(listener)
    async def call_on_loop(message: MessageExt) -> Any:
        return await completed(call(message))

    return call_on_loop if inner.on_loop else call


class _ConsumedKeys:
    """The keys of consumed messages, oldest first, and of messages that are being consumed. Any thread may call its
    methods.
    """

    def __init__(self, seconds: float, keys_max: int, clock: Clock) -> None:
        self._seconds = seconds
        self._keys_max = keys_max
        self._clock = clock
        self._lock = threading.Lock()
        self._consumed: OrderedDict[_Key, float] = OrderedDict()
        self._under_way: dict[_Key, float] = {}

    def begin(self, message: MessageExt) -> _Key | None:
        """Registers a message that is about to be consumed; returns the key for ``end``, or None for a repeat.

        Raises:
            ReconsumeLater: an earlier delivery of the message is still being consumed, and may fail.
        """
        key = message.topic, message.uniq_key or message.offset_msg_id
        with self._lock:
            now = self._clock.monotonic()
            self._forget(now)
            if key in self._consumed:
                return None
            began = self._under_way.get(key)
            if began is not None and now - began < self._seconds:  # otherwise the call never ends, or was given up
                raise ReconsumeLater
            self._under_way[key] = now
        return key

    def end(self, key: _Key, consumed: bool) -> None:
        """Records that the listener has finished with the message."""
        with self._lock:
            self._under_way.pop(key, None)
            if consumed:
                self._consumed[key] = self._clock.monotonic()

    def _forget(self, now: float) -> None:
        oldest = now - self._seconds
        while self._consumed:
            key, at = next(iter(self._consumed.items()))
            if at > oldest and len(self._consumed) < self._keys_max:
                return
            del self._consumed[key]
