"""The cost of a request does not grow with the content of the broker: a small version of ``bench.steady``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from bench.load_crowd import heartbeat_of
from bench.steady import Line, Size, write_tables
from tests.brokers import Cluster, run

from rucola.broker import Broker
from rucola.formats import config_json, tables
from rucola.protocol.command import RemotingCommand, decode_frame

FEW, MANY = Size(60, 20, 0), Size(2000, 600, 0)


async def work_of_requests(store: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts the function calls that a send, a pull, a heartbeat and a query of an offset take in the broker.

    Each kind of request is measured several times and the smallest number counts, because a request may also do work
    left by an earlier request, such as a dispatch.
    """
    calls = 0
    serve = Broker.frames_received

    def count(_frame: Any, what: str, _argument: Any) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    def counted(self: Broker, *arguments: Any) -> None:
        sys.setprofile(count)
        try:
            serve(self, *arguments)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Broker, "frames_received", counted)
    least: dict[str, int] = {}
    async with Cluster(store) as cluster:
        for name, request in (
            ("send", cluster.send_command("topic000003")),
            ("pull", cluster.pull_command("topic000003", group="group00003")),
            ("heartbeat", decode_frame(heartbeat_of(1))),
            ("offset", RemotingCommand(30, ext_fields={"topic": "topic000003", "queueId": "0"})),
        ):
            for _ in range(6):
                calls = 0
                answer = await cluster.client.invoke(cluster.broker.address, request, 10_000)
                assert answer.code == 0, answer.remark
                least[name] = min(least.get(name, calls), calls)
    return least


def test_a_request_costs_as_much_beside_many_topics_and_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name, size in (("few", FEW), ("many", MANY)):
        write_tables(tmp_path / name, size)
        with monkeypatch.context() as patch:
            patch.setattr(config_json, "_STRING_OR_KEY", None)  # fails if the slow parser is needed
            found.append(run(work_of_requests(tmp_path / name, patch)))
    few, many = found
    assert min(few.values()) > 5
    assert all(many[name] < 2 * few[name] for name in few), (few, many)


def test_the_tables_are_those_of_a_broker(tmp_path: Path) -> None:
    write_tables(tmp_path, FEW)
    _, topics = tables.decode_topics((tmp_path / "config" / "topics.json").read_bytes())
    groups = tables.decode_subscription_groups((tmp_path / "config" / "subscriptionGroup.json").read_bytes()).groups
    _, offsets = tables.decode_consumer_offsets((tmp_path / "config" / "consumerOffset.json").read_bytes())
    assert (len(topics), len(groups), len(offsets)) == (FEW.topics, FEW.groups, FEW.groups)
    assert set(topics) >= {f"%RETRY%{group}" for group in groups}
    assert offsets["topic000001@group00003"] == dict.fromkeys(range(8), 0)


def test_a_missed_limit_is_told() -> None:
    assert Line("start", 3.0, "s", 3.0).holds
    assert not Line("share", 0.89, "", 0.9, at_least=True).holds
    assert str(Line("start", 3.5, "s", 3.0)).endswith("at most 3  MISSED")
