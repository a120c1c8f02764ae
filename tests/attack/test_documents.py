"""Attacks S-17, S-27, S-29, S-56: files and texts that consume much time or memory, or reach further than allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attack.guarded import ACCOUNTS, ALICE, Guarded, write_accounts
from tests.brokers import Cluster, properties_text, run
from tests.unit.broker.test_acl import ALIAS_BOMB
from tests.unit.broker.test_pop import POP, pop_fields

from rucola.common.message import StoreMessage
from rucola.errors import RucolaError
from rucola.filter.sql.grammar import DEPTH_MAX
from rucola.formats.message import decode_messages, encode_message
from rucola.protocol import fastjson
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.store import reader


def test_s17_a_file_of_accounts_that_is_a_trap_changes_nothing(tmp_path: Path) -> None:
    """A running broker reads its file of accounts again. If the new file is invalid, the broker keeps the previous
    accounts and logs the error.
    """

    async def body() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            accounts = cluster.access.accounts
            for text in (
                ALIAS_BOMB,
                ACCOUNTS.replace("admin: true", "admin: false\n    admin: true"),
                "accounts: " + "[" * 5000 + "]" * 5000,
                "accounts: !!python/object/apply:os.system ['true']",
            ):
                write_accounts(cluster.home, text)
                accounts.reload()
                accounts.reload()  # a changed file is loaded only if two calls in a row see the same content
                assert accounts.error
                assert await cluster.code(ALICE, cluster.send_command("A")) == 0

    run(body())


def test_s27_filters_that_cost_too_much(tmp_path: Path) -> None:
    """Costly filters are refused in every request that may contain a filter, before any message is examined."""
    texts = (
        "(" * 10_000 + "a = 1" + ")" * 10_000,
        "NOT " * (DEPTH_MAX + 1) + "(a = 1)",
        "a IN (" + "'x'," * 20_000 + "'x')",
        "a = '" + "x" * 20_000 + "'",
        "-(" * 30 + "a" + " between 1 and 2)" * 30 + " between 1 and 2",
    )

    async def body() -> None:
        async with Cluster(tmp_path, enable_property_filter=True) as cluster:
            await cluster.send("T", b"x", properties_text(a="x" * 1000))
            for text in texts:
                refused = await cluster.ask(POP, pop_fields(exp=text, expType="SQL92"))
                assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
                subscription = {"topic": "T", "subString": text, "expressionType": "SQL92"}
                asked = {"group": "cg", "clientId": "c", "subscriptionData": subscription}
                answer = await cluster.ask(RequestCode.CHECK_CLIENT_CONFIG, body=fastjson.dumps(asked))
                assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    run(body())


async def by_key(cluster: Cluster, key: str, end_ms: int = 2**62) -> RemotingCommand:
    times = {"beginTimestamp": "0", "endTimestamp": str(end_ms)}
    return await cluster.ask(RequestCode.QUERY_MESSAGE, {"topic": "T", "key": key, "maxNum": "4", **times})


def test_s29_a_chain_of_equal_hashes_is_not_walked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Aa`` and ``BB`` have the same hash. The response says that there may be more messages than those found."""
    monkeypatch.setattr(reader, "_CHAIN_STEPS_MAX", 50)

    async def body() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"wanted", properties_text(KEYS="Aa"))
            for _ in range(20):
                await cluster.send("T", b"other", properties_text(KEYS="BB"))
            found = await by_key(cluster, "Aa")
            assert ([message.body for message in decode_messages(found.body)], found.remark) == ([b"wanted"], "")
            for _ in range(40):
                await cluster.send("T", b"other", properties_text(KEYS="BB"))
            await cluster.send("T", b"wanted again", properties_text(KEYS="Aa"))
            found = await by_key(cluster, "Aa")
            assert [message.body for message in decode_messages(found.body)] == [b"wanted again"]
            assert "there may be more" in (found.remark or "")
            nothing = await by_key(cluster, "Aa", end_ms=1)
            assert nothing.code == ResponseCode.QUERY_NOT_FOUND

    run(body())


def test_s29_large_messages_of_equal_hashes_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_OTHER_BYTES_MAX", 10_000)

    async def body() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"wanted", properties_text(KEYS="Aa"))
            for _ in range(5):
                await cluster.send("T", bytes(3000), properties_text(KEYS="BB"))
            found = await by_key(cluster, "Aa")
            assert (found.code, bytes(found.body)) == (ResponseCode.QUERY_NOT_FOUND, b"")
            assert "there may be more" in (found.remark or "")

    run(body())


@pytest.mark.parametrize("topic", [b"../../../outside", b"/outside", b"a/b", b"..", b"a\x00b", b"a\\..\\b"])
def test_s56_a_store_made_by_others_writes_nothing_outside_of_it(tmp_path: Path, topic: bytes) -> None:
    """The topic of a record is a path. Whether the store is served or refused, no file outside of it changes."""
    root = tmp_path / "a" / "b" / "store"
    (root / "commitlog").mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    record = encode_message(StoreMessage(topic, 0, b"x", b"", 1, bytes(8)), 0, 0, 1_700_000_000_000, bytes(8))
    segment = root / "commitlog" / f"{0:020d}"
    segment.write_bytes(record + bytes(4 * 1024 * 1024 - len(record)))
    for path in (root / "commitlog", segment):
        path.chmod(path.stat().st_mode & 0o700)

    async def body() -> None:
        async with Cluster(root) as cluster:
            assert (await cluster.send("T", b"served")).code == 0
            assert await cluster.bodies("T") == [b"served"]

    try:
        run(body())
    except RucolaError as refusal:
        assert str(root) in str(refusal)
    outside = [path for path in tmp_path.rglob("*") if root not in (path, *path.parents)]
    assert sorted(outside) == [tmp_path / "a", tmp_path / "a" / "b"]
    assert not Path("/outside").exists()
