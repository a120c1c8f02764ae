"""Each lesson, run at small size, measures everything that it announces, uses no more disk space than it states, draws
its picture and prints its findings.
"""

from __future__ import annotations

import struct
from inspect import getsource
from pathlib import Path
from random import Random

import pytest
from tests.sizes import size

from rucola.lab import readings as readings_module
from rucola.lab import text as text_module
from rucola.lab import workbench
from rucola.lab.course import LESSONS, lesson_named, program_of, run_lesson
from rucola.lab.lesson import Lesson, Size
from rucola.lab.machine import has_no_disk
from rucola.lab.picture import draw
from rucola.lab.readings import Readings, Verdict
from rucola.lab.text import claim_text, filled, tables

PROGRAM_LINES_MAX = 150
COUNTED = {"smallest-store": [2], "crash": [0, 1, 2, 3], "warm-search": [0, 1], "expiry": [1]}
"""Positions, in each lesson, of the claims about counts, which hold on every machine and at every size."""
OF_A_DISK = {"warm-search", "expiry"}
"""Lessons that count pages; on a file system in memory, these counts mean nothing."""


@pytest.fixture
def repetitions(monkeypatch: pytest.MonkeyPatch) -> int:
    """Fewer repetitions than users have; one would make no difference between one number and the median of all."""
    count = size(2, readings_module.REPETITIONS)
    for module in (readings_module, text_module, workbench):
        monkeypatch.setattr(module, "REPETITIONS", count)
    return count


@pytest.mark.parametrize("name", LESSONS)
def test_lesson(name: str, tmp_path: Path, repetitions: int) -> None:
    told: list[str] = []
    done: list[int] = []
    readings = run_lesson(name, Size.SMALL, tmp_path, told.append, done.append)
    lesson = lesson_named(name)

    assert list(tmp_path.iterdir()) == [], "temporary files are left"
    assert len(told) == 1 and str(tmp_path) in told[0] and "MiB" in told[0]
    assert done == [*range(repetitions), repetitions]
    assert {quantity for quantity, *_ in readings.cells()} == {quantity.name for quantity in lesson.quantities}
    assert all(len(values) == repetitions for *_, values in readings.cells())
    for claim in lesson.claims:
        text = claim_text(claim, readings)
        assert "{" not in text and "Measured: " in text
    for title, header, rows in tables(lesson, readings):
        assert rows and all(len(row) == len(header) for row in rows), title
    for place in () if name in OF_A_DISK and has_no_disk(tmp_path) else COUNTED.get(name, ()):
        assert readings.verdict(lesson.claims[place]) == (Verdict.HOLDS, repetitions), lesson.claims[place].text
    for seed in range(20):
        check_words(lesson, varied(readings, Random(seed)))
    picture = draw(lesson, readings)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert width >= 500 and height >= 350


def varied(readings: Readings, random: Random) -> Readings:
    """Returns the numbers multiplied by random factors, as if they came from a very different machine."""
    other = Readings(readings.lesson, readings.size, listings=readings.listings)
    for quantity, series, row, values in readings.cells():
        factor = random.choice([0, 0.01, 0.5, 1, 2, 100])
        for value in values:
            other.add(quantity, series, row, value * factor)
    return other


def check_words(lesson: Lesson, readings: Readings) -> None:
    """Checks that all texts of the lesson's claims, filled with these numbers, are complete sentences."""
    for claim in lesson.claims:
        for words in (claim.figures, claim.because, claim.instead):
            said = filled(words, readings)
            assert "{" not in said and "}" not in said and "  " not in said and "nan" not in said.split(), said
        for words in (claim.because, claim.instead):
            said = filled(words, readings)
            assert said[0].isupper() or said[0].isdigit(), said
            assert said.endswith(".") and ".." not in said and ". ." not in said, said


@pytest.mark.parametrize("name", LESSONS)
def test_program_is_short(name: str) -> None:
    program = program_of(name)
    assert program.startswith('"""') and "def run(bench: Workbench)" in program
    assert len(program.splitlines()) < PROGRAM_LINES_MAX
    compile(program, name, "exec")


@pytest.mark.parametrize("name", LESSONS)
def test_quantities_have_units_and_claims_have_sources(name: str) -> None:
    lesson = lesson_named(name)
    assert lesson.intro and lesson.design and lesson.claims
    for quantity in lesson.quantities:
        assert quantity.title and quantity.unit and quantity.rows
    for claim in lesson.claims:
        assert claim.source and claim.because and claim.instead
        assert not claim.text.endswith(".") and (callable(claim.figures) or "{" in claim.figures)


def test_programs_call_the_engine() -> None:
    """Every lesson uses the real engine, unless it shows only raw calls."""
    without = {name for name in LESSONS if not any(part in program_of(name) for part in ("open_store", "StoreLife"))}
    assert without <= {"sequential-random", "warm-search", "to-the-socket"}, without


def test_every_lesson_file_is_in_the_course() -> None:
    import rucola.lab.lessons as package

    files = {path.stem.replace("_", "-") for path in Path(package.__file__).parent.glob("*.py")} - {"--init--"}
    assert files == set(LESSONS), getsource(package)
