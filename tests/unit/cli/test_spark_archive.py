"""Options of ``rucola spark archive`` that are checked before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.arrow.json_shape import TimeUnit
from rucola.cli.main import main
from rucola.cli.spark_archive import _decoding


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--integer-times", "millis"], "no value without --decode json"),
        (["--integer-times", "hours", "--decode", "json"], "micros"),
        (["--raw", "--integer-times", "millis"], "--raw"),
    ],
)
def test_a_unit_belongs_to_json(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spark", "archive", str(tmp_path / "table"), "--store", str(tmp_path), "--no-spark", *options]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "table").exists()


def test_the_unit_reaches_the_decoder() -> None:
    pytest.importorskip("pyspark")
    decoder = _decoding("json", "t timestamp", None, TimeUnit.MILLIS)
    assert decoder is not None
    assert decoder.keywords == {  # type: ignore[attr-defined]
        "format": "json",
        "schema": "t timestamp",
        "message": None,
        "integer_times": TimeUnit.MILLIS,
    }
