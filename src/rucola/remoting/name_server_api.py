"""Typed calls from brokers to name servers: the part of ``api`` that every broker loads."""

from __future__ import annotations

from typing import Protocol

from rucola.common.data_version import DataVersion
from rucola.errors import BrokerError
from rucola.protocol import fastjson
from rucola.protocol.bodies.kv_table import KVTable
from rucola.protocol.bodies.route import BrokerMemberGroupBody, TopicRouteData
from rucola.protocol.codes import LanguageCode, RequestCode, ResponseCode, response_name
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.header import CommandHeader
from rucola.protocol.headers.namesrv_admin import RegisterTopicRequestHeader
from rucola.protocol.headers.route import (
    BrokerMemberGroupRequestHeader,
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnregisterBrokerRequestHeader,
)

TIMEOUT_MS = 3_000


class Invoker(Protocol):
    """Carries requests; a ``RemotingClient``, or something like it."""

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """See ``RemotingClient.invoke``."""


class NameServerApi:
    """The calls; stateless apart from the client.

    Args:
        client: carries the requests.
        language: language of the client for which the requests are made.
    """

    def __init__(self, client: Invoker, language: LanguageCode = LanguageCode.PYTHON) -> None:
        self.client, self._language = client, language

    async def route_info(self, address: str, topic: str, timeout_ms: int = TIMEOUT_MS) -> TopicRouteData:
        """GET_ROUTEINFO_BY_TOPIC (105); a topic that no broker serves raises ``BrokerError`` 17, and a route with more
        queues than any topic has raises ``FormatError``.
        """
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        answer = await self._call(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_ms=timeout_ms)
        route = TopicRouteData.decode(answer.body)
        route.check_size()
        return route

    async def register_broker(
        self,
        address: str,
        header: RegisterBrokerRequestHeader,
        body: bytes,
        timeout_ms: int = TIMEOUT_MS,
    ) -> tuple[RegisterBrokerResponseHeader, KVTable]:
        """REGISTER_BROKER (103). ``body`` is an encoded ``RegisterBrokerBody``; ``header`` contains its CRC.

        Returns:
            The addresses of the master, which only a slave receives, and the table of ordered topics.
        """
        answer = await self._call(address, RequestCode.REGISTER_BROKER, header, body, timeout_ms)
        table = KVTable.decode(answer.body) if answer.body else KVTable()
        return RegisterBrokerResponseHeader.from_ext_fields(answer.ext_fields), table

    async def has_version(
        self, address: str, header: QueryDataVersionRequestHeader, version: DataVersion, timeout_ms: int = TIMEOUT_MS
    ) -> bool:
        """QUERY_DATA_VERSION (322): whether the name server knows a broker's topics in this version. If so, the request
        counts as a sign of life of the broker.
        """
        body = fastjson.dumps(version.to_dict())
        answer = await self._call(address, RequestCode.QUERY_DATA_VERSION, header, body, timeout_ms)
        return not QueryDataVersionResponseHeader.from_ext_fields(answer.ext_fields).changed

    async def member_group(
        self, address: str, header: BrokerMemberGroupRequestHeader, timeout_ms: int = TIMEOUT_MS
    ) -> dict[int, str]:
        """GET_BROKER_MEMBER_GROUP (901): the addresses of the live brokers with one name, by their numbers."""
        answer = await self._call(address, RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout_ms=timeout_ms)
        group = BrokerMemberGroupBody.decode(answer.body).broker_member_group if answer.body else None
        return {} if group is None else group.broker_addrs

    async def register_topic(
        self, address: str, topic: str, route: TopicRouteData, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """REGISTER_TOPIC_IN_NAMESRV (217): the queues of one topic on brokers that the name server knows."""
        await self._call(
            address,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            RegisterTopicRequestHeader(topic),
            route.encode(),
            timeout_ms,
        )

    async def unregister_broker(
        self, address: str, header: UnregisterBrokerRequestHeader, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """UNREGISTER_BROKER (104)."""
        await self._call(address, RequestCode.UNREGISTER_BROKER, header, timeout_ms=timeout_ms)

    async def _call(
        self,
        address: str,
        code: RequestCode,
        header: CommandHeader | None = None,
        body: bytes = b"",
        timeout_ms: int = TIMEOUT_MS,
        expected: frozenset[ResponseCode] = frozenset({ResponseCode.SUCCESS}),
    ) -> RemotingCommand:
        ext_fields = header.to_ext_fields() if header is not None else {}
        command = RemotingCommand(code, language=self._language, ext_fields=ext_fields, body=body)
        answer = await self.client.invoke(address, command, timeout_ms)
        if answer.code not in expected:
            raise BrokerError(answer.code, answer.remark, address, response_name(answer.code))
        return answer
