"""SQL92 filters: messages evaluated per second on one core, compared with the evaluator of the official broker."""

from __future__ import annotations

from collections.abc import Iterator

from tools.peers.packages import PeerError

from bench.context import Context
from bench.figure import Budget, Figure, rate
from bench.program import Round, alternate, java_load, median, python_load

GROUP = "SQL92 filters, one core, four properties per message"
PILOT = 2_000_000
EXPRESSIONS = {
    "RocketMQ's example": "(TAGS is not null and TAGS in ('TagA','TagB')) and (a is not null and a between 0 and 3)",
    "three terms": "price > 10.5 and region in ('hz','sh') and a <> 3",
}
SAMPLES = [
    f"TAGS=Tag{'ABCD'[number % 4]};a={number % 8};price={number % 16}.25;region={('hz', 'bj')[number % 2]};"
    for number in range(64)
]
"""Property texts, with = and ; as separators. Rucola's batches and RocketMQ's contain each text equally often."""


def measure(context: Context) -> Iterator[Figure]:
    """Measures evaluations from text to result; both sides must accept the same fraction of messages."""
    for name, text in EXPRESSIONS.items():
        context.show(f"filter: {name}, ours and Java in turns")
        with python_load("load_filter", text, *SAMPLES) as ours, java_load("FilterLoad", text, *SAMPLES) as java:
            mine, theirs = alternate((ours, java), str, context.seconds, context.rounds, PILOT)
        if abs(median(mine, _passed) - median(theirs, _passed)) > 0.001:
            raise PeerError(
                f"{name}: {median(mine, _passed):.3f} pass our filter, {median(theirs, _passed):.3f} pass Java's"
            )
        budget = Budget("ours", "min", 1_000_000)
        yield rate(GROUP, name, median(mine, _rate), median(theirs, _rate), "Java evaluator", budget)


def _rate(one: Round) -> float:
    return one.rate


def _passed(one: Round) -> float:
    return one.extra["passed"] / one.messages
