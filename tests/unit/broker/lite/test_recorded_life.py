"""Requests by hand that RocketMQ 5.5.0 answered (``tests/golden/lite``), asked again of a broker of ours."""

from __future__ import annotations

import asyncio
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run_virtual
from tests.unit.broker.lite.lite_cluster import POP_LITE, LiteCluster

from rucola.runtime.clock import SystemClock

RECORDED = Path(__file__).parents[3] / "golden" / "lite"
PARENT, GROUP = "agents", "gateway"
SENDS = "send P-agents agents by-hand "


def entries(kind: str) -> Iterator[dict[str, Any]]:
    with lzma.open(RECORDED / kind / "ordered.jsonl.xz", "rt") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def is_asked(entry: dict[str, Any]) -> bool:
    """Whether an entry is a request by hand. One is left out: a pop with the attempt id of the one before found nothing
    there, and gets its batch again here.
    """
    fields = entry.get("header", {}).get("extFields") or {}
    return entry.get("conn") == "hand1" and entry.get("kind") == "request" and not is_repeated(entry, fields)


def is_repeated(entry: dict[str, Any], fields: dict[str, str]) -> bool:
    return entry["code"] == POP_LITE and fields["attemptId"] == "one" and entry["opaque"] > 2


def counts(fields: dict[str, str]) -> str:
    """The counts of a pop: RocketMQ writes ``0 qo0%OFFSET COUNT`` for a message that comes again."""
    return ";".join(element.rpartition(" ")[2] for element in fields.get("orderCountInfo", "").split(";"))


@pytest.mark.parametrize("kind", ["file", "rocksdb"])
def test_the_life_by_hand_has_the_same_answers(kind: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with LiteCluster(tmp_path) as cluster:
            cluster.parent(PARENT)
            cluster.group(GROUP, PARENT)
            cluster.broker.topics.create_for_group("plain", 1)
            answers = {
                entry["opaque"]: entry
                for entry in entries(kind)
                if entry.get("conn") == "hand1" and entry.get("kind") == "response"
            }
            pop_times: dict[str, str] = {}
            at_ms, compared = 0, 0
            for entry in entries(kind):
                said = entry.get("said", "")
                if said.startswith(SENDS):
                    cluster.put("by-hand", said.removeprefix(SENDS), parent=PARENT)
                if not is_asked(entry):
                    continue
                await asyncio.sleep(max(entry["t_ms"] - at_ms, 0) / 1000)
                at_ms = answers[entry["opaque"]]["t_ms"]
                fields = dict(entry["header"].get("extFields") or {})
                if "bornTime" in fields:
                    fields["bornTime"] = str(SystemClock().wall_ms())
                words = fields.get("extraInfo", "").split(" ")
                if len(words) > 1:
                    words[1] = pop_times.get(words[1], words[1])
                    fields["extraInfo"] = " ".join(words)
                body = (entry.get("body") or "").encode()
                answer = await cluster.ask(entry["code"], fields, body, timeout_ms=60_000)
                there = answers[entry["opaque"]]
                theirs = there["header"].get("extFields") or {}
                about = entry["n"], entry["code"], fields, answer.remark
                assert answer.code == there["code"], about
                assert counts(answer.ext_fields) == counts(theirs), about
                if entry["code"] == POP_LITE:
                    pop_times[theirs["popTime"]] = answer.ext_fields["popTime"]
                assert set(answer.ext_fields) == set(theirs), about
                compared += 1
            assert compared > 35

    run_virtual(work())
