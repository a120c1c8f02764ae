"""What the door needs of the brokers behind it. ``local`` has the broker of this process, ``cluster`` brokers behind
name servers; all other modules know only this interface.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Protocol

from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.sysflag import PermName
from rucola.common.topic_config import MESSAGE_TYPE, MIXED
from rucola.protocol.bodies.route import QueueData
from rucola.protocol.command import RemotingCommand
from rucola.proxy.message_kind import MessageKind
from rucola.remoting.consumer_api import ConsumerApi
from rucola.remoting.response_future import Waiter

if TYPE_CHECKING:
    from rucola.proxy.receipt import ReceiptHandle
    from rucola.proxy.send_rows import SendRows
    from rucola.proxy.sessions import ClientSession


ServerAnswer = Awaitable[RemotingCommand | None] | RemotingCommand | None
ServerRequest = Callable[["ClientSession", str, RemotingCommand], ServerAnswer]
"""Handles what a broker asks of a client: gets the client, the name of the broker and the request."""


class TopicView:
    """A topic on all its brokers. A change of the topic makes a new view.

    Attributes:
        name: its name.
        attributes: its attributes.
        queues: its queues on each broker.
        kind: value of the attribute ``message.type``; NORMAL for a topic without.
        takes_normal: whether messages without any special property may be sent to it.
        avoided: names of brokers that get no messages in turn as long as there are others; it may change at any time.
    """

    def __init__(
        self,
        name: str,
        attributes: Mapping[str, str],
        queues: Sequence[QueueData],
        avoided: Container[str] | None = None,
    ) -> None:
        self.name, self.attributes, self.avoided = name, attributes, avoided
        self.queues = sorted(queues, key=lambda data: data.broker_name)
        self.kind = attributes.get(MESSAGE_TYPE, str(MessageKind.NORMAL))
        self.takes_normal = self.kind in (MIXED, MessageKind.NORMAL)

    @cached_property
    def writable(self) -> list[MessageQueue]:
        """The queues that take messages, in the order of broker and queue id."""
        return self._queues(PermName.WRITE, "write_queue_nums")

    @cached_property
    def turns(self) -> Iterator[MessageQueue]:
        """The writable queues in turn, without end; many doors begin at different ones. There must be one."""
        begin = random.randrange(len(self.writable))
        queues = self.writable[begin:] + self.writable[:begin]
        return cycle(queues) if self.avoided is None else _turns(queues, self.avoided)

    @cached_property
    def readable(self) -> list[QueueData]:
        """The brokers from which messages can be received."""
        return [data for data in self.queues if data.perm & PermName.READ and data.read_queue_nums > 0]

    def _queues(self, permission: int, number: str) -> list[MessageQueue]:
        return [
            MessageQueue(self.name, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & permission
            for queue_id in range(getattr(data, number))
        ]


def _turns(queues: Sequence[MessageQueue], avoided: Container[str]) -> Iterator[MessageQueue]:
    passed = 0
    for queue in cycle(queues):
        if queue.broker_name in avoided and passed < len(queues):
            passed += 1
        else:
            passed = 0
            yield queue


class DoorLink(Protocol):
    """The connection of one client of the door to one broker.

    Attributes:
        broker_name: name of the broker.
        address: its address, for ``api``.
        api: calls of the broker that the client asks for.
        own: the same calls, for what the door does by itself with handles that the broker has given it.
    """

    broker_name: str
    address: str
    api: ConsumerApi
    own: ConsumerApi

    def send(self, rows: SendRows, waiter: Waiter, timeout_ms: int) -> None:
        """Sends the newest row of ``rows``, which were got from ``Brokers.rows``.

        Raises:
            RemotingError: the broker cannot be reached.
        """

    def request(self, command: RemotingCommand, waiter: Waiter, timeout_ms: int) -> int:
        """Sends a request; ``waiter`` gets the response or an error. Returns its number.

        Raises:
            RemotingError: the broker cannot be reached.
        """

    def acknowledge(self, topic: str, group: str, handle: ReceiptHandle) -> bool:
        """Acknowledges a message, if that needs no request. ``topic`` is the one that holds the message."""

    def withdraw(self, opaque: int) -> bool:
        """Takes back a waiting pop. False if that cannot be known: its response may still come, and must be handled."""

    def close(self) -> None:
        """Ends the connection; the broker forgets the client."""


class Brokers(Protocol):
    """All brokers behind the door. Event loop only."""

    def known_topic(self, name: bytes) -> TopicView | None:
        """A topic, if nobody must be asked for it; else None."""

    async def topic(self, name: str) -> TopicView | None:
        """A topic; None if there is none.

        Raises:
            RucolaError: nobody could be asked.
        """

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """A consumer group; None if there is none and clients may not create it.

        Raises:
            RucolaError: nobody could be asked.
        """

    async def broker_names(self, topics: Iterable[str]) -> Sequence[str]:
        """Names of the brokers at which a client of these topics registers.

        Raises:
            RucolaError: nobody could be asked.
        """

    def rows(self, session: ClientSession, request_bytes: int) -> SendRows:
        """Rows for the sends of a client, with room for one more of so many bytes."""

    async def link(self, session: ClientSession, broker_name: str) -> DoorLink:
        """The client's connection to a broker, opened if needed.

        Raises:
            RefusedError: no such broker is known.
        """

    def open_link(self, session: ClientSession, broker_name: str) -> DoorLink | None:
        """As ``link``, if nobody must be asked for the broker's address; else None."""
