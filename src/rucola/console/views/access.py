"""Accounts of RocketMQ 4.x, users and rules of 5.x, and what they allow. Brokers show them to administrators only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rucola.console.cluster.asking import Unknown, by_deadline
from rucola.console.store.child import ChildError
from rucola.console.visit import BadQueryError, Visit

JUDGE: Final = "rucola.broker.acl.judge"
ACTIONS: Final = ("Pub", "Sub")
KINDS: Final = ("topic", "group")
_DEADLINE_S: Final = 2.5
_JUDGE_S: Final = 20.0
_BROKERS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class AccessQuery:
    """Accounts, and a question about one of them.

    Attributes:
        account: the account or user that is asked about; empty for no question.
        kind: ``topic`` or ``group``.
        name: name of the topic or group.
        action: ``Pub`` to send, ``Sub`` to consume.
        address: numeric address from which the requests come; empty for your own.
    """

    account: str = ""
    kind: str = "topic"
    name: str = ""
    action: str = "Pub"
    address: str = ""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """What a rule says about a topic or group, as the broker writes it."""

    resource: str
    actions: str
    addresses: str
    decision: str


@dataclass(frozen=True, slots=True)
class AccessAccount:
    """An account or user. Its secret is not known here.

    Attributes:
        system: ``4.x`` for an account of an ACL file, ``5.x`` for a user.
        is_super: whether it may do everything.
    """

    broker: str
    system: str
    name: str
    is_super: bool
    is_disabled: bool
    rules: tuple[AccessRule, ...]


@dataclass(frozen=True, slots=True)
class AccessAnswer:
    """What a broker would say to the account.

    Attributes:
        allowed: None if it cannot be told.
        reason: the rule that decides, or why there is no answer.
    """

    broker: str
    allowed: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class AccessPage:
    """All accounts and users of the masters, and the answer of each broker to the question."""

    accounts: tuple[AccessAccount, ...]
    answers: tuple[AccessAnswer, ...]
    unguarded: tuple[str, ...]
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True, slots=True)
class _Told:
    """What one broker tells: which system it uses, and its tables."""

    broker: str
    system: str
    checked: bool
    accounts: Mapping[str, Mapping[str, Any]]
    policies: Mapping[str, list[Any]]
    global_addresses: tuple[str, ...]


async def access(visit: Visit, query: AccessQuery) -> AccessPage:
    """Who may do what."""
    if query.kind not in KINDS:
        raise BadQueryError("kind", query.kind, ", ".join(KINDS))
    if query.action not in ACTIONS:
        raise BadQueryError("action", query.action, ", ".join(ACTIONS))
    masters = (await visit.watch.fresh()).masters[:_BROKERS_MAX]
    found = await by_deadline([(one.address, _told(visit, one.name, one.address)) for one in masters], _DEADLINE_S)
    told = [one for one in found if not isinstance(one, Unknown)]
    answers = []
    if query.account and query.name:
        answers = [await _answer(visit, one, query) for one in told if one.system]
    return AccessPage(
        tuple(account for one in told for account in _accounts(one)),
        tuple(answers),
        tuple(one.broker for one in told if not one.system),
        tuple(one for one in found if isinstance(one, Unknown)),
    )


async def _told(visit: Visit, broker: str, address: str) -> _Told:
    config = await visit.watch.admin.api.broker_config(address)
    auth = visit.watch.admin.auth
    if config.get("authenticationEnabled") == "true":
        users, acls = await auth.users(address), await auth.acls(address)
        policies = {str(one.get("subject", "")).removeprefix("User:"): list(one.get("policies") or ()) for one in acls}
        accounts = {str(one.get("username", "")): one for one in users}
        return _Told(broker, "5.x", config.get("authorizationEnabled") == "true", accounts, policies, ())
    if config.get("aclEnable") == "true":
        table = await auth.accounts(address)
        entries = [one for one in table.get("plainAccessConfigs") or () if isinstance(one, dict)]
        everywhere = tuple(str(one) for one in table.get("globalWhiteAddrs") or ())
        return _Told(broker, "4.x", True, {str(one.get("accessKey", "")): one for one in entries}, {}, everywhere)
    return _Told(broker, "", False, {}, {}, ())


async def _answer(visit: Visit, told: _Told, query: AccessQuery) -> AccessAnswer:
    data = told.accounts.get(query.account)
    if data is None:
        return AccessAnswer(told.broker, False, "there is no such account")
    shown = {key: value for key, value in data.items() if "secret" not in key.lower() and "password" not in key.lower()}
    question: dict[str, Any] = {
        "kind": query.kind, "name": query.name, "action": query.action, "address": query.address or visit.peer,
    }  # fmt: skip
    if told.system == "4.x":
        question |= {"account": shown, "global_addresses": list(told.global_addresses)}
    else:
        question |= {"user": shown, "policies": told.policies.get(query.account, []), "checked": told.checked}
    try:
        found = await visit.desks.judge.ask(question, _JUDGE_S)
    except ChildError as error:
        return AccessAnswer(told.broker, None, str(error))
    return AccessAnswer(told.broker, found["allowed"], found["reason"])


def _accounts(told: _Told) -> list[AccessAccount]:
    found = []
    for name, data in sorted(told.accounts.items()):
        if told.system == "4.x":
            is_super, is_disabled, rules = data.get("admin") is True, False, _permissions(data)
        else:
            is_super = str(data.get("userType")) == "Super"
            is_disabled = str(data.get("userStatus") or "enable") == "disable"
            rules = _rules(told.policies.get(name, []))
        found.append(AccessAccount(told.broker, told.system, name, is_super, is_disabled, rules))
    return found


def _permissions(data: Mapping[str, Any]) -> tuple[AccessRule, ...]:
    addresses = str(data.get("whiteRemoteAddress") or "")
    rows = [
        AccessRule(f"{kind}:{name}", text, addresses, "")
        for kind, key in (("Topic", "topicPerms"), ("Group", "groupPerms"))
        for name, _, text in (str(entry).rpartition("=") for entry in data.get(key) or ())
    ]
    defaults = (("Topic:*", "defaultTopicPerm"), ("Group:*", "defaultGroupPerm"))
    return (*rows, *(AccessRule(name, str(data.get(key) or "DENY"), addresses, "") for name, key in defaults))


def _rules(policies: list[Any]) -> tuple[AccessRule, ...]:
    return tuple(
        AccessRule(
            str(entry.get("resource", "")),
            ",".join(map(str, entry.get("actions") or ())),
            ",".join(map(str, entry.get("sourceIps") or ())),
            str(entry.get("decision", "")),
        )
        for policy in policies
        if isinstance(policy, dict)
        for entry in policy.get("entries") or ()
        if isinstance(entry, dict)
    )
