"""A broker with a test's faults; it reports events for which a test may wait. Used on the broker's event loop only."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rucola.broker import Broker
from rucola.broker.client.consumer_manager import ConsumerGroup
from rucola.broker.config import BrokerConfig
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.errors import FormatError
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameBatch, FrameReader
from rucola.remoting.server import Channel
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.testing import start_offsets
from rucola.testing.faults import Effect, Fault, FaultRules
from rucola.testing.virtual_clock import UnmovedClock

_CODE, _FLAG, _HEADER_LEN = int(FrameColumn.CODE), int(FrameColumn.FLAG), int(FrameColumn.HEADER_LEN)


class FaultyFiles(Files):
    """``Files`` on a disk that can be slow or full.

    Attributes:
        sync_s: additional duration of each sync, in seconds.
        full: whether the disk is full.
    """

    def __init__(self) -> None:
        self.sync_s = 0.0
        self.full = False
        self.data_sync = self._sync

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        """``Files.allocate``; raises ENOSPC while the disk is full."""
        if self.full:
            raise OSError(errno.ENOSPC, "a test has made the disk full")
        super().allocate(descriptor, position, length)

    def disk_usage(self, path: str) -> tuple[int, int]:
        """``Files.disk_usage`` of an empty disk, or of a full one: a test's messages are neither refused nor removed
        because the computer's own disk is nearly full.
        """
        size = sum(super().disk_usage(path))
        return (size, 0) if self.full else (0, size)

    def _sync(self, descriptor: int) -> None:
        if self.sync_s:
            time.sleep(self.sync_s)
        Files.data_sync(descriptor)


class FaultyBroker(Broker):
    """A broker with faults.

    Args:
        rules: the request faults.
        on_change: called after each event for which a test may wait: the broker served requests, messages reached their
            queues, a consumer offset was committed, or the clients or topics of a group changed.

    Attributes:
        starts: which queues the consumers have begun to read.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        files: FaultyFiles,
        rules: FaultRules,
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(config, store_config, files, SystemClock(), peers_clock=UnmovedClock())
        self.starts = start_offsets.StartOffsets()
        self._rules = rules
        self._tell = on_change
        self._blackholed = False
        self._met: set[Channel] = set()
        self.on_dispatch(on_change)
        self.offsets.on_commit(on_change)
        self.services.consumers.on_change(self._group_changed)

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        """Applies the faults to the frames of ``batch``, and serves the frames that no fault affects."""
        if self._blackholed:
            self._met.add(channel)
            return
        if self._rules.faults:
            self._apply_faults(channel, batch)
        self._serve_batch(channel, batch)

    def _serve_batch(self, channel: Channel, batch: FrameBatch) -> None:
        for row in range(batch.count):
            base = row * ROW_WIDTH
            if batch.table[base + _CODE] in start_offsets.CODES and not batch.table[base + _FLAG] & FLAG_RESPONSE:
                with suppress(FormatError):  # the broker itself refuses a malformed header
                    self.starts.received(channel, batch.command(row))
        super().frames_received(channel, batch)
        self._tell()

    def _group_changed(self, group: ConsumerGroup) -> None:
        self.starts.group_changed(group)
        self._tell()

    def blackhole(self, begins: bool) -> None:
        """If ``begins``, blocks all traffic in both directions; otherwise unblocks it and closes the affected
        connections.
        """
        if begins and not self._blackholed:
            for channel in self._server.channels:
                self._met.add(channel)
                if channel._transport is not None:
                    channel._transport = _Nowhere(channel._transport)
        self._blackholed = begins
        if not begins:
            met, self._met = self._met, set()
            for channel in met:
                channel.abort()

    def _apply_faults(self, channel: Channel, batch: FrameBatch) -> None:
        table = batch.table
        for row in range(batch.count):
            base = row * ROW_WIDTH
            if table[base + _FLAG] & FLAG_RESPONSE:
                continue
            fault = self._rules.of(table[base + _CODE])
            if fault is not None:
                command = batch.command(row) if table[base + _HEADER_LEN] else _sent(batch, row)
                batch.pass_over(row)
                self._meet(channel, command, fault)

    def _meet(self, channel: Channel, command: RemotingCommand, fault: Fault) -> None:
        if fault.effect is Effect.REFUSE:
            if not command.is_oneway:
                channel.send(command.answer(fault.code, fault.remark).encode())
        elif fault.effect is Effect.DROP_ANSWER:
            command.flag |= FLAG_ONEWAY
            self._serve(channel, command)
        elif fault.effect is Effect.DELAY:
            asyncio.get_running_loop().call_later(fault.seconds, self._serve, channel, command)

    def _serve(self, channel: Channel, command: RemotingCommand) -> None:
        """Serves a request as if it had arrived alone."""
        if channel.closed:
            return
        frame = command.encode()
        reader = FrameReader(len(frame))
        buffer = reader.buffer()
        at = 0
        while at < len(frame):
            size = min(len(buffer), len(frame) - at)
            buffer[:size] = frame[at : at + size]
            at += size
            batch = reader.received(size)
            if batch is not None:
                self._serve_batch(channel, batch)
                return
            buffer = reader.buffer()


def _sent(batch: FrameBatch, row: int) -> RemotingCommand:
    """Returns a send of a gRPC client as a request. Its row has no header, because it does not come from a socket."""
    table = batch.table[row * ROW_WIDTH : (row + 1) * ROW_WIDTH]

    def text(position: FrameColumn, length: FrameColumn) -> str:
        start = table[position]
        return str(batch.view[start : start + table[length]], "utf-8")

    fields = {
        "a": text(FrameColumn.GROUP_POS, FrameColumn.GROUP_LEN),
        "b": text(FrameColumn.TOPIC_POS, FrameColumn.TOPIC_LEN),
        "e": str(table[FrameColumn.QUEUE_ID]),
        "f": str(table[FrameColumn.SYS_FLAG]),
        "g": str(table[FrameColumn.BORN_TIMESTAMP]),
        "h": str(table[FrameColumn.MESSAGE_FLAG]),
        "i": text(FrameColumn.PROPERTIES_POS, FrameColumn.PROPERTIES_LEN),
        "j": str(table[FrameColumn.RECONSUME_TIMES]),
    }
    code, opaque, flag = table[FrameColumn.CODE], table[FrameColumn.OPAQUE], table[FrameColumn.FLAG]
    return RemotingCommand(code, opaque, flag, ext_fields=fields, body=bytes(batch.body(row)))


class _Nowhere(asyncio.Transport):
    """A transport that discards writes; calls such as ``close`` go to the real transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._real = transport

    def write(self, data: Any) -> None:
        """Discards the data."""

    def writelines(self, list_of_data: Any) -> None:
        """Discards the data."""

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._real.close()

    def abort(self) -> None:
        self._real.abort()
