"""What every request must have and every answer has: host, origin, and the headers that bind browsers.

A page of another site can make a visitor's browser send requests here. It cannot read answers, because none allows it.
It cannot change anything, because its origin is refused, its forms have no word of the session, and a cookie does not
go with them. A name that was bent to 127.0.0.1 (DNS rebinding) is refused as a foreign host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from rucola.common.hosts import is_loopback, join_address
from rucola.console.config import ConsoleConfig

POLICY: Final = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
ANSWER_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


class Origins:
    """The names under which the console may be asked.

    Args:
        config: its options.
        port: the port on which it listens.
    """

    def __init__(self, config: ConsoleConfig, port: int) -> None:
        own = join_address(config.bind_address, port)
        names = {own.lower()}
        if is_loopback(own):
            names |= {f"{name}:{port}" for name in _LOCAL_NAMES} | set(_LOCAL_NAMES)
        self._any_address = config.bind_address in ("0.0.0.0", "::")
        self._port = port
        self._origins = {f"http://{name}" for name in names}
        if config.public_url:
            parts = urlsplit(config.public_url)
            names.add(parts.netloc.lower())
            self._origins.add(f"{parts.scheme}://{parts.netloc}".lower())
        self._hosts = names

    def is_host(self, host: str) -> bool:
        """Whether a request may name this host."""
        return host.lower() in self._hosts or self._is_own_address(host)

    def is_origin(self, origin: str) -> bool:
        """Whether a page of this origin may send changes."""
        if origin.lower() in self._origins:
            return True
        scheme, _, host = origin.partition("://")
        return scheme == "http" and self._is_own_address(host)

    def _is_own_address(self, host: str) -> bool:
        """Whether a console that listens on all addresses is asked by a number, which no foreign name server gives."""
        name, _, port = host.rpartition(":")
        return self._any_address and port == str(self._port) and _is_number(name)


def _is_number(host: str) -> bool:
    from ipaddress import ip_address

    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
