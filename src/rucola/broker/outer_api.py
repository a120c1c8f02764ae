"""The broker's calls to the name servers (RocketMQ 5.3.3, ``BrokerOuterAPI``).

Every name server gets everything: all topics at start-up and at intervals, and a single topic when it changes. The log
has a line when a name server stops answering and when it answers again, not for every attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from ssl import SSLContext
from typing import TYPE_CHECKING

from rucola.broker.config import BrokerConfig, credentials
from rucola.common.data_version import DataVersion
from rucola.common.key_builder import MEMBER_TOPIC_PREFIX
from rucola.common.message_queue import MessageQueue
from rucola.common.sysflag import PermName
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError, RemotingError, RucolaError
from rucola.protocol import fastjson
from rucola.protocol.bodies.registration import RegisterBrokerBody, TopicConfigSerializeWrapper, body_crc32
from rucola.protocol.bodies.route import QueueData, TopicRouteData
from rucola.protocol.codes import RequestCode, ResponseCode, response_name
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.route import (
    BrokerHeartbeatRequestHeader,
    BrokerMemberGroupRequestHeader,
    ExchangeHAInfoRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnregisterBrokerRequestHeader,
)
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.remoting.name_server_api import NameServerApi
from rucola.runtime.logs import event
from rucola.runtime.tls import peer_context

if TYPE_CHECKING:
    from rucola.remoting.signer import RequestSigner

logger = logging.getLogger(__name__)
CHANGE_TIMEOUT_MS = 3_000
"""Time limit, in milliseconds, of a call that registers changed topics or looks up a route. The response to a send that
created a topic waits for such a call.
"""
_UNREGISTER_TIMEOUT_MS = 1_000
_READ_WRITE = int(PermName.READ | PermName.WRITE)


class BrokerOuterApi:
    """Registers one broker.

    Args:
        config: names of the broker and addresses of the name servers.
        address: the address that clients are given, ``host:port``.
        wall_ms: returns the time for signatures.
        ha_port: returns the port for slaves; None if there is none, and slaves are told one that nobody listens on.
        master_found: on a slave, called after each registration with the master's address for slaves and its address
            for clients; both are empty if no name server knows the master.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        wall_ms: Callable[[], int],
        ha_port: Callable[[], int | None],
        master_found: Callable[[str, str], None] | None = None,
    ) -> None:
        self._config = config
        self._address = address
        self._host, _, port = address.rpartition(":")
        self._port, self._ha_port = int(port), ha_port
        self._client = RemotingClient(peer_options(config, wall_ms))
        self._api = NameServerApi(self._client)
        self._master_found = master_found
        self._answers: list[RegisterBrokerResponseHeader] = []
        """On a slave, what the name servers have answered since ``register_all`` was last called."""
        self._failing: set[str] = set()
        self._missed: set[str] = set()
        """Name servers that may not know all topics, because a registration failed."""

    def begin_round(self) -> None:
        """Call this before each registration of all topics, which takes one or more requests."""
        self._missed.clear()

    async def is_known(self, version: DataVersion) -> bool:
        """Whether every name server has all topics in this version. If so, this call also shows them that the broker
        is alive.
        """
        config = self._config
        header = QueryDataVersionRequestHeader(
            config.broker_name, self._address, config.broker_cluster_name, config.broker_id
        )
        answers = await asyncio.gather(
            *[
                self._api.has_version(name, header, version, config.register_broker_timeout_ms)
                for name in config.namesrv_addresses
            ],
            return_exceptions=True,
        )
        return not self._missed and all(answer is True for answer in answers)

    async def register_all(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> None:
        """Registers ``topics`` with every name server."""
        body = self._body(topics, version)
        timeout_ms = self._config.register_broker_timeout_ms
        self._answers = []
        await asyncio.gather(*[self._register(name, body, timeout_ms) for name in self._config.namesrv_addresses])
        if self._master_found is not None and self._answers:
            known = [answer for answer in self._answers if answer.master_addr]
            answer = known[0] if known else self._answers[0]
            self._master_found(answer.ha_server_addr or "", answer.master_addr or "")

    async def register_topics(self, topics: Sequence[TopicConfig], version: DataVersion) -> bool:
        """Tells every name server about changed topics; returns True if a name server does not know this broker and
        needs all topics.

        With ``enableSingleTopicRegister`` each topic is sent alone, and a name server that does not know this broker
        gets all topics with the next registration.
        """
        names = self._config.namesrv_addresses
        if self._config.enable_single_topic_register:
            for topic in topics:
                await asyncio.gather(*[self._tell_route(name, topic) for name in names])
            return False
        body = self._body({topic.topic_name: topic for topic in topics}, version)
        told = await asyncio.gather(*[self._register(name, body, CHANGE_TIMEOUT_MS, True) for name in names])
        return not all(told)

    async def readable_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic on all brokers, from the first name server that knows the topic.

        Raises:
            RucolaError: no name server answers, or none knows the topic.
        """
        readable = [data for data in (await self._route(topic)).queue_datas if data.perm & PermName.READ]
        return [MessageQueue(topic, data.broker_name, q) for data in readable for q in range(data.read_queue_nums)]

    async def writable_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic to which producers send, on all masters, from the first name server that knows it.

        Raises:
            RucolaError: no name server answers, or none knows the topic.
        """
        # Imported only here, because only brokers with lite topics need it.
        from rucola.client.route import topic_route

        return list(topic_route(topic, await self._route(topic)).publish_queues)

    async def _route(self, topic: str) -> TopicRouteData:
        failure: RucolaError = BrokerError(ResponseCode.TOPIC_NOT_EXIST, "there is no name server")
        for name_server in self._config.namesrv_addresses:
            try:
                return await self._api.route_info(name_server, topic, CHANGE_TIMEOUT_MS)
            except RucolaError as error:
                failure = error
        raise failure

    async def unregister(self) -> None:
        """Unregisters from every name server."""
        config = self._config
        header = UnregisterBrokerRequestHeader(
            config.broker_name, self._address, config.broker_cluster_name, config.broker_id
        )
        await asyncio.gather(
            *[self._api.unregister_broker(name, header, _UNREGISTER_TIMEOUT_MS) for name in config.namesrv_addresses],
            return_exceptions=True,  # a name server that cannot be reached forgets this broker by itself
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    # -- the brokers of the same name ----------------------------------------------------------------------------------

    def heartbeat(self, version: DataVersion) -> None:
        """Shows every name server that the broker lives.

        Args:
            version: of its topics.
        """
        config = self._config
        cluster, name, broker_id = config.broker_cluster_name, config.broker_name, config.broker_id
        code, body = RequestCode.BROKER_HEARTBEAT, b""
        fields = BrokerHeartbeatRequestHeader(cluster, self._address, name, broker_id).to_ext_fields()
        if config.compatible_with_old_name_srv:
            code, body = RequestCode.QUERY_DATA_VERSION, fastjson.dumps(version.to_dict())
            fields = QueryDataVersionRequestHeader(name, self._address, cluster, broker_id).to_ext_fields()
        for name_server in config.namesrv_addresses:
            self._client.invoke_oneway(name_server, RemotingCommand(code, ext_fields=fields, body=body))

    async def members(self) -> dict[int, str]:
        """Returns the addresses of the live brokers of this name, by their numbers, as far as a name server knows them.

        Raises:
            RucolaError: no name server answers.
        """
        answers = await asyncio.gather(
            *[self._members_at(name) for name in self._config.namesrv_addresses], return_exceptions=True
        )
        found = [answer for answer in answers if isinstance(answer, dict)]
        if not found:
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
        together: dict[int, str] = {}
        for members in found:
            together = members | together
        return together

    async def _members_at(self, name_server: str) -> dict[int, str]:
        config = self._config
        if not config.compatible_with_old_name_srv:
            header = BrokerMemberGroupRequestHeader(config.broker_cluster_name, config.broker_name)
            return await self._api.member_group(name_server, header, CHANGE_TIMEOUT_MS)
        try:
            topic = MEMBER_TOPIC_PREFIX + config.broker_name
            route = await self._api.route_info(name_server, topic, CHANGE_TIMEOUT_MS)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return {}
            raise
        whose = config.broker_name, config.broker_cluster_name
        groups = [data for data in route.broker_datas if (data.broker_name, data.cluster) == whose]
        return dict(groups[0].broker_addrs) if groups else {}

    async def exchange(self, address: str, told: ExchangeHAInfoRequestHeader) -> ExchangeHAInfoRequestHeader:
        """Tells a slave the addresses of its master, or asks a master for its own (request 906).

        Args:
            address: the other broker.
            told: the master's addresses; without any, they are asked for.

        Raises:
            RemotingError, BrokerError, FormatError: it does not answer, it refuses, or its answer is not understood.
        """
        answer = await self._ask(address, RequestCode.EXCHANGE_BROKER_HA_INFO, told.to_ext_fields())
        return ExchangeHAInfoRequestHeader.from_ext_fields(answer.ext_fields)

    async def table(self, address: str, code: RequestCode) -> bytes:
        """Returns the body of another broker's answer to a request for a whole table.

        Raises:
            RemotingError, BrokerError: it does not answer, or it refuses.
        """
        return bytes((await self._ask(address, code, {})).body)

    async def _ask(self, address: str, code: RequestCode, fields: dict[str, str]) -> RemotingCommand:
        answer = await self._client.invoke(address, RemotingCommand(code, ext_fields=fields), CHANGE_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, address, response_name(answer.code))
        return answer

    # -- internals -----------------------------------------------------------------------------------------------------

    def _body(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
        permission = self._config.broker_permission
        table = dict(topics)
        if permission & 6 != 6:
            table = {name: replace(topic, perm=topic.perm & permission) for name, topic in topics.items()}
        return RegisterBrokerBody(TopicConfigSerializeWrapper(table, version)).encode()

    async def _tell_route(self, name_server: str, topic: TopicConfig) -> None:
        perm = topic.perm & (self._config.broker_permission | ~_READ_WRITE)
        data = QueueData(
            self._config.broker_name, topic.read_queue_nums, topic.write_queue_nums, perm, topic.topic_sys_flag
        )
        route = TopicRouteData(queue_datas=[data])
        await self._tell(name_server, self._api.register_topic(name_server, topic.topic_name, route, CHANGE_TIMEOUT_MS))

    async def _register(self, name_server: str, body: bytes, timeout_ms: int, may_be_refused: bool = False) -> bool:
        config = self._config
        header = RegisterBrokerRequestHeader(
            config.broker_name,
            self._address,
            config.broker_cluster_name,
            f"{self._host}:{self._ha_port() or self._port + 1}",
            config.broker_id,
            heartbeat_timeout_millis=config.broker_not_active_timeout_ms if config.enable_slave_acting_master else None,
            enable_acting_master=config.enable_slave_acting_master,
            body_crc32=body_crc32(body),
        )
        return await self._tell(name_server, self._answered(name_server, header, body, timeout_ms), may_be_refused)

    async def _answered(
        self, name_server: str, header: RegisterBrokerRequestHeader, body: bytes, timeout_ms: int
    ) -> None:
        answer, _ = await self._api.register_broker(name_server, header, body, timeout_ms)
        if self._master_found is not None:
            self._answers.append(answer)

    async def _tell(self, name_server: str, call: Awaitable[object], may_be_refused: bool = False) -> bool:
        """Calls a name server. Returns False if ``may_be_refused`` is set and the name server refuses the call.
        Otherwise returns True; if several calls in a row fail, only the first failure is logged.
        """
        try:
            await call
        except RucolaError as error:
            self._missed.add(name_server)
            if isinstance(error, BrokerError) and may_be_refused:
                return False
            if name_server not in self._failing:
                self._failing.add(name_server)
                level = logging.WARNING if isinstance(error, RemotingError) else logging.ERROR
                event(logger, level, "name server refuses the registration", address=name_server, error=error)
            return True
        if name_server in self._failing:
            self._failing.discard(name_server)
            event(logger, logging.INFO, "name server accepts the registration again", address=name_server)
        return True


def peer_options(config: BrokerConfig, wall_ms: Callable[[], int]) -> ClientOptions:
    """Account and TLS of a broker's connections to the servers of its cluster."""
    return ClientOptions(signer=_signer(config, wall_ms), tls=_tls(config))


def _signer(config: BrokerConfig, wall_ms: Callable[[], int]) -> RequestSigner | None:
    keys = credentials(config.inner_client_authentication_credentials)
    if keys is None:
        return None
    # Imported only when needed, because start-up waits for the import.
    from rucola.remoting.signer import RequestSigner

    return RequestSigner(*keys, security_token="", version=1, wall_ms=wall_ms)


def _tls(config: BrokerConfig) -> SSLContext | None:
    if not config.use_tls:
        return None
    return peer_context(config.tls_client_trust_cert_path, config.tls_cert_path, config.tls_key_path)
