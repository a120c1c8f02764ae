"""The store without a broker, compared with the official store: append, dispatch, get, synchronous flush, opening."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.context import Context
from bench.figure import Budget, Figure, at_least, at_most, rate, share
from bench.program import Program, Round, alternate, java_load, median, python_load, scratch_directory

GROUP = "store alone, one thread, async flush"
SYNC_GROUP = "store alone, sync flush"
OPEN_GROUP = "opening a store of 1 KiB messages, page cache warm"
PEER = "Java store"
PILOT = 20_000
SYNC_PILOT = 200
JAVA_WARM_UP = 300_000
JAVA_SYNC_WARM_UP = 50_000
ROUND_SECONDS_MAX = 1.0
"""Maximum length of a round in seconds; short, because a store writes a gigabyte in little more than a second."""
LOG_BYTES = 4 << 30
QUICK_LOG_BYTES = 1 << 30
RECORD_BYTES = 1200
"""Approximate number of bytes that a message of 1 KiB takes in the log."""


def measure(context: Context) -> Iterator[Figure]:
    """Measures appends of three sizes with and without an index, dispatch, and reads."""
    for body_bytes in (128, 1024, 4096):
        for index in ("index", "plain"):
            yield from _appends(context, body_bytes, index)


def _appends(context: Context, body_bytes: int, index: str) -> Iterator[Figure]:
    what = f"{body_bytes} B, {'keys indexed' if index == 'index' else 'no index'}"
    context.show(f"store: {what}, ours and Java in turns")
    arguments = (str(body_bytes), "async", index)
    judged = body_bytes == 1024
    with (
        scratch_directory() as ours_directory,
        scratch_directory() as java_directory,
        python_load("load_store", ours_directory, *arguments) as ours,
        context.other_store(java_directory, *arguments) as java,
    ):
        java.round(f"put 1 {JAVA_WARM_UP}")
        seconds = min(context.seconds, ROUND_SECONDS_MAX)
        mine, theirs = alternate((ours, java), "put 1 {}".format, seconds, context.rounds, PILOT)
        budget = (at_least(1.5),) if judged else ()
        yield rate(GROUP, f"append {what}", median(mine, _appended), median(theirs, _appended), PEER, *budget)
        caught_up = f"append {what}, until {'queues and index' if index == 'index' else 'queues'} have caught up"
        yield rate(GROUP, caught_up, median(mine, _dispatched), median(theirs, _dispatched), f"{PEER}, two threads")
        if judged and index == "index":
            mine, theirs = alternate((ours, java), "get - {}".format, seconds, context.rounds, PILOT)
            yield rate(GROUP, "get 1024 B, 32 a call", median(mine, _appended), median(theirs, _appended), PEER)


def measure_sync(context: Context) -> Iterator[Figure]:
    """Measures appends of 1 KiB that wait until they are on the disk."""
    arguments = ("1024", "sync", "index")
    with (
        scratch_directory() as ours_directory,
        scratch_directory() as java_directory,
        python_load("load_store", ours_directory, *arguments) as ours,
        context.other_store(java_directory, *arguments) as java,
    ):
        java.round(f"put 64 {JAVA_SYNC_WARM_UP}")
        for waiters in (64, 1):
            what = f"append 1 KiB, {waiters} message{'s' if waiters > 1 else ''} waiting at a time"
            context.show(f"store, sync flush: {what}")
            line = f"put {waiters} {{}}".format
            mine, theirs = alternate((ours, java), line, context.seconds, context.rounds, SYNC_PILOT)
            budget = (at_least(1.5),) if waiters == 64 else ()
            yield rate(SYNC_GROUP, what, median(mine, _appended), median(theirs, _appended), PEER, *budget)


def measure_opening(context: Context) -> Iterator[Figure]:
    """Measures opening after a kill, after a clean stop, and without queues and index, which are then rebuilt. Each
    store has its own directory.
    """
    log_bytes = QUICK_LOG_BYTES if context.quick else LOG_BYTES
    messages = log_bytes // RECORD_BYTES
    ours: list[float] = []
    java: list[float] = []
    with scratch_directory() as ours_directory, scratch_directory() as java_directory:
        for how in ("fill", "kill", "clean", "rebuild"):
            ours.append(_open(context, "ours", ours_directory, how, messages))
            java.append(_open(context, "Java", java_directory, how, messages))
    size = f"{log_bytes >> 30} GiB"
    yield share(OPEN_GROUP, f"{size}, after a kill", ours[1], java[1], PEER, at_most(0.5), unit="s")
    yield share(OPEN_GROUP, f"{size}, after a clean stop", ours[2], java[2], PEER, unit="s")
    speed = (messages / ours[3], messages / java[3])
    what = f"{size}, rebuilding queues and index: records per second"
    yield rate(OPEN_GROUP, what, *speed, PEER, Budget("ratio", "min", 2))


def _open(context: Context, side: str, directory: str, how: str, messages: int) -> float:
    """Returns the seconds until the store in ``directory`` is open; ``how`` is the state of the store.

    ``fill`` writes the store and ends with a kill. ``kill`` opens the killed store and stops it cleanly. ``clean``
    opens and stops it once more. ``rebuild`` first removes queues and index.
    """
    context.show(f"opening: {side}, {how}")
    if how == "rebuild":
        for name in ("consumequeue", "index"):
            shutil.rmtree(_root(side, directory) / name)
    arguments = ("1024", "async", "index")
    program: Program
    if side == "ours":
        program = python_load("load_store", directory, *arguments)
    else:
        program = java_load("StoreLoad", directory, *arguments)
    with program:
        if how == "fill":
            program.round(f"put 1 {messages}")
            program.kill()
        return program.ready["open_seconds"]


def _root(side: str, directory: str) -> Path:
    return Path(directory) / "store" if side == "ours" else Path(directory)


def _appended(one: Round) -> float:
    return one.rate


def _dispatched(one: Round) -> float:
    return one.messages / one.extra["dispatched_seconds"]
