"""``make browser`` says what is missing before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.browser import needs


def test_a_missing_chromium_is_named_with_the_way_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(needs.MissingError, match="apt-get install chromium fonts-noto-cjk"):
        needs.chromium()
    program = tmp_path / "chromium-browser"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert needs.chromium() == str(program)


def test_the_variable_wins_and_must_name_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMIUM", "/bin/sh")
    assert needs.chromium() == "/bin/sh"
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "nothing"))
    with pytest.raises(needs.MissingError, match="CHROMIUM="):
        needs.chromium()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name == "playwright" else object())
    with pytest.raises(needs.MissingError, match="playwright is missing: pip install"):
        needs.check_packages()
