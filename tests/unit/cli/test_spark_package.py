"""The archive of ``rucola spark package``: its content, and mistakes that are reported before anything is built."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from rucola.cli import spark
from rucola.cli.main import main

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = f"lib/{PYTHON}/site-packages"
FILES = {
    "kept/__init__.py": True,
    "kept/_kernel.so": True,
    "kept/latest.py": True,
    "kept-1.0.dist-info/METADATA": True,
    "kept/__pycache__/x.pyc": False,
    "kept/tests/test_kept.py": False,
    "pyspark/jars/spark.jar": False,
    "pyspark-4.3.0.dist-info/METADATA": False,
    "pip/__main__.py": False,
}
"""Files of packages, and whether executors get them."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Makes an environment with a few packages."""
    place = tmp_path / "environment"
    venv.create(place, symlinks=True)
    for name in FILES:
        (place / PACKAGES / name).parent.mkdir(parents=True, exist_ok=True)
        (place / PACKAGES / name).write_text("answer = 42\n")
    return place


def test_archive_runs_where_it_is_unpacked_and_holds_what_executors_need(place: Path, tmp_path: Path) -> None:
    spark.pack(place, tmp_path / "environment.tar.gz")
    with tarfile.open(tmp_path / "environment.tar.gz") as archive:
        names = set(archive.getnames())
        archive.extractall(tmp_path / "executor" / "environment", filter="fully_trusted")
    assert {name: f"{PACKAGES}/{name}" in names for name in FILES} == FILES
    place.rename(tmp_path / "gone")
    command = ["./environment/bin/python", "-c", "import kept; print(kept.__file__)"]
    ran = subprocess.run(command, cwd=tmp_path / "executor", capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(tmp_path / "executor/environment" / PACKAGES / "kept/__init__.py")


def test_archive_for_executors_with_python_elsewhere(place: Path, tmp_path: Path) -> None:
    spark.pack(place, tmp_path / "environment.tgz", "/opt/python/")
    with tarfile.open(tmp_path / "environment.tgz") as archive:
        links = {name: archive.getmember(f"bin/{name}").linkname for name in (PYTHON, "python", "python3")}
        settings = archive.extractfile("pyvenv.cfg")
        assert settings is not None
        lines = settings.read().decode().splitlines()
    assert links == {PYTHON: f"/opt/python/bin/{PYTHON}", "python": PYTHON, "python3": PYTHON}
    assert [line for line in lines if "/" in line] == ["home = /opt/python/bin"]


def test_installed_as_it_is_here(tmp_path: Path) -> None:
    wheel = tmp_path / "rucola_mq-9.9-py3-none-any.whl"
    wheel.touch()
    assert spark.with_extra(str(wheel)) == f"{wheel}[executor]"
    assert spark.with_extra("rucola-mq[executor]==9.9") == "rucola-mq[executor]==9.9"


def test_the_own_requirement_is_the_source_that_pip_recorded_or_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "rucola_mq-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rucola-mq\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert spark.own_requirement() == "rucola-mq[executor]==9.9"
    (info / "direct_url.json").write_text('{"url": "file:///checkout", "dir_info": {}}')
    assert spark.own_requirement() == "rucola-mq[executor] @ file:///checkout"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-o", "environment.rar"], "a name that ends with .tar.gz"),
        (["-o", "taken.zip"], "--force"),
        (["--python", "usr"], "an absolute path"),
    ],
)
def test_mistakes_are_told_first(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.zip").touch()
    assert main(["spark", "package", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert os.listdir() == ["taken.zip"]  # noqa: PTH208 - names
