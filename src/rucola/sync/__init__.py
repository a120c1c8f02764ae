"""The clients with blocking calls; the asynchronous ones, with the same names, are in ``rucola``.

Generated from rucola/client/ by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

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
    MessageListener,
    ReconsumeLater,
)
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
    "FormatError",
    "LitePullConsumer",
    "LitePullConsumerConfig",
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
