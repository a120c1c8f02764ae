"""Each queue's pulls have an owner: a defect in them is logged by name, and they go on where they were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.brokers import Cluster
from tests.unit.client.test_loops_with_broker import ALL, first, made, rest, scene_of

from rucola import Producer
from rucola.client import client_tasks
from rucola.client.deliveries import Deliveries
from rucola.client.process_queue import DeliveryQueue
from rucola.client.queue_failures import QueueFailures


def fails_once(monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str) -> list[object]:
    """The first call of a method raises."""
    before: Callable[..., Any] = getattr(owner, name)
    calls: list[object] = []

    def call(self: Any, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise RuntimeError("a defect")
        return before(self, *arguments)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.few
@pytest.mark.parametrize("kind", ["push", "orderly", "lite"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(QueueFailures, "end"), (DeliveryQueue, "is_full"), (DeliveryQueue, "put"), (Deliveries, "offer")],
)
def test_a_defect_in_the_pulls_of_a_queue_loses_and_repeats_nothing(tmp_path, monkeypatch, caplog, kind, owner, name):
    monkeypatch.setattr(client_tasks, "FIRST_PAUSE_S", 0.01)

    async def work(servers: Cluster, producer: Producer) -> None:
        calls = fails_once(monkeypatch, owner, name)
        async with made(kind, servers) as one, asyncio.timeout(20):
            assert [await first(one) for _ in range(len(ALL))] == ALL
        assert len(calls) > 1
        assert await rest(kind, servers) == []

    scene_of(tmp_path, work)
    failed = [
        vars(one)["rucola_fields"]
        for one in caplog.records
        if vars(one).get("rucola_event") == "background task failed"
    ]
    assert [fields["task"].split(" ")[:2] for fields in failed] == [["pulls", "of"]]
    assert failed[0]["owner"] == "cg"


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_no_pull_task_is_left_after_the_shutdown(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        async with made(kind, servers) as one:
            await first(one)
            names = {task.get_name() for task in asyncio.all_tasks()}
            assert sum(name.startswith("rucola: pulls of") for name in names) == len(one.assignment) > 0
        assert not [task for task in asyncio.all_tasks() if "pulls of" in task.get_name()]

    scene_of(tmp_path, work)
