"""Whoever reads the output may go away before its end, which is no error of the command."""

from __future__ import annotations

import os
import sys


class OutputClosedError(Exception):
    """Whoever reads the output has had enough."""


def drop_output() -> None:
    """Print nothing more: what is still buffered must not fail once more at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
