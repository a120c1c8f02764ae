"""The file with the users and rules of a broker, and those of another process that only reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rucola.broker.acl.auth_model import User, read_rules, read_user, show_rules
from rucola.broker.acl.permission import AclSnapshot
from rucola.broker.acl.watched_accounts import WatchedAccounts, digest_of
from rucola.common.json_library import orjson
from rucola.errors import FormatError
from rucola.runtime.files import Files

USERS_FILE: Final = "rucola-auth.json"
Users = dict[str, dict[str, str]]
Policies = dict[str, list[dict[str, Any]]]


def read_users(text: bytes) -> tuple[Users, Policies]:
    """The users, and the policies of those that have rules, each by name.

    Raises:
        FormatError: the text is not the content of such a file; no part of it is shown.
    """
    try:
        document = orjson.loads(text)
        users = {name: read_user(user, USERS_FILE) for name, user in document["users"].items()}
        if any({"username", "password", "userType", "userStatus"} - user.keys() for user in users.values()):
            raise KeyError
        return users, {name: show_rules(read_rules(acl, USERS_FILE)) for name, acl in document["acls"].items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise FormatError(USERS_FILE, 0, "an object with users and acls", type(error).__name__) from None


def users_in_use(
    users: Mapping[str, Mapping[str, str]], policies: Mapping[str, list[dict[str, Any]]], *, checked: bool
) -> AclSnapshot:
    """The users, as requests are judged by them.

    Args:
        users: by name.
        policies: of users that have rules.
        checked: whether rules apply (``authorizationEnabled``).
    """
    return AclSnapshot(
        {
            name: User(
                name,
                user["password"].encode(),
                user["userType"] == "Super",
                user["userStatus"] == "disable",
                read_rules({"policies": policies.get(name, [])}, USERS_FILE),
                checked,
            )
            for name, user in users.items()
        }
    )


class WatchedUsers(WatchedAccounts):
    """The users of a broker, read from its store directory or a copy of it, and never changed.

    Args:
        files: access to the disk.
        home: absolute path of the directory that contains ``config``.
        checked: whether rules apply.
    """

    def __init__(self, files: Files, home: str, checked: bool) -> None:
        super().__init__()
        self._files, self._path, self._checked = files, f"{home}/config/{USERS_FILE}", checked

    def _read(self) -> dict[str, bytes]:
        text = self._files.read_file(self._path)
        return {} if text is None else {self._path: text}

    def _parse(self, texts: Mapping[str, bytes]) -> AclSnapshot:
        if not texts:
            raise FormatError(USERS_FILE, 0, "a file with users", "none", self._path)
        users, policies = read_users(texts[self._path])
        found = users_in_use(users, policies, checked=self._checked)
        return AclSnapshot(found.accounts, digest=digest_of(texts))
