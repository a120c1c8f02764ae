"""The commands of ``rucola spark``. ``rucola spark package`` makes an archive with a Python environment for Spark's
executors.

Executors need PyArrow, this package with compiled kernels, and the dependencies of these two. They need neither a
compiler nor PySpark, which is part of Spark. The archive is made from a fresh environment, so that it contains nothing
unneeded.

Exit codes: 0 success, 1 the command failed, 2 usage, 5 the store is damaged, 6 the disk is full or fails, 130 after
Ctrl-C.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Annotated

import typer

from rucola.cli import spark_archive
from rucola.cli.spark_replay import replay
from rucola.cli.tool import run_app, tool_app
from rucola.errors import ConfigError, MissingProgramError
from rucola.runtime import extras
from rucola.spark.failures import one_line

app = tool_app("spark", "Archive and replay topics, and prepare Spark's executors.")
ENDINGS = (".tar.gz", ".tgz", ".zip")
"""Endings of the names of archives that Spark unpacks."""
STORE_COMMANDS = ("find", "rebuild", "repair", "salvage", "stats", "verify")
"""Commands of ``rucola store`` that run in Spark, too."""
LEFT_OUT = (
    "*/__pycache__/*", "*.dist-info/RECORD", "*/site-packages/pip/*", "*/site-packages/pip-*", "*/tests/*",
    "*/site-packages/setuptools/*", "*/site-packages/setuptools-*", "*/site-packages/pyspark/*",
    "*/site-packages/pyspark-*", "*/pyarrow/include/*", "*/pyarrow/src/*", "*.pyx", "*.pxd",
)  # fmt: skip
"""Files that executors have no use for."""
_COMPILED = "from rucola.formats import _message_cy; raise SystemExit(not _message_cy._is_compiled())"


def run(arguments: list[str]) -> int:
    """Runs one ``rucola spark`` command; returns the exit code.

    Raises:
        RucolaError: the command failed.
        typer.TyperException: the command line is wrong.
    """
    if arguments[:1] and arguments[0] in STORE_COMMANDS:
        raise typer.TyperException(f"rucola spark {arguments[0]} is now rucola store {arguments[0]} --spark MASTER")
    with one_line():
        return run_app(app, arguments)


app.command()(spark_archive.archive)
app.command()(spark_archive.compact)
app.command()(spark_archive.restore)
app.command(no_args_is_help=True)(replay)


@app.command()
def package(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Archive to write: .tar.gz or .zip.")
    ] = Path("environment.tar.gz"),
    requirement: Annotated[
        str | None,
        typer.Option("--rucola", metavar="REQUIREMENT", help="Wheel, directory or version. [default: the one in use]"),
    ] = None,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar="REQUIREMENT", help="A further package; may be repeated.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="DIR",
            help="Python's directory on executors, such as /usr. [default: as on this machine]",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the archive if there is one.")] = False,
) -> None:
    """Make an archive for ``spark-submit --archives FILE#environment``."""
    extras.require(extras.PACKAGE, "rucola spark package")
    if not output.name.endswith(ENDINGS):
        raise ConfigError("--output", str(output), "a name that ends with " + ", ".join(ENDINGS))
    if output.exists() and not force:
        raise ConfigError("--output", str(output), "a file that does not exist yet, or --force")
    if python is not None and not python.startswith("/"):
        raise ConfigError("--python", python, "an absolute path, such as /usr for /usr/bin/python3.11")
    with tempfile.TemporaryDirectory(prefix="rucola-spark-") as directory:
        place = Path(directory, "environment")
        venv.create(place, with_pip=True, symlinks=True)
        install(place, [requirement or own_requirement(), *(add or [])])
        pack(place, output, python)
    size = output.stat().st_size / 1e6
    sys.stdout.write(f"{output}: {size:.0f} MB, for Python {sys.version_info.major}.{sys.version_info.minor}\n")


def own_requirement() -> str:
    """The requirement that installs this package again: from the source that pip recorded, or else by its version."""
    this = distribution("rucola-mq")
    origin = this.read_text("direct_url.json")
    if origin is None:
        return f"rucola-mq[executor]=={this.version}"
    return f"rucola-mq[executor] @ {json.loads(origin)['url']}"


def with_extra(requirement: str) -> str:
    """Adds the extra ``executor`` to a requirement that is a path; returns any other requirement unchanged."""
    return f"{requirement}[executor]" if os.path.exists(requirement) else requirement  # noqa: PTH110 - text in, text out


def install(place: Path, requirements: Sequence[str]) -> None:
    """Installs ``requirements`` into the environment at ``place``; the first of them is this package.

    Raises:
        MissingProgramError: pip failed, or there was no compiler for the kernels.
    """
    python = str(place / "bin" / "python")
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    done = subprocess.run(
        [*command, with_extra(requirements[0]), *requirements[1:]],
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MissingProgramError("pip", f"exit {done.returncode}", done.stderr.strip() or done.stdout.strip())
    if subprocess.run([python, "-c", _COMPILED], env=plain, check=False, stderr=subprocess.DEVNULL).returncode:
        advice = "install gcc (Debian and Ubuntu: apt-get install build-essential), or give --rucola a compiled wheel"
        raise MissingProgramError("A C compiler", "kernels that are not compiled", advice)


def pack(place: Path, output: Path, python: str | None = None) -> None:
    """Writes the environment at ``place`` as an archive.

    Args:
        place: a virtual environment of this interpreter; it is changed to use the executors' interpreter.
        output: the archive; an existing file is replaced.
        python: directory whose ``bin`` has the executors' interpreter; None if they have it at the same path as this
            machine.
    """
    from venv_pack import Env

    _link(place, python)
    # With pyvenv.cfg in the archive, the interpreter finds the packages wherever Spark unpacks them.
    environment = Env(str(place))
    for pattern in LEFT_OUT:
        environment = environment.exclude(pattern)
    environment.pack(str(output), force=True)


def _link(place: Path, python: str | None) -> None:
    """Links the environment to ``{python}/bin/pythonX.Y``, where X.Y is the version of this interpreter. This machine
    need not have that file. If ``python`` is None, nothing changes.
    """
    if python is None:
        return
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for link in (place / "bin").glob("python*"):
        link.unlink()
    (place / "bin" / name).symlink_to(f"{python.rstrip('/')}/bin/{name}")
    for other in ("python", "python3"):
        (place / "bin" / other).symlink_to(name)
    settings = place / "pyvenv.cfg"
    lines = settings.read_text().splitlines()
    kept = [line for line in lines if line.partition("=")[0].strip() not in ("home", "executable", "command")]
    settings.write_text("\n".join([f"home = {python.rstrip('/')}/bin", *kept, ""]))
