"""Progress of a broadcasting consumer: every client reads everything, so each keeps its own, in a file of its machine.

The file is RocketMQ's: ``<directory>/<client id>/<group>/offsets.json``, what was there before in ``offsets.json.bak``,
the bytes those of fastjson's pretty format. Official clients go on from it, and we from theirs.

It is replaced whole, and synced before it takes its place: after a crash there is the old content or the new one.
Methods wait for the disk; whoever has an event loop calls them from other threads.

Source: protocol.md 4.9; RocketMQ 5.3.3, LocalFileOffsetStore, OffsetSerializeWrapper. Different from there: a damaged
file without a good spare is an error and no fresh start.
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
"""In the home directory, unless configured."""


class LocalFileOffsetStore:
    """Progress of one group on one client.

    Args:
        files: the disk.
        directory: where clients have their folders; empty for ``DIRECTORY`` in the home directory.
        client_id: of the consumer.
        group: of the consumer.

    Raises:
        ConfigError: the client id cannot be the name of a folder.
    """

    def __init__(self, files: Files, directory: str, client_id: str, group: str) -> None:
        if "/" in client_id or "\\" in client_id or "\0" in client_id or client_id in (".", ".."):
            raise ConfigError("instanceName", client_id, "a client id that can be the name of a folder")
        self._files = files
        home = directory or files.expand(f"~/{DIRECTORY}")
        self._folder = f"{home}/{client_id}/{group}"
        self.path = f"{self._folder}/offsets.json"
        self._turn = threading.Lock()
        self._unread = False
        """The file is damaged: it never takes the place of a spare that reads."""

    def load(self) -> dict[MessageQueue, int]:
        """All progress there is; nothing for a client that is new.

        Raises:
            FormatError: the file is damaged, and there is no spare that reads.
            DiskError: it cannot be read.
        """
        with self._turn:
            return self._load()

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Set the progress of these queues; that of others, also of other processes with this client id, stays.

        Raises:
            FormatError: see ``load``.
            DiskError: it cannot be written; the old progress stays.
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
            if not content:  # RocketMQ's clients can leave an empty file behind when they are killed
                self._unread |= content is not None and path == self.path
                continue
            try:
                return decode_offsets(content, path)
            except FormatError as error:
                failure = failure or error
                self._unread |= path == self.path
                event(logger, logging.ERROR, "progress cannot be read", path=path, error=error)
        if failure is not None:
            raise failure
        return {}


def encode_offsets(table: Mapping[MessageQueue, int]) -> bytes:
    """The content of the file."""
    if not table:
        return b'{\n\t"offsetTable":{}\n}'
    members = [
        b'{\n\t\t\t"brokerName":%b,\n\t\t\t"queueId":%d,\n\t\t\t"topic":%b\n\t\t}:%d'
        % (dumps_pretty(queue.broker_name), queue.queue_id, dumps_pretty(queue.topic), table[queue])
        for queue in sorted(table)
    ]
    return b'{\n\t"offsetTable":{' + b",".join(members) + b"\n\t}\n}"


def decode_offsets(content: bytes, what: str) -> dict[MessageQueue, int]:
    """What ``encode_offsets`` was given; ``what`` stands in the error.

    Raises:
        FormatError: it is no such content.
    """
    try:
        table = ResetOffsetBody.decode(content).offset_table
    except FormatError as error:
        raise FormatError(what, error.position, "offsets by queue", str(error)[:200]) from error
    return {queue: offset for queue, offset in table.items() if offset >= 0}
