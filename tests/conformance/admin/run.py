"""Administration with the official tool and with ours: ``python -m tests.conformance.admin.run``.

The official ``mqadmin`` 5.3.3 runs every supported command against our name server and broker and against the official
ones. The stable parts of its output must be equal. ``rucola mqadmin`` then does the same, and must return the expected
exit codes. Commands about users and rules run in a second round, with brokers that require accounts. Exit status: 0 if
all results are equal, 1 if one differs, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.table import Table
from tests.conformance.admin.commands import OFFICIAL, OFFICIAL_ACCESS, OURS, OURS_ACCESS, Command
from tools.peers.packages import SERVER_VERSION, PeerError, java_program, need
from tools.peers.servers import Servers, servers
from tools.peers.wire import make_topic

from rucola.cli.main import main as rucola
from rucola.sync import Message, Producer, ProducerConfig, PullConsumer, PullConsumerConfig

HERE = Path(__file__).resolve().parent
TARGETS = ("java", "rucola")
TOPIC, GROUP = "T_admin", "G_admin"
TOOL_TIMEOUT_S = 600
TOOLS = ("mqadmin 5.3.3", "rucola mqadmin")
SETTINGS = {"traceTopicEnable": "true"}
ADMIN = {"username": "admin", "password": "a-secret-of-the-admin"}
CREDENTIALS = {"accessKey": ADMIN["username"], "secretKey": ADMIN["password"]}
ACCESS_SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps(ADMIN),
}
OFFICIAL_ACCESS_SETTINGS = {
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationProvider": "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
    "innerClientAuthenticationCredentials": json.dumps(CREDENTIALS),
}
"""Further options that the official broker needs."""
LISTS = {
    "TOPICS": [{"topicName": "T_listed", "readQueueNums": 3, "writeQueueNums": 3}],
    "GROUPS": [{"groupName": "G_listed", "retryMaxTimes": 2}],
}


@dataclass(frozen=True)
class Ended:
    """The output of a command, and its exit code; 0 for the official tool, whose exit code is not checked."""

    output: str
    code: int = 0


class OfficialTool:
    """The official tool in a Java virtual machine, together with a live producer and consumer of the official
    client.
    """

    def __init__(self, process: subprocess.Popen[str], places: dict[str, str]) -> None:
        self._process = process
        self.places = places

    def run(self, command: Command) -> Ended:
        """Runs one command.

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
def official_tool(target: Servers, home: Path, alone: bool = False) -> Iterator[OfficialTool]:
    """Starts the official tool. Unless ``alone``, also sends and consumes messages. ``home`` is a directory for the
    files that the tool reads and writes.
    """
    if not alone:
        make_topic(target.namesrv, target.broker, TOPIC, 2)
    classpath = java_program(HERE / "java", SERVER_VERSION)
    java = need("java", "install Java 17 to run the official administration tool")
    options = ["-Xmx512m", f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-Drocketmq.client.logLevel=ERROR"]
    command = [java, *options, "-cp", classpath, "admin.Tool", target.namesrv]
    command += [] if alone else [TOPIC, GROUP]
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
            places = {"NS": target.namesrv, "BROKER": target.broker, "HOME": str(home)}
            if not alone:
                places |= dict(zip(("ID", "OFFSET_ID", "CLIENT"), words[1:], strict=True))
                places |= {name: write_list(home, name) for name in LISTS} | {"OUR_ID": traced(target.namesrv)}
            yield OfficialTool(process, places)
        finally:
            timer.cancel()
            process.kill()


def our_tool(command: Command, places: dict[str, str]) -> Ended:
    """Runs ``rucola mqadmin`` in this process."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = rucola(["mqadmin", "--json", *command.line(places)])
    return Ended(output.getvalue() + errors.getvalue(), code)


def write_list(home: Path, name: str) -> str:
    """Writes a file with many topics or groups; returns its path."""
    path = home / name
    path.write_text(json.dumps(LISTS[name]))
    return str(path)


def traced(namesrv: str) -> str:
    """Sends and consumes a message with our clients, which trace it; returns its id."""
    with Producer("G_ours_P", namesrv, ProducerConfig(enable_trace=True)) as producer:
        queue = next(queue for queue in producer.message_queues(TOPIC) if queue.queue_id == 0)
        sent = producer.send(Message(TOPIC, b"traced", keys="traced"), queue)
    with PullConsumer("G_ours_C", namesrv, PullConsumerConfig(enable_trace=True)) as consumer:
        consumer.pull(sent.message_queue, sent.queue_offset)
    return sent.msg_id


def run_round(
    name: str, settings: dict[str, str], official: tuple[Command, ...], ours: tuple[Command, ...], console: Console
) -> tuple[list[Ended], list[Ended]]:
    """Runs the commands of both tools against one pair of servers; returns the results. If the broker has accounts,
    requests are signed.
    """
    guarded = "authenticationEnabled" in settings
    with (
        tempfile.TemporaryDirectory(prefix="rucola-mqadmin-") as home,
        servers(name, settings=settings) as target,
        patch.dict(os.environ, {"ROCKETMQ_HOME": home}),
    ):
        if guarded:
            (Path(home) / "conf").mkdir()
            lines = [f"{key}: {value}\n" for key, value in CREDENTIALS.items()]
            (Path(home) / "conf" / "tools.yml").write_text("".join(lines))
        with official_tool(target, Path(home), alone=guarded) as tool:
            console.print(f"{target.name}: name server {target.namesrv}, broker {target.broker}")
            return [tool.run(command) for command in official], [our_tool(command, tool.places) for command in ours]


def main(arguments: list[str]) -> int:
    """Runs all commands against both pairs of servers, and shows the differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.admin.run", description=__doc__)
    parser.add_argument("--show", action="store_true", help="print what every command prints")
    parser.add_argument("--round", action="append", choices=("plain", "access"), help="only these servers")
    parser.add_argument("--only", default="", help="only commands whose line contains this")
    options = parser.parse_args(arguments)
    console = Console()
    rounds = {"plain": (OFFICIAL, OURS), "access": (OFFICIAL_ACCESS, OURS_ACCESS)}
    ended: dict[str, list[list[Ended]]] = {tool: [[] for _ in TARGETS] for tool in TOOLS}
    chosen = [
        tuple(tuple(command for command in commands if options.only in command.words) for commands in rounds[name])
        for name in options.round or rounds
    ]
    try:
        for number, name in enumerate(TARGETS):
            for round_name, (official, ours) in zip(options.round or rounds, chosen, strict=True):
                settings = SETTINGS if round_name == "plain" else ACCESS_SETTINGS
                if name == "java" and settings is ACCESS_SETTINGS:
                    settings = settings | OFFICIAL_ACCESS_SETTINGS
                for tool, results in zip(TOOLS, run_round(name, settings, official, ours, console), strict=True):
                    ended[tool][number] += results
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    summary = Table(title="commands whose outcome is the same against both servers / total")
    summary.add_column("tool")
    summary.add_column("equal", justify="right")
    passed = True
    for tool_number, (tool_name, results) in enumerate(ended.items()):
        commands = tuple(command for pair in chosen for command in pair[tool_number])
        equal = compare(tool_name, commands, results, options.show, console)
        passed &= equal == len(commands)
        summary.add_row(tool_name, f"[{'green' if equal == len(commands) else 'red'}]{equal} / {len(commands)}[/]")
    console.print(summary)
    return 0 if passed else 1


def compare(tool: str, commands: tuple[Command, ...], results: list[list[Ended]], show: bool, console: Console) -> int:
    """Returns the number of commands with equal results; shows those that differ."""
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
