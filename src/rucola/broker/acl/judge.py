"""May this account do that? Answers as the broker itself would, from accounts, users and rules as brokers tell them.

As a process (``python -m rucola.broker.acl.judge``), it reads a question a line from standard input, a JSON object, and
answers with a line ``{"result": ...}`` or ``{"error": TEXT}``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from rucola.broker.acl.address_strategy import AddressStrategy, Segments, parse_addresses, segments_of
from rucola.broker.acl.auth_model import User, read_rules
from rucola.broker.acl.permission import (
    DENY,
    NOTHING,
    PUB,
    SUB,
    Account,
    AclSnapshot,
    Resource,
    group,
    parse_permission,
    topic,
)
from rucola.common.json_library import orjson
from rucola.errors import FormatError

ACTIONS = {"Pub": PUB, "Sub": SUB}


class AccessVerdict(NamedTuple):
    """Whether an account may do something, and the rule or other reason that decides."""

    allowed: bool
    reason: str


def main() -> None:
    """Answers until standard input ends."""
    for line in sys.stdin.buffer:
        question = orjson.loads(line)
        message: dict[str, Any]
        try:
            message = {"result": verdict(question)._asdict()}
        except (FormatError, ValueError) as error:
            message = {"error": str(error)}
        sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
        sys.stdout.buffer.flush()


def verdict(question: Mapping[str, Any]) -> AccessVerdict:
    """Judges.

    Args:
        question: ``kind`` (``topic`` or ``group``), ``name``, ``action`` (``Pub`` or ``Sub``) and ``address`` of the
            peer; with ``account``, an entry of ``plainAccessConfigs``, and ``global_addresses``; or with ``user``, a
            ``UserInfo``, its ``policies``, and ``checked``, whether rules apply (``authorizationEnabled``).

    Raises:
        FormatError: a rule is invalid.
        ValueError: an address is.
    """
    kind, name, needed = question["kind"], question["name"], ACTIONS[question["action"]]
    resource = group(name) if kind == "group" else topic(name, needed)
    address = segments_of(question["address"])
    if question.get("account") is not None:
        return _of_account(question["account"], question["global_addresses"], resource, address)
    user = question["user"]
    return _of_user(
        User(
            str(user.get("username", "")),
            b"",
            str(user.get("userType", "")) == "Super",
            str(user.get("userStatus") or "enable") == "disable",
            read_rules({"policies": question["policies"]}, "AclInfo"),
            bool(question["checked"]),
        ),
        resource,
        address,
    )


def _of_user(user: User, resource: Resource, address: Segments) -> AccessVerdict:
    if user.disabled:
        return AccessVerdict(False, "the user is disabled")
    if user.admin:
        return AccessVerdict(True, "a super user may do everything" if user.superuser else "rules do not apply here")
    if resource is NOTHING:
        return AccessVerdict(False, "only administrators may")
    rule = user.deciding(resource, address)
    allowed = user.allows(resource, address)
    if rule is None:
        return AccessVerdict(False, "no rule matches")
    text = f"{rule.decision} {','.join(rule.actions)} on {rule.resource} ({rule.policy_type})"
    if rule.source_ips:
        text += f" from {','.join(rule.source_ips)}"
    if not allowed and rule.decision == "Allow":
        text += ": a rule must name this topic itself"
    return AccessVerdict(allowed, text)


def _of_account(
    data: Mapping[str, Any], global_addresses: list[str], resource: Resource, address: Segments
) -> AccessVerdict:
    account = Account(
        str(data.get("accessKey", "")),
        b"",
        data.get("admin") is True,
        parse_permission(str(data.get("defaultTopicPerm") or "DENY")),
        parse_permission(str(data.get("defaultGroupPerm") or "DENY")),
        _permissions(data.get("topicPerms")),
        _permissions(data.get("groupPerms")),
        _addresses(data.get("whiteRemoteAddress")),
    )
    known = AclSnapshot({}, tuple(map(parse_addresses, global_addresses)))
    if not known.may_come_from(account, address):
        return AccessVerdict(False, f"whiteRemoteAddress {data.get('whiteRemoteAddress')}")
    if account.admin:
        return AccessVerdict(True, "an administrator may do everything")
    if resource is NOTHING:
        return AccessVerdict(False, "only administrators may")
    allowed = account.allows(resource, address)
    rules, word = (account.topics, "topic") if resource.kind == "topic" else (account.groups, "group")
    if resource.name in rules:
        return AccessVerdict(allowed, f"{word}Perms {resource.name}={_word(rules[resource.name])}")
    default = account.default_topic_perm if resource.kind == "topic" else account.default_group_perm
    text = f"default{word.capitalize()}Perm {_word(default)}"
    if not allowed and default & resource.needed:
        text += ": a rule must name this topic itself"
    return AccessVerdict(allowed, text)


def _permissions(entries: object) -> dict[str, int]:
    found = {}
    for entry in entries if isinstance(entries, list) else []:
        name, _, text = str(entry).rpartition("=")
        found[name] = parse_permission(text)
    return found


def _addresses(pattern: object) -> AddressStrategy | None:
    return parse_addresses(str(pattern)) if pattern else None


def _word(bits: int) -> str:
    if bits & DENY:
        return "DENY"
    return "|".join(word for word, bit in (("PUB", PUB), ("SUB", SUB)) if bits & bit)


if __name__ == "__main__":
    main()
