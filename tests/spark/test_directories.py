"""A few seeded cases of hostile tables and stores for jobs in Spark, in a session without privileges;
``tests.attack.spark_directories`` runs as many as wanted.
"""

from __future__ import annotations

import sys

import pytest
from tests.attack.spark_directories import check, running_worker, sources_are_open, spark_case

SEEDS = {50: "refused", 76: "refused", 86: "refused", 94: "refused", 88: "done"}
"""A link below a table that is read, restored, compacted; a FIFO in a table that grows; a strange file in a table that
is compacted."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="needs FIFOs and another user"),
    pytest.mark.skipif(not sources_are_open(), reason="another user cannot reach the sources"),
]


def test_no_job_leaves_its_directory() -> None:
    with running_worker() as worker:
        assert {seed: check(spark_case(seed), worker) for seed in SEEDS} == SEEDS
