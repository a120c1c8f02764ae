"""Commands for accounts (access control of RocketMQ 4.x: ``plain_acl.yml``), as in mqadmin 4.9."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Broker, Cluster, Namesrv, Switch, administer, app, one_of, switch, tell_brokers
from rucola.client.admin import AdminClient
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


@app.command("updateAclConfig")
def update_acl_config(
    namesrv: Namesrv,
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
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Create or change an account."""
    one_of(broker, cluster)
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

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.auth.change_account(address, account),
        lambda address: f"create or update plain access config to {address} success.",
        slaves=True,
        accessKey=access_key,
    )


@app.command("deleteAclConfig")
def delete_acl_config(namesrv: Namesrv, access_key: AccessKey, broker: Broker = None, cluster: Cluster = None) -> None:
    """Delete an account."""
    one_of(broker, cluster)

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.auth.delete_account(address, access_key),
        lambda address: f"delete plain access config account from {address} success.",
        slaves=True,
        accessKey=access_key,
    )


@app.command("updateGlobalWhiteAddr")
def update_global_white_addr(
    namesrv: Namesrv,
    addresses: Annotated[
        str, typer.Option("-g", "--globalWhiteRemoteAddresses", help="10.10.103.*,192.168.0.*", show_default=False)
    ],
    path: Annotated[
        str | None, typer.Option("-p", "--aclFileFullPath", help="Only in this file of the broker.")
    ] = None,
    broker: Broker = None,
    cluster: Cluster = None,
) -> None:
    """Set the addresses from which requests of any account need no signature."""
    one_of(broker, cluster)

    tell_brokers(
        namesrv,
        broker,
        cluster,
        lambda admin, address: admin.auth.change_global_addresses(address, addresses, path),
        lambda address: f"update global white remote addresses to {address} success.",
        slaves=True,
    )


@app.command("clusterAclConfigVersion")
def cluster_acl_config_version(namesrv: Namesrv, broker: Broker = None, cluster: Cluster = None) -> None:
    """Show the version of each broker's accounts."""
    one_of(broker, cluster)

    async def work(admin: AdminClient) -> None:
        rows: list[list[object]] = []
        for address in await admin.masters(broker, cluster):
            version = await admin.auth.accounts_version(address)
            for path, file_version in _file_versions(version).items():
                counter, time_ms = file_version.get("counter"), file_version.get("timestamp")
                shown = output.time_text(time_ms if isinstance(time_ms, int) else 0).partition(",")[0]
                rows.append([version.cluster_name, version.broker_name, version.broker_addr, path, counter, shown])
        output.table(_VERSION_COLUMNS, rows)

    administer(namesrv, work)


@app.command("getAclConfig")
def get_acl_config(namesrv: Namesrv, broker: Broker = None, cluster: Cluster = None) -> None:
    """Show the accounts; a Rucola broker shows no secrets."""
    one_of(broker, cluster)

    async def work(admin: AdminClient) -> None:
        for address in await admin.masters(broker, cluster):
            found = await admin.auth.accounts(address)
            output.facts({"globalWhiteRemoteAddresses": _shown(found.get("globalWhiteAddrs"))})
            for account in found.get("plainAccessConfigs") or []:
                output.facts({name: _shown(account.get(name)) for name in _ACCOUNT_MEMBERS})

    administer(namesrv, work)


def _file_versions(version: GetBrokerAclConfigResponseHeader) -> dict[str, dict[str, Any]]:
    try:
        found = orjson.loads(version.all_acl_file_version)
        return {str(path): dict(file_version) for path, file_version in found.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise FormatError("allAclFileVersion", 0, "a JSON object of versions by path", str(error)[:80]) from None


def _shown(value: object) -> object:
    """The value to print; a list becomes text, except with ``--json``."""
    return output.list_text(value) if isinstance(value, list) and not output.JSON.get() else value
