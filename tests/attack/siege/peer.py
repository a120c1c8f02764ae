"""Building blocks of attackers: raw connections, endless frames, and a list of the attacks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.attack.guarded import ALICE, signed
from tests.attack.siege.target import Addresses

from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.headers.send import SendMessageRequestHeaderV2

_BATCH_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    Attributes:
        run: function that attacks until it is cancelled or has sent all its requests.
        guarded: whether the broker has accounts.
        group: the attacked part of the servers; a heading in the list.
    """

    name: str
    about: str
    run: Callable[[Addresses], Awaitable[None]]
    guarded: bool
    group: str


ATTACKS: dict[str, Attack] = {}


def attack(
    group: str, about: str, guarded: bool = False
) -> Callable[[Callable[[Addresses], Awaitable[None]]], Callable[[Addresses], Awaitable[None]]]:
    """Adds the decorated function to ``ATTACKS``, under its name with ``-`` in place of ``_``."""

    def enter(run: Callable[[Addresses], Awaitable[None]]) -> Callable[[Addresses], Awaitable[None]]:
        name = run.__name__.replace("_", "-")
        assert name not in ATTACKS
        ATTACKS[name] = Attack(name, about, run, guarded, group)
        return run

    return enter


class Peer:
    """A connection that can send any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._taking: asyncio.Task[None] | None = None

    @classmethod
    async def to(cls, address: str) -> Peer:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def take_answers(self) -> None:
        """Reads and discards all bytes that arrive from now on."""
        self._taking = asyncio.create_task(self._take())

    async def _take(self) -> None:
        with contextlib.suppress(OSError):
            while await self._reader.read(1 << 18):
                pass

    async def put(self, data: bytes) -> None:
        """Sends bytes; waits while the server does not read."""
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Sends a request and returns the next frame as the response; not to be combined with ``take_answers``."""
        await self.put(command.encode())
        head = await self._reader.readexactly(4)
        return decode_frame(head + await self._reader.readexactly(int.from_bytes(head, "big")))

    def close(self) -> None:
        self.writer.close()


async def storm(address: str, frames: Iterable[bytes], connections: int = 4, take: bool = True) -> None:
    """Sends ``frames`` over several connections as fast as they are read; reopens connections that are closed."""
    source = iter(frames)

    async def one() -> None:
        while True:
            try:
                peer = await Peer.to(address)
                if take:
                    peer.take_answers()
                while (batch := _batch(source)) is not None:
                    await peer.put(batch)
                if not take:
                    await asyncio.sleep(3600)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                return

    await asyncio.gather(*(one() for _ in range(connections)))


def _batch(source: Iterator[bytes]) -> bytes | None:
    parts, size = [], 0
    for frame in source:
        parts.append(frame)
        size += len(frame)
        if size >= _BATCH_BYTES:
            break
    return b"".join(parts) or None


def request(code: int, body: bytes = b"", /, **fields: object) -> bytes:
    """Encodes a request as a frame."""
    return RemotingCommand(code, ext_fields=_texts(fields), body=body).encode()


def request_of_alice(code: int, body: bytes = b"", /, **fields: object) -> bytes:
    """Encodes a request as a frame, signed by the account that may publish and consume topic A."""
    return signed(RemotingCommand(code, ext_fields=_texts(fields), body=body), ALICE).encode()


def _texts(fields: dict[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}


def send_request(
    topic: str,
    body: bytes = b"x",
    properties: str = "",
    queue_id: int = 0,
    *,
    sys_flag: int = 0,
    batch: bool = False,
    oneway: bool = False,
) -> bytes:
    """Encodes a send as a frame. ``batch`` means request 320 (SEND_BATCH_MESSAGE); ``oneway`` asks for no response."""
    born_ms = 1_700_000_000_000
    header = SendMessageRequestHeaderV2(
        "pg", topic, "TBW102", 4, queue_id, sys_flag, born_ms, 0, properties, batch=batch
    )
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    flag = 2 if oneway else 0
    return RemotingCommand(code, flag=flag, ext_fields=header.to_ext_fields(), body=body).encode()


def properties(**values: object) -> str:
    """Encodes the properties of a message as they go over the wire."""
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())
