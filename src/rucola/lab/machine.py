"""Describes the machine of a run, because figures mean nothing without it."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from rucola.runtime.machine import memory_bytes

_MEMORY_ONLY = ("tmpfs", "ramfs")


def facts(directory: Path) -> dict[str, str]:
    """Returns the name and value of each fact; the files of the run were in ``directory``."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory_bytes() / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
        "file system": file_system(directory),
        "load before": f"{os.getloadavg()[0]:.1f} (average of the last minute)",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2].strip()
    return platform.machine()


def file_system(directory: Path) -> str:
    """Returns the kind of file system that holds ``directory``."""
    found = "", "unknown"
    path = f"{directory.resolve()}/"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind = line.split()[:3]
        place = place.replace("\\040", " ")
        if path.startswith(f"{place.rstrip('/')}/") and len(place) >= len(found[0]):
            found = place, kind
    return found[1]


def has_no_disk(directory: Path) -> bool:
    """True if the files in ``directory`` never reach a disk, so that a lesson cannot measure a disk."""
    return file_system(directory) in _MEMORY_ONLY
