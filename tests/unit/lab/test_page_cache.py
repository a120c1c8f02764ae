"""Pages in the page cache are dropped and counted."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from rucola.lab import page_cache
from rucola.lab.machine import has_no_disk

PAGE = mmap.PAGESIZE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    if has_no_disk(tmp_path):
        pytest.skip("pages of a file system in memory cannot be dropped")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 * PAGE))
    page_cache.sync([path])
    return path


def test_dropped_pages_are_not_in_memory(file: Path) -> None:
    assert page_cache.resident_pages([file]) == 8
    page_cache.drop([file])
    assert page_cache.resident_pages([file]) == 0


def test_only_pages_that_were_read_are_counted(file: Path) -> None:
    page_cache.drop([file])
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    before = page_cache.disk_bytes_read()
    os.pread(descriptor, 10, 3 * PAGE)
    os.pread(descriptor, 10, 6 * PAGE)
    os.close(descriptor)
    assert page_cache.resident_pages([file]) == 2
    assert page_cache.disk_bytes_read() - before == 2 * PAGE


def test_an_empty_file_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.resident_pages([tmp_path / "empty"]) == 0
    assert page_cache.files_below(tmp_path) == [tmp_path / "empty"]


def test_faults_of_fresh_pages_are_counted() -> None:
    before = page_cache.page_faults()
    with mmap.mmap(-1, 64 * PAGE) as memory:
        for position in range(0, len(memory), PAGE):
            memory[position] = 1
    assert page_cache.page_faults() > before


def test_pages_changed_by_calls_and_maps_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = page_cache.disk_bytes_dirtied()
    path.write_bytes(b"x" * 3 * PAGE)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), 3 * PAGE) as mapped:
            mapped[PAGE] = 1
    if not has_no_disk(tmp_path):
        # The system counts one page, or a larger piece that contains the page.
        assert 4 * PAGE <= page_cache.disk_bytes_dirtied() - before <= 6 * PAGE
