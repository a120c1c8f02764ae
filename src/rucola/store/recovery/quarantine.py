"""The directory ``quarantine/``: everything that recovery moved or copied out of the store, and a list of the parts of
the log that lost their messages.

Bytes of the log are kept in files named by their physical offset, each with a manifest (``.json``: offset, length,
digest, reason). Unknown files are moved into the directory under their own names. ``gaps.json`` lists the parts of the
log whose messages were lost (``repair``). Queue units that point to these parts keep their queue offsets, so that no
other message ever gets those offsets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

from rucola.errors import StoreDamagedError
from rucola.formats.config_json import UNREADABLE_JSON
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.log.log_reader import Gap

logger = logging.getLogger(__name__)
_SECTOR = 512
_KEPT_BYTES_MAX = 1 << 31
"""Longest file that recovery writes: the bytes of a whole segment."""


class Quarantine:
    """Reads and writes the directory ``quarantine/``.

    Attributes:
        path: path of the directory; it is created when first needed.
    """

    def __init__(self, files: Files, root: str) -> None:
        self.path = f"{root}/quarantine"
        self._files = files

    def gaps(self) -> list[Gap]:
        """Returns the recorded gaps of the log.

        Raises:
            StoreDamagedError: the list cannot be read. Without the list, recovery could assign used queue offsets
                again.
        """
        path = f"{self.path}/gaps.json"
        content = self._files.read_file(path)
        if content is None:
            return []
        try:
            return [Gap(int(start), int(end)) for start, end in json.loads(content)]
        except UNREADABLE_JSON as error:
            raise StoreDamagedError(path, 0, f"not a list of gaps ({error})", "restore the file from a copy") from None

    def record_gap(self, gap: Gap) -> list[Gap]:
        """Adds a gap to the list and syncs the list; returns all gaps."""
        gaps = sorted({*self.gaps(), gap}, key=lambda known: (known.start, known.end))
        self._files.make_directory(self.path)
        content = json.dumps([[known.start, known.end] for known in gaps])
        self._files.replace_file(f"{self.path}/gaps.json", content.encode())
        return gaps

    def keep(self, physical_offset: int, content: bytes, log_end: int, reason: str) -> None:
        """Copies bytes of the log that are about to be overwritten."""
        # Imported only when bytes are kept, because importing OpenSSL's digests takes a hundredth of the start-up time.
        import hashlib

        self._files.make_directory(self.path)
        path, kept = self._place(physical_offset, content)
        if kept is not None:
            content = kept
        else:
            self._files.replace_file(path, content)
        manifest = {
            "physicalOffset": physical_offset,
            "length": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "logEnd": log_end,
            "reason": reason,
        }
        if kept is None or not self._files.exists(f"{path}.json"):
            self._files.replace_file(f"{path}.json", json.dumps(manifest, indent=1).encode())
        event(logger, logging.WARNING, "bytes of the log copied to quarantine", **manifest)

    def keep_long(
        self, physical_offset: int, pieces: Callable[[], Iterator[bytes]], is_kept: bool, reason: str
    ) -> None:
        """Copies a part of the log that may be long and is about to be overwritten; the log then ends before it. Does
        nothing if an interrupted call has done it already.

        Args:
            pieces: returns the bytes, piece by piece; called twice.
            is_kept: whether the bytes are kept; otherwise only their length and digest are.
        """
        import hashlib

        digest, length = hashlib.sha256(), 0
        for piece in pieces():
            digest.update(piece)
            length += len(piece)
        manifest = {
            "physicalOffset": physical_offset,
            "length": length,
            "sha256": digest.hexdigest(),
            "logEnd": physical_offset,
            "reason": reason,
            "kept": is_kept,
        }
        content = json.dumps(manifest, indent=1).encode()
        self._files.make_directory(self.path)
        path, number = f"{self.path}/{physical_offset:020d}", 0
        while (known := self._files.read_file(f"{path}.json")) != content:
            if known is None and not self._files.exists(path):
                break
            number += 1
            path = f"{self.path}/{physical_offset:020d}.{number}"
        # The manifest comes first: without it, an interrupted call would not know its bytes again.
        self._files.replace_file(f"{path}.json", content)
        if is_kept and not self._files.exists(path):
            self._files.replace_file(path, pieces())
        event(logger, logging.WARNING, "end of the log copied to quarantine", **manifest)

    def forget_gaps(self, physical_end: int) -> None:
        """Removes the gaps at and after ``physical_end`` from the list, where the log was cut."""
        gaps = self.gaps()
        left = [Gap(gap.start, min(gap.end, physical_end)) for gap in gaps if gap.start < physical_end]
        if left != gaps:
            self._files.replace_file(f"{self.path}/gaps.json", json.dumps(left).encode())

    def move(self, path: str, name: str, reason: str) -> str:
        """Moves a file or directory into the quarantine, which must be on the same file system; returns its new
        path.
        """
        self._files.make_directory(self.path)
        target, number = f"{self.path}/{name}", 0
        while self._files.exists(target):
            number += 1
            target = f"{self.path}/{name}.{number}"
        self._files.rename(path, target)
        self._files.sync_directory(self.path)
        self._files.sync_directory(path.rpartition("/")[0])
        event(logger, logging.WARNING, "moved into quarantine", path=path, target=target, reason=reason)
        return target

    def _place(self, offset: int, content: bytes) -> tuple[str, bytes | None]:
        """Returns the path at which to keep ``content``. Also returns the bytes of the file at this path if they
        already include ``content``.

        A crash may have interrupted an earlier recovery while it zeroed bytes that it had copied to this file.
        ``content`` then has only some of these bytes, and zeros in place of the others. If the file holds different
        bytes, from an earlier cut at the same offset, ``content`` gets a file of its own.
        """
        path, number = f"{self.path}/{offset:020d}", 0
        while (kept := self._files.read_file(path, _KEPT_BYTES_MAX)) is not None:
            if _is_rest(content, kept, offset):
                break
            number += 1
            path = f"{self.path}/{offset:020d}.{number}"
        return path, kept


def _is_rest(content: bytes, kept: bytes, offset: int) -> bool:
    """Whether ``content`` equals the beginning of ``kept``, except for sectors that are zero in ``content``. Both begin
    at physical offset ``offset``.
    """
    if len(content) > len(kept):
        return False
    start = 0
    while start < len(content):
        end = min(start + _SECTOR - (offset + start) % _SECTOR, len(content))
        piece = content[start:end]
        if piece != kept[start:end] and piece.strip(b"\0"):
            return False
        start = end
    return True
