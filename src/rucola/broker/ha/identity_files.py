"""The id of a broker in controller mode, in the files ``brokerIdentity`` and ``brokerIdentity-temp``.

Each file is replaced as a whole and synced. RocketMQ deletes it first, so that a kill between the two costs the id. A
file that cannot be read stops the start: without it, the broker would get another id, and its log another life.

Source: RocketMQ 5.3.3, ``BrokerMetadata``, ``TempBrokerMetadata``.
"""

from __future__ import annotations

from typing import Final

from rucola.broker.ha.replicas_manager import TemporaryIdentity
from rucola.errors import ConfigError
from rucola.formats.broker_identity import BrokerIdentity
from rucola.runtime.files import Files

SUFFIX: Final = "-temp"


class IdentityFiles:
    """See ``Identity``.

    Args:
        files: the file system.
        path: of ``brokerIdentity`` (``storePathBrokerIdentity``).
        cluster_name, broker_name: names of this broker.

    Raises:
        ConfigError: the files are those of a broker with other names.
        FormatError: a file cannot be read, or a name cannot be written.
        DiskError: the operating system refused an operation.
    """

    def __init__(self, files: Files, path: str, cluster_name: str, broker_name: str) -> None:
        self._files, self._path, self._names = files, path, (cluster_name, broker_name)
        BrokerIdentity(*self._names, 1)
        kept, applied = self._read(path, False), self._read(path + SUFFIX, True)
        self._broker_id = None if kept is None else kept.broker_id
        self._temporary = None if applied is None else TemporaryIdentity(applied.broker_id, applied.check_code)

    @property
    def broker_id(self) -> int | None:
        """See ``Identity``."""
        return self._broker_id

    @property
    def temporary(self) -> TemporaryIdentity | None:
        """See ``Identity``."""
        return self._temporary

    def apply(self, temporary: TemporaryIdentity) -> None:
        """See ``Identity``."""
        self._files.replace_file(self._path + SUFFIX, BrokerIdentity(*self._names, *temporary).encode())
        self._temporary = temporary

    def keep(self, broker_id: int) -> None:
        """See ``Identity``."""
        self._files.replace_file(self._path, BrokerIdentity(*self._names, broker_id).encode())
        self._broker_id = broker_id
        self.withdraw()

    def withdraw(self) -> None:
        """See ``Identity``."""
        if self._temporary is not None:
            self._files.remove(self._path + SUFFIX)
            self._temporary = None

    def _read(self, path: str, is_temporary: bool) -> BrokerIdentity | None:
        content = self._files.read_file(path)
        if content is None:
            return None
        found = BrokerIdentity.decode(content, path, is_temporary)
        for key, ours, theirs in zip(
            ("brokerClusterName", "brokerName"), self._names, (found.cluster_name, found.broker_name), strict=True
        ):
            if ours != theirs:
                raise ConfigError(key, ours, f"{theirs}, as in {path}")
        return found
