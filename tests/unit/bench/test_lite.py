"""The load program of ``bench.lite`` at a small broker: it counts what was sent, delivered and refused."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from bench import lite
from bench.context import Context
from bench.lite import EACH, disk_bytes
from bench.load_lite import GROUP, GROUP_OF_DEFAULTS, PARENT, Load, name_of, set_up
from bench.program import Round
from tests.brokers import Cluster, run

from rucola.common.lite_topics import check_lite_topic

NAMES = 40


async def rounds(store: Path) -> list[dict[str, float]]:
    stores = {"enable_lmq": True, "enable_multi_dispatch": True}
    async with Cluster(store, stores=stores, max_lite_subscription_count=3_000) as cluster, AsyncExitStack() as stack:
        await set_up(cluster.broker.address)
        load = Load(cluster.namesrv.address, cluster.broker.address, stack)
        filled = await load.round("fill", str(NAMES))
        limited = [await load.round("limit", group, "2", "3000") for group in (GROUP_OF_DEFAULTS, GROUP)]
        subscribed = await load.round("subscribe", "2", "5")
        return [filled, *limited, subscribed, await load.round("echo", "60", "2000", str(NAMES))]


def test_the_load_program_counts_what_brokers_do(tmp_path: Path) -> None:
    filled, of_default, of_quota, subscribed, echo = run(rounds(tmp_path))
    assert (filled["messages"], filled["failed"]) == (NAMES, 0)
    assert (of_default["messages"], of_quota["messages"]) == (3_000, 3_000)
    assert subscribed["messages"] == 10
    assert (echo["messages"], echo["failed"], echo["repeated"]) == (60, 0, 0)
    assert 0 < echo["delivered"] < 60
    assert 0 < echo["p50_us"] <= echo["p99_us"]


def test_names_are_valid_and_differ() -> None:
    names = [name_of(number) for number in range(1000)]
    assert len({check_lite_topic(name) for name in names}) == len(names)


def test_records_and_the_queues_of_the_parent_are_no_disk_of_lite_topics(tmp_path: Path) -> None:
    for path in ("commitlog/0", "index/1", f"consumequeue/{PARENT}/0/0", "consumequeue/%LMQ%$agents$a/0/0", "config/x"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(bytes(4096))
    assert disk_bytes(tmp_path) == 2 * 4096


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of lite topics that were asked for; nothing is measured, and the second broker costs five times as
    much.
    """
    asked: list[int] = []

    def life_of(_context: Context, _make: object, names: int, _store: Path) -> dict[str, float]:
        asked.append(names)
        factor = 5.0 if len(asked) == 2 else 1.0
        keys = ("fill_us", "memory_bytes", "open_killed_s", "open_memory_bytes", "disk_bytes", "open_clean_s")
        served = (
            "subscribe_us",
            "subscriptions",
            *(f"{key}_{what}" for key in ("any", "subscribed") for what in PHASE),
        )
        return dict.fromkeys((*keys, *served), factor)

    monkeypatch.setattr(lite, "life_of", life_of)
    monkeypatch.setattr(lite, "looks", lambda *_arguments: {"look_s": 1.1, "turn_ms": 4.9})
    monkeypatch.setattr(lite, "limits", lambda *_arguments: iter(()))
    return asked


PHASE = ("us", "load_us", "p50_ms", "p99_ms", "delivered")


def test_figures_have_the_budgets_of_a_million(lives: list[int]) -> None:
    context = Context(True, None, lambda _text: None)  # type: ignore[arg-type]
    figures = {figure.what: figure for figure in lite.measure_ours(context, 1_000_000)}
    missed = [what for what, figure in figures.items() if figure.met is False]
    assert missed == ["a look for expired lite topics: CPU"]
    assert sum(figure.met is True for figure in figures.values()) == 8
    assert lives == [1_000_000]


def test_the_official_broker_is_compared_at_the_same_size(lives: list[int]) -> None:
    context = Context(True, None, lambda _text: None)  # type: ignore[arg-type]
    figures = list(lite.measure_beside(context, "rocksdb", 100_000))
    assert lives == [100_000, 100_000]
    (budgeted,) = [figure for figure in figures if figure.budgets]
    assert (budgeted.ratio, budgeted.met) == (5.0, True)
    assert all(figure.ratio in (5.0, 0.2) for figure in figures)


def test_a_round_s_facts_are_milliseconds_and_shares() -> None:
    done = Round(200, 1.0, 0.01, 0.02, {"p50_us": 500.0, "p99_us": 2_000.0, "delivered": 50})
    facts = lite._echo_facts("any", done)
    assert facts == {"any_us": 100.0, "any_load_us": 50.0, "any_p50_ms": 0.5, "any_p99_ms": 2.0, "any_delivered": 0.25}
    assert EACH * lite.CLIENTS == 100_000
