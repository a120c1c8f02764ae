"""Names and paths that come from data."""

from __future__ import annotations

import pytest

from rucola.common.names import is_path_below, is_plain_name


@pytest.mark.parametrize("name", ["topics.json", "a b", ".hidden", "...", "ä", "x" * 255, "\udc80", "-rf"])
def test_names(name: str) -> None:
    assert is_plain_name(name) and is_path_below(f"{name}/{name}")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "a/b", "a\\b", "../x", "/etc/passwd", "a\0b", "a\nb", "\x7f", "x" * 256, "ä" * 128]
)
def test_other_texts_are_no_names(name: str) -> None:
    assert not is_plain_name(name)


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/..", "./a", "a/./b", "s3:/\n/b", "file:///a/b", "a/b\0"]
)
def test_paths_that_lead_elsewhere_are_refused(path: str) -> None:
    assert not is_path_below(path)
