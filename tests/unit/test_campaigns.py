"""Campaigns: their steps exist, an interrupted one continues, and a changed tree begins again."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests import campaigns

# Parsers that several programs share: the start of a module's name, and the file that defines their options.
SHARED = {"tests.attack.": "tests/attack/directories.py", "tests.crash.": "tests/crash/jobs.py"}


@pytest.mark.parametrize("name", campaigns.CAMPAIGNS)
def test_every_step_is_a_program_that_knows_its_options(name: str) -> None:
    campaign = campaigns.CAMPAIGNS[name]
    for step in campaign.steps:
        module, *arguments = shlex.split(step.format(**campaign.sizes))
        found = find_spec(f"{module}.__main__") if is_package(module) else find_spec(module)
        assert found is not None and found.origin is not None, step
        if module.startswith(("tests.", "bench.", "tools.")) and module != "tests.fallbacks":
            text = Path(found.origin).read_text()
            text += "".join(Path(file).read_text() for start, file in SHARED.items() if module.startswith(start))
            assert all(f'"{one}"' in text for one in arguments if one.startswith("--")), step


def is_package(module: str) -> bool:
    found = find_spec(module)
    return found is not None and found.submodule_search_locations is not None


@pytest.mark.parametrize("name", campaigns.CAMPAIGNS)
def test_every_size_is_used(name: str) -> None:
    campaign = campaigns.CAMPAIGNS[name]
    assert all(any(f"{{{size}}}" in step for step in campaign.steps) for size in campaign.sizes)


def test_an_unknown_size_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        campaigns.main(["siege", "HOURS=1"])
    assert "siege has no size HOURS; it has MINUTES" in capsys.readouterr().err


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two steps; the second fails while there is a file ``broken``. Each writes into ``ran``."""
    monkeypatch.setattr(campaigns, "digest_of", lambda _root: "tree")
    (tmp_path / "broken").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(campaigns, "ROOT", tmp_path)
    text = "import pathlib, sys\nopen('ran', 'a').write(sys.argv[1])\n"
    text += "sys.exit(3 if sys.argv[1] == 'b' and pathlib.Path('broken').exists() else 0)\n"
    (tmp_path / "one_step.py").write_text(text)
    return ["one_step a", "one_step b"]


def test_passed_steps_are_not_run_again(steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    assert campaigns.run("x", steps, results=tmp_path) == 3
    assert campaigns.run("x", steps, results=tmp_path) == 3 and ran.read_text() == "abb"
    (tmp_path / "broken").unlink()
    assert campaigns.run("x", steps, results=tmp_path) == 0 and ran.read_text() == "abbb"
    assert campaigns.run("x", steps, results=tmp_path) == 0 and ran.read_text() == "abbb"
    assert campaigns.run("x", steps, again=True, results=tmp_path) == 0 and ran.read_text() == "abbbab"
    assert campaigns.run("x", ["one_step c"], results=tmp_path) == 0 and ran.read_text() == "abbbabc", "another size"
    monkeypatch.setattr(campaigns, "digest_of", lambda _root: "other tree")
    assert campaigns.run("x", steps, results=tmp_path) == 0 and ran.read_text() == "abbbabcab"
