"""The list of lessons in their reading order, and how to run one."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from pathlib import Path
from typing import Any

from rucola.errors import ConfigError, DiskError, MissingProgramError
from rucola.lab.lesson import Lesson, Size
from rucola.lab.readings import Readings
from rucola.lab.workbench import Progress, Workbench, room

LESSONS = (
    "smallest-store",
    "stream-map",
    "sequential-random",
    "group-commit",
    "transient-pool",
    "crash",
    "kafka-writing",
    "kafka-reading",
    "warm-search",
    "to-the-socket",
    "long-polling",
    "expiry",
)
"""Names of the lessons in reading order; each is a module of ``lessons``."""


def lesson_named(name: str) -> Lesson:
    """Returns the lesson called ``name``.

    Raises:
        ConfigError: there is no such lesson.
    """
    if name not in LESSONS:
        raise ConfigError("NAME", name, ", ".join(LESSONS))
    lesson: Lesson = _module(name).LESSON
    return lesson


def program_of(name: str) -> str:
    """Returns the source code of a lesson, without the functions that draw its picture and explain its results."""
    program = getsource(_module(name))
    for end in ("\nLESSON = ", "\ndef draw(", "\ndef say_"):
        program = program.partition(end)[0]
    return program.rstrip() + "\n"


def part_of(name: str) -> str:
    """Returns the source code of a module that several lessons share."""
    return getsource(import_module(f"rucola.lab.{name}"))


def _module(name: str) -> Any:
    return import_module(f"rucola.lab.lessons.{name.replace('-', '_')}")


def check_system() -> None:
    """Checks before the first measurement that the lessons can run on this system.

    Raises:
        MissingProgramError: this system does not show which pages are in the page cache.
    """
    if sys.platform != "linux":
        raise MissingProgramError("Linux", sys.platform, "the lessons count pages with mincore and posix_fadvise")


def run_lesson(name: str, size: Size, below: Path, tell: Callable[[str], None], progress: Progress) -> Readings:
    """Runs a lesson; its files are removed at the end, even after an error.

    Args:
        below: directory in which the lesson gets its own directory.
        tell: takes a line for the user before the run.
        progress: called with the number of repetitions done.

    Raises:
        DiskFullError: there is not enough space.
        DiskError: the system refused an operation.
    """
    lesson = lesson_named(name)
    begin = time.perf_counter()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the engine would log each crash that a lesson causes
    try:
        with room(name, lesson.space_bytes(size), below, tell) as path:
            bench = Workbench(name, lesson.quantities, size, path, progress)
            lesson.run(bench)
    except OSError as error:
        raise DiskError(str(error.filename or below), f"lesson {name}", error.strerror or str(error)) from error
    finally:
        logging.disable(before)
    bench.check()
    bench.readings.seconds = round(time.perf_counter() - begin, 1)
    return bench.readings
