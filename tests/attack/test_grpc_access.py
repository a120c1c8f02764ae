"""Accounts at the gRPC door: who may do what, and what a client cannot reach with a receipt or a name of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ACCOUNTS, ADMIN, ALICE, BOB, write_accounts
from tests.brokers import run
from tests.unit.proxy.doors import Door, opened, send_request

from rucola.proxy import account_access, messages
from rucola.proxy.account_access import AccountAccess
from rucola.testing.event_loop import advance, run_stepped, settle


def resource(name: str) -> Any:
    return messages.Resource(name=name)


class Guarded:
    """A door with the accounts of ``guarded``; use it as ``async with``."""

    def __init__(self, folder: Path, **access: Any) -> None:
        home = folder / "home"
        self.accounts_file = write_accounts(home)
        self._access = access
        self._opened = opened(folder / "store", self._make, acl_enable=True, rocketmq_home=str(home))

    def _make(self, broker: Any) -> AccountAccess:
        services = broker.services
        return AccountAccess(services.access.snapshot, services.clock.monotonic, **self._access)

    async def __aenter__(self) -> Door:
        door = await self._opened.__aenter__()
        for topic in ("A", "B", "WriteOnly"):
            door.topic(topic, queues=1)
        return door

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._opened.__aexit__(*exc_info)


@pytest.mark.parametrize(
    "fields",
    [
        {"secret": None},
        {"secret": ("nobody", "x" * 20)},
        {"secret": (ALICE[0], BOB[1])},
        {"secret": ALICE, "x_mq_session_token": "t"},
        {"secret": ALICE, "x_mq_date_time": ""},
        {"secret": ALICE, "x_mq_date_time": "20261130T000001Z"},
        {"secret": ALICE, "authorization": "MQv2-HMAC-SHA256 Credential=alice-account, Signature=00"},
        {"secret": ALICE, "authorization": "MQv2-HMAC-SHA1 Credential=alice-account"},
        {"secret": ALICE, "authorization": "MQv2-HMAC-SHA1"},
    ],
)
def test_requests_without_a_valid_signature(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def play() -> None:
        async with Guarded(tmp_path) as door:
            client = await door.client(secret=fields.pop("secret"))
            for name, request in (
                ("SendMessage", send_request("A")),
                ("QueryRoute", messages.QueryRouteRequest(topic=resource("A"))),
                ("Heartbeat", messages.HeartbeatRequest()),
                ("AckMessage", messages.AckMessageRequest(topic=resource("A"), group=resource("GA"))),
            ):
                answer = await client.call(name, request, **fields)
                assert answer.status.code == messages.UNAUTHORIZED, name
            status, _ = await client.receive("GA", "A", headers=fields).all()
            assert status.status.code == messages.UNAUTHORIZED
            assert not len(door.door.sessions)

    run(play())


def test_rights(tmp_path: Path) -> None:
    async def play() -> None:
        async with Guarded(tmp_path) as door:
            alice = await door.client("a", secret=ALICE)
            bob = await door.client("b", secret=BOB)
            admin = await door.client("r", secret=ADMIN)
            ends = messages.Endpoints(addresses=[messages.Address(host="h", port=1)])

            async def codes(client: Any, topic: str, group: str) -> list[int]:
                sent = await client.sent(topic, b"body", message_group="")
                large = await client.sent(topic, b"general path", body_encoding=messages.GZIP, delivery_attempt=1)
                route = await client.call(
                    "QueryRoute", messages.QueryRouteRequest(topic=resource(topic), endpoints=ends)
                )
                asked = messages.QueryAssignmentRequest(topic=resource(topic), group=resource(group), endpoints=ends)
                assigned = await client.call("QueryAssignment", asked)
                status, *_ = await client.receive(group, topic, batch_size=1).all()
                assert sent.status.code == large.status.code
                return [answer.status.code for answer in (sent, route, assigned, status)]

            ok, no = messages.OK, messages.FORBIDDEN
            assert await codes(alice, "A", "GA") == [ok] * 4
            assert await codes(bob, "A", "GB") == [no, ok, ok, ok]
            assert await codes(bob, "B", "GB") == [ok] * 4
            assert await codes(bob, "A", "GA") == [no, ok, no, no]
            assert await codes(alice, "B", "GA") == [no, no, no, no]
            assert (await alice.sent("WriteOnly")).status.code == ok
            assert await codes(alice, "WriteOnly", "GA") == [ok, ok, no, no]
            assert await codes(admin, "A", "Any") == [ok] * 4

    run(play())


def test_settings_need_rights(tmp_path: Path) -> None:
    async def play() -> None:
        async with Guarded(tmp_path) as door:
            alice = await door.client("a", secret=ALICE)
            await alice.produces("A", "WriteOnly")
            await alice.consumes("GA", "A")
            for fields in (
                {"publishing": messages.Publishing(topics=[resource("A"), resource("B")])},
                {"subscription": messages.Subscription(group=resource("GB"))},
                {
                    "client_type": messages.SIMPLE_CONSUMER,
                    "subscription": messages.Subscription(
                        group=resource("GA"), subscriptions=[messages.SubscriptionEntry(topic=resource("B"))]
                    ),
                },
            ):
                stream = alice.settings(**fields)
                assert [answer.status.code for answer in await stream.all()] == [messages.FORBIDDEN]
                assert stream.status == 0

    run(play())


def test_settings_without_a_valid_signature(tmp_path: Path) -> None:
    async def play() -> None:
        async with Guarded(tmp_path) as door:
            client = await door.client(secret=(ALICE[0], BOB[1]))
            stream = client.settings(publishing=messages.Publishing(topics=[resource("A")]))
            (answer,) = await stream.all()
            assert answer.status.code == messages.UNAUTHORIZED and not answer.HasField("settings")
            assert stream.status == 0 and not len(door.door.sessions)

    run(play())


def test_a_receipt_of_ones_own_reaches_no_message_of_others(tmp_path: Path) -> None:
    """A receipt handle names a place in the commit log; a client may write any place into it."""

    async def play() -> None:
        async with Guarded(tmp_path) as door:
            alice = await door.client("a", secret=ALICE)
            bob = await door.client("b", secret=BOB)
            await bob.sent("B", b"a secret of Bob")
            await alice.sent("A", b"own")
            (own,) = await alice.received("GA", "A")
            words = own.system_properties.receipt_handle.split(" ")
            stolen = " ".join([*words[:8], "0"])
            assert words[8] != "0", "Bob's message is the first of the log"
            request = messages.ForwardMessageToDeadLetterQueueRequest(
                topic=resource("A"), group=resource("GA"), receipt_handle=stolen, message_id="x"
            )
            answer = await alice.call("ForwardMessageToDeadLetterQueue", request)
            assert answer.status.code not in (messages.OK, messages.MULTIPLE_RESULTS)
            assert door.bodies("%DLQ%GA") == []
            entry = messages.AckMessageEntry(receipt_handle=own.system_properties.receipt_handle)
            for topic, group in (("B", "GA"), ("A", "GB"), ("B", "GB")):
                ack = messages.AckMessageRequest(topic=resource(topic), group=resource(group), entries=[entry])
                assert (await alice.call("AckMessage", ack)).status.code == messages.FORBIDDEN

    run(play())


def test_client_ids_belong_to_accounts(tmp_path: Path) -> None:
    """Bob takes the client id of Alice: he gets no commands for her, and cannot end her session."""

    async def play() -> None:
        async with Guarded(tmp_path) as door:
            alice = await door.client("same", secret=ALICE)
            bob = await door.client("same", secret=BOB)
            stream = await alice.consumes("GA", "A")
            mine = await bob.consumes("GB", "A")
            assert len(door.door.sessions) == 2
            request = messages.NotifyClientTerminationRequest(group=resource("GB"))
            assert (await bob.call("NotifyClientTermination", request)).status.code == messages.OK
            heartbeat = messages.HeartbeatRequest(group=resource("GA"))
            assert (await alice.call("Heartbeat", heartbeat)).status.code == messages.OK
            assert stream.status is None and mine.is_empty()

    run(play())


def test_transactions_of_another_account(tmp_path: Path) -> None:
    async def play() -> None:
        async with Guarded(tmp_path) as door:
            door.topic("A", queues=1, kind="TRANSACTION")
            alice = await door.client("a", secret=ALICE)
            admin = await door.client("r", secret=ADMIN)
            bob = await door.client("b", secret=BOB)
            sent = await alice.sent("A", b"half", message_type=messages.TRANSACTION)
            end = messages.EndTransactionRequest(
                topic=resource("A"), transaction_id=sent.entries[0].transaction_id, resolution=messages.COMMIT
            )
            assert (await bob.call("EndTransaction", end)).status.code == messages.FORBIDDEN
            assert door.bodies("A") == []
            assert (await admin.call("EndTransaction", end)).status.code == messages.OK
            assert door.bodies("A") == [b"half"]

    run(play())


def test_an_account_that_is_removed(tmp_path: Path) -> None:
    async def play() -> None:
        guarded = Guarded(tmp_path)
        async with guarded as door:
            alice = await door.client("a", secret=ALICE)
            assert (await alice.sent("A")).status.code == messages.OK
            call = alice.receive("GA", "A", batch_size=1)
            assert (await call.all())[0].status.code == messages.OK
            waiting = alice.receive("GA", "A")
            await door.until_held(1)
            guarded.accounts_file.write_text(ACCOUNTS.replace(ALICE[0], "somebody-else"))
            access = door.broker.services.access
            assert access is not None
            for _ in range(2):  # a change counts when it was seen twice
                await access.reload()
            assert (await alice.sent("A")).status.code == messages.UNAUTHORIZED
            door.topic("A", queues=1)
            door.put("A", b"after")
            status, *rest = await waiting.all()
            assert status.status.code == messages.FORBIDDEN and len(rest) == 1, "a waiting poll gets nothing, too"

    run(play())


def test_signatures_that_can_be_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused from elsewhere without TLS, and always if the broker wants others."""
    monkeypatch.setattr(account_access, "is_loopback", lambda address: False)

    async def code(**access: Any) -> int:
        async with Guarded(tmp_path, **access) as door:
            alice = await door.client("a", secret=ALICE)
            return int((await alice.sent("A")).status.code)

    assert run(code()) == messages.UNAUTHORIZED
    assert run(code(insecure=True)) == messages.OK
    assert run(code(insecure=True, require_v2=True)) == messages.UNAUTHORIZED


def test_a_right_signature_is_not_remembered_for_long(tmp_path: Path) -> None:
    async def play() -> None:
        async with Guarded(tmp_path) as door:
            alice = await door.client("a", secret=ALICE)
            for _ in range(3):
                assert (await alice.sent("A")).status.code == messages.OK
            elsewhere = await door.client("a", secret=(ALICE[0], "wrong"))
            assert (await elsewhere.sent("A")).status.code == messages.UNAUTHORIZED
            advance(2)
            await settle()
            assert (await alice.sent("A")).status.code == messages.OK

    run_stepped(play())
