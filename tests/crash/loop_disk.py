"""A small disk of its own for a test: a file system in an image file, mounted on a loop device."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IMAGE_MIB = 320


def run(*command: str) -> bool:
    """Runs a command without its output; returns whether it succeeded."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class LoopDisk:
    """A mounted disk; ``path`` is where."""

    def __init__(self, image: Path, path: Path) -> None:
        self._image = image
        self.path = path

    def mount(self) -> bool:
        return run("mount", "-o", "loop", str(self._image), str(self.path))

    def cut(self, call: str) -> None:
        """Cuts the power by a call of ``xfs_io``."""
        run("xfs_io", "-x", "-c", call, str(self.path))

    def remount(self) -> None:
        """Unmounts and mounts the disk, once no process uses it any more."""
        while not run("umount", str(self.path)):
            time.sleep(0.05)
        self.mount()

    def fill(self) -> None:
        """Makes a file so long that there is no free byte."""
        with (self.path / "ballast").open("ab", buffering=0) as file:
            for size in (64 << 20, 1 << 20, 1 << 14, 1 << 10):
                try:
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError:
                    continue
            try:
                while file.write(bytes(1024)):
                    os.fsync(file.fileno())
            except OSError:
                return

    def empty(self) -> None:
        """Removes what ``fill`` wrote."""
        (self.path / "ballast").unlink()


@contextmanager
def loop_disk(directory: Path, kind: str, *options: str) -> Iterator[LoopDisk]:
    """Makes a file system of ``kind`` (xfs, ext4) in ``directory``.

    Raises:
        OSError: it cannot be made or mounted here.
    """
    image, path = directory / "disk", directory / "mounted"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_MIB << 20)
    disk = LoopDisk(image, path)
    try:
        if not run(f"mkfs.{kind}", "-q", *options, str(image)) or not disk.mount():
            raise OSError(f"no {kind} on a loop device here")
    except FileNotFoundError as error:
        raise OSError(f"no mkfs.{kind} here") from error
    try:
        yield disk
    finally:
        run("umount", str(path))
        image.unlink()
