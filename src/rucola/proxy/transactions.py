"""Transactions: their outcome, and the recovery of those whose producer has not said it.

The id of a transaction names the place of its half message, so any door can end it. A client that hands back the unique
key alone is helped for 30 s after the send or the last check.

Source: RocketMQ 5.3.3, ``EndTransactionActivity``, ``TransactionProcessor``, ``GrpcClientChannel``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from rucola.common.message_const import REAL_TOPIC
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.message import decode_message
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rucola.proxy import messages
from rucola.proxy.access import Asked
from rucola.proxy.delivery import DeliveredBody, delivered_body, delivered_message
from rucola.proxy.names import check_topic
from rucola.proxy.receipt import TransactionId
from rucola.proxy.refusal import RefusedError
from rucola.proxy.rpc import ok

if TYPE_CHECKING:
    from rucola.proxy.access import DoorAccess
    from rucola.proxy.brokers import Brokers
    from rucola.proxy.sessions import ClientSession

REMEMBERED_S: Final = 30.0
REMEMBERED_MAX: Final = 100_000
_TIMEOUT_MS = 3_000
_OUTCOMES = {
    messages.COMMIT: int(MessageSysFlag.TRANSACTION_COMMIT),
    messages.ROLLBACK: int(MessageSysFlag.TRANSACTION_ROLLBACK),
}


class _Remembered(NamedTuple):
    """The place of a half message of ``topic``, known until a time of the clock."""

    until_s: float
    topic: str
    place: TransactionId


class Transactions:
    """Answers EndTransaction, and asks producers. Event loop only.

    Args:
        brokers: have the half messages.
        access: says what an account may do.
        monotonic: the clock, in seconds.
    """

    def __init__(self, brokers: Brokers, access: DoorAccess, monotonic: Callable[[], float]) -> None:
        self._brokers, self._access, self._monotonic = brokers, access, monotonic
        self._places: OrderedDict[tuple[str, str], _Remembered] = OrderedDict()

    def sent(self, session: ClientSession, topic: str, place: TransactionId) -> None:
        """Remembers the half message that a client has sent."""
        self._access.note_sender(session, place)
        self._remember(topic, topic, place)

    def _remember(self, name: str, topic: str, place: TransactionId) -> None:
        """Remembers where a half message is.

        Args:
            name: the name by which its client calls the topic.
            topic: the topic.
            place: the place.
        """
        now_s = self._monotonic()
        key = name, place.unique_key
        self._places[key] = _Remembered(now_s + REMEMBERED_S, topic, place)
        self._places.move_to_end(key)
        while self._places:
            until_s = next(iter(self._places.values())).until_s
            if until_s > now_s and len(self._places) <= REMEMBERED_MAX:
                return
            self._places.popitem(last=False)

    async def end(
        self, session: ClientSession, request: messages.EndTransactionRequest
    ) -> messages.EndTransactionResponse:
        """Serves EndTransaction.

        Raises:
            RefusedError: ``INVALID_TRANSACTION_ID``; ``INTERNAL_SERVER_ERROR`` if the place of the half message is not
                known.
        """
        topic = request.topic.name
        check_topic(topic)
        place = TransactionId.decode(request.transaction_id)
        remembered = self._remembered(topic, place)
        if place.is_plain:
            if remembered is None:
                text = f"the half message of transaction {place.unique_key[:64]} is not known"
                raise RefusedError(messages.INTERNAL_SERVER_ERROR, text)
            place = remembered.place
        self._access.check_end(session, place)
        link = await self._brokers.link(session, place.broker_name)
        header = EndTransactionRequestHeader(
            topic,
            place.half_queue_offset,
            place.physical_offset,
            _OUTCOMES.get(request.resolution, 0),
            request.source == messages.SOURCE_SERVER_CHECK,
            topic,
            request.message_id,
            place.unique_key,
        )
        if header.commit_or_rollback:
            api = link.api
            if remembered is not None and remembered.place == place:  # nobody must be asked for its topic
                self._access.check_publish(session.account, session.address, remembered.topic)
                api = link.own
            await api.end_transaction(link.address, header, _TIMEOUT_MS)
            self._places.pop((topic, place.unique_key), None)
        return messages.EndTransactionResponse(status=ok())

    def recovery(
        self, session: ClientSession, broker_name: str, command: RemotingCommand
    ) -> messages.TelemetryCommand | None:
        """The command for a producer whom a broker asks about a half message; None if it must not be asked.

        Raises:
            FormatError: the request of the broker is not readable.
        """
        header = CheckTransactionStateRequestHeader.from_ext_fields(command.ext_fields)
        message = decode_message(command.body, unpack=False)
        topic = header.topic or message.properties.get(REAL_TOPIC, message.topic)
        unique_key = header.transaction_id or message.msg_id
        place = TransactionId(unique_key, broker_name, header.tran_state_table_offset, header.commit_log_offset)
        if min(place.half_queue_offset, place.physical_offset) < 0:
            raise FormatError("check of a transaction", 0, "offsets from 0 on", f"{header}")
        asked = self._access.asked_about(session, topic, place)
        if asked is Asked.NOT:
            return None
        has_body = bool(message.body) and asked is Asked.YES
        body = delivered_body(message) if has_body else DeliveredBody(b"", messages.IDENTITY, "")
        delivered = delivered_message(message, body, header.topic)
        self._remember(delivered.topic.name, topic, place)
        return messages.TelemetryCommand(
            status=ok(),
            recover_orphaned_transaction_command=messages.RecoverOrphanedTransactionCommand(
                message=delivered, transaction_id=place.encode()
            ),
        )

    def _remembered(self, name: str, place: TransactionId) -> _Remembered | None:
        found = self._places.get((name, place.unique_key))
        return None if found is None or found.until_s <= self._monotonic() else found
