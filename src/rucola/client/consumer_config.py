"""Settings of push, lite pull and simple consumers. Keys and defaults are RocketMQ's (5.3.3: DefaultMQPushConsumer,
DefaultLitePullConsumer). Settings that RocketMQ does not have are marked "Rucola's own".
"""

from __future__ import annotations

from dataclasses import dataclass

from rucola.client.config import ClientConfig
from rucola.common.options import documented, option
from rucola.errors import ConfigError
from rucola.protocol.bodies.heartbeat import ConsumeFromWhere, MessageModel

MIB = 1024 * 1024
START_LIMIT_S = 3.0
"""How long a consumer waits, when it starts or gets a topic, until it is known where its queues start, in seconds."""


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConsumerConfig(ClientConfig):
    """Settings that push and lite pull consumers have in common."""

    message_model: MessageModel = option(  # noqa: RUF009 - returns a dataclass field, as its neighbours do
        "messageModel",
        MessageModel.CLUSTERING,
        "CLUSTERING: the consumers of the group share the queues. BROADCASTING: each consumer reads all queues.",
    )
    consume_from_where: ConsumeFromWhere = option(  # noqa: RUF009
        "consumeFromWhere",
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        "Where a group without a stored offset begins. Exception: with CLUSTERING, it begins with the very first "
        "message of a queue if the broker still has this message in memory.",
    )
    consume_timestamp: str = option(
        "consumeTimestamp",
        "",
        "Time at which CONSUME_FROM_TIMESTAMP begins, as yyyyMMddHHmmss in local time. If empty, half an hour before "
        "the consumer is created.",
    )
    pull_batch_size: int = option(
        "pullBatchSize", 32, "Number of messages that one pull requests.", minimum=1, maximum=1024
    )
    pull_threshold_for_queue: int = option(
        "pullThresholdForQueue",
        1000,
        "Pulling from a queue pauses while more than this number of its messages are in the consumer's memory.",
        minimum=1,
        maximum=65535,
    )
    pull_threshold_size_for_queue: int = option(
        "pullThresholdSizeForQueue",
        100,
        "Pulling from a queue pauses while its messages in the consumer's memory have more than this total size.",
        unit="MiB",
        minimum=1,
        maximum=1024,
    )
    auto_commit_interval_ms: int = option(
        "persistConsumerOffsetInterval",
        5_000,
        "Pause between two writes of the consumer offsets.",
        unit="ms",
        minimum=1,
    )
    rebalance_interval_ms: int = option(
        "rocketmq.client.rebalance.waitInterval",
        20_000,
        "Pause between two rebalances. A rebalance also happens as soon as a member joins or leaves.",
        unit="ms",
        minimum=1,
    )
    broker_suspend_max_time_ms: int = option(
        "brokerSuspendMaxTimeMillis",
        15_000,
        "How long the broker holds a pull while there is no message.",
        unit="ms",
        minimum=1,
    )
    consumer_timeout_when_suspend_ms: int = option(
        "consumerTimeoutMillisWhenSuspend", 30_000, "Time limit of a pull that the broker holds.", unit="ms", minimum=1
    )
    pull_time_delay_when_exception_ms: int = option(
        "pullTimeDelayMillsWhenException", 3_000, "Pause after a failed pull.", unit="ms", minimum=1
    )
    local_offset_store_dir: str = option(
        "localOffsetStoreDir",
        "",
        "Directory for the offsets of broadcasting consumers. If empty, `.rocketmq_offsets` in the home directory. "
        "RocketMQ: `rocketmq.client.localOffsetStoreDir`.",
    )

    await_termination_ms: int = option(
        "awaitTerminationMillisWhenShutdown",
        30_000,
        "How long `shutdown` waits for running listener calls and for the bodies of loops. RocketMQ's default is 0.",
        unit="ms",
        minimum=0,
    )

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        if self.broker_suspend_max_time_ms >= self.consumer_timeout_when_suspend_ms:
            raise ConfigError(
                "consumerTimeoutMillisWhenSuspend",
                str(self.consumer_timeout_when_suspend_ms),
                f"more than broker_suspend_max_time_ms ({self.broker_suspend_max_time_ms})",
                "consumer_timeout_when_suspend_ms",
            )
        stamp = self.consume_timestamp
        if stamp and not (len(stamp) == 14 and stamp.isascii() and stamp.isdecimal()):
            raise ConfigError("consumeTimestamp", stamp, "14 digits, yyyyMMddHHmmss", "consume_timestamp")


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerConfig(GroupConsumerConfig):
    """Settings of a push consumer."""

    consume_orderly: bool = option(
        "consumeOrderly",
        False,
        "Whether the messages of a queue are consumed one after the other, by one consumer of the group at a "
        "time. In RocketMQ the kind of listener decides.",
    )
    consume_thread_max: int = option(
        "consumeThreadMax", 20, "Largest number of listener calls that run at the same time.", minimum=1, maximum=1000
    )
    consume_message_batch_max_size: int = option(
        "consumeMessageBatchMaxSize",
        1,
        "Largest number of messages in one call of a batch listener.",
        minimum=1,
        maximum=1024,
    )
    consume_concurrently_max_span: int = option(
        "consumeConcurrentlyMaxSpan",
        2000,
        "Pulling from a queue pauses while the lowest and the highest queue offset of its messages in the consumer's "
        "memory differ by more than this number. Orderly consumers ignore this option.",
        minimum=1,
        maximum=65535,
    )
    pull_threshold_for_topic: int = option(
        "pullThresholdForTopic",
        -1,
        "Largest number of messages in the consumer's memory, of all topics together. Each queue gets an equal "
        "share, which takes the place of `pullThresholdForQueue`. -1 means no such limit.",
        minimum=-1,
        maximum=6553500,
    )
    pull_threshold_size_for_topic: int = option(
        "pullThresholdSizeForTopic",
        -1,
        "Largest size of the messages in the consumer's memory, of all topics together. Each queue gets an equal "
        "share, which takes the place of `pullThresholdSizeForQueue`. -1 means no such limit.",
        unit="MiB",
        minimum=-1,
        maximum=102400,
    )
    pull_interval_ms: int = option(
        "pullInterval", 0, "Pause between two pulls of a queue.", unit="ms", minimum=0, maximum=65535
    )
    post_subscription_when_pull: bool = option(
        "postSubscriptionWhenPull",
        False,
        "Whether each pull carries the subscription. Otherwise brokers know it from heartbeats.",
    )
    max_reconsume_times: int = option(
        "maxReconsumeTimes",
        -1,
        "How many times a failed message is consumed again before it becomes a dead letter. -1 means 16 times; for "
        "orderly consumers, -1 means no limit.",
        minimum=-1,
    )
    suspend_current_queue_time_ms: int = option(
        "suspendCurrentQueueTimeMillis",
        1_000,
        "Pause of an orderly consumer's queue after a failure.",
        unit="ms",
        minimum=10,
        maximum=30_000,
    )
    consume_timeout_min: int = option(
        "consumeTimeout",
        15,
        "Time limit of a listener call. With CLUSTERING, a message whose call takes longer goes back to the broker. "
        "Orderly consumers ignore this option.",
        unit="min",
        minimum=1,
    )


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerConfig(GroupConsumerConfig):
    """Settings of a lite pull consumer."""

    auto_commit: bool = option(
        "autoCommit", True, "Whether messages that `poll` returned are committed without a call of `commit`."
    )
    pull_batch_size: int = option(
        "pullBatchSize", 10, "Number of messages that one pull requests.", minimum=1, maximum=1024
    )
    poll_timeout_ms: int = option(
        "pollTimeoutMillis",
        5_000,
        "How long `poll` waits for messages, unless the call passes a time.",
        unit="ms",
        minimum=0,
    )
    pull_threshold_for_all: int = option(
        "pullThresholdForAll",
        10_000,
        "Pulling pauses while more than this number of messages are in memory.",
        minimum=1,
    )
    consume_max_span: int = option(
        "consumeMaxSpan",
        2000,
        "Pulling from a queue pauses while the lowest and the highest queue offset of its messages in the consumer's "
        "memory differ by more than this number.",
        minimum=1,
    )
    broker_suspend_max_time_ms: int = option(
        "brokerSuspendMaxTimeMillis",
        20_000,
        "How long the broker holds a pull while there is no message.",
        unit="ms",
        minimum=1,
    )


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerConfig(ClientConfig):
    """Settings of a simple consumer."""

    await_duration_ms: int = option(
        "awaitDuration", 15_000, "How long `receive` waits for messages.", unit="ms", minimum=0, maximum=60_000
    )
    invisible_duration_ms: int = option(
        "invisibleDuration",
        60_000,
        "How long received messages are hidden from the other consumers of the group, unless the call passes a time.",
        unit="ms",
        minimum=10_000,
        maximum=43_200_000,
    )
    auto_renew: bool = option(
        "autoRenew", False, "Whether received messages stay hidden until they are acknowledged. Rucola's own."
    )
    renew_max_duration_ms: int = option(
        "renewMaxTimeMillis",
        10_800_000,
        "With `autoRenew`: longest time that a message stays hidden.",
        unit="ms",
        minimum=10_000,
    )
    await_termination_ms: int = option(
        "awaitTerminationMillisWhenShutdown",
        30_000,
        "How long `shutdown` waits for the bodies of loops.",
        unit="ms",
        minimum=0,
    )
    consume_from_first: bool = option(
        "consumeInitMode",
        True,
        "Where a group without a stored offset begins: true means the first message of each queue, false the last one. "
        "Exception: in a queue from which no message has expired yet, false also means the first message (in RocketMQ "
        "only if the first message is in memory).",
    )


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class LiteConsumerConfig(ClientConfig):
    """Settings of a lite consumer."""

    consume_thread_max: int = option(
        "consumeThreadMax", 20, "Largest number of listener calls that run at the same time.", minimum=1, maximum=1000
    )
    max_reconsume_times: int = option(
        "maxReconsumeTimes",
        -1,
        "How many times a failed message is consumed again before it becomes a dead letter. -1 means 16 times.",
        minimum=-1,
    )
    retry_delay_ms: int = option(
        "retryDelayMillis",
        1_000,
        "Pause of a lite topic after its first failure; doubled after each further one, up to a minute. Rucola's own.",
        unit="ms",
        minimum=10,
        maximum=60_000,
    )
    invisible_duration_ms: int = option(
        "invisibleDuration",
        60_000,
        "How long messages are hidden from the other consumers of the group, before this is renewed.",
        unit="ms",
        minimum=10_000,
        maximum=43_200_000,
    )
    renew_max_duration_ms: int = option(
        "renewMaxTimeMillis",
        10_800_000,
        "Longest time that messages stay hidden while they are handled, or wait for a retry.",
        unit="ms",
        minimum=10_000,
    )
    pop_batch_nums: int = option("popBatchNums", 32, "Number of messages that one pop requests.", minimum=1, maximum=32)
    broker_suspend_max_time_ms: int = option(
        "brokerSuspendMaxTimeMillis",
        15_000,
        "How long the broker holds a pop while there is no message.",
        unit="ms",
        minimum=1,
    )
    pull_threshold_for_all: int = option(
        "pullThresholdForAll", 10_000, "Pops pause while this number of messages or more are in memory.", minimum=1
    )
    pull_threshold_size_for_all: int = option(
        "pullThresholdSizeForAll",
        100,
        "Pops pause while the messages in memory have this total size or more. Rucola's own.",
        unit="MiB",
        minimum=1,
        maximum=102_400,
    )
    lite_subscription_quota: int = option(
        "liteSubscriptionQuota",
        2_000,
        "Largest number of lite topics; the attribute `lite.sub.client.quota` of the group may set another limit.",
        minimum=1,
    )
    await_termination_ms: int = option(
        "awaitTerminationMillisWhenShutdown",
        30_000,
        "How long `shutdown` waits for running listener calls and for the bodies of loops.",
        unit="ms",
        minimum=0,
    )
