"""A connection whose other end reads and discards everything."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread


@contextmanager
def connection() -> Iterator[socket.socket]:
    """Yields a loopback connection; a thread reads and discards what arrives."""
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
    """Reads and discards until the other end closes."""
    buffer = bytearray(1 << 20)
    with taken:
        while taken.recv_into(buffer):
            pass
