"""Commands of ``rucola mqadmin`` about accounts, users and rules, and how the tool itself authenticates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ADMIN, ALICE, Guarded
from tests.brokers import Cluster, run
from tests.unit.cli.shell import Capture

from rucola.cli.main import main
from rucola.cli.mqadmin.command import client_config
from rucola.errors import ConfigError

Shell = Callable[..., Awaitable[str]]
SUPER = ("admin", "adminsecret-of-the-test")


def tools(home: Path, account: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {account[0]}\nsecretKey: {account[1]}\n")
    monkeypatch.setenv("ROCKETMQ_HOME", str(home))


def shell_of(cluster: Cluster, capture: Capture) -> Shell:
    async def shell(command: str, code: int = 0, json_output: bool = False) -> str:
        name, *words = command.replace("BROKER", cluster.broker.address).split()
        arguments = ["mqadmin", *(["--json"] if json_output else []), name, "-n", cluster.namesrv.address, *words]
        found = await asyncio.to_thread(main, arguments)
        printed = capture.readouterr()
        assert found == code, (command, printed.err)
        assert not any(secret in printed.out + printed.err for secret in (SUPER[1], ADMIN[1], ALICE[1]))
        return printed.err if code else printed.out

    return shell


async def rows(shell: Shell, command: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await shell(command, json_output=True)).splitlines()]


def test_users_and_rules(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "init_authentication_user": json.dumps({"username": SUPER[0], "password": SUPER[1]}),
    }

    async def body() -> None:
        async with Cluster(tmp_path / "store", **settings) as cluster:
            shell = shell_of(cluster, capsys)
            assert "code 16" in await shell("listUser -b BROKER", 1)
            tools(tmp_path / "home", SUPER, monkeypatch)
            password = "a-password-that-bob-keeps"
            assert "create user to" in await shell(f"createUser -b BROKER -u bob -p {password} -t Normal")
            assert "existed" in await shell(f"createUser -b BROKER -u bob -p {password}", 1)
            monkeypatch.setenv("MQADMIN_PASSWORD", password)
            await shell("createUser -c DefaultCluster -u carol")
            monkeypatch.delenv("MQADMIN_PASSWORD")
            await shell("updateUser -b BROKER -u carol -s disable")
            [carol] = await rows(shell, "getUser -b BROKER -u carol")
            assert (carol["#UserType"], carol["#UserStatus"], carol["#Password"]) == ("Normal", "disable", None)
            assert await shell("getUser -b BROKER -u nobody") == ""
            names = [row["#UserName"] for row in await rows(shell, "listUser -c DefaultCluster")]
            assert sorted(names) == ["admin", "bob", "carol"]
            assert len(await rows(shell, "listUser -b BROKER -f ca")) == 1

            rule = "-r Topic:A,Topic:B* -a Pub,Sub -d Allow"
            assert await rows(shell, "getAcl -b BROKER -s User:bob") == []
            await shell(f"createAcl -b BROKER -s User:bob {rule} -i 10.0.0.0/8")
            await shell("updateAcl -c DefaultCluster -s User:bob -r Topic:A -a Pub -d Deny")
            found = await rows(shell, "getAcl -b BROKER -s User:bob")
            assert {(row["#Resource"], row["#Actions"], row["#SourceIp"], row["#Decision"]) for row in found} == {
                ("Topic:A", "[Pub]", "null", "Deny"),
                ("Topic:B*", "[Pub, Sub]", "[10.0.0.0/8]", "Allow"),
            }
            assert "not exist" in await shell("getAcl -b BROKER -s User:nobody", 1)
            assert len(await rows(shell, "listAcl -c DefaultCluster -s bob -r Topic:A")) == 2
            await shell("copyAcl -f BROKER -t BROKER -s User:bob")
            await shell("copyUser -f BROKER -t BROKER -u bob,carol")
            await shell("deleteAcl -b BROKER -s User:bob -r Topic:A")
            assert len(await rows(shell, "listAcl -b BROKER")) == 1
            await shell("deleteUser -b BROKER -u bob")
            assert await rows(shell, "listAcl -b BROKER") == []

    run(body())


def test_accounts(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            shell = shell_of(cluster, capsys)
            tools(tmp_path / "tool", ALICE, monkeypatch)
            assert "code 16" in await shell("getAclConfig -b BROKER", 1)
            tools(tmp_path / "tool", ADMIN, monkeypatch)
            secret = "a-secret-of-a-new-account"
            await shell(f"updateAclConfig -b BROKER -a new-account -s {secret} -t A=PUB,B=SUB -i DENY")
            await shell(f"updateAclConfig -c DefaultCluster -a new-account -s {secret} -g G1=SUB")
            white, *accounts = await rows(shell, "getAclConfig -b BROKER")
            [created] = [one for one in accounts if one["accessKey"] == "new-account"]
            assert (created["topicPerms"], created["groupPerms"], created["admin"]) == (
                ["A=PUB", "B=SUB"],
                ["G1=SUB"],
                False,
            )
            assert white == {"globalWhiteRemoteAddresses": ["10.9.8.*"]}
            assert "topicPerms          = [A=PUB, B=SUB]" in await shell("getAclConfig -c DefaultCluster")
            await shell("updateGlobalWhiteAddr -b BROKER -g 10.1.1.*,10.1.2.*")
            assert (await rows(shell, "getAclConfig -b BROKER"))[0] == {
                "globalWhiteRemoteAddresses": ["10.1.1.*", "10.1.2.*"]
            }
            [version] = await rows(shell, "clusterAclConfigVersion -c DefaultCluster")
            assert (version["#Broker Name"], version["#AclFilePath"]) == ("broker-a", str(cluster.accounts_file))
            assert version["#AclConfigVersionNum"] >= 3
            await shell("deleteAclConfig -b BROKER -a new-account")
            assert "new-account" not in await shell("getAclConfig -b BROKER")

    run(body())


def test_requests_are_made_as_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    assert client_config().access_key == ""
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert client_config().access_key == ""
    file = tmp_path / "conf" / "tools.yml"
    file.parent.mkdir()
    file.write_text("# accessKey: someone\n")
    assert client_config().access_key == ""
    file.write_text("accessKey: someone\nsecretKey: 12345678\nuseTLS: true\nunknown: 1\n")
    config = client_config()
    assert (config.access_key, config.secret_key, config.use_tls) == ("someone", "12345678", True)
    for text in ("accessKey: [", "secretKey: alone-without-a-name", "useTLS: maybe", "text"):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            client_config()
        assert "alone-without-a-name" not in str(caught.value)
