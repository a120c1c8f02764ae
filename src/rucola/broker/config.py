"""Options of the broker, with RocketMQ's keys (``BrokerConfig``, ``NettyServerConfig``), and ``broker.conf``.

A key that RocketMQ knows and this broker does not is reported once and otherwise left alone; a key that neither
knows stops the start: a typing error must not turn into a default.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from rucola.broker.reference_keys import FORMER_KEYS, REFERENCE_KEYS, without_effect
from rucola.common.hosts import check_bind_address
from rucola.common.key_builder import TRACE_TOPIC
from rucola.common.options import ConfigProblems, check_options, option, parse_options, unknown_keys
from rucola.common.tls_config import TlsConfig
from rucola.errors import ConfigError
from rucola.runtime.logs import event
from rucola.store.config import MessageStoreConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokerConfig(TlsConfig):
    """See the texts of the fields. Checked when it is made: ``ConfigError`` names key, value and what is allowed."""

    use_tls: bool = option("useTLS", False, "Whether the name servers are spoken to over TLS.")
    tls_client_trust_cert_path: str = option(
        "tlsClientTrustCertPath",
        "",
        "PEM file with who may sign the name servers' certificates; empty = they have the broker's own (tlsCertPath).",
    )
    broker_name: str = option("brokerName", "broker-a", "Name of the broker; masters and slaves of one set share it.")
    broker_cluster_name: str = option("brokerClusterName", "DefaultCluster", "Cluster the broker belongs to.")
    broker_id: int = option("brokerId", 0, "0 is a master; there are no slaves.", minimum=0, maximum=0)
    broker_role: str = option(
        "brokerRole",
        "ASYNC_MASTER",
        "There are no slaves: SYNC_MASTER also acknowledges what is on this broker alone, and says so in the log.",
        choices=("ASYNC_MASTER", "SYNC_MASTER"),
    )
    bind_address: str = option(
        "bindAddress",
        "127.0.0.1",
        "Address to listen on (RocketMQ listens on all). Others than loopback need aclEnable and TLS, or insecure.",
    )
    insecure: bool = option(
        "insecure",
        False,
        "Allow to listen on an address that others can reach, without access control and encryption (not RocketMQ's).",
    )
    acl_enable: bool = option(
        "aclEnable",
        False,
        "Whether requests must be signed by an account of `conf/plain_acl.yml` that may do what they ask.",
    )
    rocketmq_home: str = option(
        "rocketmqHome", "", "Directory with `conf/plain_acl.yml` and `conf/acl/`; empty = storePathRootDir."
    )
    authentication_enabled: bool = option(
        "authenticationEnabled",
        False,
        "Whether requests must be signed by a user (ACL 2.0; not together with aclEnable).",
    )
    authorization_enabled: bool = option(
        "authorizationEnabled", False, "Whether users may do only what rules allow; needs authenticationEnabled."
    )
    init_authentication_user: str = option(
        "initAuthenticationUser",
        "",
        'A super user that is made when it is not there: `{"username": "...", "password": "..."}`.',
        secret=True,
    )
    inner_client_authentication_credentials: str = option(
        "innerClientAuthenticationCredentials",
        "",
        'How the broker signs what it sends to name servers: `{"accessKey": "...", "secretKey": "..."}`.',
        secret=True,
    )
    acl_require_v2: bool = option(
        "aclRequireSignatureV2",
        False,
        "Take only the signature that cannot be replayed, which only this package's clients make (not RocketMQ's).",
    )
    broker_ip1: str = option("brokerIP1", "", "Address that clients are told; empty = the address listened on.")
    listen_port: int = option("listenPort", 10911, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65535)
    namesrv_addr: str = option("namesrvAddr", "", "Name servers, `host:port`, separated by semicolons.")
    auto_create_topic_enable: bool = option(
        "autoCreateTopicEnable", True, "Whether the first send to an unknown topic makes it."
    )
    default_topic_queue_nums: int = option(
        "defaultTopicQueueNums",
        8,
        "Queues of TBW102, the most an automatically made topic gets.",
        minimum=1,
        maximum=4096,
    )
    auto_create_subscription_group: bool = option(
        "autoCreateSubscriptionGroup", True, "Whether an unknown consumer group is made when it is first seen."
    )
    auto_create_per_account_max: int = option(
        "autoCreatePerAccountMax",
        1000,
        "Topics and consumer groups that an account may make like this from one start to the next; ours.",
        minimum=0,
        maximum=1_000_000,
    )
    broker_permission: int = option("brokerPermission", 6, "4 readable, 2 writable, 6 both.", minimum=0, maximum=7)
    region_id: str = option("regionId", "DefaultRegion", "Stored with each message as MSG_REGION.")
    trace_on: bool = option("traceOn", True, "Stored with each message as TRACE_ON.")
    trace_topic_enable: bool = option("traceTopicEnable", False, "Whether the trace topic exists from the start.")
    msg_trace_topic_name: str = option("msgTraceTopicName", TRACE_TOPIC, "Name of the trace topic made then.")
    cluster_topic_enable: bool = option(
        "clusterTopicEnable", True, "Whether the topic named after the cluster is usable."
    )
    broker_topic_enable: bool = option("brokerTopicEnable", True, "Whether the topic named after the broker is usable.")
    long_polling_enable: bool = option(
        "longPollingEnable", True, "Whether a pull that finds nothing waits for as long as its client allows."
    )
    short_polling_time_ms: int = option(
        "shortPollingTimeMills", 1000, "How long it waits otherwise.", unit="ms", minimum=1, maximum=600_000
    )
    lite_pull_message_enable: bool = option("litePullMessageEnable", True, "Whether request 361 is served.")
    transaction_timeout_ms: int = option(
        "transactionTimeOut",
        6000,
        "Age of a half message below which its producer is not asked, unless the message sets another one.",
        unit="ms",
        minimum=0,
        maximum=86_400_000,
    )
    transaction_check_max: int = option(
        "transactionCheckMax",
        15,
        "How often a producer is asked before its message is given up.",
        minimum=1,
        maximum=1000,
    )
    transaction_check_interval_ms: int = option(
        "transactionCheckInterval",
        30_000,
        "Time between two rounds of asking.",
        unit="ms",
        minimum=10,
        maximum=86_400_000,
    )
    transaction_op_batch_interval_ms: int = option(
        "transactionOpBatchInterval",
        100,
        "After an outcome until it is noted in the op topic, with all others of that time (RocketMQ: 3,000).",
        unit="ms",
        minimum=1,
        maximum=60_000,
    )
    reject_transaction_message: bool = option("rejectTransactionMessage", False, "Refuse transactional messages.")
    recall_message_enable: bool = option(
        "recallMessageEnable", False, "Whether producers may withdraw messages that wait for their time."
    )
    enable_property_filter: bool = option(
        "enablePropertyFilter", False, "Whether consumers may choose messages by SQL92 expressions over properties."
    )
    pop_from_retry_probability: int = option(
        "popFromRetryProbability",
        20,
        "Percentage of pops that look for messages to be tried again first; the others do when they have room.",
        minimum=0,
        maximum=100,
    )
    enable_retry_topic_v2: bool = option(
        "enableRetryTopicV2",
        False,
        "Whether popped messages to be tried again go to `%RETRY%group+topic`, not `%RETRY%group_topic`.",
    )
    revive_interval_ms: int = option(
        "reviveInterval",
        1000,
        "How often is looked for popped messages that nobody acknowledged.",
        unit="ms",
        minimum=10,
        maximum=60_000,
    )
    max_pop_polling_size: int = option(
        "maxPopPollingSize", 100_000, "How many pops may wait for a message.", minimum=1, maximum=10_000_000
    )
    pop_polling_size: int = option(
        "popPollingSize", 1024, "How many of one group for one queue.", minimum=1, maximum=10_000_000
    )
    default_message_request_mode: str = option(
        "defaultMessageRequestMode", "PULL", "How groups read for which nothing else was set.", choices=("PULL", "POP")
    )
    default_pop_share_queue_num: int = option(
        "defaultPopShareQueueNum",
        -1,
        "How many neighbours' queues a popping consumer gets beside its own; below 1: every consumer gets all queues.",
        minimum=-1,
        maximum=4096,
    )
    reject_pull_consumer_enable: bool = option("rejectPullConsumerEnable", False, "Refuse pulls of active consumers.")
    send_thread_pool_queue_capacity: int = option(
        "sendThreadPoolQueueCapacity",
        10_000,
        "How many reads' worth of sends may wait for the disk (RocketMQ: sends for a thread); the rest is refused.",
        minimum=1,
        maximum=1_000_000,
    )
    pull_thread_pool_queue_capacity: int = option(
        "pullThreadPoolQueueCapacity",
        100_000,
        "How many pulls may wait for a message (RocketMQ: for a thread); further ones are refused.",
        minimum=1,
        maximum=10_000_000,
    )
    admin_broker_thread_pool_queue_capacity: int = option(
        "adminBrokerThreadPoolQueueCapacity",
        10_000,
        "How many other requests may wait for something, a client's answer for example; further ones are refused.",
        minimum=1,
        maximum=1_000_000,
    )
    store_reply_message_enable: bool = option(
        "storeReplyMessageEnable", True, "Whether replies of request/reply are stored besides being delivered."
    )
    use_server_side_reset_offset: bool = option(
        "useServerSideResetOffset",
        True,
        "Whether a reset of a group's offsets is the broker's work; else its clients are told to do it.",
    )
    notify_consumer_ids_changed_enable: bool = option(
        "notifyConsumerIdsChangedEnable", True, "Whether members of a group are told when others come or go."
    )
    flush_consumer_offset_interval_ms: int = option(
        "flushConsumerOffsetInterval",
        5000,
        "How often consumer offsets are written.",
        unit="ms",
        minimum=10,
        maximum=600_000,
    )
    register_name_server_period_ms: int = option(
        "registerNameServerPeriod",
        30_000,
        "How often the broker registers anew; RocketMQ keeps to 10,000 to 60,000.",
        unit="ms",
        minimum=10_000,
        maximum=60_000,
    )
    register_broker_timeout_ms: int = option(
        "registerBrokerTimeoutMills",
        24_000,
        "How long one registration may take.",
        unit="ms",
        minimum=100,
        maximum=600_000,
    )
    enable_single_topic_register: bool = option(
        "enableSingleTopicRegister",
        False,
        "Whether a changed topic is registered alone (request 217), not with the broker's own registration.",
    )
    enable_split_registration: bool = option(
        "enableSplitRegistration", False, "Whether the registration of all topics goes in parts."
    )
    split_registration_size: int = option(
        "splitRegistrationSize", 800, "Topics in such a part.", minimum=1, maximum=1_000_000
    )
    cold_data_flow_control_enable: bool = option(
        "coldDataFlowControlEnable",
        False,
        "Whether groups that read much that is not in memory are slowed down.",
    )
    cg_cold_read_threshold: int = option(
        "cgColdReadThreshold",
        3 << 20,
        "What a group may read of it in 5 s, unless a request gave it another threshold.",
        unit="bytes",
        minimum=0,
        maximum=1 << 62,
    )
    global_cold_read_threshold: int = option(
        "globalColdReadThreshold",
        100 << 20,
        "What all groups may read of it in 5 s.",
        unit="bytes",
        minimum=0,
        maximum=1 << 62,
    )
    channel_expired_timeout_ms: int = option(
        "channelExpiredTimeout",
        120_000,
        "A client without a heartbeat for so long is forgotten.",
        unit="ms",
        minimum=1000,
        maximum=3_600_000,
    )
    connections_max: int = option(
        "connectionsMax", 8192, "Connections at a time; ours, RocketMQ has no limit.", minimum=1, maximum=1_000_000
    )
    connections_per_address_max: int = option(
        "connectionsPerAddressMax", 4096, "Connections at a time from one address; ours.", minimum=1, maximum=1_000_000
    )
    server_channel_max_idle_time_s: int = option(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "A silent connection is closed after it.",
        unit="s",
        minimum=1,
        maximum=86_400,
    )

    def __post_init__(self) -> None:
        checks = (self._check_names, self._check_addresses, self._check_access, self._check_credentials)
        check_options(self, self.check_tls, self._check_trust, *checks)

    def _check_trust(self) -> None:
        if self.use_tls and not (self.tls_client_trust_cert_path or self.tls_cert_path):
            raise ConfigError("tlsClientTrustCertPath", "", "a PEM file, with useTLS=true")

    def _check_names(self) -> None:
        # Consumers that allocate queues by machine room want brokers to be called room@name.
        for key, name, also in (
            ("brokerName", self.broker_name, "@"),
            ("brokerClusterName", self.broker_cluster_name, ""),
        ):
            if (
                not name
                or not all(c.isascii() and (c.isalnum() or c in "_-|%" + also) for c in name)
                or len(name) > 127
            ):
                raise ConfigError(key, name, "1 to 127 letters, digits, '_', '-', '|' or '%'" + (also and ", or '@'"))

    def _check_access(self) -> None:
        if self.acl_enable and self.authentication_enabled:
            raise ConfigError("authenticationEnabled", "true", "either this or aclEnable")
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError("authorizationEnabled", "true", "authenticationEnabled=true beside it")

    def _check_credentials(self) -> None:
        text = self.inner_client_authentication_credentials
        if text and credentials(text) is None:
            raise ConfigError(
                "innerClientAuthenticationCredentials", "******", '{"accessKey": "...", "secretKey": "..."}'
            )

    def _check_addresses(self) -> None:
        check_bind_address(self.bind_address, self.insecure or (self.guarded and self.tls_mode != "disabled"))
        if self.bind_address in ("0.0.0.0", "::") and not self.broker_ip1:
            raise ConfigError("brokerIP1", "", "the address clients reach this broker by, when it listens on all")
        for address in self.namesrv_addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError("namesrvAddr", self.namesrv_addr, "host:port, several separated by semicolons")

    @property
    def guarded(self) -> bool:
        """Whether requests must be signed."""
        return self.acl_enable or self.authentication_enabled

    @property
    def client_host(self) -> str:
        """The host that clients are told."""
        return self.broker_ip1 or self.bind_address

    @property
    def namesrv_addresses(self) -> list[str]:
        """The name servers, one by one."""
        return [address.strip() for address in self.namesrv_addr.split(";") if address.strip()]


def credentials(text: str) -> tuple[str, str] | None:
    """Access key and secret key of ``innerClientAuthenticationCredentials``; None when they are not both there."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict):
        return None
    access_key, secret_key = found.get("accessKey"), found.get("secretKey")
    if isinstance(access_key, str) and isinstance(secret_key, str) and access_key and secret_key:
        return access_key, secret_key
    return None


def broker_options(values: Mapping[str, str]) -> tuple[BrokerConfig, MessageStoreConfig]:
    """Both sets of options from one table of texts, a ``broker.conf`` for example.

    Keys that RocketMQ knows and this broker does not act on are logged, all together.

    Raises:
        ConfigError: a value is not allowed, or a key is unknown to RocketMQ and to this broker. ``OptionsError`` when
            there are several such entries, each named.
    """
    problems = ConfigProblems()
    with problems:
        values = _in_todays_words(values)
    not_ours = unknown_keys(values, BrokerConfig, MessageStoreConfig)
    for key in not_ours:
        if key not in REFERENCE_KEYS:
            problems.add(ConfigError(key, values[key], "a key of RocketMQ's broker.conf; this one is known to nobody"))
    if "true" in (values.get("aclEnable", "").strip(), values.get("authenticationEnabled", "").strip()):
        # With access control nobody makes a name merely by asking for it.
        values = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false", **values}
    with problems:
        broker_config = parse_options(BrokerConfig, values)
    with problems:
        store_config = parse_options(MessageStoreConfig, values)
    problems.report()
    idle_keys = not_ours + ["brokerRole"] * (broker_config.broker_role == "SYNC_MASTER")
    if idle_keys:
        event(_log, logging.WARNING, "options of RocketMQ without effect here", meaning=without_effect(idle_keys))
    return broker_config, store_config


def _in_todays_words(values: Mapping[str, str]) -> dict[str, str]:
    """``values`` with keys that RocketMQ 4.x spelled otherwise under today's names.

    Raises:
        ConfigError: both spellings are there and differ.
    """
    renamed = {key: text for key, text in values.items() if key not in FORMER_KEYS}
    for former, key in FORMER_KEYS.items():
        if former in values and values[former] != renamed.setdefault(key, values[former]):
            raise ConfigError(
                former, values[former], f"the value of {key}, {values[key]}, or one of the two keys alone"
            )
    return renamed
