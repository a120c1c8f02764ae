"""RocketMQ's message store, broker and clients in Python.

Each client is imported when it is first used, so that a server process does not load it. ``rucola.sync`` has the same
names with blocking calls.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rucola.client.allocate import (
        AllocateMachineRoomNearby,
        AllocateMessageQueueAveragely,
        AllocateMessageQueueAveragelyByCircle,
        AllocateMessageQueueByConfig,
        AllocateMessageQueueByMachineRoom,
        AllocateMessageQueueConsistentHash,
        AllocateMessageQueueStrategy,
    )
    from rucola.client.config import ProducerConfig, PullConsumerConfig
    from rucola.client.consumer_config import LitePullConsumerConfig, PushConsumerConfig, SimpleConsumerConfig
    from rucola.client.listener import (
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
        ReconsumeLater,
    )
    from rucola.client.lite_pull_consumer import LitePullConsumer
    from rucola.client.message_selector import MessageSelector
    from rucola.client.producer import Producer
    from rucola.client.pull_consumer import PullConsumer
    from rucola.client.pull_result import PullResult, PullStatus, RawPullResult
    from rucola.client.push_consumer import PushConsumer
    from rucola.client.queue_selector import QueueSelector
    from rucola.client.send_result import SendResult, SendStatus
    from rucola.client.simple_consumer import SimpleConsumer
    from rucola.client.transaction_listener import LocalTransactionState, TransactionListener, TransactionSendResult
    from rucola.client.transaction_producer import TransactionProducer
    from rucola.common.message import Message, MessageExt
    from rucola.common.message_queue import MessageQueue
    from rucola.formats.compression import CompressionType
    from rucola.protocol.bodies.heartbeat import ConsumeFromWhere, MessageModel

__all__ = [
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueStrategy",
    "CompressionType",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "LitePullConsumer",
    "LitePullConsumerConfig",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullConsumerConfig",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerConfig",
    "QueueSelector",
    "RawPullResult",
    "ReconsumeLater",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SimpleConsumerConfig",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
]

_MODULES = {
    "AllocateMachineRoomNearby": "rucola.client.allocate",
    "AllocateMessageQueueAveragely": "rucola.client.allocate",
    "AllocateMessageQueueAveragelyByCircle": "rucola.client.allocate",
    "AllocateMessageQueueByConfig": "rucola.client.allocate",
    "AllocateMessageQueueByMachineRoom": "rucola.client.allocate",
    "AllocateMessageQueueConsistentHash": "rucola.client.allocate",
    "AllocateMessageQueueStrategy": "rucola.client.allocate",
    "CompressionType": "rucola.formats.compression",
    "ConsumeConcurrentlyContext": "rucola.client.listener",
    "ConsumeConcurrentlyStatus": "rucola.client.listener",
    "ConsumeFromWhere": "rucola.protocol.bodies.heartbeat",
    "ConsumeOrderlyContext": "rucola.client.listener",
    "ConsumeOrderlyStatus": "rucola.client.listener",
    "LitePullConsumer": "rucola.client.lite_pull_consumer",
    "LitePullConsumerConfig": "rucola.client.consumer_config",
    "LocalTransactionState": "rucola.client.transaction_listener",
    "Message": "rucola.common.message",
    "MessageExt": "rucola.common.message",
    "MessageModel": "rucola.protocol.bodies.heartbeat",
    "MessageQueue": "rucola.common.message_queue",
    "MessageSelector": "rucola.client.message_selector",
    "Producer": "rucola.client.producer",
    "ProducerConfig": "rucola.client.config",
    "PullConsumer": "rucola.client.pull_consumer",
    "PullConsumerConfig": "rucola.client.config",
    "PullResult": "rucola.client.pull_result",
    "PullStatus": "rucola.client.pull_result",
    "PushConsumer": "rucola.client.push_consumer",
    "PushConsumerConfig": "rucola.client.consumer_config",
    "QueueSelector": "rucola.client.queue_selector",
    "RawPullResult": "rucola.client.pull_result",
    "ReconsumeLater": "rucola.client.listener",
    "SendResult": "rucola.client.send_result",
    "SendStatus": "rucola.client.send_result",
    "SimpleConsumer": "rucola.client.simple_consumer",
    "SimpleConsumerConfig": "rucola.client.consumer_config",
    "TransactionListener": "rucola.client.transaction_listener",
    "TransactionProducer": "rucola.client.transaction_producer",
    "TransactionSendResult": "rucola.client.transaction_listener",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'rucola' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
