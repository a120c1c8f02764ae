"""A request that fails is repeated, and says so once."""

from __future__ import annotations

import logging

import pytest

from rucola.arrow.broker_link import BrokerLink
from rucola.arrow.read_options import ReadOptions, Subscription
from rucola.errors import BrokerError, RemotingError


def test_the_first_failure_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    async def fails(_consumer: object) -> None:
        asked.append(1)
        raise RemotingError("nobody is there")

    caplog.set_level(logging.INFO, "rucola.arrow.broker_link")
    with (
        BrokerLink(
            ReadOptions(subscription=Subscription(topics=("T",)), name_server="127.0.0.1:1", retry_timeout_ms=100)
        ) as link,
        pytest.raises(RemotingError, match="nobody is there"),
    ):
        link.ask(fails)
    assert len(asked) > 2
    assert [record.getMessage() for record in caplog.records] == ["tries again for up to 0 s: nobody is there"]


def test_a_refusal_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async def refused(_consumer: object) -> None:
        raise BrokerError(26, "no such group")

    with (
        BrokerLink(ReadOptions(subscription=Subscription(topics=("T",)), name_server="127.0.0.1:1")) as link,
        pytest.raises(BrokerError, match="no such group"),
    ):
        link.ask(refused)
    assert not caplog.records
