"""Routes and assignments: where a client finds the queues of a topic. All queues lead to the door.

A topic may have a hundred thousand queues, so responses are written in steps, and without an object for each queue.

Source: RocketMQ 5.3.3, ``RouteActivity``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rucola.common.hosts import split_address
from rucola.common.sysflag import PermName
from rucola.proxy import messages, wire
from rucola.proxy.message_kind import accepted_kinds
from rucola.proxy.names import check_group, check_topic
from rucola.proxy.refusal import RefusedError
from rucola.proxy.rpc import ok, serialized
from rucola.remoting.fairness.steps import Steps, in_turns

if TYPE_CHECKING:
    from rucola.protocol.bodies.route import QueueData
    from rucola.proxy.access import DoorAccess
    from rucola.proxy.brokers import Brokers, TopicView
    from rucola.proxy.sessions import ClientSession

_PERMISSIONS = {
    0: messages.NONE,
    int(PermName.READ): messages.READ,
    int(PermName.WRITE): messages.WRITE,
    int(PermName.READ | PermName.WRITE): messages.READ_WRITE,
}

_AT_ONCE = 256
_ANY_QUEUE = -1


class Routes:
    """Answers QueryRoute and QueryAssignment. Event loop only.

    Args:
        brokers: know the topics and groups.
        access: says what an account may do.
        own: returns the address of the door, for requests that name none.
        advertised: the address under which clients reach the door, ``host:port``; empty for the one that the client has
            used, which is right behind port mappings, too.
    """

    def __init__(self, brokers: Brokers, access: DoorAccess, own: Callable[[], str], advertised: str = "") -> None:
        self._brokers, self._access, self._own = brokers, access, own
        self._advertised = endpoints_of(advertised) if advertised else None

    async def route(self, session: ClientSession, request: messages.QueryRouteRequest) -> bytes:
        """Serves QueryRoute; returns a ``QueryRouteResponse``.

        Raises:
            RefusedError: ``TOPIC_NOT_FOUND`` and others.
        """
        check_topic(request.topic.name)
        self._access.check_route(session.account, session.address, request.topic.name)
        view = await self._topic(request.topic.name)
        return await in_turns(self._route(view, request))

    async def assignment(self, session: ClientSession, request: messages.QueryAssignmentRequest) -> bytes:
        """Serves QueryAssignment: one queue that stands for all of a broker; for a group in order, each queue. Returns
        a ``QueryAssignmentResponse``.

        Raises:
            RefusedError: ``FORBIDDEN``: there is nothing to read.
        """
        check_topic(request.topic.name)
        check_group(request.group.name)
        self._access.check_subscribe(session.account, session.address, request.topic.name, request.group.name)
        view = await self._topic(request.topic.name)
        group = await self._brokers.group(request.group.name)
        in_order = group is not None and group.consume_message_orderly
        if not view.readable:
            raise RefusedError(messages.FORBIDDEN, f"topic {request.topic.name} has no readable queue")
        return await in_turns(self._assignment(view, request, in_order))

    def _route(self, view: TopicView, request: messages.QueryRouteRequest) -> Steps[bytes]:
        parts = [serialized(messages.QueryRouteResponse(status=ok()))]
        accepted = accepted_kinds(view.kind)
        for data in view.queues:
            queue = messages.MessageQueue(
                topic=request.topic,
                broker=self._broker(data.broker_name, request.endpoints),
                accept_message_types=accepted,
            )
            for permission, ids in _permissions(data):
                queue.permission = permission
                yield from _put_queues(parts, queue, ids)
        return b"".join(parts)

    def _assignment(self, view: TopicView, request: messages.QueryAssignmentRequest, in_order: bool) -> Steps[bytes]:
        parts = [serialized(messages.QueryAssignmentResponse(status=ok()))]
        for data in view.readable:
            queue = messages.MessageQueue(
                topic=request.topic,
                permission=_PERMISSIONS[data.perm & int(PermName.READ | PermName.WRITE)],
                broker=self._broker(data.broker_name, request.endpoints),
            )
            if in_order:
                yield from _put_queues(parts, queue, range(data.read_queue_nums), assigned=True)
            else:
                queue.id = _ANY_QUEUE
                parts.append(wire.message_queues(serialized(queue), range(1), assigned=True))
        return b"".join(parts)

    async def _topic(self, name: str) -> TopicView:
        view = await self._brokers.topic(name)
        if view is None:
            raise RefusedError(messages.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        return view

    def _broker(self, name: str, asked: messages.Endpoints) -> messages.Broker:
        endpoints = self._advertised or (asked if asked.addresses else endpoints_of(self._own()))
        return messages.Broker(name=name, id=0, endpoints=endpoints)


def endpoints_of(address: str) -> messages.Endpoints:
    """The endpoints for an address ``host:port``."""
    host, port = split_address(address)
    try:
        scheme = messages.IPv6 if ipaddress.ip_address(host).version == 6 else messages.IPv4
    except ValueError:
        scheme = messages.DOMAIN_NAME
    return messages.Endpoints(scheme=scheme, addresses=[messages.Address(host=host, port=port)])


def _put_queues(parts: list[bytes], queue: messages.MessageQueue, ids: range, assigned: bool = False) -> Steps[None]:
    template = serialized(queue)
    for first in range(0, len(ids), _AT_ONCE):
        parts.append(wire.message_queues(template, ids[first : first + _AT_ONCE], assigned))
        yield


def _permissions(data: QueueData) -> Iterator[tuple[int, range]]:
    """Permissions and ids of queues: those only for reading come first, then those only for writing."""
    reads = data.read_queue_nums if data.perm & PermName.READ else 0
    writes = data.write_queue_nums if data.perm & PermName.WRITE else 0
    both = min(reads, writes)
    if not reads and not writes:
        yield messages.NONE, range(max(1, data.read_queue_nums, data.write_queue_nums))
    yield messages.READ, range(reads - both)
    yield messages.WRITE, range(writes - both)
    yield messages.READ_WRITE, range(max(reads, writes) - both, max(reads, writes))
