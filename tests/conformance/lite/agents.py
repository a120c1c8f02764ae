"""Programs on official clients and on the official ``mqadmin``, told what to do one line at a time.

| command | words |
|---|---|
| ``producer`` | name, topic |
| ``send`` | name of a producer, topic, lite topic, body |
| ``consumer`` | name, group, topic |
| ``subscribe`` | name, lite topic, and for Java the kind and value of an offset option |
| ``subscribe_all`` | name (Python) |
| ``unsubscribe`` | name, lite topic |
| ``topics`` | name (Java, Node.js) |
| ``behave`` | name, then ``success``, ``failure``, or for Java a wait in ms |
| ``seen`` | name; the answer has ``lite topic:body:attempt`` of each delivery |
| ``close`` | name |
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.conformance.lite.recording import Recording
from tools.peers.packages import PEERS, PeerError, java_program, need, node_program, server_classpath

HERE = Path(__file__).resolve().parent
JAVA_CLIENT = "5.2.0"
PYTHON_CLIENT = "5.1.2"
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d,\d+ \|-")
"""What the logging library of mqadmin prints of itself."""
SEEN_PATIENCE_S = 40.0
AT_A_BROKER = {"updateTopic", "updateSubGroup", "updateBrokerConfig", "getBrokerLiteInfo"}
"""Commands of mqadmin that are told the address of a broker; the others find it by the route."""


class Program:
    """A running program; use it with ``with``."""

    def __init__(self, command: list[str], **variables: str) -> None:
        log = (PEERS / "lite-agents.log").open("ab")
        self._process = subprocess.Popen(
            command,
            cwd=PEERS,
            env={**os.environ, "HOME": str(PEERS), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
        )
        log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kills the program without a farewell."""
        self._process.kill()
        self._process.wait()

    def say(self, words: tuple[str, ...]) -> None:
        """Writes one line."""
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Reads one line.

        Raises:
            PeerError: the program has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"a program ended with {self._process.wait()}; see {PEERS / 'lite-agents.log'}")
        return line.rstrip("\n")


class Clients(Program):
    """Official clients in one process; what they are told and what comes of it becomes part of the recording."""

    def __init__(self, who: str, command: list[str], recording: Recording) -> None:
        super().__init__(command)
        self._who, self._recording = who, recording

    def tell(self, *words: str) -> str:
        """Gives one command; returns what came of it, which starts with ``error`` if the client raised."""
        self._recording.note(self._who, " ".join(words))
        self.say(words)
        kind, _, outcome = self.line().partition("\t")
        found = outcome if kind == "ok" else f"error {outcome}"
        self._recording.note(self._who, f"{words[0]} {words[1]}: {found or 'ok'}".strip())
        return found

    def wait(self, name: str, wanted: int, patience_s: float = SEEN_PATIENCE_S) -> list[str]:
        """Waits until a consumer has seen a number of deliveries; returns all of them."""
        deadline = time.monotonic() + patience_s
        while True:
            self.say(("seen", name))
            seen = [one for one in self.line().partition("\t")[2].split(", ") if one]
            if len(seen) >= wanted or time.monotonic() > deadline:
                self._recording.note(self._who, f"{name} has seen", seen=seen)
                return seen
            time.sleep(0.2)


class Admin(Program):
    """The official ``mqadmin`` in one process."""

    def __init__(self, broker: str, namesrv: str, version: str, recording: Recording) -> None:
        java = need("java", "install Java 17 to run mqadmin")
        classpath = server_classpath(version)
        options = ["-Xmx256m", f"-Duser.home={PEERS}", f"-Drocketmq.home.dir={PEERS}", "-cp", classpath]
        super().__init__([java, *options, str(HERE / "LiteAdmin.java")], NAMESRV_ADDR=namesrv)
        self._broker, self._recording = broker, recording

    def run(self, command: str, *options: str) -> str:
        """Runs a command; returns its output."""
        self._recording.note("mqadmin", " ".join((command, *options)))
        broker = ("-b", self._broker) if command in AT_A_BROKER else ()
        self.say((command, *broker, *options))
        lines: list[str] = []
        while (line := self.line()) != ".":
            if not LOG_LINE.match(line):
                lines.append(line)
        printed = "\n".join(lines).strip()
        self._recording.note("mqadmin", f"{command} printed", printed=printed[:4000])
        return printed


def java_clients(endpoints: str, recording: Recording) -> Clients:
    """Starts a process with Java clients."""
    java = need("java", "install Java 17 to run the official Java client")
    classpath = java_program(HERE.parent / "grpc" / "java", JAVA_CLIENT)
    program = [java, "-Xmx256m", f"-Duser.home={PEERS}", "-cp", classpath, str(HERE / "LiteClient.java"), endpoints]
    return Clients("java", program, recording)


def python_clients(endpoints: str, recording: Recording) -> Clients:
    """Starts a process with Python clients."""
    return Clients("python", [sys.executable, str(HERE / "python_client.py"), endpoints], recording)


def node_clients(endpoints: str, recording: Recording) -> Clients:
    """Starts a process with Node.js clients."""
    node = need("node", "install Node.js 18 or newer to run the official Node.js client")
    return Clients("node", [node, str(node_program(HERE / "node") / "lite.js"), endpoints], recording)
