"""Transactions: their outcome, and the recovery of those whose producer has not said it.

The id of a transaction names the place of its half message, so any door can end it. A client that hands back the unique
key alone is helped for 30 s after the send or the last check.

Source: RocketMQ 5.3.3, ``EndTransactionActivity``, ``TransactionProcessor``, ``GrpcClientChannel``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rucola.common.sysflag import MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.message import decode_message
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.transaction import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rucola.proxy import messages
from rucola.proxy.delivery import DeliveredBody, delivered_body, delivered_message
from rucola.proxy.names import check_topic
from rucola.proxy.receipt import TransactionId
from rucola.proxy.refusal import RefusedError
from rucola.proxy.rpc import ok

if TYPE_CHECKING:
    from rucola.proxy.brokers import Brokers
    from rucola.proxy.sessions import ClientSession

REMEMBERED_S: Final = 30.0
REMEMBERED_MAX: Final = 100_000
_TIMEOUT_MS = 3_000
_OUTCOMES = {
    messages.COMMIT: int(MessageSysFlag.TRANSACTION_COMMIT),
    messages.ROLLBACK: int(MessageSysFlag.TRANSACTION_ROLLBACK),
}


class Transactions:
    """Answers EndTransaction, and asks producers. Event loop only.

    Args:
        brokers: have the half messages.
        monotonic: the clock, in seconds.
    """

    def __init__(self, brokers: Brokers, monotonic: Callable[[], float]) -> None:
        self._brokers, self._monotonic = brokers, monotonic
        self._places: OrderedDict[tuple[str, str], tuple[float, TransactionId]] = OrderedDict()

    def remember(self, topic: str, place: TransactionId) -> None:
        """Remembers where a half message is."""
        now_s = self._monotonic()
        key = topic, place.unique_key
        self._places[key] = now_s + REMEMBERED_S, place
        self._places.move_to_end(key)
        while self._places:
            until_s, _ = next(iter(self._places.values()))
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
        if place.is_plain:
            place = self._remembered(topic, place)
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
            await link.api.end_transaction(link.address, header, _TIMEOUT_MS)
            self._places.pop((topic, place.unique_key), None)
        return messages.EndTransactionResponse(status=ok())

    def recovery(self, broker_name: str, command: RemotingCommand) -> messages.TelemetryCommand:
        """The command for a producer whom a broker asks about a half message.

        Raises:
            FormatError: the request of the broker is not readable.
        """
        header = CheckTransactionStateRequestHeader.from_ext_fields(command.ext_fields)
        message = decode_message(command.body, unpack=False)
        body = delivered_body(message) if message.body else DeliveredBody(b"", messages.IDENTITY, "")
        delivered = delivered_message(message, body, header.topic)
        unique_key = header.transaction_id or message.msg_id
        place = TransactionId(unique_key, broker_name, header.tran_state_table_offset, header.commit_log_offset)
        if min(place.half_queue_offset, place.physical_offset) < 0:
            raise FormatError("check of a transaction", 0, "offsets from 0 on", f"{header}")
        self.remember(delivered.topic.name, place)
        return messages.TelemetryCommand(
            status=ok(),
            recover_orphaned_transaction_command=messages.RecoverOrphanedTransactionCommand(
                message=delivered, transaction_id=place.encode()
            ),
        )

    def _remembered(self, topic: str, plain: TransactionId) -> TransactionId:
        until_s, place = self._places.get((topic, plain.unique_key), (0.0, None))
        if place is None or until_s <= self._monotonic():
            raise RefusedError(
                messages.INTERNAL_SERVER_ERROR, f"the half message of transaction {plain.unique_key[:64]} is not known"
            )
        return place
