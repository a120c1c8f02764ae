"""Ten questions about the report, each with the lesson that answers it; the published text matches its readings."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from rucola.lab.course import LESSONS, lesson_named
from rucola.lab.document import to_markdown
from rucola.lab.readings import REPETITIONS, Readings
from rucola.lab.report import Outcome, report_blocks

DOCS = Path(__file__).parents[3] / "docs" / "lab"
PUBLISHED = DOCS / "readings.json"
QUESTIONS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (DOCS / "questions.md").read_text().splitlines()
    if line.startswith("| ") and line[2].isdigit()
]


def test_there_are_ten_about_most_lessons() -> None:
    assert [question.split(".")[0] for question, _, _ in QUESTIONS] == [str(number) for number in range(1, 11)]
    assert len({lesson for _, lesson, _ in QUESTIONS}) >= 8


@cache
def section(lesson: str) -> str:
    """Returns the text of a lesson in the published report."""
    outcome = Outcome.from_json(PUBLISHED.read_bytes())
    [one] = [readings for readings in outcome.readings if readings.lesson == lesson]
    return to_markdown(list(report_blocks(Outcome({}, [one]))))


@pytest.mark.parametrize(("question", "lesson", "answer"), QUESTIONS)
def test_the_report_answers(question: str, lesson: str, answer: str) -> None:
    assert question.endswith("?") and lesson in LESSONS
    told = lesson_named(lesson)
    parts = [told.intro, told.design, *(claim.text for claim in told.claims)]
    parts += [f"{quantity.title} {quantity.rows}" for quantity in told.quantities]
    if PUBLISHED.exists():
        parts.append(section(lesson))
    elif lesson == "crash":
        from rucola.lab.lessons.crash import CUT

        parts.append(CUT)
    assert any(answer in part for part in parts)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the report is not published yet: make campaign NAME=lab")
def test_the_published_report_is_what_its_readings_say() -> None:
    """After a change of texts, write the report again: rucola lab report --from docs/lab/readings.json --out
    docs/lab.
    """
    outcome = Outcome.from_json(PUBLISHED.read_bytes())
    assert [one.lesson for one in outcome.readings] == list(LESSONS)
    assert all(len(values) == REPETITIONS for one in outcome.readings for *_, values in one.cells())
    assert (DOCS / "README.md").read_text() == to_markdown(list(report_blocks(outcome)))
    assert all((DOCS / f"{name}.png").exists() for name in LESSONS)
    assert isinstance(outcome.readings[0], Readings)
