"""Which of the controllers leads: the one that made the key ``PREFIX/leader``, as long as its lease lives.

Each controller has a lease, and a key ``PREFIX/controllers/ADDRESS`` under it, by which the others know of it. Who
finds no leader tries to make the leader's key, also under its lease; etcd lets one succeed. The revision in which this
key was created is the ``Term``: every write of the leader demands that the key still has it, so a leader that has lost
its lease without noticing changes nothing.

A leader serves only until ``TTL`` seconds after it *sent* its last renewal that etcd confirmed. etcd counts from the
renewal's arrival, so nobody else leads until then, however long a message or this process was delayed.

Consensus is etcd's; none is written here. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from rucola.common.json_library import orjson
from rucola.controller.etcd import ETCD_ERRORS, Compare, Etcd, KeyValue, Put
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
TTL_S = 5
"""Seconds that the lease of a controller lives without a renewal."""
TURN_S = 1.0
"""Seconds between two turns, each of which renews the lease."""


class ControllerPeer(NamedTuple):
    """A controller, as etcd has it: its name and its address for brokers, ``host:port``."""

    name: str
    address: str


@dataclass(slots=True, eq=False)
class Term:
    """The time in which this controller leads.

    Attributes:
        revision: the revision in which its leader's key was created.
        ends_s: when it may have ended, on the monotonic clock; each renewal moves this.
        is_over: whether it is known to have ended.
    """

    revision: int
    ends_s: float
    is_over: bool = False


class Leadership:
    """The part of one controller. Call ``turn`` about once a second, and ``leave`` at the end.

    Args:
        etcd: the calls for leases and leaders; they must not wait behind others.
        prefix: where the keys are, without a slash at the end.
        me: returns this controller, once it listens.
        monotonic: the time in seconds.
        began: called with a new term before this controller serves in it; if it raises an error of etcd, the
            controller does not lead.

    Attributes:
        leader: who leads, as far as this controller knows; None for nobody.
        peers: all controllers, sorted.
        error: why etcd cannot be used; empty if it can.
    """

    def __init__(
        self,
        etcd: Etcd,
        prefix: str,
        me: Callable[[], ControllerPeer],
        monotonic: Callable[[], float],
        began: Callable[[Term], Awaitable[None]],
    ) -> None:
        self._etcd, self._me, self._monotonic, self._began = etcd, me, monotonic, began
        self.leader_key, self._peers_prefix = f"{prefix}/leader", f"{prefix}/controllers/"
        self.leader: ControllerPeer | None = None
        self.peers: tuple[ControllerPeer, ...] = ()
        self.error = ""
        self._lease = 0
        self._lease_ends_s = 0.0
        self._term: Term | None = None
        self._is_prepared = False
        """Whether ``began`` has ended for the term."""
        self._preparing: asyncio.Future[None] | None = None
        self._peers_due_s = 0.0

    @property
    def term(self) -> Term | None:
        """The term in which this controller may serve now; None if it does not lead."""
        term = self._term
        if term is None or not self._is_prepared or term.is_over or self._monotonic() >= term.ends_s:
            return None
        return term

    def lost(self, term: Term) -> None:
        """Says that a write of ``term`` has found another leader's key."""
        if not term.is_over:
            term.is_over = True
            event(logger, logging.WARNING, "controller leads no more", reason="its key is gone", term=term.revision)

    async def turn(self) -> None:
        """Renews the lease; leads if nobody does. An error of etcd is kept in ``error``; the next turn tries again."""
        try:
            await self._turn()
        except ETCD_ERRORS as error:
            if not self.error:
                event(logger, logging.ERROR, "etcd cannot be used", error=error)
            self.error = str(error)
            self._end_late_term()
        else:
            if self.error:
                event(logger, logging.INFO, "etcd can be used again")
            self.error = ""

    async def leave(self) -> None:
        """Ends the lease, so that another controller leads at once."""
        lease = self._lease
        self._end_term("stopping")
        self._lease = 0
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
        if lease:
            try:
                await self._etcd.revoke(lease)
            except ETCD_ERRORS as error:
                event(logger, logging.WARNING, "the controller's lease ends by itself", error=error)

    async def _turn(self) -> None:
        self._end_late_term()
        await self._keep_lease()
        if self._term is None:
            await self._campaign()
        else:
            await self._look_at_key(self._term)
        if self._monotonic() >= self._peers_due_s:
            self.peers = tuple(sorted(_peer(one) for one in await self._etcd.range(self._peers_prefix)))
            self._peers_due_s = self._monotonic() + TTL_S

    async def _keep_lease(self) -> None:
        """Renews the lease, or gets another one."""
        sent_s = self._monotonic()
        left_s = await self._etcd.keep_alive(self._lease) if self._lease else 0
        if left_s > 0:
            self._lease_ends_s = sent_s + left_s
            if self._term is not None:
                self._term.ends_s = self._lease_ends_s
            return
        self._end_term("its lease has ended")
        self._lease = 0
        sent_s = self._monotonic()
        lease = await self._etcd.grant(TTL_S)
        await self._etcd.txn((), (Put(self._peers_prefix + self._me().address, _json(self._me()), lease),), ())
        self._lease, self._lease_ends_s, self._peers_due_s = lease, sent_s + TTL_S, sent_s

    async def _campaign(self) -> None:
        """Makes the leader's key if there is none, and learns who leads."""
        key = self.leader_key
        won = await self._etcd.txn((Compare(key, "CREATE", 0),), (Put(key, _json(self._me()), self._lease),), (key,))
        if won.succeeded:
            revision = won.revision
        else:
            found = won.found[0]
            if found is None or found.lease != self._lease:
                self.leader = None if found is None else _peer(found)
                return
            revision = found.create_revision  # the answer to an earlier campaign was lost
        self.leader = self._me()
        self._term, self._is_prepared = Term(revision, self._lease_ends_s), False
        self._prepare(self._term)

    async def _look_at_key(self, term: Term) -> None:
        """Ends a term whose key somebody has removed, or that is not in an etcd that was brought back from a copy."""
        found = await self._etcd.get(self.leader_key)
        if found is None or found.create_revision != term.revision:
            self._end_term("its key is gone")
        elif self._preparing is None and not self._is_prepared:
            self._prepare(term)

    def _prepare(self, term: Term) -> None:
        """Calls ``began`` beside the turns, which renew the lease meanwhile."""

        async def prepare() -> None:
            try:
                await self._began(term)
            except ETCD_ERRORS as error:
                event(logger, logging.ERROR, "controller cannot read its groups", error=error)
            else:
                if self._term is term and not term.is_over:
                    self._is_prepared = True
                    event(logger, logging.INFO, "controller leads", term=term.revision)
            finally:
                self._preparing = None

        self._preparing = asyncio.ensure_future(prepare())

    def _end_late_term(self) -> None:
        term = self._term
        if term is not None and (term.is_over or self._monotonic() >= term.ends_s):
            self._end_term("its lease was not renewed in time")

    def _end_term(self, reason: str) -> None:
        """Ends the term. The lease goes with it: with the same key, a write of this term that is still on its way would
        count in the next one, which may have read the group before.
        """
        term, self._term = self._term, None
        if term is None:
            return
        self._lease, self.leader = 0, None
        if not term.is_over:
            term.is_over = True
            event(logger, logging.WARNING, "controller leads no more", reason=reason, term=term.revision)


def _json(peer: ControllerPeer) -> bytes:
    return orjson.dumps(peer._asdict())


def _peer(found: KeyValue) -> ControllerPeer:
    """The controller in a key. A value that is none of ours is shown by its key."""
    try:
        value = orjson.loads(found.value)
        return ControllerPeer(str(value["name"]), str(value["address"]))
    except (KeyError, TypeError, ValueError):
        return ControllerPeer(found.key, "")
