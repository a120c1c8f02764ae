"""Fake routes: with accounts, only administrators and the cluster's own brokers may change the name server's data."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ACCOUNTS, ADMIN, ALICE, DENIED, signed, write_accounts
from tests.brokers import run

from rucola.broker import Broker
from rucola.broker.acl.permission import AclSnapshot
from rucola.broker.config import broker_options
from rucola.cli.account_files import plain_accounts
from rucola.cli.broker_server import BrokerServers
from rucola.cli.config_file import read_properties
from rucola.cli.namesrv_access import NamesrvAccess, credentials_of, own_brokers
from rucola.cli.namesrv_server import NamesrvServer
from rucola.cli.servers import Addresses, UpOptions, UpServers
from rucola.common.data_version import DataVersion
from rucola.common.topic_config import TopicConfig
from rucola.errors import ConfigError
from rucola.namesrv import NamesrvConfig
from rucola.protocol.bodies.registration import RegisterBrokerBody, TopicConfigSerializeWrapper, body_crc32
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.route import RegisterBrokerRequestHeader
from rucola.remoting.client import RemotingClient
from rucola.runtime.clock import SystemClock

SMALL = "mappedFileSizeCommitLog=1048576\nmaxHashSlotNum=1000\nmaxIndexNum=4000\naclEnable=true\n"
CHANGES = (100, 102, 103, 104, 205, 216, 217, 318, 322, 327, 904, 9999)


def fake_registration() -> RemotingCommand:
    """Returns the registration of a foreign broker for one of our topics."""
    body = RegisterBrokerBody(
        TopicConfigSerializeWrapper({"A": TopicConfig("A", 8, 8, 6)}, DataVersion(0, 1, 1))
    ).encode()
    header = RegisterBrokerRequestHeader(
        "broker-a",
        "127.0.0.1:9",
        "DefaultCluster",
        "127.0.0.1:10",
        0,
        enable_acting_master=False,
        body_crc32=body_crc32(body),
    )
    return RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=header.to_ext_fields(), body=body)


@contextlib.asynccontextmanager
async def asked(namesrv: str) -> AsyncIterator[Any]:
    client = RemotingClient()

    async def ask(command: RemotingCommand, account: tuple[str, str] | None = None) -> RemotingCommand:
        return await client.invoke(namesrv, command if account is None else signed(command, account), 5_000)

    yield ask
    await client.close()


async def route_of(ask: Any, topic: str) -> bytes:
    answer = await ask(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic}))
    return bytes(answer.body)


@contextlib.asynccontextmanager
async def up(tmp_path: Path, **options: Any) -> AsyncIterator[Addresses]:
    write_accounts(tmp_path)
    (tmp_path / "broker.conf").write_text(f"{SMALL}rocketmqHome={tmp_path}\n")
    ports = {"namesrv_port": 0, "broker_port": 0, "http_port": 0}
    servers = UpServers(
        UpOptions(store=f"{tmp_path}/store", config=read_properties(f"{tmp_path}/broker.conf"), **ports, **options)
    )
    try:
        yield await servers.start()
    finally:
        await servers.stop()


async def only_administrators_change(namesrv: str, routes_before: bytes) -> None:
    async with asked(namesrv) as ask:
        for account in (None, ALICE, (ADMIN[0], "not-the-secret"), ("rucola-up", "guessed-by-somebody")):
            assert (await ask(fake_registration(), account)).code == DENIED
            for code in CHANGES:
                assert (
                    await ask(RemotingCommand(code, ext_fields={"topic": "DefaultCluster"}), account)
                ).code == DENIED
        assert await route_of(ask, "DefaultCluster") == routes_before and b'127.0.0.1:9"' not in routes_before
        fields = {"namespace": "n", "key": "k", "value": "v"}
        assert (await ask(RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=fields), ADMIN)).code == 0


@pytest.mark.parametrize("brokers", [1, 2])
def test_nobody_without_an_account_changes_a_route(tmp_path: Path, brokers: int) -> None:
    async def body() -> None:
        async with up(tmp_path, brokers=brokers) as addresses:
            async with asked(addresses.namesrv) as ask:
                routes = await route_of(ask, "DefaultCluster")
            assert all(address.encode() in routes for address in addresses.brokers.values())
            await only_administrators_change(addresses.namesrv, routes)

    run(body())


def test_the_parts_alone_agree_by_credentials_in_their_files(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_accounts(home)

    async def body() -> None:
        namesrv = NamesrvServer(NamesrvConfig(listen_port=0, acl_enable=True, rocketmq_home=str(home)))
        await namesrv.start()
        address = namesrv.server.address
        text = f'{{"accessKey": "{ADMIN[0]}", "secretKey": "{ADMIN[1]}"}}'
        values = {
            "aclEnable": "true",
            "rocketmqHome": str(home),
            "storePathRootDir": f"{tmp_path}/store",
            "listenPort": "0",
            "namesrvAddr": address,
            "mappedFileSizeCommitLog": "1048576",
        }
        strange = BrokerServers(Broker(*broker_options(values)), None)
        await strange.start()
        async with asked(address) as ask:
            assert await route_of(ask, "DefaultCluster") == b"", "a broker without credentials cannot register"
            await strange.stop()
            values["innerClientAuthenticationCredentials"] = text
            known = BrokerServers(Broker(*broker_options(values)), None)
            await known.start()
            routes = await route_of(ask, "DefaultCluster")
            assert known.broker.address.encode() in routes
            await only_administrators_change(address, routes)
            await known.stop()
            assert await route_of(ask, "DefaultCluster") == b"", "the broker uses its credentials to unregister too"
        await namesrv.stop()

    run(body())


def test_changed_accounts_of_a_name_server_count_without_a_restart(tmp_path: Path) -> None:
    write_accounts(tmp_path)

    async def body() -> None:
        namesrv = NamesrvServer(NamesrvConfig(listen_port=0, acl_enable=True, rocketmq_home=str(tmp_path)))
        await namesrv.start()
        async with asked(namesrv.server.address) as ask:
            command = RemotingCommand(RequestCode.GET_NAMESRV_CONFIG)
            assert (await ask(command, ADMIN)).code == 0
            write_accounts(tmp_path, ACCOUNTS.replace(ADMIN[1], "another-secret-of-theirs"))
            async with asyncio.timeout(30):
                while (await ask(command, ADMIN)).code != DENIED:
                    await asyncio.sleep(0.05)
            assert (await ask(command, (ADMIN[0], "another-secret-of-theirs"))).code == 0
        await namesrv.stop()

    run(body())


def test_access_control_of_a_name_server_needs_its_accounts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rocketmqHome"):
        NamesrvConfig(acl_enable=True)
    write_accounts(tmp_path, "accounts: 7\n")
    with pytest.raises(ConfigError, match="aclEnable"):
        plain_accounts(str(tmp_path), False, SystemClock())
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials") as caught:
        broker_options({"innerClientAuthenticationCredentials": '{"accessKey": "a-secret-of-mine"}'})
    assert "a-secret-of-mine" not in str(caught.value)


def test_the_own_account_is_known_before_all_others_and_beside_them() -> None:
    own = own_brokers()
    snapshots: list[AclSnapshot | None] = [None, AclSnapshot({})]
    access = NamesrvAccess(lambda: snapshots[0], SystemClock(), False, own)
    assert access.snapshot().accounts == {own.access_key: own}
    snapshots.reverse()
    assert access.snapshot().accounts == {own.access_key: own}
    assert own_brokers().secret_key != own.secret_key and own.secret_key.decode() in credentials_of(own)
    assert own.secret_key.decode() not in repr(own)
