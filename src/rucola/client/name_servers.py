"""The name servers of a client: requests go to one of them; after a failure, requests go to the next.

Source: protocol.md 4.3; RocketMQ 5.3.3, NettyRemotingClient#getAndCreateNameserverChannel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rucola.common.hosts import split_address
from rucola.errors import BrokerError, ClientError, ConfigError, RemotingError
from rucola.protocol.bodies.route import ClusterInfo, TopicRouteData
from rucola.protocol.codes import ResponseCode
from rucola.remoting.api import RemotingApi

_ALLOWED = "host:port without a scheme, several separated by ; or as a list"
T = TypeVar("T")


class NameServers:
    """Sends requests to a name server that responds.

    Args:
        addresses: ``host:port`` of each, separated by ``;`` or commas, or as a list.
        api: sends the requests.
        timeout_ms: for one request to one name server.

    Raises:
        ConfigError: an address is invalid, or there is none.
    """

    def __init__(self, addresses: str | Sequence[str], api: RemotingApi, timeout_ms: int) -> None:
        self.addresses = _addresses(addresses)
        self._api = api
        self._timeout_ms = timeout_ms
        self._chosen = 0

    async def route_info(self, topic: str) -> TopicRouteData:
        """Route of ``topic``; raises ``BrokerError`` 17 if there is none."""
        return await self.ask(lambda address: _known_to_all(self._api.route_info(address, topic, self._timeout_ms)))

    async def topic_list(self) -> list[str]:
        """Names of all topics."""
        return await self.ask(lambda address: _known_to_all(self._api.topic_list(address, self._timeout_ms)))

    async def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers."""
        return await self.ask(lambda address: _known_to_all(self._api.cluster_info(address, self._timeout_ms)))

    async def ask(self, call: Callable[[str], Awaitable[T]]) -> T:
        """Runs ``call`` with addresses of name servers in turn until one responds; returns the result."""
        for attempt in range(len(self.addresses)):
            chosen = self._chosen
            try:
                return await call(self.addresses[chosen])
            except RemotingError:
                if self._chosen == chosen:  # otherwise a concurrent call has already chosen another name server
                    self._chosen = (chosen + 1) % len(self.addresses)
                if attempt == len(self.addresses) - 1:
                    raise
        raise AssertionError("the list of name servers is empty")


async def _known_to_all(request: Awaitable[T]) -> T:
    """Awaits a request that every name server knows.

    Raises:
        ClientError: the server does not know the request, so it is something else.
    """
    try:
        return await request
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise ClientError(
            f"{error.address} is a broker, not a name server; clients need the name server, usually port 9876"
        ) from error


def _addresses(given: object) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ConfigError("namesrvAddr", repr(given), _ALLOWED, "namesrv")
    found = [address.strip() for text in texts for address in text.replace(",", ";").split(";") if address.strip()]
    for address in found or [""]:
        try:
            if "/" in address:
                raise ValueError(address)
            split_address(address)
        except ValueError as error:
            raise ConfigError("namesrvAddr", address, _ALLOWED, "namesrv") from error
    return found
