"""A gRPC port beside a broker, in its process and on its event loop.

``bind`` takes the port before the broker opens its store. What the door needs (HTTP/2, gRPC, protobuf) is imported in a
thread when the first client connects: the event loop does not wait, and a broker without such clients does not load it.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rucola.common.hosts import join_address
from rucola.errors import AddressInUseError
from rucola.proxy.door_tls import door_tls
from rucola.proxy.figures import DoorFigures
from rucola.remoting.listening import bound
from rucola.runtime.extras import GRPC, require

if TYPE_CHECKING:
    from rucola.broker.broker import Broker
    from rucola.broker.config import BrokerConfig
    from rucola.proxy.door import GrpcDoor

_BACKLOG: Final = 1024
_DOOR: Final = "rucola.proxy.local_door"


class DoorBeside:
    """The port. Call ``bind``, ``start`` and ``stop``, once each, on the broker's event loop.

    Args:
        config: options of the broker: its address, TLS.
        port: port to listen on; 0 chooses a free one.

    Raises:
        MissingExtraError: the extra ``grpc`` is not installed.
        ConfigError: the files of ``tlsCertPath`` and the like, or those in ``grpcTlsDir``, cannot be used.
    """

    def __init__(self, config: BrokerConfig, port: int) -> None:
        require(GRPC, "the gRPC port")
        self._host, self._port = config.bind_address, port
        self._tls = door_tls(config, config.bind_address, config.grpc_advertised_address, config.grpc_tls_dir)
        self._listening: socket.socket | None = None
        self._opening: asyncio.Task[None] | None = None
        self._door: GrpcDoor | None = None

    @property
    def address(self) -> str:
        """The address on which it listens, ``host:port``."""
        return join_address(self._host, self._port)

    def figures(self) -> DoorFigures:
        """What the port does now, and has done since its start."""
        return self._door.figures() if self._door is not None else DoorFigures()

    def bind(self) -> None:
        """Takes the port. Clients that connect now wait for ``start``.

        Raises:
            AddressInUseError: another process listens there.
            ConfigError: the address cannot be used for another reason.
        """
        try:
            self._listening = bound(self._host, self._port, _BACKLOG)
        except AddressInUseError as error:
            raise AddressInUseError(error.address, "--grpc-port") from error.__cause__
        self._port = self._listening.getsockname()[1]

    def start(self, broker: Broker) -> None:
        """Begins to serve clients.

        Args:
            broker: the broker, which is running.
        """
        assert self._listening is not None
        loop, listening = asyncio.get_running_loop(), self._listening

        def first_client() -> None:
            loop.remove_reader(listening)
            self._opening = loop.create_task(self._open(broker, listening))

        try:
            loop.add_reader(listening, first_client)
        except NotImplementedError:  # on Windows
            self._opening = loop.create_task(self._open(broker, listening))

    def drop(self) -> None:
        """Cuts every connection at once, as if the process had ended; ``stop`` must follow."""
        if self._door is not None:
            self._door.drop()

    async def stop(self) -> None:
        """Tells the clients to connect again elsewhere, serves what they have begun, and closes the port. The broker
        must still be running. Also right if ``start`` was not called.
        """
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._door is not None:
            await self._door.stop()
        self._close()

    async def _open(self, broker: Broker, listening: socket.socket) -> None:
        try:
            await broker.services.imports.get(_DOOR)
            from rucola.proxy.local_door import local_door

            self._door = local_door(broker, self.address, self._tls)
            await self._door.start(listening)
        except Exception as error:  # noqa: BLE001 - the broker serves its other clients
            broker.services.supervisor.failed("start of the gRPC port", error)
            self._door = None
            self._close()

    def _close(self) -> None:
        if self._listening is not None and self._listening.fileno() >= 0:
            with suppress(NotImplementedError):
                asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
