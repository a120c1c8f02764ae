"""Users and rules of a broker, kept in ``config/rucola-auth.json`` below the store. Only the file's owner can read it.

Once the broker has started, users and rules are changed only by requests, which run on the event loop. Every change is
synced before it takes effect. RocketMQ keeps users and rules in RocksDB, so the store directory of a RocketMQ broker
has no such file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rucola.broker.acl.auth_model import merge_rules, policy_type_of, read_rules, read_user, show_rules
from rucola.broker.acl.permission import AclSnapshot
from rucola.broker.acl.plain_file import is_weak_secret
from rucola.broker.acl.users_file import USERS_FILE, read_users, users_in_use
from rucola.common.json_library import orjson
from rucola.errors import BrokerError, ConfigError, DiskError, FormatError
from rucola.protocol.codes import ResponseCode
from rucola.runtime.files import Files
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
T = TypeVar("T")


class AuthManager:
    """Users and rules of one broker. Call ``load`` once the store is open, and change users and rules only after that.

    Args:
        root: the store directory.
        checked: whether rules apply (``authorizationEnabled``).
        weak_secrets: accept passwords that are easy to guess (``insecure=true``).

    Attributes:
        snapshot: the current users.
    """

    def __init__(self, files: Files, root: str, checked: bool, weak_secrets: bool) -> None:
        self._files = files
        self._directory = f"{root}/config"
        self._checked = checked
        self._weak_secrets = weak_secrets
        self._users: dict[str, dict[str, str]] = {}
        self._policies: dict[str, list[dict[str, Any]]] = {}
        self.snapshot = AclSnapshot({})

    def load(self, initial: str) -> None:
        """Reads the file. Then creates the user in ``initial`` (``initAuthenticationUser``) as a super user, unless a
        user of that name exists.

        Raises:
            ConfigError: the file is damaged, or no user is a super user. Or ``initial`` does not describe a user, its
                password is weak, or the new user cannot be saved.
            DiskError: the file cannot be read.
        """
        text = self._files.read_file(f"{self._directory}/{USERS_FILE}")
        try:
            if text is not None:
                self._users, self._policies = read_users(text)
        except FormatError as error:
            raise ConfigError("authenticationEnabled", "true", f"a valid {USERS_FILE} ({error})") from None
        if initial:
            try:
                user = read_user(orjson.loads(initial), "initAuthenticationUser")
                if user["username"] not in self._users:
                    self._check_password(user["password"])
                    self._put_user({**user, "userType": "Super", "userStatus": "enable"})
            except (ValueError, KeyError, AttributeError, FormatError, BrokerError):
                raise ConfigError("initAuthenticationUser", "(hidden)", self._allowed_user()) from None
        if not any(user["userType"] == "Super" for user in self._users.values()):
            raise ConfigError("initAuthenticationUser", "", self._allowed_user())
        self._use()

    # -- users ---------------------------------------------------------------------------------------------------------

    def create_user(self, data: Mapping[str, Any]) -> None:
        """Request 3001: creates a user.

        Raises:
            BrokerError: the body does not describe a user, the name exists, the password is weak, or the user cannot
                be saved.
        """
        user = _checked(read_user, data, "UserInfo")
        name = user.get("username", "")
        if not name:
            raise _refusal("username can not be blank")
        if name in self._users:
            raise _refusal("The user is existed")
        if not user.get("password"):
            raise _refusal("password can not be blank")
        self._check_password(user["password"])
        self._put_user({"userType": "Normal", "userStatus": "enable", **user})
        self._use()

    def update_user(self, name: str, data: Mapping[str, Any]) -> None:
        """Request 3002: changes a user; fields that ``data`` lacks keep their values."""
        if name not in self._users:
            raise _refusal("The user is not exist")
        change = _checked(read_user, {**data, "username": name}, "UserInfo")
        if "password" in change:
            self._check_password(change["password"])
        user = {**self._users[name], **change}
        self._keep_a_super_user(name, user)
        self._put_user(user)
        self._use()

    def delete_user(self, name: str) -> None:
        """Request 3003: deletes a user and the user's rules."""
        if name in self._users:
            self._keep_a_super_user(name, {})
            users = {other: user for other, user in self._users.items() if other != name}
            self._write(users, {other: rules for other, rules in self._policies.items() if other != name})
            self._use()

    def users(self, name_contains: str = "") -> list[dict[str, str]]:
        """The users, without their passwords."""
        return [
            {key: value for key, value in user.items() if key != "password"}
            for name, user in self._users.items()
            if name_contains in name
        ]

    # -- rules ---------------------------------------------------------------------------------------------------------

    def put_rules(self, subject: str, data: Mapping[str, Any]) -> None:
        """Requests 3006 and 3007: replaces the rules for the given resources; other rules stay."""
        name = self._subject(subject)
        rules = _checked(read_rules, data, "AclInfo")
        if not rules:
            raise _refusal("The policies is null or empty.")
        known = read_rules({"policies": self._policies.get(name, [])}, "AclInfo")
        self._write(self._users, {**self._policies, name: show_rules(merge_rules(known, rules))})
        self._use()

    def delete_rules(self, subject: str, policy_type: str, resource: str) -> None:
        """Request 3008: deletes the user's rules for ``resource``; if ``policy_type`` is not empty, only those of this
        type. If ``resource`` is empty, all rules of the user are deleted.
        """
        name = self._subject(subject)
        kept = [
            rule
            for rule in read_rules({"policies": self._policies.get(name, [])}, "AclInfo")
            if resource
            and (rule.resource != resource or (policy_type and rule.policy_type != _checked_type(policy_type)))
        ]
        policies = {other: rules for other, rules in self._policies.items() if other != name}
        if kept:
            policies[name] = show_rules(tuple(kept))
        self._write(self._users, policies)
        self._use()

    def rules(self, subject_contains: str = "", resource_contains: str = "") -> list[dict[str, Any]]:
        """``AclInfo`` of every user that has rules, as far as subject and resource contain the given texts."""
        found = []
        for name, policies in self._policies.items():
            subject = f"User:{name}"
            resources = [entry["resource"] for policy in policies for entry in policy["entries"]]
            if subject_contains in subject and any(resource_contains in resource for resource in resources):
                found.append({"subject": subject, "policies": policies})
        return found

    def rules_of(self, subject: str) -> dict[str, Any] | None:
        """``AclInfo`` of one user; None if the user has no rules."""
        policies = self._policies.get(self._subject(subject))
        return None if policies is None else {"subject": subject, "policies": policies}

    # -- internals -----------------------------------------------------------------------------------------------------

    def _subject(self, subject: str) -> str:
        kind, _, name = subject.partition(":")
        if kind != "User" or name not in self._users:
            raise _refusal("The subject is not exist.")
        return name

    def _check_password(self, password: str) -> None:
        if is_weak_secret(password, self._weak_secrets):
            raise _refusal("the password is too short or too well known")

    def _allowed_user(self) -> str:
        return '{"username": "...", "password": "..."} of a super user, with a password of at least 16 characters'

    def _keep_a_super_user(self, name: str, after: Mapping[str, str]) -> None:
        users = {**self._users, name: after}
        if not any(user.get("userType") == "Super" and user.get("userStatus") == "enable" for user in users.values()):
            raise _refusal("this would leave no enabled super user")

    def _put_user(self, user: dict[str, str]) -> None:
        self._write({**self._users, user["username"]: user}, self._policies)

    def _write(self, users: dict[str, dict[str, str]], policies: dict[str, list[dict[str, Any]]]) -> None:
        document = {
            "users": users,
            "acls": {name: {"subject": f"User:{name}", "policies": rules} for name, rules in policies.items()},
        }
        try:
            self._files.make_directory(self._directory)
            self._files.replace_file(f"{self._directory}/{USERS_FILE}", orjson.dumps(document), private=True)
        except DiskError as error:
            event(logger, logging.ERROR, "users and rules not written", error=error)
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "users and rules cannot be written") from None
        self._users, self._policies = users, policies

    def _use(self) -> None:
        self.snapshot = users_in_use(self._users, self._policies, checked=self._checked)
        event(logger, logging.INFO, "users and rules in use", users=len(self._users), with_rules=len(self._policies))


def _refusal(remark: str) -> BrokerError:
    return BrokerError(ResponseCode.NO_PERMISSION, remark)


def _checked(read: Callable[[Mapping[str, Any], str], T], data: Mapping[str, Any], what: str) -> T:
    try:
        return read(data, what)
    except FormatError as error:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, f"{error.what}: {error.expected} is needed") from None


def _checked_type(text: str) -> str:
    return _checked(lambda _, __: policy_type_of(text), {}, "policyType")
