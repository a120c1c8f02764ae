"""Reports the state of this process to the service manager that started it (systemd, sd_notify(3)).

Each message is one datagram to the socket named by ``NOTIFY_SOCKET``. Without that variable, nothing is sent. If a
message cannot be sent, the server keeps running.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import MutableMapping

from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
_VARIABLE = "NOTIFY_SOCKET"
_PATH_BYTES_MAX = 107


class ServiceManager:
    """Sends messages to the service manager. Any thread may call the methods.

    Args:
        environment: the environment of this process; ``NOTIFY_SOCKET`` is removed from it, so that child processes do
            not send messages to the service manager.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop(_VARIABLE, "")
        # A leading @ denotes a name in the abstract namespace. Other kinds of sockets (vsock) are for virtual machines.
        known = self._address[:1] in ("/", "@") and len(self._address.encode()) <= _PATH_BYTES_MAX
        if self._address and not (known and hasattr(socket, "AF_UNIX")):
            event(logger, logging.WARNING, "service manager cannot be reached", address=self._address)
            self._address = ""

    def ready(self) -> None:
        """Reports that the service is ready: units that depend on it may start."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Reports that the service is stopping."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # a manager that hangs must not block the process
                sender.sendto(message.encode(), address)
        except OSError as error:
            event(logger, logging.WARNING, "service manager not told", state=message, error=error)
