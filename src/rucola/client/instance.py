"""What every client has: its identity, connections, routes and heartbeats.

Source: protocol.md 4.1, 4.3; RocketMQ 5.3.3, MQClientInstance and ClientConfig.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Awaitable

from rucola.client.config import ClientConfig
from rucola.client.name_servers import NameServers
from rucola.client.route import RouteTable
from rucola.common.hosts import split_address
from rucola.errors import ClientError, RucolaError
from rucola.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, MessageModel, ProducerData
from rucola.remoting.api import RemotingApi
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.remoting.signer import RequestSigner
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event
from rucola.runtime.tls import client_context

logger = logging.getLogger(__name__)

GROUP_CHARACTERS_MAX = 120
TOPIC_CHARACTERS_MAX = 127
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


class ClientInstance:
    """One client's ties to name servers and brokers.

    Life cycle: made anywhere, ``start`` on an event loop, ``shutdown`` on the same.

    Args:
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        clock: for the client id.
        producer_group: registered with the masters by heartbeat.
        consumer: registered with the brokers by heartbeat.
        create_topic_key: see ``RouteTable``.
        default_topic_queue_nums: see ``RouteTable``.

    Attributes:
        running: whether ``start`` was called and ``shutdown`` was not.
    """

    def __init__(
        self,
        namesrv: str,
        config: ClientConfig,
        clock: Clock,
        *,
        producer_group: str | None = None,
        consumer: ConsumerData | None = None,
        create_topic_key: str | None = None,
        default_topic_queue_nums: int = 4,
    ) -> None:
        self._config = config
        self._producer_group = producer_group
        self._consumer = consumer
        self.client = RemotingClient(client_options(config, clock))
        self.api = RemotingApi(self.client)
        self.name_servers = NameServers(namesrv, self.api, config.mq_client_api_timeout_ms)
        self.address = local_address(self.name_servers.addresses[0])
        broadcasting = consumer is not None and consumer.message_model is MessageModel.BROADCASTING
        self.client_id = client_id(self.address, config, clock, keeps_name=broadcasting)
        self.routes = RouteTable(self.name_servers, create_topic_key, default_topic_queue_nums, self._heartbeat_soon)
        self._new_broker = asyncio.Event()
        self._beating = False
        self._tasks: list[asyncio.Task[None]] = []
        self.running = False

    def start(self) -> None:
        """Begin to refresh routes and to send heartbeats; nothing is on the wire before a topic is used."""
        self.running = True
        self.client.on_connected = self._connected
        self._tasks = [asyncio.ensure_future(self._refresh_routes()), asyncio.ensure_future(self._send_heartbeats())]

    def keep(self, work: Awaitable[None]) -> None:
        """Run ``work`` in the background until it ends or the client shuts down."""
        self.client.run(work)

    async def shutdown(self) -> None:
        """Tell the brokers, then close all connections."""
        self.running = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._unregister()
        finally:
            await self.client.close()

    async def _unregister(self) -> None:
        group = self._consumer.group_name if self._consumer else None
        connected = set(self.client.addresses)
        for address in self._brokers():
            if address in connected:
                await self._unless_failing(
                    self.api.unregister_client(
                        address, self.client_id, self._producer_group, group, self._config.mq_client_api_timeout_ms
                    )
                )

    async def heartbeat(self) -> None:
        """Tell every broker that this client is there; failures are logged only.

        All at once: one that is gone, and stays in the routes while its topics have no other, holds nobody up.
        """
        timeout_ms = self._config.mq_client_api_timeout_ms
        beats = [self.api.heartbeat(address, self._heartbeat_data(), timeout_ms) for address in self._brokers()]
        await asyncio.gather(*map(self._unless_failing, beats))

    def _heartbeat_data(self) -> HeartbeatData:
        producers = [ProducerData(self._producer_group)] if self._producer_group else []
        return HeartbeatData(self.client_id, producers, [self._consumer] if self._consumer else [])

    def _brokers(self) -> list[str]:
        """Brokers that want to hear of this client: the masters, of a consumer the slaves too."""
        if self._consumer is None:
            return self.routes.masters()
        return [address for members in self.routes.brokers.values() for address in members.values()]

    def _connected(self, address: str) -> None:
        """A broker that was restarted has forgotten us; connections opened by a heartbeat need no other."""
        if not self._beating and address in self._brokers():
            self._heartbeat_soon()

    def _heartbeat_soon(self) -> None:
        self._new_broker.set()

    async def _send_heartbeats(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._config.heartbeat_broker_interval_ms / 1000):
                    await self._new_broker.wait()
            except TimeoutError:
                pass
            self._new_broker.clear()
            self._beating = True
            await self.heartbeat()
            self._beating = False

    async def _refresh_routes(self) -> None:
        while True:
            await asyncio.sleep(self._config.poll_name_server_interval_ms / 1000)
            await self.routes.refresh_all()

    async def _unless_failing(self, call: Awaitable[object]) -> None:
        try:
            await call
        except RucolaError as error:
            event(logger, logging.INFO, "broker does not answer", client=self.client_id, error=error)


def client_options(config: ClientConfig, clock: Clock) -> ClientOptions:
    """Limits, credentials and encryption of a client's connections."""
    signer = tls = None
    if config.access_key:
        signer = RequestSigner(
            config.access_key, config.secret_key, config.security_token, config.signature_version, clock.wall_ms
        )
    if config.use_tls:
        tls = client_context(config.tls_trust_cert_path, config.tls_cert_path, config.tls_key_path)
    return ClientOptions(connect_timeout_ms=config.connect_timeout_ms, signer=signer, tls=tls)


def client_id(address: str, config: ClientConfig, clock: Clock, *, keeps_name: bool = False) -> str:
    """``ip@instance[@unit]``; the instance DEFAULT becomes process id and time.

    ``keeps_name``: DEFAULT stays, for a client that must find its file again.
    """
    name = config.instance_name
    if name == "DEFAULT" and not keeps_name:
        name = f"{os.getpid()}#{int(clock.monotonic() * 1_000_000_000)}"
    return "@".join(part for part in (address, name, config.unit_name) if part)


def local_address(peer: str) -> str:
    """IP address of this machine on the way to ``peer`` (``host:port``); nothing is sent. 127.0.0.1 when unknown."""
    try:
        host, port = split_address(peer)
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def check_group(group: str) -> None:
    """Raises ``ClientError`` unless ``group`` can be the name of a group (protocol.md 3.1)."""
    if not _NAME.fullmatch(group) or len(group) > GROUP_CHARACTERS_MAX:
        raise ClientError(f"group {group!r} must be 1 to {GROUP_CHARACTERS_MAX} of the characters %|a-zA-Z0-9_-")


def check_topic(topic: str) -> None:
    """Raises ``ClientError`` unless ``topic`` can be the name of a topic (protocol.md 3.1)."""
    if not _NAME.fullmatch(topic) or len(topic) > TOPIC_CHARACTERS_MAX:
        raise ClientError(f"topic {topic!r} must be 1 to {TOPIC_CHARACTERS_MAX} of the characters %|a-zA-Z0-9_-")
