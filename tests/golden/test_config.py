"""The tables in ``config/`` as RocketMQ's broker wrote them: read, and written again byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.golden.loader import load, unpack

from rucola.broker.config_files import ConfigFiles
from rucola.common.data_version import DataVersion
from rucola.errors import StoreDamagedError
from rucola.formats.tables import (
    consumer_offset_pieces,
    decode_consumer_offsets,
    decode_delay_offsets,
    decode_subscription_groups,
    decode_topics,
    encode_delay_offsets,
    subscription_group_pieces,
    topic_pieces,
)
from rucola.runtime.files import Files

TABLES: dict[str, tuple[Callable[[bytes], Any], Callable[..., Iterable[bytes]]]] = {
    "topics.json": (decode_topics, topic_pieces),
    "subscriptionGroup.json": (decode_subscription_groups, subscription_group_pieces),
    "consumerOffset.json": (decode_consumer_offsets, consumer_offset_pieces),
    "delayOffset.json": (decode_delay_offsets, lambda *table: [encode_delay_offsets(*table)]),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("case", "suffix"), [("config_first", ""), ("config_second", ""), ("config_second", ".bak")])
def test_a_table_read_and_written_again_is_the_same_bytes(case: str, suffix: str, name: str) -> None:
    decode, pieces = TABLES[name]
    text = load(case).files[f"config/{name}{suffix}"]
    assert b"".join(pieces(*decode(text))) == text


# Except delayOffset.json: RocketMQ lowers its offsets to the ends of the queues, which are empty here.
@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
def test_the_compact_text_of_the_reference_reads_the_same(name: str) -> None:
    case = load("config_first")
    decode, _ = TABLES[name]
    (compact,) = [entry["table"] for entry in case.expect["load"] if entry["file"] == f"config/{name}"]
    assert decode(compact.encode()) == decode(case.files[f"config/{name}"])


def test_values() -> None:
    case = load("config_second")
    _, topics = decode_topics(case.files["config/topics.json"])
    assert topics["BatchTopic"].attributes == {"queue.type": "BatchCQ"}
    assert topics["%RETRY%group_a"].perm == 2 and topics["%RETRY%group_a"].order
    assert topics["BenchmarkTest"].read_queue_nums == topics["BenchmarkTest"].write_queue_nums == 1024
    version, offsets = decode_consumer_offsets(case.files["config/consumerOffset.json"])
    assert offsets == {"%RETRY%group_a@group_a": {0: 2}, "TopicTest@group_a": {0: 200, 1: 201, 2: 202, 3: 203}}
    assert version == DataVersion(0, version.timestamp_ms, 0)
    groups = decode_subscription_groups(case.files["config/subscriptionGroup.json"])
    assert not groups.groups["group_a"].consume_enable and groups.groups["group_a"].retry_max_times == 18
    _, levels = decode_delay_offsets(case.files["config/delayOffset.json"])
    assert levels == {1: 24, 3: 5, 18: 42}


def test_standard_json_is_read_too() -> None:
    case = load("config_second")
    text = case.files["config/delayOffset.json"]
    standard = json.dumps({"offsetTable": {"1": 24, "3": 5, "18": 42}, "unknown": [1], "dataVersion": {"counter": 0}})
    assert decode_delay_offsets(standard.encode())[1] == decode_delay_offsets(text)[1]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("case", ["config_broken_main", "config_empty_main", "config_missing_main"])
def test_a_table_that_cannot_be_read_is_taken_from_its_spare_copy(case: str, name: str, tmp_path: Path) -> None:
    decode, _ = TABLES[name]
    files = unpack(case, tmp_path).files
    taken: list[Any] = []
    ConfigFiles(Files(), str(tmp_path)).load(name, lambda text: taken.append(decode(text or b"")))
    assert taken == [decode(files[f"config/{name}.bak"])]
    assert all((tmp_path / path).read_bytes() == data for path, data in files.items())


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("case", ["config_broken_both", "config_broken_main_no_bak"])
def test_a_table_without_a_copy_that_reads_refuses_the_start(case: str, name: str, tmp_path: Path) -> None:
    """P-20: if a table is damaged and its backup is missing, RocketMQ continues with an empty table: without topics."""
    decode, _ = TABLES[name]
    files = unpack(case, tmp_path).files
    with pytest.raises(StoreDamagedError) as caught:
        ConfigFiles(Files(), str(tmp_path)).load(name, lambda text: decode(text or b""))
    assert caught.value.path == str(tmp_path / "config" / name)
    assert all((tmp_path / path).read_bytes() == data for path, data in files.items())
