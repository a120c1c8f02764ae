"""Which cells run: all of them, a sample, or the short form of ``make test``."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.scenario.matrix.pool import Job
from tests.scenario.matrix.real import EXCLUDED
from tests.scenario.matrix.table import COLUMNS, ROWS, Column, Row, Word, promise, row_named, variants

_SHORT_SEED = 31
_LONG = ("shutdown", "exit", "fork")
"""Columns that are not in the short form: many lives, processes, and a fork of whoever runs the tests."""
_LONG_VARIANTS = ("killed",)


def jobs_of(rows: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> list[Job]:
    """All cells, or those of these rows and columns. A row's name without its face means both faces."""
    return [
        Job(row.name, column.name, variant)
        for column in COLUMNS
        if column.name in (columns or [column.name])
        for row in ROWS
        if not rows or row.name in rows
        if promise(row, column).word is not Word.NONE
        for variant in variants(row, column)
    ]


def sample(jobs: Sequence[Job], count: int, brokers: Sequence[str], seed: int) -> list[Job]:
    """``count`` of the cells, drawn by ``seed``, each with one of the brokers in turn. Lite topics are left out:
    ``tests.conformance.lite.client`` plays them at official brokers.
    """
    pool = [job for job in jobs if not row_named(job.row).has_lite_topics]
    random.Random(seed).shuffle(pool)
    drawn = [job for job in pool if all(job.column not in EXCLUDED[broker] for broker in brokers)][:count]
    chosen = [replace(job, broker=brokers[n % len(brokers)], number=n) for n, job in enumerate(drawn)]
    return sorted(chosen, key=lambda job: brokers.index(job.broker))


def short_form(producers: bool) -> list[Job]:
    """Each row of consumers, or of producers, once, and each column that can meet one of them at least once."""
    chooser = random.Random(_SHORT_SEED)
    rows = [row for row in ROWS if row.is_producer is producers]
    columns = [column for column in COLUMNS if column.name not in _LONG and _met(column, rows)]
    chooser.shuffle(rows)
    chooser.shuffle(columns)
    jobs = []
    for number in range(max(len(rows), len(columns))):
        column = columns[number % len(columns)]
        row = next(row for row in [*rows[number % len(rows) :], *rows] if _met(column, [row]))
        forms = [form for form in variants(row, column) if form not in _LONG_VARIANTS]
        jobs.append(Job(row.name, column.name, chooser.choice(forms)))
    return jobs


def _met(column: Column, rows: Sequence[Row]) -> bool:
    return any(promise(row, column).word is not Word.NONE for row in rows)
