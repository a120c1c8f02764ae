"""Subscriptions of clients to lite topics: SyncLiteSubscription, and what of it ends with a client.

Brokers have the subscriptions, each those of the lite topics that it has; so all of them are told. The door remembers
what a client has subscribed to here. When the client loses its stream, brokers forget it, and give its lite topics to
others; if the client comes back, they learn it again before its next receive. So does a broker that was away. RocketMQ
leaves that to the client, whose next complete set comes within 30 s.

Source: RocketMQ 5.5.0, ``ClientActivity#syncLiteSubscription``, ``docs/reference/lite.md`` 5.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Final

from rucola.common.lite_door_config import LiteDoorConfig
from rucola.common.numbers import INT64_MAX
from rucola.errors import RucolaError
from rucola.protocol.bodies.lite import (
    LiteSubscriptionAction,
    LiteSubscriptionDTO,
    OffsetOption,
    OffsetOptionType,
)
from rucola.proxy import messages
from rucola.proxy.lite_members import bound
from rucola.proxy.names import check_group, check_lite_topic, check_topic, is_lite_topic
from rucola.proxy.refusal import RefusedError
from rucola.proxy.rpc import ok
from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.broker.lite.attributes import LiteGroup
    from rucola.proxy.access import DoorAccess
    from rucola.proxy.brokers import Brokers
    from rucola.proxy.sessions import ClientSession

logger = logging.getLogger(__name__)

ABOVE_QUOTA: Final = 300
"""A client keeps its quota itself; the door refuses only what is above it by more than this."""
NAMES_BYTES_MAX: Final = 32 << 20
"""Bytes of all remembered names. Without room, a client that comes back waits for its next complete set."""
_TIMEOUT_MS: Final = 2_000
_ACTIONS: Final = tuple(LiteSubscriptionAction)
_POLICY_MAX: Final = 2
_END = b"\n"


class DoorSubscriptions:
    """Answers SyncLiteSubscription. Event loop only.

    Args:
        brokers: have the subscriptions.
        access: says what an account may do.
        monotonic: the clock, in seconds.
        config: limits.

    Attributes:
        config: the limits.
    """

    def __init__(
        self, brokers: Brokers, access: DoorAccess, monotonic: Callable[[], float], config: LiteDoorConfig
    ) -> None:
        self._brokers, self._access, self.config = brokers, access, config
        self._rate = _Rate(config.max_sync_lite_subscription_rate, monotonic)
        self._known: dict[ClientSession, _Known] = {}
        self._names_bytes = 0

    async def sync(
        self, session: ClientSession, request: messages.SyncLiteSubscriptionRequest
    ) -> messages.SyncLiteSubscriptionResponse:
        """Serves SyncLiteSubscription.

        Raises:
            RefusedError: ``ILLEGAL_CONSUMER_GROUP``, ``ILLEGAL_TOPIC``: the group is missing, not bound to the topic.
                ``LITE_SUBSCRIPTION_QUOTA_EXCEEDED``, ``ILLEGAL_LITE_TOPIC``, ``TOO_MANY_REQUESTS`` and others.
            RucolaError: not all brokers have done it.
        """
        topic, group = request.topic.name, request.group.name
        check_topic(topic)
        check_group(group)
        self._access.check_subscribe(session.account, session.address, topic, group)
        if not 0 <= request.action < len(_ACTIONS):
            raise RefusedError(
                messages.BAD_REQUEST, f"there is no action {request.action}; allowed are 0 to {len(_ACTIONS) - 1}"
            )
        lite = bound(group, await self._brokers.group(group), [topic])
        known = self._known_of(session, group, topic)
        entry = LiteSubscriptionDTO(_ACTIONS[request.action], session.client_id, group, topic, version=request.version)
        self._set_names(entry, request, known, lite)
        if entry.action is LiteSubscriptionAction.PARTIAL_ADD:
            entry.offset_option = _offset_option(request.offset_option)
            if not self._rate.take(session):
                raise RefusedError(
                    messages.TOO_MANY_REQUESTS,
                    f"too many subscriptions a second; allowed are {self._rate.per_s} of all clients",
                )
        if entry.action in (LiteSubscriptionAction.PARTIAL_ADD, LiteSubscriptionAction.PARTIAL_REMOVE):
            await self.restore(session)
        await self._tell_all(session, entry)
        if self._known.get(session) is known:  # it was not forgotten meanwhile
            self._note(known, entry)
        return messages.SyncLiteSubscriptionResponse(status=ok())

    def _note(self, known: _Known, entry: LiteSubscriptionDTO) -> None:
        before = known.size
        known.note(entry)
        if self._names_bytes + known.size - before > NAMES_BYTES_MAX:
            known.give_up()
        self._names_bytes += known.size - before

    def _set_names(
        self,
        entry: LiteSubscriptionDTO,
        request: messages.SyncLiteSubscriptionRequest,
        known: _Known,
        lite: LiteGroup,
    ) -> None:
        """Sets the names. Those that no lite topic has are refused if they are new, and otherwise left out: a client
        that has one renews the others.
        """
        asked = request.lite_topic_set
        is_new = entry.action is LiteSubscriptionAction.PARTIAL_ADD
        count = len(asked) + (known.count if is_new else 0)
        if 0 <= lite.quota < count - ABOVE_QUOTA:
            raise RefusedError(
                messages.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"a client of group {entry.group} may subscribe to {lite.quota} lite topics; these are {count}",
            )
        if is_new:
            for name in asked:
                check_lite_topic(name, self.config.max_lite_topic_size)
        entry.lite_topic_set = frozenset(filter(is_lite_topic, asked))

    # -- clients that go and come --------------------------------------------------------------------------------------

    async def leave(self, session: ClientSession) -> None:
        """Has brokers forget the subscriptions of a client that has lost its stream. It may come back. A broker that
        cannot be told finds out itself when the client does not poll.
        """
        known = self._known.get(session)
        if known is None or known.has_left:
            return
        known.has_left = True
        entry = LiteSubscriptionDTO(LiteSubscriptionAction.COMPLETE_REMOVE, session.client_id, known.group, known.topic)
        links = list(session.links.values())
        try:
            await _all(link.own.change_lite_subscriptions(link.address, [entry], _TIMEOUT_MS) for link in links)
        except RucolaError as error:
            event(logger, logging.WARNING, "lite subscriptions not removed", client=session.client_id, error=error)

    async def forget(self, session: ClientSession, has_said: bool) -> None:
        """Forgets a client.

        Args:
            session: the client.
            has_said: whether it has said that it ends, so that brokers forget it; if not, it may be a client of another
                door now.
        """
        try:
            if has_said:
                await self.leave(session)
        finally:
            known = self._known.pop(session, None)
            if known is not None:
                self._names_bytes -= known.size
                known.give_up()

    async def restore(self, session: ClientSession) -> None:
        """Gives a client that has come back the subscriptions that it had. If a broker cannot be told now, the next
        call tries again.
        """
        known = self._known.get(session)
        if known is None or not (known.has_left or known.is_doubted):
            return
        known.has_left = known.is_doubted = False
        if not known.is_whole:
            return
        entry = LiteSubscriptionDTO(
            LiteSubscriptionAction.COMPLETE_ADD, session.client_id, known.group, known.topic, known.names()
        )
        try:
            await self._tell_all(session, entry)
        except RucolaError as error:
            known.is_doubted = True
            event(logger, logging.WARNING, "lite subscriptions not restored", client=session.client_id, error=error)

    def doubt(self, session: ClientSession) -> None:
        """Notes that the connection to a broker was lost, so that it may have forgotten the client."""
        known = self._known.get(session)
        if known is not None:
            known.is_doubted = True

    def taken_over(self, session: ClientSession, lite_topic: str) -> None:
        """Notes that another client has taken over a lite topic."""
        known = self._known.get(session)
        if known is not None:
            self._names_bytes -= known.size
            known.remove(lite_topic)
            self._names_bytes += known.size

    def _known_of(self, session: ClientSession, group: str, topic: str) -> _Known:
        known = self._known.get(session)
        if known is None or (known.group, known.topic) != (group, topic):
            if known is not None:
                self._names_bytes -= known.size
            known = self._known[session] = _Known(group, topic)
            self._names_bytes += known.size
        return known

    async def _tell_all(self, session: ClientSession, entry: LiteSubscriptionDTO) -> None:
        """Tells all brokers of the topic.

        Raises:
            RucolaError: not all have done it.
        """
        names = await self._brokers.broker_names((entry.topic,))
        if not names:
            raise RefusedError(messages.TOPIC_NOT_FOUND, f"no broker has topic {entry.topic}")
        links = [await self._brokers.link(session, name) for name in names]
        await _all(link.api.change_lite_subscriptions(link.address, [entry], _TIMEOUT_MS) for link in links)


class _Known:
    """What a client has subscribed to here. Thousands of names lie in one array of bytes, because nobody reads them
    unless the client loses its connection.

    Attributes:
        group, topic: of the client's latest request.
        count: number of names.
        is_whole: whether the names are all that brokers know.
        has_left: whether brokers have forgotten them.
        is_doubted: whether one of them may have.
    """

    __slots__ = ("_names", "count", "group", "has_left", "is_doubted", "is_whole", "topic")

    def __init__(self, group: str, topic: str) -> None:
        self.group, self.topic = group, topic
        self._names = bytearray(_END)
        self.count = 0
        self.is_whole, self.has_left, self.is_doubted = True, False, False

    @property
    def size(self) -> int:
        """Bytes of the names."""
        return len(self._names)

    def note(self, entry: LiteSubscriptionDTO) -> None:
        """Notes what brokers have done."""
        names = entry.lite_topic_set or frozenset()
        if entry.action is LiteSubscriptionAction.PARTIAL_ADD:
            for name in names:
                self._add(name)
        elif entry.action is LiteSubscriptionAction.PARTIAL_REMOVE:
            for name in names:
                self.remove(name)
        else:
            if entry.action is LiteSubscriptionAction.COMPLETE_REMOVE:
                names = frozenset()
            self._names = bytearray(_END + b"".join(name.encode() + _END for name in names))
            self.count = len(names)
            self.is_whole, self.has_left, self.is_doubted = True, False, False

    def give_up(self) -> None:
        """Forgets the names."""
        self._names = bytearray(_END)
        self.count = 0
        self.is_whole = False

    def names(self) -> frozenset[str]:
        """The names."""
        return frozenset(self._names.decode().split())

    def remove(self, name: str) -> None:
        """Removes a name, if it is there."""
        place = self._names.find(_line(name))
        if place >= 0:
            del self._names[place : place + len(name) + 1]
            self.count -= 1

    def _add(self, name: str) -> None:
        if _line(name) not in self._names:
            self._names += name.encode() + _END
            self.count += 1


class _Rate:
    """Counts what clients do in the current second.

    Attributes:
        per_s: how often they may do it, all together; each may do it half as often.
    """

    def __init__(self, per_s: int, monotonic: Callable[[], float]) -> None:
        self.per_s, self._monotonic = per_s, monotonic
        self._second = self._total = 0
        self._counts: Counter[ClientSession] = Counter()

    def take(self, session: ClientSession) -> bool:
        """Counts once more; returns whether that is allowed."""
        second = int(self._monotonic())
        if second != self._second:
            self._second, self._total = second, 0
            self._counts.clear()
        if self._total >= self.per_s or 2 * self._counts[session] >= self.per_s:
            return False
        self._total += 1
        self._counts[session] += 1
        return True


async def _all(calls: Iterable[Coroutine[None, None, None]]) -> None:
    """Waits for all calls; raises the first error."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _line(name: str) -> bytes:
    """A name with what stands around it."""
    return b"%b%b%b" % (_END, name.encode(), _END)


def _offset_option(option: messages.OffsetOption) -> OffsetOption | None:
    """Where a new subscription begins; None if the client does not say.

    Raises:
        RefusedError: ``ILLEGAL_OFFSET``: there is no such policy, or a number is negative.
    """
    which = option.WhichOneof("offset_type")
    if which is None:
        return None
    value = getattr(option, which)
    highest = _POLICY_MAX if which == "policy" else INT64_MAX
    if not 0 <= value <= highest:
        raise RefusedError(messages.ILLEGAL_OFFSET, f"offset option {which} is {value}; allowed are 0 to {highest}")
    return OffsetOption(OffsetOptionType[which.upper()], value)
