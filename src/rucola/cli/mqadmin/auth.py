"""Commands for users and rules (access control of RocketMQ 5.x)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import named
from rucola.cli.mqadmin.target import Target, command
from rucola.client.admin import AdminClient
from rucola.errors import ConfigError
from rucola.protocol.bodies.auth import acl_info

_USER_COLUMNS = ["#UserName", "#Password", "#UserType", "#UserStatus"]
_ACL_COLUMNS = ["#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision"]

User = Annotated[str, typer.Option("-u", "--username", help="Name of the user.", show_default=False)]
Password = Annotated[
    str | None,
    typer.Option("-p", "--password", envvar="MQADMIN_PASSWORD", help="Password; the environment variable is safer."),
]
UserType = Annotated[str | None, typer.Option("-t", "--userType", help="Super or Normal.")]
Subject = Annotated[str, typer.Option("-s", "--subject", help="User:NAME", show_default=False)]
Resources = Annotated[str, typer.Option("-r", "--resources", help="Topic:T,Group:G*", show_default=False)]
Actions = Annotated[str, typer.Option("-a", "--actions", help="Pub,Sub, ...", show_default=False)]
Decision = Annotated[str, typer.Option("-d", "--decision", help="Allow or Deny.", show_default=False)]
SourceIps = Annotated[
    str | None, typer.Option("-i", "--sourceIp", help="Addresses to which the rule applies. [default: all]")
]
FromBroker = Annotated[str, typer.Option("-f", "--fromBroker", help="Broker to copy from.", show_default=False)]
ToBroker = Annotated[str, typer.Option("-t", "--toBroker", help="Broker to copy to.", show_default=False)]


@command("createUser")
async def create_user(
    target: Target,
    name: User,
    password: Password = None,
    user_type: UserType = None,
) -> None:
    """Create a user."""
    if not password:
        raise ConfigError("-p", "", "a password in -p or MQADMIN_PASSWORD")
    user = _given(username=name, password=password, userType=user_type)

    await target.change(
        lambda address: target.admin.auth.create_user(address, user),
        lambda address: f"create user to {address} success.",
        slaves=True,
        user=name,
    )


@command("updateUser")
async def update_user(
    target: Target,
    name: User,
    password: Password = None,
    user_type: UserType = None,
    status: Annotated[str | None, typer.Option("-s", "--userStatus", help="enable or disable.")] = None,
) -> None:
    """Change a user's password, type or status."""
    user = _given(username=name, password=password, userType=user_type, userStatus=status)
    if len(user) == 1:
        raise ConfigError("-p, -t or -s", "", "something to change")

    await target.change(
        lambda address: target.admin.auth.update_user(address, user),
        lambda address: f"update user to {address} success.",
        slaves=True,
        user=name,
    )


@command("deleteUser")
async def delete_user(target: Target, name: User) -> None:
    """Delete a user, and its rules."""
    await target.change(
        lambda address: target.admin.auth.delete_user(address, name),
        lambda address: f"delete user to {address} success.",
        slaves=True,
        user=name,
    )


@command("getUser")
async def get_user(target: Target, name: User) -> None:
    """Show a user from the first broker that has it."""
    for address in await target.masters():
        user = await target.admin.auth.user(address, name)
        if user is not None:
            _show_users([user])
            return


@command("listUser")
async def list_user(
    target: Target,
    name_filter: Annotated[str | None, typer.Option("-f", "--filter", help="Substring of the names.")] = None,
) -> None:
    """List the users of the first broker that has any."""
    for address in await target.masters():
        users = await target.admin.auth.users(address, name_filter)
        if users:
            _show_users(users)
            return


@command("copyUser")
async def copy_user(
    admin: AdminClient,
    source: FromBroker,
    target: ToBroker,
    names: Annotated[str | None, typer.Option("-u", "--usernames", help="Only these users: a,b")] = None,
) -> None:
    """Copy users from one broker to another. If the target lacks a user, the source must reveal passwords."""
    users = await admin.auth.users(source)
    if names is not None:
        users = [user for user in users if user.get("username") in named(names)]
    for user in users:
        name = user["username"]
        if await admin.auth.user(target, name) is None:
            await admin.auth.create_user(target, user)
        else:
            await admin.auth.update_user(target, user)
        output.say(f"copy user of {name} from {source} to {target} success.", user=name, source=source, to=target)


@command("createAcl")
async def create_acl(
    target: Target,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    source_ips: SourceIps = None,
) -> None:
    """Add rules for a user."""
    acl = acl_info(subject, named(resources), named(actions), named(source_ips) or None, decision)

    await target.change(
        lambda address: target.admin.auth.create_acl(address, acl),
        lambda address: f"create acl to {address} success.",
        slaves=True,
        subject=subject,
    )


@command("updateAcl")
async def update_acl(
    target: Target,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    source_ips: SourceIps = None,
) -> None:
    """Change a user's rules for these resources."""
    acl = acl_info(subject, named(resources), named(actions), named(source_ips) or None, decision)

    await target.change(
        lambda address: target.admin.auth.update_acl(address, acl),
        lambda address: f"update acl to {address} success.",
        slaves=True,
        subject=subject,
    )


@command("deleteAcl")
async def delete_acl(
    target: Target,
    subject: Subject,
    resource: Annotated[str | None, typer.Option("-r", "--resources", help="Only for this resource.")] = None,
) -> None:
    """Delete all rules of a user, or those for one resource."""
    await target.change(
        lambda address: target.admin.auth.delete_acl(address, subject, resource),
        lambda address: f"delete acl to {address} success.",
        slaves=True,
        subject=subject,
    )


@command("getAcl")
async def get_acl(target: Target, subject: Subject) -> None:
    """Show a user's rules."""
    found = [await target.admin.auth.acl(address, subject) for address in await target.masters()]
    _show_acls(acl for acl in found if acl is not None)


@command("listAcl")
async def list_acl(
    target: Target,
    subject: Annotated[str | None, typer.Option("-s", "--subject", help="Substring of the subjects.")] = None,
    resource: Annotated[str | None, typer.Option("-r", "--resource", help="Substring of the resources.")] = None,
) -> None:
    """List rules."""
    for address in await target.masters():
        _show_acls(await target.admin.auth.acls(address, subject, resource))


@command("copyAcl")
async def copy_acl(
    admin: AdminClient,
    source: FromBroker,
    target: ToBroker,
    subjects: Annotated[str | None, typer.Option("-s", "--subjects", help="Only these subjects: User:a,User:b")] = None,
) -> None:
    """Copy rules from one broker to another."""
    acls = await admin.auth.acls(source)
    if subjects is not None:
        acls = [acl for acl in acls if acl.get("subject") in named(subjects)]
    for acl in acls:
        subject = acl["subject"]
        if await admin.auth.acl(target, subject) is None:
            await admin.auth.create_acl(target, acl)
        else:
            await admin.auth.update_acl(target, acl)
        text = f"copy acl of {subject} from {source} to {target} success."
        output.say(text, subject=subject, source=source, to=target)


def _given(**members: str | None) -> dict[str, str]:
    return {name: value for name, value in members.items() if value is not None}


def _show_users(users: Iterable[Mapping[str, Any]]) -> None:
    members = ("username", "password", "userType", "userStatus")
    output.table(_USER_COLUMNS, [[user.get(member) for member in members] for user in users])


def _show_acls(acls: Iterable[Mapping[str, Any]]) -> None:
    rows: list[list[object]] = []
    for acl in acls:
        entries = [(policy, entry) for policy in acl.get("policies", []) for entry in policy.get("entries", [])]
        rows += [
            [
                acl.get("subject"),
                policy.get("policyType"),
                entry.get("resource"),
                output.list_text(entry.get("actions")),
                output.list_text(entry.get("sourceIps")),
                entry.get("decision"),
            ]
            for policy, entry in entries
        ]
        if not entries:
            rows.append([acl.get("subject"), "", "", "", "", ""])
    output.table(_ACL_COLUMNS, rows)
