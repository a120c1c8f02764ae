"""A reader such as ``head`` may close a command's output early. This is not an error of the command."""

from __future__ import annotations

import os
import sys


class OutputClosedError(Exception):
    """The reader of the output closed it."""


def drop_output() -> None:
    """Discards further output, and output that is still buffered, because the flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
