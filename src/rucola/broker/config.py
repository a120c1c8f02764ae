"""Options of the broker, with RocketMQ's keys (``BrokerConfig``, ``NettyServerConfig``), and ``broker.conf``.

A key that RocketMQ knows and this broker does not is reported once and otherwise ignored. A key that is unknown to both
prevents start-up: a misspelt key must not silently leave its option at the default.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from rucola.broker.ha.acting_config import ActingConfig
from rucola.broker.lite.config import LiteConfig
from rucola.broker.lite.delivery_config import LiteDeliveryConfig
from rucola.broker.reference_keys import REFERENCE_KEYS, without_effect
from rucola.common.hosts import check_bind_address, is_loopback, join_address, split_address
from rucola.common.java import parse_boolean
from rucola.common.json_library import orjson
from rucola.common.key_builder import TRACE_TOPIC
from rucola.common.lite_door_config import LiteDoorConfig
from rucola.common.options import ConfigProblems, check_options, option, parse_options, unknown_keys
from rucola.common.tls_config import TlsConfig
from rucola.errors import ConfigError
from rucola.runtime.logs import event
from rucola.store.config import MessageStoreConfig, in_todays_words

logger = logging.getLogger(__name__)
SLAVE = "SLAVE"


@dataclass(frozen=True)
class BrokerConfig(ActingConfig, LiteConfig, LiteDeliveryConfig, LiteDoorConfig, TlsConfig):
    """The options; each field has its own description. An invalid option raises ``ConfigError``, which names the key,
    the value and what is allowed.
    """

    use_tls: bool = option("useTLS", False, "Whether the broker connects to name servers and its master over TLS.")
    tls_client_trust_cert_path: str = option(
        "tlsClientTrustCertPath",
        "",
        "PEM file with the authorities that may sign certificates of name servers and of the master. Empty: they must "
        "have the certificate in `tlsCertPath`.",
    )
    broker_name: str = option("brokerName", "broker-a", "Name of the broker.")
    broker_cluster_name: str = option("brokerClusterName", "DefaultCluster", "Cluster the broker belongs to.")
    broker_id: int = option(
        "brokerId",
        0,
        "Number of the broker among those of its name: 0 for the master, 1 or more for a slave.",
        minimum=0,
        maximum=(1 << 31) - 1,
    )
    broker_role: str = option(
        "brokerRole",
        "ASYNC_MASTER",
        "With `SYNC_MASTER`, a message is acknowledged when `inSyncReplicas` brokers have it. With `SLAVE`, the broker "
        "copies the master of its name, and serves reads. In a `broker.conf`, each value also opens the port for "
        "slaves (`haListenPort`).",
        choices=("ASYNC_MASTER", "SYNC_MASTER", SLAVE),
    )
    ha_master_address: str = option(
        "haMasterAddress",
        "",
        "With `brokerRole=SLAVE`: the master's port for slaves, `host:port`. Empty: name servers tell it.",
    )
    master_broker_address: str = option(
        "masterBrokerAddress",
        "",
        "With `brokerRole=SLAVE`: the master's port for clients, `host:port`, which the slave asks for topics, groups "
        "and offsets. Empty: name servers tell it. Rucola's own.",
    )
    slave_read_enable: bool = option(
        "slaveReadEnable",
        False,
        "On a slave: whether it serves pulls. On a master: whether it sends consumers that lag far behind to a slave, "
        "as their group says (`whichBrokerWhenConsumeSlowly`).",
    )
    offset_check_in_slave: bool = option(
        "offsetCheckInSlave",
        False,
        "On a slave: whether a pull at an offset outside of the queue goes on at the nearer end. Otherwise it goes on "
        "at the same offset, because the slave may lag.",
    )
    bind_address: str = option(
        "bindAddress",
        "127.0.0.1",
        "Address to listen on. An address other than loopback needs access control and TLS, or `insecure=true`. "
        "RocketMQ listens on all addresses.",
    )
    insecure: bool = option(
        "insecure",
        False,
        "Whether the broker may listen without access control and TLS on an address that others can reach. "
        "Rucola's own.",
    )
    acl_enable: bool = option(
        "aclEnable",
        False,
        "Whether every request must be signed by an account of `conf/plain_acl.yml` or `conf/acl/` that has "
        "permission for the request.",
    )
    rocketmq_home: str = option(
        "rocketmqHome", "", "Directory that contains `conf/plain_acl.yml` and `conf/acl/`. Empty: the store directory."
    )
    authentication_enabled: bool = option(
        "authenticationEnabled",
        False,
        "Whether every request must be signed by a user (ACL 2.0). Not together with `aclEnable`.",
    )
    authorization_enabled: bool = option(
        "authorizationEnabled", False, "Whether users may do only what rules allow. Needs `authenticationEnabled`."
    )
    init_authentication_user: str = option(
        "initAuthenticationUser",
        "",
        'A super user that is created at start-up if it does not exist: `{"username": "...", "password": "..."}`.',
        secret=True,
    )
    inner_client_authentication_credentials: str = option(
        "innerClientAuthenticationCredentials",
        "",
        "The account with which the broker signs its requests to name servers and to its master: "
        '`{"accessKey": "...", "secretKey": "..."}`. With access control, the broker accepts requests of this account, '
        "as those of an administrator.",
        secret=True,
    )
    acl_require_v2: bool = option(
        "aclRequireSignatureV2",
        False,
        "Whether the broker refuses signatures that can be replayed, and thus all of RocketMQ's clients. Rucola's own.",
    )
    acl_signed_addresses: str = option(
        "aclSignedAddresses",
        "",
        "Further addresses `host:port`, separated by commas, under which clients reach the broker, for example through "
        "another name or a NAT. A signature of version 2 names the address that its client asked for. Rucola's own.",
    )
    broker_ip1: str = option(
        "brokerIP1",
        "",
        "IP address that clients are told. Empty: `bindAddress`. Needed if the broker listens on all addresses.",
    )
    listen_port: int = option("listenPort", 10911, "Port to listen on; 0 for any free port.", minimum=0, maximum=65535)
    ha_listen_port: int = option(
        "haListenPort",
        -1,
        "Port for slaves; 0 for the one after `listenPort`, -1 for none. RocketMQ always listens.",
        minimum=-1,
        maximum=65535,
    )
    ha_allowed_slaves: str = option(
        "haAllowedSlaves",
        "",
        "Addresses or networks that may copy the log, separated by commas. Others than these and loopback need a "
        "certificate (`haTlsMode`) or `insecure=true`. Rucola's own.",
    )
    in_sync_replicas: int = option(
        "inSyncReplicas",
        0,
        "With `SYNC_MASTER`: number of brokers that must have a message before it is acknowledged, this one included. "
        "0 means 2. In RocketMQ 1, with which nobody waits.",
        minimum=0,
        maximum=64,
    )
    min_in_sync_replicas: int = option(
        "minInSyncReplicas",
        1,
        "With `SYNC_MASTER`: number of brokers that must be in sync before a message is stored, this one included; "
        "otherwise it is refused. 1 refuses none. RocketMQ obeys it only with a controller, or as least of "
        "`enableAutoInSyncReplicas`.",
        minimum=1,
        maximum=64,
    )
    ha_tls_mode: str = option(
        "haTlsMode",
        "disabled",
        "Whether the port for slaves takes TLS (`enforcing`), plain connections (`disabled`) or both (`permissive`). "
        "With TLS, slaves must show a certificate; a slave with `enforcing` shows its own to its master. Rucola's own.",
        choices=("disabled", "permissive", "enforcing"),
    )
    ha_tls_trust_cert_path: str = option(
        "haTlsTrustCertPath",
        "",
        "PEM file with the authorities that sign certificates of slaves: whoever has one may copy the log, from any "
        "address. Rucola's own.",
    )
    slave_timeout_ms: int = option(
        "slaveTimeout",
        3000,
        "Longest wait for slaves; the sender is then told FLUSH_SLAVE_TIMEOUT.",
        unit="ms",
        minimum=1,
    )
    grpc_server_port: int = option(
        "grpcServerPort",
        -1,
        "Port for clients of RocketMQ 5; 0 for any free port, -1 for none. Without this option, `rucola up` takes 8081 "
        "if it is free. In RocketMQ an option of the proxy, by default 8081.",
        minimum=-1,
        maximum=65535,
    )
    grpc_advertised_address: str = option(
        "grpcAdvertisedAddress",
        "",
        "Address `host:port` of the gRPC port that routes name. Empty: the address that the client itself has used. "
        "Rucola's own.",
    )
    grpc_tls_dir: str = option(
        "grpcTlsDir",
        "",
        "Directory in which the gRPC port keeps a certificate that signs itself, so that clients may pin it. Empty: "
        "each start makes another one, whose key is in memory. Rucola's own.",
    )
    namesrv_addr: str = option("namesrvAddr", "", "Name servers as `host:port`, separated by semicolons.")
    auto_create_topic_enable: bool = option(
        "autoCreateTopicEnable",
        True,
        "Whether the first message to an unknown topic creates it. With access control the default is `false`.",
    )
    default_topic_queue_nums: int = option(
        "defaultTopicQueueNums",
        8,
        "Number of queues of the topic TBW102. A topic that is created automatically from TBW102 gets at most this "
        "number of queues.",
        minimum=1,
        maximum=4096,
    )
    auto_create_subscription_group: bool = option(
        "autoCreateSubscriptionGroup",
        True,
        "Whether the first request of an unknown consumer group creates it. With access control the default is "
        "`false`.",
    )
    auto_create_per_account_max: int = option(
        "autoCreatePerAccountMax",
        1000,
        "Number of topics and groups that the broker creates automatically for one account. A restart of the broker "
        "resets the count. Rucola's own.",
        minimum=0,
        maximum=1_000_000,
    )
    broker_permission: int = option(
        "brokerPermission", 6, "Permission of the broker: 4 to read, 2 to write, 6 for both.", minimum=0, maximum=7
    )
    region_id: str = option(
        "regionId", "DefaultRegion", "Value of the property MSG_REGION that the broker adds to each message."
    )
    trace_on: bool = option("traceOn", True, "Value of the property TRACE_ON that the broker adds to each message.")
    trace_topic_enable: bool = option("traceTopicEnable", False, "Whether the trace topic is created at start-up.")
    msg_trace_topic_name: str = option(
        "msgTraceTopicName", TRACE_TOPIC, "Name of the trace topic that is created at start-up."
    )
    cluster_topic_enable: bool = option(
        "clusterTopicEnable", True, "Whether clients may use the topic that is named after the cluster."
    )
    broker_topic_enable: bool = option(
        "brokerTopicEnable", True, "Whether clients may use the topic that is named after the broker."
    )
    long_polling_enable: bool = option(
        "longPollingEnable", True, "Whether a pull that finds no message waits as long as its client allows."
    )
    short_polling_time_ms: int = option(
        "shortPollingTimeMills",
        1000,
        "How long a pull that finds no message waits if `longPollingEnable` is false.",
        unit="ms",
        minimum=1,
        maximum=600_000,
    )
    lite_pull_message_enable: bool = option(
        "litePullMessageEnable", True, "Whether the broker serves lite pulls (request 361)."
    )
    transaction_timeout_ms: int = option(
        "transactionTimeOut",
        6000,
        "Age at which the broker begins to ask for the outcome of a half message, unless the message names "
        "another age.",
        unit="ms",
        minimum=0,
        maximum=86_400_000,
    )
    transaction_check_max: int = option(
        "transactionCheckMax",
        15,
        "Number of times that the broker asks for the outcome of a half message before it gives the message up.",
        minimum=1,
        maximum=1000,
    )
    transaction_check_interval_ms: int = option(
        "transactionCheckInterval",
        30_000,
        "Pause between two rounds of transaction checks.",
        unit="ms",
        minimum=10,
        maximum=86_400_000,
    )
    transaction_op_batch_interval_ms: int = option(
        "transactionOpBatchInterval",
        100,
        "How long outcomes of transactions are collected before one message in the op topic records them. "
        "RocketMQ's default is 3,000.",
        unit="ms",
        minimum=1,
        maximum=60_000,
    )
    reject_transaction_message: bool = option(
        "rejectTransactionMessage", False, "Whether transactional messages are refused."
    )
    recall_message_enable: bool = option(
        "recallMessageEnable", False, "Whether producers may recall messages that wait for their delivery time."
    )
    enable_mixed_message_type: bool = option(
        "enableMixedMessageType",
        False,
        "Whether topics may be created with the attribute `message.type=MIXED`, for messages of every kind.",
    )
    enable_property_filter: bool = option(
        "enablePropertyFilter", False, "Whether consumers may filter by SQL92 expressions over message properties."
    )
    pop_from_retry_probability: int = option(
        "popFromRetryProbability",
        20,
        "Percentage of pops that read the retry topic first. The other pops read it last.",
        minimum=0,
        maximum=100,
    )
    pop_from_retry_probability_for_priority: int = option(
        "popFromRetryProbabilityForPriority",
        0,
        "The same for pops that read the queues of a priority topic in the order of priority.",
        minimum=0,
        maximum=100,
    )
    priority_order_asc: bool = option(
        "priorityOrderAsc",
        True,
        "Whether pops of a priority topic read the queue with the highest id first; otherwise queue 0.",
    )
    enable_retry_topic_v2: bool = option(
        "enableRetryTopicV2",
        False,
        "Whether popped messages are retried in `%RETRY%group+topic` instead of `%RETRY%group_topic`.",
    )
    revive_interval_ms: int = option(
        "reviveInterval",
        1000,
        "Pause between two searches for popped messages that nobody acknowledged in time.",
        unit="ms",
        minimum=10,
        maximum=60_000,
    )
    max_pop_polling_size: int = option(
        "maxPopPollingSize",
        100_000,
        "Number of requests that may wait for a message: pops, and requests that only ask whether there is one.",
        minimum=1,
        maximum=10_000_000,
    )
    pop_polling_size: int = option(
        "popPollingSize",
        1024,
        "If more than this number of a group's pops wait for a queue, further pops of the group do not wait for this "
        "queue. The same limit applies, separately, to requests that only ask whether there is a message.",
        minimum=1,
        maximum=10_000_000,
    )
    default_message_request_mode: str = option(
        "defaultMessageRequestMode",
        "PULL",
        "How a group reads a topic if no mode was set for this group and topic.",
        choices=("PULL", "POP"),
    )
    default_pop_share_queue_num: int = option(
        "defaultPopShareQueueNum",
        -1,
        "Number of other consumers whose queues a popping consumer reads in addition to its own. If below 1, every "
        "consumer reads all queues.",
        minimum=-1,
        maximum=4096,
    )
    reject_pull_consumer_enable: bool = option(
        "rejectPullConsumerEnable",
        False,
        "Whether the broker refuses the pulls of pull consumers and lite pull consumers (CONSUME_ACTIVELY).",
    )
    send_thread_pool_queue_capacity: int = option(
        "sendThreadPoolQueueCapacity",
        10_000,
        "Number of sends that may wait for the disk; sends that arrive together count as one. The broker refuses "
        "further sends. In RocketMQ: sends that wait for a thread.",
        minimum=1,
        maximum=1_000_000,
    )
    pull_thread_pool_queue_capacity: int = option(
        "pullThreadPoolQueueCapacity",
        100_000,
        "Number of pulls that may wait for a message; the broker refuses further pulls. In RocketMQ: pulls that "
        "wait for a thread.",
        minimum=1,
        maximum=10_000_000,
    )
    admin_broker_thread_pool_queue_capacity: int = option(
        "adminBrokerThreadPoolQueueCapacity",
        10_000,
        "Number of requests other than sends and pulls that may wait, for example for an answer from a client; the "
        "broker refuses further requests.",
        minimum=1,
        maximum=1_000_000,
    )
    store_reply_message_enable: bool = option(
        "storeReplyMessageEnable", True, "Whether the broker stores replies (request/reply) as well as delivering them."
    )
    use_server_side_reset_offset: bool = option(
        "useServerSideResetOffset",
        True,
        "Whether the broker resets the offsets of a group itself. Otherwise the broker tells the consumers to reset "
        "them.",
    )
    notify_consumer_ids_changed_enable: bool = option(
        "notifyConsumerIdsChangedEnable",
        True,
        "Whether the broker tells the members of a group when another member joins or leaves.",
    )
    flush_consumer_offset_interval_ms: int = option(
        "flushConsumerOffsetInterval",
        5000,
        "Pause between two writes of consumer offsets.",
        unit="ms",
        minimum=10,
        maximum=600_000,
    )
    register_name_server_period_ms: int = option(
        "registerNameServerPeriod",
        30_000,
        "Pause between two registrations with the name servers.",
        unit="ms",
        minimum=10_000,
        maximum=60_000,
    )
    register_broker_timeout_ms: int = option(
        "registerBrokerTimeoutMills",
        24_000,
        "Time limit of one registration.",
        unit="ms",
        minimum=100,
        maximum=600_000,
    )
    enable_single_topic_register: bool = option(
        "enableSingleTopicRegister",
        False,
        "Whether the broker registers a changed topic alone (request 217) instead of all topics.",
    )
    enable_split_registration: bool = option(
        "enableSplitRegistration", False, "Whether the broker registers its topics in several requests."
    )
    split_registration_size: int = option(
        "splitRegistrationSize",
        800,
        "Number of topics in one registration request if `enableSplitRegistration` is true.",
        minimum=1,
        maximum=1_000_000,
    )
    cold_data_flow_control_enable: bool = option(
        "coldDataFlowControlEnable",
        False,
        "Whether the broker slows down groups that read many messages from the disk.",
    )
    cg_cold_read_threshold: int = option(
        "cgColdReadThreshold",
        3 << 20,
        "Bytes that one group may read from the disk in 5 s, unless a request has set another threshold for it.",
        unit="bytes",
        minimum=0,
        maximum=1 << 62,
    )
    global_cold_read_threshold: int = option(
        "globalColdReadThreshold",
        100 << 20,
        "Bytes that all groups together may read from the disk in 5 s.",
        unit="bytes",
        minimum=0,
        maximum=1 << 62,
    )
    channel_expired_timeout_ms: int = option(
        "channelExpiredTimeout",
        120_000,
        "Time without a heartbeat after which the broker forgets a client.",
        unit="ms",
        minimum=1000,
        maximum=3_600_000,
    )
    connections_max: int = option(
        "connectionsMax",
        8192,
        "Maximum number of open connections. RocketMQ does not have this option or this limit.",
        minimum=1,
        maximum=1_000_000,
    )
    connections_per_address_max: int = option(
        "connectionsPerAddressMax",
        4096,
        "Maximum number of open connections from one address. Rucola's own.",
        minimum=1,
        maximum=1_000_000,
    )
    unsent_bytes_max: int = option(
        "unsentBytesMax",
        128 << 20,
        "Maximum size of the responses that clients have not read yet, for all connections together. Above this "
        "limit, the connections with the most unread bytes are closed. Rucola's own.",
        unit="bytes",
        minimum=16 << 20,
        maximum=1 << 40,
    )
    server_channel_max_idle_time_s: int = option(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "Time after which the broker closes a silent connection.",
        unit="s",
        minimum=1,
        maximum=86_400,
    )

    def __post_init__(self) -> None:
        checks = (self._check_names, self._check_addresses, self._check_access, self._check_credentials)
        check_options(self, self.check_tls, self._check_trust, self._check_ha_tls, self._check_role, *checks)

    def _check_trust(self) -> None:
        if self.use_tls and not (self.tls_client_trust_cert_path or self.tls_cert_path):
            raise ConfigError("tlsClientTrustCertPath", "", "a PEM file here or in tlsCertPath, because useTLS=true")

    def _check_ha_tls(self) -> None:
        if self.ha_tls_mode == "disabled":
            return
        for key, path in (
            ("tlsCertPath", self.tls_cert_path),
            ("tlsKeyPath", self.tls_key_path),
            ("haTlsTrustCertPath", self.ha_tls_trust_cert_path),
        ):
            if not path:
                raise ConfigError(key, "", f"a PEM file, because haTlsMode={self.ha_tls_mode}")

    def _check_names(self) -> None:
        # Consumers that allocate queues by machine room need broker names of the form room@name.
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
            raise ConfigError("authorizationEnabled", "true", "only together with authenticationEnabled=true")

    def _check_credentials(self) -> None:
        text = self.inner_client_authentication_credentials
        if text and credentials(text) is None:
            raise ConfigError(
                "innerClientAuthenticationCredentials", "******", '{"accessKey": "...", "secretKey": "..."}'
            )

    def _check_role(self) -> None:
        self.check_acting()
        if self.is_slave and not self.broker_id:
            raise ConfigError("brokerId", "0", "1 or more with brokerRole=SLAVE; 0 is the master")
        if self.broker_id and not self.is_slave:
            raise ConfigError("brokerId", str(self.broker_id), f"0 with brokerRole={self.broker_role}, or with SLAVE")
        if self.is_slave and self.grpc_server_port >= 0:
            raise ConfigError(
                "grpcServerPort", str(self.grpc_server_port), "-1 with brokerRole=SLAVE: it serves no POP"
            )
        for key, address in (
            ("haMasterAddress", self.ha_master_address),
            ("masterBrokerAddress", self.master_broker_address),
        ):
            try:
                if address:
                    split_address(address)
            except ValueError:
                raise ConfigError(key, address, "host:port") from None
        if self.is_slave and not self.namesrv_addr and not (self.ha_master_address and self.master_broker_address):
            raise ConfigError(
                "namesrvAddr",
                "",
                "name servers (here or as --namesrv) that tell the master; or haMasterAddress and masterBrokerAddress",
            )
        if self.is_slave and self.enable_slave_acting_master and not self.namesrv_addr:
            raise ConfigError("namesrvAddr", "", "name servers: with enableSlaveActingMaster=true, they say who lives")

    def _check_addresses(self) -> None:
        check_bind_address(self.bind_address, self.insecure or (self.guarded and self.tls_mode != "disabled"))
        if self.bind_address in ("0.0.0.0", "::") and not self.broker_ip1:
            raise ConfigError(
                "brokerIP1", "", "the address at which clients reach this broker, if it listens on all addresses"
            )
        if self.grpc_advertised_address:
            try:
                split_address(self.grpc_advertised_address)
            except ValueError:
                raise ConfigError("grpcAdvertisedAddress", self.grpc_advertised_address, "host:port") from None
        for address in self.namesrv_addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError("namesrvAddr", self.namesrv_addr, "host:port, several separated by semicolons")

    @property
    def guarded(self) -> bool:
        """Whether requests must be signed."""
        return self.acl_enable or self.authentication_enabled

    @property
    def is_slave(self) -> bool:
        """Whether the broker copies a master."""
        return self.broker_role == SLAVE

    @property
    def client_host(self) -> str:
        """The host that clients are given."""
        return self.broker_ip1 or self.bind_address

    @property
    def feeds_slaves(self) -> bool:
        """Whether the broker listens for slaves."""
        return self.ha_listen_port >= 0 or self.broker_role == "SYNC_MASTER"

    @property
    def ha_port(self) -> int:
        """Port for slaves; 0 for any free port."""
        if self.ha_listen_port > 0:
            return self.ha_listen_port
        return self.listen_port + 1 if self.listen_port else 0

    @property
    def replicas_needed(self) -> int:
        """Number of brokers that must have a message before it is acknowledged, this one included."""
        return (self.in_sync_replicas or 2) if self.broker_role == "SYNC_MASTER" else 1

    @property
    def replicas_least(self) -> int:
        """Number of brokers that must be in sync before a message is stored, this one included."""
        if self.broker_role != "SYNC_MASTER":
            return 1
        if self.enable_slave_acting_master and not self.enable_auto_in_sync_replicas:
            return max(self.replicas_needed, self.min_in_sync_replicas)
        return self.min_in_sync_replicas

    @property
    def replicas_adapt(self) -> bool:
        """Whether a message waits for fewer brokers while fewer are in sync."""
        return self.enable_slave_acting_master and self.enable_auto_in_sync_replicas

    @property
    def namesrv_addresses(self) -> list[str]:
        """The addresses of the name servers."""
        return [address.strip() for address in self.namesrv_addr.split(";") if address.strip()]


def credentials(text: str) -> tuple[str, str] | None:
    """Access key and secret key of ``innerClientAuthenticationCredentials``; None unless both are there."""
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
    """Returns the options of the broker and those of the store, read from one table of texts such as a ``broker.conf``.

    Keys that RocketMQ knows but this broker ignores are logged in one message.

    Raises:
        ConfigError: a value is not allowed, or neither RocketMQ nor this broker knows a key. ``OptionsError`` if there
            are several such entries; the error names all of them.
    """
    problems = ConfigProblems()
    with problems:
        values = in_todays_words(values)
    not_ours = unknown_keys(values, BrokerConfig, MessageStoreConfig)
    for key in not_ours:
        if key not in REFERENCE_KEYS:
            problems.add(ConfigError(key, values[key], "only keys of this broker or of RocketMQ's broker.conf"))
    if parse_boolean(values.get("enableControllerMode", "").strip()):
        # Without an effect, each broker of a group would be a master.
        problems.add(ConfigError("enableControllerMode", "true", "false: only RocketMQ's brokers have controller mode"))
    if parse_boolean(values.get("aclEnable", "").strip()) or parse_boolean(
        values.get("authenticationEnabled", "").strip()
    ):
        # With access control, topics and groups are not created automatically unless the options demand it.
        values = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false", **values}
    if "brokerRole" in values:
        values = {"haListenPort": "0", **values}
    with problems:
        broker_config = parse_options(BrokerConfig, values)
    with problems:
        store_config = parse_options(MessageStoreConfig, values)
    problems.report()
    if not_ours:
        event(logger, logging.WARNING, "options of RocketMQ without effect here", meaning=without_effect(not_ours))
    if broker_config.broker_role == "SYNC_MASTER" and not broker_config.in_sync_replicas:
        event(logger, logging.WARNING, "SYNC_MASTER waits for one slave", change_with="inSyncReplicas")
    if _is_loopback(broker_config.bind_address) and not _is_loopback(broker_config.client_host):
        # A broker.conf for RocketMQ often sets brokerIP1 but not bindAddress, because RocketMQ listens on all addresses
        # by default.
        event(
            logger,
            logging.WARNING,
            "clients are told an address on which the broker does not listen",
            brokerIP1=broker_config.broker_ip1,
            bindAddress=broker_config.bind_address,
        )
    return broker_config, store_config


def _is_loopback(host: str) -> bool:
    return is_loopback(join_address(host, 0))
