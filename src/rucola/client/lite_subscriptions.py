"""The lite topics to which a consumer has subscribed, and how brokers learn of them.

Each broker of the parent keeps the subscriptions to the lite topics that it has; one that is not renewed for three
minutes ends. So every broker gets the whole set (COMPLETE_ADD) at the start, every 30 s, when it becomes part of the
route, and when a connection to it was opened; also an empty set, which is all that a wildcard group needs. Single
changes (PARTIAL_ADD, PARTIAL_REMOVE) go to all brokers. A complete set that was sent before a change may reach a broker
after it, so another round follows.

A group that has never read a lite topic begins at its first message: RocketMQ's brokers would begin at the last one if
the first one is no longer in memory. So the option for the minimum goes with the first subscription of the group. Used
on one event loop. Source: ``docs/reference/lite.md``; RocketMQ's client for Java 5.2.0, ``LiteSubscriptionManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from rucola.client.client_tasks import ClientTasks, Periodic
from rucola.client.instance import ClientInstance
from rucola.client.lite_offset import LiteOffset
from rucola.client.lite_requests import Entry, LiteRequests
from rucola.errors import BrokerError, ClientError, LiteQuotaError, RucolaError
from rucola.protocol.bodies.lite import LiteSubscriptionAction
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.lite import NotifyUnsubscribeLiteRequestHeader
from rucola.runtime.logs import Recurring, event

logger = logging.getLogger(__name__)

RENEWAL_S = 30.0
"""Pause between two renewals of all subscriptions, in seconds; brokers drop what was not renewed for 180 s."""
FAREWELL_S = 60.0
"""For how long messages of a lite topic that was left go back to the group, in seconds: pops may still bring some."""
_AGAIN_S = 1.0
"""Pause before another round, if subscriptions have changed during one, in seconds."""
_QUERIES = 64
"""How many offsets are asked for at the same time."""


class ClientLiteSubscriptions:
    """The subscriptions of one consumer.

    Args:
        instance: the client.
        requests: sends the requests.
        quota: largest number of lite topics.
        left: called with a lite topic that was unsubscribed or taken over.
        evicted: called, after ``left``, with a lite topic that another client of the group has taken over.
    """

    def __init__(
        self,
        instance: ClientInstance,
        requests: LiteRequests,
        quota: int,
        left: Callable[[str], None],
        evicted: Callable[[str], None],
    ) -> None:
        self._instance, self._requests = instance, requests
        self._quota = quota
        self._on_left, self._on_evicted = left, evicted
        self._names: set[str] = set()
        self._changing: dict[str, asyncio.Future[None]] = {}
        """Lite topics of a change that waits or runs, with the end of the last such change."""
        self._calls: set[asyncio.Task[None]] = set()
        self._adding = 0
        """Number of lite topics that are being added."""
        self._left: dict[str, float] = {}
        """Lite topics that were left, with the event loop's time until which this is of interest."""
        self._is_renewing = self._is_changed = self._has_ended = False
        self._failures = Recurring()
        self._tasks = ClientTasks(requests.group)
        self._rounds: Periodic | None = None

    @property
    def names(self) -> frozenset[str]:
        """The lite topics."""
        return frozenset(self._names)

    def is_left(self, lite_topic: str) -> bool:
        """Whether the consumer has left a lite topic, or ends."""
        return self._has_ended or (lite_topic in self._left and lite_topic not in self._names)

    async def open(self) -> None:
        """Tells all brokers that the client has no lite topics yet.

        Raises:
            BrokerError, ClientError: a broker refuses for good.
        """
        for error in await self._renew():
            if not error.retriable and isinstance(error, BrokerError | ClientError):
                raise error
        self._rounds = self._tasks.periodic("renewal of lite subscriptions", self._renew, RENEWAL_S)

    async def close(self) -> None:
        """Makes all brokers forget the client; failures are only logged."""
        self._has_ended = True
        await self._tasks.stop()
        while self._calls:
            await asyncio.wait(self._calls)
        await self._at_all(LiteSubscriptionAction.COMPLETE_REMOVE, (frozenset(), None))
        self._names.clear()

    async def add(self, names: Collection[str], start: LiteOffset | None) -> None:
        """Subscribes to lite topics at all brokers, or to none. A cancelled call goes on in the background.

        Args:
            names: valid names.
            start: where the group continues to read; None for where it stopped, or the first message.

        Raises:
            LiteQuotaError: a quota does not allow more lite topics.
            BrokerError, RemotingError, ClientError: a broker refuses, or does not respond.
        """
        await self._finish(names, self._add(frozenset(names), start))

    async def remove(self, names: Collection[str]) -> None:
        """Leaves lite topics. Brokers that do not respond learn of it by the next complete set. A cancelled call goes
        on in the background.
        """
        await self._finish(names, self._remove(frozenset(names)))

    def connected(self, address: str) -> None:
        """Tells a broker the complete set, because a connection to it was opened, perhaps after a restart."""
        if self._rounds is not None:
            self._rounds.soon()

    def route_changed(self) -> None:
        """Tells new brokers the complete set."""
        if self._rounds is not None:
            self._rounds.soon()

    def notified(self, address: str, command: RemotingCommand) -> None:
        """A broker says that another client of the group has taken over a lite topic."""
        header = NotifyUnsubscribeLiteRequestHeader.from_ext_fields(command.ext_fields)
        name = header.lite_topic
        mine = header.consumer_group == self._requests.group and header.client_id == self._requests.client_id
        if not mine or name not in self._names or self._has_ended:
            return
        event(logger, logging.INFO, "lite topic taken over", group=header.consumer_group, lite_topic=name, by=address)
        self._leave([name])
        self._on_evicted(name)

    @property
    def brokers(self) -> list[str]:
        """Names of the brokers that have readable queues of the parent, and a master."""
        route = self._instance.routes.routes.get(self._requests.parent)
        names = sorted({queue.broker_name for queue in route.subscribe_queues}) if route is not None else []
        return [name for name in names if self._instance.routes.has_master(name)]

    async def _finish(self, names: Collection[str], change: Coroutine[Any, Any, None]) -> None:
        """Carries out a change, after all earlier changes of the same lite topics. It goes on if the caller is
        cancelled.
        """
        task = asyncio.ensure_future(self._in_turn(names, change))
        self._calls.add(task)
        task.add_done_callback(self._call_ended)
        await asyncio.wait((task,))
        task.result()

    def _call_ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            event(logger, logging.DEBUG, "change of lite subscriptions failed", error=error)

    async def _in_turn(self, names: Collection[str], change: Coroutine[Any, Any, None]) -> None:
        ended = asyncio.get_running_loop().create_future()
        earlier = {self._changing[name] for name in names if name in self._changing}
        self._changing.update(dict.fromkeys(names, ended))
        try:
            if earlier:
                await asyncio.wait(earlier)
            await change
        finally:
            change.close()
            for name in names:
                if self._changing.get(name) is ended:
                    del self._changing[name]
            ended.set_result(None)
            if self._is_renewing:
                self._is_changed = True

    async def _add(self, names: frozenset[str], start: LiteOffset | None) -> None:
        again = names & self._names if start is not None else frozenset()
        new = names - self._names
        if len(self._names) + self._adding + len(new) > self._quota:
            quota = f"the consumer may have {self._quota} lite topics (lite_subscription_quota)"
            raise LiteQuotaError(sorted(new), quota)
        if again:  # a repeated PARTIAL_ADD would take an exclusive lite topic away from this very client
            await self._remove(again)
        wanted = new | again
        if not wanted:
            return
        self._adding += len(wanted)
        try:
            await self._add_everywhere(wanted, start)
            self._names |= wanted
        finally:
            self._adding -= len(wanted)

    async def _add_everywhere(self, wanted: frozenset[str], start: LiteOffset | None) -> None:
        await self._instance.routes.route(self._requests.parent)
        brokers = self.brokers
        if not brokers:
            raise ClientError(f"no broker has readable queues of topic {self._requests.parent}")
        outcomes = await asyncio.gather(
            *(self._add_at(broker, wanted, start) for broker in brokers), return_exceptions=True
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors:
            perhaps = [broker for broker, error in zip(brokers, outcomes, strict=True) if not _refuses_all(error)]
            if perhaps:  # a wildcard group, for which every broker refuses, gets the messages nevertheless
                self._leave(wanted)
                await self._at(perhaps, LiteSubscriptionAction.PARTIAL_REMOVE, (wanted, None))
            raise errors[0]
        for name in wanted:
            self._left.pop(name, None)

    async def _add_at(self, broker_name: str, names: frozenset[str], start: LiteOffset | None) -> None:
        try:
            entries = [(names, start.option)] if start is not None else await self._entries(broker_name, names)
            await self._requests.change(broker_name, LiteSubscriptionAction.PARTIAL_ADD, *entries)
        except BrokerError as error:
            if error.code != ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED:
                raise
            raise LiteQuotaError(sorted(names), f"broker {broker_name} ({error.address}): {error.remark}") from error

    async def _entries(self, broker_name: str, names: frozenset[str]) -> list[Entry]:
        """Divides lite topics into those that the group has read at a broker, and others."""
        limit = asyncio.Semaphore(_QUERIES)

        async def is_read(name: str) -> bool:
            async with limit:
                return await self._requests.has_offset(broker_name, name)

        ordered = sorted(names)
        found = await asyncio.gather(*map(is_read, ordered))
        read = frozenset(name for name, known in zip(ordered, found, strict=True) if known)
        entries: list[Entry] = [(names - read, LiteOffset.MIN.option), (read, None)]
        return [entry for entry in entries if entry[0]]

    async def _remove(self, names: frozenset[str]) -> None:
        known = names & self._names
        if known:
            self._leave(known)
            await self._at_all(LiteSubscriptionAction.PARTIAL_REMOVE, (known, None))

    def _leave(self, names: Collection[str]) -> None:
        until = asyncio.get_running_loop().time() + FAREWELL_S
        for name in names:
            self._names.discard(name)
            self._left[name] = until
            self._on_left(name)
        if self._is_renewing:
            self._is_changed = True

    async def _renew(self) -> list[RucolaError]:
        """Tells all brokers the complete set, until it has not changed meanwhile; returns the errors."""
        now = asyncio.get_running_loop().time()
        self._left = {name: until for name, until in self._left.items() if until > now}
        self._is_renewing = True
        try:
            while True:
                self._is_changed = False
                errors = await self._at_all(LiteSubscriptionAction.COMPLETE_ADD, (self.names, None))
                if not self._is_changed:
                    return errors
                await asyncio.sleep(_AGAIN_S)
        finally:
            self._is_renewing = False

    async def _at_all(self, action: LiteSubscriptionAction, entry: Entry) -> list[RucolaError]:
        """Sends a change to all brokers; returns the errors, after they were logged."""
        return await self._at(self.brokers, action, entry)

    async def _at(self, brokers: Collection[str], action: LiteSubscriptionAction, entry: Entry) -> list[RucolaError]:
        outcomes = await asyncio.gather(*(self._at_one(broker, action, entry) for broker in brokers))
        return [error for error in outcomes if error is not None]

    async def _at_one(self, broker_name: str, action: LiteSubscriptionAction, entry: Entry) -> RucolaError | None:
        try:
            await self._requests.change(broker_name, action, entry)
        except RucolaError as error:
            count = self._failures.note(broker_name, error)
            if count:
                about = {"broker": broker_name, "action": action.value, "count": count}
                event(logger, logging.WARNING, "lite subscriptions not changed", error=error, **about)
            return error
        self._failures.end(broker_name)
        return None


def _refuses_all(outcome: BaseException | None) -> bool:
    """Whether a broker has surely added nothing. One with a quota may have added some names."""
    return isinstance(outcome, BrokerError)
