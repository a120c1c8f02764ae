"""What can be set on a client. Names and defaults are RocketMQ's (5.3.3: ClientConfig, DefaultMQProducer,
DefaultMQPullConsumer; protocol.md 4.3, 4.4, 4.14), in Python's spelling; what RocketMQ has no name for is marked.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rucola.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings every client has.

    Attributes:
        instance_name: part of the client id; "DEFAULT" becomes process id and start time, so that two clients of one
            process differ.
        unit_name: appended to the client id when not empty.
        poll_name_server_interval_ms: how often the route of every used topic is asked for.
        heartbeat_broker_interval_ms: how often every broker hears from this client.
        mq_client_api_timeout_ms: how long a name server or an offset query may take.
        connect_timeout_ms: how long a connection attempt may take.
    """

    instance_name: str = "DEFAULT"
    unit_name: str = ""
    poll_name_server_interval_ms: int = 30_000
    heartbeat_broker_interval_ms: int = 30_000
    mq_client_api_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_ms") and value < 1:
                raise ConfigError(field.name, str(value), "at least 1 millisecond")
            if (
                field.name.startswith(("retry_times", "max_", "compress_", "default_topic_q", "back_pressure"))
                and value < 0
            ):
                raise ConfigError(field.name, str(value), "0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer.

    Attributes:
        create_topic_key: topic whose route and settings serve for a topic that does not exist yet.
        default_topic_queue_nums: queues asked for when the broker creates the topic.
        send_msg_timeout_ms: time for one send, all attempts together.
        send_msg_max_timeout_per_request_ms: longest wait for one attempt; the whole of what is left when not set.
        retry_times_when_send_failed: further attempts of ``send`` after the first.
        retry_times_when_send_async_failed: the same for ``submit``.
        retry_another_broker_when_not_store_ok: whether an answer that is stored but not flushed or copied is retried.
        max_message_size: bytes of a body, as given by the application.
        compress_msg_body_over_howmuch: bodies above this many bytes are compressed.
        compress_level: of zlib, 0 to 9.
        back_pressure_for_async_send_num: messages on their way above which ``submit`` waits.
        back_pressure_for_async_send_size: bytes on their way above which ``submit`` waits.
        retry_backoff_ms: pause before the second and later retries of a message, doubled each time (not in RocketMQ,
            which tries again at once and so gives up long before a broker is restarted).
        retry_backoff_max_ms: the longest such pause.
    """

    create_topic_key: str = "TBW102"
    default_topic_queue_nums: int = 4
    send_msg_timeout_ms: int = 3_000
    send_msg_max_timeout_per_request_ms: int | None = None
    retry_times_when_send_failed: int = 2
    retry_times_when_send_async_failed: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    max_message_size: int = 4 * 1024 * 1024
    compress_msg_body_over_howmuch: int = 4096
    compress_level: int = 5
    back_pressure_for_async_send_num: int = 10_000
    back_pressure_for_async_send_size: int = 100 * 1024 * 1024
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerConfig(ClientConfig):
    """Settings of a pull consumer.

    Attributes:
        consumer_pull_timeout_ms: how long a pull that does not wait for messages may take.
        consumer_timeout_millis_when_suspend: how long a pull may take that the broker holds until messages come; the
            broker's share is the caller's ``suspend_timeout_ms``.
    """

    consumer_pull_timeout_ms: int = 10_000
    consumer_timeout_millis_when_suspend: int = 30_000
