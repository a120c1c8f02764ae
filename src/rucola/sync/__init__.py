"""The clients with blocking calls; the asynchronous ones, with the same names, are in ``rucola``.

Generated from rucola/client/ by tools/async_to_sync.py: change that file and run the tool.
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
    from rucola.client.lite_offset import LiteOffset
    from rucola.client.message_selector import MessageSelector
    from rucola.client.pull_result import PullResult, PullStatus, RawPullResult
    from rucola.client.queue_selector import QueueSelector
    from rucola.client.repeats import drop_repeats
    from rucola.client.send_result import SendResult, SendStatus
    from rucola.client.transaction_listener import LocalTransactionState, TransactionListener, TransactionSendResult
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
    from rucola.sync.lite_consumer import LiteConsumer
    from rucola.sync.lite_pull_consumer import LitePullConsumer
    from rucola.sync.producer import Producer
    from rucola.sync.pull_consumer import PullConsumer
    from rucola.sync.push_consumer import PushConsumer
    from rucola.sync.simple_consumer import SimpleConsumer
    from rucola.sync.transaction_producer import TransactionProducer
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
    "LiteConsumer": "rucola.sync.lite_consumer",
    "LiteConsumerConfig": "rucola.client.consumer_config",
    "LiteOffset": "rucola.client.lite_offset",
    "LitePullConsumer": "rucola.sync.lite_pull_consumer",
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
    "Producer": "rucola.sync.producer",
    "ProducerConfig": "rucola.client.config",
    "PullConsumer": "rucola.sync.pull_consumer",
    "PullConsumerConfig": "rucola.client.config",
    "PullResult": "rucola.client.pull_result",
    "PullStatus": "rucola.client.pull_result",
    "PushConsumer": "rucola.sync.push_consumer",
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
    "SimpleConsumer": "rucola.sync.simple_consumer",
    "SimpleConsumerConfig": "rucola.client.consumer_config",
    "TopicNotExistError": "rucola.errors",
    "TransactionListener": "rucola.client.transaction_listener",
    "TransactionProducer": "rucola.sync.transaction_producer",
    "TransactionSendResult": "rucola.client.transaction_listener",
    "drop_repeats": "rucola.client.repeats",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'rucola.sync' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
