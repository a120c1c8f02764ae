"""Checks the wheels of ``tools/wheels.py`` as a release: ``python tools/release_check.py [--dist DIR]``.

It checks the metadata, the README as package indexes render it (twine), the licence, the files and their size, and that
version, changelog and wheels agree. Every fault is reported; if there is one, the exit status is 1.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("cp311", "cp312", "cp313")
COMPILED_MB_MAX, PURE_MB_MAX = 4.0, 2.5
"""Largest sizes of wheels. The first wheels had 1.6 and 1.1 MB; the limits detect files that do not belong there."""


def main() -> int:
    """Runs the checks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    wheels = sorted(options.dist.glob("*.whl"))
    faults = [*_missing(wheels)]
    for wheel in wheels:
        faults += [f"{wheel.name}: {fault}" for fault in check_wheel(wheel)]
    faults += _changelog()
    faults += _twine(wheels)
    for fault in faults:
        print(fault)
    print(f"{len(wheels)} wheels, {len(faults)} faults")
    return 1 if faults else 0


def check_wheel(path: Path) -> Iterator[str]:
    """Finds the faults of one wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pure = path.name.endswith("-py3-none-any.whl")
    size_mb, size_mb_max = path.stat().st_size / 1e6, PURE_MB_MAX if pure else COMPILED_MB_MAX
    if size_mb > size_mb_max:
        yield f"{size_mb:.1f} MB, at most {size_mb_max} are allowed"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(info).decode())
        licence = [name for name in names if name.endswith("licenses/LICENSE")]
        if not licence or archive.read(licence[0]) != (ROOT / "LICENSE").read_bytes():
            yield "LICENSE is missing or has different content"
    yield from _metadata_faults(metadata.get_all, project)
    modules = {name for name in names if name.startswith("rucola/") and name.endswith(".py")}
    expected = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src" / "rucola").rglob("*.py")}
    if modules != expected:
        yield f"modules that differ from the source: {sorted(modules ^ expected)[:5]}"
    if "rucola/py.typed" not in names:
        yield "py.typed is missing"
    kernels = {name.partition(".")[0] for name in names if name.endswith(".so") and "_cy." in name}
    wanted = set() if pure else {name[:-3] for name in expected if name.endswith("_cy.py")}
    if kernels != wanted:
        yield f"compiled kernels: {sorted(kernels)}, not {sorted(wanted)}"
    strange = [name for name in names if re.search(r"(^|/)tests?/|\.c$|\.pyc$|\.orig$", name)]
    if strange:
        yield f"files that do not belong there: {strange[:5]}"
    if not pure and "manylinux" not in path.name:
        yield "no manylinux tag, so auditwheel has not repaired it"


def _metadata_faults(get_all, project) -> Iterator[str]:  # type: ignore[no-untyped-def]
    said = {name: (get_all(name) or [""])[0] for name in ("Name", "Version", "Requires-Python", "License-Expression")}
    wanted = (project["name"], _version(), project["requires-python"], project["license"])
    if tuple(said.values()) != wanted:
        yield f"metadata says {said}, pyproject.toml {wanted}"
    extras = set(get_all("Provides-Extra") or ())
    if extras != set(project["optional-dependencies"]):
        yield f"extras {sorted(extras)}"
    if (get_all("Description-Content-Type") or [""])[0] != "text/markdown":
        yield "the README is not in the metadata"


def _missing(wheels: list[Path]) -> Iterator[str]:
    for python in PYTHONS:
        if not any(f"-{python}-{python}-" in wheel.name for wheel in wheels):
            yield f"no wheel for {python}"
    if not any(wheel.name.endswith("-py3-none-any.whl") for wheel in wheels):
        yield "no pure wheel"


def _changelog() -> Iterator[str]:
    version = _version()
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if heading is None or heading[1] != version:
        yield f"CHANGELOG.md begins with {heading and heading[1]}, the version is {version}"


def _version() -> str:
    """The version in the source, where the build takes it from."""
    text = (ROOT / "src" / "rucola" / "__init__.py").read_text()
    return str(re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)[0])


def _twine(wheels: list[Path]) -> Iterator[str]:
    if wheels:
        ran = subprocess.run(
            [sys.executable, "-m", "twine", "check", "--strict", *map(str, wheels)],
            check=False,
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            yield f"twine: {ran.stdout}{ran.stderr}"


if __name__ == "__main__":
    sys.exit(main())
