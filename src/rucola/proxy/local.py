"""The broker of this process, as the door uses it: each client of the door is a client of the broker, by a connection
in memory. The broker's limits, turns and access control apply to it as to any other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rucola.broker.pop.pop_offsets import PoppedQueue
from rucola.broker.pop.receipt import Receipt
from rucola.broker.senders import VOUCHED
from rucola.broker.topic.topic_validator import is_group_name
from rucola.common.hosts import split_address
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.protocol.bodies.route import QueueData
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.shared_reader import ReadSpace
from rucola.protocol.signature import ACCESS_KEY
from rucola.proxy import messages
from rucola.proxy._send_cy import send_bytes
from rucola.proxy.brokers import ServerRequest, TopicView
from rucola.proxy.receipt import ReceiptHandle
from rucola.proxy.refusal import RefusedError
from rucola.proxy.send_rows import ROOM_BYTES, SendRows
from rucola.proxy.sessions import ClientSession
from rucola.remoting.consumer_api import ConsumerApi
from rucola.remoting.memory_link import MemoryLink, Peer
from rucola.remoting.response_future import Waiter

if TYPE_CHECKING:
    from rucola.broker.broker import Broker


WAITING_BYTES_MAX: Final = 64 << 20
"""Bytes of the messages of one client that wait for the broker."""
_FREE_MAX: Final = 8


class LocalBrokers:
    """See ``Brokers``.

    Args:
        broker: the broker, which is running.
        asked: handles what the broker asks of a client.
    """

    def __init__(self, broker: Broker, asked: ServerRequest) -> None:
        self._broker = broker
        self._asked = asked
        self._shared = _Shared()
        self._views: dict[bytes, tuple[TopicConfig, TopicView]] = {}

    def known_topic(self, name: bytes) -> TopicView | None:
        """See ``Brokers``."""
        text = name.decode("utf-8", "replace")
        config = self._broker.topics.get(text)
        known = self._views.get(name)
        if known is not None and known[0] is config:
            return known[1]
        if config is None:
            self._views.pop(name, None)
            return None
        queues = QueueData(
            self._broker.config.broker_name, config.read_queue_nums, config.write_queue_nums, config.perm
        )
        view = TopicView(text, config.attributes, (queues,))
        self._views[name] = config, view
        return view

    async def topic(self, name: str) -> TopicView | None:
        """See ``Brokers``."""
        return self.known_topic(name.encode())

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """See ``Brokers``. A group that clients may create is created by the first request that needs it."""
        known = self._broker.groups.table.get(name)
        if known is None and self._broker.config.auto_create_subscription_group and is_group_name(name):
            return SubscriptionGroupConfig(name)
        return known

    async def broker_names(self, topics: Iterable[str]) -> Sequence[str]:
        """See ``Brokers``."""
        return (self._broker.config.broker_name,)

    def rows(self, session: ClientSession, request_bytes: int) -> SendRows:
        """See ``Brokers``."""
        return self._link(session).rows(request_bytes, len(session.host))

    async def link(self, session: ClientSession, broker_name: str) -> LocalLink:
        """See ``Brokers``."""
        link = self.open_link(session, broker_name)
        if link is None:
            raise RefusedError(messages.INTERNAL_SERVER_ERROR, f"there is no broker {broker_name}")
        return link

    def open_link(self, session: ClientSession, broker_name: str) -> LocalLink | None:
        """See ``Brokers``."""
        return self._link(session) if broker_name == self._broker.config.broker_name else None

    def _link(self, session: ClientSession) -> LocalLink:
        name = self._broker.config.broker_name
        link = session.links.get(name)
        if isinstance(link, LocalLink) and not link.memory.is_closed:
            if link.client is session.peer:
                return link
            link.move()
            if not link.is_closed:
                return link
        link = session.links[name] = LocalLink(self._broker, session, self._asked, self._shared)
        return link


class _Shared:
    """Memory that the links share, because most of them are idle.

    Attributes:
        space: for reading what the broker sends.
    """

    def __init__(self) -> None:
        self.space = ReadSpace()
        self._free: list[SendRows] = []

    def rows(self, room: int) -> SendRows:
        """Empty rows with room for so many bytes."""
        return self._free.pop() if self._free and room <= ROOM_BYTES else SendRows(max(room, ROOM_BYTES))

    def give_back(self, rows: SendRows) -> None:
        """Takes rows that nobody uses any more."""
        if len(rows.source) == ROOM_BYTES and len(self._free) < _FREE_MAX:
            rows.clear()
            self._free.append(rows)


class LocalLink:
    """A client's connection to the broker. See ``DoorLink``; as an ``Invoker`` it carries the calls of ``api``.

    Sends of one iteration of the event loop reach the broker together.

    Attributes:
        client: the client's end of its connection, as the broker knows it.
        memory: the connection.
    """

    def __init__(self, broker: Broker, session: ClientSession, asked: ServerRequest, shared: _Shared) -> None:
        host, port = split_address(session.address)
        self.client = session.peer
        self.broker_name, self.address = broker.config.broker_name, broker.address
        self._broker, self._session, self._asked = broker, session, asked
        self.memory = MemoryLink(broker, Peer(host, port, session.secure), self, shared.space)
        if session.account:
            self.memory.channel.attributes[VOUCHED] = session.account
        self.api = self.own = ConsumerApi(self, session.language_code)  # the broker judges both
        self._shared = shared
        self._rows: SendRows | None = None
        self._full: deque[SendRows] = deque()
        self._loop = asyncio.get_running_loop()

    @property
    def is_closed(self) -> bool:
        """Whether the broker has closed it."""
        return self.memory.is_closed

    def move(self) -> None:
        """Follows the client to its new address, or ends if the broker must judge the client again."""
        peer = self._session.peer
        (host, _), (new_host, port) = split_address(self.client.address), split_address(peer.address)
        if (host, self.client.secure) == (new_host, peer.secure):
            self.memory.move(port)
            self.client = peer
        else:
            self.close()

    def rows(self, request_bytes: int, host_bytes: int) -> SendRows:
        """Rows with room for one more request."""
        rows = self._rows
        if rows is not None and rows.has_room(request_bytes, host_bytes):
            return rows
        if rows is None:
            self._loop.call_soon(self._flush)
        else:
            if sum(len(waiting.source) for waiting in self._full) > WAITING_BYTES_MAX:
                text = "the broker does not take the messages of this client so fast"
                raise RefusedError(messages.TOO_MANY_REQUESTS, text)
            self._full.append(rows)
        rows = self._rows = self._shared.rows(send_bytes(request_bytes, host_bytes))
        return rows

    def send(self, rows: SendRows, waiter: Waiter, timeout_ms: int) -> None:
        """See ``DoorLink``."""
        opaque = self.memory.next_opaque()
        self.memory.expect(opaque, waiter, timeout_ms)
        rows.number(opaque)

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """See ``Invoker``."""
        return await self.memory.invoke(address, self._signed(command), timeout_ms)

    def request(self, command: RemotingCommand, waiter: Waiter, timeout_ms: int) -> int:
        """See ``DoorLink``."""
        return self.memory.request(self._signed(command), waiter, timeout_ms)

    def acknowledge(self, topic: str, group: str, handle: ReceiptHandle) -> bool:
        """See ``DoorLink``."""
        queue = PoppedQueue(topic, group, handle.queue_id)
        receipt = Receipt(*handle[:4], handle.broker_name)
        return self._broker.acknowledge(self.memory.channel, queue, receipt, handle.queue_offset)

    def withdraw(self, opaque: int) -> bool:
        """See ``DoorLink``."""
        if not self._broker.withdraw(self.memory.channel, opaque):
            return False
        self.memory.forget(opaque)
        return True

    def close(self) -> None:
        """See ``DoorLink``."""
        self.memory.close()

    # --- for the link

    def request_received(self, command: RemotingCommand) -> Awaitable[RemotingCommand | None] | RemotingCommand | None:
        """See ``LinkOwner``."""
        return self._asked(self._session, self.broker_name, command)

    def link_resumed(self) -> None:
        """See ``LinkOwner``."""
        self._flush()

    def link_lost(self) -> None:
        """See ``LinkOwner``."""
        if self._session.links.get(self.broker_name) is self:
            del self._session.links[self.broker_name]

    # --- details

    def _signed(self, command: RemotingCommand) -> RemotingCommand:
        """The request with the name of its account; that it is vouched for stands for the signature."""
        if self._session.account:
            command.ext_fields[ACCESS_KEY] = self._session.account
        return command

    def _flush(self) -> None:
        """Hands the waiting sends to the broker, as long as it takes them."""
        link = self.memory
        while not link.is_closed and not link.is_paused:
            if self._full:
                rows = self._full.popleft()
            elif self._rows is not None:
                rows, self._rows = self._rows, None
            else:
                return
            batch = FrameBatch(rows.source, rows.view, rows.table, rows.count)
            if self._session.account:
                batch.vouch(self._session.account)
            if not rows.count or link.serve(batch):
                self._shared.give_back(rows)
