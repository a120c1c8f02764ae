"""The durable watermark has two slots; the newest slot that is intact counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.runtime.files import Files
from rucola.store.recovery.watermark import FILE_NAME, Watermark, WatermarkFile

OLD, NEW = Watermark(100, 50), Watermark(300, 200, 300, 7)


def written(path: Path) -> Path:
    file = WatermarkFile(Files(), str(path))
    assert file.read() is None
    file.write(OLD)
    file.write(NEW)
    file.write(NEW)
    return path / FILE_NAME


def test_the_newest_counts(tmp_path: Path) -> None:
    file = written(tmp_path)
    assert file.stat().st_size == 1024
    read = WatermarkFile(Files(), str(tmp_path)).read()
    assert read == NEW and read.clean and not OLD.clean


@pytest.mark.parametrize("position", [0, 8, 15, 16, 31, 39, 47, 51])
def test_a_damaged_slot_leaves_the_other(position: int, tmp_path: Path) -> None:
    file = written(tmp_path)
    data = bytearray(file.read_bytes())
    data[position] ^= 1  # the second write went to the first slot
    file.write_bytes(data)
    again = WatermarkFile(Files(), str(tmp_path))
    assert again.read() == OLD
    again.write(NEW)
    assert WatermarkFile(Files(), str(tmp_path)).read() == NEW
    data[512:] = bytes(512)
    file.write_bytes(data)
    assert WatermarkFile(Files(), str(tmp_path)).read() is None


@pytest.mark.parametrize("size", [0, 51, 600])
def test_a_short_file_is_read_as_far_as_it_goes(size: int, tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_bytes(file.read_bytes()[:size])
    assert WatermarkFile(Files(), str(tmp_path)).read() == (NEW if size > 51 else None)


def test_writing_goes_on_behind_the_sequence_that_was_read(tmp_path: Path) -> None:
    written(tmp_path)
    for offset in (400, 500, 600):
        file = WatermarkFile(Files(), str(tmp_path))
        file.read()
        file.write(Watermark(offset, 0))
        assert WatermarkFile(Files(), str(tmp_path)).read() == Watermark(offset, 0)
