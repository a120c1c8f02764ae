"""Options of the store: parsing, limits, documentation."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from rucola.common.options import option, options_of, options_table, parse_options, show_options, unknown_keys
from rucola.errors import ConfigError
from rucola.store.config import FlushDiskType, MessageStoreConfig, delay_levels_ms


def test_values_of_a_broker_conf() -> None:
    config = parse_options(
        MessageStoreConfig,
        {
            "storePathRootDir": " /data/store ",
            "mappedFileSizeConsumeQueue": "2001",
            "flushDiskType": "SYNC_FLUSH",
            "messageIndexEnable": "FALSE",
            "brokerName": "not an option of the store",
        },
    )
    assert config.store_path_root_dir == "/data/store"
    assert config.consume_queue_segment_bytes == 2020
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH and config.sync_flush
    assert not config.message_index_enable
    assert config.mapped_file_size_commit_log == 1 << 30
    assert parse_options(MessageStoreConfig, show_options(config)) == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mappedFileSizeCommitLog", "100"),
        ("mappedFileSizeCommitLog", "1e9"),
        ("mappedFileSizeCommitLog", "٣٣٣٣٣"),
        ("mappedFileSizeCommitLog", ""),
        ("maxMessageSize", "-5"),
        ("maxIndexNum", "9" * 30),
        ("flushDiskType", "sync"),
        ("messageIndexEnable", "yes"),
        ("messageDelayLevel", "1s 2x"),
        ("messageDelayLevel", "1s s"),
        ("storePathCommitLog", ","),
        ("storePathRootDir", ""),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(MessageStoreConfig, {key: value})
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.key, error.value) == (key, value)
    assert error.allowed and key in str(error)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_message_size": True},
        {"max_message_size": 3},
        {"flush_disk_type": "SYNC_FLUSH"},
        {"message_index_enable": 1},
    ],
)
def test_values_given_in_code_are_checked_as_well(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MessageStoreConfig(**arguments)


def test_unknown_keys_and_documentation() -> None:
    assert unknown_keys({"maxIndexNum": "1", "b": "", "a": ""}, MessageStoreConfig) == ["a", "b"]
    table = options_table(MessageStoreConfig)
    for entry in options_of(MessageStoreConfig):
        default = entry.show(entry.default)
        assert f"| `{entry.key}` | {f'`{default}`' if default else 'empty'} | {entry.limits()} |" in table
        assert entry.text.endswith((".", ").")), entry.key
        assert getattr(MessageStoreConfig(), entry.name) == entry.default


def test_limits_in_few_words() -> None:
    @dataclass(frozen=True)
    class Config:
        any: int = option("any", 1, "Any.")
        least: int = option("least", 1, "Least.", minimum=1, unit="ms")
        most: float = option("most", 1.0, "Most.", maximum=2.5)
        one: int = option("one", 0, "One.", minimum=0, maximum=0)
        both: int = option("both", 10, "Both.", minimum=10, maximum=65535, unit="bytes")
        word: str = option("word", "", "Word.")
        choice: str = option("choice", "a", "Choice.", choices=("a", "b"))
        switch: bool = option("switch", False, "Switch.")

    assert [entry.limits() for entry in options_of(Config)] == [
        "any number",
        "at least 1 ms",
        "at most 2.5",
        "0",
        "10 to 65,535 bytes",
        "text",
        "`a`, `b`",
        "`true`, `false`",
    ]


def test_delay_levels() -> None:
    levels = delay_levels_ms(MessageStoreConfig().message_delay_level)
    assert (len(levels), levels[0], levels[4], levels[17]) == (18, 1000, 60_000, 7_200_000)
    assert delay_levels_ms("") == []
    assert delay_levels_ms("2d") == [172_800_000]
