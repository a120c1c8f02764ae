"""Changes rules of users, and users themselves (access control of RocketMQ 5.x).

A password is never asked for here: it would go through a form and its address. `rucola mqadmin createUser` makes users.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rucola.console.changes.plan import ChangePlan, ChangeStep, PlanError
from rucola.console.cluster.asking import Unknown, by_deadline
from rucola.console.cluster.snapshot import BrokerState
from rucola.console.visit import BadQueryError, Visit
from rucola.protocol.bodies.auth import acl_info

DECISIONS: Final = ("Allow", "Deny")
DEEDS: Final = ("enable", "disable", "delete")
_DEADLINE_S: Final = 3.0
_NAME_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class RuleQuery:
    """A rule of a user that is set, in place of the user's rule for the same resource.

    Attributes:
        user: name of the user.
        resource: ``Topic:NAME``, ``Group:NAME`` or ``Cluster:NAME``, also with ``*`` at the end of the name; or ``*``.
        actions: ``Pub``, ``Sub`` or others, separated by commas.
        decision: ``Allow`` or ``Deny``.
        addresses: addresses and networks to which it applies, separated by commas; empty for all.
    """

    user: str = ""
    resource: str = ""
    actions: str = "Pub,Sub"
    decision: str = "Allow"
    addresses: str = ""


@dataclass(frozen=True, slots=True)
class DeleteRuleQuery:
    """A rule of a user that is deleted.

    Attributes:
        user: name of the user.
        resource: the resource that it names.
    """

    user: str = ""
    resource: str = ""


@dataclass(frozen=True, slots=True)
class UserQuery:
    """A user that is changed.

    Attributes:
        user: name of the user.
        do: ``enable``, ``disable`` or ``delete``; a user is deleted together with all rules.
    """

    user: str = ""
    do: str = ""


async def plan_rule(visit: Visit, query: RuleQuery) -> ChangePlan:
    """Plans to set a rule on all brokers."""
    _check_user(visit, query.user)
    _check_resource(query.resource)
    actions, addresses = _parts(query.actions), _parts(query.addresses)
    if not actions:
        raise BadQueryError("actions", query.actions, "Pub, Sub, All, Create, Update, Delete, Get or List")
    if query.decision not in DECISIONS:
        raise BadQueryError("decision", query.decision, ", ".join(DECISIONS))
    auth, subject = visit.watch.admin.auth, f"User:{query.user}"
    wanted = acl_info(subject, [query.resource], actions, addresses or None, query.decision)
    from_addresses = f"-i {shlex.quote(','.join(addresses))} " if addresses else ""
    after = _text(wanted["policies"][0]["entries"][0])
    steps = []
    for broker, acl in await _told(visit, lambda address: auth.acl(address, subject)):
        before = _rules_for(acl, query.resource)
        call = auth.create_acl if acl is None else auth.update_acl
        run = None if before == after else partial(call, broker.address, wanted)
        steps.append(ChangeStep(broker.name, broker.address, before or "-", after, "", {}, run))
    return ChangePlan(
        query.user,
        "Set the rule of {user} for {resource}",
        {"user": query.user, "resource": query.resource},
        tuple(steps),
        _fingerprint(steps),
        command=f"updateAcl -s {shlex.quote(subject)} -r {shlex.quote(query.resource)} "
        f"-a {shlex.quote(','.join(actions))} -d {query.decision} {from_addresses}-c {shlex.quote(_cluster(visit))}",
    )


async def plan_delete_rule(visit: Visit, query: DeleteRuleQuery) -> ChangePlan:
    """Plans to delete a user's rule for a resource on all brokers."""
    _check_user(visit, query.user)
    _check_resource(query.resource)
    auth, subject = visit.watch.admin.auth, f"User:{query.user}"
    steps = []
    for broker, acl in await _told(visit, lambda address: auth.acl(address, subject)):
        before = _rules_for(acl, query.resource)
        run = partial(auth.delete_acl, broker.address, subject, query.resource) if before else None
        steps.append(ChangeStep(broker.name, broker.address, before or "-", "-", "", {}, run))
    return ChangePlan(
        query.user,
        "Delete the rule of {user} for {resource}",
        {"user": query.user, "resource": query.resource},
        tuple(steps),
        _fingerprint(steps),
        command=f"deleteAcl -s {shlex.quote(subject)} -r {shlex.quote(query.resource)} "
        f"-c {shlex.quote(_cluster(visit))}",
    )


async def plan_user(visit: Visit, query: UserQuery) -> ChangePlan:
    """Plans to enable, disable or delete a user on all brokers."""
    _check_user(visit, query.user)
    if query.do not in DEEDS:
        raise BadQueryError("do", query.do, ", ".join(DEEDS))
    auth = visit.watch.admin.auth
    is_deleted = query.do == "delete"
    steps = []
    for broker, user in await _told(visit, lambda address: auth.user(address, query.user)):
        before = "-" if user is None else f"{user.get('userType')}, {user.get('userStatus') or 'enable'}"
        run: Callable[[], Awaitable[object]] | None = None
        if user is not None and is_deleted:
            run = partial(auth.delete_user, broker.address, query.user)
        elif user is not None and str(user.get("userStatus") or "enable") != query.do:
            run = partial(auth.update_user, broker.address, {"username": query.user, "userStatus": query.do})
        after = "-" if is_deleted or user is None else f"{user.get('userType')}, {query.do}"
        steps.append(ChangeStep(broker.name, broker.address, before, after, "", {}, run))
    return ChangePlan(
        query.user,
        "Delete user {user} with all rules" if is_deleted else "Change user {user}",
        {"user": query.user},
        tuple(steps),
        _fingerprint(steps),
        must_type=is_deleted,
        command=f"deleteUser -u {shlex.quote(query.user)} -c {shlex.quote(_cluster(visit))}"
        if is_deleted
        else f"updateUser -u {shlex.quote(query.user)} -s {query.do} -c {shlex.quote(_cluster(visit))}",
    )


async def _told(
    visit: Visit, ask: Callable[[str], Awaitable[dict[str, Any] | None]]
) -> list[tuple[BrokerState, dict[str, Any] | None]]:
    """The answers of all listed brokers, slaves too: each has tables of its own.

    Raises:
        PlanError: a broker does not answer, or none is known.
    """
    brokers = [one for one in (await visit.watch.fresh()).brokers if one.is_listed]
    if not brokers:
        raise PlanError("No master is known.")
    found = await by_deadline([(one.address, ask(one.address)) for one in brokers], _DEADLINE_S)
    told = []
    for broker, answer in zip(brokers, found, strict=True):
        if isinstance(answer, Unknown):
            raise PlanError("{server} does not answer: {why}", server=broker.address, why=answer.text)
        told.append((broker, answer))
    return told


def _check_user(visit: Visit, name: str) -> None:
    if not name or len(name) > _NAME_MAX or not name.isprintable():
        raise BadQueryError("user", name, "the name of a user")
    if name == visit.account.name:
        raise PlanError("You cannot change your own rights.")


def _check_resource(text: str) -> None:
    kind, _, name = text.partition(":")
    if text != "*" and (kind not in ("Topic", "Group", "Cluster") or not name or len(text) > _NAME_MAX):
        raise BadQueryError("resource", text, "*, Topic:NAME, Group:NAME or Cluster:NAME")


def _rules_for(acl: dict[str, Any] | None, resource: str) -> str:
    entries = [entry for policy in (acl or {}).get("policies") or () for entry in policy.get("entries") or ()]
    return "; ".join(_text(entry) for entry in entries if entry.get("resource") == resource)


def _text(entry: dict[str, Any]) -> str:
    addresses = ",".join(map(str, entry.get("sourceIps") or ()))
    text = f"{entry.get('decision')} {','.join(map(str, entry.get('actions') or ()))}"
    return f"{text} from {addresses}" if addresses else text


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _fingerprint(steps: list[ChangeStep]) -> tuple[Any, ...]:
    return tuple((step.target, step.before, step.after) for step in steps)


def _cluster(visit: Visit) -> str:
    return next((broker.cluster for broker in visit.watch.poller.snapshot.masters), "CLUSTER")
