"""Settings of clients. Keys and defaults are RocketMQ's (5.3.3: ClientConfig, NettyClientConfig, DefaultMQProducer,
DefaultMQPullConsumer; protocol.md 4.3, 4.4, 4.14). Settings that RocketMQ does not have are marked "Rucola's own".
"""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.key_builder import TRACE_TOPIC
from rucola.common.options import check_options, documented, option
from rucola.errors import ConfigError
from rucola.formats.compression import CompressionType
from rucola.protocol.bodies.heartbeat import MessageModel


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of every client. A value out of range raises ``ConfigError``."""

    instance_name: str = option(
        "instanceName",
        "DEFAULT",
        "Part of the client id. DEFAULT is replaced by the process id and the time at which the client was created, so "
        "that two clients in one process differ. Broadcasting consumers keep DEFAULT.",
    )
    unit_name: str = option("unitName", "", "Appended to the client id when not empty.")
    poll_name_server_interval_ms: int = option(
        "pollNameServerInterval", 30_000, "Pause between two updates of the routes in use.", unit="ms", minimum=1
    )
    heartbeat_broker_interval_ms: int = option(
        "heartbeatBrokerInterval", 30_000, "Pause between two rounds of heartbeats to brokers.", unit="ms", minimum=1
    )
    mq_client_api_timeout_ms: int = option(
        "mqClientApiTimeout",
        3_000,
        "Time limit of a request to a name server, and of an offset query.",
        unit="ms",
        minimum=1,
    )
    connect_timeout_ms: int = option(
        "connectTimeoutMillis", 3_000, "Time limit of a connection attempt.", unit="ms", minimum=1
    )

    enable_trace: bool = option(
        "enableTrace", False, "Whether the client records in the trace topic what happens to each message."
    )
    trace_topic: str = option("traceTopic", TRACE_TOPIC, "Name of the trace topic.")
    trace_msg_batch_num: int = option(
        "traceMsgBatchNum",
        10,
        "Largest number of trace records in one message. If fewer are waiting, they are sent 5 s after the first of "
        "them was recorded.",
        minimum=1,
        maximum=20,
    )

    access_key: str = option(
        "accessKey", "", "Name of the account that signs every request. If empty, requests are not signed."
    )
    secret_key: str = option("secretKey", "", "Secret of the account.", secret=True)
    security_token: str = option(
        "securityToken", "", "Token that is sent with every request and signed. Empty: none.", secret=True
    )
    signature_version: int = option(
        "signatureVersion",
        1,
        "1: the signature that every broker knows. 2: the signature that cannot be replayed, for Rucola's brokers "
        "only. Rucola's own.",
        minimum=1,
        maximum=2,
    )
    use_tls: bool = option(
        "useTLS", False, "Whether connections use TLS. The certificates of servers are always verified."
    )
    tls_trust_cert_path: str = option(
        "tlsClientTrustCertPath",
        "",
        "PEM file with the authorities that may sign certificates of servers. If empty, the system's authorities. "
        "RocketMQ: `tls.client.trustCertPath`.",
    )
    tls_cert_path: str = option(
        "tlsClientCertPath", "", "PEM file with the client's certificate. RocketMQ: `tls.client.certPath`."
    )
    tls_key_path: str = option(
        "tlsClientKeyPath", "", "PEM file with the key of the client's certificate. RocketMQ: `tls.client.keyPath`."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError("accessKey", self.access_key, "both access_key and secret_key, or neither", "access_key")


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer."""

    create_topic_key: str = option(
        "createTopicKey", "TBW102", "Topic whose route and settings are used for a topic that does not exist yet."
    )
    default_topic_queue_nums: int = option(
        "defaultTopicQueueNums", 4, "Number of queues of a topic that the broker creates for this producer.", minimum=1
    )
    send_msg_timeout_ms: int = option(
        "sendMsgTimeout", 3_000, "Time limit of one send, with all attempts.", unit="ms", minimum=1
    )
    send_msg_max_timeout_per_request_ms: int = option(
        "sendMsgMaxTimeoutPerRequest",
        -1,
        "Time limit of one attempt. If it is -1, an attempt may take the rest of the send's time.",
        unit="ms",
        minimum=-1,
    )
    retry_times_when_send_failed: int = option(
        "retryTimesWhenSendFailed", 2, "Number of attempts after the first, for `send`.", minimum=0
    )
    retry_times_when_send_async_failed: int = option(
        "retryTimesWhenSendAsyncFailed", 2, "Number of attempts after the first, for `submit`.", minimum=0
    )
    retry_another_broker_when_not_store_ok: bool = option(
        "retryAnotherBrokerWhenNotStoreOK",
        False,
        "Whether a message is sent again if the broker stored it, but did not flush or copy it in time.",
    )
    max_message_size: int = option(
        "maxMessageSize", 4 * 1024 * 1024, "Largest message body, before compression.", unit="bytes", minimum=1
    )
    compress_msg_body_over_howmuch: int = option(
        "compressMsgBodyOverHowmuch", 4096, "Size above which a body is compressed.", unit="bytes", minimum=0
    )
    compress_level: int = option("compressLevel", 5, "Compression level of ZLIB and ZSTD.", minimum=0, maximum=9)
    compress_type: CompressionType = option(  # noqa: RUF009 - returns a dataclass field, as its neighbours do
        "compressType",
        CompressionType.ZLIB,
        "Compression of bodies. LZ4 and ZSTD need the extra `compression`, also where Rucola's consumers run. Java "
        "consumers need RocketMQ 5 to read LZ4 and ZSTD.",
    )
    send_latency_fault_enable: bool = option(
        "sendLatencyFaultEnable",
        False,
        "Whether a broker that failed or was slow is avoided for a while, if other brokers have queues of the topic.",
    )
    back_pressure_for_async_send_num: int = option(
        "backPressureForAsyncSendNum",
        10_000,
        "`ready` waits while this number of messages or more are in flight.",
        minimum=1,
    )
    back_pressure_for_async_send_size: int = option(
        "backPressureForAsyncSendSize",
        100 * 1024 * 1024,
        "`ready` waits while the messages in flight have this total size or more.",
        unit="bytes",
        minimum=1,
    )
    send_many_batch_bytes: int = option(
        "sendManyBatchBytes",
        256 * 1024,
        "Largest body of a batch that `send_many` makes. Rucola's own.",
        unit="bytes",
        minimum=1,
        maximum=4 * 1024 * 1024,
    )
    batch_unique_key: bool = option(
        "batchUniqueKey",
        False,
        "Whether a batch has a UNIQ_KEY of its own, as in Java. A BatchCQ topic then stores the batch as one record. "
        "In other topics, on RocketMQ's brokers up to 5.3.3, the batch's UNIQ_KEY hides the UNIQ_KEY of each message. "
        "Rucola's own.",
    )
    retry_backoff_ms: int = option(
        "retryBackoff",
        50,
        "Pause before the second retry. It doubles with each further retry. RocketMQ's client does not pause, and so "
        "gives up long before a broker has restarted. Rucola's own.",
        unit="ms",
        minimum=0,
    )
    retry_backoff_max_ms: int = option(
        "retryBackoffMax", 1_000, "Longest pause between two retries. Rucola's own.", unit="ms", minimum=0
    )


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerConfig(ClientConfig):
    """Settings of a pull consumer."""

    message_model: MessageModel = option(  # noqa: RUF009 - returns a dataclass field, as its neighbours do
        "messageModel",
        MessageModel.CLUSTERING,
        "CLUSTERING: brokers store the group's offsets. BROADCASTING: this client stores its own offsets in a file.",
    )
    local_offset_store_dir: str = option(
        "localOffsetStoreDir",
        "",
        "Directory for the offsets of broadcasting consumers. If empty, `.rocketmq_offsets` in the home directory. "
        "RocketMQ: `rocketmq.client.localOffsetStoreDir`.",
    )
    consumer_pull_timeout_ms: int = option(
        "consumerPullTimeoutMillis",
        10_000,
        "Time limit of a pull to which the broker responds immediately.",
        unit="ms",
        minimum=1,
    )
    consumer_timeout_when_suspend_ms: int = option(
        "consumerTimeoutMillisWhenSuspend",
        30_000,
        "Time limit of a pull that the broker holds until messages arrive, unless the call passes a longer one.",
        unit="ms",
        minimum=1,
    )
