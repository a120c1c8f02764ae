"""Masters that send what no master sends. The copy keeps what it has, holds nothing damaged, needs no more memory, and
goes on with a good master.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from random import Random

import pytest
from tests.brokers import run_virtual
from tests.masters import HaPort, MasterLog, a_log, header, log_bytes
from tests.pairs import until
from tests.unit.broker.ha.test_replica import KnownBroker, running
from tests.unit.store.stores import SEGMENT

from rucola.broker import Broker, BrokerConfig
from rucola.broker.ha.slave import Slave
from rucola.errors import CopyRefusedError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.store.config import MessageStoreConfig

MEMORY_MAX = 4 << 20
Attack = Callable[[int, MasterLog, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> MasterLog:
    return a_log(tmp_path_factory.mktemp("master") / "store", 900)


async def garbage(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    writer.write(Random(request).randbytes(1 << 20))


async def size_of_2_gib(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    writer.write(header(request, 0x7FFFFFFF) + bytes(1 << 20))


async def largest_transfer(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    """A transfer that is as large as allowed, and whose records have sizes of 2 GiB."""
    writer.write(header(request, (4 << 20) - 12) + b"\x7f\xff\xff\xff\xda\xa3\x20\xa7" * (1 << 18))


async def negative_size(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    writer.write(header(request, -5) + bytes(100))


async def other_offset(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    writer.write(header(request + 64, 5000) + master.bytes_at(request, 5000))


async def negative_offset(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    writer.write(header(-1, 5000) + bytes(5000))


async def jump(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    """Good bytes, then bytes from another place of the same log."""
    good = master.stream(request, end=request + 70_000)
    writer.write(good + header(request + 71_000, 500) + master.bytes_at(request + 71_000, 500))


async def repetition(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    first = next(master.transfers(request))
    writer.write(first + first)


async def silence(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def header_without_end(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    for byte in header(request, 5000)[:11]:
        writer.write(bytes([byte]))
        await asyncio.sleep(15)


async def heartbeats_without_pause(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    writer.write(header(request, 0) * 20_000)


async def wrong_checksum(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    """A bit of a body is wrong, each time another one."""
    at = request + 40_000
    writer.write(master.changed(at, bytes([master.bytes_at(at, 1)[0] ^ (1 << next(_BITS))])).stream(request))


async def end_inside_a_header(request: int, master: MasterLog, writer: asyncio.StreamWriter) -> None:
    writer.write(header(request, 5000)[:7])


_BITS = cycle(range(8))
ENDED = [
    garbage,
    size_of_2_gib,
    negative_size,
    other_offset,
    negative_offset,
    jump,
    repetition,
    silence,
    header_without_end,
    end_inside_a_header,
    wrong_checksum,
]
"""Attacks after which the copy connects again."""


class HostilePort(HaPort):
    """A master that answers the first reports with an attack."""

    def __init__(self, master: MasterLog, attack: Attack) -> None:
        super().__init__(master)
        self.attack = attack
        self.attacks_left = 3

    async def _send(self, request: int, writer: asyncio.StreamWriter) -> None:
        if self.attacks_left <= 0:
            await super()._send(request, writer)
            return
        self.attacks_left -= 1
        with suppress(ConnectionError):
            await self.attack(request, self.master, writer)
            await writer.drain()
            await asyncio.sleep(1)


@pytest.mark.few
@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
@pytest.mark.parametrize("attack", ENDED, ids=lambda attack: attack.__name__)
def test_s76_a_master_that_sends_what_no_master_sends(
    tmp_path: Path, master: MasterLog, attack: Attack, begun: bool
) -> None:
    part = MasterLog(master.content[: SEGMENT + 20_000])

    async def scenario() -> None:
        if begun:
            async with HaPort(part) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
                await until(lambda: replica.end_offset > SEGMENT)
        async with HostilePort(master, attack) as ha:
            tracemalloc.start()
            async with running(tmp_path, ha, KnownBroker(ha)) as (replica, task):
                await until(lambda: ha.attacks_left == 0 or task.done())
                held = log_bytes(replica.store)
                assert held == master.content[: len(held)]
                await until(lambda: replica.end_offset == master.end or task.done())
                if task.done():
                    await task
                assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
                assert log_bytes(replica.store) == master.content
            tracemalloc.stop()

    run_virtual(scenario())


@pytest.mark.parametrize("attack", [heartbeats_without_pause, largest_transfer], ids=lambda attack: attack.__name__)
def test_s76_a_master_that_must_not_be_followed(tmp_path: Path, master: MasterLog, attack: Attack) -> None:
    part = MasterLog(master.content[: SEGMENT + 20_000])

    async def scenario() -> None:
        async with HaPort(part) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
            await until(lambda: replica.end_offset > SEGMENT)
        async with HostilePort(master, attack) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, task):
            before = log_bytes(replica.store)
            with pytest.raises(CopyRefusedError):
                await task
            assert log_bytes(replica.store) == before
        async with HaPort(master) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
            await until(lambda: replica.end_offset == master.end)

    run_virtual(scenario())


@pytest.mark.parametrize(
    "attack",
    [heartbeats_without_pause, largest_transfer, garbage, jump, repetition],
    ids=lambda attack: attack.__name__,
)
def test_s76_a_liar_costs_a_copy_that_may_rejoin_nothing_but_time(
    tmp_path: Path, master: MasterLog, attack: Attack
) -> None:
    """What it drops because of a lie is in quarantine, and comes again from a good master."""
    part = MasterLog(master.content[: SEGMENT + 20_000])

    async def scenario() -> None:
        async with HaPort(part) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
            await until(lambda: replica.end_offset > SEGMENT)
            end = replica.end_offset
        async with (
            HostilePort(master, attack) as ha,
            running(tmp_path, ha, KnownBroker(ha), rejoin=True) as (replica, task),
        ):
            await until(lambda: replica.end_offset == master.end or task.done())
            if task.done():  # it has denied all records
                with pytest.raises(CopyRefusedError, match="none of the records"):
                    await task
            held = log_bytes(replica.store)
            assert held == master.content[: len(held)] and len(held) >= end
            kept = {path.name: path.read_bytes() for path in (tmp_path / "quarantine").glob("0*") if not path.suffix}
            assert all(part.content[int(start) :].startswith(content) for start, content in kept.items())
            assert sum(map(len, kept.values())) < end

    run_virtual(scenario())


def test_s76_a_record_with_a_wrong_checksum_is_never_held(tmp_path: Path, master: MasterLog) -> None:
    at = master.end // 2
    wrong = master.changed(at, bytes([master.bytes_at(at, 1)[0] ^ 1]))

    async def scenario() -> None:
        async with HaPort(wrong) as ha, running(tmp_path, ha, KnownBroker(ha)) as (replica, _):
            await until(lambda: replica.end_offset == master.end)
            ((start, end),) = replica.store.gaps
            assert start <= at < end
            held = log_bytes(replica.store)
            assert held[:start] + held[end:] == master.content[:start] + master.content[end:]
            units = sum(replica.store.max_queue_offset(*name) for name in replica.store.queue_names())
            found = [
                replica.store.queue_unit(*name, number) for name in replica.store.queue_names() for number in range(225)
            ]
            assert (units, start in [unit[0] for unit in found]) == (900, False)

    run_virtual(scenario())


class LyingBroker(KnownBroker):
    """The broker port of a master that answers with garbage for each table."""

    async def table(self, code: RequestCode) -> bytes:
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: b'{"topicConfigTable":{"T":5}}',
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b"[" * 10_000,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: b'{"messageRequestModeMap":{"T":[]}}',
            RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@g":{"x":"y"}}}',
            RequestCode.GET_ALL_DELAY_OFFSET: b"\xff\xfe",
        }.get(code, b"\x00" * 3)


@pytest.mark.parametrize("attack", ENDED, ids=lambda attack: attack.__name__)
def test_s76_a_hostile_master_costs_the_clients_of_a_slave_nothing(
    tmp_path: Path, master: MasterLog, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with HostilePort(master, attack) as ha:
            monkeypatch.setattr(Slave, "_new_master", lambda *_: LyingBroker(ha))
            config = BrokerConfig(
                listen_port=0,
                broker_role="SLAVE",
                broker_id=1,
                ha_master_address=ha.address,
                master_broker_address="127.0.0.1:1",
            )
            slave = Broker(config, MessageStoreConfig(str(tmp_path), mapped_file_size_commit_log=SEGMENT))
            await slave.start()
            client = RemotingClient()
            topics, groups = dict(slave.topics.table), dict(slave.groups.table)
            try:
                await until(lambda: ha.attacks_left == 0)
                held = log_bytes(slave.store)
                assert held == master.content[: len(held)]
                await until(lambda: slave.store.max_offset == master.end)
                assert log_bytes(slave.store) == master.content
                await asyncio.sleep(30)
                assert (slave.topics.table, slave.groups.table, slave.offsets.table) == (topics, groups, {})
                answer = await client.invoke(
                    slave.address,
                    RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T0", "queueId": "0"}),
                    5000,
                )
                assert answer.ext_fields["offset"] == "225"
            finally:
                await client.close()
                await slave.shutdown()

    run_virtual(scenario())
