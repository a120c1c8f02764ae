"""The store alone: append and dispatch, against the official store, one thread appending."""

from __future__ import annotations

from collections.abc import Iterator

from bench.context import Context
from bench.figure import Figure, at_least, rate
from bench.program import Round, alternate, java_load, median, python_load, scratch_directory

GROUP = "store alone, one thread, async flush"
PILOT = 20_000
JAVA_WARM_UP = 300_000
ROUND_SECONDS_MAX = 1.0
"""Short rounds: a store writes a gigabyte in little more than a second."""


def measure(context: Context) -> Iterator[Figure]:
    """Appends of 1 KiB, and until queues and index have caught up."""
    context.show("store: append 1 KiB, ours and Java in turns")
    with (
        scratch_directory() as ours_directory,
        scratch_directory() as java_directory,
        python_load("load_store", ours_directory, "1024") as ours,
        java_load("StoreLoad", java_directory, "1024") as java,
    ):
        java.round(str(JAVA_WARM_UP))
        seconds = min(context.seconds, ROUND_SECONDS_MAX)
        mine, theirs = alternate((ours, java), str, seconds, context.rounds, PILOT)
    yield rate(GROUP, "append 1 KiB", median(mine, _appended), median(theirs, _appended), "Java store", at_least(1.5))
    yield rate(
        GROUP,
        "append 1 KiB until queues and index have caught up",
        median(mine, _dispatched),
        median(theirs, _dispatched),
        "Java store, two threads",
    )


def _appended(one: Round) -> float:
    return one.rate


def _dispatched(one: Round) -> float:
    return one.messages / one.extra["dispatched_seconds"]
