"""Servers that clients of RocketMQ 5 are played against."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates
from tests.conformance.grpc.scenarios import ACCOUNT, GUARDED, GUEST, RESTARTING, SETTINGS, SINCE, VERIFYING, Admin
from tools.peers.packages import PeerError
from tools.peers.servers import FrontedServers, ProxiedServers, RucolaServers, Servers

OFFICIAL = ("official", "official-cluster")
NAMES = (*OFFICIAL, RucolaServers.name, FrontedServers.name)
_ADMIN = json.dumps({"username": ACCOUNT.name, "password": ACCOUNT.secret})
_AUTH = "org.apache.rocketmq.auth"
_PROXY_AUTH = "org.apache.rocketmq.proxy.auth"
_USERS: dict[str, object] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": _ADMIN,
}
_PROVIDERS: dict[str, object] = {
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ACCOUNT.name, "secretKey": ACCOUNT.secret}),
}
_OFFICIAL_USERS: dict[str, object] = {
    **_USERS,
    **_PROVIDERS,
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
_PROXY_USERS: dict[str, object] = {
    **_USERS,
    **_PROVIDERS,
    "authenticationMetadataProvider": f"{_PROXY_AUTH}.ProxyAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_PROXY_AUTH}.ProxyAuthorizationMetadataProvider",
}


@dataclass(frozen=True)
class Target:
    """A server to run against.

    Attributes:
        name: as in the command line.
        endpoints: gRPC address, ``host:port``.
        broker: remoting address of the broker.
        namesrv: address of the name server; empty if it is not known.
        servers: its processes, for a restart; None if it is not ours to stop.
        authority: PEM file that signs the certificate of the gRPC port; None if it is not known.
        guarded: whether it has accounts.
        version: version of the official servers; empty if the broker is ours.
    """

    name: str
    endpoints: str
    broker: str
    namesrv: str = ""
    servers: Servers | None = None
    authority: Path | None = None
    guarded: bool = False
    version: str = ""

    def admin(self) -> Admin:
        """Creates topics and groups."""
        return Admin(self.broker, ACCOUNT if self.guarded else None)

    def serves(self, scenario: str) -> bool:
        """Whether a scenario can be played here."""
        if (scenario in GUARDED) != self.guarded or (self.version and is_older(self.version, SINCE.get(scenario, "0"))):
            return False
        return (self.servers is not None or scenario != RESTARTING) and (
            self.authority is not None or scenario != VERIFYING
        )


def is_older(version: str, other: str) -> bool:
    """Whether a version comes before another one."""
    first, second = ([int(part) for part in text.split(".")] for text in (version, other))
    return first < second


@contextmanager
def target_of(name: str, version: str, guarded: bool = False) -> Iterator[Target]:
    """Starts a peer, unless it is an address.

    Args:
        name: one of ``NAMES``, or ``HOST:PORT/HOST:PORT``.
        version: of the official servers.
        guarded: whether clients need an account.
    """
    if name not in NAMES:
        endpoints, broker, namesrv, *_ = [*name.split("/"), "", ""]
        if not broker:
            raise PeerError(f"{name}: write HOST:PORT/HOST:PORT, the gRPC address and that of the broker")
        yield Target(name, endpoints, broker, namesrv, guarded=guarded)
        return
    with tempfile.TemporaryDirectory(prefix="rucola-peers-") as directory:
        folder = Path(directory)
        make_certificates(folder)
        with _servers(name, version, folder, guarded) as servers:
            authority = folder / AUTHORITY
            official = "" if name == RucolaServers.name else version
            target = Target(name, servers.proxy, servers.broker, servers.namesrv, servers, authority, guarded, official)
            if guarded:
                target.admin().create_account(GUEST)
            yield target


def _servers(name: str, version: str, folder: Path, guarded: bool) -> ProxiedServers | RucolaServers | FrontedServers:
    files: dict[str, object] = {"tlsCertPath": folder / CERTIFICATE, "tlsKeyPath": folder / KEY}
    if name == RucolaServers.name:
        return RucolaServers(settings=SETTINGS | files | (_USERS if guarded else {}), grpc=True)
    settings = SETTINGS | (_OFFICIAL_USERS if guarded else {})
    if name == FrontedServers.name:
        users = _users_of_our_proxy(folder) if guarded else {}
        return FrontedServers(version=version, settings=settings, proxy_settings=files | users)
    named: dict[str, object] = {key: str(path) for key, path in files.items()}
    proxy_settings = {"tlsTestModeEnable": False, **named, **(_PROXY_USERS if guarded else {})}
    return ProxiedServers(version, settings, local=name == "official", proxy_settings=proxy_settings)


def _users_of_our_proxy(folder: Path) -> dict[str, object]:
    """Writes the users into a file, as a broker of ours would have it; returns the options of ``rucola proxy``."""
    users = {
        account.name: {"username": account.name, "password": account.secret, "userType": kind, "userStatus": "enable"}
        for account, kind in ((ACCOUNT, "Super"), (GUEST, "Normal"))
    }
    (folder / "config").mkdir()
    (folder / "config" / "rucola-auth.json").write_text(json.dumps({"users": users, "acls": {}}))
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "rocketmqHome": folder,
        "accessKey": ACCOUNT.name,
        "secretKey": ACCOUNT.secret,
    }
