"""Fake masters: with accounts, only administrators and the cluster's own brokers may change what a controller knows.

There is no etcd here: who is allowed to ask learns that this controller does not lead.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.attack.guarded import ADMIN, ALICE, DENIED, signed, write_accounts
from tests.brokers import run

from rucola.cli.controller_server import ControllerServer
from rucola.controller import ControllerConfig
from rucola.controller.processor import CHANGING, READING
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient

FIELDS = {
    "clusterName": "c",
    "brokerName": "a",
    "brokerId": "1",
    "brokerAddr": "x:1",
    "brokerAddress": "x:1",
    "masterBrokerId": "1",
    "masterEpoch": "1",
    "appliedBrokerId": "1",
    "registerCheckCode": "x:1;1",
}
BODIES = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: b'{"syncStateSet":[1],"syncStateSetEpoch":1}',
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: b'["a"]',
}
WITHOUT_LEADER = {
    RequestCode.BROKER_HEARTBEAT,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.GET_CONTROLLER_CONFIG,
    RequestCode.UPDATE_CONTROLLER_CONFIG,
}


@contextlib.asynccontextmanager
async def asked(home: Path) -> AsyncIterator[Any]:
    write_accounts(home)
    config = ControllerConfig(
        etcd_endpoints="http://127.0.0.1:1", listen_port=0, acl_enable=True, rocketmq_home=str(home)
    )
    server, client = ControllerServer(config), RemotingClient()
    await server.start()

    async def ask(code: int, account: tuple[str, str] | None = None) -> RemotingCommand:
        command = RemotingCommand(code, ext_fields=dict(FIELDS), body=BODIES.get(RequestCode(code), b""))
        command = command if account is None else signed(command, account)
        return await client.invoke(server.controller.address, command, 5_000)

    try:
        yield ask
    finally:
        await client.close()
        await server.stop()


def test_nobody_without_an_account_changes_a_master(tmp_path: Path) -> None:
    async def work() -> None:
        async with asked(tmp_path) as ask:
            for account in (None, ALICE, (ADMIN[0], "not-the-secret")):
                for code in CHANGING | {RequestCode.UPDATE_NAMESRV_CONFIG}:
                    answer = await ask(code, account)
                    assert answer.code == DENIED, (code, account)
            assert "needs an administrator" in (await ask(RequestCode.CLEAN_BROKER_DATA, ALICE)).remark

    run(work())


def test_administrators_and_brokers_with_their_account_are_served(tmp_path: Path) -> None:
    async def work() -> None:
        async with asked(tmp_path) as ask:
            for code in CHANGING:
                answer = await ask(code, ADMIN)
                expected = ResponseCode.SUCCESS if code in WITHOUT_LEADER else ResponseCode.CONTROLLER_NOT_LEADER
                assert answer.code == expected, (code, answer.remark)
            for code in READING:
                expected = ResponseCode.SUCCESS if code in WITHOUT_LEADER else ResponseCode.CONTROLLER_NOT_LEADER
                assert (await ask(code)).code == expected, code

    run(work())
