"""Typed calls for administration, one per request code; same conventions as in ``api``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rucola.common.java import format_properties, parse_properties
from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import FormatError
from rucola.protocol import fastjson
from rucola.protocol.bodies.configs import (
    CreateTopicListRequestBody,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from rucola.protocol.bodies.connections import ConsumerConnection, ProducerConnection, ProducerTableInfo
from rucola.protocol.bodies.consumer_running import ConsumeMessageDirectlyResult
from rucola.protocol.bodies.ha import HARuntimeInfo
from rucola.protocol.bodies.kv_table import KVTable
from rucola.protocol.bodies.lite import (
    GetBrokerLiteInfoResponseBody,
    GetLiteClientInfoResponseBody,
    GetLiteGroupInfoResponseBody,
    GetLiteTopicInfoResponseBody,
    GetParentTopicInfoResponseBody,
    LiteTopicListBody,
)
from rucola.protocol.bodies.offsets import ResetOffsetBody
from rucola.protocol.bodies.pop import SetMessageRequestModeRequestBody
from rucola.protocol.bodies.registration import TopicConfigSerializeWrapper
from rucola.protocol.bodies.statistics import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeQueueResponseBody,
    TopicStatsTable,
)
from rucola.protocol.bodies.topic_list import GroupList, TopicList
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers import admin as headers
from rucola.protocol.headers import lite as lite_headers
from rucola.protocol.headers import namesrv_admin as namesrv_headers
from rucola.protocol.headers.header import CommandHeader
from rucola.protocol.headers.offset import ResetOffsetRequestHeader
from rucola.protocol.headers.transaction import ResumeCheckHalfMessageRequestHeader
from rucola.remoting.api import RemotingApi

TIMEOUT_MS = 10_000
_ABSENT = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class AdminApi(RemotingApi):
    """The calls; stateless apart from the client."""

    # topics

    async def topic_config(self, address: str, topic: str, timeout_ms: int = TIMEOUT_MS) -> TopicConfig:
        """GET_TOPIC_CONFIG (351); raises ``BrokerError`` 17 for an unknown topic."""
        header = headers.TopicRequestHeader(topic)
        answer = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, header, timeout_ms=timeout_ms)
        try:
            return TopicConfig.from_dict(fastjson.load_object(answer.body, "TopicConfig"))
        except (TypeError, ValueError) as error:
            raise FormatError("TopicConfig", 0, "members of the declared types", str(error)[:200]) from error

    async def system_topics(self, address: str) -> list[str]:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        answer = await self._ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return TopicList.decode(answer.body).topic_list

    async def change_topics(self, address: str, configs: Sequence[TopicConfig]) -> None:
        """UPDATE_AND_CREATE_TOPIC_LIST (18)."""
        body = CreateTopicListRequestBody(list(configs)).encode()
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)

    async def all_topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """GET_ALL_TOPIC_CONFIG (21)."""
        answer = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return TopicConfigSerializeWrapper.decode(answer.body).topic_config_table

    async def change_topic(
        self, address: str, config: TopicConfig, attributes: str = "", timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """UPDATE_AND_CREATE_TOPIC (17). ``attributes``: ``+key=value,-key``, instead of the attributes of
        ``config``.
        """
        header = headers.CreateTopicRequestHeader(
            config.topic_name,
            "TBW102",
            config.read_queue_nums,
            config.write_queue_nums,
            int(config.perm),
            config.topic_filter_type.value,
            config.topic_sys_flag,
            config.order,
            attributes,
        )
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_ms=timeout_ms)

    async def delete_topic(self, address: str, topic: str) -> None:
        """DELETE_TOPIC_IN_BROKER (215)."""
        await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, headers.DeleteTopicRequestHeader(topic))

    async def topic_stats(self, address: str, topic: str) -> TopicStatsTable:
        """GET_TOPIC_STATS_INFO (202)."""
        answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, headers.TopicRequestHeader(topic))
        return TopicStatsTable.decode(answer.body)

    # groups

    async def group_config(self, address: str, group: str, timeout_ms: int = TIMEOUT_MS) -> SubscriptionGroupConfig:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352); raises ``BrokerError`` 26 for an unknown group that clients may not
        create.
        """
        header = headers.GroupRequestHeader(group)
        answer = await self._ask(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header, timeout_ms=timeout_ms)
        try:
            return SubscriptionGroupConfig.from_dict(fastjson.load_object(answer.body, "SubscriptionGroupConfig"))
        except (TypeError, ValueError) as error:
            raise FormatError(
                "SubscriptionGroupConfig", 0, "members of the declared types", str(error)[:200]
            ) from error

    async def all_groups(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
        answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return SubscriptionGroupWrapper.decode(answer.body).subscription_group_table

    async def change_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        body = fastjson.dumps(config.to_dict())
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def change_groups(self, address: str, configs: Sequence[SubscriptionGroupConfig]) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""
        body = SubscriptionGroupList(list(configs)).encode()
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)

    async def set_request_mode(self, address: str, body: SetMessageRequestModeRequestBody) -> None:
        """SET_MESSAGE_REQUEST_MODE (401)."""
        await self._ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.encode())

    async def delete_group(self, address: str, group: str, clean_offset: bool) -> None:
        """DELETE_SUBSCRIPTIONGROUP (207)."""
        header = headers.DeleteSubscriptionGroupRequestHeader(group, clean_offset)
        await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def groups_of_topic(self, address: str, topic: str) -> list[str]:
        """QUERY_TOPIC_CONSUME_BY_WHO (300)."""
        answer = await self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, headers.TopicRequestHeader(topic))
        return GroupList.decode(answer.body).group_list

    async def consume_stats(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """GET_CONSUME_STATS (208)."""
        header = headers.GetConsumeStatsRequestHeader(group, topic)
        return ConsumeStats.decode((await self._ask(address, RequestCode.GET_CONSUME_STATS, header)).body)

    async def all_consume_stats(self, address: str, ordered_only: bool) -> ConsumeStatsList:
        """GET_BROKER_CONSUME_STATS (317)."""
        header = headers.GetConsumeStatsInBrokerHeader(ordered_only)
        return ConsumeStatsList.decode((await self._ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header)).body)

    async def reset_offset(self, address: str, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): the new offsets."""
        answer = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return ResetOffsetBody.decode(answer.body).offset_table if answer.body else {}

    # lite topics

    async def broker_lite_info(self, address: str) -> GetBrokerLiteInfoResponseBody:
        """GET_BROKER_LITE_INFO (200074)."""
        return GetBrokerLiteInfoResponseBody.decode((await self._ask(address, RequestCode.GET_BROKER_LITE_INFO)).body)

    async def parent_topic_info(self, address: str, topic: str) -> GetParentTopicInfoResponseBody:
        """GET_PARENT_TOPIC_INFO (200075); raises ``BrokerError`` 17 for an unknown topic, 29 for one without lite
        topics.
        """
        header = lite_headers.GetParentTopicInfoRequestHeader(topic)
        answer = await self._ask(address, RequestCode.GET_PARENT_TOPIC_INFO, header)
        return GetParentTopicInfoResponseBody.decode(answer.body)

    async def lite_topics(self, address: str, header: lite_headers.ListLiteTopicsRequestHeader) -> LiteTopicListBody:
        """A page of lite topics: GET_PARENT_TOPIC_INFO (200075) as only Rucola's brokers take it; others return
        none.
        """
        answer = await self._ask(address, RequestCode.GET_PARENT_TOPIC_INFO, header)
        return LiteTopicListBody.decode(answer.body)

    async def lite_topic_info(self, address: str, parent: str, lite_topic: str) -> GetLiteTopicInfoResponseBody:
        """GET_LITE_TOPIC_INFO (200076); raises ``BrokerError`` as ``parent_topic_info``."""
        header = lite_headers.GetLiteTopicInfoRequestHeader(parent, lite_topic)
        answer = await self._ask(address, RequestCode.GET_LITE_TOPIC_INFO, header)
        return GetLiteTopicInfoResponseBody.decode(answer.body)

    async def lite_client_info(
        self, address: str, header: lite_headers.GetLiteClientInfoRequestHeader
    ) -> GetLiteClientInfoResponseBody:
        """GET_LITE_CLIENT_INFO (200077); raises ``BrokerError`` 26 for an unknown group, 29 for one of another
        parent.
        """
        answer = await self._ask(address, RequestCode.GET_LITE_CLIENT_INFO, header)
        return GetLiteClientInfoResponseBody.decode(answer.body)

    async def lite_group_info(
        self, address: str, header: lite_headers.GetLiteGroupInfoRequestHeader
    ) -> GetLiteGroupInfoResponseBody:
        """GET_LITE_GROUP_INFO (200078); raises ``BrokerError`` 26 for an unknown group, 29 for one that reads no lite
        topics.
        """
        answer = await self._ask(address, RequestCode.GET_LITE_GROUP_INFO, header)
        return GetLiteGroupInfoResponseBody.decode(answer.body)

    async def trigger_lite_dispatch(self, address: str, group: str, client_id: str | None) -> None:
        """TRIGGER_LITE_DISPATCH (200079); raises ``BrokerError`` as ``lite_group_info``."""
        header = lite_headers.TriggerLiteDispatchRequestHeader(group, client_id)
        await self._ask(address, RequestCode.TRIGGER_LITE_DISPATCH, header)

    # clients

    async def consumer_connection(self, address: str, group: str) -> ConsumerConnection:
        """GET_CONSUMER_CONNECTION_LIST (203); raises ``BrokerError`` 206 if no consumer is connected."""
        header = headers.ConsumerGroupRequestHeader(group)
        answer = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return ConsumerConnection.decode(answer.body)

    async def producer_connection(self, address: str, group: str) -> ProducerConnection:
        """GET_PRODUCER_CONNECTION_LIST (204); raises ``BrokerError`` 1 if no producer is connected."""
        header = headers.ProducerGroupRequestHeader(group)
        answer = await self._ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return ProducerConnection.decode(answer.body)

    async def producers(self, address: str) -> ProducerTableInfo:
        """GET_ALL_PRODUCER_INFO (328)."""
        return ProducerTableInfo.decode((await self._ask(address, RequestCode.GET_ALL_PRODUCER_INFO)).body)

    async def running_info(self, address: str, group: str, client_id: str, jstack: bool) -> dict[str, object]:
        """GET_CONSUMER_RUNNING_INFO (307), in the client's JSON form."""
        header = headers.ConsumerRunningInfoRequestHeader(group, client_id, jstack)
        answer = await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, timeout_ms=15_000)
        return fastjson.load_object(answer.body, "ConsumerRunningInfo")

    # broker

    async def consume_directly(
        self, address: str, header: headers.ConsumeMessageDirectlyRequestHeader, timeout_ms: int = 15_000
    ) -> ConsumeMessageDirectlyResult:
        """CONSUME_MESSAGE_DIRECTLY (309): the client's answer; raises ``BrokerError`` 207 if it does not answer the
        broker.
        """
        answer = await self._ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_ms=timeout_ms)
        return ConsumeMessageDirectlyResult.decode(answer.body)

    async def resume_check(self, address: str, header: ResumeCheckHalfMessageRequestHeader) -> None:
        """RESUME_CHECK_HALF_MESSAGE (323)."""
        await self._ask(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)

    async def ha_status(self, address: str) -> HARuntimeInfo:
        """GET_BROKER_HA_STATUS (907)."""
        return HARuntimeInfo.decode((await self._ask(address, RequestCode.GET_BROKER_HA_STATUS)).body)

    async def runtime_info(self, address: str) -> dict[str, str]:
        """GET_BROKER_RUNTIME_INFO (28)."""
        return KVTable.decode((await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)).body).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """GET_BROKER_CONFIG (26)."""
        return _properties((await self._ask(address, RequestCode.GET_BROKER_CONFIG)).body)

    async def change_broker_config(self, address: str, values: Mapping[str, str]) -> None:
        """UPDATE_BROKER_CONFIG (25)."""
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=format_properties(values).encode())

    async def whole_table(self, address: str, code: RequestCode) -> bytes:
        """GET_ALL_TOPIC_CONFIG (21), GET_ALL_CONSUMER_OFFSET (43), GET_ALL_DELAY_OFFSET (45) or
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), as the broker encodes it.
        """
        return bytes((await self._ask(address, code)).body)

    async def lite_rows(self, address: str, first: int) -> tuple[bytes, int | None]:
        """GET_ALL_CONSUMER_OFFSET (43) with a field that RocketMQ ignores. Returns a page of lite topics, and where the
        next one begins, -1 after the last; None if the broker does not know pages.
        """
        header = lite_headers.LiteRowsRequestHeader(first)
        answer = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET, header)
        fields = lite_headers.LiteRowsResponseHeader.from_ext_fields(answer.ext_fields)
        return bytes(answer.body), fields.lite_next

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        """VIEW_BROKER_STATS_DATA (315); raises ``BrokerError`` 1 for an unknown key."""
        header = headers.ViewBrokerStatsDataRequestHeader(name, key)
        return BrokerStatsData.decode((await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, header)).body)

    async def consume_queue(
        self, address: str, header: headers.QueryConsumeQueueRequestHeader
    ) -> QueryConsumeQueueResponseBody:
        """QUERY_CONSUME_QUEUE (321)."""
        answer = await self._ask(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return QueryConsumeQueueResponseBody.decode(answer.body)

    async def clean(self, address: str, code: RequestCode) -> None:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306), CLEAN_UNUSED_TOPIC (316) or DELETE_EXPIRED_COMMITLOG (329)."""
        await self._ask(address, code, timeout_ms=60_000)

    # name server

    async def delete_topic_in_namesrv(self, address: str, topic: str, cluster: str | None) -> None:
        """DELETE_TOPIC_IN_NAMESRV (216)."""
        header = namesrv_headers.DeleteTopicFromNamesrvRequestHeader(topic, cluster)
        await self._ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def topics_of_cluster(self, address: str, cluster: str) -> list[str]:
        """GET_TOPICS_BY_CLUSTER (224)."""
        header = namesrv_headers.GetTopicsByClusterRequestHeader(cluster)
        return TopicList.decode((await self._ask(address, RequestCode.GET_TOPICS_BY_CLUSTER, header)).body).topic_list

    async def kv_config(self, address: str, namespace: str, key: str) -> str | None:
        """GET_KV_CONFIG (101); None if there is no such key (code 22)."""
        header = namesrv_headers.KVConfigRequestHeader(namespace, key)
        answer = await self._call(address, RequestCode.GET_KV_CONFIG, header, timeout_ms=TIMEOUT_MS, expected=_ABSENT)
        return None if answer.code else answer.ext_fields.get("value")

    async def put_kv_config(self, address: str, namespace: str, key: str, value: str) -> None:
        """PUT_KV_CONFIG (100)."""
        header = namesrv_headers.KVConfigRequestHeader(namespace, key, value)
        await self._ask(address, RequestCode.PUT_KV_CONFIG, header)

    async def delete_kv_config(self, address: str, namespace: str, key: str) -> None:
        """DELETE_KV_CONFIG (102)."""
        header = namesrv_headers.KVConfigRequestHeader(namespace, key)
        await self._ask(address, RequestCode.DELETE_KV_CONFIG, header)

    async def wipe_write_perm(self, address: str, broker_name: str) -> int:
        """WIPE_WRITE_PERM_OF_BROKER (205); returns the number of affected topics."""
        header = namesrv_headers.BrokerNameRequestHeader(broker_name)
        answer = await self._ask(address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        return namesrv_headers.WipeWritePermResponseHeader.from_ext_fields(answer.ext_fields).wipe_topic_count

    async def add_write_perm(self, address: str, broker_name: str) -> int:
        """ADD_WRITE_PERM_OF_BROKER (327); returns the number of affected topics."""
        header = namesrv_headers.BrokerNameRequestHeader(broker_name)
        answer = await self._ask(address, RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        return namesrv_headers.AddWritePermResponseHeader.from_ext_fields(answer.ext_fields).add_topic_count

    async def namesrv_config(self, address: str) -> dict[str, str]:
        """GET_NAMESRV_CONFIG (319)."""
        return _properties((await self._ask(address, RequestCode.GET_NAMESRV_CONFIG)).body)

    async def change_namesrv_config(self, address: str, values: Mapping[str, str]) -> None:
        """UPDATE_NAMESRV_CONFIG (318)."""
        await self._ask(address, RequestCode.UPDATE_NAMESRV_CONFIG, body=format_properties(values).encode())

    async def _ask(
        self,
        address: str,
        code: RequestCode,
        header: CommandHeader | None = None,
        body: bytes = b"",
        timeout_ms: int = TIMEOUT_MS,
    ) -> RemotingCommand:
        return await self._call(address, code, header, body, timeout_ms)


def _properties(body: bytes | bytearray | memoryview) -> dict[str, str]:
    try:
        return parse_properties(bytes(body).decode())
    except ValueError as error:
        raise FormatError("configuration", 0, "Java properties in UTF-8", str(error)) from error
