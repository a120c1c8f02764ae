"""A master behind a controller: its slaves over loopback TCP, and what the in-sync set learns of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.brokers import Cluster, run
from tests.slaves import ha_server
from tests.unit.broker.test_disk_trouble import until

from rucola.broker.ha.in_sync_set import ALL, InSyncSet, MasterTerm, SyncRule
from rucola.broker.ha.master import HaServer
from rucola.broker.ha.member_link import MemberLink, MemberLinks
from rucola.formats.auto_switch import (
    AUTO_SWITCH_ANSWER,
    AUTO_SWITCH_TRANSFER,
    EPOCH_ENTRY,
    EpochEntry,
    Hello,
    decode_answer,
    decode_transfer,
    encode_epoch_report,
    encode_hello,
)
from rucola.protocol.bodies.controller import SyncStateSet
from rucola.store.ha.epochs import EpochList

OPEN: list[asyncio.StreamWriter] = []
"""Connections of the slaves of one scene."""


class Slave:
    """A slave of the protocol, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        OPEN.append(writer)
        self.content = b""
        self.confirm_offset = -1

    @classmethod
    async def connect(cls, server: HaServer, broker_id: int | None, is_learner: bool = False) -> Slave:
        slave = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        if broker_id is not None:
            slave.writer.write(encode_hello(Hello(broker_id, False, is_learner)))
            answer = decode_answer(await slave.reader.readexactly(AUTO_SWITCH_ANSWER.size))
            assert answer.body_bytes == EPOCH_ENTRY.size
            await slave.reader.readexactly(answer.body_bytes)
        return slave

    def report(self, offset: int) -> None:
        self.writer.write(encode_epoch_report(offset))

    async def follow(self, end: int) -> None:
        """Takes the log up to ``end``."""
        while len(self.content) < end:
            transfer = decode_transfer(await self.reader.readexactly(AUTO_SWITCH_TRANSFER.size))
            assert (transfer.epoch, transfer.epoch_start) == (1, 0)
            self.confirm_offset = transfer.confirm_offset
            self.content += await self.reader.readexactly(transfer.body_bytes)

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


def play(
    path: Path, *members: int, scene: Callable[[Cluster, HaServer, InSyncSet], Awaitable[None]], needed: int = ALL
) -> int:
    """Runs a scene; returns how many times the controller had to be asked."""
    asked = 0

    def joined() -> None:
        nonlocal asked
        asked += 1

    async def work() -> None:
        async with Cluster(path, ha_listen_port=0) as cluster:
            server, epochs = ha_server(cluster), EpochList((EpochEntry(1, 0),))
            told = SyncStateSet(frozenset(members), 1)
            found = InSyncSet(SyncRule(needed), MasterTerm(1, 1, 0, 0), told, server.loop.time())
            term = MemberLinks(server.log, lambda: epochs, found, server.loop.time, joined)
            server.new_link = lambda: MemberLink(term)
            await cluster.send("T", b"first")
            try:
                await scene(cluster, server, found)
            finally:
                for writer in OPEN:
                    writer.close()
                await asyncio.gather(*(writer.wait_closed() for writer in OPEN), return_exceptions=True)
                OPEN.clear()

    run(work())
    return asked


def test_slave_joins_with_the_whole_log_and_leaves_with_its_connection(tmp_path: Path) -> None:
    async def scene(cluster: Cluster, server: HaServer, found: InSyncSet) -> None:
        end = cluster.broker.store.max_offset
        slave = await Slave.connect(server, 2)
        slave.report(0)
        await slave.follow(end)
        assert slave.confirm_offset == end  # the master is alone in the set
        assert found.proposal(end, server.loop.time()) is None
        slave.report(end)
        await until(lambda: bool(server.slaves) and next(iter(server.slaves)).link.acknowledged == end)
        proposal = found.proposal(end, server.loop.time())
        assert proposal == SyncStateSet(frozenset((1, 2)), 1)
        found.accepted(proposal, 2)
        await cluster.send("T", b"second")
        assert found.confirm(cluster.broker.store.max_offset) == end
        await slave.follow(cluster.broker.store.max_offset)
        assert slave.confirm_offset == end
        slave.writer.close()
        await until(lambda: not server.slaves)
        proposal = found.proposal(cluster.broker.store.max_offset, server.loop.time())
        assert proposal == SyncStateSet(frozenset((1,)), 2)

    assert play(tmp_path, 1, scene=scene) >= 1


def test_late_end_of_an_old_connection_does_not_remove_the_slave(tmp_path: Path) -> None:
    async def scene(cluster: Cluster, server: HaServer, found: InSyncSet) -> None:
        end = cluster.broker.store.max_offset
        old = await Slave.connect(server, 2)
        old.report(end)
        await until(lambda: found.confirm(end) == end)
        new = await Slave.connect(server, 2)
        new.report(end)
        await until(lambda: sum(each.link.acknowledged == end for each in server.slaves) == 2)
        old.writer.close()
        await until(lambda: len(server.slaves) == 1)
        assert found.proposal(end, server.loop.time()) is None
        new.writer.close()
        await until(lambda: not server.slaves)
        assert found.proposal(end, server.loop.time()) == SyncStateSet(frozenset((1,)), 1)

    assert play(tmp_path, 1, 2, scene=scene) == 0


def test_report_on_an_old_connection_counts_no_more(tmp_path: Path) -> None:
    async def scene(cluster: Cluster, server: HaServer, found: InSyncSet) -> None:
        end = cluster.broker.store.max_offset
        old = await Slave.connect(server, 2)
        new = await Slave.connect(server, 2)
        old.report(end)
        assert await old.is_closed()
        assert found.confirm(end) == 0
        new.report(end)
        await until(lambda: found.confirm(end) == end)

    play(tmp_path, 1, 2, scene=scene)


def test_slave_that_has_what_was_just_sent_has_caught_up(tmp_path: Path) -> None:
    async def scene(cluster: Cluster, server: HaServer, found: InSyncSet) -> None:
        end = cluster.broker.store.max_offset
        slave = await Slave.connect(server, 2)
        slave.report(0)
        await slave.follow(end)
        await cluster.send("T", b"more")
        slave.report(end)
        await until(lambda: next(iter(server.slaves)).link.acknowledged == end)
        more = cluster.broker.store.max_offset
        assert more > end
        assert found.proposal(more, server.loop.time()) == SyncStateSet(frozenset((1, 2)), 1)

    play(tmp_path, 1, scene=scene, needed=1)


def test_learner_confirms_nothing(tmp_path: Path) -> None:
    async def scene(cluster: Cluster, server: HaServer, found: InSyncSet) -> None:
        end = cluster.broker.store.max_offset
        slave = await Slave.connect(server, 3, is_learner=True)
        slave.report(0)
        await slave.follow(end)
        slave.report(end)
        await until(lambda: next(iter(server.slaves)).link.acknowledged == end)
        assert found.proposal(end, server.loop.time()) is None

    assert play(tmp_path, 1, scene=scene) == 0


@pytest.mark.parametrize(
    ("broker_id", "report", "reason"),
    [
        (None, 0, "without a handshake"),
        (1, 0, "an id of 1 or more, and not the master's"),
        (0, 0, "an id of 1 or more"),
        (2, 1 << 40, "it is another log"),
        (2, -1, "asks for -1"),
    ],
    ids=["no handshake", "id of the master", "no id", "ahead twice", "negative"],
)
def test_slave_that_cannot_be_one_is_closed(
    tmp_path: Path, broker_id: int | None, report: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(cluster: Cluster, server: HaServer, found: InSyncSet) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            slave = await Slave.connect(server, broker_id)
            slave.report(report)
            if report > 0:
                await slave.reader.readexactly(AUTO_SWITCH_TRANSFER.size)  # it is told where the log ends
                slave.report(report)
            assert await slave.is_closed()
        await until(lambda: reason in caplog.text)
        assert found.confirm(cluster.broker.store.max_offset) == 0

    play(tmp_path, 1, 2, scene=scene)
