"""broker.conf: supported keys take effect, other RocketMQ keys are reported once, and unknown keys stop the start."""

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


ALONE = "there is no controller, and the link between master and slave has no further options"
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


def test_a_web_shop_s_file_is_obeyed() -> None:
    """The configuration file of a web shop takes effect; ``tests/scenario/sample_configurations.txt`` contains the
    output of a broker started with it.
    """
    config, store_config = options_of(WEB_SHOP)
    assert (config.default_topic_queue_nums, store_config.max_message_size) == (4, 65536)
    assert store_config.mapped_file_size_commit_log == 1 << 29


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
        ("brokerRole=SLAVE\nnamesrvAddr=127.0.0.1:9876", "brokerId", "0"),
        ("brokerRole=SYNC_MASTER\nbrokerId=2", "brokerId", "2"),
        ("brokerRole=MASTER", "brokerRole", "MASTER"),
        ("brokerRole=SLAVE\nbrokerId=-1\nnamesrvAddr=127.0.0.1:9876", "brokerId", "-1"),
        ("brokerRole=SLAVE\nbrokerId=1", "namesrvAddr", ""),
        ("brokerRole=SLAVE\nbrokerId=1\nhaMasterAddress=127.0.0.1:10912", "namesrvAddr", ""),
        ("brokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=127.0.0.1:9876\nhaMasterAddress=x", "haMasterAddress", "x"),
        ("masterBrokerAddress=:10911", "masterBrokerAddress", ":10911"),
        ("brokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=127.0.0.1:9876\ngrpcServerPort=0", "grpcServerPort", "0"),
        ("namesrvAddr=localhost", "namesrvAddr", "localhost"),
        ("bindAddress=0.0.0.0", "bindAddress", "0.0.0.0"),
        ("bindAddress=0.0.0.0\ninsecure=true", "brokerIP1", ""),
        ("bindAddress=nowhere", "bindAddress", "nowhere"),
    ],
)
def test_refusals_name_key_and_value(text, key, value):
    with pytest.raises(ConfigError) as caught:
        options_of(text)
    assert (caught.value.key, caught.value.value) == (key, value)
    assert caught.value.allowed


def test_a_slave_has_a_number_and_a_way_to_its_master() -> None:
    config, _ = options_of("brokerRole=SLAVE\nbrokerId=3\nnamesrvAddr=127.0.0.1:9876")
    assert (config.is_slave, config.broker_id, config.feeds_slaves, config.replicas_needed) == (True, 3, True, 1)
    both = "haMasterAddress=10.0.0.1:10912\nmasterBrokerAddress=10.0.0.1:10911"
    assert options_of(f"brokerRole=SLAVE\nbrokerId=1\n{both}")[0].ha_master_address == "10.0.0.1:10912"


def test_other_addresses_are_possible_when_asked_for():
    config, _ = options_of("bindAddress=0.0.0.0\ninsecure=true\nbrokerIP1=10.0.0.1")
    assert config.bind_address == "0.0.0.0"
    assert BrokerConfig(bind_address="::1").bind_address == "::1"


def test_brokers_may_be_named_by_room():
    assert options_of("brokerName=room1@broker-a")[0].broker_name == "room1@broker-a"
    with pytest.raises(ConfigError, match="brokerClusterName"):
        options_of("brokerClusterName=a@b")


def test_controller_mode_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        broker_options({"enableControllerMode": "true", "controllerAddr": "127.0.0.1:9878"})
    assert (caught.value.key, caught.value.value) == ("enableControllerMode", "true")
    broker_options({"enableControllerMode": "false"})
    with pytest.raises(ConfigError, match="only RocketMQ's brokers have controller mode"):
        broker_options({"enableControllerMode": " True"})


@pytest.mark.parametrize("key", ["aclEnable", "authenticationEnabled"])
@pytest.mark.parametrize("value", ["true", "TRUE "])
def test_with_access_control_nothing_is_created_automatically(key: str, value: str) -> None:
    config, _ = broker_options({key: value})
    assert (config.auto_create_topic_enable, config.auto_create_subscription_group) == (False, False)
