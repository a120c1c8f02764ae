"""Accounts that stand in no file, and users that another process reads from the file of a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ACCOUNTS, ADMIN, ALICE, write_accounts

from rucola.broker.acl.access import BrokerAccess
from rucola.broker.acl.auth_manager import AuthManager
from rucola.broker.acl.users_file import WatchedUsers
from rucola.broker.config import BrokerConfig
from rucola.cli.account_files import broker_users
from rucola.errors import ConfigError
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.signature import SIGN_NONCE
from rucola.remoting.signer import RequestSigner
from rucola.runtime.files import Files
from rucola.testing.clock import ManualClock

SECRET = "a-secret-of-the-cluster"
ROOT_USER = '{"username": "root-user", "password": "a-password-of-a-test"}'


class Store:
    """Stands for a store without messages."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)


def access(folder: Path, name: str, secret: str = SECRET, **options: Any) -> BrokerAccess:
    inner = f'{{"accessKey": "{name}", "secretKey": "{secret}"}}'
    config = BrokerConfig(acl_enable=True, inner_client_authentication_credentials=inner, **options)
    return BrokerAccess(config, Files(), ManualClock(), Store(folder), str(folder))  # type: ignore[arg-type]


def test_the_account_of_the_cluster_s_servers_is_an_administrator_s(tmp_path: Path) -> None:
    write_accounts(tmp_path)
    broker = access(tmp_path, "inner")
    broker.load()
    assert broker.snapshot().accounts["inner"].admin and ALICE[0] in broker.snapshot().accounts
    assert broker.snapshot() is broker.snapshot()
    write_accounts(tmp_path, ACCOUNTS.replace(ALICE[0], "alice-renamed"))
    for _ in range(2):
        broker.accounts.reload()
    assert broker.snapshot().accounts.keys() >= {"inner", "alice-renamed"}
    assert ALICE[0] not in broker.snapshot().accounts


def test_an_account_of_that_name_in_a_file_wins(tmp_path: Path) -> None:
    write_accounts(tmp_path)
    broker = access(tmp_path, ALICE[0])
    broker.load()
    found = broker.snapshot().accounts[ALICE[0]]
    assert (found.admin, found.secret_key) == (False, ALICE[1].encode())


def test_a_secret_of_the_cluster_that_is_easy_to_guess(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials") as caught:
        access(tmp_path, "inner", "12345678")
    assert "12345678" not in str(caught.value)
    assert access(tmp_path, "inner", "12345678", insecure=True)


def manager(folder: Path) -> AuthManager:
    users = AuthManager(Files(), str(folder), True, False)
    users.load(ROOT_USER)
    return users


def test_users_are_read_as_the_broker_changes_them(tmp_path: Path) -> None:
    broker = manager(tmp_path)
    watched = WatchedUsers(Files(), str(tmp_path), True)
    watched.load()
    assert watched.snapshot.accounts == broker.snapshot.accounts
    broker.create_user({"username": "reader", "password": "another-password-of-a-test"})
    entry = {"resource": "Topic:T", "actions": ["Sub"], "decision": "Allow"}
    broker.put_rules("User:reader", {"policies": [{"entries": [entry]}]})
    for _ in range(2):
        assert watched.snapshot.accounts != broker.snapshot.accounts
        watched.reload()
    assert watched.snapshot.accounts == broker.snapshot.accounts


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"users": {}}',
        b'{"users": {"u": 7}, "acls": {}}',
        b'{"users": {"u": {"username": "u", "password": "p"}}, "acls": {}}',
        b'{"users": {}, "acls": {"u": {"policies": [{"entries": [{"resource": "?"}]}]}}}',
    ],
)
def test_broken_users_while_it_runs(tmp_path: Path, content: bytes) -> None:
    manager(tmp_path)
    watched = WatchedUsers(Files(), str(tmp_path), True)
    watched.load()
    good, file = watched.snapshot, tmp_path / "config" / "rucola-auth.json"
    file.write_bytes(content)
    for _ in range(2):
        watched.reload()
    assert watched.snapshot is good and watched.error and watched.failures
    assert "a-password" not in watched.error
    with pytest.raises(ConfigError, match="authenticationEnabled"):
        broker_users(str(tmp_path), True)
    file.unlink()
    for _ in range(2):
        watched.reload()
    assert watched.snapshot is good
    with pytest.raises(ConfigError, match=r"rucola-auth\.json"):
        broker_users(str(tmp_path), True)


def test_each_connection_has_numbers_of_its_own() -> None:
    first = RequestSigner(*ADMIN, "", 2, ManualClock().wall_ms)
    nonces = [
        decode_frame(signer.sign(RemotingCommand(105).encode(), "a:1")).ext_fields[SIGN_NONCE]
        for signer in (first, first.apart(), first.apart())
    ]
    assert len({nonce.partition(".")[0] for nonce in nonces}) == 3
    assert {nonce.partition(".")[2] for nonce in nonces} == {"1"}
    plain = RequestSigner(*ADMIN, "", 1, ManualClock().wall_ms)
    assert plain.apart() is plain
