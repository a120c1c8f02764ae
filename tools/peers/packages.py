"""Packages of the official project: fetched with Maven, npm, Go, Cargo and pip when they are first needed, and kept in
``.peers/``.

Fetched files are never committed. A package folder is made once per version; delete ``.peers/`` to fetch everything
again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers"
SERVER_POM = Path(__file__).with_name("server.xml")
PROXY_POM = Path(__file__).with_name("proxy.xml")
DELTA_POM = Path(__file__).with_name("delta.xml")
DELTA_PYSPARK = "pyspark==4.2.*"
"""The newest version for which Delta is published."""
SERVER_VERSION = "5.3.3"
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
FETCH_TIMEOUT_S = 600


class PeerError(RuntimeError):
    """Raised if an official package cannot be fetched, built or started; the message says what is missing."""


def need(tool: str, why: str) -> str:
    """Path of a program that must be installed on this machine.

    Raises:
        PeerError: the program is not installed; the message names the package to install.
    """
    found = shutil.which(tool)
    if found is None:
        raise PeerError(f"{tool} not found: {why}")
    return found


def server_classpath(version: str = SERVER_VERSION) -> str:
    """Class path of the official name server and broker, from Maven Central."""
    return _classpath(SERVER_POM, version, PEERS / f"server-{version}.cp")


def proxy_classpath(version: str = SERVER_VERSION) -> str:
    """Class path of the official proxy, from Maven Central."""
    return _classpath(PROXY_POM, version, PEERS / f"proxy-{version}.cp")


def delta_classpath() -> str:
    """Class path of Delta for Spark, from Maven Central, for ``DELTA_PYSPARK``."""
    return _classpath(DELTA_POM, SERVER_VERSION, PEERS / "delta.cp")


def java_program(project: Path, version: str) -> str:
    """Compiles one of our Maven projects with ``version`` of the official libraries; returns its class path. It is
    compiled again only if a source is newer than the last build.
    """
    build = PEERS / f"{project.parent.name}-{project.name}-{version}"
    sources = [*project.glob("src/**/*.java"), project / "pom.xml"]
    stamp = build / "built"
    if not stamp.exists() or stamp.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        build.mkdir(parents=True, exist_ok=True)
        _maven(project / "pom.xml", version, "compile", f"-Dpeer.target={build}")
        stamp.touch()
    return f"{build / 'classes'}:{_classpath(project / 'pom.xml', version, build / 'classpath')}"


def node_program(project: Path) -> Path:
    """Installs the packages of one of our Node projects into a copy of its sources; returns the copy's folder."""
    build = PEERS / f"{project.parent.name}-{project.name}"
    manifest = project / "package.json"
    fresh = not (build / "node_modules").exists() or (build / "package.json").read_text() != manifest.read_text()
    build.mkdir(parents=True, exist_ok=True)
    for source in project.iterdir():
        if source.is_file():
            shutil.copyfile(source, build / source.name)
    if fresh:
        npm = need("npm", "install Node.js 18 or newer to run the ali-ons client")
        _run([npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"], cwd=build)
    return build


def go_program(project: Path) -> Path:
    """Compiles one of our Go modules; returns the program's path. Go itself recognises what has not changed."""
    target = PEERS / f"{project.parent.name}-{project.name}"
    go = need("go", "install Go 1.21 or newer to run the official Go client")
    _run([go, "build", "-o", str(target), "."], cwd=project)
    return target


def rust_program(project: Path) -> Path:
    """Compiles one of our Rust packages, called ``scenarios``; returns the program's path. Cargo itself recognises what
    has not changed. The first time takes minutes.
    """
    target = PEERS / f"{project.parent.name}-{project.name}"
    cargo = need("cargo", "install Rust to run the official Rust client")
    _run([cargo, "build", "--quiet", "--locked"], cwd=project, CARGO_TARGET_DIR=str(target))
    return target / "debug" / "scenarios"


def go_tool(module: str, version: str) -> Path:
    """Installs a published Go program; returns its path.

    Args:
        module: its module path, with the path of the command.
        version: as Go names it, ``v1.2.3``.
    """
    folder = PEERS / "go" / version
    target = folder / module.rpartition("/")[2]
    if not target.exists():
        go = need("go", "install Go 1.21 or newer to run it")
        _run([go, "install", f"{module}@{version}"], GOBIN=str(folder))
    return target


def python_packages(name: str, *requirements: str, alone: bool = True) -> Path:
    """Makes a folder with packages from PyPI, separate from all installed ones, for ``PYTHONPATH``.

    Args:
        alone: whether to leave out their dependencies.
    """
    folder = PEERS / name
    stamp = folder / "requirements"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", *(["--no-deps"] if alone else [])]
        _run([*pip, "--target", str(folder), *requirements])
        stamp.write_text(wanted)
    return folder


def _classpath(pom: Path, version: str, target: Path) -> str:
    if not target.exists() or target.stat().st_mtime < pom.stat().st_mtime:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}.part")  # several processes may need the package at once
        _maven(pom, version, f"{DEPENDENCY_PLUGIN}:build-classpath", f"-Dmdep.outputFile={part}")
        part.replace(target)
    return target.read_text().strip()


def _maven(pom: Path, version: str, goal: str, *options: str) -> None:
    maven = need("mvn", "install Maven 3.8 or newer (and Java 17) to fetch the official Java packages")
    need("java", "install Java 17 to run the official Java packages")
    repository = f"-Dmaven.repo.local={PEERS / 'm2'}"
    print(
        f"peers: {pom.parent.parent.name}/{pom.parent.name} {version}: mvn {goal.rpartition(':')[2]}", file=sys.stderr
    )
    _run([maven, "-q", "-B", "-f", str(pom), repository, f"-Drocketmq.version={version}", *options, goal])


def _run(command: list[str], cwd: Path = ROOT, **variables: str) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise PeerError(f"{Path(command[0]).name} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-3000:]}")
