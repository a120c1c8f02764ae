"""Runs the programs in examples/ as a user does, with two brokers that ``rucola up`` started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LINES_MAX = 60

PRINTED = {
    "access_control": """
        writer: SEND_OK
        wrong secret: refused with NO_PERMISSION
        unsigned: refused with NO_PERMISSION
        reader: consumed signed
    """,
    "batch": """
        send_batch: 5 messages, SEND_OK
        send_many: 10000 messages to BatchExampleA, BatchExampleB
    """,
    "blocking": """
        sent message 0: SEND_OK
        sent message 1: SEND_OK
        sent message 2: SEND_OK
        consumed message 0
        consumed message 1
        consumed message 2
        the topic has 4 queues and holds messages
    """,
    "broadcasting": """
        screen-1: price 10
        screen-1: price 11
        screen-1: price 12
        screen-2: price 10
        screen-2: price 11
        screen-2: price 12
    """,
    "delay": """
        recalled: never seen
        level 1: came after N s
        delay of 2 s: came after N s
        at a time: came after N s
    """,
    "idempotent": """
        first life: booked, but the broker does not know it
        second life: 5 messages, 1 of them known
        account: 500 cents
    """,
    "lite_pull": """
        subscribed: polled 20 messages
        assigned: queue 0 begins with offset 0
    """,
    "ordered": """
        order-1: created > paid > shipped > delivered
        order-2: created > paid > shipped > delivered
        order-3: created > paid > shipped > delivered
    """,
    "request_reply": """
        reply: HELLO
        no reply within 500 ms
    """,
    "simple_consumer": """
        received good
        received slow
        slow: hidden for 60 s more
        acknowledged 2
    """,
    "simple_send": """
        sync: SEND_OK, id ID, offset 0
        async: 10 messages in 4 queues
        oneway: sent, nobody knows whether it arrived
    """,
    "sql92": """
        sent 6 messages
        consumed 50 from eu
        consumed 500 from eu
    """,
    "tags": """
        sent message 0 with TagA
        sent message 1 with TagB
        sent message 2 with TagC
        sent message 3 with TagA
        sent message 4 with TagB
        sent message 5 with TagC
        consumed message 0 with TagA
        consumed message 2 with TagC
        consumed message 3 with TagA
        consumed message 5 with TagC
    """,
    "transaction": """
        first: COMMIT_MESSAGE
        second: ROLLBACK_MESSAGE
        third: COMMIT_MESSAGE
        consumed first
        consumed third
    """,
}
"""The output of each example; N and ID stand for figures and ids that differ from run to run."""

IN_ORDER = {"access_control", "batch", "delay", "lite_pull", "ordered", "request_reply", "simple_send"}
"""Examples that always print in the same order. The others consume from several queues at a time."""

CONFIGS = {"access_control": "access_control/broker.conf"}


@contextmanager
def broker(config: Path) -> Iterator[str]:
    """Starts a broker with ``config``; yields the address of its name server."""
    free_ports = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
    command = [sys.executable, "-m", "rucola", "up", "--ephemeral", "--json", "--log-level", "ERROR", *free_ports]
    with subprocess.Popen([*command, "-c", str(config)], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["namesrv"]
        finally:
            process.terminate()
            assert process.wait(20) == 0


@pytest.fixture(scope="module")
def open_namesrv() -> Iterator[str]:
    with broker(EXAMPLES / "broker.conf") as namesrv:
        yield namesrv


@pytest.fixture
def namesrv(open_namesrv: str, example: str) -> Iterator[str]:
    if example not in CONFIGS:
        yield open_namesrv
        return
    with broker(EXAMPLES / CONFIGS[example]) as guarded:
        yield guarded


@pytest.mark.parametrize("example", sorted(PRINTED))
def test_example_prints_what_happened_and_ends(example, namesrv, tmp_path):
    environment = os.environ | {"NAMESRV_ADDR": namesrv, "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{example}.py"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    printed = re.sub(r"\d+\.\d s$", "N s", re.sub(r"id [0-9A-F]{32}", "id ID", done.stdout), flags=re.MULTILINE)
    lines, wanted = printed.splitlines(), [line.strip() for line in PRINTED[example].strip().splitlines()]
    assert lines == wanted if example in IN_ORDER else sorted(lines) == sorted(wanted), printed
    if example == "delay":
        waited = [float(text) for text in re.findall(r"(\d+\.\d) s$", done.stdout, flags=re.MULTILINE)]
        assert [seconds >= least for seconds, least in zip(waited, (1, 1.9, 2.9), strict=True)] == [True] * 3


def test_every_example_is_run_and_fits_on_a_page():
    files = {path.stem: path for path in EXAMPLES.glob("*.py")}
    assert sorted(files) == sorted(PRINTED)
    assert [name for name, path in files.items() if len(path.read_text().splitlines()) >= LINES_MAX] == []


def test_the_page_of_the_client_names_every_example_and_no_other_file():
    page = (ROOT / "docs" / "client.md").read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert {Path(link).stem for link in links if link.startswith("../examples/") and link.endswith(".py")} == set(
        PRINTED
    )
