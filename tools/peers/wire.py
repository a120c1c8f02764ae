"""Requests made by hand, for preparations that must not depend on the tested code: one connection, one frame in each
direction.
"""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any, Self

from tools.peers.packages import PeerError

GET_ROUTE = 105
SEND_MESSAGE_V2 = 310
JAVA_CLIENT_VERSION = 477  # ordinal of 5.3.3
IS_ANSWER = 1
TIMEOUT_S = 30.0


class Link:
    """One connection; use it with ``with``. Requests that the server sends are returned by ``asked``."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._asked: list[dict[str, Any]] = []
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()

    def request(self, code: int, ext_fields: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
        """Sends one request and returns the header of the response."""
        self._opaque += 1
        header = json.dumps(
            {
                "code": code,
                "opaque": self._opaque,
                "flag": 0,
                "language": "JAVA",
                "version": JAVA_CLIENT_VERSION,
                "extFields": {key: str(value) for key, value in ext_fields.items()},
            }
        ).encode()
        frame_bytes = 4 + len(header) + len(body)
        self._connection.sendall(frame_bytes.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body)
        while True:
            answer = self._receive()
            if answer["flag"] & IS_ANSWER and answer["opaque"] == self._opaque:
                return answer
            self._asked.append(answer)

    def asked(self, seconds: float) -> list[dict[str, Any]]:
        """Headers of requests that the server has sent since the last call, or sends within ``seconds``."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._connection], [], [], left)[0]:
                self._asked.append(self._receive())
        found, self._asked = self._asked, []
        return [header for header in found if not header["flag"] & IS_ANSWER]

    def _receive(self) -> dict[str, Any]:
        frame = self._read(int.from_bytes(self._read(4), "big"))
        header_bytes = int.from_bytes(frame[1:4], "big")
        decoded: dict[str, Any] = json.loads(frame[4 : 4 + header_bytes])
        return decoded

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._connection.recv(size - len(data))
            if not piece:
                raise PeerError("a server closed the connection")
            data += piece
        return data


def call(address: str, code: int, ext_fields: dict[str, object], body: bytes = b"") -> dict[str, Any]:
    """Sends one request over a connection of its own and returns the header of the response."""
    with Link(address) as link:
        return link.request(code, ext_fields, body)


def wait_for_route(namesrv: str, topic: str, seconds: float = TIMEOUT_S) -> None:
    """Returns when the name server knows the topic.

    Args:
        namesrv: its ``host:port``.
        topic: the topic.
        seconds: how long to wait.

    Raises:
        PeerError: the name server does not learn it in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if call(namesrv, GET_ROUTE, {"topic": topic})["code"] == 0:
            return
        time.sleep(0.05)
    raise PeerError(f"the name server knows no route of {topic} after {seconds:.0f} s")


def make_topic(namesrv: str, broker: str, topic: str, queues: int = 4) -> None:
    """Makes the broker create a topic as for any producer: sends it a first message, tagged ``Setup``."""
    fields = {"a": "setup", "b": topic, "c": "TBW102", "d": queues, "e": 0, "f": 0, "g": int(time.time() * 1000),
              "h": 0, "i": "TAGS\x01Setup\x02", "j": 0, "k": "false", "m": "false"}  # fmt: skip
    answer = call(broker, SEND_MESSAGE_V2, dict(fields), b"makes the topic")
    if answer["code"] != 0:
        raise PeerError(f"topic {topic} could not be created: {answer}")
    wait_for_route(namesrv, topic)
