"""Errors say whether another attempt may succeed."""

from __future__ import annotations

import pickle

import pytest

from rucola.errors import (
    AddressesInUseError,
    AddressInUseError,
    BrokerError,
    ConfigError,
    MissingFileError,
    RucolaError,
)


@pytest.mark.parametrize(
    ("code", "remark", "helps"),
    [
        (16, "the broker[127.0.0.1] sending message is forbidden", True),
        (16, "the topic[orders] pulling message is forbidden", True),
        (16, "Sending message to topic[orders] is forbidden.", True),
        (16, "subscription group no permission, readers", True),
        (16, "access denied: no valid signature of an account", False),
        (16, "not now", True),
        (16, "check signature failed.", False),
        (16, "User:waiter has no permission to access Topic:orders from 127.0.0.1, the policy of no match", False),
        (1, "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=waiter, acl", False),
        (16, "User:waiter is not found.", False),
        (1, "create mapped file failed", True),
        (2, "[TIMEOUT_CLEAN_QUEUE]broker busy", True),
        (13, "message illegal", False),
    ],
)
def test_another_try_helps_where_a_place_is_closed_and_not_where_a_sender_is_refused(
    code: int, remark: str, helps: bool
) -> None:
    error = BrokerError(code, remark, "127.0.0.1:10911")
    assert error.retriable is helps
    assert ("another try may succeed" in str(error)) is helps


@pytest.mark.parametrize(
    "error",
    [
        MissingFileError("--config", "nope.conf"),
        AddressesInUseError((AddressInUseError("h:1", "--a"), AddressInUseError("h:2", "--b"))),
        ConfigError("sendMsgTimeout", "0", "an integer from 1", "send_msg_timeout_ms"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: RucolaError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy).keys()) == (type(error), str(error), vars(error).keys())
