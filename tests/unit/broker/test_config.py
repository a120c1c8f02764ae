"""broker.conf: known keys take effect, other keys of the reference are reported once, and any further key stops the
start.
"""

from __future__ import annotations

import logging
import pickle

import pytest

from rucola.broker.config import BrokerConfig, broker_options
from rucola.common.java import parse_properties
from rucola.errors import ConfigError, OptionsError
from rucola.store.config import FlushDiskType, MessageStoreConfig


def options_of(text: str) -> tuple[BrokerConfig, MessageStoreConfig]:
    return broker_options(parse_properties(text))


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
    assert warnings_of(caplog) == [f"not served (fetchNamesrvAddrByAddressServer); {ALONE} (haSendHeartbeatInterval)"]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.rucola_fields["meaning"] for record in caplog.records]


def sample(name: str, broker_id: int, role: str) -> str:
    """The values in the samples of RocketMQ's distribution; the directories differ in these three."""
    return (
        f"brokerClusterName=DefaultCluster\nbrokerName={name}\nbrokerId={broker_id}\ndeleteWhen=04\n"
        f"fileReservedTime=48\nbrokerRole={role}\nflushDiskType=ASYNC_FLUSH\n"
    )


ALONE = "no replication: a message is acknowledged when this broker alone has it"
RAFT_KEYS = "dLegerGroup, dLegerPeers, dLegerSelfId, enableDLegerCommitLog"
NO_POOL = "requests wait in no thread pool"
DLEDGER = """
brokerClusterName = RaftCluster
brokerName=RaftNode00
listenPort=30911
namesrvAddr=127.0.0.1:9876
storePathRootDir=/tmp/rmqstore/node00
storePathCommitLog=/tmp/rmqstore/node00/commitlog
enableDLegerCommitLog=true
dLegerGroup=RaftNode00
dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
dLegerSelfId=n0
sendMessageThreadPoolNums=16
"""
WEB_SHOP = """
# 4.x, as blogs have it
brokerName=broker-a
brokerIP1=127.0.0.1
namesrvAddr=127.0.0.1:9876
defaultTopicQueueNums=4
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
listenPort=10911
deleteWhen=04
fileReservedTime=120
mapedFileSizeCommitLog=536870912
diskMaxUsedSpaceRatio=88
maxMessageSize=65536
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
checkTransactionMessageEnable=false
sendMessageThreadPoolNums=128
pullMessageThreadPoolNums=128
"""


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        (sample("broker-a", 0, "ASYNC_MASTER"), []),
        (sample("broker-trace", 0, "ASYNC_MASTER"), []),
        (sample("broker-b", 0, "SYNC_MASTER"), [f"{ALONE} (brokerRole)"]),
        (
            DLEDGER,
            [f"{ALONE} ({RAFT_KEYS}); {NO_POOL} (sendMessageThreadPoolNums)"],
        ),
    ],
)
def test_samples_of_the_distribution_start_and_one_line_says_what_is_different(
    text: str, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rucola.broker.config"):
        options_of(text)
    assert warnings_of(caplog) == warned


def test_a_sample_of_a_slave_is_refused_with_both_reasons():
    with pytest.raises(OptionsError) as caught:
        options_of(sample("broker-a", 1, "SLAVE"))
    assert [(error.key, error.value) for error in caught.value.errors] == [("brokerId", "1"), ("brokerRole", "SLAVE")]


def test_a_web_shop_s_file_starts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rucola.broker.config"):
        config, store_config = options_of(WEB_SHOP)
    assert (config.default_topic_queue_nums, store_config.max_message_size) == (4, 65536)
    assert store_config.mapped_file_size_commit_log == 1 << 29
    assert warnings_of(caplog) == [
        f"not served (checkTransactionMessageEnable); {NO_POOL} (pullMessageThreadPoolNums, sendMessageThreadPoolNums)"
    ]


def test_a_key_in_both_spellings_must_say_the_same():
    _, store_config = options_of("mapedFileSizeCommitLog=65536\nmappedFileSizeCommitLog=65536")
    assert store_config.mapped_file_size_commit_log == 65536
    with pytest.raises(ConfigError) as caught:
        options_of("mapedFileSizeCommitLog=65536\nmappedFileSizeCommitLog=131072")
    assert (caught.value.key, caught.value.value) == ("mapedFileSizeCommitLog", "65536")


def test_everything_that_is_refused_is_refused_at_once():
    text = "flushDiskTyp=SYNC\nlistenPort=70000\nbrokerName=a b\nbindAddress=0.0.0.0\nauthorizationEnabled=true\n"
    with pytest.raises(OptionsError) as caught:
        options_of(text + "maxMessageSize=big\ndeleteWhen=25\nmessageDelayLevel=1x\n")
    assert [error.key for error in caught.value.errors] == [
        *("flushDiskTyp", "listenPort", "brokerName", "bindAddress", "authorizationEnabled"),
        *("maxMessageSize", "deleteWhen", "messageDelayLevel"),
    ]
    shown = str(caught.value)
    assert shown.startswith("8 options: flushDiskTyp: 'SYNC' is not allowed; allowed: ") and "option " not in shown[10:]
    assert str(pickle.loads(pickle.dumps(caught.value))) == shown


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


def test_brokers_may_be_named_by_room():
    assert options_of("brokerName=room1@broker-a")[0].broker_name == "room1@broker-a"
    with pytest.raises(ConfigError, match="brokerClusterName"):
        options_of("brokerClusterName=a@b")
