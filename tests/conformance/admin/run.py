"""Administration, both ways: ``python -m tests.conformance.admin.run``.

The official ``mqadmin`` 5.3.3 runs every command claimed against our name server and broker and against the official
ones: how each ends and the stable parts of what it prints must be equal. ``rucola mqadmin`` then does the same.
Exit status: 0 all equal, 1 a difference, 2 set-up failed.
"""

from __future__ import annotations

import argparse
import base64
import io
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.conformance.admin.commands import OFFICIAL, OURS, Command
from tools.peers.packages import SERVER_VERSION, PeerError, java_program, need
from tools.peers.servers import Servers, servers
from tools.peers.wire import make_topic

from rucola.cli.main import main as rucola

HERE = Path(__file__).resolve().parent
TARGETS = ("java", "rucola")
TOPIC, GROUP = "T_admin", "G_admin"
START_TIMEOUT_S = 120
TOOL_TIMEOUT_S = 600


@dataclass(frozen=True)
class Ended:
    """What a command printed, and its exit code; the official tool has none that would tell anything."""

    output: str
    code: int = 0


class OfficialTool:
    """The official tool in a virtual machine, beside a live producer and consumer of the official client."""

    def __init__(self, process: subprocess.Popen[str], places: dict[str, str]) -> None:
        self._process = process
        self.places = places

    def run(self, command: Command) -> Ended:
        """Run one command.

        Raises:
            PeerError: the virtual machine ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join(command.line(self.places)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"the official tool ended with {command.words}")
        return Ended(base64.b64decode(line).decode(errors="replace"))


@contextmanager
def official_tool(target: Servers, home: Path) -> Iterator[OfficialTool]:
    """The tool, with the messages sent and consumed. ``home``: a directory for what it writes."""
    make_topic(target.namesrv, target.broker, TOPIC, 2)
    classpath = java_program(HERE / "java", SERVER_VERSION)
    java = need("java", "install Java 17 to run the official administration tool")
    options = ["-Xmx512m", f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-Drocketmq.client.logLevel=ERROR"]
    command = [java, *options, "-cp", classpath, "admin.Tool", target.namesrv, TOPIC, GROUP]
    with subprocess.Popen(
        command, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        timer = threading.Timer(TOOL_TIMEOUT_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            if words[:1] != ["ready"]:
                raise PeerError(f"the official client did not get ready against {target.name}")
            places = {"NS": target.namesrv, "BROKER": target.broker, "ID": words[1], "OFFSET_ID": words[2]}
            yield OfficialTool(process, places | {"CLIENT": words[3]})
        finally:
            timer.cancel()
            process.kill()


def our_tool(command: Command, places: dict[str, str]) -> Ended:
    """``rucola mqadmin`` in this process."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = rucola(["mqadmin", "--json", *command.line(places)])
    return Ended(output.getvalue() + errors.getvalue(), code)


def main(arguments: list[str]) -> int:
    """Run all commands against both pairs of servers and show what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.admin.run", description=__doc__)
    parser.add_argument("--show", action="store_true", help="print what every command prints")
    options = parser.parse_args(arguments)
    console = Console()
    ended: dict[str, list[list[Ended]]] = {"mqadmin 5.3.3": [], "rucola mqadmin": []}
    try:
        for name in TARGETS:
            with (
                tempfile.TemporaryDirectory(prefix="rucola-mqadmin-") as home,
                servers(name) as target,
                official_tool(target, Path(home)) as tool,
            ):
                console.print(f"{target.name}: name server {target.namesrv}, broker {target.broker}")
                ended["mqadmin 5.3.3"].append([tool.run(command) for command in OFFICIAL])
                ended["rucola mqadmin"].append([our_tool(command, tool.places) for command in OURS])
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    summary = Table(title="commands whose outcome is the same against both servers / total")
    summary.add_column("tool")
    summary.add_column("equal", justify="right")
    passed = True
    for (tool_name, results), commands in zip(ended.items(), (OFFICIAL, OURS), strict=True):
        equal = compare(tool_name, commands, results, options.show, console)
        passed &= equal == len(commands)
        summary.add_row(tool_name, f"[{'green' if equal == len(commands) else 'red'}]{equal} / {len(commands)}[/]")
    console.print(summary)
    return 0 if passed else 1


def compare(tool: str, commands: tuple[Command, ...], results: list[list[Ended]], show: bool, console: Console) -> int:
    """How many commands ended and printed alike; the others are shown."""
    equal = 0
    for command, theirs, ours in zip(commands, *results, strict=True):
        kept = command.keep(theirs.output), command.keep(ours.output)
        same = kept[0] == kept[1] and bool(kept[0])
        same &= all(command.as_expected(ended.output, ended.code) for ended in (theirs, ours))
        equal += same
        console.print(f"{'[green]same  [/]' if same else '[red]DIFFER[/]'} {tool:15} ", end="")
        console.print(command.words, markup=False, highlight=False, soft_wrap=True)
        if show or not same:
            for name, ended, lines in zip(TARGETS, (theirs, ours), kept, strict=True):
                shown = ended.output if show else "\n".join(lines) or ended.output
                console.print(f"--- {name}, exit {ended.code}\n{shown}", markup=False, highlight=False, soft_wrap=True)
    return equal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
