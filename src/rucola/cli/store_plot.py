"""Draws what ``rucola store stats`` counted."""

from __future__ import annotations

from collections.abc import Sequence

from rucola.cli.store_text import shown
from rucola.errors import MissingProgramError, install_advice
from rucola.store.doctor.census import HOUR_MS, Tally

DAY_MS = 86_400_000
_TOPICS_MAX = 8
"""Maximum number of topics with a colour of their own: those with the most messages. The rest share one colour."""


def draw_hours(tallies: Sequence[Tally], path: str) -> None:
    """Draws messages per hour, stacked by topic, into a file.

    Args:
        tallies: the counts, one for each topic and hour.

    Raises:
        MissingProgramError: Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingProgramError("matplotlib", "none", install_advice("lab")) from None
    sums: dict[str, int] = {}
    for tally in tallies:
        sums[tally.topic] = sums.get(tally.topic, 0) + tally.messages
    largest = sorted(sums, key=lambda topic: -sums[topic])[:_TOPICS_MAX]
    hours = sorted({tally.hour_ms for tally in tallies})
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    days = [hour_ms / DAY_MS for hour_ms in hours]
    below = dict.fromkeys(hours, 0)
    for topic in [*largest, *(["others"] if len(sums) > len(largest) else [])]:
        counts = dict.fromkeys(hours, 0)
        for tally in tallies:
            if tally.topic == topic or (topic == "others" and tally.topic not in largest):
                counts[tally.hour_ms] += tally.messages
        axes.bar(days, list(counts.values()), HOUR_MS / DAY_MS, list(below.values()), label=shown(topic))
        below = {hour_ms: below[hour_ms] + counts[hour_ms] for hour_ms in hours}
    axes.set_ylabel("messages per hour")
    axes.legend(fontsize="small")
    axes.xaxis_date("UTC")
    figure.autofmt_xdate()
    figure.savefig(path)
