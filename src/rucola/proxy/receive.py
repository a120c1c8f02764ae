"""Receives: a pop that waits at the broker, and the stream of its messages.

A response has, in this order, a status, messages, and the time of the server. A poll that its client no longer waits
for is taken out of the broker before it pops; what was popped and does not reach the client is visible again in a
second.

Source: RocketMQ 5.3.3, ``ReceiveMessageActivity``, ``ReceiveMessageResponseStreamWriter``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from rucola.errors import BrokerError, FormatError, RemotingError, RucolaError
from rucola.grpc.call import PREFIX_BYTES, GrpcCall
from rucola.grpc.methods import Answer, UnaryMethod
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.headers.lite import PopLiteMessageResponseHeader
from rucola.protocol.headers.pop import PopMessageRequestHeader, PopMessageResponseHeader
from rucola.proxy import messages
from rucola.proxy.lite_members import checked_group
from rucola.proxy.names import check_group, check_topic
from rucola.proxy.poll_terms import PopHeader, invisible_ms_of, lite_pop_of, poll_ms_of, pop_command, pop_of
from rucola.proxy.popped import Fate, PoppedMessage, ReceiveTerms, popped_messages
from rucola.proxy.popped_lite import popped_lite_messages, shown_at_once
from rucola.proxy.presence import subscription_of
from rucola.proxy.receipt import ReceiptHandle
from rucola.proxy.refusal import RefusedError
from rucola.proxy.rpc import decoded, ok, refusal_of, serialized
from rucola.proxy.settings import attempts_max
from rucola.proxy.timestamps import set_milliseconds
from rucola.remoting.response_future import Waiter
from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.proxy.access import DoorAccess
    from rucola.proxy.acknowledge import Acknowledgements
    from rucola.proxy.brokers import Brokers, DoorLink
    from rucola.proxy.lite_subscriptions import DoorSubscriptions
    from rucola.proxy.renewals import Renewals
    from rucola.proxy.sessions import ClientSession, Sessions

logger = logging.getLogger(__name__)

POP_BYTES_MAX: Final = 1 << 20
POP_BYTES_MIN: Final = 64 * 1024
"""Bytes of the messages of one poll: the first number is shared by all polls of a client, each has the second one."""
_UNSENT_BYTES_MAX = 1 << 20
"""While a connection has not taken so many bytes, its polls do not pop."""
_LOOK_S = 0.1
_AT_ONCE_BYTES = 64 * 1024
_LATE_MS = 1_000


class _Poll:
    """One ReceiveMessage.

    Attributes:
        ends_ms: time of the loop at which the broker must have answered.
        auto_renew: whether the handles of its messages are renewed.
    """

    __slots__ = ("_opaque", "_timer", "auto_renew", "call", "ends_ms", "header", "link", "session", "terms")

    def __init__(
        self,
        session: ClientSession,
        call: GrpcCall,
        link: DoorLink,
        header: PopHeader,
        terms: ReceiveTerms,
        poll_ms: int,
        *,
        auto_renew: bool,
    ) -> None:
        self.session, self.call, self.link, self.header, self.terms = session, call, link, header, terms
        self.ends_ms = asyncio.get_running_loop().time() * 1000 + poll_ms
        self.auto_renew = auto_renew
        self._opaque = 0
        self._timer: asyncio.TimerHandle | None = None

    def look_again(self, look: Callable[[_Poll], None]) -> None:
        """Calls ``look`` in a moment."""
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, look, self)

    def ask(self, command: RemotingCommand, waiter: Waiter) -> None:
        """Asks the broker.

        Raises:
            RemotingError: it cannot be reached.
        """
        self._timer = None
        self._opaque = self.link.request(command, waiter, self.header.poll_time + _LATE_MS)

    def withdraw(self) -> None:
        """Takes the poll back, as far as that can be done."""
        if self._timer is not None:
            self._timer.cancel()
        elif self._opaque:
            self.link.withdraw(self._opaque)


class Receives:
    """Answers ReceiveMessage. Event loop only.

    Args:
        sessions: the clients.
        brokers: have the messages.
        access: says what an account may do.
        acknowledgements: settles messages that are not delivered.
        renewals: renews handles of push consumers.
        lite: has the subscriptions to lite topics.
        now_ms: the wall clock.
    """

    def __init__(
        self,
        sessions: Sessions,
        brokers: Brokers,
        access: DoorAccess,
        acknowledgements: Acknowledgements,
        renewals: Renewals,
        lite: DoorSubscriptions,
        now_ms: Callable[[], int],
    ) -> None:
        self._sessions, self._brokers, self._access = sessions, brokers, access
        self._acknowledgements, self._renewals, self._lite = acknowledgements, renewals, lite
        self._now_ms = now_ms
        self._polls: Counter[ClientSession] = Counter()
        self._tasks: set[asyncio.Future[None]] = set()

    @property
    def waiting(self) -> int:
        """Number of polls that wait for messages."""
        return self._polls.total()

    def method(self) -> UnaryMethod:
        """ReceiveMessage."""
        return UnaryMethod(self._handle)

    def _handle(self, call: GrpcCall, data: bytes) -> Answer:
        request = decoded(messages.ReceiveMessageRequest, data)
        try:
            session = self._sessions.of(call)
        except RefusedError as error:
            self._refuse(call, error)
            return None
        self._run(self._begin(session, call, request))
        return None

    # -- before the pop ------------------------------------------------------------------------------------------------

    async def _begin(self, session: ClientSession, call: GrpcCall, request: messages.ReceiveMessageRequest) -> None:
        try:
            poll = await self._poll(session, call, request)
        except RucolaError as error:
            self._refuse(call, error)
            return
        if call.is_over:
            return
        self._polls[session] += 1
        call.on_over = partial(self._withdraw, poll)
        self._pop(poll)

    async def _poll(self, session: ClientSession, call: GrpcCall, request: messages.ReceiveMessageRequest) -> _Poll:
        """The checks, in the order of RocketMQ.

        Raises:
            RucolaError: one fails.
        """
        poll_ms = poll_ms_of(session, call, request)
        topic, group = request.message_queue.topic.name, request.group.name
        check_topic(topic)
        check_group(group)
        self._access.check_subscribe(session.account, session.address, topic, group)
        invisible_ms = invisible_ms_of(request)
        subscription = subscription_of(topic, request.filter_expression, self._now_ms())
        view = await self._brokers.topic(topic)
        if view is None:
            raise RefusedError(messages.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        names = [data.broker_name for data in view.readable]
        if not names:
            raise RefusedError(messages.FORBIDDEN, f"topic {topic} has no readable queue")
        asked = request.message_queue.broker.name
        config = await self._brokers.group(group)
        if config is None:
            raise RefusedError(messages.CONSUMER_GROUP_NOT_FOUND, f"consumer group {group} does not exist")
        terms = ReceiveTerms(
            topic,
            asked if asked in names else names[self._polls[session] % len(names)],
            frozenset(subscription.tags_set),
            attempts_max(config),
        )
        header: PopHeader
        if checked_group(session, config, topic) is None:
            header = pop_of(request, subscription, invisible_ms, in_order=config.consume_message_orderly)
        else:
            header = lite_pop_of(request, session.client_id, invisible_ms)
            self._check_unacknowledged(session, request)
            await self._lite.restore(session)
        link = await self._brokers.link(session, terms.broker_name)
        return _Poll(session, call, link, header, terms, poll_ms, auto_renew=request.auto_renew)

    def _check_unacknowledged(self, session: ClientSession, request: messages.ReceiveMessageRequest) -> None:
        count, allowed = self._renewals.count(session), self._lite.config.max_lite_renew_num_per_channel
        if request.auto_renew and count > allowed:
            raise RefusedError(
                messages.FORBIDDEN,
                f"the client has {count} messages that it has not acknowledged; allowed are {allowed}",
            )

    def _pop(self, poll: _Poll) -> None:
        """Asks the broker, unless the client has too much to take before."""
        left_ms = int(poll.ends_ms - asyncio.get_running_loop().time() * 1000)
        if poll.call.connection_unsent_bytes > _UNSENT_BYTES_MAX:
            if left_ms <= 0:
                self._end(poll)
                self._say(poll.call, messages.MESSAGE_NOT_FOUND, "the client has not taken earlier messages")
            else:
                poll.look_again(self._pop)
            return
        header = poll.header
        if isinstance(header, PopMessageRequestHeader):
            header.max_bytes = max(POP_BYTES_MAX // self._polls[poll.session], POP_BYTES_MIN)
        header.poll_time, header.born_time = max(left_ms, 0), self._now_ms()
        try:
            poll.ask(pop_command(header), _PopWaiter(self, poll))
        except (RefusedError, RemotingError) as error:
            self.failed(poll, error)

    def _withdraw(self, poll: _Poll) -> None:
        """The client no longer waits."""
        self._end(poll)
        poll.withdraw()

    def _end(self, poll: _Poll) -> None:
        self._polls[poll.session] -= 1
        if not self._polls[poll.session]:
            del self._polls[poll.session]

    # -- after the pop -------------------------------------------------------------------------------------------------

    def popped(self, poll: _Poll, answer: RemotingCommand) -> None:
        """Handles the broker's answer."""
        was_over = poll.call.is_over
        if not was_over:
            self._end(poll)
            poll.call.on_over = None
        if answer.code == ResponseCode.SUCCESS:
            self._run(self._deliver(poll, answer))
        elif was_over:
            pass
        elif answer.code == ResponseCode.POLLING_TIMEOUT:
            self._say(poll.call, messages.MESSAGE_NOT_FOUND, "no new message")
        elif answer.code == ResponseCode.POLLING_FULL:
            self._say(poll.call, messages.TOO_MANY_REQUESTS, "too many polls wait for the queue")
        else:
            self._refuse(poll.call, BrokerError(answer.code, answer.remark))

    def failed(self, poll: _Poll, error: RucolaError) -> None:
        """The broker has not answered, or not readably."""
        self._lite.doubt(poll.session)
        if not poll.call.is_over:
            self._end(poll)
            poll.call.on_over = None
            self._refuse(poll.call, error)

    async def _deliver(self, poll: _Poll, answer: RemotingCommand) -> None:
        call, terms = poll.call, poll.terms
        try:
            convert = _conversion(poll, answer)
            if len(answer.body) > _AT_ONCE_BYTES:
                found = await asyncio.get_running_loop().run_in_executor(None, convert)
            else:
                found = convert()
        except (FormatError, RefusedError) as error:
            self._refuse(call, error)
            return
        wanted = [one for one in found if one.fate is Fate.DELIVER]
        self._check_again(poll)
        if call.is_over:  # they are visible soon, for others
            await self._show_all(poll, wanted, found)
        else:
            if poll.auto_renew:
                for one in wanted:
                    handle = ReceiptHandle.decode(one.handle)
                    self._renewals.keep(
                        poll.session, poll.header.consumer_group, terms.topic, handle, one.reconsume_times
                    )
            if wanted:
                self._send(poll, wanted, found)
            else:
                self._say(call, messages.MESSAGE_NOT_FOUND, "no message matches")
        await self._settle([one for one in found if one.fate is not Fate.DELIVER], partial(self._drop, poll))

    def _check_again(self, poll: _Poll) -> None:
        """Refuses a poll whose account has lost its rights while it waited."""
        session = poll.session
        try:
            self._access.check_subscribe(session.account, session.address, poll.terms.topic, poll.header.consumer_group)
        except RefusedError as error:
            self._refuse(poll.call, error)

    def _send(self, poll: _Poll, wanted: list[PoppedMessage], found: list[PoppedMessage]) -> None:
        """Sends the messages that are wanted of those that were found. Those that the client does not take completely
        are visible soon, for others.
        """
        last = self._time()

        def lost(unwritten: int) -> None:
            left = unwritten - len(last) - PREFIX_BYTES
            unread: list[PoppedMessage] = []
            for message in reversed(wanted):
                if left <= 0:
                    break
                left -= len(message.response) + PREFIX_BYTES
                unread.append(message)
            self._run(self._show_all(poll, unread, found))

        poll.call.finish([_OK, *(one.response for one in wanted), last], lost)

    async def _settle(self, found: list[PoppedMessage], settle: Callable[[PoppedMessage], Awaitable[object]]) -> None:
        for result in await asyncio.gather(*map(settle, found), return_exceptions=True):
            if isinstance(result, RucolaError):  # they are delivered again when their invisible time is over
                event(logger, logging.WARNING, "popped message not settled", error=result)
            elif isinstance(result, BaseException):
                raise result

    async def _show_all(self, poll: _Poll, unread: list[PoppedMessage], found: list[PoppedMessage]) -> None:
        """Makes messages visible soon that were found and that the client has not got."""
        group, topic = poll.header.consumer_group, poll.terms.topic
        handles = {one: self._renewals.take(poll.session, group, ReceiptHandle.decode(one.handle)) for one in unread}

        async def show(one: PoppedMessage, suspend: bool) -> None:
            await self._acknowledgements.show(poll.session, group, topic, handles[one], suspend)

        batches, others = shown_at_once(unread, found)
        await self._settle(batches, partial(show, suspend=True))
        await self._settle(others, partial(show, suspend=False))

    async def _drop(self, poll: _Poll, message: PoppedMessage) -> None:
        handle, topic, group = ReceiptHandle.decode(message.handle), poll.terms.topic, poll.header.consumer_group
        if message.fate is Fate.ACKNOWLEDGE:
            await self._acknowledgements.drop(poll.session, topic, group, handle)
        else:
            await self._acknowledgements.give_up(poll.session, topic, group, handle, message.message_id)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _refuse(self, call: GrpcCall, error: Exception) -> None:
        refusal = refusal_of(error)
        self._say(call, refusal.code, refusal.text)

    def _say(self, call: GrpcCall, code: int, text: str) -> None:
        status = messages.Status(code=code, message=text)
        call.send_all([serialized(messages.ReceiveMessageResponse(status=status)), self._time()])
        call.end()

    def _time(self) -> bytes:
        answer = messages.ReceiveMessageResponse()
        set_milliseconds(answer.delivery_timestamp, self._now_ms())
        return serialized(answer)

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            event(logger, logging.ERROR, "poll failed", error)


class _PopWaiter(Waiter):
    """Hands the answer to a pop on."""

    __slots__ = ("_poll", "_receives")

    def __init__(self, receives: Receives, poll: _Poll) -> None:
        super().__init__()
        self._receives, self._poll = receives, poll

    def answered(self, batch: FrameBatch, row: int) -> None:
        """See ``Waiter``."""
        try:
            answer = batch.command(row)
        except FormatError as error:
            self._receives.failed(self._poll, error)
        else:
            self._receives.popped(self._poll, answer)

    def failed(self, error: RemotingError) -> None:
        """See ``Waiter``."""
        self._receives.failed(self._poll, error)


_OK = serialized(messages.ReceiveMessageResponse(status=ok()))


def _conversion(poll: _Poll, answer: RemotingCommand) -> Callable[[], list[PoppedMessage]]:
    """What makes messages of the answer to a pop."""
    records, terms = bytes(answer.body), poll.terms
    if isinstance(poll.header, PopMessageRequestHeader):
        return partial(popped_messages, PopMessageResponseHeader.from_ext_fields(answer.ext_fields), records, terms)
    header = PopLiteMessageResponseHeader.from_ext_fields(answer.ext_fields)
    return partial(popped_lite_messages, header, records, terms)
