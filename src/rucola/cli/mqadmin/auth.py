"""Commands for users and rules (access control of RocketMQ 5.x)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Broker, Cluster, Namesrv, administer, app, named, one_of, tell_brokers
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


@app.command("createUser")
def create_user(
    namesrv: Namesrv,
    name: User,
    password: Password = None,
    user_type: UserType = None,
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Create a user."""
    one_of(broker, cluster)
    if not password:
        raise ConfigError("-p", "", "a password in -p or MQADMIN_PASSWORD")
    user = _given(username=name, password=password, userType=user_type)

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.auth.create_user(address, user),
        lambda address: f"create user to {address} success.",
        slaves=True,
        user=name,
    )


@app.command("updateUser")
def update_user(
    namesrv: Namesrv,
    name: User,
    password: Password = None,
    user_type: UserType = None,
    status: Annotated[str | None, typer.Option("-s", "--userStatus", help="enable or disable.")] = None,
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Change a user's password, type or status."""
    one_of(broker, cluster)
    user = _given(username=name, password=password, userType=user_type, userStatus=status)
    if len(user) == 1:
        raise ConfigError("-p, -t or -s", "", "something to change")

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.auth.update_user(address, user),
        lambda address: f"update user to {address} success.",
        slaves=True,
        user=name,
    )


@app.command("deleteUser")
def delete_user(namesrv: Namesrv, name: User, broker: Broker = None, cluster: Cluster = None) -> None:
    """Delete a user, and its rules."""
    one_of(broker, cluster)

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.auth.delete_user(address, name),
        lambda address: f"delete user to {address} success.",
        slaves=True,
        user=name,
    )


@app.command("getUser")
def get_user(namesrv: Namesrv, name: User, broker: Broker = None, cluster: Cluster = None) -> None:
    """Show a user from the first broker that has it."""
    one_of(broker, cluster)

    async def work(admin: AdminClient) -> None:
        for address in await admin.masters(broker, cluster):
            user = await admin.auth.user(address, name)
            if user is not None:
                _show_users([user])
                return

    administer(namesrv, work)


@app.command("listUser")
def list_user(
    namesrv: Namesrv,
    broker: Broker = None,
    cluster: Cluster = None,
    name_filter: Annotated[str | None, typer.Option("-f", "--filter", help="Substring of the names.")] = None,
) -> None:
    """List the users of the first broker that has any."""
    one_of(broker, cluster)

    async def work(admin: AdminClient) -> None:
        for address in await admin.masters(broker, cluster):
            users = await admin.auth.users(address, name_filter)
            if users:
                _show_users(users)
                return

    administer(namesrv, work)


@app.command("copyUser")
def copy_user(
    namesrv: Namesrv,
    source: FromBroker,
    target: ToBroker,
    names: Annotated[str | None, typer.Option("-u", "--usernames", help="Only these users: a,b")] = None,
) -> None:
    """Copy users from one broker to another. If the target lacks a user, the source must reveal passwords."""

    async def work(admin: AdminClient) -> None:
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

    administer(namesrv, work)


@app.command("createAcl")
def create_acl(
    namesrv: Namesrv,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    source_ips: SourceIps = None,
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Add rules for a user."""
    one_of(broker, cluster)
    acl = acl_info(subject, named(resources), named(actions), named(source_ips) or None, decision)

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.auth.create_acl(address, acl),
        lambda address: f"create acl to {address} success.",
        slaves=True,
        subject=subject,
    )


@app.command("updateAcl")
def update_acl(
    namesrv: Namesrv,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    source_ips: SourceIps = None,
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Change a user's rules for these resources."""
    one_of(broker, cluster)
    acl = acl_info(subject, named(resources), named(actions), named(source_ips) or None, decision)

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.auth.update_acl(address, acl),
        lambda address: f"update acl to {address} success.",
        slaves=True,
        subject=subject,
    )


@app.command("deleteAcl")
def delete_acl(
    namesrv: Namesrv,
    subject: Subject,
    resource: Annotated[str | None, typer.Option("-r", "--resources", help="Only for this resource.")] = None,
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Delete all rules of a user, or those for one resource."""
    one_of(broker, cluster)

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.auth.delete_acl(address, subject, resource),
        lambda address: f"delete acl to {address} success.",
        slaves=True,
        subject=subject,
    )


@app.command("getAcl")
def get_acl(namesrv: Namesrv, subject: Subject, broker: Broker = None, cluster: Cluster = None) -> None:
    """Show a user's rules."""
    one_of(broker, cluster)

    async def work(admin: AdminClient) -> None:
        found = [await admin.auth.acl(address, subject) for address in await admin.masters(broker, cluster)]
        _show_acls(acl for acl in found if acl is not None)

    administer(namesrv, work)


@app.command("listAcl")
def list_acl(
    namesrv: Namesrv,
    broker: Broker = None,
    cluster: Cluster = None,
    subject: Annotated[str | None, typer.Option("-s", "--subject", help="Substring of the subjects.")] = None,
    resource: Annotated[str | None, typer.Option("-r", "--resource", help="Substring of the resources.")] = None,
) -> None:
    """List rules."""
    one_of(broker, cluster)

    async def work(admin: AdminClient) -> None:
        for address in await admin.masters(broker, cluster):
            _show_acls(await admin.auth.acls(address, subject, resource))

    administer(namesrv, work)


@app.command("copyAcl")
def copy_acl(
    namesrv: Namesrv,
    source: FromBroker,
    target: ToBroker,
    subjects: Annotated[str | None, typer.Option("-s", "--subjects", help="Only these subjects: User:a,User:b")] = None,
) -> None:
    """Copy rules from one broker to another."""

    async def work(admin: AdminClient) -> None:
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

    administer(namesrv, work)


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
