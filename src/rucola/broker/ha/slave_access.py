"""Who may copy the log: whoever reaches the HA port reads every message."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from rucola.errors import ConfigError

KEY = "haAllowedSlaves"


class SlaveAccess:
    """The addresses that may connect: loopback, and those that are listed.

    Args:
        allowed: addresses or networks, separated by commas, such as ``10.0.0.7,10.1.0.0/16``.
        insecure: whether every address may connect.

    Raises:
        ConfigError: an entry is neither an address nor a network.
    """

    def __init__(self, allowed: str, insecure: bool) -> None:
        self._insecure = insecure
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in filter(None, map(str.strip, allowed.split(","))):
            try:
                self._networks.append(ip_network(entry))
            except ValueError:
                raise ConfigError(KEY, entry, "numeric addresses or networks, separated by commas") from None

    def allows(self, host: str) -> bool:
        """Whether a peer with this numeric address may connect."""
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        address = address if mapped is None else mapped
        return self._insecure or address.is_loopback or any(address in network for network in self._networks)
