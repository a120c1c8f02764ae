"""The report: pages about all lessons, made only from the readings of one run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rucola.errors import FormatError
from rucola.lab.course import LESSONS, lesson_named, part_of, program_of
from rucola.lab.document import Block, Heading, Items, Picture, Program, TableBlock, Text, to_html, to_markdown
from rucola.lab.picture import draw
from rucola.lab.readings import REPETITIONS_TEXT, Readings, Verdict
from rucola.lab.text import claim_text, is_listing, tables

TITLE = "The engine laboratory"
_INTRODUCTION = (
    "RocketMQ's broker keeps messages in a storage engine with a few strong ideas: one log for all topics, small "
    "queue files that point into this log, files used through the page cache, a disk sync for many messages at once. "
    "Texts about this engine, and about Kafka's, make claims about these ideas. This report tests the claims on one "
    "machine, with Rucola's engine, whose files equal RocketMQ's byte for byte."
)
_METHOD = (
    f"Each number was measured {REPETITIONS_TEXT} times in one run; the compared variants took turns. Tables show the "
    "median, followed by the least and the greatest value in parentheses unless all values are equal. Pictures show "
    "the medians as points or bars, and the least and the greatest value as whiskers. A whisker that is shorter than "
    "its marker is hidden. Most claims give no threshold: *our test*, in parentheses, is the threshold that we "
    f"chose. Each repetition tests each claim: a claim **holds** when all {REPETITIONS_TEXT} repetitions agree with "
    "it, **does not hold here** when none does, and is **undecided** otherwise, even where the medians seem clear. A "
    "program writes the sentences below from these numbers, so the report of another machine may say something else."
)
_TERMS = (
    (
        "**Page cache**: the memory in which the operating system keeps pages (4 KiB each) of files. A write goes to "
        "the page cache and reaches the disk later (**writeback**); a page that waits for writeback is *dirty*. A read "
        "that finds its page in the page cache is *warm*; a read that must go to the disk is *cold*."
    ),
    (
        "**fdatasync**: the call that waits until everything written to a file is on the disk. Bytes that were "
        "written but not synced survive the end of the process, but perhaps not a power cut."
    ),
    (
        "**Map** (`mmap`): a file shown as memory. Touching a page for the first time is a **page fault**, in which "
        "the system loads the page, often with some of its neighbours."
    ),
    (
        "**CommitLog**: RocketMQ's one log of all messages, cut into **segments** of equal length; a *physical offset* "
        "is a position in it."
    ),
    "**ConsumeQueue**: one per queue of a topic; its *units* of 20 bytes lead to the messages of that queue.",
    "**IndexFile**: a file with a hash table that leads from a message's key to its physical offset.",
    (
        "**Kafka model**: a model of Kafka's layout that we wrote from its documentation. It is not Kafka: nothing "
        "here measures Kafka's code."
    ),
)


@dataclass
class Outcome:
    """The results of all lessons.

    Attributes:
        machine: facts about the machine.
        readings: results of each lesson.
    """

    machine: dict[str, str]
    readings: list[Readings]

    def to_json(self) -> bytes:
        """Encodes the results for ``from_json``."""
        data = {"machine": self.machine, "lessons": [readings.to_json() for readings in self.readings]}
        return json.dumps(data, indent=None, separators=(",", ":")).replace('{"lesson"', '\n{"lesson"').encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> Outcome:
        """Decodes the results that ``to_json`` encoded.

        Raises:
            FormatError: ``content`` is something else.
        """
        try:
            data: Any = json.loads(content)
            return cls(dict(data["machine"]), [Readings.from_json(one) for one in data["lessons"]])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError("readings of a report", 0, "what `rucola lab report` wrote", repr(error)) from error


def pages(outcome: Outcome) -> dict[str, bytes]:
    """Returns the content of each file of the report by name.

    Raises:
        FormatError: the readings lack a number that a lesson needs, because the lesson has changed since the run.
    """
    try:
        pictures = {f"{one.lesson}.png": draw(lesson_named(one.lesson), one) for one in outcome.readings}
        blocks = list(report_blocks(outcome))
    except (KeyError, IndexError) as error:
        raise FormatError(
            "readings of a report", 0, "all numbers of this version's lessons", f"none for {error}"
        ) from error
    return {
        "lab.html": to_html(TITLE, blocks, pictures).encode(),
        "README.md": to_markdown(blocks).encode(),
        "readings.json": outcome.to_json(),
        **pictures,
    }


def report_blocks(outcome: Outcome) -> Iterator[Block]:
    """Yields the blocks of the whole report."""
    yield Heading(1, TITLE)
    yield Text(_INTRODUCTION)
    yield Heading(2, "How to read this")
    yield Text(_METHOD)
    yield Items(_TERMS)
    size = ", ".join(sorted({one.size for one in outcome.readings}))
    minutes = sum(one.seconds for one in outcome.readings) / 60
    run = {"size": size, "time of all lessons": f"{minutes:.1f} min"}
    yield TableBlock("The machine", ("", ""), [[name, text] for name, text in (outcome.machine | run).items()], False)
    yield Heading(2, "All claims")
    yield TableBlock(
        "The claims, and the verdicts of this run",
        ("lesson", "who says it", "claim", "verdict"),
        _summary(outcome),
        False,
    )
    yield Text(counted(outcome))
    for one in outcome.readings:
        yield from _lesson_blocks(one)


def _summary(outcome: Outcome) -> list[list[str]]:
    rows = []
    for one in outcome.readings:
        title = lesson_named(one.lesson).title
        for claim in lesson_named(one.lesson).claims:
            rows.append([title, claim.source, claim.text, one.verdict(claim)[0].value])
            title = ""
    return rows


def counted(outcome: Outcome) -> str:
    """Says how many claims got each verdict."""
    found = Counter(one.verdict(claim)[0] for one in outcome.readings for claim in lesson_named(one.lesson).claims)
    parts = [f"{found[verdict]} {_COUNTED[verdict]}" for verdict in Verdict]
    return f"{sum(found.values())} claims: {', '.join(parts)}."


_COUNTED = {Verdict.HOLDS: "held", Verdict.FAILS: "did not hold here", Verdict.UNDECIDED: "undecided"}


def _lesson_blocks(readings: Readings) -> Iterator[Block]:
    lesson = lesson_named(readings.lesson)
    number = LESSONS.index(readings.lesson) + 1
    yield Heading(2, f"{number}. {lesson.title}")
    yield Text(lesson.intro)
    yield Picture(f"{readings.lesson}.png", f"{lesson.title}: the numbers of the tables below as a picture")
    for title, header, rows in tables(lesson, readings):
        yield TableBlock(title, header, rows, not is_listing(title, readings))
    yield Text("**What the numbers say**")
    yield Items([claim_text(claim, readings) for claim in lesson.claims])
    yield Text(f"**In Rucola.** {lesson.design}")
    yield Text(f"`rucola lab run {readings.lesson}` repeats this lesson, which took {readings.seconds:.1f} s here.")
    yield Program("The program", program_of(readings.lesson))
    for part in lesson.parts:
        yield Program(f"A module that the program imports: {part}.py", part_of(part))
