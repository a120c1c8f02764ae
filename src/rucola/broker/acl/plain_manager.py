"""The accounts of a broker: loaded from ACL files, reloaded when they change, and changed by administrators.

The files are ``conf/plain_acl.yml`` and every ``*.yml`` and ``*.yaml`` in the directory ``conf/acl``.
``watched_accounts`` says when they are read. Administrators' changes run on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from rucola.broker.acl.address_strategy import parse_addresses
from rucola.broker.acl.permission import AclSnapshot, Sender
from rucola.broker.acl.plain_file import (
    check_pattern,
    read_accounts,
    read_document,
    read_global_addresses,
    write_document,
)
from rucola.broker.acl.watched_accounts import WatchedAccounts, digest_of
from rucola.common.json_library import orjson
from rucola.errors import BrokerError, DiskError, FormatError
from rucola.runtime.files import Files
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

UPDATE_FAILED = 209
DELETE_FAILED = 210
GLOBAL_UPDATE_FAILED = 211
"""RocketMQ up to 5.3.2 answers a failed change with these three codes. The same numbers also stand for POLLING_FULL,
POLLING_TIMEOUT and BROKER_NOT_EXIST.
"""

_LIST_KEYS = ("topicPerms", "groupPerms")


class PlainPermissionManager(WatchedAccounts):
    """Accounts of one broker.

    Args:
        files: access to the disk.
        home: absolute path of the directory that contains ``conf``.
        weak_secrets: accept secrets that are easy to guess (``insecure=true``).
        wall_ms: returns the wall-clock time, which becomes the timestamp in the data version of a changed file.
    """

    def __init__(self, files: Files, home: str, weak_secrets: bool, wall_ms: Callable[[], int]) -> None:
        super().__init__()
        self._files = files
        self._main = f"{home}/conf/plain_acl.yml"
        self._directory = f"{home}/conf/acl"
        self._weak_secrets = weak_secrets
        self._wall_ms = wall_ms

    def versions(self) -> dict[str, dict[str, Any]]:
        """The data version of every file, by its path relative to the parent of ``conf``."""
        found = {}
        for path, text in self._read().items():
            entries = read_document(text, path).get("dataVersion") or [{}]
            entry = entries[0] if isinstance(entries, list) and isinstance(entries[0], dict) else {}
            counter, timestamp = str(entry.get("counter", "0")), str(entry.get("timestamp", "0"))
            found[path] = {
                "counter": int(counter) if counter.isdigit() else 0,
                "stateVersion": 0,
                "timestamp": int(timestamp) if timestamp.isdigit() else 0,
            }
        return found

    def main_version(self) -> str:
        """The data version of ``plain_acl.yml`` as JSON."""
        return orjson.dumps(self.versions().get(self._main, {"counter": 0, "stateVersion": 0, "timestamp": 0})).decode()

    # -- changes by administrators -------------------------------------------------------------------------------------

    def update_account(self, change: Mapping[str, Any]) -> None:
        """Creates an account, or changes the given keys of an existing one.

        Args:
            change: new values by the keys of an account in the file; ``topicPerms`` and ``groupPerms`` are lists.

        Raises:
            BrokerError: the result would be invalid, or the files cannot be changed; nothing was changed.
        """
        name = str(change.get("accessKey", ""))

        def edit(document: dict[str, Any]) -> bool:
            accounts = document.setdefault("accounts", []) or []
            document["accounts"] = accounts
            for account in accounts:
                if account.get("accessKey") == name:
                    account.update(change)
                    return True
            return False

        with self._lock:
            texts = self._read_good(UPDATE_FAILED)
            path, document = self._find(texts, edit)
            if document is None:
                path = self._main
                document = read_document(texts.get(path, b""), path)
                document["accounts"] = [*(document.get("accounts") or []), dict(change)]
            self._replace(texts, path, document, UPDATE_FAILED)

    def delete_account(self, name: str) -> None:
        """Removes an account.

        Raises:
            BrokerError: there is no such account, or the files cannot be changed; nothing was changed.
        """

        def edit(document: dict[str, Any]) -> bool:
            accounts = document.get("accounts") or []
            kept = [account for account in accounts if account.get("accessKey") != name]
            document["accounts"] = kept
            return len(kept) < len(accounts)

        with self._lock:
            texts = self._read_good(DELETE_FAILED)
            path, document = self._find(texts, edit)
            if document is None:
                raise BrokerError(DELETE_FAILED, "no such account")
            self._replace(texts, path, document, DELETE_FAILED)

    def set_global_addresses(self, patterns: list[str]) -> None:
        """Replaces the global address list of ``plain_acl.yml``.

        Raises:
            BrokerError: a pattern is invalid, or the files cannot be changed; nothing was changed.
        """
        with self._lock:
            texts = self._read_good(GLOBAL_UPDATE_FAILED)
            document = read_document(texts.get(self._main, b""), self._main)
            document["globalWhiteRemoteAddresses"] = patterns
            try:
                for pattern in patterns:
                    check_pattern(pattern, self._main)
            except FormatError as error:
                raise BrokerError(GLOBAL_UPDATE_FAILED, f"{error.expected} is needed") from None
            self._replace(texts, self._main, document, GLOBAL_UPDATE_FAILED)

    def _find(
        self, texts: Mapping[str, bytes], edit: Callable[[dict[str, Any]], bool]
    ) -> tuple[str, dict[str, Any] | None]:
        """Applies ``edit`` to each parsed file in order, until ``edit`` returns True because it has changed the file.
        Returns the path and the new document of that file, or ``("", None)`` if ``edit`` changed no file.
        """
        for path, text in texts.items():
            document = read_document(text, path)
            if edit(document):
                return path, document
        return "", None

    def _replace(self, texts: dict[str, bytes], path: str, document: dict[str, Any], failed: int) -> None:
        """Checks all ACL files, with ``document`` as the new content of the file at ``path``. If they are valid, writes
        ``document`` and replaces the snapshot.
        """
        entries = document.get("dataVersion")
        counter = str(entries[0].get("counter", "0")) if isinstance(entries, list) and entries else "0"
        document["dataVersion"] = [
            {"counter": int(counter) + 1 if counter.isdigit() else 1, "timestamp": self._wall_ms()}
        ]
        changed = {**texts, path: write_document(document)}
        try:
            snapshot = self._parse(changed)
            self._files.make_directory(path.rpartition("/")[0])
            self._files.replace_file(path, changed[path], private=True)
        except FormatError as error:
            raise BrokerError(failed, f"{error.what}: {error.expected} is needed") from None
        except DiskError as error:
            raise BrokerError(failed, "the file cannot be written") from error
        self._seen = digest_of(changed)
        self.snapshot = snapshot
        event(logger, logging.WARNING, "accounts changed by an administrator", digest=self._seen[:12])

    def _read_good(self, failed: int) -> dict[str, bytes]:
        """Reads and checks all files; returns their texts. A broken file must be repaired by hand and is not
        overwritten.
        """
        try:
            texts = self._read()
            self._parse(texts)
        except (FormatError, DiskError) as error:
            event(logger, logging.ERROR, "accounts not changed, a file is broken", error=error)
            raise BrokerError(failed, "an ACL file of the broker is broken") from None
        return texts

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self) -> dict[str, bytes]:
        names = [name for name in self._files.list_files(self._directory) if name.endswith((".yml", ".yaml"))]
        texts = {}
        for path in (self._main, *(f"{self._directory}/{name}" for name in sorted(names))):
            text = self._files.read_file(path)
            if text is not None:
                texts[path] = text
        return texts

    def _parse(self, texts: Mapping[str, bytes]) -> AclSnapshot:
        if not texts:
            raise FormatError("ACL file", 0, "a file with accounts", "none", self._main)
        accounts: dict[str, Sender] = {}
        patterns: list[str] = []
        for path, text in texts.items():
            document = read_document(text, path)
            patterns += read_global_addresses(document, path)
            for account in read_accounts(document, path, self._weak_secrets):
                if account.access_key in accounts:
                    raise FormatError("ACL file", 0, "each accessKey in only one file", account.access_key, path)
                accounts[account.access_key] = account
        return AclSnapshot(accounts, tuple(map(parse_addresses, patterns)), digest_of(texts))
