"""Manages the messages in flight: chooses a queue for each message, counts the messages, and limits their number.

Source: protocol.md 4.4; RocketMQ 5.3.3, DefaultMQProducerImpl#selectOneMessageQueue.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable
from itertools import cycle, islice

from rucola.client.config import ProducerConfig
from rucola.client.fault import LatencyFaultTolerance
from rucola.client.instance import ClientInstance
from rucola.client.master_wait import MasterWait
from rucola.client.pending_send import MESSAGE, PendingSend, SendTarget, SendTerms
from rucola.client.queue_selector import ChosenQueue
from rucola.client.send_result import SendResult
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError, NoRouteError, RemotingClosedError, RemotingError, RucolaError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import FLAG_ONEWAY
from rucola.protocol.send_request import EncodedMessage, encode_send_head, header_head

_CODES = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
_ROUTE_PAUSE_MS_MIN = 10
_TURN_MESSAGES = 64
"""Number of submissions after which ``ready`` lets the event loop do I/O, so that sends and responses overlap."""


class _TopicTargets:
    """The targets for the messages of a topic, valid until the routes change.

    Attributes:
        turns: endless iterator over ``order``.
        direct: whether a message may use the next target without further checks.
    """

    __slots__ = ("by_queue", "direct", "order", "several_brokers", "turns", "version")

    def __init__(self, version: int, order: list[SendTarget], first_turn: int, direct: bool) -> None:
        self.version = version
        self.order = order
        self.by_queue = {target.queue: target for target in order}
        self.several_brokers = len({target.queue.broker_name for target in order}) > 1
        self.turns = cycle(order)
        self.direct = direct and bool(order)
        if order:
            deque(islice(self.turns, first_turn % len(order)), 0)

    def next(self, failed: str | None, is_available: Callable[[str], bool] | None = None) -> SendTarget:
        """The next target, round robin; skips the failed broker and unavailable brokers if there are others."""
        if self.several_brokers:
            if is_available is not None:
                for target in islice(self.turns, len(self.order)):
                    if target.queue.broker_name != failed and is_available(target.queue.broker_name):
                        return target
            for target in self.turns:
                if target.queue.broker_name != failed:
                    return target
        return next(self.turns)


class _FlushPoint:
    """What calls of ``flush`` wait for: all messages that were submitted before them. Calls between two submissions
    share one.

    Attributes:
        left: number of messages in flight that were submitted before it and after the point before it.
        passed: done when no earlier message is in flight.
    """

    __slots__ = ("left", "passed")

    def __init__(self, left: int, passed: asyncio.Future[None]) -> None:
        self.left = left
        self.passed = passed


class _RouteSearch:
    """The search for the route of one topic.

    Attributes:
        waiting: the messages that wait for the route, with the timers of their deadlines.
        tries: number of requests to the name servers.
        failure: the error of the latest request; None if it was not answered yet.
    """

    __slots__ = ("began", "failure", "topic", "tries", "waiting")

    def __init__(self, topic: str, began: float) -> None:
        self.topic = topic
        self.began = began
        self.tries = 0
        self.failure: RemotingError | None = None
        self.waiting: dict[PendingSend, asyncio.TimerHandle] = {}

    def failed(self, error: RemotingError) -> None:
        """Notes the error of a request; the search goes on."""
        self.failure = error


class SendPipeline:
    """The messages that a producer has in flight. A pipeline may be used on only one event loop, and implements
    ``pending_send.SendRules``.

    Life cycle: ``start``, then messages are accepted; ``refuse``, then none are.

    Args:
        group: the producer's group.
        config: the producer's settings.
        instance: the producer's connections and routes.
        wall_ms: clock for the messages' time stamps.
        first_turn: start of the round robin in every topic; random, so that many producers do not start with the same
            queue.
    """

    def __init__(
        self, group: str, config: ProducerConfig, instance: ClientInstance, wall_ms: Callable[[], int], first_turn: int
    ) -> None:
        self._group = group
        self._config = config
        self._instance = instance
        self._routes = instance.routes
        self._first_turn = first_turn
        self._targets: dict[str, _TopicTargets] = {}
        self._searches: dict[str, _RouteSearch] = {}
        self._masterless = MasterWait(instance.routes, instance.keep, self._refresh_soon, self.finished)
        self._room_waiters: dict[asyncio.Future[None], None] = {}
        self._flush_points: dict[int, _FlushPoint] = {}
        self._flush_order: deque[int] = deque()
        self._flushed_in_flight = 0  # messages in flight for which a flush point waits
        self._turn_left = _TURN_MESSAGES
        self._in_flight_max = config.back_pressure_for_async_send_num
        self._in_flight_bytes_max = config.back_pressure_for_async_send_size
        self.is_open = False
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.epoch = 0  # the key of the next flush point; each message remembers the epoch of its submission
        self._faults = LatencyFaultTolerance() if config.send_latency_fault_enable else None
        # True if a caller waits in ``ready`` or ``flush``, or if latencies are measured
        self.waited_for = bool(self._faults)
        self.client = instance.client
        self.backoff_ms = config.retry_backoff_ms
        self.backoff_max_ms = config.retry_backoff_max_ms
        self.attempt_timeout_ms = config.send_msg_max_timeout_per_request_ms
        self._direct = self.attempt_timeout_ms <= 0 and self._faults is None
        self.retry_when_not_flushed = config.retry_another_broker_when_not_store_ok
        self.wall_ms = wall_ms
        self._loop: asyncio.AbstractEventLoop  # set by start

    def start(self) -> None:
        """Starts on the event loop to which the pipeline belongs; from now on, messages are accepted."""
        self._loop = asyncio.get_running_loop()
        self.is_open = True

    def refuse(self) -> None:
        """Refuses further messages; whoever waits in ``ready`` gets a ``ClientError``."""
        self.is_open = False
        self._wake_for_room()

    def submit(
        self,
        topic: str,
        fixed_queue: MessageQueue | ChosenQueue | None,
        msg_id: str,
        encoded: EncodedMessage,
        terms: SendTerms,
        make: Callable[..., PendingSend],
        now_ms: int,
    ) -> asyncio.Future[SendResult]:
        """Sends an encoded message; the future receives the result, or the error of the last attempt.

        ``make`` is ``PendingSend`` or a subclass with the same arguments.
        """
        send = make(self, self._loop, topic, fixed_queue, msg_id, encoded, terms)
        self.in_flight += 1
        self.in_flight_bytes += send.size
        targets = self._targets.get(topic)
        if targets is not None and targets.version == self._routes.version and fixed_queue is None and targets.direct:
            send.send_at(next(targets.turns), now_ms)
        elif topic in self._routes.routes:
            self._send_routed(send)
        else:
            self._send_when_routed(send)
        return send.future

    async def send_oneway(
        self, topic: str, fixed_queue: MessageQueue | ChosenQueue | None, encoded: EncodedMessage
    ) -> None:
        """Sends without a response, and therefore without retries."""
        body, sys_flag, message_flag, properties = encoded
        await self._routes.route(topic)
        if isinstance(fixed_queue, ChosenQueue):
            fixed_queue = fixed_queue.choose(self._routes.routes[topic].publish_queues)
        try:
            target = self._choose(topic, fixed_queue, None)
        except NoRouteError:
            self._refresh_soon(topic)
            raise
        opaque = self.client.next_opaque()
        now_ms = self.wall_ms()
        head = target.heads[MESSAGE]
        start = encode_send_head(head, sys_flag, now_ms, message_flag, properties, FLAG_ONEWAY, opaque, len(body))
        self.client.send_oneway(target.address, start + body)

    def abandon(self) -> None:
        """Fails the messages that still wait for a route or a master; called when the connections are closed."""
        for search in list(self._searches.values()):
            self._end_search(search, self._closed(search.topic))
        self._masterless.fail_all(self._closed)

    async def ready(self) -> None:
        """Waits until another message may be sent.

        Raises:
            ClientError: no further message is accepted.
        """
        self._turn_left -= 1
        if self._turn_left <= 0:
            self._turn_left = _TURN_MESSAGES
            await asyncio.sleep(0)
        while self.is_open and not (
            (self.in_flight < self._in_flight_max and self.in_flight_bytes < self._in_flight_bytes_max)
            or not self.in_flight
        ):
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters[waiter] = None
            self.waited_for = True
            try:
                await waiter
            finally:
                self._room_waiters.pop(waiter, None)
        if not self.is_open:
            raise not_open()

    async def flush(self) -> None:
        """Waits until every message submitted so far has its result, whatever is submitted meanwhile."""
        if self.in_flight:
            left = self.in_flight - self._flushed_in_flight
            if left:
                self._flush_points[self.epoch] = _FlushPoint(left, self._loop.create_future())
                self._flush_order.append(self.epoch)
                self._flushed_in_flight += left
                self.epoch += 1
                self.waited_for = True
            await asyncio.shield(self._flush_points[self._flush_order[-1]].passed)

    # SendRules

    def next_target(self, send: PendingSend, failed: str | None) -> SendTarget:
        """Returns the target of ``send``'s next attempt.

        Raises:
            ClientError: the topic has no writable queue, or the caller's queue selector failed.
            NoRouteError: none of the brokers has a master now.
            RemotingClosedError: the same, and the producer is shut down.
        """
        queue = send.fixed_queue
        if isinstance(queue, ChosenQueue):
            route = self._routes.routes[send.topic]
            if route.without_master and not route.publish_queues:
                raise self._without_master(send.topic, route.without_master)
            queue = send.fixed_queue = queue.choose(route.publish_queues)
        return self._choose(send.topic, queue, failed)

    def broker_failed(self, send: PendingSend) -> None:
        """Fetches the route again, because the broker may have a new address; avoids the broker, if configured."""
        self.broker_refused(send)
        self._refresh_soon(send.topic)

    def broker_refused(self, send: PendingSend) -> None:
        """Avoids the broker for some time, if configured."""
        if self._faults is not None:
            self._faults.failed(send.broker_name, self._loop.time())

    def wait_for_master(self, send: PendingSend, error: RucolaError) -> None:
        """Makes ``send`` wait until a route has changed, at most until its time is up."""
        self._masterless.add(send, error)

    def succeeded(self, send: PendingSend) -> None:
        """Like ``finished``; also records the latency of the broker to which ``send`` went."""
        if self._faults is not None:
            now = self._loop.time()
            self._faults.answered(send.broker_name, now - send.deadline + send.timeout_ms / 1000, now)
        self.finished(send)

    def finished(self, send: PendingSend) -> None:
        """Counts ``send`` as no longer in flight, and wakes the callers that waited for this."""
        self.in_flight -= 1
        self.in_flight_bytes -= send.size
        if self._room_waiters and (
            (self.in_flight < self._in_flight_max and self.in_flight_bytes < self._in_flight_bytes_max)
            or not self.in_flight
        ):
            self._wake_for_room()
        point = self._flush_points.get(send.epoch)
        if point is not None:
            point.left -= 1
            self._flushed_in_flight -= 1
            self._pass_flush_points()
        self.waited_for = bool(self._faults or self._room_waiters or self._flush_points)

    def _wake_for_room(self) -> None:
        """Wakes all callers of ``ready``. Each looks for itself whether there is still room, and sends before the next
        one looks.
        """
        waiters, self._room_waiters = self._room_waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _pass_flush_points(self) -> None:
        """Wakes the callers of ``flush`` before whom no message is in flight."""
        while self._flush_order and not self._flush_points[self._flush_order[0]].left:
            point = self._flush_points.pop(self._flush_order.popleft())
            if not point.passed.done():
                point.passed.set_result(None)

    def _choose(self, topic: str, fixed_queue: MessageQueue | None, failed: str | None) -> SendTarget:
        targets = self._targets.get(topic)
        if targets is None or targets.version != self._routes.version:
            targets = self._build_targets(topic, targets)
        if fixed_queue is not None:
            if fixed_queue not in targets.by_queue:
                name = fixed_queue.broker_name
                if name in self._routes.brokers and not self._routes.has_master(name):
                    raise self._without_master(topic, frozenset((name,)))
                targets.by_queue[fixed_queue] = self._target(fixed_queue)
            return targets.by_queue[fixed_queue]
        if not targets.order:
            without_master = self._routes.routes[topic].without_master
            if without_master:
                raise self._without_master(topic, without_master)
            raise ClientError(f"topic {topic} has no queue that can be written")
        return targets.next(failed, None if self._faults is None else self._is_available)

    def _is_available(self, broker_name: str) -> bool:
        return self._faults is None or self._faults.is_available(broker_name, self._loop.time())

    def _build_targets(self, topic: str, old: _TopicTargets | None) -> _TopicTargets:
        queues = self._routes.routes[topic].publish_queues
        places = [
            (queue, self._routes.master(queue.broker_name))
            for queue in queues
            if self._routes.has_master(queue.broker_name)
        ]
        if old is not None and places == [(target.queue, target.address) for target in old.order]:
            old.version = self._routes.version  # only another topic's route has changed, so the round robin continues
            old.by_queue = {target.queue: target for target in old.order}
            return old
        order = [self._target(queue) for queue, _ in places]
        targets = _TopicTargets(self._routes.version, order, self._first_turn, self._direct)
        self._targets[topic] = targets
        return targets

    def _target(self, queue: MessageQueue) -> SendTarget:
        config = self._config
        key, queues = config.create_topic_key, config.default_topic_queue_nums
        heads = tuple(header_head(code, self._group, queue, key, queues) for code in _CODES)
        return SendTarget(queue, self._routes.master(queue.broker_name), heads)

    def _send_routed(self, send: PendingSend) -> None:
        try:
            target = self.next_target(send, None)
        except NoRouteError as error:
            self.wait_for_master(send, error)
        except RucolaError as error:
            send.fail(error)
        except BaseException:
            # KeyboardInterrupt in a queue selector: passes to the caller, who must not wait for this message
            send.fail(ClientError(f"the queue selector for topic {send.topic} was interrupted"))
            if not send.future.cancelled():
                send.future.exception()  # marks it as retrieved: the caller of ``submit`` does not get the future
            raise
        else:
            send.send(target)

    def _send_when_routed(self, send: PendingSend) -> None:
        """Makes ``send`` wait for the route of its topic, at most until its deadline. All sends that wait for the same
        topic share the route requests.
        """
        search = self._searches.get(send.topic)
        if search is None:
            search = self._searches[send.topic] = _RouteSearch(send.topic, self._loop.time())
            self._instance.keep(self._find_route(search))
        search.waiting[send] = self._loop.call_at(send.deadline, self._route_too_late, search, send)

    def _route_too_late(self, search: _RouteSearch, send: PendingSend) -> None:
        del search.waiting[send]
        # unlike ``ended``, does not check the clock, because a timer may fire slightly early
        send.expire(self._why_no_route(search))

    def _why_no_route(self, search: _RouteSearch) -> NoRouteError:
        """The error of a send whose time is up while the search goes on."""
        failure, seconds = search.failure, self._loop.time() - search.began
        if failure is None:
            reason = f"name server {', '.join(self._routes.name_servers)} did not answer within {seconds:.1f} s"
        elif isinstance(failure, NoRouteError):
            reason = failure.reason
        else:
            reason = f"name server: {failure}"
        tries = f"{search.tries} {'try' if search.tries == 1 else 'tries'} in {seconds:.1f} s"
        error = NoRouteError(search.topic, f"{reason} ({tries})")
        error.__cause__ = failure
        return error

    async def _find_route(self, search: _RouteSearch) -> None:
        """Fetches the route repeatedly, with growing pauses, until it succeeds or no message waits any more: each is
        failed at its deadline.
        """
        failure: RucolaError | None = self._closed(search.topic)  # the error if this task is cancelled
        pause_s = max(self.backoff_ms, _ROUTE_PAUSE_MS_MIN) / 1000
        try:
            while failure is not None:
                try:
                    search.tries += 1
                    await self._routes.route(search.topic)
                    failure = None
                except RemotingError as error:
                    search.failed(error)
                    self._drop_cancelled(search)
                    await asyncio.sleep(pause_s)
                    if not search.waiting:
                        return
                    pause_s = max(pause_s, min(pause_s * 2, self.backoff_max_ms / 1000))
        except RucolaError as error:
            failure = error
        finally:
            self._end_search(search, failure)

    def _drop_cancelled(self, search: _RouteSearch) -> None:
        for send in [send for send in search.waiting if send.future.done()]:
            search.waiting.pop(send).cancel()
            self.finished(send)

    def _end_search(self, search: _RouteSearch, failure: RucolaError | None) -> None:
        """Sends the waiting messages, or fails them with ``failure``. KeyboardInterrupt in the queue selector of one
        message must not keep the others waiting; it is raised afterwards.
        """
        self._searches.pop(search.topic, None)
        interrupt: BaseException | None = None
        for timer in search.waiting.values():
            timer.cancel()
        for send in search.waiting:
            if failure is not None:
                send.fail(copy.copy(failure))  # each raised error gets its own traceback
            elif not send.ended():
                try:
                    self._send_routed(send)
                except BaseException as error:  # noqa: BLE001 - raised again below
                    interrupt = error
        if interrupt is not None:
            raise interrupt

    def _without_master(self, topic: str, brokers: frozenset[str]) -> RucolaError:
        """The error of a message while none of the brokers has a master."""
        if not self._instance.running:
            return self._closed(topic)
        return NoRouteError(topic, f"no master of {', '.join(sorted(brokers))} is registered")

    def _closed(self, topic: str) -> RucolaError:
        """The error of the messages that wait for a route or a master when the connections are closed."""
        operation = f"search for the route of topic {topic}; nothing was sent"
        return RemotingClosedError(", ".join(self._routes.name_servers), operation)

    def _refresh_soon(self, topic: str) -> None:
        if self._instance.running and self._routes.refresh_wanted(topic):
            self._instance.keep(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
        except RucolaError:
            return  # the sends report the error; the old route stays


def not_open() -> ClientError:
    """The error of a producer that accepts no messages."""
    return ClientError("the producer is not started, or is shut down")
