"""Redirects messages with a delivery time to the timer topic (RocketMQ 5.3.3, ``HookUtils``).

The time is given as seconds or milliseconds from now, or as a wall-clock time. The broker rounds the time down to the
beginning of its time step, but delivers the message at the end of this step, so never too early. A time exactly on the
boundary of two steps belongs to the earlier step. A message whose time has passed is stored like a message without a
delivery time. The response to the send contains a handle with which the producer may recall the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rucola.broker.schedule.delay_rewrite import PARSED_MAP_CAPACITY, delay_level
from rucola.common.key_builder import TIMER_TOPIC, is_retry_topic
from rucola.common.message import StoreMessage
from rucola.common.message_const import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from rucola.common.numbers import INT64_MAX, number_in
from rucola.common.recall_handle import RecallHandle
from rucola.common.sysflag import TRANSACTION_MASK, MessageSysFlag
from rucola.errors import BrokerError
from rucola.formats.properties import decode_properties, encode_properties, java_order
from rucola.protocol.codes import ResponseCode
from rucola.store.config import MessageStoreConfig

TIMER = TIMER_TOPIC.encode()
_FROM_NOW_MS = {TIMER_DELAY_SEC: 1000, TIMER_DELAY_MS: 1}
_TRANSACTIONS = (0, int(MessageSysFlag.TRANSACTION_COMMIT))


class TimerRewriter:
    """Redirects messages with a delivery time to the timer topic.

    Args:
        config: options of the store: step, limits, and whether timers are on.
        broker_name: name of this broker, for the recall handles.
        wall_ms: returns the current time, to which delays are added.
        waiting: returns the number of messages that are due in the time step that begins at the given time.
        random_below: given n, returns a random number from 0 to n - 1.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        broker_name: str,
        wall_ms: Callable[[], int],
        waiting: Callable[[int], int],
        random_below: Callable[[int], int],
    ) -> None:
        self._config = config
        self._broker_name = broker_name
        self._wall_ms = wall_ms
        self._waiting = waiting
        self._random_below = random_below

    def rewrite(self, message: StoreMessage, accepted: bool = False) -> StoreMessage:
        """Returns ``message`` as it will be stored: unchanged, or redirected to the timer topic.

        Args:
            accepted: whether the message was accepted earlier, as a half message that is committed now. The options
                may have changed since then; its delay is no longer refused.

        Raises:
            BrokerError: the delivery time of the message is invalid or not accepted.
        """
        properties = decode_properties(message.properties)
        if message.topic == TIMER or message.sys_flag & TRANSACTION_MASK not in _TRANSACTIONS:
            return message
        if not self.schedule(str(message.topic, "utf-8", "replace"), message.queue_id, properties, accepted):
            return message
        text = encode_properties(java_order(properties.items(), PARSED_MAP_CAPACITY))
        return replace(message, topic=TIMER, queue_id=0, properties=text)

    def schedule(self, topic: str, queue_id: int, properties: dict[str, str], accepted: bool = False) -> bool:
        """Writes the delivery time and the destination of the message into ``properties``. Returns False and changes
        nothing if the message does not go to the timer topic. ``accepted`` is as in ``rewrite``.

        Raises:
            BrokerError: MESSAGE_ILLEGAL: the time is not a number or too far ahead, or the message is sent too late to
                recall another one. SYSTEM_ERROR: timers are off, or too many messages are due in the same time step.
        """
        due_ms = self.due_ms(topic, properties, accepted)
        if due_ms is None:
            return False
        step_ms = self._config.timer_precision_ms
        due_ms = (due_ms - 1) // step_ms * step_ms
        if not accepted and self._is_congested(due_ms):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"too many messages wait for the time {due_ms}")
        properties.update({TIMER_OUT_MS: str(due_ms), REAL_TOPIC: topic, REAL_QID: str(queue_id)})
        return True

    def due_ms(self, topic: str, properties: Mapping[str, str], accepted: bool = False) -> int | None:
        """The time when the message is due; None if the message does not go to the timer topic, for example because it
        has a delay level or its time has passed. ``accepted`` is as in ``rewrite``.

        Raises:
            BrokerError: as in ``schedule``.
        """
        if topic == TIMER_TOPIC or TIMER_OUT_MS in properties or delay_level(properties) > 0:
            return None
        name = next((n for n in (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS) if n in properties), None)
        if name is None:
            return None
        if not (accepted or self._config.timer_wheel_enable):
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        now_ms = self._wall_ms()
        due_ms = _number(name, properties[name])
        if name != TIMER_DELIVER_MS:
            due_ms = now_ms + due_ms * _FROM_NOW_MS[name]
        if due_ms <= now_ms:
            if TIMER_DEL_UNIQKEY in properties:
                raise _illegal("a message that recalls another message must be sent before that message is due")
            return None
        if not accepted and due_ms - now_ms > self._config.timer_max_delay_sec * 1000:
            raise _illegal(f"the delay is longer than {self._config.timer_max_delay_sec} s")
        return due_ms

    def recall_handle(self, properties: Mapping[str, str]) -> str:
        """The handle with which a producer may recall a waiting message; empty if the message cannot be recalled."""
        topic = properties.get(REAL_TOPIC, "")
        if TIMER_OUT_MS not in properties or is_retry_topic(topic):
            return ""
        # The time in the handle must belong to the message's step. TIMER_OUT_MS, the beginning of this step, belongs to
        # the step before; the next millisecond belongs to this step.
        handle = RecallHandle(topic, self._broker_name, int(properties[TIMER_OUT_MS]) + 1, properties[UNIQ_KEY])
        return handle.encode()

    def _is_congested(self, due_ms: int) -> bool:
        limit = self._config.timer_congest_num_each_slot
        waiting = self._waiting(due_ms)
        if waiting <= limit:
            return False
        return waiting >= 2 * limit or self._random_below(1000) > 1000 * (waiting - limit) // limit


def _number(name: str, text: str) -> int:
    value = number_in(text, -INT64_MAX, INT64_MAX)
    if value is None:
        raise _illegal(f"{name} is not a number: {text[:32]!a}")
    return value


def _illegal(problem: str) -> BrokerError:
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {problem}")
