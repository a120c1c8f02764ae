"""What can be set on a client. Keys and defaults are RocketMQ's (5.3.3: ClientConfig, NettyClientConfig,
DefaultMQProducer, DefaultMQPullConsumer; protocol.md 4.3, 4.4, 4.14); what RocketMQ does not have is marked "ours".
"""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.key_builder import TRACE_TOPIC
from rucola.common.options import check_options, option
from rucola.errors import ConfigError
from rucola.formats.compression import CompressionType
from rucola.protocol.bodies.heartbeat import MessageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings every client has. A value out of range is a ``ConfigError``."""

    instance_name: str = option(
        "instanceName",
        "DEFAULT",
        "Part of the client id; DEFAULT becomes process id and start time, so that two clients of a process differ.",
    )
    unit_name: str = option("unitName", "", "Appended to the client id when not empty.")
    poll_name_server_interval_ms: int = option(
        "pollNameServerInterval", 30_000, "How often the route of every used topic is asked for.", unit="ms", minimum=1
    )
    heartbeat_broker_interval_ms: int = option(
        "heartbeatBrokerInterval", 30_000, "How often every broker hears from this client.", unit="ms", minimum=1
    )
    mq_client_api_timeout_ms: int = option(
        "mqClientApiTimeout", 3_000, "How long a name server or an offset query may take.", unit="ms", minimum=1
    )
    connect_timeout_ms: int = option(
        "connectTimeoutMillis", 3_000, "How long a connection attempt may take.", unit="ms", minimum=1
    )

    enable_trace: bool = option(
        "enableTrace", False, "Whether what becomes of each message is written to the trace topic."
    )
    trace_topic: str = option("traceTopic", TRACE_TOPIC, "Where to; the broker creates it, or has it already.")
    trace_msg_batch_num: int = option(
        "traceMsgBatchNum", 10, "Records that go together; fewer when 5 s have passed.", minimum=1, maximum=20
    )

    access_key: str = option("accessKey", "", "Name of the account that signs every request; empty signs none.")
    secret_key: str = option("secretKey", "", "Its secret.", secret=True)
    security_token: str = option("securityToken", "", "Sent along, and signed, when not empty.", secret=True)
    signature_version: int = option(
        "signatureVersion",
        1,
        "1: the signature that every broker knows; 2: one that cannot be replayed, for brokers of this package (ours).",
        minimum=1,
        maximum=2,
    )
    use_tls: bool = option("useTLS", False, "Whether connections are encrypted; servers are verified then, always.")
    tls_trust_cert_path: str = option(
        "tlsClientTrustCertPath",
        "",
        "PEM file with who may sign servers' certificates (`tls.client.trustCertPath`); empty = the system's.",
    )
    tls_cert_path: str = option("tlsClientCertPath", "", "PEM file of a certificate to show (`tls.client.certPath`).")
    tls_key_path: str = option("tlsClientKeyPath", "", "PEM file of its key (`tls.client.keyPath`).")

    def __post_init__(self) -> None:
        check_options(self)
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError("accessKey", self.access_key, "accessKey and secretKey together")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer."""

    create_topic_key: str = option(
        "createTopicKey", "TBW102", "Topic whose route and settings serve for a topic that does not exist yet."
    )
    default_topic_queue_nums: int = option(
        "defaultTopicQueueNums", 4, "Queues asked for when the broker creates the topic.", minimum=1
    )
    send_msg_timeout_ms: int = option(
        "sendMsgTimeout", 3_000, "Time for one send, all attempts together.", unit="ms", minimum=1
    )
    send_msg_max_timeout_per_request_ms: int = option(
        "sendMsgMaxTimeoutPerRequest",
        -1,
        "Longest wait for one attempt; -1 for all the time left.",
        unit="ms",
        minimum=-1,
    )
    retry_times_when_send_failed: int = option(
        "retryTimesWhenSendFailed", 2, "Further attempts of a waiting send after the first.", minimum=0
    )
    retry_times_when_send_async_failed: int = option(
        "retryTimesWhenSendAsyncFailed", 2, "Further attempts of a submitted send after the first.", minimum=0
    )
    retry_another_broker_when_not_store_ok: bool = option(
        "retryAnotherBrokerWhenNotStoreOK",
        False,
        "Whether a message that is stored, but not flushed or not copied in time, is sent again.",
    )
    max_message_size: int = option(
        "maxMessageSize", 4 * 1024 * 1024, "Largest body, before compression.", unit="bytes", minimum=1
    )
    compress_msg_body_over_howmuch: int = option(
        "compressMsgBodyOverHowmuch", 4096, "Larger bodies are compressed.", unit="bytes", minimum=0
    )
    compress_level: int = option("compressLevel", 5, "Level of ZLIB and ZSTD.", minimum=0, maximum=9)
    compress_type: CompressionType = option(  # noqa: RUF009 - returns a dataclass field, as its neighbours do
        "compressType", CompressionType.ZLIB, "How; LZ4 and ZSTD need `rucola[compression]`, and RocketMQ 5 to be read."
    )
    send_latency_fault_enable: bool = option(
        "sendLatencyFaultEnable",
        False,
        "Whether brokers that failed or were slow are left out for a while, when others have queues of the topic.",
    )
    back_pressure_for_async_send_num: int = option(
        "backPressureForAsyncSendNum", 10_000, "Messages on their way at which `ready` waits.", minimum=1
    )
    back_pressure_for_async_send_size: int = option(
        "backPressureForAsyncSendSize",
        100 * 1024 * 1024,
        "Bytes on their way at which `ready` waits.",
        unit="bytes",
        minimum=1,
    )
    send_many_batch_bytes: int = option(
        "sendManyBatchBytes",
        256 * 1024,
        "Body of a batch that `send_many` makes, at most (ours).",
        unit="bytes",
        minimum=1,
        maximum=4 * 1024 * 1024,
    )
    batch_unique_key: bool = option(
        "batchUniqueKey",
        False,
        "Whether a batch has a UNIQ_KEY of its own, as Java's: a topic of type BatchCQ then stores it as one record, "
        "and on all others RocketMQ's brokers write it over the keys of the members (ours).",
    )
    retry_backoff_ms: int = option(
        "retryBackoff",
        50,
        "Pause before the second retry, doubled for each further one (ours: the reference never pauses, and so gives "
        "up long before a broker is restarted).",
        unit="ms",
        minimum=0,
    )
    retry_backoff_max_ms: int = option("retryBackoffMax", 1_000, "Longest such pause (ours).", unit="ms", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerConfig(ClientConfig):
    """Settings of a pull consumer."""

    message_model: MessageModel = option(  # noqa: RUF009 - returns a dataclass field, as its neighbours do
        "messageModel",
        MessageModel.CLUSTERING,
        "CLUSTERING: the brokers keep the group's progress; BROADCASTING: this client keeps its own, in a file.",
    )
    local_offset_store_dir: str = option(
        "localOffsetStoreDir",
        "",
        "Folder of these files (`rocketmq.client.localOffsetStoreDir`); empty = `.rocketmq_offsets` at home.",
    )
    consumer_pull_timeout_ms: int = option(
        "consumerPullTimeoutMillis", 10_000, "How long a pull may take that is answered at once.", unit="ms", minimum=1
    )
    consumer_timeout_when_suspend_ms: int = option(
        "consumerTimeoutMillisWhenSuspend",
        30_000,
        "How long a pull may take that the broker holds until messages come, unless the caller lets it be held longer.",
        unit="ms",
        minimum=1,
    )
