"""Hosts and origins under which the console may be asked."""

from __future__ import annotations

import pytest

from rucola.console.access.headers import Origins
from rucola.console.config import ConsoleConfig

LOCAL = Origins(ConsoleConfig(), 8090)
PROXIED = Origins(ConsoleConfig(public_url="https://Ops.example.org/rucola"), 8090)
ANYWHERE = Origins(ConsoleConfig(bind_address="0.0.0.0", insecure=True), 8090)


@pytest.mark.parametrize(
    ("origins", "host", "expected"),
    [
        (LOCAL, "127.0.0.1:8090", True),
        (LOCAL, "localhost:8090", True),
        (LOCAL, "[::1]:8090", True),
        (LOCAL, "LOCALHOST:8090", True),
        (LOCAL, "localhost:80", False),
        (LOCAL, "evil.example:8090", False),
        (LOCAL, "127.0.0.1.evil.example:8090", False),
        (LOCAL, "", False),
        (PROXIED, "ops.example.org", True),
        (PROXIED, "ops.example.org.evil", False),
        (ANYWHERE, "10.1.2.3:8090", True),
        (ANYWHERE, "[fd00::1]:8090", True),
        (ANYWHERE, "10.1.2.3:8091", False),
        (ANYWHERE, "rebound.example:8090", False),
    ],
)
def test_hosts(origins: Origins, host: str, expected: bool) -> None:
    assert origins.is_host(host) is expected


@pytest.mark.parametrize(
    ("origins", "origin", "expected"),
    [
        (LOCAL, "http://localhost:8090", True),
        (LOCAL, "http://127.0.0.1:8090", True),
        (LOCAL, "http://127.0.0.1:9999", False),
        (LOCAL, "https://evil.example", False),
        (LOCAL, "null", False),
        (PROXIED, "https://ops.example.org", True),
        (PROXIED, "http://ops.example.org", False),
        (ANYWHERE, "http://10.1.2.3:8090", True),
        (ANYWHERE, "https://10.1.2.3:8090", False),
    ],
)
def test_origins(origins: Origins, origin: str, expected: bool) -> None:
    assert origins.is_origin(origin) is expected
