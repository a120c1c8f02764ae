"""A broker with accounts and test certificates, and requests signed by hand."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from pathlib import Path
from typing import Any

from tests.brokers import Cluster

from rucola.common.mq_version import CURRENT_VERSION
from rucola.protocol.command import RemotingCommand
from rucola.protocol.signature import (
    ACCESS_KEY,
    SIGN_NONCE,
    SIGN_TARGET,
    SIGN_TIME,
    SIGNATURE,
    SIGNATURE_V2,
    legacy_signature,
    v2_signature,
)

ADMIN = ("administrator", "a-secret-of-the-administrator")
ALICE = ("alice-account", "a-secret-that-alice-keeps")
BOB = ("bob-the-reader", "another-secret-that-bob-keeps")
DENIED = 16

ACCOUNTS = f"""
globalWhiteRemoteAddresses:
  - 10.9.8.*
accounts:
  - accessKey: {ADMIN[0]}
    secretKey: {ADMIN[1]}
    admin: true
  - accessKey: {ALICE[0]}
    secretKey: {ALICE[1]}
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - A=PUB|SUB
      - WriteOnly=PUB
    groupPerms:
      - GA=SUB
  - accessKey: {BOB[0]}
    secretKey: {BOB[1]}
    topicPerms:
      - A=SUB
      - B=PUB|SUB
    groupPerms:
      - GB=SUB
"""


def write_accounts(home: Path, text: str = ACCOUNTS, name: str = "plain_acl.yml") -> Path:
    path = home / "conf" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Guarded(Cluster):
    """A cluster whose broker has ``ACCOUNTS``; use it as ``async with``. Topics and groups are created when an account
    with the permission first uses them.
    """

    def __init__(self, folder: Path, accounts: str = ACCOUNTS, **broker: Any) -> None:
        self.home = folder / "home"
        self.accounts_file = write_accounts(self.home, accounts)
        super().__init__(folder / "store", acl_enable=True, rocketmq_home=str(self.home), **broker)

    @property
    def access(self) -> Any:
        assert self.broker.services.access is not None
        return self.broker.services.access

    async def as_account(self, account: tuple[str, str], command: RemotingCommand) -> RemotingCommand:
        return await self.client.invoke(self.broker.address, signed(command, account), 10_000)

    async def code(self, account: tuple[str, str], command: RemotingCommand) -> int:
        return (await self.as_account(account, command)).code

    def fresh(self, command: RemotingCommand, account: tuple[str, str], ahead_ms: int = 0) -> RemotingCommand:
        """Signs the request with version 2, for this broker, by a clock that is ahead of the broker's."""
        time_ms = self.broker.services.clock.wall_ms() + ahead_ms
        return signed_v2(command, account, time_ms, self.broker.address)

    async def made(self, *topics: str) -> None:
        """Creates topics, and the groups of the accounts, as the administrator."""
        for topic in topics:
            fields = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
            assert await self.code(ADMIN, RemotingCommand(17, ext_fields=fields)) == 0


def signed(command: RemotingCommand, account: tuple[str, str]) -> RemotingCommand:
    """Signs the request as every client does."""
    command.version = CURRENT_VERSION
    fields = command.ext_fields
    fields[ACCESS_KEY] = account[0]
    fields[SIGNATURE] = legacy_signature(account[1].encode(), fields, command.body, command.version).decode()
    return command


_numbers = itertools.count(1)


def signed_v2(
    command: RemotingCommand, account: tuple[str, str], time_ms: int, target: str, nonce: str | None = None
) -> RemotingCommand:
    """Signs the request with time, nonce and the server's address, so that it cannot be replayed."""
    fields = command.ext_fields
    fields[SIGN_TARGET] = target
    fields[ACCESS_KEY] = account[0]
    fields[SIGN_TIME] = str(time_ms)
    fields[SIGN_NONCE] = nonce or f"session-of-the-test.{next(_numbers)}"
    fields[SIGNATURE_V2] = v2_signature(account[1].encode(), command.code, fields, command.body).decode()
    return command


def certificate(
    folder: Path, name: str, *, authority: str | None = None, days: int = 2, host: str = "127.0.0.1"
) -> Path:
    """Creates ``name.pem`` and ``name.key`` with openssl; without ``authority`` the certificate signs itself and can
    sign others.
    """
    pem, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(pem), "-subj", f"/CN={name}", "-days", str(days)]
    if authority is not None:
        command += ["-CA", str(folder / f"{authority}.pem"), "-CAkey", str(folder / f"{authority}.key")]
        command += ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"subjectAltName=IP:{host}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return pem


async def until(condition: Any, what: str) -> None:
    """Waits until a condition becomes true, for at most the time limit of a test."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")
