"""Changes and shows accounts by request (RocketMQ up to 5.3.2, ``AdminBrokerProcessor``; requests 50 to 54).

The guard lets only administrators through. No response contains a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rucola.broker.acl.permission import PUB, SUB, Account
from rucola.broker.acl.plain_manager import UPDATE_FAILED, PlainPermissionManager
from rucola.broker.config import BrokerConfig
from rucola.common.json_library import orjson
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.server import Channel

_TEXTS = ("secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
_LISTS = ("topicPerms", "groupPerms")
MASK = "******"
"""Text shown instead of every secret."""
_WORDS = {PUB: "PUB", SUB: "SUB", PUB | SUB: "PUB|SUB"}


class AclProcessor:
    """Serves requests 50 to 54."""

    def __init__(self, config: BrokerConfig, accounts: PlainPermissionManager, address: str) -> None:
        self._config = config
        self._accounts = accounts
        self._address = address

    def update(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 50: changes only the given fields of an account."""
        fields = command.ext_fields
        if not fields.get("accessKey"):
            raise BrokerError(UPDATE_FAILED, "accessKey is needed")
        change: dict[str, Any] = {"accessKey": fields["accessKey"]}
        change.update({key: fields[key] for key in _TEXTS if key in fields})
        change.update({key: _parts(fields[key]) for key in _LISTS if key in fields})
        if "admin" in fields:
            change["admin"] = fields["admin"] == "true"
        self._accounts.update_account(change)
        return command.answer(ResponseCode.SUCCESS)

    def delete(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 51: deletes an account."""
        self._accounts.delete_account(command.ext_fields.get("accessKey", ""))
        return command.answer(ResponseCode.SUCCESS)

    def update_global_addresses(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 53: replaces the global address list."""
        self._accounts.set_global_addresses(_parts(command.ext_fields.get("globalWhiteAddrs", "")))
        return command.answer(ResponseCode.SUCCESS)

    def version(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 52: the versions of the ACL files."""
        fields = {
            "version": self._accounts.main_version(),
            "allAclFileVersion": orjson.dumps(self._accounts.versions()).decode(),
            "brokerName": self._config.broker_name,
            "brokerAddr": self._address,
            "clusterName": self._config.broker_cluster_name,
        }
        return command.answer(ResponseCode.SUCCESS, ext_fields=fields)

    def config(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 54: the accounts with masked secrets, as RocketMQ 4.9 sends them."""
        snapshot = self._accounts.snapshot
        body = {
            "globalWhiteAddrs": [strategy.pattern for strategy in snapshot.global_addresses],
            "plainAccessConfigs": [
                _shown(account) for account in snapshot.accounts.values() if isinstance(account, Account)
            ],
        }
        return command.answer(ResponseCode.SUCCESS, body=orjson.dumps(body))


def _shown(account: Account) -> dict[str, Any]:
    return {
        "accessKey": account.access_key,
        "secretKey": MASK,
        "whiteRemoteAddress": account.addresses.pattern if account.addresses else "",
        "admin": account.admin,
        "defaultTopicPerm": _WORDS.get(account.default_topic_perm, "DENY"),
        "defaultGroupPerm": _WORDS.get(account.default_group_perm, "DENY"),
        "topicPerms": _rules(account.topics),
        "groupPerms": _rules(account.groups),
    }


def _rules(permissions: Mapping[str, int]) -> list[str]:
    return [f"{name}={_WORDS.get(bits, 'DENY')}" for name, bits in permissions.items()]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
