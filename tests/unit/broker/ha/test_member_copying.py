"""A slave behind a controller over loopback TCP: at a master of ours, and at what an official one has sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.brokers import Cluster, run_virtual
from tests.masters import log_bytes
from tests.pairs import until
from tests.slaves import ha_server
from tests.unit.store import stores
from tests.unit.store.ha.test_epoch_links import S, recorded

from rucola.broker.ha.in_sync_set import ALL, InSyncSet, MasterTerm, SyncRule
from rucola.broker.ha.master import HaServer
from rucola.broker.ha.member_copying import MemberCopying
from rucola.broker.ha.member_link import MemberLink, MemberLinks
from rucola.broker.ha.slave_client import SlaveClient
from rucola.errors import CopyRefusedError, DiskFullError
from rucola.formats.auto_switch import (
    AUTO_SWITCH_HELLO,
    EpochEntry,
    EpochTransfer,
    Hello,
    encode_answer,
    encode_epoch_report,
    encode_hello,
    encode_transfer,
)
from rucola.protocol.bodies.controller import SyncStateSet
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.ha.epoch_store import EpochStore
from rucola.store.ha.epochs import EpochList
from rucola.store.ha.role import StoreRole
from rucola.store.ha.slave_state import SlaveState
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

REPORT_BYTES = 12


class Copied:
    """A connection that copies, and notes the reports."""

    state, request = SlaveState.COPYING, 0

    def __init__(self) -> None:
        self.link, self.sent = self, list[bytes]()

    def report(self, flushed_offset: int) -> bytes:
        return encode_epoch_report(flushed_offset)

    def write(self, report: bytes) -> bool:
        self.sent.append(report)
        return True


def test_what_is_synced_while_a_report_is_written_is_reported_next() -> None:
    async def scenario() -> None:
        held = iter((10, 10))
        client = SlaveClient(lambda: "", lambda _: None, None, lambda: next(held, 20), lambda: None)  # type: ignore[arg-type,return-value]
        copied = Copied()
        client._connection = cast(Any, copied)
        for _ in range(3):
            client.grew()
        assert copied.sent == [encode_epoch_report(10), encode_epoch_report(20)]

    run_virtual(scenario())


class Member:
    """A slave with broker id 2."""

    def __init__(self, config: MessageStoreConfig, address: str, hello: Hello = Hello(2)) -> None:  # noqa: B008
        self._config, self._hello = config, hello
        self.address, self.files = address, Files()
        self.open()

    def open(self) -> None:
        self.store = MessageStore(self._config, self.files, ManualClock(step_ms=1), is_copy=True)
        self._loop = asyncio.get_running_loop()
        self.store.listen(on_flushed=self._flushed_in_thread)
        self.store.load()
        self.kept = EpochStore(self.files, self.store.root)
        self.kept.load()
        self.role = StoreRole(self.kept)
        self.role.become_slave(self.store, max(self.kept.epochs.last_epoch, 1))
        self.copying = MemberCopying(
            self.store, self.kept, self.role, self._hello, lambda: self.address, self.appended, 1 << 30
        )
        if not self.copying.is_empty:
            self.store.start()
        self.task = asyncio.ensure_future(self.copying.run())

    def appended(self) -> None:
        self.store.dispatch()
        if not self.copying.is_empty:
            self.store.flush_soon()

    def _flushed_in_thread(self) -> None:
        self._loop.call_soon_threadsafe(self.copying.client.grew)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.store.shutdown()

    async def open_again(self) -> None:
        await self.close()
        self.open()


def config_of(cluster: Cluster, path: Path) -> MessageStoreConfig:
    return replace(cluster.broker.store.config, store_path_root_dir=str(path), enabled_append_prop_crc=False)


def lead(server: HaServer, epochs: EpochList, *members: int) -> InSyncSet:
    """Makes the broker the master of the last epoch, with broker id 1."""
    last = epochs.last
    assert last is not None
    found = InSyncSet(
        SyncRule(ALL), MasterTerm(1, last.epoch, 0, 0), SyncStateSet(frozenset(members), 1), server.loop.time()
    )
    term = MemberLinks(server.log, lambda: epochs, found, server.loop.time, lambda: None)
    server.new_link = lambda: MemberLink(term)
    return found


def test_a_slave_takes_the_log_and_tells_that_it_has_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path / "master", ha_listen_port=0) as cluster:
            server, master = ha_server(cluster), cluster.broker.store
            found = lead(server, EpochList((EpochEntry(1, 0),)), 1, 2)
            began_s = server.loop.time()
            slave = Member(config_of(cluster, tmp_path / "slave"), f"127.0.0.1:{server.port}")
            await until(lambda: slave.copying.client.connections == 1 and server.slaves)
            await cluster.send("T", b"first")
            await until(lambda: found.confirm(master.max_offset) == master.max_offset)
            assert log_bytes(slave.store) == log_bytes(master) != b""
            assert slave.kept.epochs == EpochList((EpochEntry(1, 0),))
            assert server.loop.time() - began_s < 4
            await cluster.send("T", b"second")
            # The next transfer tells what the slave has acknowledged itself.
            await until(lambda: found.confirm(master.max_offset) == master.max_offset)
            assert slave.role.confirm_offset >= 0 and slave.store.flushed_offset == master.max_offset
            await until(lambda: slave.role.confirm_offset == master.max_offset)
            # A connection that is there again is in sync at once, without a byte of the log.
            await slave.open_again()
            began_s = server.loop.time()
            await until(lambda: any(each.link.acknowledged == master.max_offset for each in server.slaves))
            assert server.loop.time() - began_s < 4
            await slave.close()

    run_virtual(scene())


def test_an_empty_slave_of_an_empty_master_lacks_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path / "master", ha_listen_port=0) as cluster:
            server = ha_server(cluster)
            lead(server, EpochList((EpochEntry(1, 0),)), 1)
            slave = Member(config_of(cluster, tmp_path / "slave"), f"127.0.0.1:{server.port}")
            await until(lambda: slave.copying.client.has_nothing_to_copy)
            await asyncio.sleep(60)
            assert slave.copying.client.connections == 1 and not slave.task.done()
            await cluster.send("T", b"first")
            await until(lambda: log_bytes(slave.store) == log_bytes(cluster.broker.store))
            assert slave.copying.client.connections == 1
            await slave.close()

    run_virtual(scene())


def test_what_is_not_synced_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path / "master", ha_listen_port=0) as cluster:
            server, master = ha_server(cluster), cluster.broker.store
            lead(server, EpochList((EpochEntry(1, 0),)), 1)
            await cluster.send("T", b"x")
            slave = Member(config_of(cluster, tmp_path / "slave"), f"127.0.0.1:{server.port}")
            with monkeypatch.context() as patch:
                synced = property(lambda store: store._flush.flushed_offset if store is not slave.store else 0)
                patch.setattr(MessageStore, "flushed_offset", synced)
                await until(lambda: slave.store.max_offset == master.max_offset)
                await asyncio.sleep(30)
                assert [each.link.acknowledged for each in server.slaves] == [0]
            await until(lambda: [each.link.acknowledged for each in server.slaves] == [master.max_offset])
            await slave.close()

    run_virtual(scene())


def test_a_surplus_is_cut_when_the_store_is_opened_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path / "master", ha_listen_port=0) as cluster:
            server, master = ha_server(cluster), cluster.broker.store
            lead(server, EpochList((EpochEntry(1, 0),)), 1)
            await cluster.send("T", b"of both")
            config = config_of(cluster, tmp_path / "slave")
            slave = Member(config, f"127.0.0.1:{server.port}")
            await until(lambda: slave.store.max_offset == master.max_offset)
            cut = master.max_offset
            await slave.close()
            old = MessageStore(config, Files(), ManualClock(step_ms=1))
            old.load()
            old.start()
            stores.fill(old, 5)
            surplus = log_bytes(old)[cut:]
            old.shutdown()
            await cluster.send("T", b"of the new master")
            lead(server, EpochList((EpochEntry(1, 0), EpochEntry(2, cut))), 1)
            slave = Member(config, f"127.0.0.1:{server.port}")
            await slave.task  # the cut is planned
            assert slave.store.max_offset == cut + len(surplus)
            await slave.open_again()
            assert slave.store.max_offset == cut and slave.kept.epochs.entries[0] == EpochEntry(1, 0)
            await until(lambda: slave.store.max_offset == master.max_offset)
            assert log_bytes(slave.store) == log_bytes(master)
            assert slave.kept.epochs == EpochList((EpochEntry(1, 0), EpochEntry(2, cut)))
            kept = b"".join(file.read_bytes() for file in (tmp_path / "slave/quarantine").rglob("*") if file.is_file())
            assert surplus in kept
            await slave.close()

    run_virtual(scene())


def test_another_log_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path / "master", ha_listen_port=0) as cluster:
            server = ha_server(cluster)
            await cluster.send("T", b"x")
            config = config_of(cluster, tmp_path / "slave")
            other = MessageStore(config, Files(), ManualClock(step_ms=1))
            other.load()
            other.start()
            stores.fill(other, 5)
            content = log_bytes(other)
            other.shutdown()
            EpochStore(Files(), config.store_path_root_dir).write(EpochList((EpochEntry(3, 0),)))
            lead(server, EpochList((EpochEntry(4, 0),)), 1)
            slave = Member(config, f"127.0.0.1:{server.port}")
            with pytest.raises(CopyRefusedError, match="no epoch is common"):
                await slave.task
            assert log_bytes(slave.store) == content
            await slave.close()

    run_virtual(scene())


def test_a_full_disk_ends_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path / "master", ha_listen_port=0) as cluster:
            server = ha_server(cluster)
            lead(server, EpochList((EpochEntry(1, 0),)), 1)
            slave = Member(config_of(cluster, tmp_path / "slave"), f"127.0.0.1:{server.port}")
            await until(lambda: slave.copying.client.connections == 1)
            monkeypatch.setattr(MessageStore, "lacks_space", property(lambda store: store is slave.store))
            with pytest.raises(DiskFullError):
                await slave.task
            await slave.close()

    run_virtual(scene())


# -- recordings --------------------------------------------------------------------------------------------------------


class Recorded:
    """A master that sends what it is given, frame by frame.

    Attributes:
        got: what the slave has sent on each connection, with the time at which it came.
    """

    def __init__(self) -> None:
        self.got: list[list[tuple[float, bytes]]] = []
        self.answers: Callable[[int], Sequence[bytes]] = lambda _: ()
        """Returns what follows the handshake, or the report, of that number."""
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        got: list[tuple[float, bytes]] = []
        self.got.append(got)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = await reader.readexactly(REPORT_BYTES if got else AUTO_SWITCH_HELLO.size)
                got.append((asyncio.get_running_loop().time(), frame))
                writer.writelines(self.answers(len(got) - 1))


def test_a_slave_takes_what_an_official_master_sent(tmp_path: Path) -> None:
    fresh, failover = recorded("last_file", "connected"), recorded("failover", "accepted")
    sent = [frame for event, frame in fresh if event.get("way") == "m2s"]
    hello, report = (frame for event, frame in fresh if event.get("way") == "s2m")
    content = bytearray(1 << 18)
    for name in ("last_file", "resume", "early_report", "failover", "three_epochs"):
        for event, frame in recorded(name, "connected"):
            if event.get("state") == 2:
                content[event["offset"] : event["offset"] + event["n"]] = frame[36:]
    more = bytes(content[172_902:173_288])
    surplus = encode_transfer(EpochTransfer(len(more), 172_902, 1, 0, 172_902)) + more

    async def scene() -> None:
        master = Recorded()
        master.answers = lambda number: ((sent[0],), [*sent[1:], surplus])[number] if number < 2 else ()
        address = await master.start()
        config = stores.config(tmp_path, mapped_file_size_commit_log=S, enabled_append_prop_crc=False)
        slave = Member(config, address, Hello(2, from_last_file=True))
        await until(lambda: slave.store.max_offset == 173_288)
        (hello_s, first), (report_s, second), *_ = master.got[0]
        assert (first, second) == (hello, report)
        assert report_s - hello_s < 1, "RocketMQ's slave waits for its timer"
        assert slave.store.min_offset == 2 * S and slave.role.confirm_offset == 172_902
        # The slave has what the next master never had.
        master.answers = lambda _: (next(frame for event, frame in failover if event.get("way") == "m2s"),)
        await slave.open_again()
        await slave.task
        assert master.got[1][0][1] == encode_hello(Hello(2, from_last_file=True))
        await slave.open_again()
        assert slave.store.max_offset == 168_719
        await slave.close()
        await master.close()

    run_virtual(scene())


def test_a_handshake_that_is_not_answered_is_sent_again(tmp_path: Path) -> None:
    async def scene() -> None:
        master = Recorded()
        slave = Member(stores.config(tmp_path), await master.start())
        await until(lambda: len(master.got) == 2)
        assert 15 < master.got[1][0][0] - master.got[0][0][0] < 30  # the master is silent
        frames = b"".join(frame for _, frame in master.got[0])
        assert len(master.got[0]) > 2 and frames.startswith(2 * encode_hello(Hello(2)))
        await slave.close()
        await master.close()

    run_virtual(scene())


def test_an_unsound_answer_ends_the_connection(tmp_path: Path) -> None:
    async def scene() -> None:
        master = Recorded()
        master.answers = lambda _: (encode_answer(0, [EpochEntry(1, 0)]) + bytes(36),)
        slave = Member(stores.config(tmp_path), await master.start())
        await until(lambda: len(master.got) == 3)
        assert slave.copying.is_empty and not slave.task.done()
        await slave.close()
        await master.close()

    run_virtual(scene())
