"""Acknowledgements through the door beside a broker: which need no request, and that the others get an answer, too."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run
from tests.unit.proxy.doors import Door, DoorClient, opened

from rucola.formats.pop import PopAck
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.proxy import messages
from rucola.proxy.local import LocalLink


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The codes of what the door has asked the broker for."""
    codes: list[int] = []
    request = LocalLink.request

    def noting(link: LocalLink, command: RemotingCommand, *rest: Any) -> int:
        codes.append(command.code)
        return request(link, command, *rest)

    monkeypatch.setattr(LocalLink, "request", noting)
    yield codes


async def popped(door: Door, count: int) -> tuple[DoorClient, list[Any]]:
    """A client, and the messages that it has received."""
    door.topic("T", queues=1)
    for number in range(count):
        door.put("T", b"%d" % number)
    client = await door.client()
    await client.consumes("G", "T")
    found = await client.received("G", "T", invisible_duration={"seconds": 30})
    assert len(found) == count
    return client, found


async def acked(client: DoorClient, *found: Any) -> int:
    """The status of an acknowledgement."""
    response = await client.ack("G", "T", *found)
    assert all(entry.status.code == response.status.code for entry in response.entries)
    code: int = response.status.code
    return code


def test_an_acknowledgement_needs_no_request_and_outlives_the_process(tmp_path: Path, requests: list[int]) -> None:
    async def play() -> None:
        async with opened(tmp_path / "store") as door:
            client, found = await popped(door, 3)
            for message in found[:2]:
                assert await acked(client, message) == messages.OK
            assert RequestCode.ACK_MESSAGE not in requests
            shutil.copytree(tmp_path / "store", tmp_path / "killed")
        async with opened(tmp_path / "killed") as door:
            door.topic("T", queues=1)
            pops: Any = door.broker.services.pops.get()
            door.broker.store.dispatch()
            records = [record for record in pops._log.newest(0) if isinstance(record, PopAck)]
            # Half a second may have passed between the two.
            assert {offset for record in records for offset in record.queue_offsets} == {0, 1}

    run(play())


async def hold_turn(_door: Door, link: LocalLink, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(link.memory.channel), "is_turn_over", lambda _: True)


async def pause(_door: Door, link: LocalLink, _patch: pytest.MonkeyPatch) -> None:
    inbound = link.memory.channel.inbound
    inbound.pause_writing()
    asyncio.get_running_loop().call_later(0.05, inbound.resume_writing)


async def take_queue(door: Door, _link: LocalLink, _patch: pytest.MonkeyPatch) -> None:
    door.topic("T", queues=1, read=0)


async def make_anew(door: Door, _link: LocalLink, _patch: pytest.MonkeyPatch) -> None:
    store = door.broker.store
    store._deletion.times_ms[b"T"] = store.now_ms() + 1  # as if the topic had been deleted and created again


async def nothing(_door: Door, _link: LocalLink, _patch: pytest.MonkeyPatch) -> None:
    """Nothing happens."""


@pytest.mark.parametrize(
    ("happens", "sync_flush", "code"),
    [
        (nothing, True, messages.OK),
        (hold_turn, False, messages.OK),
        (pause, False, messages.OK),
        (take_queue, False, messages.INTERNAL_SERVER_ERROR),
        (make_anew, False, messages.INTERNAL_SERVER_ERROR),
    ],
)
def test_others_need_one(
    tmp_path: Path,
    requests: list[int],
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[Door, LocalLink, pytest.MonkeyPatch], Awaitable[None]],
    sync_flush: bool,
    code: int,
) -> None:
    async def play() -> None:
        async with opened(tmp_path, sync_flush=sync_flush) as door:
            client, found = await popped(door, 1)
            (link,) = [link for session in door.door.sessions for link in session.links.values()]
            assert isinstance(link, LocalLink)
            await happens(door, link, monkeypatch)
            assert await acked(client, found[0]) == code
            assert requests.count(RequestCode.ACK_MESSAGE) == 1

    run(play())


def test_a_place_that_no_pop_gave_is_refused(tmp_path: Path, requests: list[int]) -> None:
    async def play() -> None:
        async with opened(tmp_path) as door:
            client, (message,) = await popped(door, 1)
            handle = message.system_properties.receipt_handle.split(" ")
            handle[7] = "5"
            message.system_properties.receipt_handle = " ".join(handle)
            assert await acked(client, message) == messages.INTERNAL_SERVER_ERROR
            assert requests.count(RequestCode.ACK_MESSAGE) == 1

    run(play())
