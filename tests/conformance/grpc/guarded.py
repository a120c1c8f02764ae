"""Forms of authorization with the scripted client: ``python -m tests.conformance.grpc.guarded [--peer PEER]``.

The official clients write a signature in upper or lower case, and some name a region and a service with the access
key. The server has accounts. Its codes are compared with those of the official proxy, ``OFFICIAL_CODES``. A peer that
is an address is ``GRPC/BROKER``, each ``host:port``, and needs the account ``ADMIN``. Exit status: 0 if the codes are
equal, 1 if not, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.conformance.grpc.scenarios import SETTINGS, Admin
from tests.conformance.grpc.scripted import DATE, Peer, Telemetry, producer_settings
from tools.peers.packages import PeerError
from tools.peers.servers import ProxiedServers
from tools.peers.wire import call

from rucola.proxy import messages as m

ADMIN = {"username": "admin", "password": "a-secret-of-the-admin"}
BROKER_AUTH = "org.apache.rocketmq.auth"
PROXY_AUTH = "org.apache.rocketmq.proxy.auth"
PROVIDERS = {
    "authenticationProvider": f"{BROKER_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authorizationProvider": f"{BROKER_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "initAuthenticationUser": json.dumps(ADMIN),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": ADMIN["username"], "secretKey": ADMIN["password"]}
    ),
}
BROKER_SETTINGS: dict[str, object] = {
    **SETTINGS,
    **PROVIDERS,
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationMetadataProvider": (f"{BROKER_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"),
    "authorizationMetadataProvider": f"{BROKER_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
PROXY_SETTINGS: dict[str, object] = {
    **PROVIDERS,
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "authenticationMetadataProvider": f"{PROXY_AUTH}.ProxyAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{PROXY_AUTH}.ProxyAuthorizationMetadataProvider",
}
GOOD, REFUSED = [20000, 20000, 40015], [40100, 40100, 40100]
OFFICIAL_CODES: dict[str, Any] = {
    "upper": GOOD,
    "lower": GOOD,
    "region": GOOD,
    "slashes": GOOD,
    "wrong": REFUSED,
    "unknown": REFUSED,
    "empty": REFUSED,
    "malformed": REFUSED,
    "no_date": REFUSED,
    "none": REFUSED,
    "telemetry_without": 40100,
}
"""Codes of SendMessage, QueryRoute and a Heartbeat before settings, and of the answer to settings."""


def main(arguments: list[str]) -> int:
    """Sends all forms; prints the codes that differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.grpc.guarded", description=__doc__)
    parser.add_argument("--peer", default="official")
    options = parser.parse_args(arguments)
    try:
        with addresses(options.peer) as (endpoints, broker):
            found = codes(endpoints, broker)
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    for name, expected in OFFICIAL_CODES.items():
        print(f"{name:18} {found[name]}" + ("" if found[name] == expected else f", official: {expected}"))
    return 0 if found == OFFICIAL_CODES else 1


@contextmanager
def addresses(peer: str) -> Iterator[tuple[str, str]]:
    """Yields the addresses for gRPC and of the broker; starts the official servers if they are the peer."""
    if peer == "official":
        with ProxiedServers(settings=BROKER_SETTINGS, local=True, proxy_settings=PROXY_SETTINGS) as servers:
            yield servers.proxy, servers.broker
    else:
        endpoints, _, broker = peer.partition("/")
        yield endpoints, broker


class SigningAdmin(Admin):
    """Signs its requests as ``ADMIN``."""

    def _request(self, code: int, fields: dict[str, object], body: bytes = b"") -> dict[str, Any]:
        named = {**{key: str(value) for key, value in fields.items()}, "AccessKey": ADMIN["username"]}
        data = "".join(named[key] for key in sorted(named)).encode() + body
        signature = hmac.new(ADMIN["password"].encode(), data, hashlib.sha1).digest()
        answer = call(self.broker, code, {**named, "Signature": base64.b64encode(signature).decode()}, body)
        if answer["code"] != 0:
            raise PeerError(f"request {code} failed: {answer}")
        return answer


def codes(endpoints: str, broker: str) -> dict[str, Any]:
    """Calls with each form of authorization."""
    peer = Peer(endpoints, "", f"guarded_{int(time.time()):x}")
    topic = peer.topic_of("NORMAL")
    SigningAdmin(broker).topic(topic.name, "NORMAL", 4)
    signature = hmac.new(ADMIN["password"].encode(), DATE.encode(), hashlib.sha1).hexdigest()
    forms = {
        "upper": header("admin", signature.upper()),
        "lower": header("admin", signature),
        "region": header("admin/region/service", signature),
        "slashes": header("admin//", signature),
        "wrong": header("admin", "00"),
        "unknown": header("nobody", signature),
        "empty": header("", signature),
        "malformed": "nothing",
        "no_date": header("admin", signature),
        "none": "",
    }
    found: dict[str, Any] = {}
    for name, text in forms.items():
        headers = {"authorization": text, "x_mq_date_time": "" if name == "no_date" else DATE}
        found[name] = [
            peer.send_code(peer.message(), **headers),
            peer.code("QueryRoute", m.QueryRouteRequest(topic=topic), **headers),
            peer.code("Heartbeat", m.HeartbeatRequest(client_type=m.PRODUCER), **headers),
        ]
    answer = Telemetry(peer).settings(producer_settings(topic))
    found["telemetry_without"] = answer if isinstance(answer, str) else answer.status.code
    return found


def header(credential: str, signature: str) -> str:
    """The text of an authorization."""
    return f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signature}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
