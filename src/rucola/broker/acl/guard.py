"""The guard checks every request: who sent it, and whether it is allowed (RocketMQ 5.3.2, ``PlainAccessValidator``).

The guard verifies each request separately. About a connection, it remembers only the origin and whether others can read
the traffic. The guard answers refused requests itself and marks their rows in the frame table as done, so the code that
serves the other requests need not know of access control.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rucola.broker.acl import long_body
from rucola.broker.acl.address_strategy import Segments, address_of
from rucola.broker.acl.freshness import Freshness
from rucola.broker.acl.long_body import LongBody
from rucola.broker.acl.name_quota import NameQuota
from rucola.broker.acl.permission import PUB, Account, AclSnapshot, Resource, Sender
from rucola.broker.acl.requirements import REQUIREMENTS, refusal
from rucola.broker.acl.senders import ACCOUNT
from rucola.broker.late_requests import LateRequests
from rucola.broker.senders import VOUCHED
from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind
from rucola.common.hosts import is_loopback, split_address
from rucola.errors import FormatError
from rucola.protocol.body_limits import body_bytes_max
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.signature import (
    ACCESS_KEY,
    SIGNATURE,
    SIGNATURE_V2,
    TOO_EARLY,
    LongBodySignature,
    equal,
    legacy_signature,
    v2_signature,
)
from rucola.remoting.fairness.json_bodies import is_long
from rucola.remoting.processors import OVERLOAD
from rucola.remoting.server import Channel
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError

logger = logging.getLogger(__name__)

_KIND = int(FrameColumn.KIND)
_CODE = int(FrameColumn.CODE)
_FLAG = int(FrameColumn.FLAG)
_TOPIC_POS = int(FrameColumn.TOPIC_POS)
_TOPIC_LEN = int(FrameColumn.TOPIC_LEN)
_GROUP_POS = int(FrameColumn.GROUP_POS)
_GROUP_LEN = int(FrameColumn.GROUP_LEN)
_PLAIN = int(FrameKind.PLAIN)
_PULL = int(FrameKind.PULL)

UNKNOWN_SENDER = "access denied: no valid signature of an account"
UNREADABLE = "access denied: the body cannot be read"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""Every account may write its message traces, as in RocketMQ."""

_JUDGED_ROWS = 128
"""Number of rows that are judged at a time; each needs a signature check."""
_LOG_INTERVAL_S = 10.0
_REMARK_CHARACTERS_MAX = 255
_PEER = "acl-peer"
_SHORT_NAMES = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


@dataclass(frozen=True, slots=True)
class _Peer:
    """Properties of a connection: its origin, and whether others can read its traffic."""

    host: str
    address: Segments
    private: bool


class _BodyNotReadError(Exception):
    """The body of a request has to be read before the request can be judged."""


class TopicOfMessage(Protocol):
    """See ``requirements.TopicAt``."""

    def __call__(self, physical_offset: int, cold: ColdRecords | None = None) -> str | None:
        """Returns the topic without waiting for the disk.

        Raises:
            NotInMemoryError: the message must first be read from the disk.
        """


class AccessGuard:
    """Decides whether requests are served. Event loop only.

    Args:
        snapshot: returns the current accounts.
        topic_at: returns the topic of the message that a request refers to.
        clock: monotonic seconds, for the log.
        freshness: decides which signatures of version 2 are accepted.
        insecure: accept legacy signatures, which can be replayed, even if others can read the connection's traffic.
        require_v2: refuse the legacy signatures of all accounts.
        quota: limits how many topics and groups an account may create; the guard sets ``quota.account``.

    Attributes:
        account: the account whose requests are being served.
        refused: number of requests refused since start-up.
        unknown_senders: number of refused requests without a valid signature.
    """

    def __init__(
        self,
        snapshot: Callable[[], AclSnapshot],
        topic_at: TopicOfMessage,
        clock: Clock,
        freshness: Freshness,
        insecure: bool,
        require_v2: bool,
        quota: NameQuota,
    ) -> None:
        self._snapshot = snapshot
        self._topic_at = topic_at
        self._clock = clock
        self._insecure = insecure
        self._require_v2 = require_v2
        self._quota = quota
        self._freshness = freshness
        self._nobody = Account("", secrets.token_bytes(32))
        self._reading: set[asyncio.Future[None]] = set()
        self._logged_at = -_LOG_INTERVAL_S
        self.account = ""
        self.refused = 0
        self.unknown_senders = 0

    def admit(self, channel: Channel, batch: FrameBatch, first: int, late: LateRequests) -> int:
        """Calls ``refuse`` for up to ``_JUDGED_ROWS`` rows from ``first`` on, unless row ``first`` is already judged.

        Returns:
            The end (excluded) of the judged rows, which are served next. They all come from one account. This is
            ``first`` while the long body of that row is being hashed; the requests then wait for a later turn.
        """
        if first >= batch.judged:
            if long_body.is_long(batch, first) and not self._hash_on(batch, first):
                return first
            batch.judged = self.refuse(channel, batch, first, min(first + _JUDGED_ROWS, batch.count), late)
        # Requests of other connections, served since the rows were judged, may have set a different account.
        self._serve(channel, batch.account)
        return batch.judged

    def refuse(self, channel: Channel, batch: FrameBatch, first: int, last: int, late: LateRequests) -> int:
        """Answers the forbidden requests in rows ``first`` to ``last`` (excluded) and marks their rows as done. Stops
        before a request that names another account than the requests before it. ``batch.account`` is then the account
        of the allowed requests; empty if none is allowed.

        Some requests can be judged only after a message is fetched or a long body is read. Their rows are marked as
        done, too, and ``late`` serves these requests after the read, unless they are then refused.

        Returns:
            The end (excluded) of the judged rows.
        """
        table, allowed = batch.table, False
        hashing = batch.take_hashing()
        name: str | None = None
        for row in range(first, last):
            base = row * ROW_WIDTH
            if table[base + _FLAG] & FLAG_RESPONSE:
                continue
            if row > first and long_body.is_long(batch, row):
                last = row
                break
            command = batch.command(row)
            sender = command.ext_fields.get(ACCESS_KEY, "")
            if name is None:
                name = sender
            elif sender != name:
                last = row
                break
            try:
                reason = self.judge(
                    channel, command, hashing if isinstance(hashing, LongBody) and row == first else None
                )
            except NotInMemoryError as missing:
                self._judge_later(channel, command, missing.cold, late)
                batch.pass_over(row)
                continue
            except _BodyNotReadError:
                self._judge_when_read(channel, command, late)
                batch.pass_over(row)
                continue
            if not reason and table[base + _KIND] != _PLAIN and not _same(batch, table, base, command):
                reason = "access denied: the header can be read in two ways"
            if reason:
                self._answer(channel, command, reason)
                batch.pass_over(row)
            else:
                allowed = True
        batch.account = name if name is not None and allowed else ""
        return last

    def _hash_on(self, batch: FrameBatch, row: int) -> bool:
        """Hashes the next piece of the body of ``row``; returns whether it was the last one."""
        hashing = batch.hashing
        if not isinstance(hashing, LongBody):
            command = batch.head(row)
            account = self._sender(command)[1]
            signature = LongBodySignature(account.secret_key, command.code, command.ext_fields, command.version)
            hashing = LongBody(row, account, signature)
            batch.hash_with(hashing)
        return hashing.hash_on(batch)

    def _sender(self, command: RemotingCommand) -> tuple[bool, Sender]:
        """Whether the account is known that the request names, and this account; if not, nobody, whose signature takes
        as long to compute.
        """
        account = self._snapshot().accounts.get(command.ext_fields.get(ACCESS_KEY, ""))
        return (False, self._nobody) if account is None or account.disabled else (True, account)

    def judge(self, channel: Channel, command: RemotingCommand, hashing: LongBody | None = None) -> str:
        """The reason why ``command`` is refused; empty if it is allowed.

        Args:
            hashing: the result for a long body that is already hashed.

        Raises:
            NotInMemoryError: the signature is accepted, but the message to which the request refers must first be read
                from the disk.
            _BodyNotReadError: the signature is accepted, but the body must be read first.
        """
        snapshot = self._snapshot()
        peer = channel.attributes.get(_PEER) or _remember(channel)
        known, judged = self._sender(command)
        if (vouched := channel.attributes.get(VOUCHED)) is not None:
            if not known or judged.access_key != vouched or not snapshot.may_come_from(judged, peer.address):
                return UNKNOWN_SENDER
            return self._forbidden(judged, peer, command)
        if hashing is not None and hashing.account is judged:
            good = hashing.signature.is_right()
        else:
            good = _signature_matches(judged, command)
        if not known or not good:
            # Wrong signatures lock nobody out: a correct signature is accepted, however many wrong ones came before,
            # from whatever address.
            self.unknown_senders += 1
            return UNKNOWN_SENDER
        if not snapshot.may_come_from(judged, peer.address):
            return UNKNOWN_SENDER
        return self._stale(channel, judged, peer, command) or self._forbidden(judged, peer, command)

    def _judge_later(self, channel: Channel, command: RemotingCommand, cold: ColdRecords, late: LateRequests) -> None:
        """Fetches the message that ``command`` refers to, then refuses or serves the request, whose sender is already
        known.
        """

        fetched = partial(self._judge_again, channel, command, late, cold)
        if not late.cold_reads.start(channel, cold.fetch, fetched) and not command.is_oneway:
            channel.send(command.answer(ResponseCode.SYSTEM_BUSY, OVERLOAD).encode())

    def _judge_when_read(self, channel: Channel, command: RemotingCommand, late: LateRequests) -> None:
        """Reads the body of ``command`` in a thread, then refuses or serves the request, whose sender is already
        known.
        """
        size = len(command.body)
        channel.owe(size)

        def read(reading: asyncio.Future[None]) -> None:
            self._reading.discard(reading)
            channel.settle(size)
            error = reading.exception() if not reading.cancelled() else None
            if error is None:
                self._judge_again(channel, command, late)
            elif channel.closed:
                pass
            elif isinstance(error, FormatError):
                self._answer(channel, command, UNREADABLE)
            elif not command.is_oneway:
                channel.send(command.answer(ResponseCode.SYSTEM_BUSY, str(error)).encode())

        reading = asyncio.ensure_future(late.json_bodies.read(command))
        self._reading.add(reading)
        reading.add_done_callback(read)

    def _judge_again(
        self, channel: Channel, command: RemotingCommand, late: LateRequests, cold: ColdRecords | None = None
    ) -> None:
        """Refuses or serves a request that had to wait before it could be judged."""
        name = command.ext_fields[ACCESS_KEY]
        account = self._snapshot().accounts.get(name)
        if account is None or account.disabled:
            reason = UNKNOWN_SENDER
        else:
            reason = self._forbidden(account, _remember(channel), command, cold)
        if not reason:
            self._serve(channel, name)
            late.process(channel, command)
        elif not channel.closed:
            self._answer(channel, command, reason)

    def _serve(self, channel: Channel, name: str) -> None:
        """Calls ``serve`` for requests of ``channel``."""
        if name:  # requests of this connection may still wait, and the name in a refused request proves nothing
            channel.attributes[ACCOUNT] = name
        self.serve(name)

    def serve(self, name: str) -> None:
        """Notes the account whose requests are served next; empty if there are none. Unless it is an administrator's,
        the number of topics and groups that it may create is limited.
        """
        account = self._snapshot().accounts.get(name)
        self.account = name
        self._quota.account = "" if account is None or account.admin else name

    def _stale(self, channel: Channel, account: Sender, peer: _Peer, command: RemotingCommand) -> str:
        """Returns the reason to refuse a correct signature; empty if the signature is accepted.

        A legacy signature must be allowed. Any other must be fresh.
        """
        fields = command.ext_fields
        if SIGNATURE_V2 not in fields:
            if self._require_v2 or account.require_v2:
                return f"access denied: {SIGNATURE_V2} is required"
            if not (peer.private or self._insecure):
                return f"access denied: without TLS, {SIGNATURE_V2} is required"
            return ""
        return self._freshness.refusal(channel, account.access_key, fields)

    def _forbidden(
        self, account: Sender, peer: _Peer, command: RemotingCommand, cold: ColdRecords | None = None
    ) -> str:
        topic_at = self._topic_at if cold is None else partial(self._topic_at, cold=cold)
        needs = REQUIREMENTS.get(command.code)
        if account.admin:
            if needs is None:
                event(
                    logger,
                    logging.INFO,
                    "administration",
                    code=command.code,
                    account=account.access_key,
                    peer=peer.host,
                )
            return ""
        if needs is None:
            return f"access denied: request {command.code} needs an administrator"
        if is_long(command):
            if len(command.body) > body_bytes_max(command.code):
                return f"access denied: the body is longer than {body_bytes_max(command.code)} bytes"
            raise _BodyNotReadError
        try:
            for need in needs:
                for resource in need.resources(command, topic_at):
                    if not account.allows(resource, peer.address) and not _is_trace(resource):
                        return refusal(need, resource)
        except FormatError:
            return UNREADABLE
        return ""

    def _answer(self, channel: Channel, command: RemotingCommand, reason: str) -> None:
        self.refused += 1
        if not command.is_oneway:
            code = ResponseCode.SYSTEM_BUSY if reason.startswith(TOO_EARLY) else ResponseCode.NO_PERMISSION
            channel.send(command.answer(code, reason[:_REMARK_CHARACTERS_MAX]).encode())
        now_s = self._clock.monotonic()
        if now_s - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = now_s
            event(
                logger,
                logging.WARNING,
                "request refused",
                peer=channel.remote_address,
                code=command.code,
                account=command.ext_fields.get(ACCESS_KEY, "")[:64],
                reason=reason[:_REMARK_CHARACTERS_MAX],
                refused=self.refused,
            )


def _signature_matches(account: Sender, command: RemotingCommand) -> bool:
    fields = command.ext_fields
    given = fields.get(SIGNATURE_V2)
    if given is not None:
        return equal(given, v2_signature(account.secret_key, command.code, fields, command.body))
    expected = legacy_signature(account.secret_key, fields, command.body, command.version)
    return equal(fields.get(SIGNATURE, ""), expected)


def _same(batch: FrameBatch, table: array[int], base: int, command: RemotingCommand) -> bool:
    """Whether the frame table has the same code, topic and (for a pull) group as ``command``. The guard judges
    ``command``, but the broker serves the row of the table. Without this check, a header with two topics could be
    judged by one topic and served with the other.
    """
    fields = command.ext_fields
    pull = table[base + _KIND] == _PULL
    topic = fields.get("b" if command.code in _SHORT_NAMES else "topic", "")
    if table[base + _CODE] != command.code or _text(batch, table, base, _TOPIC_POS, _TOPIC_LEN) != topic:
        return False
    return not pull or _text(batch, table, base, _GROUP_POS, _GROUP_LEN) == fields.get("consumerGroup", "")


def _text(batch: FrameBatch, table: array[int], base: int, position: int, length: int) -> str:
    start = table[base + position]
    return str(batch.view[start : start + table[base + length]], "utf-8", "replace")


def _is_trace(resource: Resource) -> bool:
    return resource.kind == "topic" and resource.name == TRACE_TOPIC and resource.needed == PUB


def _remember(channel: Channel) -> _Peer:
    address = address_of(channel.remote_address)
    if address:
        host = split_address(channel.remote_address)[0].partition("%")[0]
        peer = _Peer(host, address, channel.secure or is_loopback(channel.remote_address))
    else:  # a peer without a numeric address is not trusted
        peer = _Peer("", (), channel.secure)
    channel.attributes[_PEER] = peer
    return peer
