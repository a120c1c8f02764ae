"""What brokers ask of clients: decisions about half messages, thread stacks, and one message to try; and what they tell
them: that another client has taken over a lite topic.

A remoting client answers itself. A client of the door is asked on its telemetry stream; without one, nobody is asked.

Source: RocketMQ 5.3.3, ``GrpcClientChannel``, ``ClientActivity``.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from rucola.common import message_const
from rucola.errors import UnreadableBodyError
from rucola.formats.message import decode_message
from rucola.protocol.bodies.consumer_running import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.admin import ConsumeMessageDirectlyRequestHeader, ConsumerRunningInfoRequestHeader
from rucola.protocol.headers.lite import NotifyUnsubscribeLiteRequestHeader
from rucola.proxy import messages
from rucola.proxy.delivery import delivered_body, delivered_message
from rucola.proxy.presence import subscription_of
from rucola.proxy.refusal import RefusedError
from rucola.proxy.rpc import ok

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from rucola.proxy.access import DoorAccess
    from rucola.proxy.lite_subscriptions import DoorSubscriptions
    from rucola.proxy.sessions import ClientSession
    from rucola.proxy.telemetry import Telemetry
    from rucola.proxy.transactions import Transactions

HANDLED: Final = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
)
"""Codes of the requests that ``ServerCommands.asked`` handles."""
_RESULTS = {
    messages.OK: "CR_SUCCESS",
    messages.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    messages.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
_NO_ANSWER = "the client has no telemetry stream, or did not answer in time"


class ServerCommands:
    """Handles the requests of brokers. Event loop only."""

    def __init__(
        self, telemetry: Telemetry, transactions: Transactions, lite: DoorSubscriptions, access: DoorAccess
    ) -> None:
        self._telemetry, self._transactions, self._lite, self._access = telemetry, transactions, lite, access

    def asked(
        self, session: ClientSession, broker_name: str, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand] | None:
        """Handles a request to ``session``. Others than those above need nothing: clients of this protocol share no
        queues, and their offsets are the broker's.
        """
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            question = self._transactions.recovery(session, broker_name, command)
            if question is not None:
                self._telemetry.say(session, question)
            return None
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return self._running_info(session, command)
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._consume_directly(session, command)
        if command.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
            self._taken_over(session, command)
        return None

    def _taken_over(self, session: ClientSession, command: RemotingCommand) -> None:
        header = NotifyUnsubscribeLiteRequestHeader.from_ext_fields(command.ext_fields)
        if header.client_id == session.client_id:
            self._lite.taken_over(session, header.lite_topic)
            told = messages.NotifyUnsubscribeLiteCommand(lite_topic=header.lite_topic)
            self._telemetry.say(session, messages.TelemetryCommand(notify_unsubscribe_lite_command=told))

    async def _running_info(self, session: ClientSession, command: RemotingCommand) -> RemotingCommand:
        header = ConsumerRunningInfoRequestHeader.from_ext_fields(command.ext_fields)
        if header.consumer_group != session.group:
            return _no_such_group(command, header.consumer_group)
        info = ConsumerRunningInfo(properties=_properties(session))
        if session.settings is not None:
            info.subscription_set = [
                subscription_of(entry.topic.name, entry.expression, 0)
                for entry in session.settings.subscription.subscriptions
            ]
        if header.jstack_enable:
            info.jstack = await self._stacks(session)
        return command.answer(ResponseCode.SUCCESS, body=info.encode())

    async def _stacks(self, session: ClientSession) -> str:
        result = await self._telemetry.ask(
            session,
            lambda nonce: messages.TelemetryCommand(
                print_thread_stack_trace_command=messages.PrintThreadStackTraceCommand(nonce=nonce)
            ),
        )
        if result is None or result.status.code != messages.OK:
            return _NO_ANSWER if result is None else result.status.message
        return result.thread_stack_trace.thread_stack_trace

    async def _consume_directly(self, session: ClientSession, command: RemotingCommand) -> RemotingCommand:
        header = ConsumeMessageDirectlyRequestHeader.from_ext_fields(command.ext_fields)
        if header.consumer_group != session.group:
            return _no_such_group(command, header.consumer_group)
        try:
            self._access.check_subscribe(session.account, session.address, "", session.group)
        except RefusedError as error:
            return command.answer(ResponseCode.NO_PERMISSION, error.text)
        message = decode_message(command.body, unpack=False)
        topic = message.properties.get(message_const.RETRY_TOPIC, message.topic)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            body = await loop.run_in_executor(None, partial(delivered_body, message))
        except UnreadableBodyError as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        delivered = delivered_message(message, body, topic)
        result = await self._telemetry.ask(
            session,
            lambda nonce: messages.TelemetryCommand(
                status=ok(), verify_message_command=messages.VerifyMessageCommand(nonce=nonce, message=delivered)
            ),
        )
        if result is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, _NO_ANSWER)
        if result.status.code == messages.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
            return command.answer(ResponseCode.NO_PERMISSION, "a client that consumes in order tries no single message")
        answer = ConsumeMessageDirectlyResult(
            consume_result=_RESULTS.get(result.status.code, "CR_THROW_EXCEPTION"),
            remark=result.status.message or "from gRPC client",
            spent_time_mills=int((loop.time() - began_s) * 1000),
        )
        return command.answer(ResponseCode.SUCCESS, body=answer.encode())


def _properties(session: ClientSession) -> dict[str, str]:
    properties = {
        "PROP_CLIENT_VERSION": session.version,
        "PROP_CLIENT_LANGUAGE": session.language,
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
    }
    settings = session.settings
    if settings is not None:
        if settings.client_type in (messages.SIMPLE_CONSUMER, messages.LITE_SIMPLE_CONSUMER):
            properties["PROP_CONSUME_TYPE"] = "CONSUME_ACTIVELY"
        properties |= settings.client_properties
    return properties


def _no_such_group(command: RemotingCommand, group: str) -> RemotingCommand:
    return command.answer(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")
