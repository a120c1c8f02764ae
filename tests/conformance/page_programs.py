"""The programs of the page ``docs/rocketmq5.md`` in languages other than Python, as a reader would run them: the
commands and the program of a section, unchanged, in an empty folder.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.grpc.scenarios import Admin
from tools.peers.packages import DEPENDENCY_PLUGIN, PEERS, ROOT, PeerError, need
from tools.peers.servers import RucolaServers

PAGE = ROOT / "docs" / "rocketmq5.md"
ADDRESS = "127.0.0.1:8081"
OUTPUT = 'UA {"delay": 11}'
"""What each program prints."""
TIMEOUT_S = 600.0
"""The Rust client is compiled in minutes."""
_MAVEN = f"mvn -q -B -Dmaven.repo.local={PEERS / 'm2'} {DEPENDENCY_PLUGIN}:build-classpath -Dmdep.outputFile=classpath"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>flights</groupId>
  <artifactId>flights</artifactId>
  <version>1</version>
  <dependencies>
{dependency}  </dependencies>
</project>
"""


@dataclass(frozen=True)
class Program:
    """A program of the page.

    Attributes:
        section: heading of its section.
        language: of its block.
        file: where it belongs.
        tool: what builds it, and what to do if that is missing.
        build: builds it, after the commands of the section.
        run: runs it.
    """

    section: str
    language: str
    file: str
    tool: tuple[str, str]
    build: tuple[str, ...]
    run: tuple[str, ...]


PROGRAMS = (
    Program(
        "Java",
        "java",
        "Flights.java",
        ("mvn", "install Maven 3.8 or newer, and Java 17"),
        (_MAVEN,),
        ("java", "-cp", "{classpath}", "Flights.java"),
    ),
    Program("Go", "go", "main.go", ("go", "install Go 1.21 or newer"), ("go build -o flights .",), ("./flights",)),
    Program("Node.js", "js", "flights.js", ("npm", "install Node.js 18 or newer"), (), ("node", "flights.js")),
    Program(
        "Rust",
        "rust",
        "src/main.rs",
        ("cargo", "install Rust"),
        (f"cargo build --quiet --target-dir {PEERS / 'grpc-rust'}",),
        (str(PEERS / "grpc-rust" / "debug" / "flights"),),
    ),
)


def run_programs() -> bool:
    """Runs the programs of the page, each against servers of its own; returns whether all passed."""
    return min([passes(program) for program in PROGRAMS])


def passes(program: Program) -> bool:
    """Runs one program against ``rucola up``; shows what it printed if that is wrong.

    Raises:
        PeerError: it could not be built, or ``rucola up`` did not get the port.
    """
    need(*program.tool)
    with tempfile.TemporaryDirectory(prefix="rucola-page-") as directory:
        folder = Path(directory)
        _build(program, PAGE.read_text(encoding="utf-8"), folder)
        classpath = folder / "classpath"
        words = {"classpath": classpath.read_text() if classpath.exists() else ""}
        servers = RucolaServers(grpc=True)
        servers.proxy = ADDRESS
        with servers:
            Admin(servers.broker).topic("flights", "NORMAL", 8)
            home = {"HOME": directory, "JAVA_TOOL_OPTIONS": f"-Duser.home={directory}"}  # for logs of the client
            done = _run([word.format(**words) for word in program.run], folder, home)
    good = done.returncode == 0 and OUTPUT in done.stdout.splitlines()
    print(f"{PAGE.relative_to(ROOT)}, {program.section}: {'passed' if good else 'failed'}", flush=True)
    if not good:
        print(done.stdout[-3000:] + done.stderr[-3000:], flush=True)
    return good


def _build(program: Program, page: str, folder: Path) -> None:
    """Does what the section says, then builds the program."""
    section = section_of(page, program.section)
    commands = [line[2:] for block in blocks(section, "console") for line in block.splitlines()]
    for dependency in blocks(section, "xml"):
        (folder / "pom.xml").write_text(_POM.format(dependency=dependency))
    for command in commands:
        _checked(command, folder)
    (source,) = blocks(section, program.language)
    path = folder / program.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    for command in program.build:
        _checked(command, folder)


def section_of(page: str, heading: str) -> str:
    """The text of a section."""
    return page.partition(f"### {heading}\n")[2].partition("\n## ")[0].partition("\n### ")[0]


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def _checked(command: str, folder: Path) -> None:
    done = _run(shlex.split(command), folder, {})
    if done.returncode:
        raise PeerError(f"{command} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-3000:]}")


def _run(command: list[str], folder: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
