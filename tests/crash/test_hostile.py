"""Runs the first variants of ``tests.crash.hostile``; starts ``rucola broker`` on some of them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from tests.crash.hostile import BROKER_CASES, LIMIT_S, Violation, check, variant
from tests.golden.loader import write_files
from tests.plain_log import read_log
from tests.sizes import size

from rucola.sync import PullConsumer

SEEDS = [*range(1, size(31, 61)), 191, 458, 469]
"""Seeds of the variants; the last three were found by longer runs."""
PROCESS_SEEDS = (1, 3, 11, 15, 16, 19, 26, 37)[: size(4, 8)]
BROKER_CONF = """namesrvAddr=
bindAddress=127.0.0.1
listenPort=0
flushDiskType=ASYNC_FLUSH
"""


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_start_serves_what_is_intact_or_refuses(seed: int, tmp_path: Path) -> None:
    damaged = variant(seed)
    print(damaged.text)
    check(damaged, tmp_path / "store")


def test_both_happen() -> None:
    damages = {variant(seed).text.split(": ")[-1].split(" ")[0] for seed in SEEDS}
    assert len(damages) > 5


def test_a_lost_byte_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.store.recovery.recovery.Recovery._set_aside", lambda *_: None)
    with pytest.raises(Violation, match="is gone"):
        for seed in range(1, 100):
            check(variant(seed), tmp_path / str(seed))


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", PROCESS_SEEDS)
def test_the_command_serves_or_refuses_with_one_line(seed: int, tmp_path: Path) -> None:
    damaged = variant(seed, BROKER_CASES)
    print(damaged.text)
    store = tmp_path / "store"
    write_files(damaged.files, store)
    conf = tmp_path / "broker.conf"
    options = "".join(f"{key}={value}\n" for key, value in damaged.options.items() if not key.startswith("storePath"))
    conf.write_text(f"{BROKER_CONF}{options}storePathRootDir={store}\n")
    command = [sys.executable, "-m", "rucola", "up", "--config", str(conf), "--namesrv-port", "0", "--http-port", "0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if line:
                found = served(orjson.loads(line)["namesrv"])
                process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=LIMIT_S * 3)
        finally:
            process.kill()
    assert "Traceback" not in errors
    if not line:
        assert process.returncode == 5, errors
        assert re.fullmatch(rf"rucola: {re.escape(str(store))}/\S+, position \d+: .*\n", errors), errors
        return
    assert process.returncode == 0, errors
    log = read_log(damaged.log_files, damaged.segment_bytes)
    expected: dict[tuple[int, int], bytes] = {}
    for record in log.records:
        if record.topic == "T_store" and record.queued and record.sound:
            expected[record.queue_id, record.queue_offset] = record.body
    # Messages that waited in the store and became due are appended to the queues.
    assert {name: found.get(name) for name in expected} == expected
    ends = dict(sorted(expected))
    assert all(at > ends.get(queue_id, -1) for queue_id, at in found.keys() - expected.keys())


def served(namesrv: str) -> dict[tuple[int, int], bytes]:
    """Returns the body of every message in ``T_store`` by queue id and offset, read over the wire; empty if the topic
    is unknown.
    """
    found: dict[tuple[int, int], bytes] = {}
    with PullConsumer("G_hostile", namesrv) as consumer:
        if "T_store" not in consumer.topics():
            return found
        for queue in consumer.message_queues("T_store"):
            at, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while at < end:
                result = consumer.pull(queue, at, suspend_timeout_ms=0)
                for message in result.messages:
                    found[queue.queue_id, message.queue_offset] = message.body
                assert result.next_begin_offset > at
                at = result.next_begin_offset
    return found
