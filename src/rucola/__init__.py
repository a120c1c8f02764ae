"""RocketMQ's message store, broker and clients in Python.

Each client is imported when it is first used, so that a server process does not load it. ``rucola.sync`` has the same
names with blocking calls.

For example::

    from rucola import Message, Producer

    async with Producer("flights-producer", "127.0.0.1:9876") as producer:
        result = await producer.send(Message("flights", b"UA1545", tags="UA"))
        print(result.msg_id, result.queue_offset)
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
    from rucola.client.consumer_config import (
        LiteConsumerConfig,
        LitePullConsumerConfig,
        PushConsumerConfig,
        SimpleConsumerConfig,
    )
    from rucola.client.listener import (
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
        ConsumeResultSuspend,
        MessageListener,
        ReconsumeLater,
    )
    from rucola.client.lite_consumer import LiteConsumer
    from rucola.client.lite_offset import LiteOffset
    from rucola.client.lite_pull_consumer import LitePullConsumer
    from rucola.client.message_selector import MessageSelector
    from rucola.client.producer import Producer
    from rucola.client.pull_consumer import PullConsumer
    from rucola.client.pull_result import PullResult, PullStatus, RawPullResult
    from rucola.client.push_consumer import PushConsumer
    from rucola.client.queue_selector import QueueSelector
    from rucola.client.repeats import drop_repeats
    from rucola.client.send_result import SendResult, SendStatus
    from rucola.client.simple_consumer import SimpleConsumer
    from rucola.client.transaction_listener import LocalTransactionState, TransactionListener, TransactionSendResult
    from rucola.client.transaction_producer import TransactionProducer
    from rucola.common.message import Message, MessageExt
    from rucola.common.message_queue import MessageQueue
    from rucola.errors import (
        BrokerError,
        ClientError,
        ConfigError,
        FormatError,
        LiteQuotaError,
        NoRouteError,
        OptionsError,
        RemotingClosedError,
        RemotingConnectError,
        RemotingError,
        RemotingTimeoutError,
        RequestTimeoutError,
        RucolaError,
        SendManyError,
        TopicNotExistError,
    )
    from rucola.formats.compression import CompressionType
    from rucola.protocol.bodies.heartbeat import ConsumeFromWhere, MessageModel

__version__ = "0.1.0"
"""The version of the distribution, ``rucola-mq``; pyproject.toml takes it from here."""

__all__ = [
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueStrategy",
    "BrokerError",
    "ClientError",
    "CompressionType",
    "ConfigError",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeResultSuspend",
    "FormatError",
    "LiteConsumer",
    "LiteConsumerConfig",
    "LiteOffset",
    "LitePullConsumer",
    "LitePullConsumerConfig",
    "LiteQuotaError",
    "LocalTransactionState",
    "Message",
    "MessageExt",
    "MessageListener",
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "NoRouteError",
    "OptionsError",
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
    "RemotingClosedError",
    "RemotingConnectError",
    "RemotingError",
    "RemotingTimeoutError",
    "RequestTimeoutError",
    "RucolaError",
    "SendManyError",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SimpleConsumerConfig",
    "TopicNotExistError",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "drop_repeats",
]

_MODULES = {
    "AllocateMachineRoomNearby": "rucola.client.allocate",
    "AllocateMessageQueueAveragely": "rucola.client.allocate",
    "AllocateMessageQueueAveragelyByCircle": "rucola.client.allocate",
    "AllocateMessageQueueByConfig": "rucola.client.allocate",
    "AllocateMessageQueueByMachineRoom": "rucola.client.allocate",
    "AllocateMessageQueueConsistentHash": "rucola.client.allocate",
    "AllocateMessageQueueStrategy": "rucola.client.allocate",
    "BrokerError": "rucola.errors",
    "ClientError": "rucola.errors",
    "CompressionType": "rucola.formats.compression",
    "ConfigError": "rucola.errors",
    "ConsumeConcurrentlyContext": "rucola.client.listener",
    "ConsumeConcurrentlyStatus": "rucola.client.listener",
    "ConsumeFromWhere": "rucola.protocol.bodies.heartbeat",
    "ConsumeOrderlyContext": "rucola.client.listener",
    "ConsumeOrderlyStatus": "rucola.client.listener",
    "ConsumeResultSuspend": "rucola.client.listener",
    "FormatError": "rucola.errors",
    "LiteConsumer": "rucola.client.lite_consumer",
    "LiteConsumerConfig": "rucola.client.consumer_config",
    "LiteOffset": "rucola.client.lite_offset",
    "LitePullConsumer": "rucola.client.lite_pull_consumer",
    "LitePullConsumerConfig": "rucola.client.consumer_config",
    "LiteQuotaError": "rucola.errors",
    "LocalTransactionState": "rucola.client.transaction_listener",
    "Message": "rucola.common.message",
    "MessageExt": "rucola.common.message",
    "MessageListener": "rucola.client.listener",
    "MessageModel": "rucola.protocol.bodies.heartbeat",
    "MessageQueue": "rucola.common.message_queue",
    "MessageSelector": "rucola.client.message_selector",
    "NoRouteError": "rucola.errors",
    "OptionsError": "rucola.errors",
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
    "RemotingClosedError": "rucola.errors",
    "RemotingConnectError": "rucola.errors",
    "RemotingError": "rucola.errors",
    "RemotingTimeoutError": "rucola.errors",
    "RequestTimeoutError": "rucola.errors",
    "RucolaError": "rucola.errors",
    "SendManyError": "rucola.errors",
    "SendResult": "rucola.client.send_result",
    "SendStatus": "rucola.client.send_result",
    "SimpleConsumer": "rucola.client.simple_consumer",
    "SimpleConsumerConfig": "rucola.client.consumer_config",
    "TopicNotExistError": "rucola.errors",
    "TransactionListener": "rucola.client.transaction_listener",
    "TransactionProducer": "rucola.client.transaction_producer",
    "TransactionSendResult": "rucola.client.transaction_listener",
    "drop_repeats": "rucola.client.repeats",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'rucola' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
