"""Commands for controllers, and for the groups of brokers that they keep."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import app, client_config
from rucola.cli.mqadmin.target import command
from rucola.client.admin import AdminClient
from rucola.client.instance import client_options
from rucola.errors import ClientError, ConfigError
from rucola.protocol.bodies.controller import ReplicasInfo
from rucola.protocol.headers.controller import (
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
)
from rucola.remoting.client import RemotingClient
from rucola.remoting.controller_api import ControllerApi
from rucola.runtime.clock import SystemClock

Address = Annotated[str, typer.Option("-a", "--controllerAddress", help="A controller, host:port.", show_default=False)]
Addresses = Annotated[
    str,
    typer.Option("-a", "--controllerAddress", help="Controllers, host:port separated by ;", show_default=False),
]
Namesrv = Annotated[
    str,
    typer.Option(
        "-n", "--namesrvAddr", envvar="NAMESRV_ADDR", help="Name servers; needed with -c.", show_default=False
    ),
]
Cluster = Annotated[str | None, typer.Option("-c", "--clusterName", help="Name of the cluster.")]
BrokerName = Annotated[str, typer.Option("-bn", "--brokerName", help="Name of the brokers.", show_default=False)]
Interval = Annotated[
    int | None, typer.Option("-i", "--interval", help="Repeat, with this many seconds in between.", min=1)
]


def controller_command(name: str) -> Callable[[Any], Any]:
    """Registers a command whose first argument is a ``ControllerApi``; the others are its options."""

    def register(work: Any) -> Any:
        hints = get_type_hints(work, include_extras=True)
        _, *others = inspect.signature(work).parameters.values()

        @wraps(work)
        def run(**given: Any) -> None:
            async def session() -> None:
                client = RemotingClient(client_options(client_config(), SystemClock()))
                try:
                    await work(ControllerApi(client), **given)
                finally:
                    await client.close()

            asyncio.run(session())

        keyword_only = inspect.Parameter.KEYWORD_ONLY
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [one.replace(kind=keyword_only, annotation=hints[one.name]) for one in others]
        )
        app.command(name)(run)
        return work

    return register


@controller_command("getControllerMetaData")
async def get_controller_meta_data(
    api: ControllerApi,
    controller: Address,
    namesrv: Namesrv = "",
) -> None:
    """Show which controller leads, and all controllers."""
    found = await api.metadata(controller)
    output.facts(
        {
            "#ControllerGroup": found.group,
            "#ControllerLeaderId": found.controller_leader_id,
            "#ControllerLeaderAddress": found.controller_leader_address,
            "#Peer": " ".join(peer for peer in (found.peers or "").split(";") if peer),
        }
    )


@controller_command("getSyncStateSet")
async def get_sync_state_set(
    api: ControllerApi,
    controller: Address,
    broker: Annotated[str | None, typer.Option("-b", "--brokerName", help="Name of the brokers.")] = None,
    cluster: Cluster = None,
    interval_s: Interval = None,
    namesrv: Namesrv = "",
) -> None:
    """Show the masters of groups, and which brokers are in sync."""
    if broker is None and cluster is None:
        raise ConfigError("-b or -c", "", "a broker's name or a cluster's name")
    while True:
        names = [broker] if broker is not None else await _names_in(cluster or "", namesrv)
        leader = await _leader(api, controller.split(";")[0])
        found = (await api.sync_state_data(leader, names)).replicas_info_table
        missing = [name for name in names if name not in found]
        if broker is not None and missing:
            raise ClientError(f"the controller knows no brokers with the name {broker}")
        for name in sorted(found):
            _show(name, found[name])
        if interval_s is None:
            return
        await asyncio.sleep(interval_s)


def _show(name: str, group: ReplicasInfo) -> None:
    output.facts(
        {
            "#brokerName": name,
            "#MasterBrokerId": group.master_broker_id,
            "#MasterAddr": group.master_address,
            "#MasterEpoch": group.master_epoch,
            "#SyncStateSetEpoch": group.sync_state_set_epoch,
            "#SyncStateSetNums": len(group.in_sync_replicas),
        }
    )
    rows = [
        [each.broker_id, each.broker_address, is_in_sync, each.alive]
        for is_in_sync, members in ((True, group.in_sync_replicas), (False, group.not_in_sync_replicas))
        for each in members
    ]
    output.table(["#BrokerId", "#BrokerAddr", "#InSync", "#Alive"], rows)


@controller_command("electMaster")
async def elect_master(
    api: ControllerApi,
    controller: Address,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="Name of the cluster.", show_default=False)],
    broker_name: BrokerName,
    broker_id: Annotated[int, typer.Option("-b", "--brokerId", help="The new master.", min=0, show_default=False)],
    namesrv: Namesrv = "",
) -> None:
    """Make a broker that is in sync the master."""
    asked = ElectMasterRequestHeader(cluster, broker_name, broker_id, designate_elect=True)
    master, body = await api.elect_master(await _leader(api, controller), asked)
    output.facts(
        {
            "#ClusterName": cluster,
            "#BrokerName": broker_name,
            "#BrokerMasterAddr": master.master_address,
            "#MasterEpoch": master.master_epoch,
            "#SyncStateSetEpoch": master.sync_state_set_epoch,
        }
    )
    members = {} if body.broker_member_group is None else body.broker_member_group.broker_addrs
    output.table(["#Broker", "#BrokerAddr"], [[number, members[number]] for number in sorted(members)])


@controller_command("cleanBrokerMetadata")
async def clean_broker_metadata(
    api: ControllerApi,
    controller: Address,
    broker_name: BrokerName,
    cluster: Cluster = None,
    broker_ids: Annotated[
        str | None, typer.Option("-b", "--brokerControllerIdsToClean", help="Ids separated by ; [default: all]")
    ] = None,
    living: Annotated[bool, typer.Option("-l", "--cleanLivingBroker", help="Also brokers that live.")] = False,
    namesrv: Namesrv = "",
) -> None:
    """Remove brokers, or all brokers with a name, from the controller."""
    if not living and not cluster:
        raise ConfigError("-c", "", "a cluster's name, because -l is not given")
    if broker_ids is not None and not all(one.strip().isdecimal() for one in broker_ids.split(";")):
        raise ConfigError("-b", broker_ids, "ids separated by ;")
    header = CleanControllerBrokerDataRequestHeader(broker_name, cluster, broker_ids, living)
    await api.clean_broker_data(await _leader(api, controller), header)
    output.say(f"clear broker {broker_name} metadata from controller success!", broker=broker_name, ids=broker_ids)


@controller_command("getControllerConfig")
async def get_controller_config(api: ControllerApi, controllers: Addresses, namesrv: Namesrv = "") -> None:
    """Show the options of controllers."""
    for address in _addresses(controllers):
        output.facts({"controller": address, **dict(sorted((await api.config(address)).items()))})


@controller_command("updateControllerConfig")
async def update_controller_config(
    api: ControllerApi,
    controllers: Addresses,
    key: Annotated[str, typer.Option("-k", "--key", help="Key.", show_default=False)],
    value: Annotated[str, typer.Option("-v", "--value", help="Value.", show_default=False)],
    namesrv: Namesrv = "",
) -> None:
    """Change an option of controllers."""
    for address in _addresses(controllers):
        await api.change_config(address, {key: value})
    output.say(f"update controller config success! {key} : {value}", key=key, value=value)


@command("getBrokerEpoch")
async def get_broker_epoch(
    admin: AdminClient,
    broker: Annotated[str | None, typer.Option("-b", "--brokerName", help="Name of the brokers.")] = None,
    cluster: Cluster = None,
    interval_s: Interval = None,
) -> None:
    """Show the epochs of brokers' logs."""
    if broker is None and cluster is None:
        raise ConfigError("-b or -c", "", "a broker's name or a cluster's name")
    while True:
        for address in await _members(admin, broker, cluster):
            found = await admin.controller.epochs(address)
            ends = [*(entry.end_offset for entry in found.epoch_list[:-1]), found.max_offset]
            output.facts(
                {
                    "#clusterName": found.cluster_name,
                    "#brokerName": found.broker_name,
                    "#brokerAddr": address,
                    "#brokerId": found.broker_id,
                }
            )
            rows = [[one.epoch, one.start_offset, end] for one, end in zip(found.epoch_list, ends, strict=False)]
            output.table(["#Epoch", "#StartOffset", "#EndOffset"], rows)
        if interval_s is None:
            return
        await asyncio.sleep(interval_s)


async def _members(admin: AdminClient, broker: str | None, cluster: str | None) -> list[str]:
    if broker is None:
        return await admin.members(None, cluster)
    data = (await admin.cluster_info()).broker_addr_table.get(broker)
    if data is None:
        raise ClientError(f"there are no brokers with the name {broker}")
    return [data.broker_addrs[number] for number in sorted(data.broker_addrs)]


async def _names_in(cluster: str, namesrv: str) -> list[str]:
    if not namesrv:
        raise ConfigError("-n", "", "name servers, because -c is given")
    async with AdminClient(namesrv, config=client_config()) as admin:
        found = (await admin.cluster_info()).cluster_addr_table
    if cluster not in found:
        raise ClientError(f"cluster {cluster} does not exist; existing clusters: {', '.join(sorted(found))}")
    return sorted(found[cluster])


async def _leader(api: ControllerApi, address: str) -> str:
    """The address of the leader, as the controller at ``address`` says.

    Raises:
        ClientError: there is none.
    """
    found = await api.metadata(address)
    if not found.controller_leader_address:
        raise ClientError(f"the controller {address} knows no leader")
    return found.controller_leader_address


def _addresses(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]
