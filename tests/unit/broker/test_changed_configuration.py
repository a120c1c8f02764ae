"""What waits in the broker is delivered, whatever the configuration says after a restart.

Each row of ``CHANGES`` changes options between two starts, and each kind of waiting message must come: one with a delay
level, one with a delivery time, a half message that is committed later, one that was returned, and a popped one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.crash import broker_life
from tests.unit.broker.stepped import NOW_MS, Asked, SteppedBroker

from rucola.common.topic_config import TopicConfig
from rucola.formats.message import decode_messages
from rucola.formats.message_id import parse_offset_message_id
from rucola.protocol.codes import RequestCode, ResponseCode

QUEUES = 4
SIZE = 2000
"""Length of each body: more than the smaller ``maxMessageSize``."""

_HALVES = {"half": {}, "half level": {"DELAY": "3"}, "half timer": {"TIMER_DELAY_MS": "6000"}}


class Waiting:
    """A broker in which messages of all kinds wait, one for each queue of topic ``W``."""

    def __init__(self) -> None:
        self.broker = SteppedBroker()
        topics = self.broker.broker.topics
        topics.update(TopicConfig("W", QUEUES, QUEUES, 6))
        topics.update(TopicConfig("P", 1, 1, 6))
        self.broker.broker.groups.find("cg")
        self.sent: set[bytes] = set()
        self.halves: list[Asked] = []

    def body(self, name: str) -> bytes:
        body = name.encode().ljust(SIZE, b".")
        self.sent.add(body)
        return body

    def fill(self) -> None:
        broker = self.broker
        for queue_id in range(QUEUES):
            assert (
                broker.send("W", self.body(f"level {queue_id}"), queue_id, UNIQ_KEY=f"L{queue_id}", DELAY="3").code == 0
            )
            timed = {"UNIQ_KEY": f"T{queue_id}", "TIMER_DELIVER_MS": str(NOW_MS + 6000)}
            assert broker.send("W", self.body(f"timer {queue_id}"), queue_id, **timed).code == 0
        for queue_id in range(QUEUES):
            for kind, waits in _HALVES.items():
                properties = {"UNIQ_KEY": f"{kind}{queue_id}", **waits}
                self.halves.append(broker.half("W", self.body(f"{kind} {queue_id}"), queue_id, **properties))
                assert self.halves[-1].code == 0
        self.pop()

    def pop(self) -> None:
        fields = {"consumerGroup": "cg", "topic": "P", "queueId": -1, "maxMsgNums": 8, "invisibleTime": 6000}
        fields |= {"pollTime": 0, "bornTime": NOW_MS, "initMode": 0, "expType": "TAG", "exp": "*", "order": "false"}
        assert self.broker.send("P", self.body("popped"), UNIQ_KEY="P").code == 0
        popped = self.broker.request(RequestCode.POP_MESSAGE, fields)
        assert popped.code == ResponseCode.SUCCESS, popped.answer

    def send_back(self) -> None:
        """Returns a message to the broker, as a consumer does that failed."""
        sent = self.broker.send("P", self.body(f"returned {len(self.sent)}"), UNIQ_KEY="R")
        assert sent.answer is not None
        offset = parse_offset_message_id(sent.answer.ext_fields["msgId"]).physical_offset
        fields = {"group": "cg", "offset": offset, "delayLevel": 3, "originTopic": "P", "unitMode": "false"}
        assert self.broker.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 0

    def commit(self) -> None:
        for half in self.halves:
            assert self.broker.end(half, 8).code == 0

    def passes(self, milliseconds: int) -> None:
        self.broker.passes(milliseconds)
        self.broker.flush()
        for _ in range(3):
            self.broker.work()  # revives popped messages, which the stepped broker does not do by itself
            self.broker.flush()

    def missing(self) -> set[str]:
        """Names of the messages that consumers cannot see."""
        return {body.rstrip(b".").decode() for body in self.sent - self.come()}

    def come(self) -> set[bytes]:
        """Bodies in the queues that consumers read."""
        store, found = self.broker.broker.store, set[bytes]()
        for topic, config in self.broker.broker.topics.table.items():
            if topic not in {"W", "%RETRY%cg", "%RETRY%cg_P", "%RETRY%cg+P"}:
                continue
            for queue_id in range(config.read_queue_nums):
                at = 0
                while at < store.max_queue_offset(topic.encode(), queue_id):
                    result = store.get_message(topic.encode(), queue_id, at, 32, 1 << 20)
                    at = result.next_offset
                    found |= {message.body for view in result.views for message in decode_messages(view)}
        return found


def store_option(**options: Any) -> Callable[[SteppedBroker, pytest.MonkeyPatch], None]:
    def change(broker: SteppedBroker, _patch: pytest.MonkeyPatch) -> None:
        broker.config = replace(broker.config, **options)

    return change


def broker_option(**options: Any) -> Callable[[SteppedBroker, pytest.MonkeyPatch], None]:
    def change(_broker: SteppedBroker, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(broker_life, "BROKER", replace(broker_life.BROKER, **options))

    return change


CHANGES = {
    "nothing": store_option(),
    "maxMessageSize smaller": store_option(max_message_size=SIZE // 2),
    "messageDelayLevel with fewer levels": store_option(message_delay_level="1s"),
    "messageDelayLevel with more levels": store_option(message_delay_level="1s 2s 4s 8s 16s"),
    "timerWheelEnable=false": store_option(timer_wheel_enable=False),
    "timerMaxDelaySec smaller": store_option(timer_max_delay_sec=1),
    "timerRollWindowSlot smaller": store_option(timer_roll_window_slot=2),
    "timerCongestNumEachSlot smaller": store_option(timer_congest_num_each_slot=1),
    "enabledAppendPropCRC=false": store_option(enabled_append_prop_crc=False),
    "enableLmq=true": store_option(enable_lmq=True),
    "enableConsumeQueueExt=true": store_option(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=4096),
    "messageIndexEnable=false": store_option(message_index_enable=False),
    "brokerPermission=4": broker_option(broker_permission=4),
    "brokerName": broker_option(broker_name="renamed"),
    "brokerClusterName": broker_option(broker_cluster_name="renamed"),
    "autoCreateTopicEnable=false": broker_option(auto_create_topic_enable=False),
    "autoCreateSubscriptionGroup=false": broker_option(auto_create_subscription_group=False),
    "rejectTransactionMessage=true": broker_option(reject_transaction_message=True),
    "enableRetryTopicV2=true": broker_option(enable_retry_topic_v2=True),
}


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    yield Waiting()


@pytest.mark.few
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_accepted_messages_come(change: str, killed: bool, waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting.fill()
    waiting.send_back()
    CHANGES[change](waiting.broker, monkeypatch)
    if killed:
        waiting.broker.kill()
    else:
        waiting.broker.restart()
    waiting.commit()
    waiting.passes(20_000)
    assert waiting.missing() == set()


@pytest.mark.parametrize("topic", ["W", "%RETRY%cg"])
def test_waiting_messages_of_a_topic_with_fewer_queues_come_in_one_that_is_read(topic: str, waiting: Waiting) -> None:
    """First the writes end, then, when everything is consumed, the reads; the messages that wait are due later."""
    topics, broker = waiting.broker.broker.topics, waiting.broker
    groups = broker.broker.groups
    groups.table["cg"] = replace(groups.table["cg"], retry_queue_nums=QUEUES)
    topics.update(TopicConfig("%RETRY%cg", QUEUES, QUEUES, 6))
    waiting.fill()
    for _ in range(4 * QUEUES):  # each goes into any of the queues
        waiting.send_back()
    topics.update(TopicConfig(topic, QUEUES, 1, 6))
    topics.update(TopicConfig(topic, 1, 1, 6))
    broker.restart()
    waiting.commit()
    waiting.passes(20_000)
    assert waiting.missing() == set()
    assert broker.broker.store.queue_ids(topic.encode()) == [0]


def test_messages_of_one_queue_stay_together_in_fewer_queues(waiting: Waiting) -> None:
    topics = waiting.broker.broker.topics
    topics.update(TopicConfig("W", 3, 8, 6))
    assert [topics.read_queue("W", queue_id) for queue_id in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]
    topics.update(TopicConfig("W", 0, 4, 2))  # nobody reads the topic; its queues stay as they are
    assert [topics.read_queue(topic, 3) for topic in ("W", "absent")] == [3, 3]


def test_levels_that_are_gone_are_told_once_and_their_messages_are_never_early(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waiting.fill()
    CHANGES["messageDelayLevel with fewer levels"](waiting.broker, monkeypatch)
    waiting.broker.restart()
    told = [vars(record) for record in caplog.records if "no longer has" in record.getMessage()]
    assert [(fields["rucola_fields"]["levels"], fields["rucola_fields"]["messages"]) for fields in told] == [
        ("2 to 3", 4)
    ]
    waiting.passes(3800)
    assert {body for body in waiting.come() if body.startswith(b"level")} == set()
    waiting.passes(1000)
    assert len({body for body in waiting.come() if body.startswith(b"level")}) == 4
    caplog.clear()
    waiting.broker.restart()
    assert not [record for record in caplog.records if "no longer has" in record.getMessage()]


def test_the_limit_holds_for_producers_also_of_replies_and_batches(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    CHANGES["maxMessageSize smaller"](waiting.broker, monkeypatch)
    waiting.broker.restart()
    assert waiting.broker.send("W", waiting.body("x")).code == ResponseCode.MESSAGE_ILLEGAL
    assert waiting.broker.half("W", waiting.body("x")).code == ResponseCode.MESSAGE_ILLEGAL
    assert waiting.broker.send("W", waiting.body("x"), DELAY="1").code == ResponseCode.MESSAGE_ILLEGAL
