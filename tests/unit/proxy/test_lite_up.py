"""Lite topics through the gRPC port of a broker in the same process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.brokers import run_virtual
from tests.unit.proxy.doors import Door, opened
from tests.unit.proxy.lite_doors import GROUP, PARENT, LiteClient

from rucola.proxy import messages


class LiteUp:
    """A door with its broker."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def group(self, name: str = GROUP, retry_max_times: int = 16, **attributes: str) -> None:
        texts = {f"lite.{key.replace('_', '.')}": value for key, value in attributes.items()}
        self._door.group(name, retry_max_times=retry_max_times, attributes={"lite.bind.topic": PARENT} | texts)

    async def client(self, client_id: str = "c1", group: str = GROUP) -> LiteClient:
        """A client that has joined a group."""
        client = await self.stranger(client_id)
        client.stream, _ = await client.joins(group)
        return client

    async def stranger(self, client_id: str = "c1") -> LiteClient:
        client = LiteClient(client_id)
        await client.connect(self._door.door.address)
        self._door.clients.append(client)
        return client

    def bodies(self, topic: str) -> list[bytes]:
        return [body for queue in range(2) for body in self._door.bodies(topic, queue)]


@asynccontextmanager
async def lite_up(path: Path, **options: Any) -> AsyncIterator[LiteUp]:
    """A broker with lite topics, a parent and a group."""
    async with opened(path, stores={"enable_lmq": True, "enable_multi_dispatch": True}, **options) as door:
        door.topic(PARENT, kind="LITE")
        up = LiteUp(door)
        up.group()
        yield up


async def sent(client: LiteClient, lite_topic: str, *bodies: str) -> None:
    for body in bodies:
        answer = await client.sent(PARENT, body.encode(), lite_topic=lite_topic, message_type=messages.LITE)
        assert answer.status.code == messages.OK, answer


def seen(found: list[Any]) -> list[tuple[str, str, int, int]]:
    """Lite topic, body, offset and attempt of each message."""
    return [
        (system.lite_topic, one.body.decode(), system.queue_offset, system.delivery_attempt)
        for one in found
        for system in (one.system_properties,)
    ]


def test_a_session(tmp_path: Path) -> None:
    async def play() -> None:
        async with lite_up(tmp_path) as up:
            client = await up.client()
            await sent(client, "old", "before the subscription")
            assert await client.sync("PARTIAL_ADD", "old", "new") == messages.OK
            first = await client.gets()
            assert seen(first) == [("old", "before the subscription", 0, 1)]
            poll = client.receive(GROUP, PARENT, auto_renew=True)
            await asyncio.sleep(0.5)
            await sent(client, "new", "hello", "again")
            status, *found, _ = await poll.all()
            assert status.status.code == messages.OK
            got = [one.message for one in found]
            if len(got) == 1:  # the poll was answered before the second one came
                assert (await client.ack(GROUP, PARENT, *got)).status.code == messages.OK
                got += await client.gets()
            assert seen(got) == [("new", "hello", 0, 1), ("new", "again", 1, 1)]
            assert (await client.ack(GROUP, PARENT, *first, *got[1:])).status.code == messages.OK
            assert await client.sync("PARTIAL_REMOVE", "new") == messages.OK
            await sent(client, "new", "while nobody listens")
            status, *_ = await client.receive(GROUP, PARENT, auto_renew=True).all()
            assert status.status.code == messages.MESSAGE_NOT_FOUND
            await client.sync("PARTIAL_ADD", "new")
            assert [one[1] for one in seen(await client.gets())][-1] == "while nobody listens"

    run_virtual(play())


def test_failures_suspension_and_dead_letters(tmp_path: Path) -> None:
    async def play() -> None:
        async with lite_up(tmp_path) as up:
            up.group(retry_max_times=1)
            client = await up.client()
            await client.sync("PARTIAL_ADD", "x")
            await sent(client, "x", "fails")
            for attempt, suspend in ((1, True), (1, True), (1, False)):
                (one,) = await client.gets()
                assert one.system_properties.delivery_attempt == attempt
                assert (await client.changes(one, 1, suspend=suspend)).status.code == messages.OK
            (one,) = await client.gets()
            assert one.system_properties.delivery_attempt == 2
            await client.changes(one, 1)
            await sent(client, "x", "behind it")
            assert seen(await client.gets()) == [("x", "behind it", 1, 1)], "the next poll gives it up"
            assert up.bodies(f"%DLQ%{GROUP}") == [b"fails"]

    run_virtual(play())


def test_a_lost_connection(tmp_path: Path) -> None:
    async def play() -> None:
        async with lite_up(tmp_path) as up:
            client, other = await up.client("c1"), await up.stranger("c2")
            await client.sync("COMPLETE_ADD", "x")
            poll = client.receive(GROUP, PARENT, auto_renew=True)
            await asyncio.sleep(0.5)
            client.close()
            assert not [one for one in await poll.all() if one.HasField("message")]
            await sent(other, "x", "meanwhile")
            again = await up.client("c1")
            assert seen(await again.gets()) == [("x", "meanwhile", 0, 1)], "at once, and it is the first attempt"

    run_virtual(play())


def test_clients_that_share_and_one_that_ends(tmp_path: Path) -> None:
    async def play() -> None:
        async with lite_up(tmp_path) as up:
            first, second = await up.client("c1"), await up.client("c2")
            names = [f"n{number}" for number in range(40)]
            for client in (first, second):
                assert await client.sync("COMPLETE_ADD", *names) == messages.OK
            for name in names:
                await sent(first, name, name)
            got: Counter[str] = Counter()
            held = await first.gets(batch_size=8)
            request = messages.NotifyClientTerminationRequest(group=messages.Resource(name=GROUP))
            assert (await first.call("NotifyClientTermination", request)).status.code == messages.OK
            while len(got) < len(names):
                found = await second.gets()
                got.update(one.body.decode() for one in found)
                await second.ack(GROUP, PARENT, *found)
            assert set(got) == set(names) and set(got.values()) == {1}, (
                "also what the first had and did not acknowledge"
            )
            assert len(held) == 8

    run_virtual(play())


def test_exclusive_wars(tmp_path: Path) -> None:
    """Two clients take a lite topic from each other all the time: the last one has it, and others are served on."""

    async def play() -> None:
        async with lite_up(tmp_path) as up:
            up.group("owner", sub_model="Exclusive")
            first, second = await up.client("c1", "owner"), await up.client("c2", "owner")
            other = await up.client("c3")
            await other.sync("PARTIAL_ADD", "calm")
            for _ in range(20):
                for client in (first, second):
                    assert await client.sync("PARTIAL_ADD", "war", group="owner") == messages.OK
            await sent(other, "war", "to the winner")
            await sent(other, "calm", "to another group")
            assert seen(await other.gets()) == [("calm", "to another group", 0, 1)]
            assert seen(await second.gets("owner")) == [("war", "to the winner", 0, 1)]
            for client, losses in ((first, 20), (second, 19)):
                told = [await client.stream.next() for _ in range(losses)]
                assert {one.notify_unsubscribe_lite_command.lite_topic for one in told} == {"war"}
                assert client.stream.is_empty()
            assert await first.sync("COMPLETE_ADD", "war", group="owner") == messages.OK
            await sent(other, "war", "still to the winner")
            status, *_ = await first.receive("owner", PARENT, auto_renew=True).all()
            assert status.status.code == messages.MESSAGE_NOT_FOUND

    run_virtual(play())


def test_clients_that_lie(tmp_path: Path) -> None:
    """Attempts, handles and lite topics that were never given change nothing for others."""

    async def play() -> None:
        async with lite_up(tmp_path) as up:
            client, liar = await up.client("c1"), await up.client("liar")
            await client.sync("PARTIAL_ADD", "x")
            await sent(client, "x", "one", "two")
            found = await client.gets(attempt_id="a")
            handle = found[0].system_properties.receipt_handle
            for lie in (
                handle.replace(" 0 ", " 7 ", 1),
                " ".join([*handle.split(" ")[:7], "9", "0", "x"]),
                handle.removesuffix("x") + "y",
                handle.removesuffix(" x"),
            ):
                entry = messages.AckMessageEntry(message_id="m", receipt_handle=lie, lite_topic="y")
                request = messages.AckMessageRequest(
                    group=messages.Resource(name=GROUP), topic=messages.Resource(name=PARENT), entries=[entry]
                )
                await liar.call("AckMessage", request)
            await liar.sync("PARTIAL_ADD", "x")
            poll = liar.receive(GROUP, PARENT, auto_renew=True, attempt_id="a")
            status, *_ = await poll.all()
            assert status.status.code == messages.MESSAGE_NOT_FOUND, "the attempt of another client"
            codes = (await client.ack(GROUP, PARENT, *found)).status.code
            assert codes == messages.OK
            await sent(client, "x", "three")
            got = await client.gets() if await client.sync("COMPLETE_ADD", "x") == messages.OK else []
            got = got or await liar.gets()
            assert seen(got) == [("x", "three", 2, 1)]

    run_virtual(play())


def test_subscriptions_that_never_poll(tmp_path: Path) -> None:
    """Their lite topics go to clients that poll, within the time after which a silent client loses them."""

    async def play() -> None:
        async with lite_up(tmp_path) as up:
            client, sender = await up.client("c1"), await up.stranger("sender")
            names = [f"n{number}" for number in range(20)]
            for number in range(5):
                idle = await up.client(f"idle{number}")
                assert await idle.sync("COMPLETE_ADD", *names) == messages.OK
            assert await client.sync("COMPLETE_ADD", *names) == messages.OK
            for name in names:
                await sent(sender, name, name)
            got: Counter[str] = Counter()
            polls = 0
            while len(got) < len(names):
                polls += 1
                assert polls < 12, "each poll waits 20 s"
                found = await client.receive(GROUP, PARENT, auto_renew=True).all()
                taken = [one.message for one in found if one.HasField("message")]
                got.update(one.body.decode() for one in taken)
                await client.ack(GROUP, PARENT, *taken)
            assert set(got.values()) == {1}

    run_virtual(play())
