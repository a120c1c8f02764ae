"""Start order and stop order of the parts of a server."""

from __future__ import annotations

import logging
from typing import Protocol

from rucola.runtime.logs import event

_log = logging.getLogger(__name__)


class Service(Protocol):
    """Anything that is started once and stopped once."""

    def start(self) -> None:
        """Begins to work; raises when it cannot."""
        ...

    def stop(self) -> None:
        """Stops the work; none of its threads is left afterwards."""
        ...


class ServiceGroup:
    """Starts services in the order they were added and stops them in the reverse order.

    A service that fails to start stops those started before it; a service that fails to stop does not keep the others
    from stopping: its error is raised when all have been asked. Used from one thread.
    """

    def __init__(self) -> None:
        self._services: list[tuple[str, Service]] = []
        self._started: list[tuple[str, Service]] = []

    def add(self, name: str, service: Service) -> None:
        """Puts ``service`` at the end of the start order."""
        self._services.append((name, service))

    def start(self) -> None:
        """Starts all; when one raises, those already running are stopped and its error goes on."""
        for name, service in self._services:
            try:
                service.start()
            except BaseException:
                self.stop()
                raise
            self._started.append((name, service))

    def stop(self) -> None:
        """Stops what was started, last first; raises the first error after all were asked."""
        first_error: Exception | None = None
        while self._started:
            name, service = self._started.pop()
            try:
                service.stop()
            except Exception as error:  # noqa: BLE001 - the others must still stop; raised below
                event(_log, logging.ERROR, "service did not stop", service=name, error=error)
                first_error = first_error or error
        if first_error is not None:
            raise first_error
