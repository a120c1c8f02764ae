"""The controller's calls on a real etcd: ``python -m tests.conformance.ha_etcd``.

etcd answers the calls of ``tests/unit/controller/etcd_script.py`` as recorded, so the tests' model of it is right. Then
two controllers lead in turn: the leader stops, its process is stopped and goes on, etcd is killed and started again, is
stopped for longer than a lease, is compacted, is set up anew, and asks for certificate and password. Exit status: 0 if
all checks passed, 1 if one failed, 2 if the set-up failed. ``--record`` writes the recording.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conformance.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificate, make_certificates
from tests.conformance.replica import Checks, exit_status
from tests.unit.controller.etcd_script import answers
from tools.peers.etcd import Etcd

from rucola.controller import Controller, ControllerConfig
from rucola.controller.http_gateway import HttpGateway, endpoints_of
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient
from rucola.runtime.tls import client_context

RECORDING = Path(__file__).resolve().parents[1] / "golden" / "etcd" / "calls.json"
BOTH = {"clusterName": "c", "brokerName": "a"}
WAIT_S = 30.0


def real_answers(etcd: Etcd) -> list[Any]:
    """What a real etcd answers to the calls."""

    async def work() -> list[Any]:
        gateway = HttpGateway(endpoints_of(etcd.url), 10.0)
        loop = asyncio.get_running_loop()

        def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
            return asyncio.run_coroutine_threadsafe(gateway.call(path, body), loop).result()

        found = await asyncio.to_thread(answers, call)
        await gateway.close()
        return found

    return asyncio.run(work())


class Pair:
    """Two controllers on one etcd.

    Attributes:
        controllers: both; None for one that was stopped.
    """

    def __init__(self, etcd: Etcd, checks: Checks) -> None:
        self.etcd, self._checks = etcd, checks
        self.controllers: list[Controller] = []
        self.client = RemotingClient()

    async def start(self) -> None:
        """Starts one more controller."""
        controller = Controller(ControllerConfig(etcd_endpoints=self.etcd.url, listen_port=0, etcd_timeout_ms=1000))
        await controller.start()
        self.controllers.append(controller)

    async def stop(self) -> None:
        """Stops all."""
        for controller in self.controllers:
            await controller.shutdown()
        await self.client.close()

    @property
    def leaders(self) -> list[Controller]:
        """Who leads: one, or nobody."""
        return [each for each in self.controllers if each.leadership.term is not None]

    async def until(self, what: str, count: int, at_most_s: float) -> None:
        """Checks that so many controllers lead soon."""
        began = time.monotonic()
        while len(self.leaders) != count and time.monotonic() - began < WAIT_S:
            await asyncio.sleep(0.02)
        took = time.monotonic() - began
        self._checks.check(f"{what}: {took:.1f} s", len(self.leaders) == count and took <= at_most_s, True)

    async def ask(self, code: int, **fields: object) -> RemotingCommand:
        """Asks the leader, or the first one."""
        texts = {key: str(value) for key, value in fields.items()}
        to = (self.leaders or self.controllers)[0]
        return await self.client.invoke(to.address, RemotingCommand(code, ext_fields=texts), 10_000)

    async def epoch(self) -> str:
        """The epoch of the group's master; empty if the group is not known."""
        return (await self.ask(1004, brokerName="a")).ext_fields.get("masterEpoch", "")


async def played(etcd: Etcd, checks: Checks) -> None:
    """Lets etcd fail in each way."""
    pair = Pair(etcd, checks)
    await pair.start()
    await pair.until("one leads", 1, 3)
    await pair.start()
    applied = await pair.ask(1013, **BOTH, appliedBrokerId=1, registerCheckCode="x:1;1")
    checks.check("an id is given", applied.code, 0)
    checks.check("a master is elected", (await pair.ask(1002, **BOTH, brokerId=1)).code, 0)
    gone = pair.leaders[0]
    pair.controllers.remove(gone)
    await gone.shutdown()
    await pair.until("the other follows a leader that stops", 1, 2)
    checks.check("it knows the master", await pair.epoch(), "1")
    await pair.start()
    etcd.kill()
    checks.check("without etcd the leader goes on to answer", await pair.epoch(), "1")
    refused = await pair.ask(1013, **BOTH, appliedBrokerId=2, registerCheckCode="x:2;1")
    checks.check("it changes nothing", (refused.code, "did not answer" in refused.remark), (1, True))
    await pair.until("nobody leads without etcd", 0, 6)
    checks.check("then questions are refused", (await pair.ask(1004, brokerName="a")).code, 2007)
    etcd.start()
    await pair.until("one leads when etcd is back", 1, 12)
    checks.check("it knows the master", await pair.epoch(), "1")
    etcd.stop()
    await pair.until("nobody leads while etcd is stopped", 0, 7)
    await asyncio.sleep(3)
    etcd.go_on()
    await pair.until("one leads when etcd goes on", 1, 12)
    checks.check(
        "a change is made", (await pair.ask(1013, **BOTH, appliedBrokerId=2, registerCheckCode="x:2;1")).code, 0
    )
    for _ in range(2):
        revision = json.loads(etcd.post("/v3/kv/range", b'{"key": "AA=="}'))["header"]["revision"]
        etcd.post("/v3/kv/compaction", json.dumps({"revision": revision, "physical": True}).encode())
        etcd.post("/v3/maintenance/defragment", b"{}")
        number = (await pair.ask(1012, **BOTH)).ext_fields["nextBrokerId"]
        code = f"x:{number};1"
        applied = await pair.ask(1013, **BOTH, appliedBrokerId=number, registerCheckCode=code)
        checks.check("a change after compaction", applied.code, 0)
    checks.check("one leads", len(pair.leaders), 1)
    await pair.stop()


async def anew(checks: Checks) -> None:
    """Sets etcd up anew below a controller."""
    with Etcd() as etcd:
        pair = Pair(etcd, checks)
        await pair.start()
        await pair.until("one leads", 1, 3)
        etcd.kill()
        etcd.forget()
        etcd.start()
        await pair.until("nobody leads in another cluster", 0, 7)
        await asyncio.sleep(2)
        error = pair.controllers[0].leadership.error
        checks.check("the error says why", "start the controller again" in error and "cluster" in error, True)
        await pair.controllers.pop().shutdown()
        await pair.start()
        await pair.until("a controller that was started again leads", 1, 3)
        await pair.stop()


async def guarded(checks: Checks, folder: Path) -> None:
    """Lets a controller be a user of an etcd that asks for a certificate and a password."""
    make_certificates(folder)
    make_certificate(folder, "client.pem", "client.key", "/O=controllers")
    with Etcd(folder) as etcd:
        authority, certificate, key = (str(folder / name) for name in (AUTHORITY, "client.pem", "client.key"))
        config = ControllerConfig(
            etcd_endpoints=etcd.url,
            listen_port=0,
            etcd_trust_cert_path=authority,
            etcd_cert_path=certificate,
            etcd_key_path=key,
        )
        named = replace(config, etcd_cert_path=str(folder / CERTIFICATE), etcd_key_path=str(folder / KEY))
        gateway = HttpGateway(endpoints_of(etcd.url), 10.0, tls=client_context(authority, certificate, key))
        await gateway.call("/v3/auth/user/add", {"name": "root", "password": "a secret"})
        await gateway.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        await gateway.call("/v3/auth/enable", {})
        for what, settings, expected in (
            ("a controller without password is refused", config, "refused"),
            ("a wrong password is refused", replace(config, etcd_user="root", etcd_password="other"), "refused"),
            ("a certificate with a name is refused", named, "CommonName"),
            ("no certificate is refused", replace(config, etcd_cert_path="", etcd_key_path=""), "did not answer"),
            ("a user with a certificate leads", replace(config, etcd_user="root", etcd_password="a secret"), ""),
        ):
            controller = Controller(settings)
            await controller.start()
            began = time.monotonic()
            while not (controller.leadership.term or controller.leadership.error) and time.monotonic() - began < WAIT_S:
                await asyncio.sleep(0.02)
            error = controller.leadership.error
            checks.check(what, (expected in error, controller.leadership.term is not None), (True, not expected))
            print(f"     {error}" if error else "     it leads", flush=True)
            await controller.shutdown()
        await gateway.close()


def main(arguments: list[str]) -> int:
    """Compares the answers, then plays the scenarios."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.ha_etcd", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the recording")
    options = parser.parse_args(arguments)

    def play(checks: Checks) -> None:
        with Etcd() as etcd:
            found = real_answers(etcd)
            if options.record:
                RECORDING.parent.mkdir(parents=True, exist_ok=True)
                RECORDING.write_text(json.dumps(found, indent=1) + "\n")
            checks.check("etcd answers as recorded", found, json.loads(RECORDING.read_text()))
            asyncio.run(played(etcd, checks))
        asyncio.run(anew(checks))
        with TemporaryDirectory(prefix="rucola-etcd-tls-") as folder:
            asyncio.run(guarded(checks, Path(folder)))

    return exit_status(play)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
