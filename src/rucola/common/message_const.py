"""Names of message properties used by broker, store or client (RocketMQ 5.3.3, ``MessageConst``)."""

from __future__ import annotations

from typing import Final

PROPERTY_SEPARATOR: Final = "\x02"
KEY_SEPARATOR: Final = " "
"""Separator between the keys in KEYS."""

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
UNIQ_KEY: Final = "UNIQ_KEY"

MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
CLUSTER: Final = "CLUSTER"

RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"

TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
TRANSACTION_ID: Final = "__transactionId__"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
SENDER: Final = "__RUCOLA_SENDER"
"""Mark of the account that sent a half message or a timed one. Only the broker sets it, and consumers never get it.
RocketMQ has no such property.
"""
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"

MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"

TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
DELAYING: Final = frozenset({DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, "__STARTDELIVERTIME"})
"""A message with one of these properties is delivered later."""
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
"""The priority of a message, a number from 0 on (RocketMQ 5.4)."""
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""The time step in which the message becomes due; set by the broker."""
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
"""Marks a message that recalls a delayed message. The value is the delayed message's topic, ``+`` and its unique key.
Both messages are due in the same time step.
"""

POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CORRELATION_ID: Final = "CORRELATION_ID"
TTL: Final = "TTL"
"""How long the requesting client waits for the reply, ms."""
MSG_TYPE: Final = "MSG_TYPE"
ARRIVE_TIME: Final = "ARRIVE_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
LITE_TOPIC: Final = "__LITE_TOPIC"
"""The lite topic of a message to a parent topic of type LITE (RocketMQ 5.5)."""

INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
DUP_INFO: Final = "DUP_INFO"

CRC32: Final = "__CRC32#"
"""Checksum of the whole record, always the last property of a record."""
