"""The table of requests: every entry is served, and its processor is created by its first request."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import Cluster, run
from tests.unit.broker.test_pop import pop_fields

from rucola.broker import lazy_processors
from rucola.broker.requests import ACCOUNT_REQUESTS, REQUESTS, USER_REQUESTS
from rucola.formats.message import decode_messages
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.testing.clock import ManualClock

EVERY = [*REQUESTS.values(), *ACCOUNT_REQUESTS.values(), *USER_REQUESTS.values()]
CARRIED = {
    "dead_letter",
    "inner_batch",
    "send",
    "send_response",
    "send_rewrite",
}
"""Modules that a first send loads: its processor, and what this needs."""


def test_every_request_is_served_by_a_method_of_its_family(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path, stores={"enable_lmq": True, "enable_multi_dispatch": True}) as cluster:
            table = cluster.broker._serving.processors
            assert set(REQUESTS) <= table.codes
            assert not table.codes & (set(ACCOUNT_REQUESTS) | set(USER_REQUESTS)), "needed only with access control"
            for code in sorted(table.codes):
                answer = await cluster.ask(code, {})
                assert "not supported" not in (answer.remark or ""), code
                assert not (answer.remark or "").startswith(("AttributeError", "ImportError", "ModuleNotFound")), code
            assert not table._makers, "all made"

    run(scene())


def test_a_family_is_one_object_and_its_changes_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rucola.broker.requests")

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            made = cluster.broker._serving.processors._processors
            for code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG):
                await cluster.ask(code, {})
            assert _owner(made[RequestCode.UPDATE_BROKER_CONFIG]) is _owner(made[RequestCode.GET_BROKER_CONFIG])
            assert not caplog.records
            for _ in range(2):
                await cluster.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
            assert [record.rucola_fields["groupName"] for record in caplog.records] == ["g", "g"]

    run(scene())


def test_a_processor_that_could_not_be_made_is_tried_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            table = cluster.broker._serving.processors
            failures = iter([OSError("no file descriptor is free")])

            def make() -> Any:
                for failure in failures:
                    raise failure
                return lambda _channel, command: command.answer(0, "made")

            table.register_later(9999, make)
            answers = [
                await cluster.client.invoke(cluster.broker.address, RemotingCommand(9999), 5000) for _ in range(3)
            ]
            assert [(answer.code, answer.remark) for answer in answers] == [
                (1, "OSError: no file descriptor is free"),
                (0, "made"),
                (0, "made"),
            ]

    run(scene())


def test_a_broker_does_not_import_what_nobody_asked_for() -> None:
    script = "import sys, rucola.broker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "rucola.broker.requests" in loaded
    processors = {name.rpartition(".")[2] for name in loaded if name.startswith("rucola.broker.processor.")}
    assert processors == CARRIED
    assert not [name for name in loaded if name.startswith("rucola.broker.pop.")]


def test_every_family_has_requests() -> None:
    defined = {value for value in vars(lazy_processors).values() if isinstance(value, lazy_processors.LazyProcessor)}
    assert defined == {request.source for request in EVERY} == set(lazy_processors.ALL)


FRESH = """
import asyncio, sys, threading
from pathlib import Path
from tests.brokers import Cluster
from rucola.broker import lazy_processors
from rucola.broker.requests import REQUESTS
from rucola.runtime.background_imports import is_imported
from rucola.namesrv.administration import REQUESTS as ASKED_OF_NAME_SERVERS
from rucola.protocol.command import RemotingCommand

class Watch:
    seen = []
    def find_spec(name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            Watch.seen.append(name)

async def scene():
    async with Cluster(Path(sys.argv[1]), enable_property_filter=True) as cluster:
        before = set(sys.modules)
        sys.meta_path.insert(0, Watch)
        cluster.broker.import_filters()
        async with asyncio.timeout(30):
            early = [lazy.module for lazy in lazy_processors.IMPORTED_EARLY]
            while not all(map(is_imported, [*early, lazy_processors.SQL_GRAMMAR])):
                await asyncio.sleep(0.01)
        assert not is_imported(lazy_processors.statistics.module), "nobody asked for it"
        for code in REQUESTS:
            await cluster.ask(code, {})
        for code in ASKED_OF_NAME_SERVERS:
            await cluster.client.invoke(cluster.namesrv.address, RemotingCommand(code), 5000)
        sys.meta_path.remove(Watch)
        print(len(set(sys.modules) - before), Watch.seen)

asyncio.run(scene())
"""


def test_no_request_makes_the_loop_import_anything(tmp_path: Path) -> None:
    """Before the fix, the first request to a processor imported modules, which blocked the event loop for a second, so
    that the first pop was refused as too late.
    """
    command = [sys.executable, "-c", FRESH, str(tmp_path)]
    root = str(Path(__file__).parents[3])
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root, env={"PYTHONPATH": root})
    imported, _, on_the_loop = done.stdout.strip().partition(" ")
    assert int(imported) > 30
    assert on_the_loop == "[]"


def test_others_are_served_while_a_family_is_imported_and_nobody_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        clock = ManualClock(1_700_000_000_000)
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"popped")
            services, gate, there = cluster.broker.services, asyncio.Event(), []
            monkeypatch.setattr("rucola.broker.requests.is_imported", lambda _module: bool(there))
            loop = asyncio.get_running_loop()
            late_s = [0.0]
            time = loop.time
            monkeypatch.setattr(loop, "time", lambda: time() + late_s[0])

            async def get(_module: str) -> None:
                await gate.wait()
                there.append(True)

            monkeypatch.setattr(services.imports, "get", get)
            monkeypatch.setattr(services.clock, "wall_ms", clock.wall_ms, raising=False)
            fields = pop_fields(bornTime=clock.wall_ms())
            pops = [asyncio.ensure_future(cluster.ask(RequestCode.POP_MESSAGE, fields)) for _ in range(2)]
            while len(cluster.broker._serving.processors._waiting) < 2:
                await asyncio.sleep(0)
            assert (await cluster.send("T", b"meanwhile")).code == 0
            assert (await cluster.pull("T")).code == 0
            assert not any(answer.done() for answer in pops)
            clock.advance(3000)
            late_s[0] = 3.0
            gate.set()
            assert sorted([(await answer).code for answer in pops]) == [0, 210]
            remarks = {(await answer).remark for answer in pops}
            assert remarks == {"FOUND", "NO_MESSAGE_IN_QUEUE"}

    run(scene())


def _owner(processor: Any) -> Any:
    return processor.__self__


def test_pops_are_made_when_there_are_some_and_found_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.send("T", b"popped")
            assert cluster.broker.services.pops.started is None
            popped = await cluster.ask(RequestCode.POP_MESSAGE, pop_fields())
            assert decode_messages(popped.body)[0].body == b"popped"
            assert cluster.broker.services.pops.started is not None
        async with Cluster(tmp_path) as cluster:
            assert cluster.broker.services.pops.started is not None, "its checkpoint waits in the timer topic"

    run(scene())


def test_requests_that_are_not_served_are_listed(tmp_path: Path) -> None:
    """For each request that is not served, the documentation gives the reason, and the broker answers "not
    supported".
    """
    text = (
        (Path(__file__).parents[3] / "docs/operations.md").read_text().partition("## Requests that are not served")[2]
    )
    listed = {int(code): name for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \| \w", text, re.MULTILINE)}
    assert set(listed) == {354, 355, 513, 908, 1007, 1008}

    async def scene() -> None:
        async with Cluster(tmp_path) as cluster:
            for code, name in listed.items():
                known = RequestCode.__members__.get(name)
                assert known is None or known == code
                answer = await cluster.ask(code, {})
                assert (answer.code, answer.remark) == (3, f" request type {code} not supported")

    run(scene())
