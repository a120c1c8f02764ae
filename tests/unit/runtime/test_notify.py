"""Messages to the service manager, also if it does not listen."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from rucola.runtime.notify import ServiceManager


def listening(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(address)
    receiver.settimeout(10)
    return receiver


@pytest.mark.parametrize("abstract", [False, True])
def test_each_state_is_one_datagram(tmp_path: Path, abstract: bool) -> None:
    name = str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": "@" + name if abstract else name, "HOME": "/"}
    with listening("\0" + name if abstract else name) as receiver:
        manager = ServiceManager(environment)
        manager.ready()
        manager.stopping()
        assert [receiver.recv(100), receiver.recv(100)] == [b"READY=1", b"STOPPING=1"]
    assert environment == {"HOME": "/"}


def test_without_a_manager_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({}).ready()
    assert not caplog.records


@pytest.mark.parametrize("address", ["/nowhere/notify", "vsock:2:1234", "relative", "/" + "x" * 200])
def test_a_manager_that_is_not_there_stops_nothing(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rucola.runtime.notify"):
        manager = ServiceManager({"NOTIFY_SOCKET": address})
        manager.ready()
    assert len(caplog.records) == 1


def test_a_manager_that_hangs_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = str(tmp_path / "notify")
    with listening(name), caplog.at_level(logging.WARNING, "rucola.runtime.notify"):
        manager = ServiceManager({"NOTIFY_SOCKET": name})
        for _ in range(5000):
            manager.ready()
            if caplog.records:
                break
        assert vars(caplog.records[0])["rucola_event"] == "service manager not told"
