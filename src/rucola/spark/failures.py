"""Errors of Spark's tasks as one error of ours, without the stacks of Python and Java in Spark's messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rucola import errors

_OWN = re.compile(r"^(?:.* )?rucola\.errors\.(\w+): (.*)$")


@contextmanager
def one_line() -> Iterator[None]:
    """Turns an error of Spark into ``TaskFailedError``: the last error of ours in its message, or its first line.

    Raises:
        TaskFailedError: a job failed.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise task_error(str(error)) from error


def task_error(text: str) -> errors.TaskFailedError:
    """Returns the error that Spark's message ``text`` contains."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if found := _OWN.match(line):
            kind = getattr(errors, found[1], None)
            known = isinstance(kind, type) and issubclass(kind, errors.RucolaError)
            return errors.TaskFailedError(found[2], kind if known else None)
    return errors.TaskFailedError(lines[0] if lines else "no reason given")
