"""Common parts of every client: identity, connections, routes and heartbeats.

Source: protocol.md 4.1, 4.3; RocketMQ 5.3.3, MQClientInstance and ClientConfig.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from rucola.client.client_tasks import ClientTasks, Periodic
from rucola.client.config import ClientConfig
from rucola.client.name_servers import NameServers
from rucola.client.owner import LoopOwner
from rucola.client.route import RouteTable
from rucola.common.hosts import split_address
from rucola.errors import BrokerError, ClientError, ConfigError, RucolaError
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.client import NotifyConsumerIdsChangedRequestHeader
from rucola.remoting.api import RemotingApi
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event
from rucola.runtime.tls import client_context

logger = logging.getLogger(__name__)

GROUP_CHARACTERS_MAX = 120
TOPIC_CHARACTERS_MAX = 127
CLIENT_ID_BYTES_MAX = 255
"""Longest client id: the directory with a broadcasting consumer's offsets has this name."""
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def _ignore(*_: object) -> None:
    """Default for callbacks that a consumer does not need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRegistration:
    """A consumer group of this client. All functions are called on the event loop and must not block.

    Attributes:
        consumer_data: returns the group's part of the next heartbeat: its type and its current subscriptions.
        group_changed: called when a broker reports that members joined or left, so that a rebalance is needed.
        route_changed: called when the queues of a topic or the addresses of its brokers have changed.
        connected: called with the address of a broker each time that a connection to the broker was opened. On this
            connection, the client sends a heartbeat before any request of ``connected``.
    """

    consumer_data: Callable[[], ConsumerData]
    group_changed: Callable[[], None] = _ignore
    route_changed: Callable[[str], None] = _ignore
    connected: Callable[[str], None] = _ignore


class ClientInstance:
    """The connections of one client to name servers and brokers.

    Life cycle: created anywhere, ``start`` on an event loop, ``shutdown`` on the same loop.

    Args:
        namesrv: name servers, ``host:port`` separated by ``;``, or a list of them.
        config: settings.
        clock: gives the time for the client id.
        producer_group: group that heartbeats register with the masters.
        keeps_client_id: see ``client_id``.
        create_topic_key: see ``RouteTable``.
        default_topic_queue_nums: see ``RouteTable``.

    Attributes:
        running: whether ``start`` was called and ``shutdown`` was not.
        background: owns the client's background tasks.
        owner: knows the event loop on which the client was started; the client's methods call ``owner.check`` first.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        config: ClientConfig,
        clock: Clock,
        *,
        producer_group: str | None = None,
        keeps_client_id: bool = False,
        create_topic_key: str | None = None,
        default_topic_queue_nums: int = 4,
    ) -> None:
        self._config = config
        self._producer_group = producer_group
        self._consumers: dict[str, ConsumerRegistration] = {}
        self.client = RemotingClient(client_options(config, clock), self._connected)
        self.api = RemotingApi(self.client)
        self.name_servers = NameServers(namesrv, self.api, config.mq_client_api_timeout_ms)
        self.address = local_address(self.name_servers.addresses[0])
        self.client_id = client_id(self.address, config, clock, keeps_name=keeps_client_id)
        self.routes = RouteTable(
            self.name_servers, create_topic_key, default_topic_queue_nums, self.heartbeat_soon, self._route_changed
        )
        self._heartbeats = Periodic(self.heartbeat, config.heartbeat_broker_interval_ms / 1000)
        self._beating: set[str] = set()
        self.background = ClientTasks(self.client_id)
        self.owner = LoopOwner()
        self.running = False

    def start(self) -> None:
        """Starts to refresh routes and to send heartbeats; sends nothing before a topic is used."""
        self.owner.start()
        self.running = True
        self.client.register_processor(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._consumer_ids_changed)
        interval_s = self._config.poll_name_server_interval_ms / 1000
        self.background.periodic("refresh of routes", self.routes.refresh_all, interval_s)
        self.background.forever("heartbeats", self._heartbeats.run)

    def keep(self, work: Coroutine[Any, Any, object]) -> None:
        """Runs ``work`` in the background until it ends or the client shuts down; its failure is logged."""
        self.background.once(getattr(work, "__qualname__", "work"), work)

    def register_consumer(self, group: str, registration: ConsumerRegistration) -> None:
        """From now on, heartbeats include ``group``, and the client calls the functions of ``registration`` as
        ``ConsumerRegistration`` describes.

        Raises:
            ClientError: the group is registered already.
        """
        if group in self._consumers:
            raise ClientError(f"consumer group {group} is registered already")
        self._consumers[group] = registration
        self.heartbeat_soon()

    async def shutdown(self) -> None:
        """Unregisters the client's groups at the brokers, then closes all connections."""
        self.running = False
        try:
            await self.background.stop()
            addresses = self._brokers()
            groups: list[str | None] = [*self._consumers]
            if not groups and self._producer_group:
                groups = [None]
            # Without a group, sends no request: no broker has registered the client, and a broker that does not
            # respond would only delay the shutdown.
            for position, group in enumerate(groups):
                await self._unregister(addresses, None if position else self._producer_group, group)
        finally:
            await self.client.close()

    async def _unregister(self, addresses: list[str], producer_group: str | None, group: str | None) -> None:
        timeout_ms = self._config.mq_client_api_timeout_ms
        connected = set(self.client.addresses)
        calls = [
            self.api.unregister_client(address, self.client_id, producer_group, group, timeout_ms)
            for address in addresses
            if address in connected
        ]
        await asyncio.gather(*map(self._unless_failing, calls))

    async def heartbeat(self) -> list[BrokerError]:
        """Sends a heartbeat to every broker of the current routes; failures are only logged.

        The heartbeats are concurrent, so that a broker that is down but still in the routes does not delay the others.

        Returns: The errors of brokers that refuse this client for good, because they refuse its account.
        """
        errors = await asyncio.gather(*map(self._beat, self._brokers()))
        return [error for error in errors if isinstance(error, BrokerError) and not error.retriable]

    async def meet_all_brokers(self) -> None:
        """Fetches the addresses of all brokers, including those without a topic in use.

        Raises:
            RemotingError: no name server responds.
        """
        self.routes.learn((await self.name_servers.cluster_info()).broker_addr_table.values())

    def heartbeat_soon(self) -> None:
        """Wakes the background task, which then sends a round of heartbeats."""
        self._heartbeats.soon()

    async def _beat(self, address: str) -> RucolaError | None:
        producers = [ProducerData(self._producer_group)] if self._producer_group else []
        consumers = [registration.consumer_data() for registration in self._consumers.values()]
        data = HeartbeatData(self.client_id, producers, consumers)
        self._beating.add(address)
        try:
            return await self._unless_failing(self.api.heartbeat(address, data, self._config.mq_client_api_timeout_ms))
        finally:
            self._beating.discard(address)

    def _brokers(self) -> list[str]:
        """Addresses of the brokers that get heartbeats: the masters, and for consumers also the slaves. Brokers that
        are in no current route have left the cluster.
        """
        return self.routes.current_addresses(masters_only=not self._consumers)

    def _connected(self, address: str) -> None:
        """Sends a heartbeat first on a new connection, because a restarted broker does not know this client.

        A connection that was opened for a heartbeat needs no second heartbeat.
        """
        if address not in self._brokers():
            return
        if address not in self._beating:
            self.keep(self._beat(address))
        loop = asyncio.get_running_loop()
        for registration in self._consumers.values():
            loop.call_soon(registration.connected, address)

    def _route_changed(self, topic: str) -> None:
        loop = asyncio.get_running_loop()
        for registration in self._consumers.values():
            loop.call_soon(registration.route_changed, topic)

    def _consumer_ids_changed(self, address: str, command: RemotingCommand) -> None:
        group = NotifyConsumerIdsChangedRequestHeader.from_ext_fields(command.ext_fields).consumer_group
        registration = self._consumers.get(group)
        if registration is not None:
            registration.group_changed()

    async def _unless_failing(self, call: Coroutine[Any, Any, object]) -> RucolaError | None:
        """Awaits ``call``; logs its failure and returns it."""
        try:
            await call
        except BrokerError as error:
            event(logger, logging.WARNING, "broker refuses the client", client=self.client_id, error=error)
            return error
        except RucolaError as error:
            event(logger, logging.INFO, "broker does not respond", client=self.client_id, error=error)
            return error
        return None


def client_options(config: ClientConfig, clock: Clock) -> ClientOptions:
    """Timeouts, credentials and TLS settings of a client's connections."""
    signer = tls = None
    if config.access_key:
        # This import is deferred: it brings modules of cryptography, and most clients have no account.
        from rucola.remoting.signer import RequestSigner

        signer = RequestSigner(
            config.access_key, config.secret_key, config.security_token, config.signature_version, clock.wall_ms
        )
    if config.use_tls:
        tls = client_context(config.tls_trust_cert_path, config.tls_cert_path, config.tls_key_path)
    return ClientOptions(connect_timeout_ms=config.connect_timeout_ms, signer=signer, tls=tls)


def client_id(address: str, config: ClientConfig, clock: Clock, *, keeps_name: bool = False) -> str:
    """Makes the client id ``ip@instance[@unit]``; an instance name DEFAULT is replaced by process id and time.

    With ``keeps_name``, DEFAULT is not replaced, so that the client finds its offset file after a restart.

    Raises:
        ConfigError: the client id would be too long.
    """
    name = config.instance_name
    if name == "DEFAULT" and not keeps_name:
        name = f"{os.getpid()}#{int(clock.monotonic() * 1_000_000_000)}"
    text = "@".join(part for part in (address, name, config.unit_name) if part)
    if len(text.encode()) > CLIENT_ID_BYTES_MAX:
        allowed = f"a name with which the client id {text[:40]}... has at most {CLIENT_ID_BYTES_MAX} bytes"
        raise ConfigError("instanceName", config.instance_name, allowed, "instance_name")
    return text


def local_address(peer: str) -> str:
    """IP address of this machine from which ``peer`` (``host:port``) is reached, or 127.0.0.1. Sends no packet."""
    try:
        host, port = split_address(peer)
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def check_group(group: str) -> None:
    """Raises ``ClientError`` unless ``group`` is a valid group name (protocol.md 3.1)."""
    _check_name("group", group, GROUP_CHARACTERS_MAX)


def check_topic(topic: str) -> None:
    """Raises ``ClientError`` unless ``topic`` is a valid topic name (protocol.md 3.1)."""
    _check_name("topic", topic, TOPIC_CHARACTERS_MAX)


def _check_name(what: str, name: object, characters_max: int) -> None:
    if not isinstance(name, str):
        raise ClientError(f"{what} {name!r} must be a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name) or len(name) > characters_max:
        dots = "; dots are not allowed" if "." in name else ""
        raise ClientError(f"{what} {name!r} must be 1 to {characters_max} of the characters %|a-zA-Z0-9_-{dots}")
