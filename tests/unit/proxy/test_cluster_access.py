"""Who is asked about half messages and may decide them, and which topic a message at a place has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from rucola.broker.acl.permission import DENY, PUB, SUB, Account, AclSnapshot
from rucola.common.key_builder import TRANS_HALF_TOPIC
from rucola.common.message import StoreMessage
from rucola.common.message_const import REAL_TOPIC
from rucola.errors import BrokerError
from rucola.formats.message import encode_message
from rucola.formats.properties import encode_properties
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.transaction import EndTransactionRequestHeader
from rucola.proxy import cluster_access
from rucola.proxy.access import Asked
from rucola.proxy.cluster_access import ClusterAccess
from rucola.proxy.cluster_link import _JudgedCalls
from rucola.proxy.receipt import TransactionId
from rucola.proxy.refusal import RefusedError


class Session:
    """Stands for a client."""

    def __init__(self, account: str) -> None:
        self.account, self.address = account, "127.0.0.1:1"


def account(name: str, permission: int, **options: Any) -> Account:
    return Account(name, b"secret", topics={"T": permission}, **options)


EDITOR, OTHER, WRITER, READER, ADMIN = map(Session, ("editor", "other", "writer", "reader", "admin"))
ACCOUNTS = (
    account("editor", PUB | SUB),
    account("other", PUB | SUB),
    account("writer", PUB),
    account("reader", SUB),
    account("admin", DENY, admin=True),
)
PLACE = TransactionId("key", "a", 3, 700)


class World:
    """Accounts that may change, and the access that sees them."""

    def __init__(self) -> None:
        self.accounts: Mapping[str, Account] = {one.access_key: one for one in ACCOUNTS}
        self.access = ClusterAccess(lambda: AclSnapshot(self.accounts), lambda: 0.0)

    def asked(self, session: Session, place: TransactionId = PLACE) -> Asked:
        return self.access.asked_about(session, "T", place)  # type: ignore[arg-type]

    def may_end(self, session: Session, place: TransactionId = PLACE) -> bool:
        try:
            self.access.check_end(session, place)  # type: ignore[arg-type]
        except RefusedError:
            return False
        return True


def test_a_half_message_of_unknown_origin_is_for_all_that_may_send() -> None:
    world = World()
    asked = {one.account: world.asked(one) for one in (EDITOR, WRITER, READER, ADMIN, Session("nobody"))}
    assert asked == {
        "editor": Asked.YES,
        "writer": Asked.WITHOUT_BODY,
        "reader": Asked.NOT,
        "admin": Asked.YES,
        "nobody": Asked.NOT,
    }
    assert world.may_end(EDITOR) and world.may_end(WRITER)


def test_only_its_sender_is_asked_about_a_half_message_and_decides() -> None:
    world = World()
    world.access.note_sender(WRITER, PLACE)  # type: ignore[arg-type]
    assert (world.asked(WRITER), world.asked(EDITOR)) == (Asked.YES, Asked.NOT), "the sender gets its own body"
    for place in (PLACE, PLACE._replace(unique_key="other"), PLACE._replace(half_queue_offset=9)):
        assert [world.may_end(one, place) for one in (WRITER, EDITOR, ADMIN)] == [True, False, True]
    assert world.may_end(EDITOR, PLACE._replace(physical_offset=1))
    world.accounts = {name: one for name, one in world.accounts.items() if name != "writer"}
    assert world.asked(EDITOR) is Asked.YES and world.may_end(EDITOR), "the sender was removed"


def test_no_account_makes_the_door_forget_the_senders_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {"SENDERS_MAX": 6, "SENDERS_SHARE": 3, "SENDERS_KEPT": 1}.items():
        monkeypatch.setattr(cluster_access, name, number)
    world = World()

    def send(session: Session, *offsets: int) -> None:
        for offset in offsets:
            world.access.note_sender(session, PLACE._replace(physical_offset=offset))  # type: ignore[arg-type]

    def known(*offsets: int) -> list[int]:
        return [offset for offset in offsets if not world.may_end(READER, PLACE._replace(physical_offset=offset))]

    send(EDITOR, 1, 2)
    send(OTHER, *range(10, 20))
    assert known(1, 2, *range(10, 20)) == [1, 2, 17, 18, 19]
    send(WRITER, 30, 31)
    send(EDITOR, 3, 4)
    assert known(1, 2, 3, 4, *range(10, 20), 30, 31) == [3, 4, 17, 18, 19, 31], "each loses only its own"
    assert len(world.access.halves) == 6


def test_a_broker_with_an_empty_store_gives_the_same_places_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_access, "SENDERS_SHARE", 1)
    world = World()
    for session in (EDITOR, OTHER):
        world.access.note_sender(session, PLACE)  # type: ignore[arg-type]
    assert not world.may_end(EDITOR) and world.may_end(OTHER)
    for session in (EDITOR, OTHER):
        world.access.note_sender(session, PLACE._replace(physical_offset=1))  # type: ignore[arg-type]
        assert world.may_end(OTHER)


def test_requests_without_a_rule_are_for_administrators() -> None:
    world, command = World(), RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext_fields={"group": "g"})
    world.access.check_request(ADMIN, command)  # type: ignore[arg-type]
    with pytest.raises(RefusedError):
        world.access.check_request(EDITOR, command)  # type: ignore[arg-type]
    end = RemotingCommand(RequestCode.END_TRANSACTION, ext_fields={"commitLogOffset": "700"})
    with pytest.raises(RefusedError):  # nobody can be asked for the topic
        world.access.check_request(EDITOR, end)  # type: ignore[arg-type]


def record(topic: str, **properties: str) -> bytes:
    message = StoreMessage(topic.encode(), 0, b"x", encode_properties(properties), 1, bytes(8))
    return bytes(encode_message(message, 0, 0, 1, bytes(8)))


class Broker:
    """A broker with one message, behind a link; its client counts what reaches the broker."""

    session = EDITOR

    def __init__(self, answer: bytes | BrokerError) -> None:
        self.answer, self.own, self.reached = answer, self, 0
        self.during = lambda: None

    async def view_message(self, address: str, physical_offset: int, timeout_ms: int) -> bytes:
        self.during()
        if isinstance(self.answer, BrokerError):
            raise self.answer
        return self.answer

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        self.reached += 1
        return command.answer(0)


def ends(broker: Broker, world: World) -> RemotingCommand:
    calls = _JudgedCalls(broker, world.access, broker)  # type: ignore[arg-type]
    fields = EndTransactionRequestHeader("T", 3, 700, 8).to_ext_fields()
    return asyncio.run(calls.invoke("a:1", RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=fields), 3000))


@pytest.mark.parametrize(
    "answer",
    [
        record(TRANS_HALF_TOPIC, **{REAL_TOPIC: "U"}),
        record(TRANS_HALF_TOPIC),
        record("T", **{REAL_TOPIC: "U"}),
        record("T"),
        b"no record",
        b"",
        BrokerError(ResponseCode.SYSTEM_ERROR, "no message"),
    ],
    ids=["of another topic", "of no topic", "forged in a body", "no half message", "noise", "nothing", "error"],
)
def test_what_lies_at_the_place_of_a_transaction(answer: bytes | BrokerError) -> None:
    broker = Broker(answer)
    with pytest.raises(RefusedError):
        ends(broker, World())
    assert not broker.reached


def test_a_half_message_of_a_topic_to_which_one_may_send() -> None:
    broker = Broker(record(TRANS_HALF_TOPIC, **{REAL_TOPIC: "T"}))
    assert ends(broker, World()).code == 0 and broker.reached == 1


def test_a_broker_that_is_busy() -> None:
    broker = Broker(BrokerError(ResponseCode.SYSTEM_BUSY, "busy"))
    with pytest.raises(BrokerError):
        ends(broker, World())
    assert not broker.reached


def test_an_account_that_is_removed_while_the_broker_is_asked() -> None:
    world, broker = World(), Broker(record(TRANS_HALF_TOPIC, **{REAL_TOPIC: "T"}))
    broker.during = lambda: setattr(world, "accounts", {})
    with pytest.raises(RefusedError):
        ends(broker, world)
    assert not broker.reached
