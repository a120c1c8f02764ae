"""Topics and groups of the scenarios, and the options of servers under which they end soon."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.peers.packages import PeerError
from tools.peers.wire import call

UPDATE_AND_CREATE_TOPIC = 17
UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 200
GET_MAX_OFFSET = 30
CREATE_USER = 3001
READ_WRITE = 6
SETTINGS: dict[str, object] = {
    "enablePropertyFilter": "true",
    "enableMixedMessageType": "true",
    "recallMessageEnable": "true",
    "transactionTimeOut": 3000,
    "transactionOpBatchInterval": 300,
    "transactionCheckInterval": 1500,
}
"""Lines of ``broker.conf``."""
SOON_MS = 1000
"""Delay before each further delivery to the groups."""
DEAD_LETTERS_S = 15


@dataclass(frozen=True)
class Scenario:
    """What exists before a scenario starts.

    Attributes:
        type: the topic's ``message.type``.
        queues: queues of the topic.
        orderly: whether the group consumes each queue in order.
        max_retries: deliveries after the first.
        dead: whether dead letters of the group are counted at the end.
    """

    type: str = "NORMAL"
    queues: int = 4
    orderly: bool = False
    max_retries: int = 16
    dead: bool = False


SCRIPTED = "raw_"
"""Prefix of the scenarios of the scripted client. Each has a topic for each of ``KINDS`` and an orderly group, too."""
KINDS = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
SCENARIOS = {
    "send_normal": Scenario(),
    "send_fifo": Scenario("FIFO", orderly=True),
    "send_delay": Scenario("DELAY"),
    "recall": Scenario("DELAY"),
    "priority": Scenario("PRIORITY"),
    "transaction": Scenario("TRANSACTION"),
    "redelivery": Scenario(),
    "change_invisible": Scenario(),
    "push": Scenario(),
    "push_share": Scenario(),
    "push_retry": Scenario(),
    "push_dead": Scenario(max_retries=1, dead=True),
    "push_fifo": Scenario("FIFO", orderly=True, max_retries=1, dead=True),
    "filter_tag": Scenario(),
    "filter_sql": Scenario(),
    "unknown_topic": Scenario(),
    "wrong_type": Scenario("TRANSACTION"),
    "too_large": Scenario(),
    "restart": Scenario(),
    "tls": Scenario(),
    "accounts": Scenario(),
    "raw_settings": Scenario(max_retries=3),
    "raw_route": Scenario(),
    "raw_refusals": Scenario(),
    "raw_receive": Scenario(),
    "raw_handles": Scenario(),
    "raw_orders": Scenario(),
    "raw_transaction": Scenario(),
    "raw_digest": Scenario(),
    "raw_authorization": Scenario(),
    "raw_tls": Scenario(),
    "raw_methods": Scenario(),
    "raw_accounts": Scenario(),
}
RESTARTING = "restart"
"""The scenario that kills the servers."""
SINCE = {"priority": "5.5.0"}
"""Scenarios of features that the official server has in a later version than ``SERVER_VERSION``."""
VERIFYING = "tls"
"""The scenario in which clients verify the certificate of the server."""
GUARDED = ("accounts", "raw_accounts")
"""The scenarios that need a server with accounts."""


@dataclass(frozen=True)
class Account:
    """Name and secret of an account."""

    name: str
    secret: str


ACCOUNT = Account("admin", "a-secret-of-the-admin")
"""May do everything."""
GUEST = Account("guest", ACCOUNT.secret)
"""May do nothing."""


@dataclass
class Admin:
    """Creates topics and groups through the remoting port of a broker.

    Attributes:
        broker: ``host:port``.
        account: signs the requests; None if they need no signature.
    """

    broker: str
    account: Account | None = None

    def prepare(self, prefix: str, names: Sequence[str]) -> None:
        """Creates topic and group of each scenario."""
        for name in names:
            scenario = SCENARIOS[name]
            topic, group = f"T_{prefix}{name}", f"G_{prefix}{name}"
            self.group(group, scenario.orderly, scenario.max_retries)
            if name.startswith(SCRIPTED):
                self.group(f"{group}_orderly", True, scenario.max_retries)
                for kind in KINDS:
                    self.topic(f"{topic}_{kind}", kind, scenario.queues)
            else:
                self.topic(topic, scenario.type, scenario.queues)

    def topic(self, topic: str, kind: str, queues: int) -> None:
        """Creates a topic for one kind of messages."""
        fields: dict[str, object] = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": READ_WRITE,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
            "attributes": f"+message.type={kind}",
        }
        self._request(UPDATE_AND_CREATE_TOPIC, fields)

    def group(self, group: str, orderly: bool, max_retries: int) -> None:
        """Creates a group that gets a message again after one second."""
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [SOON_MS]}}
        config = {
            "groupName": group,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeBroadcastEnable": True,
            "consumeMessageOrderly": orderly,
            "retryQueueNums": 1,
            "retryMaxTimes": max_retries,
            "groupRetryPolicy": policy,
        }
        self._request(UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, json.dumps(config).encode())

    def create_account(self, account: Account) -> None:
        """Creates an account that may do nothing."""
        user = {"username": account.name, "password": account.secret, "userType": "Normal", "userStatus": "enable"}
        self._request(CREATE_USER, {"username": account.name}, json.dumps(user).encode())

    def dead_letters(self, prefix: str, name: str) -> int:
        """Counts the dead letters of a scenario's group; waits for the first."""
        deadline = time.monotonic() + DEAD_LETTERS_S
        count = 0
        while not count and time.monotonic() < deadline:
            fields: dict[str, object] = {"topic": f"%DLQ%G_{prefix}{name}", "queueId": 0}
            answer = call(self.broker, GET_MAX_OFFSET, fields)
            count = int(answer.get("extFields", {}).get("offset", 0)) if answer["code"] == 0 else 0
            time.sleep(0.2)
        return count

    def _request(self, code: int, fields: dict[str, object], body: bytes = b"") -> dict[str, Any]:
        answer = call(self.broker, code, fields if self.account is None else signed(fields, body, self.account), body)
        if answer["code"] != 0:
            raise PeerError(f"request {code} failed: {answer}")
        return answer


def signed(fields: dict[str, object], body: bytes, account: Account) -> dict[str, object]:
    """Returns the fields of a request with an account's signature."""
    named = {**{key: str(value) for key, value in fields.items()}, "AccessKey": account.name}
    data = "".join(named[key] for key in sorted(named)).encode() + body
    signature = hmac.new(account.secret.encode(), data, hashlib.sha1).digest()
    return {**named, "Signature": base64.b64encode(signature).decode()}
