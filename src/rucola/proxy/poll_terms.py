"""What a ReceiveMessage asks for, and the pop that follows from it.

Source: RocketMQ 5.3.3, ``ReceiveMessageActivity``; lite topics: RocketMQ 5.5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rucola.common.numbers import POP_MESSAGES_MAX
from rucola.grpc.call import GrpcCall
from rucola.grpc.metadata import timeout_s
from rucola.protocol.bodies.heartbeat import SubscriptionData
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.lite import PopLiteMessageRequestHeader
from rucola.protocol.headers.pop import PopMessageRequestHeader
from rucola.proxy import messages
from rucola.proxy.refusal import RefusedError
from rucola.proxy.renewals import HIDDEN_MS
from rucola.proxy.sessions import VERSION
from rucola.proxy.timestamps import duration_ms

if TYPE_CHECKING:
    from rucola.proxy.sessions import ClientSession

POLL_MS_MIN: Final = 5_000
POLL_MS_MAX: Final = 20_000
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
_FROM_LAST = 1
_NO_DEADLINE_MS = 60_000
_CODE_SINCE = (5, 0, 3)
"""Version of clients since which they know the code ``ILLEGAL_POLLING_TIME``."""

PopHeader = PopMessageRequestHeader | PopLiteMessageRequestHeader


def poll_ms_of(session: ClientSession, call: GrpcCall, request: messages.ReceiveMessageRequest) -> int:
    """How long the poll waits; it must be answered before its deadline.

    Raises:
        RefusedError: ``ILLEGAL_POLLING_TIME``, or ``BAD_REQUEST`` for an old client: the deadline is too near.
    """
    left_ms = _NO_DEADLINE_MS if call.timeout is None else int(timeout_s(call.timeout) * 1000)
    if request.HasField("long_polling_timeout"):
        wanted_ms = duration_ms(request.long_polling_timeout) or 0
    else:
        settings = session.settings
        wanted_ms = left_ms - (duration_ms(settings.request_timeout) or 0 if settings is not None else 0) // 2
    poll_ms = min(max(wanted_ms, POLL_MS_MIN), POLL_MS_MAX)
    if poll_ms > left_ms:
        if left_ms < POLL_MS_MIN:
            known = _version(call.metadata[VERSION] or b"") >= _CODE_SINCE
            raise RefusedError(
                messages.ILLEGAL_POLLING_TIME if known else messages.BAD_REQUEST,
                f"the deadline of the call is in {left_ms} ms; a poll needs {POLL_MS_MIN} ms",
            )
        poll_ms = left_ms
    return poll_ms


def invisible_ms_of(request: messages.ReceiveMessageRequest) -> int:
    """How long the messages are hidden from other consumers.

    Raises:
        RefusedError: ``ILLEGAL_INVISIBLE_TIME``.
    """
    if request.auto_renew:
        return HIDDEN_MS
    invisible_ms = duration_ms(request.invisible_duration)
    if invisible_ms is None or not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
        raise RefusedError(
            messages.ILLEGAL_INVISIBLE_TIME,
            f"the invisible time is not allowed; allowed are {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX} ms",
        )
    return invisible_ms


def pop_of(
    request: messages.ReceiveMessageRequest, subscription: SubscriptionData, invisible_ms: int, *, in_order: bool
) -> PopMessageRequestHeader:
    """The pop for a request; its times are set when the broker is asked."""
    return PopMessageRequestHeader(
        consumer_group=request.group.name,
        topic=request.message_queue.topic.name,
        queue_id=-1,
        max_msg_nums=_number(request),
        invisible_time=invisible_ms,
        poll_time=0,
        born_time=0,
        init_mode=_FROM_LAST,
        exp_type=subscription.expression_type,
        exp=subscription.sub_string,
        order=in_order,
        attempt_id=request.attempt_id or None,
    )


def lite_pop_of(
    request: messages.ReceiveMessageRequest, client_id: str, invisible_ms: int
) -> PopLiteMessageRequestHeader:
    """The pop of lite topics for a request; its times are set when the broker is asked.

    Raises:
        RefusedError: ``ILLEGAL_FILTER_EXPRESSION``: brokers do not filter messages of lite topics.
    """
    if request.filter_expression.type == messages.SQL:
        raise RefusedError(messages.ILLEGAL_FILTER_EXPRESSION, "messages of lite topics are filtered by tags only")
    return PopLiteMessageRequestHeader(
        client_id=client_id,
        consumer_group=request.group.name,
        topic=request.message_queue.topic.name,
        max_msg_num=_number(request),
        invisible_time=invisible_ms,
        poll_time=0,
        attempt_id=request.attempt_id or None,
    )


def pop_command(header: PopHeader) -> RemotingCommand:
    """The request to the broker."""
    is_lite = isinstance(header, PopLiteMessageRequestHeader)
    code = RequestCode.POP_LITE_MESSAGE if is_lite else RequestCode.POP_MESSAGE
    return RemotingCommand(code, ext_fields=header.to_ext_fields())


def _number(request: messages.ReceiveMessageRequest) -> int:
    return min(max(request.batch_size, 1), POP_MESSAGES_MAX)


def _version(text: bytes) -> tuple[int, ...]:
    return tuple(int(word) for word in text[:32].split(b".") if word.isdigit())
