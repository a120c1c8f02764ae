"""Our consumers against our servers and the official ones: ``python -m tests.conformance.python_client``.

Each scenario has its own topics and groups. In ``share_*``, two consumers of ours and one of Java's share a group, with
every allocation strategy, while members come and go. ``rucola.testing.queue_checker`` checks the histories. Exit
status: 0 if all passed, 1 if a scenario failed, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.conformance import python_scenarios, python_sharing
from tools.peers.packages import PeerError
from tools.peers.servers import JavaServers, RucolaServers, Servers

from rucola import Message, Producer, ProducerConfig

SERVERS = ("rucola", "4.9.7", "5.3.3", "5.5.0")
BROKER_NAME = "room1@broker-a"
"""Name of the broker in the form that the strategy by machine room needs."""
SETTINGS = {"messageDelayLevel": "1s" + 17 * " 1s", "enablePropertyFilter": "true"}
SCENARIO_TIMEOUT_S = 120.0

Scenario = Callable[["Scene"], Awaitable[None]]


@dataclass(frozen=True)
class Scene:
    """The environment of a scenario.

    Attributes:
        namesrv: the name server.
        kind: one of ``SERVERS``.
        name: name of the scenario; the names of topic and group contain it.
        steps: lines that say what was done so far and how long it took; shown if the scenario fails.
    """

    namesrv: str
    kind: str
    name: str
    steps: list[str] = field(default_factory=list)

    @property
    def topic(self) -> str:
        """Name of a topic that only this scenario uses."""
        return f"topic_{self.name}"

    @property
    def group(self) -> str:
        """Name of a group that only this scenario uses."""
        return f"group_{self.name}"


class OfficialServers(JavaServers):
    """The official servers, with ``BROKER_NAME`` and with the logging configuration that versions before 5.0 need."""

    def _start(self) -> None:
        folder = self._temporary / "home" / "conf"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker"):
            (folder / f"logback_{name}.xml").write_text("<configuration/>\n")
        super()._start()

    def _start_broker(self, broker_name: str) -> str:
        return super()._start_broker(BROKER_NAME)


def servers(kind: str) -> Servers:
    """Returns the servers to run against."""
    if kind == "rucola":
        return RucolaServers(settings=SETTINGS | {"brokerName": BROKER_NAME})
    return OfficialServers(version=kind, settings=SETTINGS)


def main(arguments: list[str]) -> int:
    """Runs the scenarios; prints one JSON line for each, and a summary."""
    scenarios: dict[str, Scenario] = {**python_scenarios.SCENARIOS, **python_sharing.SCENARIOS}
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.python_client", description=__doc__)
    parser.add_argument("--servers", action="append", choices=SERVERS, help="only these servers; all by default")
    parser.add_argument("scenario", nargs="*", choices=[[], *scenarios], help="only these scenarios")
    options = parser.parse_args(arguments)
    failed = False
    for kind in options.servers or SERVERS:
        try:
            if not options.scenario or python_sharing.SCENARIOS.keys() & options.scenario:
                python_sharing.JavaMember.classpath()  # compiles before the scenario starts
            with servers(kind) as pair:
                asyncio.run(_warm_up(pair.namesrv))
                passed = [_run(pair, kind, name, scenarios[name]) for name in options.scenario or scenarios]
        except PeerError as error:
            print(error, file=sys.stderr)
            return 2
        print(f"{kind}: {sum(passed)} of {len(passed)} passed", flush=True)
        failed |= not all(passed)
    return int(failed)


async def _warm_up(namesrv: str) -> None:
    """Sends one message with a long timeout. A Java broker on a busy machine needs longer for its first message than
    the default timeout.
    """
    async with Producer("python", namesrv, ProducerConfig(send_msg_timeout_ms=30_000)) as producer:
        await producer.send(Message("warm_up", b"first"))


def _run(pair: Servers, kind: str, name: str, scenario: Scenario) -> bool:
    began = time.monotonic()
    details: dict[str, object] = {}
    scene = Scene(pair.namesrv, kind, name)

    async def work() -> None:
        async with asyncio.timeout(SCENARIO_TIMEOUT_S):
            await scenario(scene)

    try:
        asyncio.run(work())
    except Exception as error:  # noqa: BLE001  # what a scenario fails with is its outcome
        details["error"] = f"{type(error).__name__}: {error}"[:2000]
        details["steps"] = scene.steps
    details["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps({"servers": kind, "name": name, "ok": "error" not in details, "details": details}), flush=True)
    return "error" not in details


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
