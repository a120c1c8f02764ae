"""A reader such as ``head`` may close a command's output early. This is not an error of the command."""

from __future__ import annotations

import os
import sys


class OutputClosedError(Exception):
    """The reader of the output closed it."""


def drop_output() -> None:
    """Discards further output, and output that is still buffered, because the flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_standard_streams() -> None:
    """Puts the null device where standard input, output or error is closed. The next file that is opened would get its
    descriptor, and what is printed could be written into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115, PTH123 - open until the process ends
