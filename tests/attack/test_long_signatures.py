"""The signature of a request with a long body: it is checked in several turns, before anybody knows who sent it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.attack.guarded import ALICE, DENIED, Guarded, signed, signed_v2, until
from tests.brokers import RawConnection, run

from rucola.broker.acl import guard, long_body
from rucola.protocol.command import RemotingCommand
from rucola.protocol.signature import ACCESS_KEY, LongBodySignature
from rucola.remoting.channel import Channel
from rucola.remoting.fairness import turn

PIECE = 1000


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes pieces short, and leaves no turn time for a second one. Returns a list to which each turn adds the number
    of bytes that it hashes.
    """
    monkeypatch.setattr(turn, "TURN_S", -1.0)
    monkeypatch.setattr(turn, "_UNSEEN_S", -1.0)
    monkeypatch.setattr(long_body, "HASHED_BYTES", PIECE)
    sizes: list[int] = []
    update = LongBodySignature.update

    def noted(self: LongBodySignature, piece: Any) -> None:
        sizes.append(len(piece))
        update(self, piece)

    monkeypatch.setattr(LongBodySignature, "update", noted)
    return sizes


@given(
    st.dictionaries(st.text(max_size=4), st.text(max_size=9), max_size=3),
    st.lists(st.binary(max_size=20), max_size=5),
    st.sampled_from([100, 500]),
)
def test_it_is_the_signature_of_the_whole_body(fields: dict[str, str], parts: list[bytes], version: int) -> None:
    for sign in (signed, lambda command, account: signed_v2(command, account, 7, "127.0.0.1:1")):
        command = sign(RemotingCommand(10, ext_fields=dict(fields), body=b"".join(parts), version=version), ALICE)
        for secret, is_right in ((ALICE[1], True), ("another-secret", False)):
            one = LongBodySignature(secret.encode(), command.code, command.ext_fields, command.version)
            for part in parts:
                one.update(part)
            assert one.is_right() is is_right
            one.update(b"x")
            assert not one.is_right()


async def answers(connection: RawConnection, count: int) -> list[tuple[int, int]]:
    found = [await connection.receive() for _ in range(count)]
    return [(answer.opaque, answer.code) for answer in found]


@pytest.mark.parametrize("v2", [False, True])
def test_a_long_body_is_hashed_in_several_turns_and_sends_keep_their_order(
    tmp_path: Path, pieces: list[int], monkeypatch: pytest.MonkeyPatch, v2: bool
) -> None:
    """Before the fix, a frame of 16 MiB of anybody was hashed in one turn of 61 ms."""
    postponed: list[int] = []
    of_channel = Channel.postpone

    def noted(self: Channel, batch: Any, row: int) -> None:
        postponed.append(row)
        of_channel(self, batch, row)

    monkeypatch.setattr(Channel, "postpone", noted)

    async def scene() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            pieces.clear()
            connection, frames = await cluster.connect(), b""
            bodies = [b"a" * (7 * PIECE + 1 if number % 3 == 1 else 5) for number in range(9)]
            for number, body in enumerate(bodies):
                command = cluster.send_command("A", b"%d" % number + body)
                command = cluster.fresh(command, ALICE) if v2 else signed(command, ALICE)
                command.opaque = number
                frames += command.encode()
            postponed.clear()
            connection._writer.write(frames)
            assert await answers(connection, 9) == [(number, 0) for number in range(9)]
            assert max(pieces) == PIECE and len(pieces) == 3 * 8
            assert len(postponed) >= 3 * 7, "each piece in a turn of its own"
            assert cluster.access.guard.refused == 0
            fields = {"topic": "A", "queueId": "0"}
            while (await cluster.as_account(ALICE, RemotingCommand(30, ext_fields=fields))).ext_fields["offset"] != "9":
                await asyncio.sleep(0)
            for number in range(9):
                record = cluster.broker.store.get_message(b"A", 0, number, 1, 1 << 20)
                assert b"%da" % number in bytes(record.views[0])
            connection.close()

    run(scene())


def test_unproven_accounts_are_refused_after_the_whole_body(tmp_path: Path, pieces: list[int]) -> None:
    async def scene() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            long = b"x" * (3 * PIECE + 500)
            unsigned = cluster.send_command("A", long)
            unknown = signed(cluster.send_command("A", long), ("nobody-at-all", ALICE[1]))
            wrong = signed(cluster.send_command("A", long), (ALICE[0], "not-the-secret-of-alice"))
            changed = signed(cluster.send_command("A", long), ALICE)
            changed.body = long[:-1] + b"y"
            changed_v2 = cluster.fresh(cluster.send_command("A", long), ALICE)
            changed_v2.body = b"y" + long[1:]
            others = cluster.fresh(cluster.send_command("A", long), ALICE)
            others.ext_fields[ACCESS_KEY] = "administrator"
            for command in (unsigned, unknown, wrong, changed, changed_v2, others):
                pieces.clear()
                assert (await cluster.client.invoke(cluster.broker.address, command, 10_000)).code == DENIED
                assert pieces == [PIECE] * 3 + [500], "the time does not tell which accounts there are"
            assert cluster.access.guard.unknown_senders == 6
            assert cluster.broker.store.stats.put_messages == 0

    run(scene())


@pytest.mark.parametrize("judged_rows", [1, 128])
def test_a_right_signature_counts_for_one_request_only(
    tmp_path: Path, pieces: list[int], monkeypatch: pytest.MonkeyPatch, judged_rows: int
) -> None:
    monkeypatch.setattr(guard, "_JUDGED_ROWS", judged_rows)

    async def scene() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            forger = (ALICE[0], "not-the-secret-of-alice")
            requests = [(4, ALICE), (0, forger), (4, forger), (4, ALICE), (4, forger), (0, ALICE), (0, forger)]
            connection, frames = await cluster.connect(), b""
            pieces.clear()
            for number, (count, account) in enumerate(requests):
                command = signed(cluster.send_command("A", b"x" * max(count * PIECE, 5)), account)
                command.opaque = number
                frames += command.encode()
            connection._writer.write(frames)
            wanted = [0 if account is ALICE else DENIED for _, account in requests]
            assert sorted(await answers(connection, len(requests))) == list(enumerate(wanted))
            assert pieces == [PIECE] * 16
            connection.close()

    run(scene())


def test_an_account_that_changes_meanwhile_is_judged_as_it_is_then(
    tmp_path: Path, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            before = cluster.access.snapshot()
            alice = before.accounts[ALICE[0]]
            for now, code in (
                ({ALICE[0]: replace(alice)}, 0),
                ({ALICE[0]: replace(alice, secret_key=b"a-new-secret-of-alice")}, DENIED),
                ({ALICE[0]: replace(alice, disabled=True)}, DENIED),
                ({}, DENIED),
            ):
                cluster.access.guard._snapshot = lambda: before
                pieces.clear()
                command = signed(cluster.send_command("A", b"x" * 9 * PIECE), ALICE)
                asking = asyncio.ensure_future(cluster.client.invoke(cluster.broker.address, command, 10_000))
                while len(pieces) < 3:
                    await asyncio.sleep(0)
                assert len(pieces) < 9
                accounts = {name: one for name, one in before.accounts.items() if name != ALICE[0]} | now
                after = replace(before, accounts=accounts)
                monkeypatch.setattr(cluster.access.guard, "_snapshot", lambda after=after: after)
                assert (await asking).code == code

    run(scene())


def test_a_body_whose_sender_left_is_forgotten(tmp_path: Path, pieces: list[int]) -> None:
    """Afterwards, another connection uses the same buffer: the hash of the first must not count for it."""

    async def scene() -> None:
        async with Guarded(tmp_path) as cluster:
            await cluster.made("A")
            pieces.clear()
            connection = await cluster.connect()
            command = signed(cluster.send_command("A", b"x" * 50 * PIECE), ALICE)
            connection.send(command, 1)
            while len(pieces) < 3:
                await asyncio.sleep(0)
            connection._writer.transport.abort()
            await until(
                lambda: not any(channel.inbound._postponed for channel in cluster.broker._server.channels), "the end"
            )
            for account, code in ((ALICE, 0), ((ALICE[0], "wrong-secret-of-alice"), DENIED)):
                again = signed(cluster.send_command("A", b"x" * 2 * PIECE), account)
                assert (await cluster.client.invoke(cluster.broker.address, again, 10_000)).code == code

    run(scene())
