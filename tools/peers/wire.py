"""A request by hand, for set-up that must not depend on the code under test: one connection, one frame each way."""

from __future__ import annotations

import json
import socket
import time

from tools.peers.packages import PeerError

GET_ROUTE = 105
SEND_MESSAGE_V2 = 310
JAVA_CLIENT_VERSION = 477  # ordinal of 5.3.3
TIMEOUT_S = 30.0


def call(address: str, code: int, ext_fields: dict[str, object], body: bytes = b"") -> dict[str, object]:
    """Send one request and return the header of its answer."""
    header = json.dumps(
        {
            "code": code,
            "opaque": 1,
            "flag": 0,
            "language": "JAVA",
            "version": JAVA_CLIENT_VERSION,
            "extFields": {key: str(value) for key, value in ext_fields.items()},
        }
    ).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        frame_bytes = 4 + len(header) + len(body)
        connection.sendall(frame_bytes.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body)
        stream = connection.makefile("rb")
        answer = stream.read(int.from_bytes(stream.read(4), "big"))
    header_bytes = int.from_bytes(answer[1:4], "big")
    decoded: dict[str, object] = json.loads(answer[4 : 4 + header_bytes])
    return decoded


def wait_for_route(namesrv: str, topic: str) -> None:
    """Return when the name server knows the topic.

    Raises:
        PeerError: it does not learn it in time.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if call(namesrv, GET_ROUTE, {"topic": topic})["code"] == 0:
            return
        time.sleep(0.05)
    raise PeerError(f"the name server knows no route of {topic} after {TIMEOUT_S:.0f} s")


def make_topic(namesrv: str, broker: str, topic: str, queues: int = 4) -> None:
    """Let the broker create a topic the way it does for any producer: by a first message, tagged ``Setup``."""
    fields = {"a": "setup", "b": topic, "c": "TBW102", "d": queues, "e": 0, "f": 0, "g": int(time.time() * 1000),
              "h": 0, "i": "TAGS\x01Setup\x02", "j": 0, "k": "false", "m": "false"}  # fmt: skip
    answer = call(broker, SEND_MESSAGE_V2, dict(fields), b"makes the topic")
    if answer["code"] != 0:
        raise PeerError(f"{topic} could not be made: {answer}")
    wait_for_route(namesrv, topic)
