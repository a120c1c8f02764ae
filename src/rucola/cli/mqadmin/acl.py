"""Commands for accounts (access control of RocketMQ 4.x: ``plain_acl.yml``), as in mqadmin 4.9."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Switch, switch
from rucola.cli.mqadmin.target import Target, command
from rucola.common.json_library import orjson
from rucola.errors import ConfigError, FormatError
from rucola.protocol.headers.auth import CreateAccessConfigRequestHeader, GetBrokerAclConfigResponseHeader

AccessKey = Annotated[str, typer.Option("-a", "--accessKey", help="Name of the account.", show_default=False)]
_VERSION_COLUMNS = [
    "#Cluster Name",
    "#Broker Name",
    "#Broker Addr",
    "#AclFilePath",
    "#AclConfigVersionNum",
    "#AclLastUpdateTime",
]
_ACCOUNT_MEMBERS = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)


@command("updateAclConfig")
async def update_acl_config(
    target: Target,
    access_key: AccessKey,
    secret_key: Annotated[
        str | None,
        typer.Option(
            "-s", "--secretKey", envvar="MQADMIN_PASSWORD", help="Account's secret; the environment variable is safer."
        ),
    ] = None,
    addresses: Annotated[
        str | None, typer.Option("-w", "--whiteRemoteAddress", help="Addresses that need no signature.")
    ] = None,
    topic_perm: Annotated[str | None, typer.Option("-i", "--defaultTopicPerm", help="DENY, PUB, SUB, PUB|SUB")] = None,
    group_perm: Annotated[str | None, typer.Option("-u", "--defaultGroupPerm", help="DENY, PUB, SUB, PUB|SUB")] = None,
    topic_perms: Annotated[str | None, typer.Option("-t", "--topicPerms", help="topicA=DENY,topicD=SUB")] = None,
    group_perms: Annotated[str | None, typer.Option("-g", "--groupPerms", help="groupD=DENY,groupE=SUB")] = None,
    administrator: Annotated[Switch, typer.Option("-m", "--admin", help="true or false.")] = None,
) -> None:
    """Create or change an account."""
    if not secret_key:
        raise ConfigError("-s", "", "a secret in -s or MQADMIN_PASSWORD")
    account = CreateAccessConfigRequestHeader(
        access_key,
        secret_key,
        addresses,
        # Without the option, RocketMQ's tool sets false.
        switch("-m", administrator, False),
        topic_perm,
        group_perm,
        topic_perms,
        group_perms,
    )

    await target.change(
        lambda address: target.admin.auth.change_account(address, account),
        lambda address: f"create or update plain access config to {address} success.",
        slaves=True,
        accessKey=access_key,
    )


@command("deleteAclConfig")
async def delete_acl_config(target: Target, access_key: AccessKey) -> None:
    """Delete an account."""
    await target.change(
        lambda address: target.admin.auth.delete_account(address, access_key),
        lambda address: f"delete plain access config account from {address} success.",
        slaves=True,
        accessKey=access_key,
    )


@command("updateGlobalWhiteAddr")
async def update_global_white_addr(
    target: Target,
    addresses: Annotated[
        str, typer.Option("-g", "--globalWhiteRemoteAddresses", help="10.10.103.*,192.168.0.*", show_default=False)
    ],
    path: Annotated[
        str | None, typer.Option("-p", "--aclFileFullPath", help="Only in this file of the broker.")
    ] = None,
) -> None:
    """Set the addresses from which requests of any account need no signature."""
    await target.change(
        lambda address: target.admin.auth.change_global_addresses(address, addresses, path),
        lambda address: f"update global white remote addresses to {address} success.",
        slaves=True,
    )


@command("clusterAclConfigVersion")
async def cluster_acl_config_version(target: Target) -> None:
    """Show the version of each broker's accounts."""
    rows: list[list[object]] = []
    for address in await target.masters():
        version = await target.admin.auth.accounts_version(address)
        for path, file_version in _file_versions(version).items():
            counter, time_ms = file_version.get("counter"), file_version.get("timestamp")
            shown = output.time_text(time_ms if isinstance(time_ms, int) else 0).partition(",")[0]
            rows.append([version.cluster_name, version.broker_name, version.broker_addr, path, counter, shown])
    output.table(_VERSION_COLUMNS, rows)


@command("getAclConfig")
async def get_acl_config(target: Target) -> None:
    """Show the accounts; a Rucola broker shows no secrets."""
    for address in await target.masters():
        found = await target.admin.auth.accounts(address)
        output.facts({"globalWhiteRemoteAddresses": _shown(found.get("globalWhiteAddrs"))})
        for account in found.get("plainAccessConfigs") or []:
            output.facts({name: _shown(account.get(name)) for name in _ACCOUNT_MEMBERS})


def _file_versions(version: GetBrokerAclConfigResponseHeader) -> dict[str, dict[str, Any]]:
    try:
        found = orjson.loads(version.all_acl_file_version)
        return {str(path): dict(file_version) for path, file_version in found.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise FormatError("allAclFileVersion", 0, "a JSON object of versions by path", str(error)[:80]) from None


def _shown(value: object) -> object:
    """The value to print; a list becomes text, except with ``--json``."""
    return output.list_text(value) if isinstance(value, list) and not output.JSON.get() else value
