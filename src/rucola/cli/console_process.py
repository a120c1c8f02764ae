"""The console of ``rucola up --console`` and ``rucola broker --console``: a child process, which ends with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from rucola.cli.exit_codes import ProcessStartError
from rucola.cli.http import HttpServer, in_use
from rucola.cli.serve import LogOptions
from rucola.cli.server_process import ServerProcess
from rucola.common.hosts import join_address
from rucola.runtime.extras import CONSOLE, require
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"


class ConsoleProcess(ServerProcess):
    """The console. Call ``check_port`` before ``start_soon``, and ``stop`` once.

    Nobody waits for it: the servers are ready before the console is, and go on without it if it cannot start. It
    listens on loopback, because visitors of brokers without accounts need not sign in there.

    Args:
        port: its port; 0 for any free port.
        log: log options of the process.

    Raises:
        MissingExtraError: the extra ``console`` is not installed.
    """

    _arguments: ClassVar = ("console",)

    def __init__(self, port: int, log: LogOptions) -> None:
        require(CONSOLE, "--console")
        super().__init__("console", {"bindAddress": HOST}, log)
        self._port = port
        self._starting: asyncio.Task[None] | None = None

    def check_port(self) -> None:
        """Checks that the port is free, and chooses one if any will do.

        Raises:
            AddressInUseError: another process listens there.
        """
        if self._port:
            error = in_use(HOST, self._port, "--console-port")
            if error is not None:
                raise error
        else:
            free = HttpServer(HOST, 0)
            free.bind()
            self._port = int(free.address.rpartition(":")[2])
            free.close()
        self.address = join_address(HOST, self._port)
        self._values["consolePort"] = str(self._port)

    def start_soon(self, namesrv: str) -> None:
        """Starts the console of the clusters of ``namesrv``, and does not wait for it."""
        self._values["namesrvAddr"] = namesrv
        self._starting = asyncio.create_task(self._start())

    async def stop(self) -> None:
        """Ends it, also while it starts."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await super().stop()

    async def _start(self) -> None:
        try:
            await self.start()
        except (ProcessStartError, OSError) as error:
            event(logger, logging.ERROR, "console cannot be started, the servers go on without it", error=repr(error))

    def _take(self, facts: Mapping[str, Any]) -> None:
        self.address = facts["console"]
