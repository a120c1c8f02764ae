"""Facts about the machine and this process."""

from __future__ import annotations

import os

try:
    import resource
except ImportError:  # Windows
    _HAS_LIMITS = False
else:
    _HAS_LIMITS = True


def memory_bytes() -> int:
    """Returns the physical memory in bytes; 4 GiB if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 4 << 30


def process_id() -> int:
    """Returns the id of this process."""
    return os.getpid()


def raise_file_limit() -> int:
    """Raises the soft limit on open files to the hard limit; returns the limit, or 0 if the system has none."""
    if not _HAS_LIMITS:
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return max(hard, 0)  # -1: no limit
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        return soft
    return hard
