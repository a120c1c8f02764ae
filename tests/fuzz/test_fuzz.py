"""Runs the first seeds of ``make campaign NAME=fuzz``, and checks that it detects planted errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.__main__ import LIVE, main, plan
from tests.fuzz.live import run_life
from tests.fuzz.rounds import Failure, run_round
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.tenants import played

from rucola.broker.processor.client_manage import ClientManageProcessor
from rucola.protocol import command


@pytest.mark.parametrize("name", TARGETS)
def test_first_seed(name: str) -> None:
    run_round(name, 1, TARGETS[name].round)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_first_lives(seed: int) -> None:
    assert run_life(seed) > 100


def test_a_seed_stands_for_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    taking = Target(1, 50, TARGETS["frame"].mutator, lambda data, _: seen.append(data))
    monkeypatch.setitem(TARGETS, "taking", taking)
    run_round("taking", 7, 50)
    run_round("taking", 7, 50)
    run_round("taking", 8, 50)
    assert seen[:50] == seen[50:100] != seen[100:]


def test_a_defect_of_a_decoder_is_found_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def careless(fields: object) -> dict[str, str]:
        return dict(fields or {})  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(command, "_texts", careless)
    monkeypatch.setattr("sys.argv", ["fuzz", "--target", "header", "--inputs", "100000"])
    assert main() == 1
    printed = capsys.readouterr()
    assert 'repeat it: python -m tests.fuzz --target "header" --seed ' in printed.out
    seed = int(printed.out.split("--seed ")[1].split()[0])
    with pytest.raises(Failure):
        run_round("header", seed, TARGETS["header"].round)


def test_a_defect_of_a_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(*_: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(ClientManageProcessor, "heartbeat", planted)
    with pytest.raises(Failure) as caught:
        for seed in range(2, 20, 2):  # not every run sends a heartbeat
            run_life(seed)
    assert "planted" in str(caught.value.__cause__)


def test_every_input_is_planned() -> None:
    planned = plan(1_000_000)
    assert planned.keys() == {*TARGETS, LIVE}
    assert 1_000_000 <= sum(planned.values()) <= 1_020_000


def test_a_low_account_costs_its_neighbours_nothing(tmp_path: Path) -> None:
    result = asyncio.run(played(tmp_path, 2_000, 1, 0.0))
    assert (result.problems, result.leaks) == ([], 0)
    assert result.requests >= 2_000 and result.codes > 100 and result.tenants > 10
