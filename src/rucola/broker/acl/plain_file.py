"""``plain_acl.yml``: converts text to accounts and back (RocketMQ 5.3.2, ``PlainPermissionManager``; protocol.md 6.1).

The file grants permissions, so it is read strictly. Aliases, duplicate or unknown keys, and tags other than YAML's own
are errors; size and depth are limited. A mistake never grants an unintended permission: an unknown permission means
DENY, and other mistakes are errors. An error of the YAML parser has the line number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from rucola.broker.acl.address_strategy import parse_addresses
from rucola.broker.acl.permission import DENY, Account, parse_permission
from rucola.errors import FormatError

BYTES_MAX = 256 * 1024
_DEPTH_MAX = 8
_NAME_CHARACTERS_MIN = 7
_SECRET_CHARACTERS_MIN = 16
_KNOWN_SECRETS = frozenset({"12345678", "123456789", "1234567890123456", "rocketmq"})
_TOP_KEYS = frozenset({"globalWhiteRemoteAddresses", "accounts", "dataVersion"})
_ACCOUNT_KEYS = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
        "signatureVersion",
        "disabled",
    }
)


class _Loader(yaml.SafeLoader):
    """A YAML loader without the dangerous features."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """One node. Aliases and deep nesting are refused before anything is built."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=self.get_mark())
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise yaml.MarkedYAMLError(problem=f"more than {_DEPTH_MAX} levels", problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are strings and occur once. YAML's merge key ``<<`` is not a string and is refused."""
        names: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str" or key.value in names:
                raise yaml.MarkedYAMLError(
                    problem="a key that occurs twice or is not a string", problem_mark=key.start_mark
                )
            names.add(key.value)
        return super().construct_mapping(node, deep)


def _scalar_text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


# Numbers and times are read as strings; otherwise, a secret that consists of digits would become a number.
for _tag in ("int", "float", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _scalar_text)


def read_document(text: bytes, source: str) -> dict[str, Any]:
    """The mapping in an ACL file, empty for an empty file; every number or time is read as a string.

    Raises:
        FormatError: the text is not YAML, or has something that an ACL file must not have. ``position`` is the line, or
            0 if the line is not known.
    """
    if len(text) > BYTES_MAX:
        raise FormatError("ACL file", 0, f"at most {BYTES_MAX} bytes", str(len(text)), source)
    try:
        loader = _Loader(text.decode())
        try:
            document = loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or type(error).__name__
        raise FormatError("ACL file", mark.line + 1 if mark else 0, "YAML", problem, source) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise FormatError("ACL file", 1, "a mapping", type(document).__name__, source)
    for key in document:
        if key not in _TOP_KEYS:
            raise FormatError("ACL file", 0, f"one of {', '.join(sorted(_TOP_KEYS))}", str(key)[:64], source)
    return document


def read_accounts(document: Mapping[str, Any], source: str, weak_secrets: bool) -> list[Account]:
    """The accounts in a parsed ACL file.

    Args:
        document: from ``read_document``.
        source: file name, for errors; no error shows a secret.
        weak_secrets: accept secrets that are short or known from sample files.

    Raises:
        FormatError: an account is invalid.
    """
    entries = document.get("accounts") or []
    if not isinstance(entries, list):
        raise FormatError("ACL file, accounts", 0, "a list", type(entries).__name__, source)
    accounts = [_account(entry, source, weak_secrets) for entry in entries]
    names = [account.access_key for account in accounts]
    for name in names:
        if names.count(name) > 1:
            raise FormatError("ACL file", 0, "each accessKey once", name[:64], source)
    return accounts


def read_global_addresses(document: Mapping[str, Any], source: str) -> list[str]:
    """The patterns of ``globalWhiteRemoteAddresses``.

    Raises:
        FormatError: the value is not a list of patterns.
    """
    patterns = document.get("globalWhiteRemoteAddresses") or []
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise FormatError("ACL file, globalWhiteRemoteAddresses", 0, "a list of patterns", "something else", source)
    for pattern in patterns:
        check_pattern(pattern, source)
    return patterns


def check_pattern(pattern: str, source: str) -> None:
    """Raises ``FormatError`` unless ``pattern`` is an address pattern."""
    try:
        parse_addresses(pattern)
    except ValueError as error:
        raise FormatError("ACL file, address pattern", 0, "a pattern of addresses", str(error), source) from None


def is_weak_secret(secret: str, weak_secrets: bool) -> bool:
    """Whether a secret must not be used: it is too short or comes from a sample file. ``weak_secrets`` allows shorter
    secrets and those from sample files, for tests.
    """
    if weak_secrets:
        return len(secret) < _NAME_CHARACTERS_MIN
    return len(secret) < _SECRET_CHARACTERS_MIN or secret.lower() in _KNOWN_SECRETS


def write_document(document: Mapping[str, Any]) -> bytes:
    """The text of an ACL file."""
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True).encode()


def _account(entry: object, source: str, weak_secrets: bool) -> Account:
    if not isinstance(entry, dict) or not set(entry) <= _ACCOUNT_KEYS:
        unknown = sorted(set(entry) - _ACCOUNT_KEYS) if isinstance(entry, dict) else type(entry).__name__
        raise FormatError("ACL file, account", 0, f"only {', '.join(sorted(_ACCOUNT_KEYS))}", str(unknown), source)
    name, secret = _text(entry, "accessKey", source), _text(entry, "secretKey", source)
    where = f"ACL file, account {name[:64]}"
    if len(name) < _NAME_CHARACTERS_MIN or not name.isascii() or not name.isprintable():
        raise FormatError(where, 0, f"an accessKey of at least {_NAME_CHARACTERS_MIN} ASCII characters", name, source)
    if is_weak_secret(secret, weak_secrets):
        allowed = (
            f"a secretKey of at least {_SECRET_CHARACTERS_MIN} characters that is not in a sample file (insecure=true "
            "allows shorter secrets and those from sample files)"
        )
        raise FormatError(where, 0, allowed, "another", source)
    white = _text(entry, "whiteRemoteAddress", source).strip()
    if white:
        check_pattern(white, source)
    version = _text(entry, "signatureVersion", source) or "1"
    if version not in ("1", "2"):
        raise FormatError(where, 0, "signatureVersion 1 or 2", version[:16], source)
    return Account(
        name,
        secret.encode(),
        _flag(entry, "admin", where, source),
        parse_permission(_text(entry, "defaultTopicPerm", source)),
        parse_permission(_text(entry, "defaultGroupPerm", source)),
        _permissions(entry, "topicPerms", where, source),
        {
            name.removeprefix("%RETRY%"): bits
            for key in ("topicPerms", "groupPerms")
            for name, bits in _permissions(entry, key, where, source).items()
            if key == "groupPerms" or name.startswith("%RETRY%")
        },
        parse_addresses(white) if white else None,
        version == "2",
        _flag(entry, "disabled", where, source),
    )


def _text(entry: Mapping[str, Any], key: str, source: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise FormatError(f"ACL file, {key}", 0, "a string", type(value).__name__, source)
    return value


def _flag(entry: Mapping[str, Any], key: str, where: str, source: str) -> bool:
    value = entry.get(key)
    if isinstance(value, bool) or value is None:
        return bool(value)
    if value in ("true", "false"):
        return bool(value == "true")
    raise FormatError(f"{where}, {key}", 0, "true or false", type(value).__name__, source)


def _permissions(entry: Mapping[str, Any], key: str, where: str, source: str) -> dict[str, int]:
    rules = entry.get(key) or []
    if not isinstance(rules, list):
        raise FormatError(f"{where}, {key}", 0, "a list", type(rules).__name__, source)
    found: dict[str, int] = {}
    for rule in rules:
        name, equals, permission = rule.partition("=") if isinstance(rule, str) else ("", "", "")
        name = name.strip()
        if not equals or not name or "=" in permission:
            raise FormatError(f"{where}, {key}", 0, "name=PERMISSION", str(rule)[:64], source)
        bits = parse_permission(permission)
        found[name] = DENY if DENY in (bits, found.get(name, bits)) else bits
    return found
