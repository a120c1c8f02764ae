"""Typed calls for accounts (access control of RocketMQ 4.x), users and rules (5.x); same conventions as in ``api``.

Users and rules are the JSON objects ``UserInfo`` and ``AclInfo`` of the protocol, with their member names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rucola.errors import FormatError
from rucola.protocol import fastjson
from rucola.protocol.codes import RequestCode
from rucola.protocol.headers import auth as headers
from rucola.remoting.api import RemotingApi


class AuthApi(RemotingApi):
    """The calls; stateless apart from the client."""

    # accounts

    async def change_account(self, address: str, account: headers.CreateAccessConfigRequestHeader) -> None:
        """UPDATE_AND_CREATE_ACL_CONFIG (50)."""
        await self._call(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, account)

    async def delete_account(self, address: str, access_key: str) -> None:
        """DELETE_ACL_CONFIG (51)."""
        header = headers.DeleteAccessConfigRequestHeader(access_key)
        await self._call(address, RequestCode.DELETE_ACL_CONFIG, header)

    async def change_global_addresses(self, address: str, addresses: str, path: str | None) -> None:
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53); ``path`` names the file; None selects the default file."""
        header = headers.UpdateGlobalWhiteAddrsConfigRequestHeader(addresses, path)
        await self._call(address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)

    async def accounts_version(self, address: str) -> headers.GetBrokerAclConfigResponseHeader:
        """GET_BROKER_CLUSTER_ACL_INFO (52)."""
        answer = await self._call(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        return headers.GetBrokerAclConfigResponseHeader.from_ext_fields(answer.ext_fields)

    async def accounts(self, address: str) -> dict[str, Any]:
        """GET_BROKER_CLUSTER_ACL_CONFIG (54): ``globalWhiteAddrs`` and ``plainAccessConfigs``."""
        answer = await self._call(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        return fastjson.load_object(answer.body, "AclConfig")

    # users

    async def create_user(self, address: str, user: Mapping[str, str]) -> None:
        """AUTH_CREATE_USER (3001)."""
        header = headers.UserRequestHeader(user["username"])
        await self._call(address, RequestCode.AUTH_CREATE_USER, header, fastjson.dumps(dict(user)))

    async def update_user(self, address: str, user: Mapping[str, str]) -> None:
        """AUTH_UPDATE_USER (3002): changes the given members."""
        header = headers.UserRequestHeader(user["username"])
        await self._call(address, RequestCode.AUTH_UPDATE_USER, header, fastjson.dumps(dict(user)))

    async def delete_user(self, address: str, name: str) -> None:
        """AUTH_DELETE_USER (3003)."""
        await self._call(address, RequestCode.AUTH_DELETE_USER, headers.UserRequestHeader(name))

    async def user(self, address: str, name: str) -> dict[str, Any] | None:
        """AUTH_GET_USER (3004); None if there is no user of that name."""
        answer = await self._call(address, RequestCode.AUTH_GET_USER, headers.UserRequestHeader(name))
        return fastjson.load_object(answer.body, "UserInfo") if answer.body else None

    async def users(self, address: str, name_contains: str | None = None) -> list[dict[str, Any]]:
        """AUTH_LIST_USER (3005)."""
        answer = await self._call(address, RequestCode.AUTH_LIST_USER, headers.ListUsersRequestHeader(name_contains))
        return _objects(answer.body, "UserInfo")

    # rules

    async def create_acl(self, address: str, acl: Mapping[str, Any]) -> None:
        """AUTH_CREATE_ACL (3006)."""
        header = headers.AclRequestHeader(acl["subject"])
        await self._call(address, RequestCode.AUTH_CREATE_ACL, header, fastjson.dumps(dict(acl)))

    async def update_acl(self, address: str, acl: Mapping[str, Any]) -> None:
        """AUTH_UPDATE_ACL (3007): replaces the subject's rules for the same resources; its other rules stay."""
        header = headers.AclRequestHeader(acl["subject"])
        await self._call(address, RequestCode.AUTH_UPDATE_ACL, header, fastjson.dumps(dict(acl)))

    async def delete_acl(self, address: str, subject: str, resource: str | None = None) -> None:
        """AUTH_DELETE_ACL (3008): deletes the subject's rules for ``resource``; None deletes all of its rules."""
        header = headers.DeleteAclRequestHeader(subject, None, resource)
        await self._call(address, RequestCode.AUTH_DELETE_ACL, header)

    async def acl(self, address: str, subject: str) -> dict[str, Any] | None:
        """AUTH_GET_ACL (3009); None if the user has no rules; raises ``BrokerError`` 16 if there is no such user."""
        answer = await self._call(address, RequestCode.AUTH_GET_ACL, headers.AclRequestHeader(subject))
        return fastjson.load_object(answer.body, "AclInfo") if answer.body else None

    async def acls(
        self, address: str, subject_contains: str | None = None, resource_contains: str | None = None
    ) -> list[dict[str, Any]]:
        """AUTH_LIST_ACL (3010)."""
        header = headers.ListAclsRequestHeader(subject_contains, resource_contains)
        return _objects((await self._call(address, RequestCode.AUTH_LIST_ACL, header)).body, "AclInfo")


def _objects(body: bytes | bytearray | memoryview, what: str) -> list[dict[str, Any]]:
    found = fastjson.loads(body) if body else []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise FormatError(what, 0, "a list of objects", type(found).__name__)
    return found
