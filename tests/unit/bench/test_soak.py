"""The soak's accounting: which messages count as lost, which figures are flat or slow, and when each group is away."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from bench import soak_report
from bench.soak import Broker
from bench.soak_consume import GROUP_AWAY_S, GROUP_TURN_S, Taken, away_group
from bench.soak_ledger import (
    LATENCY_BUCKETS,
    STEADY,
    TAKEN_OVER,
    Count,
    Ledger,
    bucket,
    bucket_end_us,
    quantile_ms,
)
from bench.soak_record import HEAD, MAGIC
from bench.soak_report import Outcome, Sample, facts

from rucola.common.message import StoreMessage
from rucola.formats.message import encode_message

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def record(number: int, due_ns: int) -> bytes:
    body = HEAD.pack(MAGIC, number, due_ns) + b"x" * 20
    message = StoreMessage(b"soak_00", 0, body, b"", 0, HOST, store_host=HOST)
    return encode_message(message, 0, 0, 0, HOST)


def test_a_message_acknowledged_and_not_received_is_missing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", (2, 3, 10))
    for number in (0, 1, 12, 29):
        ledger.acknowledged[number] = 1
    for number in (0, 12, 15):
        ledger.received[number] = 2
    again = Ledger(tmp_path / "ledger")
    assert again.missing(5) == (2, [1, 29])
    assert again.missing(1) == (2, [1])
    assert again.different() == (4, 3)


def test_pulled_messages_are_counted_once_and_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", (2, 1, 10))
    taken = Taken(ledger, 1)
    taken.take(record(3, 1_000) + record(4, 2_000), since_ns=1_500)
    taken.take(record(4, 2_000), since_ns=1_500)
    assert (ledger.received[3], ledger.received[4]) == (1, 2)
    assert (ledger.total(Count.RECEIVED), ledger.total(Count.RECEIVED_FIRST), ledger.total(Count.PULLS)) == (3, 2, 2)
    assert sum(ledger.latencies(STEADY)) == 1
    assert sum(ledger.latencies(TAKEN_OVER)) == 1


def test_a_foreign_record_is_an_error(tmp_path: Path) -> None:
    taken = Taken(Ledger(tmp_path / "ledger", (1, 1, 10)), 0)
    with pytest.raises(ValueError, match="does not belong to this soak"):
        taken.take(record(3, 1_000).replace(MAGIC, b"kaos"), since_ns=0)


@pytest.mark.parametrize("latency_us", [0, 1, 31, 32, 63, 64, 65, 1_000, 123_456, 20_000_000])
def test_a_bucket_holds_its_latency(latency_us: int) -> None:
    number = bucket(latency_us)
    start = bucket_end_us(number - 1) if number else 0
    assert start <= latency_us < bucket_end_us(number)
    assert bucket_end_us(number) - start <= max(1, latency_us / 32)


def test_quantiles() -> None:
    latencies = [0] * LATENCY_BUCKETS
    latencies[bucket(1_000)] = 99
    latencies[bucket(50_000)] = 1
    assert quantile_ms(latencies, 0.5) == pytest.approx(1, rel=0.04)
    assert quantile_ms(latencies, 0.999) == pytest.approx(50, rel=0.04)
    assert quantile_ms([0] * LATENCY_BUCKETS, 0.5) == 0
    assert bucket(10**9) == LATENCY_BUCKETS - 1


def test_every_group_is_away_in_its_turn() -> None:
    away = [away_group(turn * GROUP_TURN_S, 50) for turn in range(50)]
    assert sorted(group for group in away if group is not None) == list(range(50))
    assert away_group(GROUP_AWAY_S + 0.1, 50) is None


def outcome(memory_mb: list[float]) -> Outcome:
    result = Outcome("here", "sync", 512, 50, 100, 200, planned_s=60)
    for number, own in enumerate(memory_mb):
        result.samples.append(Sample(float(number), 100, 100, 5, [1], own, 500, 0.2, 250, 1.0))
    return result


@pytest.mark.parametrize(
    ("memory_mb", "flat"),
    [([50, 60, 60, 60, 61, 62], True), ([60, 60, 60, 60, 64, 64], False), ([60, 60, 64, 64, 60, 60], False)],
)
def test_memory_is_flat_or_not(memory_mb: list[float], flat: bool) -> None:
    result = outcome(memory_mb)
    result.judge_memory()
    assert (not result.failures) is flat
    assert dict(facts(result))["outcome"].startswith("passed" if flat else "failed: memory is not flat")


def test_the_block_of_the_page_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "figures.md"
    page.write_text(f"before\n{soak_report.BEGIN}\nold\n{soak_report.END}\nafter\n")
    monkeypatch.setattr(soak_report, "PAGE", page)
    monkeypatch.setattr(soak_report, "draw", lambda path, _: path.write_bytes(b"picture"))
    soak_report.publish(outcome([60.0] * 6))
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert "| outcome | passed |" in lines
    assert (tmp_path / soak_report.PICTURE).exists()


def test_the_broker_s_log_is_read_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    ready = {"namesrv": "", "brokers": [""], "http": ""}
    broker = Broker(SimpleNamespace(pid=0), ready, tmp_path, log)  # type: ignore[arg-type]
    log.write_text(
        '2026-01-01T00:00:00.000Z INFO rucola.x "fine"\n2026-01-01T00:00:00.000Z WARNING rucola.x "hm"\n2026'
    )
    broker.read_log()
    assert (broker.warnings, broker.errors) == (1, [])
    with log.open("a") as out:
        out.write('-01-01T00:00:00.000Z ERROR rucola.x "bad"\nTraceback (most recent call last):\n')
    broker.read_log()
    assert len(broker.errors) == 2
