"""A connection whose other end takes what comes and throws it away."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread


@contextmanager
def connection() -> Iterator[socket.socket]:
    """A connection over loopback; a thread takes what comes and throws it away."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        out = socket.create_connection(server.getsockname())
        taken, _ = server.accept()
    thread = Thread(target=drain, args=(taken,))
    thread.start()
    try:
        yield out
    finally:
        out.close()
        thread.join()


def drain(taken: socket.socket) -> None:
    """Until the other end closes."""
    buffer = bytearray(1 << 20)
    with taken:
        while taken.recv_into(buffer):
            pass
