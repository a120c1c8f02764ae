"""``rucola replica --rejoin`` behind an official master that lost its newest messages: ``python -m
tests.conformance.rejoin``.

A replica copies a master. The master stops, its directory is put back to what it was before, and it writes on: its log
and the copy part. Without the option, the replica refuses; with it, it goes back and copies the rest. Then ``rucola
store compare``, ``rucola store verify`` and the official store judge the copy. At last, the official store must not
open a directory whose cut is planned. Exit status: 0 if all checks passed, 1 if one failed, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conformance.replica import SETTINGS, WAIT_S, Checks, Copy, compare, exit_status, log_of, produce, wait
from tests.conformance.store.run import Case, OfficialError, official
from tools.peers.packages import SERVER_VERSION
from tools.peers.servers import OURS, JavaServers

from rucola.runtime.files import Files
from rucola.store.recovery.log_cut import CutPlan, plan_cut


def main(arguments: list[str]) -> int:
    """Runs the scenario."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.rejoin", description=__doc__)
    parser.add_argument("--messages", type=int, default=600, help="number of messages")
    options = parser.parse_args(arguments)

    def play(checks: Checks) -> None:
        with TemporaryDirectory(prefix="rucola-rejoin-") as directory:
            run(checks, Path(directory), options.messages)

    return exit_status(play)


def run(checks: Checks, directory: Path, messages: int) -> None:
    """Lets a master lose messages, and a copy go back."""
    master, copy, before = directory / "master", directory / "copy", directory / "before"
    with JavaServers(settings=SETTINGS, store=master) as servers:
        asyncio.run(produce(servers.namesrv, messages))
    shutil.copytree(master, before)
    common = len(log_of(before))
    with JavaServers(settings=SETTINGS, store=master) as servers:
        asyncio.run(produce(servers.namesrv, messages))
        first = Copy(servers, copy, "--until", "now")
        checks.check(f"the copy is complete ({first.end()[-300:]!r})", first.process.returncode, 0)
    lost = log_of(copy)
    shutil.rmtree(master)
    before.rename(master)
    with JavaServers(settings=SETTINGS, store=master) as servers:
        refused = Copy(servers, copy)
        errors = refused.end()
        checks.check(f"a master that ends before the copy ({errors[-300:]!r})", refused.process.returncode, 1)
        checks.check("the refusal names the option", "--rejoin" in errors, True)
        asyncio.run(produce(servers.namesrv, messages // 2))
        following = Copy(servers, copy, "--rejoin")
        wait("the copy goes back", (copy / "quarantine").exists)
        asyncio.run(produce(servers.namesrv, messages))
        following.end(signal.SIGTERM)
        time.sleep(8)  # delayed messages are delivered
        last = Copy(servers, copy, "--until", "now")
        errors = last.end()
        checks.check(f"the copy follows without the option again ({errors[-300:]!r})", last.process.returncode, 0)
    check_quarantine(checks, copy / "quarantine", lost, common)
    found = compared(master, copy)
    checks.check("rucola store compare", (found["same"], found["difference"]), (True, None))
    checks.check("the copy lacks nothing", found["second"]["lacks_behind"]["messages"], 0)
    compare(checks, directory)
    plan_cut(Files(), str(copy / "commitlog"), CutPlan(common, 0))
    (directory / "list").write_text("queue\tCopied\t0")
    try:
        official(Case(SERVER_VERSION, False, False), copy, directory / "list")
        checks.check("the official store opens a directory whose cut is planned", "opened", "refused")
    except OfficialError as error:
        # It has opened this directory before the plan was there.
        is_refused = "load() is false" in str(error)
        checks.check(
            f"the official store opens no directory whose cut is planned ({str(error)[:80]!r})", is_refused, True
        )


def check_quarantine(checks: Checks, place: Path, lost: bytes, common: int) -> None:
    """Checks that all bytes that only the copy had are in ``quarantine/``."""
    kept = bytearray(len(lost))
    manifests = [json.loads(path.read_text()) for path in sorted(place.glob("*.json"))]
    for manifest in manifests:
        start = manifest["physicalOffset"]
        content = (place / f"{start:020d}").read_bytes()
        kept[start : start + len(content)] = content
    parted = min(manifest["physicalOffset"] for manifest in manifests)
    print(f"the logs parted at {parted}; the master had {common} bytes, the copy {len(lost)}")
    checks.check("the copy goes back to where the master had ended, at most", parted <= common, True)
    checks.check("what only the copy had is in quarantine", kept[parted:] == lost[parted:], True)


def compared(first: Path, second: Path) -> dict[str, Any]:
    """Runs ``rucola store compare``."""
    done = subprocess.run(
        [sys.executable, "-m", "rucola", "store", "compare", str(first), str(second), "--json"],
        env={**os.environ, **OURS},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    facts: dict[str, Any] = json.loads(done.stdout or "{}")
    return facts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
