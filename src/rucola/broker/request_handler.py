"""Passes the frames of one read to the processors.

Runs of sends go to the send processor as table rows. Pulls go to the pull processor row by row. All other requests are
decoded to commands for their processors. If a processor raises, only its own requests are answered with SYSTEM_ERROR.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rucola.broker.cold_reads import ColdReads
from rucola.broker.late_requests import LateRequests
from rucola.broker.processor.send import SendMessageProcessor
from rucola.broker.pull.processor import PullMessageProcessor
from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, run_end
from rucola.common.mq_version import MQVersion
from rucola.errors import BrokerError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.remoting.processors import OVERLOAD, ProcessorTable
from rucola.remoting.server import Channel
from rucola.runtime.logs import event
from rucola.store.message_store import MessageStore
from rucola.store.row_run import RowRun

if TYPE_CHECKING:
    from rucola.broker.acl.guard import AccessGuard

logger = logging.getLogger(__name__)

NOTHING_REFUSED: Mapping[int, tuple[int, str]] = {}
_KIND = int(FrameColumn.KIND)
_CODE = int(FrameColumn.CODE)
_OPAQUE = int(FrameColumn.OPAQUE)
_FLAG = int(FrameColumn.FLAG)
_VERSION = int(FrameColumn.VERSION)
_SERIALIZE = int(FrameColumn.SERIALIZE)
_SAME_TOPIC = int(FrameColumn.SAME_TOPIC)
_PLAIN = int(FrameKind.PLAIN)
_SEND = int(FrameKind.SEND)
_PULL = int(FrameKind.PULL)
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_UNASKED_ROWS = 16
"""Number of sends that are served before the time is checked. Cython kernels serve sends quickly. If the file of a
queue must be mapped first, the time is checked earlier.
"""
_UNASKED_PULLS = 4
"""Number of pulls that are served before the time is checked; each pull takes at most 10 ms."""


class RequestHandler:
    """Serves the rows of a read; the broker gives it what the remoting server reads.

    Args:
        table: processors of plain requests; processors for sends and pulls with unusual headers are added here.
        store: tells whether sends have caused work that takes longer than storing their messages.
        dispatch_scheduled: runs a scheduled dispatch, so that the next read sees every confirmed message; called
            before a request that may read.
        waiting: returns the number of responses that wait for disk or slaves; None if none ever waits.
        waiting_max: maximum of this number; further sends are refused.
        cold_reads: reads messages that the guard needs and that are not in memory.
        guard: checks the permissions of a batch's rows; None without access control.
        refusals: code and remark of the answer to each request code that is refused; those of a slave. The entries of
            pulls may come and go.

    Attributes:
        stopping: whether everything is refused; set when the broker stops.
    """

    def __init__(
        self,
        store: MessageStore,
        send: SendMessageProcessor,
        pull: PullMessageProcessor,
        table: ProcessorTable,
        dispatch_scheduled: Callable[[], None],
        waiting: Callable[[], int] | None,
        waiting_max: int,
        monotonic: Callable[[], float],
        cold_reads: ColdReads,
        guard: AccessGuard | None,
        refusals: Mapping[int, tuple[int, str]] = NOTHING_REFUSED,
    ) -> None:
        self.stopping = False
        self._guard = guard
        self._late = LateRequests(cold_reads, table.json_bodies, self._process_late)
        self._waiting = waiting
        self._waiting_max = waiting_max
        self._monotonic = monotonic
        self._dispatch_scheduled = dispatch_scheduled
        self._store = store
        self._send = send
        self._pull = pull
        self._table = table
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            table.register(code, self._send_command)
        for code in _PULLS:
            table.register(code, self._pull_command)
        self._refusals = refusals
        for refused, refusal in refusals.items():
            if refused not in _PULLS:
                table.register(refused, partial(_refuse, refusal))

    def serve_rows(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        """Serves the frames of one read in their order, beginning with row ``first``, as many as fit into one iteration
        of the event loop.
        """
        if self.stopping:
            _send_away(channel, batch, first)
            return
        if channel.costly:
            if channel.note_request():
                channel.postpone(batch, first)
                return
            channel.costly = False
        table, count = batch.table, batch.count
        if self._guard is not None:
            count = self._guard.admit(channel, batch, first, self._late)
        row = asked_row = first
        while row < count:
            base = row * ROW_WIDTH
            kind = table[base + _KIND]
            last = run_end(table, row, count, _SAME_TOPIC) if kind == _SEND else row + 1
            if table[base + _FLAG] & FLAG_RESPONSE:
                pass  # a response to a request of this broker; the channel has delivered it already
            elif kind == _PLAIN:
                began_s = self._monotonic()
                self._dispatch_scheduled()
                self._table.process_row(channel, batch, row)
                channel.note_cost(self._monotonic() - began_s)
            else:
                try:
                    if self._refusals and (refusal := self._refusals.get(table[base + _CODE])):
                        _answer(channel, table, row, last, *refusal)
                    elif kind == _PULL:
                        self._dispatch_scheduled()
                        self._pull.process_row(channel, batch.source, table, row)
                    else:
                        last = self._process_sends(channel, batch, kind, row, last)
                except Exception as error:  # noqa: BLE001 - a defect must not cost the connection
                    event(logger, logging.ERROR, "request failed", error, peer=channel.remote_address)
                    _answer(channel, table, row, last, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            row = last
            if kind != _PULL and self._store.maps_awaited:
                # Creating or mapping the file of a queue takes longer than storing a thousand messages. This work is
                # done now, so that it counts towards the time of these sends.
                self._dispatch_scheduled()
            elif row == count or row - asked_row < _unasked(kind, not table[row * ROW_WIDTH + _SAME_TOPIC], channel):
                continue
            asked_row = row
            if row < batch.count and channel.note_request():
                break
        if row < batch.count:
            channel.postpone(batch, row)

    def _process_late(self, channel: Channel, command: RemotingCommand) -> None:
        """Serves a request whose permissions could not be checked at once."""
        self._dispatch_scheduled()
        self._table.process(channel, command)

    def _process_sends(self, channel: Channel, batch: FrameBatch, kind: int, first: int, last: int) -> int:
        """Serves rows ``first`` to ``last`` (excluded), which send messages; returns the first row that was not
        served.
        """
        if self._waiting is not None and self._waiting() >= self._waiting_max:
            _answer(channel, batch.table, first, last, ResponseCode.SYSTEM_BUSY, OVERLOAD)
            return last
        run = RowRun(batch.source, batch.view, batch.table, first, last)
        if kind == _SEND:
            return self._send.process_run(channel, run)
        self._send.process_batch(channel, run)
        return last

    def _send_command(self, channel: Channel, command: RemotingCommand) -> None:
        if self._waiting is not None and self._waiting() >= self._waiting_max:
            raise BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        self._send.process_command(channel, command)

    def _pull_command(self, channel: Channel, command: RemotingCommand) -> None:
        if refusal := self._refusals.get(command.code):
            raise BrokerError(*refusal)
        self._pull.process_command(channel, command)


def _unasked(kind: int, run_ended: bool, channel: Channel) -> int:
    """Number of rows of one kind that are served before the time is checked."""
    if kind == _PULL:
        return 0 if channel.costly else _UNASKED_PULLS
    return _UNASKED_ROWS if kind == _SEND and run_ended else 0


def _send_away(channel: Channel, batch: FrameBatch, first: int) -> None:
    """Tells the client, in answer to each request from row ``first`` on, that the broker is stopping. The client then
    reconnects elsewhere. The response depends on the client's version. If the answers take too long, the remaining rows
    wait for the next iteration of the event loop, because other work must end before the broker stops.
    """
    table = batch.table
    for row in range(first, batch.count):
        if row > first and (row - first) % _UNASKED_ROWS == 0 and channel.note_request():
            channel.postpone(batch, row)
            return
        base = row * ROW_WIDTH
        if table[base + _FLAG] & FLAG_RESPONSE:
            continue
        if table[base + _VERSION] > MQVersion.V5_3_1:
            _answer(channel, table, row, row + 1, ResponseCode.GO_AWAY, "please go away")
        else:
            _answer(channel, table, row, row + 1, ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping")


def _refuse(refusal: tuple[int, str], _channel: Channel, command: RemotingCommand) -> RemotingCommand:
    return command.answer(*refusal)


def _answer(channel: Channel, table: array[int], first: int, last: int, code: int, remark: str) -> None:
    for row in range(first, last):
        base = row * ROW_WIDTH
        if not table[base + _FLAG] & FLAG_ONEWAY:
            answer = RemotingCommand(
                code, table[base + _OPAQUE], FLAG_RESPONSE, remark, serialize=table[base + _SERIALIZE]
            )
            channel.send(answer.encode())
