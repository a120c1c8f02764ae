"""Changes and shows users and rules by request (RocketMQ 5.3.3, ``AdminBrokerProcessor``; requests 3001 to 3010).

The guard lets only super users through. No response contains a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rucola.broker.acl.auth_manager import AuthManager
from rucola.protocol import fastjson
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.server import Channel


class AuthProcessor:
    """Serves requests 3001 to 3010."""

    def __init__(self, users: AuthManager) -> None:
        self._users = users

    def create_user(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 3001: creates a user. If the header and the body both have a name, the one in the header is used."""
        body = dict(_body(command, "UserInfo"))
        body["username"] = command.ext_fields.get("username") or body.get("username")
        self._users.create_user(body)
        return command.answer(ResponseCode.SUCCESS)

    def update_user(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 3002: changes a user."""
        self._users.update_user(command.ext_fields.get("username", ""), _body(command, "UserInfo"))
        return command.answer(ResponseCode.SUCCESS)

    def delete_user(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 3003: deletes a user."""
        self._users.delete_user(command.ext_fields.get("username", ""))
        return command.answer(ResponseCode.SUCCESS)

    def get_user(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 3004: a user; no body if no user has that name, as in RocketMQ."""
        name = command.ext_fields.get("username", "")
        found = [user for user in self._users.users() if user["username"] == name]
        return command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(found[0]) if found else b"")

    def list_users(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 3005: the users whose names contain the text in ``filter``; all users without it."""
        users = self._users.users(command.ext_fields.get("filter", ""))
        return command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(users) if users else b"")

    def put_rules(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Requests 3006 and 3007: replace rules."""
        self._users.put_rules(command.ext_fields.get("subject", ""), _body(command, "AclInfo"))
        return command.answer(ResponseCode.SUCCESS)

    def delete_rules(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 3008: deletes rules."""
        fields = command.ext_fields
        self._users.delete_rules(fields.get("subject", ""), fields.get("policyType", ""), fields.get("resource", ""))
        return command.answer(ResponseCode.SUCCESS)

    def get_rules(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 3009: a user's rules; no body if the user has none, as in RocketMQ."""
        rules = self._users.rules_of(command.ext_fields.get("subject", ""))
        return command.answer(ResponseCode.SUCCESS, body=b"" if rules is None else fastjson.dumps(rules))

    def list_rules(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 3010: the rules that match the filters of the request; all rules without filters."""
        fields = command.ext_fields
        rules = self._users.rules(fields.get("subjectFilter", ""), fields.get("resourceFilter", ""))
        return command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(rules) if rules else b"")


def _body(command: RemotingCommand, what: str) -> Mapping[str, Any]:
    return fastjson.load_object(command.body, what)
