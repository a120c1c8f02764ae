"""``python -m bench.spark_store DIRECTORY COUNT BODY_BYTES [keys]``: writes a store that is large enough for a scan.

No two messages have the same body, key or UNIQ_KEY. A file format that stores repeated values once would otherwise be
faster than any read of all bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.samples import HOST, STORE_TIMESTAMP_MS, SUFFIX, TOPIC, send_batch
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.protocol.frame import FrameBatch
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.store.row_run import AppendOptions, RowRun

BATCH = 1024
FIRST = 10_000_000
"""Number of the first message, so that all numbers have eight digits and all frames are equally long."""
TAGS = b"ABCDE"
MESSAGES_A_MS = 10

Bytes = npt.NDArray[np.uint8]


class Messages:
    """A batch of frames; bodies and numbers are rewritten for each batch of messages.

    Args:
        body_bytes: size of each body.
    """

    def __init__(self, body_bytes: int) -> None:
        self.batch: FrameBatch = send_batch(BATCH, body_bytes, FIRST)
        self._random = np.random.default_rng(1)
        self._frames: Bytes = np.frombuffer(self.batch.source, np.uint8).reshape(BATCH, -1)
        self._rows = np.frombuffer(self.batch.table, np.int64).reshape(-1, ROW_WIDTH)[:BATCH]
        self._body = slice(start := int(self._rows[0, FrameColumn.BODY_POS]), start + body_bytes)
        start, size = (
            int(self._rows[0, column]) for column in (FrameColumn.PROPERTIES_POS, FrameColumn.PROPERTIES_LEN)
        )
        text = bytes(self.batch.source[start : start + size])
        number = f"{FIRST}".encode()
        key = start + text.index(b"KEYS\x01key" + number) + len(b"KEYS\x01key")
        self._key = slice(key, key + len(number))
        self._tag = start + text.index(b"TAGS\x01TagA") + len(b"TAGS\x01Tag")
        unique = int(self._rows[0, FrameColumn.UNIQ_KEY_POS] + self._rows[0, FrameColumn.UNIQ_KEY_LEN])
        self._unique = slice(unique - 8, unique)

    def renew(self, first: int) -> None:
        """Turns the frames into messages with numbers from ``first`` on."""
        numbers = np.arange(FIRST + first, FIRST + first + BATCH)
        size = self._body.stop - self._body.start
        self._frames[:, self._body] = np.frombuffer(self._random.bytes(BATCH * size), np.uint8).reshape(BATCH, size)
        self._frames[:, self._key] = _digits(numbers, 10, 8)
        self._frames[:, self._unique] = _digits(numbers, 16, 8)
        self._frames[:, self._tag] = np.frombuffer(TAGS, np.uint8)[numbers % len(TAGS)]
        self._rows[:, FrameColumn.BORN_TIMESTAMP] = STORE_TIMESTAMP_MS + (numbers - FIRST) // MESSAGES_A_MS


def _digits(numbers: npt.NDArray[np.int64], base: int, width: int) -> Bytes:
    """Returns the numbers as text, one per row."""
    digits = numbers[:, None] // base ** np.arange(width - 1, -1, -1) % base
    text: Bytes = np.frombuffer(b"0123456789ABCDEF", np.uint8)[digits]
    return text


def main(directory: str, count: str, body_bytes: str, keys: str = "") -> None:
    """Writes ``count`` messages, rounded up to whole batches, and closes the store. With ``keys``, the store gets an
    index.
    """
    root = str(Path(directory) / "store")
    config = MessageStoreConfig(
        store_path_root_dir=root, flush_disk_type=FlushDiskType.ASYNC_FLUSH, message_index_enable=bool(keys)
    )
    store = MessageStore(config, Files(), SystemClock())
    store.store_host = HOST
    store.load()
    store.start()
    messages = Messages(int(body_bytes))
    batch = messages.batch
    for first in range(0, int(count), BATCH):
        messages.renew(first)
        status = store.append_rows(
            RowRun(batch.source, batch.view, batch.table, 0, BATCH), TOPIC, HOST, AppendOptions(SUFFIX)
        )
        if status is not PutMessageStatus.PUT_OK:
            raise SystemExit(f"append: {status.name}")
        store.dispatch()
    store.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
