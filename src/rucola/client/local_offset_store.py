"""The offset file of a broadcasting consumer: every client reads all messages, so each keeps its own offsets.

The file is RocketMQ's: ``<directory>/<client id>/<group>/offsets.json``, with the previous content in
``offsets.json.bak``. The file equals fastjson's pretty output byte for byte. RocketMQ's clients and Rucola's can
continue from each other's file.

The new content is written to a temporary file and synced. Then the old file becomes the backup, and the temporary file
gets the name of the old file. So a crash leaves the old or the new content in ``offsets.json``, or no ``offsets.json``
and the old content in the backup. Methods block on the disk; code on an event loop must run them in a thread.

Source: protocol.md 4.9; RocketMQ 5.3.3, LocalFileOffsetStore, OffsetSerializeWrapper. Unlike in RocketMQ, a damaged
file without a valid backup is an error, not a fresh start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, FormatError
from rucola.formats.config_json import dumps_pretty
from rucola.protocol.bodies.offsets import ResetOffsetBody
from rucola.runtime.files import Files
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

DIRECTORY = ".rocketmq_offsets"
"""Default directory for the offset files, in the home directory."""


class LocalFileOffsetStore:
    """The offset file of one group on one client.

    Args:
        files: file operations.
        directory: parent directory of the clients' directories; empty for ``DIRECTORY`` in the home directory.
        client_id: id of the consumer.
        group: group of the consumer.

    Raises:
        ConfigError: the client id cannot be a directory name.
    """

    def __init__(self, files: Files, directory: str, client_id: str, group: str) -> None:
        if "/" in client_id or "\\" in client_id or "\0" in client_id or client_id in (".", ".."):
            raise ConfigError("instanceName", client_id, "a client id that can be a directory name", "instance_name")
        self._files = files
        home = directory or files.expand(f"~/{DIRECTORY}")
        self._folder = f"{home}/{client_id}/{group}"
        self.path = f"{self._folder}/offsets.json"
        self._turn = threading.Lock()
        self._unread = False
        """Whether the file is damaged; a damaged file never replaces a valid backup."""

    def load(self) -> dict[MessageQueue, int]:
        """All stored offsets; empty for a new client.

        Raises:
            FormatError: the file is damaged, and there is no valid backup.
            DiskError: the file cannot be read.
        """
        with self._turn:
            return self._load()

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Stores the offsets of these queues. The stored offsets of other queues stay, even if they come from other
        processes with the same client id.

        Raises:
            FormatError: as for ``load``.
            DiskError: the file cannot be written; the old offsets remain.
        """
        with self._turn:
            table = self._load() | dict(offsets)
            self._files.make_directory(self._folder)
            self._files.replace_file(self.path, encode_offsets(table), "" if self._unread else self.path + ".bak")

    def _load(self) -> dict[MessageQueue, int]:
        self._unread = False
        failure: FormatError | None = None
        for path in (self.path, self.path + ".bak"):
            content = self._files.read_file(path)
            if not content:  # a killed RocketMQ client can leave an empty file
                self._unread |= content is not None and path == self.path
                continue
            try:
                return decode_offsets(content, path)
            except FormatError as error:
                failure = failure or error
                self._unread |= path == self.path
                event(logger, logging.ERROR, "offset file cannot be read", path=path, error=error)
        if failure is not None:
            raise failure
        return {}


def encode_offsets(table: Mapping[MessageQueue, int]) -> bytes:
    """Encodes ``table`` as the content of the offset file."""
    if not table:
        return b'{\n\t"offsetTable":{}\n}'
    members = [
        b'{\n\t\t\t"brokerName":%b,\n\t\t\t"queueId":%d,\n\t\t\t"topic":%b\n\t\t}:%d'
        % (dumps_pretty(queue.broker_name), queue.queue_id, dumps_pretty(queue.topic), table[queue])
        for queue in sorted(table)
    ]
    return b'{\n\t"offsetTable":{' + b",".join(members) + b"\n\t}\n}"


def decode_offsets(content: bytes, what: str) -> dict[MessageQueue, int]:
    """Decodes the output of ``encode_offsets``; ``what`` names the content in error messages.

    Raises:
        FormatError: the content is invalid.
    """
    try:
        table = ResetOffsetBody.decode(content).offset_table
    except FormatError as error:
        raise FormatError(what, error.position, "offsets by queue", str(error)[:200]) from error
    return {queue: offset for queue, offset in table.items() if offset >= 0}
