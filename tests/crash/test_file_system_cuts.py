"""Runs three rounds of ``python -m tests.crash.file_system_cuts`` where the system allows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.crash.file_system_cuts import cuts


def test_a_store_survives_cuts_of_a_real_file_system(tmp_path: Path) -> None:
    if shutil.which("mkfs.xfs") is None or shutil.which("xfs_io") is None:
        pytest.skip("needs xfsprogs")
    try:
        assert cuts(tmp_path, "xfs", 3, 1, 0) == []
    except OSError as error:
        pytest.skip(str(error))
