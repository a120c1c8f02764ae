"""What is on the disk after a power cut, if only what was synced stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class PowerCut:
    """Keeps what was on the disk at each sync: content of synced files, names in synced directories."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: Path) -> None:
        self._table = table
        self._content: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}
        sync, write = os.fsync, self._keep

        def synced(descriptor: int) -> None:
            sync(descriptor)
            write(Path(f"/proc/self/fd/{descriptor}").readlink())

        monkeypatch.setattr(os, "fsync", synced)

    def _keep(self, path: Path) -> None:
        if path.is_dir():
            self._names[str(path)] = {one.name: one.inode() for one in os.scandir(path)}
        elif path.exists():
            self._content[path.stat().st_ino] = path.read_bytes()

    def image(self, target: Path) -> Path:
        """Writes what is left after a power cut: a name without synced content is an empty file."""

        def write(directory: Path, to: Path) -> None:
            to.mkdir(parents=True)
            for name, inode in self._names.get(str(directory), {}).items():
                if (directory / name).is_dir():
                    write(directory / name, to / name)
                else:
                    (to / name).write_bytes(self._content.get(inode, b""))

        write(self._table, target)
        return target
