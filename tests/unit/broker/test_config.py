"""broker.conf: known keys count, keys of the reference are named once, anything else stops the start."""

from __future__ import annotations

import logging

import pytest

from rucola.broker.config import BrokerConfig, broker_options, check_broker_conf
from rucola.common.java import parse_properties
from rucola.errors import ConfigError
from rucola.store.config import FlushDiskType, MessageStoreConfig


def options_of(text: str) -> tuple[BrokerConfig, MessageStoreConfig]:
    values = parse_properties(text)
    check_broker_conf(values)
    return broker_options(values)


def test_a_usual_file_is_obeyed():
    text = """
    # what the reference ships
    brokerClusterName = DefaultCluster
    brokerName = broker-b
    brokerId = 0
    deleteWhen = 04
    fileReservedTime = 48
    brokerRole = ASYNC_MASTER
    flushDiskType = SYNC_FLUSH
    namesrvAddr=127.0.0.1:9876; 127.0.0.2:9876
    """
    config, store_config = options_of(text)
    assert config.broker_name == "broker-b"
    assert config.namesrv_addresses == ["127.0.0.1:9876", "127.0.0.2:9876"]
    assert store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH


def test_the_reference_s_other_keys_are_reported_once(caplog):
    with caplog.at_level(logging.WARNING, "rucola.broker.config"):
        options_of("haSendHeartbeatInterval=5000\nfetchNamesrvAddrByAddressServer=true\nlistenPort=1")
    assert len(caplog.records) == 1
    assert caplog.records[0].rucola_fields == {"keys": "fetchNamesrvAddrByAddressServer,haSendHeartbeatInterval"}


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("flushDiskTyp=SYNC_FLUSH", "flushDiskTyp", "SYNC_FLUSH"),
        ("listenPort=70000", "listenPort", "70000"),
        ("listenPort=abc", "listenPort", "abc"),
        ("traceOn=yes", "traceOn", "yes"),
        ("flushDiskType=LAZY", "flushDiskType", "LAZY"),
        ("brokerName=a b", "brokerName", "a b"),
        ("brokerId=1", "brokerId", "1"),
        ("brokerRole=SLAVE", "brokerRole", "SLAVE"),
        ("namesrvAddr=localhost", "namesrvAddr", "localhost"),
        ("bindAddress=0.0.0.0", "bindAddress", "0.0.0.0"),
        ("bindAddress=0.0.0.0\ninsecure=true", "brokerIP1", ""),
        ("bindAddress=nowhere", "bindAddress", "nowhere"),
    ],
)
def test_what_is_not_allowed_names_key_and_value(text, key, value):
    with pytest.raises(ConfigError) as caught:
        options_of(text)
    assert (caught.value.key, caught.value.value) == (key, value)
    assert caught.value.allowed


def test_other_addresses_are_possible_when_asked_for():
    config, _ = options_of("bindAddress=0.0.0.0\ninsecure=true\nbrokerIP1=10.0.0.1")
    assert config.bind_address == "0.0.0.0"
    assert BrokerConfig(bind_address="::1").bind_address == "::1"
