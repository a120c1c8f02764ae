"""All kinds of requests wait for the disk in the same way: each response is sent when the data is on the disk, and no
response is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.brokers import Cluster, properties_text, run
from tests.unit.broker.test_disk_trouble import Disk, until
from tests.unit.broker.test_pop import CHANGE, FIELDS, ack, pop, receipt

from rucola.common.sysflag import MessageSysFlag
from rucola.protocol.command import FLAG_ONEWAY, RemotingCommand
from rucola.protocol.headers.transaction import EndTransactionRequestHeader

SUCCESS, FLUSH_DISK_TIMEOUT = 0, 10
Ask = Callable[[], Awaitable[RemotingCommand]]


async def recall(cluster: Cluster) -> Ask:
    sent = await cluster.send("T", b"later", properties_text(UNIQ_KEY="K", TIMER_DELAY_SEC="3600"))
    fields = {"topic": "T", "recallHandle": sent.ext_fields["recallHandle"], "producerGroup": "pg"}
    return lambda: cluster.ask(370, fields)


async def ended(cluster: Cluster, outcome: int) -> Ask:
    text = properties_text(UNIQ_KEY="K", TRAN_MSG="true", PGROUP="pg")
    sent = await cluster.send("T", b"half", text, sys_flag=int(MessageSysFlag.TRANSACTION_PREPARED))
    physical_offset = int(sent.ext_fields["msgId"][-16:], 16)
    header = EndTransactionRequestHeader(
        "pg", int(sent.ext_fields["queueOffset"]), physical_offset, outcome, False, "K", "K"
    )
    return lambda: cluster.ask(37, header.to_ext_fields())


async def committed(cluster: Cluster) -> Ask:
    return await ended(cluster, int(MessageSysFlag.TRANSACTION_COMMIT))


async def rolled_back(cluster: Cluster) -> Ask:
    return await ended(cluster, int(MessageSysFlag.TRANSACTION_ROLLBACK))


async def acknowledged(cluster: Cluster) -> Ask:
    await cluster.send("T", b"0")
    answer = await pop(cluster)
    return lambda: ack(cluster, answer, 0)


async def hidden(cluster: Cluster) -> Ask:
    await cluster.send("T", b"0")
    answer = await pop(cluster)
    changes = {"offset": "0", "extraInfo": receipt(answer, 0), "invisibleTime": "9000"}
    return lambda: cluster.ask(CHANGE, FIELDS | changes)


async def sent(cluster: Cluster) -> Ask:
    return lambda: cluster.send("T", b"1")


KINDS = [sent, recall, committed, rolled_back, acknowledged, hidden]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_kept_with_the_others_and_answered_with_the_sync(
    tmp_path: Path, kind: Callable[[Cluster], Awaitable[Ask]]
) -> None:
    async def scene() -> None:
        disk = Disk()
        async with Cluster(tmp_path, sync_flush=True, files=disk.files(), recall_message_enable=True) as cluster:
            await cluster.send("T", b"0")
            ask = await kind(cluster)
            with disk.waiting():
                asked = asyncio.ensure_future(ask())
                await until(lambda: cluster.broker.sends_waiting == 1)
                assert not asked.done()
                disk.gate.set()
                assert (await asked).code == SUCCESS

    run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_answered_also_when_the_disk_takes_too_long(
    tmp_path: Path, kind: Callable[[Cluster], Awaitable[Ask]]
) -> None:
    async def scene() -> None:
        disk = Disk()
        options = {"sync_flush_timeout_ms": 200, "recall_message_enable": True}
        async with Cluster(tmp_path, sync_flush=True, files=disk.files(), **options) as cluster:
            await cluster.send("T", b"0")
            ask = await kind(cluster)
            with disk.waiting():
                late = await ask()
                assert (late.code, "flush" in (late.remark or "")) == (FLUSH_DISK_TIMEOUT, True)

    run(scene())


def test_oneway_requests_get_no_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = Disk()
        async with Cluster(tmp_path, sync_flush=True, files=disk.files()) as cluster:
            text = properties_text(UNIQ_KEY="K", TRAN_MSG="true", PGROUP="pg")
            sent = await cluster.send("T", b"half", text, sys_flag=int(MessageSysFlag.TRANSACTION_PREPARED))
            physical_offset, commit = int(sent.ext_fields["msgId"][-16:], 16), int(MessageSysFlag.TRANSACTION_COMMIT)
            header = EndTransactionRequestHeader(
                "pg", int(sent.ext_fields["queueOffset"]), physical_offset, commit, False, "K", "K"
            )
            raw = await cluster.connect()
            with disk.waiting():
                raw.send(RemotingCommand(37, ext_fields=header.to_ext_fields()), opaque=1, flag=FLAG_ONEWAY)
                raw.send(RemotingCommand(30, ext_fields={"topic": "T", "queueId": "0"}), opaque=2)
                assert (await raw.receive()).opaque == 2
                assert cluster.broker.sends_waiting == 0
            raw.send(RemotingCommand(30, ext_fields={"topic": "T", "queueId": "0"}), opaque=3)
            assert (await raw.receive()).opaque == 3
            raw.close()

    run(scene())
