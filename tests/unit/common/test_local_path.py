"""Paths and URLs that users give: what means this machine is read, everything else is refused before it is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from rucola.common.local_path import local_path
from rucola.errors import ConfigError
from rucola.runtime.files import Files


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/lake/t", "/lake/t"),
        ("lake/t", "lake/t"),
        ("file:///lake/a%20b", "/lake/a b"),
        ("file:/lake/t", "/lake/t"),
        ("file://localhost/lake/t", "/lake/t"),
        ("C:/lake", "C:/lake"),
        ("./s3:/lake", "./s3:/lake"),
        ("a:b", "a:b"),
    ],
)
def test_paths_on_this_machine_are_local(given: str, path: str) -> None:
    assert local_path("table", given) == path


@pytest.mark.parametrize("given", ["s3://b/t", "s3:/b/t", "hdfs://h:1/t", "abfss://a@b/t", "gs://b", "file://host/t"])
def test_other_urls_are_not_local(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="file:///path"):
        Files().expand(given)
    assert not list(tmp_path.iterdir())
