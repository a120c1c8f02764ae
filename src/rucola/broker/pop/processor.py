"""Serves pops: checks the request, reads messages, and responds or waits (RocketMQ 5.3.3, ``PopMessageProcessor``;
request 200050).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from rucola.broker.pop.checks import Serve, check_place, if_still_reading
from rucola.broker.pop.hold import ANSWER_AHEAD_MS, Attempt, HeldPop, PopHold, WaitingPop
from rucola.broker.pop.order_locks import OrderLocks
from rucola.broker.pop.queue_walk import BEGINS, QueueWalk
from rucola.broker.pop.read import Pop, PopReader
from rucola.broker.pop.request_age import BORN_TIME, RequestAges
from rucola.broker.services import BrokerServices
from rucola.common.numbers import POP_MESSAGES_MAX
from rucola.common.pop_topics import ORDER_REVIVE_QUEUE
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError, FormatError
from rucola.filter.sql import SqlExpression
from rucola.filter.tag import parse_tags
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pop import PopMessageRequestHeader, PopMessageResponseHeader
from rucola.remoting.processors import OVERLOAD, serve_again
from rucola.remoting.server import Channel

_TAG, _ALL = "TAG", "*"
_Filter = tuple[frozenset[int] | None, SqlExpression | None]


class PopMessageProcessor:
    """Serves pops. Event loop only.

    Args:
        revive_queues: number of queues of the revive topic.
    """

    def __init__(
        self,
        services: BrokerServices,
        reader: PopReader,
        hold: PopHold,
        locks: OrderLocks,
        walk: QueueWalk,
        revive_queues: int,
        ages: RequestAges,
    ) -> None:
        self._services = services
        self._reader = reader
        self._hold = hold
        self._locks = locks
        self._walk = walk
        self._revive_queues = itertools.cycle(range(revive_queues))
        self._now_ms = services.store.now_ms
        self._ages = ages

    def pop(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Request 200050: pops messages; None if the request waits."""
        command.ext_fields.setdefault(BORN_TIME, "0")
        header = PopMessageRequestHeader.from_ext_fields(command.ext_fields)
        began_ms = self._ages.began_ms(channel, header.born_time, header.poll_time)
        return self._pop(channel, command, began_ms, is_new=True)

    def _pop(
        self, channel: Channel, command: RemotingCommand, began_ms: int, *, is_new: bool = False
    ) -> RemotingCommand | None:
        """Serves a pop whose client created it at ``began_ms``; also after a wait."""
        header = PopMessageRequestHeader.from_ext_fields(command.ext_fields)
        try:
            self._check(channel, header, began_ms)
            if is_new and (attempt := self._attempt(channel, header)) is not None:
                self._hold.end_older(channel, attempt)
            text = _sql_text(header)
            if self._services.expressions.must_wait([text]):
                place = _place(channel, command, header, began_ms, partial(self._pop, began_ms=began_ms))
                away = WaitingPop(
                    *place,
                    opaque=command.opaque,
                    give_up=_give_up(channel, command, PopMessageResponseHeader),
                    attempt=self._attempt(channel, header),
                )
                self._services.expressions.start(channel, text, partial(self._hold.resume, away))
                self._hold.leave(away)
                return None
            tag_codes, expression = self._filter(header)
        except BrokerError as refusal:
            return command.answer(refusal.code, refusal.remark, PopMessageResponseHeader().to_ext_fields())
        revive_queue = ORDER_REVIVE_QUEUE if header.order else next(self._revive_queues)
        begin = self._services.random_below(BEGINS)
        by_priority = self._walk.is_by_priority(header.topic, header.consumer_group, header.order, begin)
        pop = Pop(header, self._now_ms(), revive_queue, tag_codes, expression, began_ms, begin, by_priority)
        return self._serve(channel, command, pop)

    def _serve(self, channel: Channel, command: RemotingCommand, pop: Pop) -> RemotingCommand | None:
        """Reads the queues, then answers; None if the response comes later."""
        header = pop.header
        for topic, queue_id in self._walk.places(
            header.topic,
            header.consumer_group,
            header.queue_id,
            header.order,
            pop.begin,
            lambda: pop.is_full,
            self._reader.queues_again(pop) if header.order else (),
        ):
            self._reader.read_queue(pop, topic, queue_id)
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if pop.count:
            self._reader.free_left(pop)
            if pop.cold is not None:  # so that the next pop finds the messages in memory
                self._services.cold_reads.start(channel, pop.cold, _nobody_waits)
            if pop.rest > 0:
                self._hold.wake(header.topic, header.consumer_group, header.queue_id)
        elif pop.cold is not None:
            if self._fetch(channel, command, pop, pop.cold):
                return None
            code, remark = ResponseCode.SYSTEM_BUSY, OVERLOAD
        else:
            if self._wait(channel, command, pop):
                return None
            full = (
                header.poll_time > 0
                and _deadline_ms(pop.header, pop.began_ms) > self._ages.now_ms()
                and not self._hold.stopped
            )
            return _no_message(command, _answer_header(pop), full=full)
        return command.answer(code, remark, _answer_header(pop).to_ext_fields(), b"".join(pop.parts))

    def _check(self, channel: Channel, header: PopMessageRequestHeader, began_ms: int) -> None:
        """Refuses invalid pops; makes the checks in RocketMQ's order."""
        services, config = self._services, self._services.config
        broker = f"the broker[{config.client_host}]"
        if self._ages.is_too_late(began_ms, header.poll_time):
            raise BrokerError(ResponseCode.POLLING_TIMEOUT, f"{broker} pop message is timeout too much")
        if not config.broker_permission & PermName.READ:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"{broker} pop message is forbidden")
        if header.max_msg_nums > POP_MESSAGES_MAX:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"{broker} pop message's num is greater than {POP_MESSAGES_MAX}"
            )
        if not services.store.config.timer_wheel_enable:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"{broker} pop message is forbidden because timerWheelEnable is false"
            )
        check_place(
            services.topics,
            services.groups,
            header.topic,
            header.queue_id,
            header.consumer_group,
            channel.remote_address,
        )

    def _filter(self, header: PopMessageRequestHeader) -> _Filter:
        try:
            if (header.exp_type or _TAG) == _TAG:
                return parse_tags(header.exp), None
            text = _sql_text(header)
            return None, self._services.expressions.compile(text) if text else None
        except FormatError:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from None

    def _attempt(self, channel: Channel, header: PopMessageRequestHeader) -> Attempt | None:
        """By what a repetition of a pop is known; None if its client has not said it."""
        if not header.attempt_id:
            return None
        account = self._services.senders.account_on(channel)
        return Attempt(header.attempt_id, header.topic, header.consumer_group, header.queue_id, account)

    def _wait(self, channel: Channel, command: RemotingCommand, pop: Pop) -> bool:
        """Holds the request; returns False if it may not wait."""
        header = pop.header
        if _deadline_ms(pop.header, pop.began_ms) <= self._ages.now_ms():
            return False
        serve = partial(self._pop, began_ms=pop.began_ms)
        senders = self._services.senders
        again = if_still_reading(senders, senders.proof(channel), serve)
        held = HeldPop(
            *_place(channel, command, header, pop.began_ms, again),
            pop.tag_codes,
            opaque=command.opaque,
            give_up=_give_up(channel, command, partial(_answer_header, pop)),
            attempt=self._attempt(channel, header),
            expression=(header.exp_type or _TAG, header.exp or _ALL),
        )
        if not self._hold.hold(held):
            return False
        for queue in pop.blocked:
            self._locks.changed(queue)
        if pop.moved and pop.rest > 0:  # the filter skipped all messages of the read; more may follow
            self._hold.wake(header.topic, header.consumer_group, header.queue_id)
        return True

    def _fetch(self, channel: Channel, command: RemotingCommand, pop: Pop, fetch: Callable[[], None]) -> bool:
        """Fetches messages that are not in memory and repeats the pop. Returns False if too many reads wait."""

        def repeat(channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
            return self._serve(channel, command, pop.again(self._now_ms()))  # its invisible time begins now

        away = WaitingPop(
            *_place(channel, command, pop.header, pop.began_ms, repeat),
            opaque=command.opaque,
            give_up=_give_up(channel, command, partial(_answer_header, pop)),
            attempt=self._attempt(channel, pop.header),
        )
        if not self._services.cold_reads.start(channel, fetch, partial(self._hold.resume, away)):
            return False
        self._hold.leave(away)
        return True


def _sql_text(header: PopMessageRequestHeader) -> str:
    """The SQL92 expression of a pop; empty if it has none."""
    return "" if (header.exp_type or _TAG) == _TAG else header.exp or ""


def _place(
    channel: Channel, command: RemotingCommand, header: PopMessageRequestHeader, began_ms: int, again: Serve
) -> tuple[Channel, str, str, int, float, Callable[[], None]]:
    """The first fields of a ``WaitingPop``; ``again`` serves the request after its wait."""
    deadline_s = _deadline_ms(header, began_ms) / 1000
    resume = partial(serve_again, channel, command, again)
    return channel, header.topic, header.consumer_group, header.queue_id, deadline_s, resume


def _give_up(
    channel: Channel, command: RemotingCommand, answer: Callable[[], PopMessageResponseHeader]
) -> Callable[[], None]:
    """Returns a function that answers that there is no message."""
    return lambda: serve_again(channel, command, lambda _, request: _no_message(request, answer()))


def _deadline_ms(header: PopMessageRequestHeader, began_ms: int) -> int:
    """The monotonic time in ms at which a waiting pop must be answered."""
    return began_ms + header.poll_time - ANSWER_AHEAD_MS


def _nobody_waits() -> None:
    """Does nothing, because the messages were fetched for the next pop and no request waits for them."""


def _no_message(command: RemotingCommand, answer: PopMessageResponseHeader, *, full: bool = False) -> RemotingCommand:
    """The answer to a pop that has found nothing; ``full``: it may not wait because too many requests do."""
    code = ResponseCode.POLLING_FULL if full else ResponseCode.POLLING_TIMEOUT
    return command.answer(code, "NO_MESSAGE_IN_QUEUE", answer.to_ext_fields())


def _answer_header(pop: Pop) -> PopMessageResponseHeader:
    return PopMessageResponseHeader(
        pop.pop_time_ms,
        pop.header.invisible_time,
        pop.revive_queue,
        pop.rest,
        pop.info.start_offsets,
        pop.info.message_offsets,
        pop.info.order_counts if pop.header.order else None,
    )
