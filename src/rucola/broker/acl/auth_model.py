"""Reads users and rules of ACL 2.0, and decides what they allow (RocketMQ 5.3.3, module ``auth``; protocol.md 6.2).

A rule names a resource (``Topic:orders``, ``Group:billing*``, ``*``), actions, source addresses and a decision. Rules
of policy type Custom take precedence over rules of type Default. Within a type the exact name beats the longest prefix,
and a prefix beats ``*``. Between equally specific rules, Allow wins. A request that no rule matches is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from rucola.broker.acl.address_strategy import AddressStrategy, Segments, segments_of
from rucola.broker.acl.permission import ANY, NOTHING, PUB, Resource
from rucola.broker.topic.internal_topics import needs_named_rule
from rucola.errors import FormatError

ACTIONS = ("All", "Any", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
_KINDS = {"topic": "Topic", "group": "Group", "cluster": "Cluster"}
_POLICY_TYPES = {"custom": "Custom", "default": "Default"}
_DECISIONS = {"allow": "Allow", "deny": "Deny"}
_USER_TYPES = {"super": "Super", "normal": "Normal"}
_USER_STATUSES = {"enable": "enable", "disable": "disable"}
_NAME_CHARACTERS_MAX = 127
_RULES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a policy; ``policy_type``, ``actions`` and ``decision`` are spelled as in responses."""

    policy_type: str
    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...]
    decision: str

    def rank(self, resource: Resource, address: Segments) -> tuple[int, int, int] | None:
        """How well the rule fits; larger is better. None if the rule does not apply."""
        kind, _, name = self.resource.partition(":")
        if self.resource == "*":
            fit = 0
        elif kind != _KINDS[resource.kind]:
            return None
        elif name == "*":
            fit = 1
        elif name.endswith("*"):
            if not resource.name.startswith(name[:-1]):
                return None
            fit = 1 + len(name)
        elif name == resource.name:
            fit = 1 << 20
        else:
            return None
        if self.source_ips and not any(_within(address, text) for text in self.source_ips):
            return None
        if not {"All", "Any", *_actions(resource.needed)}.intersection(self.actions):
            return None
        return self.policy_type == "Custom", fit, self.decision == "Allow"


@dataclass(frozen=True, slots=True)
class User:
    """One user, with the interface of ``permission.Account``.

    Attributes:
        checked: whether rules apply (``authorizationEnabled``); otherwise every user may do everything.
    """

    access_key: str
    secret_key: bytes = field(repr=False)
    superuser: bool = False
    disabled: bool = False
    rules: tuple[Rule, ...] = ()
    checked: bool = True
    require_v2: bool = False
    addresses: AddressStrategy | None = None

    @property
    def admin(self) -> bool:
        """Whether the user may do everything."""
        return self.superuser or not self.checked

    def allows(self, resource: Resource, address: Segments) -> bool:
        """Whether the best-fitting rule allows the access."""
        if resource is NOTHING:
            return False
        rule = self.deciding(resource, address)
        if rule is None or rule.decision != "Allow":
            return False
        is_exact = not rule.resource.endswith("*")
        return is_exact or resource.kind != "topic" or not needs_named_rule(resource.name)

    def deciding(self, resource: Resource, address: Segments) -> Rule | None:
        """The best-fitting rule; None if no rule applies."""
        best: tuple[tuple[int, int, int], Rule] | None = None
        for rule in self.rules:
            rank = rule.rank(resource, address)
            if rank is not None and (best is None or rank > best[0]):
                best = rank, rule
        return None if best is None else best[1]


def read_user(data: Mapping[str, Any], what: str) -> dict[str, str]:
    """The given members of a ``UserInfo``, checked and spelled as in responses.

    Raises:
        FormatError: a member is invalid; the message never shows a password.
    """
    user: dict[str, str] = {}
    for key, words in (("userType", _USER_TYPES), ("userStatus", _USER_STATUSES)):
        if data.get(key) is not None:
            user[key] = _word(data[key], words, f"{what}, {key}")
    for key in ("username", "password"):
        value = data.get(key)
        if value is None:
            continue
        if not isinstance(value, str) or not value.isprintable() or len(value) > _NAME_CHARACTERS_MAX:
            raise FormatError(f"{what}, {key}", 0, f"at most {_NAME_CHARACTERS_MAX} printable characters", "others")
        user[key] = value
    return user


def read_rules(data: Mapping[str, Any], what: str) -> tuple[Rule, ...]:
    """The entries of all policies of an ``AclInfo``.

    Raises:
        FormatError: an entry is invalid.
    """
    rules: list[Rule] = []
    for policy in _objects(data, "policies", what):
        policy_type = _word(policy.get("policyType") or "Custom", _POLICY_TYPES, f"{what}, policyType")
        for entry in _objects(policy, "entries", what):
            rules.append(_rule(policy_type, entry, what))
    if len(rules) > _RULES_MAX:
        raise FormatError(what, 0, f"at most {_RULES_MAX} entries", str(len(rules)))
    return tuple(rules)


def show_rules(rules: tuple[Rule, ...]) -> list[dict[str, Any]]:
    """Rules as the policies of an ``AclInfo``."""
    policies: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        entry: dict[str, Any] = {"resource": rule.resource, "actions": list(rule.actions), "decision": rule.decision}
        if rule.source_ips:
            entry["sourceIps"] = list(rule.source_ips)
        policies.setdefault(rule.policy_type, []).append(entry)
    return [{"policyType": policy_type, "entries": entries} for policy_type, entries in policies.items()]


def merge_rules(rules: tuple[Rule, ...], changed: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """``rules``, with the rules in ``changed`` replacing those for the same resources."""
    merged: dict[tuple[str, str], list[Rule]] = {}
    for rule in rules:
        merged.setdefault((rule.policy_type, rule.resource), []).append(rule)
    for place in {(rule.policy_type, rule.resource): None for rule in changed}:
        merged[place] = [rule for rule in changed if (rule.policy_type, rule.resource) == place]
    return tuple(rule for same in merged.values() for rule in same)


def policy_type_of(text: str) -> str:
    """A policy type, spelled as in responses.

    Raises:
        FormatError: there is no such type.
    """
    return _word(text, _POLICY_TYPES, "policyType")


def _rule(policy_type: str, entry: Mapping[str, Any], what: str) -> Rule:
    resource = entry.get("resource")
    kind, colon, name = resource.partition(":") if isinstance(resource, str) else ("", "", "")
    if resource != "*" and (kind not in _KINDS.values() or not colon or not name or "*" in name[:-1]):
        raise FormatError(f"{what}, resource", 0, "*, Topic:name, Group:name or Cluster:name", str(resource)[:64])
    words = {action.lower(): action for action in ACTIONS}
    actions = tuple(_word(action, words, f"{what}, actions") for action in _texts(entry, "actions", what))
    if not actions:
        raise FormatError(f"{what}, actions", 0, "at least one", "none")
    source_ips = tuple(_texts(entry, "sourceIps", what))
    for text in source_ips:
        try:
            ip_network(text, strict=False)
        except ValueError:
            raise FormatError(f"{what}, sourceIps", 0, "addresses and networks", text[:64]) from None
    return Rule(
        policy_type, str(resource), actions, source_ips, _word(entry.get("decision"), _DECISIONS, f"{what}, decision")
    )


def _actions(needed: int) -> Iterator[str]:
    if needed & ANY:
        yield from ("Pub", "Sub", "Get")
    else:
        yield "Pub" if needed & PUB else "Sub"


def _within(address: Segments, network: str) -> bool:
    parsed = ip_network(network, strict=False)
    first, last = segments_of(str(parsed.network_address)), segments_of(str(parsed.broadcast_address))
    return len(address) == len(first) and first <= address <= last


def _word(value: object, words: Mapping[str, str], what: str) -> str:
    word = words.get(value.lower()) if isinstance(value, str) else None
    if word is None:
        raise FormatError(what, 0, " or ".join(words.values()), str(value)[:64])
    return word


def _objects(data: Mapping[str, Any], key: str, what: str) -> list[Mapping[str, Any]]:
    values = data.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise FormatError(f"{what}, {key}", 0, "a list of objects", type(values).__name__)
    return values


def _texts(data: Mapping[str, Any], key: str, what: str) -> list[str]:
    values = data.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FormatError(f"{what}, {key}", 0, "a list of strings", type(values).__name__)
    return values
