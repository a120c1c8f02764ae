"""S3 servers for the tests in this directory, one of each kind for the session, each with a proxy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.lake.s3_proxy import FaultyS3
from tests.lake.s3_server import MOTO, S3Server, servers
from tests.leavings import for_the_session


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment knows of an account on object stores must not reach a test, nor a test an account."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)


@pytest.fixture(scope="session")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, S3Server]]:
    """Servers that tests have asked for, by kind."""
    with ExitStack() as running:

        class Servers(dict[str, S3Server]):
            def __missing__(self, kind: str) -> S3Server:
                with for_the_session():
                    self[kind] = running.enter_context(S3Server(tmp_path_factory.mktemp(kind), kind))
                return self[kind]

        yield Servers()


@pytest.fixture
def s3_server(_started: dict[str, S3Server]) -> S3Server:
    """The short form's server."""
    return _started[MOTO]


@pytest.fixture(params=servers())
def each_s3_server(request: pytest.FixtureRequest, _started: dict[str, S3Server]) -> S3Server:
    """Each server that is there: SeaweedFS only where ``make lake`` has built it."""
    return _started[request.param]


@pytest.fixture(scope="session")
def _proxies(_started: dict[str, S3Server]) -> Iterator[dict[str, FaultyS3]]:
    """Proxies that tests have asked for, by kind of server."""
    with ExitStack() as running:

        class Proxies(dict[str, FaultyS3]):
            def __missing__(self, kind: str) -> FaultyS3:
                with for_the_session():
                    self[kind] = running.enter_context(FaultyS3(_started[kind]))
                return self[kind]

        yield Proxies()


@pytest.fixture
def faulty_s3(_proxies: dict[str, FaultyS3]) -> FaultyS3:
    """A proxy before the short form's server, without faults yet."""
    _proxies[MOTO].reset()
    return _proxies[MOTO]


@pytest.fixture
def each_faulty_s3(each_s3_server: S3Server, _proxies: dict[str, FaultyS3]) -> FaultyS3:
    """A proxy before each server that is there, without faults yet."""
    _proxies[each_s3_server.kind].reset()
    return _proxies[each_s3_server.kind]
