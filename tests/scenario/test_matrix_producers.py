"""The short form of the matrix for producers: each use and each event at least once. ``make faults`` runs the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scenario.matrix.choice import short_form
from tests.scenario.matrix.pool import Job
from tests.scenario.matrix.short import Findings, findings_of


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return findings_of("producers", Path(tmp_path_factory.mktemp("matrix")))


@pytest.mark.parametrize("job", short_form(producers=True), ids=lambda job: f"{job.row}-{job.column}-{job.variant}")
def test_the_promise_is_kept(job: Job, findings: Findings):
    assert findings[job.row, job.column, job.variant] == []
