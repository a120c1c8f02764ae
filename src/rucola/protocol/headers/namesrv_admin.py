"""Headers of administrators' requests to name servers (``protocol.md`` 2.1)."""

from __future__ import annotations

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int


@late_dataclass
class BrokerNameRequestHeader(CommandHeader):
    """Requests 205 (WIPE_WRITE_PERM_OF_BROKER) and 327 (ADD_WRITE_PERM_OF_BROKER)."""

    broker_name: str


@late_dataclass
class WipeWritePermResponseHeader(CommandHeader):
    """Response to 205 (WIPE_WRITE_PERM_OF_BROKER)."""

    wipe_topic_count: Int


@late_dataclass
class AddWritePermResponseHeader(CommandHeader):
    """Response to 327 (ADD_WRITE_PERM_OF_BROKER)."""

    add_topic_count: Int


@late_dataclass
class GetTopicsByClusterRequestHeader(CommandHeader):
    """Request 224 (GET_TOPICS_BY_CLUSTER)."""

    cluster: str


@late_dataclass
class DeleteTopicFromNamesrvRequestHeader(CommandHeader):
    """Request 216 (DELETE_TOPIC_IN_NAMESRV)."""

    topic: str
    cluster_name: str | None = None


@late_dataclass
class RegisterTopicRequestHeader(CommandHeader):
    """Request 217 (REGISTER_TOPIC_IN_NAMESRV)."""

    topic: str


@late_dataclass
class KVConfigRequestHeader(CommandHeader):
    """Requests 100 (PUT_KV_CONFIG), 101 (GET_KV_CONFIG) and 102 (DELETE_KV_CONFIG). All fields are optional here,
    because the name server itself refuses requests that lack a necessary field.
    """

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


@late_dataclass
class GetKVConfigResponseHeader(CommandHeader):
    """Response to 101 (GET_KV_CONFIG)."""

    value: str | None = None


@late_dataclass
class GetKVListRequestHeader(CommandHeader):
    """Request 219 (GET_KVLIST_BY_NAMESPACE)."""

    namespace: str
