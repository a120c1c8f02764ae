"""Options of ``rucola console``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rucola.common.hosts import check_bind_address, split_address
from rucola.common.options import check_options, documented, option
from rucola.errors import ConfigError
from rucola.runtime.files import Files

PORT: Final = 8090
COLORS: Final = ("gray", "red", "orange", "green", "blue", "violet")
RESERVED: Final = frozenset({"api", "static", "login", "logout", "view"})
"""First words of addresses, which no cluster may have as its name."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_CLUSTERS = "[NAME[/COLOR]=]host:port, several name servers separated by ; and several clusters by |"


class ClusterAt(NamedTuple):
    """A cluster that the console shows.

    Attributes:
        name: its name in addresses.
        color: color of its name, one of ``COLORS``.
        namesrv: its name servers, ``host:port`` separated by semicolons.
    """

    name: str
    color: str
    namesrv: str


@documented
@dataclass(frozen=True, kw_only=True)
class ConsoleConfig:
    """Options of the console. All keys are Rucola's own, except those for connections to brokers."""

    clusters: str = option(
        "namesrvAddr",
        "127.0.0.1:9876",
        "Name servers as `host:port`, separated by semicolons. For several clusters: "
        f"`prod/red=host:port|test=host:port`; colors: {', '.join(COLORS)}.",
    )
    bind_address: str = option("bindAddress", "127.0.0.1", "Address to listen on.")
    port: int = option("consolePort", PORT, "Port of the pages; 0 for any free port.", minimum=0, maximum=65535)
    data: str = option(
        "consoleData",
        "",
        "Directory of the history and the audit log; one console at a time uses it. If empty, "
        "`$XDG_STATE_HOME/rucola/console/PORT` or `~/.local/state/rucola/console/PORT`.",
    )
    stores: str = option(
        "consoleStores",
        "",
        "Store directories on this machine that super users may look into, separated by commas.",
    )
    public_url: str = option(
        "publicUrl",
        "",
        "Address under which a reverse proxy shows the console, with the path if there is one: "
        "`https://ops.example.org/rucola`. Everybody must then sign in.",
    )
    insecure: bool = option(
        "insecure",
        False,
        "Whether the console may listen on an address that others can reach, and may show clusters without accounts "
        "to everybody who reaches it.",
    )
    read_only: bool = option("readOnly", False, "Whether the console refuses all changes.")
    bodies_for: str = option(
        "bodiesFor",
        "*",
        "Accounts that may see bodies, keys and properties of messages, separated by commas; `*` for everybody.",
    )
    body_schemas: str = option(
        "bodySchemas",
        "",
        "Schemas of bodies, read at the start: `orders=orders.avsc,bills=bills.desc#acme.Bill`; with `+5` at the end, "
        "the first five bytes of a body are skipped. Avro schemas of records, or descriptor sets "
        "(`protoc --include_imports --descriptor_set_out`). Needs the extra `schemas`.",
    )
    refresh_ms: int = option(
        "refreshInterval",
        2_000,
        "Pause between two looks at the brokers while somebody watches; otherwise 60 s.",
        unit="ms",
        minimum=500,
        maximum=60_000,
    )
    signature_version: int = option(
        "signatureVersion",
        1,
        "How requests of accounts are signed. 1: as every broker knows it. 2: so that they cannot be replayed, for "
        "Rucola's brokers only.",
        minimum=1,
        maximum=2,
    )
    use_tls: bool = option("useTLS", False, "Whether connections to name servers and brokers use TLS.")
    tls_trust_cert_path: str = option(
        "tlsClientTrustCertPath",
        "",
        "PEM file with the authorities that may sign certificates of servers. If empty, the system's authorities.",
    )

    def __post_init__(self) -> None:
        check_options(
            self,
            lambda: check_bind_address(self.bind_address, self.insecure),
            self._check_clusters,
            self._check_public_url,
            self._check_stores,
        )

    @property
    def cluster_list(self) -> tuple[ClusterAt, ...]:
        """The clusters, in the order in which they are given."""
        return tuple(_cluster(text) for text in self.clusters.split("|"))

    @property
    def store_list(self) -> tuple[str, ...]:
        """The store directories, in the order in which they are given."""
        return tuple(path.strip() for path in self.stores.split(",") if path.strip())

    @property
    def base_path(self) -> str:
        """Path in front of every address, without a slash at its end; empty if there is none."""
        return urlsplit(self.public_url).path.rstrip("/")

    @property
    def is_open(self) -> bool:
        """Whether visitors need not sign in where brokers have no accounts."""
        return self.insecure or not self.public_url

    def may_see_bodies(self, account: str) -> bool:
        """Whether an account may see the content of messages; an empty name stands for visitors without an account."""
        names = [name.strip() for name in self.bodies_for.split(",")]
        return "*" in names or (bool(account) and account in names)

    def _check_clusters(self) -> None:
        names = [cluster.name for cluster in self.cluster_list]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError("namesrvAddr", self.clusters, f"each name once, not {twice} twice", "clusters")

    def _check_stores(self) -> None:
        missing = next((path for path in self.store_list if not Files().is_directory(path)), None)
        if missing is not None:
            raise ConfigError("consoleStores", missing, "existing directories, separated by commas", "stores")

    def _check_public_url(self) -> None:
        if not self.public_url:
            return
        parts = urlsplit(self.public_url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise ConfigError("publicUrl", self.public_url, "http://HOST/PATH or https://HOST/PATH", "public_url")
        if parts.path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*/?", parts.path):
            raise ConfigError("publicUrl", self.public_url, "a path of letters, digits and ._~-", "public_url")


def _cluster(text: str) -> ClusterAt:
    given, equals, namesrv = text.strip().rpartition("=")
    name, _, color = given.partition("/")
    name, color = (name if equals else "cluster"), color or COLORS[0]
    if not _NAME.fullmatch(name) or name in RESERVED or color not in COLORS:
        raise ConfigError("namesrvAddr", text, _CLUSTERS, "clusters")
    try:
        for address in namesrv.split(";"):
            split_address(address.strip())
    except ValueError:
        raise ConfigError("namesrvAddr", text, _CLUSTERS, "clusters") from None
    return ClusterAt(name, color, namesrv.strip())
