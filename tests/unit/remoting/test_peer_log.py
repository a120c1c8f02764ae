"""The log of closed connections: nobody fills it, and no address hides another."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.brokers import run_virtual

from rucola.remoting import peer_log
from rucola.remoting.peer_log import AddressLog


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, ...]]:
    """Peer, reason and number of connections without a line of their own; forgets them."""
    found = [
        re.findall(r'peer=(\S*) reason="?(\w*)"? not_logged=(\d+)', record.getMessage()) for record in caplog.records
    ]
    caplog.clear()
    return [each for line in found for each in line]


def test_each_address_has_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        log = AddressLog()
        for second in range(61):
            for peer in ("10.0.0.1", "[fe80::1]:7", "fe80::2"):
                log.closed(peer, "expired")
            log.closed(f"10.0.0.2:{second}", "stranger")
            if second == 0:
                first = [("10.0.0.1", "expired", "0"), ("[fe80::1]:7", "expired", "0"), ("fe80::2", "expired", "0")]
                assert lines(caplog) == [*first, ("10.0.0.2:0", "stranger", "0")]
            elif second < 60:
                assert not lines(caplog)
            await asyncio.sleep(1)
        assert [line[2] for line in lines(caplog)] == ["59"] * 4

    run_virtual(play())


def test_many_addresses_share_a_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_log, "ADDRESSES_MAX", 3)

    async def play() -> None:
        log = AddressLog()
        for number in range(50):
            log.closed(f"10.0.0.{number}:9", "stranger")
        assert [line[0] for line in lines(caplog)] == [f"10.0.0.{number}:9" for number in range(4)]
        assert len(log._lines) == 4
        await asyncio.sleep(61)
        log.closed("10.0.1.1:9", "stranger")
        assert lines(caplog) == [("10.0.1.1:9", "stranger", "0")] and len(log._lines) == 1

    run_virtual(play())
