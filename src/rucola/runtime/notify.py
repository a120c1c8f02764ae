"""The service manager that started this process, when it wants to hear how the process is (systemd, sd_notify(3)).

Each message is one datagram to the socket that ``NOTIFY_SOCKET`` names. Without it nothing is sent; a manager that does
not take a message is no reason to stop serving.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import MutableMapping

from rucola.runtime.logs import event

_log = logging.getLogger(__name__)
_VARIABLE = "NOTIFY_SOCKET"
_PATH_BYTES_MAX = 107


class ServiceManager:
    """Tells the service manager; may be used from any thread.

    Args:
        environment: of this process; the variable is taken out, so that processes it starts do not speak for it.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop(_VARIABLE, "")
        # A leading @ stands for the abstract namespace; other kinds of sockets (vsock) are for virtual machines.
        known = self._address[:1] in ("/", "@") and len(self._address.encode()) <= _PATH_BYTES_MAX
        if self._address and not (known and hasattr(socket, "AF_UNIX")):
            event(_log, logging.WARNING, "service manager cannot be reached", address=self._address)
            self._address = ""

    def ready(self) -> None:
        """The start is over: what depends on this service may begin."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The end has begun."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # a manager that hangs must not hang us
                sender.sendto(message.encode(), address)
        except OSError as error:
            event(_log, logging.WARNING, "service manager not told", state=message, error=error)
