"""Instructions that the broker executes for each message, beside those of an earlier version.

    python -m bench.instructions --before DIRECTORY

Times of two processes differ by 15 % on a virtual machine even if both run the same code. Instructions are counted by
Valgrind (Debian package ``valgrind``), and two runs differ by less than 1 %. System calls count as one instruction, so
this shows the cost of our own code only.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

from tools.peers.packages import ROOT, need
from tools.peers.servers import RucolaServers

from bench.program import Program, python_load, scratch_directory

MORE_MAX = 1.03
"""A count is worse if it exceeds that of the earlier version by more than this factor."""
SENT = 20_000
PULLED = 60_000
FRAMES = {"send, prepared frames, 1 KiB": (1024, 64), "send, prepared frames, 128 B": (128, 256)}
CLIENT = {
    "send, our client, 1 KiB, 1 in flight": "1 2000",
    "send, our client, 1 KiB, 64 in flight": f"64 {SENT}",
    "send, our client, 1 KiB, batches of 32": f"16 {SENT} 32",
}
PULLS = {"pull, 1 in flight": f"{PULLED} 1", "pull, 8 in flight": f"{PULLED} 8"}
_TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


class CountedServers(RucolaServers):
    """``rucola up`` whose instructions are counted.

    Args:
        tree: the working tree whose servers run.
        folder: where Valgrind writes its counts.
    """

    def __init__(self, tree: Path, folder: Path) -> None:
        super().__init__(tree=tree)
        self._folder = folder

    def _spawn(self, command: list[str], log: str, environment: dict[str, str], capture: bool = False) -> Popen[bytes]:
        counted = [need("valgrind", "install it"), "--tool=callgrind", f"--callgrind-out-file={self._folder}/%p"]
        return super()._spawn([*counted, *command], log, environment, capture)

    def count(self, program: Program, line: str) -> float:
        """Returns the number of instructions for each message of one round."""
        (pid,) = self.pids
        subprocess.run(["callgrind_control", "--zero", str(pid)], capture_output=True, check=True)
        messages = program.round(line).messages
        before = set(self._folder.iterdir())
        subprocess.run(["callgrind_control", "--dump", str(pid)], capture_output=True, check=True)
        while not (written := set(self._folder.iterdir()) - before):
            time.sleep(0.1)
        found = _TOTAL.search(written.pop().read_text())
        assert found is not None, "Valgrind wrote no total"
        return int(found[1]) / messages


def counts(tree: Path) -> Iterator[tuple[str, float]]:
    """Yields the name and the count of each measurement; each has a round that warms up first."""
    with scratch_directory() as folder, CountedServers(tree, Path(folder)) as servers:
        for name, (body_bytes, in_flight) in FRAMES.items():
            arguments = (f"instructions_{body_bytes}", str(body_bytes))
            with python_load("load_frames", servers.namesrv, servers.broker, *arguments, servers=servers) as program:
                yield name, _second(servers, program, f"{in_flight} {SENT}")
        with python_load("load_client", "send", servers.namesrv, "instructions", "1024", servers=servers) as program:
            for name, line in CLIENT.items():
                yield name, _second(servers, program, line)
        with python_load("load_client", "pull", servers.namesrv, "instructions", servers=servers) as program:
            for name, line in PULLS.items():
                yield name, _second(servers, program, line)


def _second(servers: CountedServers, program: Program, line: str) -> float:
    program.round(line)
    return servers.count(program, line)


def main() -> int:
    """Counts both versions; exit status 1 if ours needs more instructions for a message."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("--before", type=lambda text: Path(text).resolve(), required=True, metavar="DIRECTORY")
    before = dict(counts(parser.parse_args().before))
    worse = False
    for name, ours in counts(ROOT):
        ratio = ours / before[name]
        worse |= ratio > MORE_MAX
        print(f"{name:42} {ours:10,.0f} {before[name]:10,.0f} before, {ratio:.3f}x", flush=True)
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
