"""Network addresses in the form that message records use: 4 or 16 address bytes, then the port as a signed 32-bit
integer, big-endian.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

from rucola.errors import ConfigError

_PROTECTED = (
    "a loopback address such as 127.0.0.1; any other address needs insecure=true or TLS "
    "(on a broker, TLS with aclEnable or authenticationEnabled)"
)


def host_bytes(address: str, port: int) -> bytes:
    """Returns the 8 (IPv4) or 20 (IPv6) bytes for ``address`` and ``port``.

    A zone such as ``%eth0`` is dropped; a mapped IPv4 address stays IPv6.

    Raises:
        ValueError: if ``address`` is not a numeric address, or ``port`` not in 0..65535.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port {port} is not in 0..65535")
    return ip_address(address.partition("%")[0]).packed + port.to_bytes(4, "big")


def host_parts(host: bytes) -> tuple[str, int]:
    """Address text and port of a host in record form; the port field is signed and not checked.

    Raises:
        ValueError: if ``host`` has neither 8 nor 20 bytes.
    """
    if len(host) not in (8, 20):
        raise ValueError(f"a host has 8 or 20 bytes, not {len(host)}")
    port = int.from_bytes(host[-4:], "big", signed=True)
    if len(host) == 8:
        return str(IPv4Address(host[:4])), port
    return str(IPv6Address(host[:16])), port


def host_text(host: bytes) -> str:
    """Returns ``address:port`` of a host in record form, with brackets around an IPv6 address.

    Raises:
        ValueError: if ``host`` has neither 8 nor 20 bytes.
    """
    return join_address(*host_parts(host))


def split_address(text: str) -> tuple[str, int]:
    """Splits ``host:port`` at the last colon into host name or address, and port; removes brackets.

    Raises:
        ValueError: if the host is missing, or there is no port in 0..65535.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not of the form host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Returns ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether ``host:port`` has a numeric loopback address; False for anything else."""
    try:
        return ip_address(split_address(address)[0].partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_bind_address(address: str, insecure: bool) -> None:
    """Refuses an unprotected port on an address that other machines can reach.

    Args:
        address: address to listen on.
        insecure: whether any address is allowed. Callers pass True if the port is protected, or if the option
            ``insecure`` permits an unprotected port.

    Raises:
        ConfigError: ``address`` is not numeric, or it is not a loopback address and ``insecure`` is False.
    """
    try:
        loopback = ip_address(address).is_loopback
    except ValueError:
        raise ConfigError("bindAddress", address, "a numeric IP address") from None
    if not loopback and not insecure:
        raise ConfigError("bindAddress", address, _PROTECTED)
