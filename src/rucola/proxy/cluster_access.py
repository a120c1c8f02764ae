"""Access control in front of brokers that see only the account of the door.

A client writes what it likes into receipt handles, ids of transactions and names. So the door judges each request that
it is about to send to a broker for a client, by the table of the broker's own port (``requirements``). A request that
names a message by its place needs a permission for the topic of the message; the broker is asked which one that is.

What the door does by itself, with handles that a broker has given it, is not judged.

Source: protocol.md 6.1; RocketMQ 5.3.3, ``DefaultAuthorizationContextBuilder``, believes the topic that a request
names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING

from rucola.broker.acl.permission import PUB, SUB, Sender
from rucola.broker.acl.permission import topic as topic_resource
from rucola.broker.acl.requirements import REQUIREMENTS, refusal
from rucola.broker.shares import Shares
from rucola.errors import FormatError
from rucola.protocol.command import RemotingCommand
from rucola.proxy.access import Asked
from rucola.proxy.account_access import AccountAccess, segments
from rucola.proxy.refusal import RefusedError

if TYPE_CHECKING:
    from rucola.proxy.receipt import TransactionId
    from rucola.proxy.sessions import ClientSession

SENDERS_MAX, SENDERS_SHARE, SENDERS_KEPT = 65_536, 8_192, 64
"""Half messages whose senders are remembered: of all accounts, of one, and those that each may always have."""
TopicAt = Callable[[int], Awaitable[str | None]]
"""Asks a broker for the topic of the message at a physical offset; None if there is none."""


class _TopicNotKnownError(Exception):
    """The topic of a message must be asked for first."""

    def __init__(self, physical_offset: int) -> None:
        super().__init__(physical_offset)
        self.physical_offset = physical_offset


class _HalfMessages:
    """The newest half messages of each account: broker and physical offset, as all else in an id is up to clients."""

    def __init__(self) -> None:
        self._senders: dict[tuple[str, int], str] = {}
        """The account that has sent a half message."""
        self._sent: dict[str, deque[tuple[str, int]]] = {}
        """The half messages of each account, the oldest first."""
        self._shares = Shares(SENDERS_MAX, SENDERS_SHARE, SENDERS_KEPT)

    def __len__(self) -> int:
        return len(self._senders)

    def note(self, place: TransactionId, account: str) -> None:
        """Notes who has sent a half message; forgets the account's oldest one if it has too many."""
        key = place.broker_name, place.physical_offset
        sent = self._sent.setdefault(account, deque())
        if not self._shares.take(account) and self._senders.get(oldest := sent.popleft()) == account:
            del self._senders[oldest]  # unless another one lies there now: the broker got an empty store
        sent.append(key)
        self._senders[key] = account

    def sender(self, place: TransactionId) -> str:
        """The account that has sent a half message; empty if it is not known."""
        return self._senders.get((place.broker_name, place.physical_offset), "")


class ClusterAccess(AccountAccess):
    """The rules. Event loop only.

    A broker takes all half messages for those of the door's account. The door remembers the newest ones of each
    account: others are not asked about them and cannot decide them. About older ones, and those of other doors, every
    account is asked that may send to the topic, without the body if it may not read.
    """

    @cached_property
    def halves(self) -> _HalfMessages:
        """The half messages that it remembers."""
        return _HalfMessages()

    async def check_call(self, session: ClientSession, command: RemotingCommand, topic_at: TopicAt) -> None:
        """Checks whether a client may send a request to a broker.

        Raises:
            RefusedError: ``FORBIDDEN``: it may not.
            RucolaError: the broker could not be asked for a topic.
        """
        known: dict[int, str | None] = {}

        def topic_of(physical_offset: int) -> str | None:
            if physical_offset not in known:
                raise _TopicNotKnownError(physical_offset)
            return known[physical_offset]

        while True:
            try:
                self._judge(session, command, topic_of)
            except _TopicNotKnownError as missing:
                known[missing.physical_offset] = await topic_at(missing.physical_offset)
            else:
                return

    def check_request(self, session: ClientSession, command: RemotingCommand) -> None:
        """As ``check_call``, for requests that name no message by its place; others are refused."""
        self._judge(session, command, lambda _: None)

    def _judge(self, session: ClientSession, command: RemotingCommand, topic_of: Callable[[int], str | None]) -> None:
        account = self.sender(session.account)
        if account.admin:
            return
        needs = REQUIREMENTS.get(command.code)
        if needs is None:
            raise self._forbidden(session, f"access denied: request {command.code} needs an administrator")
        address = segments(session.address)
        try:
            for need in needs:
                for resource in need.resources(command, topic_of):
                    if not account.allows(resource, address):
                        raise self._forbidden(session, refusal(need, resource))
        except FormatError:
            raise self._forbidden(session, "access denied: the body cannot be read") from None

    # -- half messages -------------------------------------------------------------------------------------------------

    def note_sender(self, session: ClientSession, place: TransactionId) -> None:
        """See ``DoorAccess``."""
        self.halves.note(place, session.account)

    def check_end(self, session: ClientSession, place: TransactionId) -> None:
        """See ``DoorAccess``."""
        sender = self._sender_of(place)
        if sender and sender != session.account and not self.sender(session.account).admin:
            raise self._forbidden(session, "access denied: another account sent the message of this transaction")

    def asked_about(self, session: ClientSession, topic: str, place: TransactionId) -> Asked:
        """See ``DoorAccess``."""
        account = self._snapshot().accounts.get(session.account)
        if account is None or account.disabled or not _may(account, session, topic, PUB):
            return Asked.NOT
        sender = self._sender_of(place)
        if sender:
            return Asked.YES if sender == session.account else Asked.NOT
        return Asked.YES if _may(account, session, topic, SUB) else Asked.WITHOUT_BODY

    def _sender_of(self, place: TransactionId) -> str:
        """The account that has sent a half message; empty if it is not known, or there is no such account any more."""
        name = self.halves.sender(place)
        account = self._snapshot().accounts.get(name)
        return "" if account is None or account.disabled else name

    def _forbidden(self, session: ClientSession, text: str) -> RefusedError:
        return self.forbidden(session.account, session.address, text)


def _may(account: Sender, session: ClientSession, topic: str, needed: int) -> bool:
    return account.admin or account.allows(topic_resource(topic, needed), segments(session.address))
