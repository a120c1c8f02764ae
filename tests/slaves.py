"""Scripted slaves: connections to the HA port of a broker that report what a test says."""

from __future__ import annotations

import asyncio
import ssl
from typing import Self

from tests.brokers import Cluster

from rucola.broker.ha.master import HaServer
from rucola.formats.ha import TRANSFER_HEADER, decode_header, encode_report


def ha_server(cluster: Cluster) -> HaServer:
    replication = cluster.broker.running.replication
    assert replication is not None
    return replication.server


def has_reported(cluster: Cluster) -> bool:
    """Whether a slave has told the cluster's broker what it has."""
    return any(slave.link.acknowledged >= 0 for slave in ha_server(cluster).slaves)


class ScriptedSlave:
    """A connection.

    Attributes:
        end: physical offset up to which it was sent the log; -1 before the first transfer.
        content: the bytes that it was sent.
        heartbeats: number of heartbeats.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.end, self.content, self.heartbeats = -1, b"", 0

    @classmethod
    async def connect(cls, cluster: Cluster, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Self:
        """Connects to the HA port of the cluster's broker."""
        return cls(*await asyncio.open_connection(host, ha_server(cluster).port, ssl=tls))

    def report(self, offset: int) -> None:
        """Reports an offset."""
        self.write(encode_report(offset))

    def write(self, data: bytes) -> None:
        """Sends any bytes."""
        self._writer.write(data)

    async def transfer(self) -> int:
        """Takes a transfer; returns the number of bytes of the log in it.

        Raises:
            EOFError: the connection has ended.
        """
        try:
            header = decode_header(await self._reader.readexactly(TRANSFER_HEADER.size))
            content = await self._reader.readexactly(header.body_bytes)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise EOFError from error
        self.content += content
        self.end = header.physical_offset + header.body_bytes
        self.heartbeats += header.is_heartbeat
        return header.body_bytes

    async def follow(self, end: int, reports: bool = True) -> None:
        """Takes the log up to ``end``, and reports it."""
        while self.end < end:
            await self.transfer()
        if reports:
            self.report(self.end)

    async def serve(self) -> None:
        """Takes and reports until the connection ends."""
        while True:
            try:
                if await self.transfer():
                    self.report(self.end)
            except EOFError:
                return

    async def is_closed(self) -> bool:
        """Whether the broker closes the connection, whatever it sends before."""
        try:
            while True:
                await self.transfer()
        except EOFError:
            self.close()
            return True

    def close(self) -> None:
        """Ends the connection."""
        self._writer.close()
