"""The clients with blocking calls; the async ones, with the same names, are in ``rucola``.

Generated from rucola/client/ by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

from rucola.client.config import ProducerConfig, PullConsumerConfig
from rucola.client.message_selector import MessageSelector
from rucola.client.pull_result import PullResult, PullStatus, RawPullResult
from rucola.client.queue_selector import QueueSelector
from rucola.client.send_result import SendResult, SendStatus
from rucola.common.message import Message, MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.protocol.bodies.heartbeat import MessageModel
from rucola.sync.producer import Producer
from rucola.sync.pull_consumer import PullConsumer

__all__ = [
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
    "QueueSelector",
    "RawPullResult",
    "SendResult",
    "SendStatus",
]
