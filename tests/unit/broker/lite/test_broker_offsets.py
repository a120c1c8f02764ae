"""Offsets of groups in lite topics: over a broker's life, and with RocketMQ's table."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.lite.lite_broker import GROUP, LiteBroker
from tests.unit.store.stores import message

from rucola.broker.offset import consumer_offset_manager
from rucola.errors import StoreDamagedError
from rucola.formats.tables import consumer_offset_pieces, decode_consumer_offsets
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.store.doctor.export_offsets import export_offsets
from rucola.store.results import PutMessageStatus
from rucola.testing.simulated_os import files_on

SESSION = "%LMQ%$T$session"
TABLE = "/store/config/lmqConsumerOffset.json"


@pytest.fixture
def broker() -> LiteBroker:
    """A broker whose lite topic has three messages."""
    made = LiteBroker()
    store = made.broker.store
    for number in range(3):
        sent = message(number, b"T")
        sent.properties += f"INNER_MULTI_DISPATCH\x01{SESSION}\x02".encode()
        assert store.put_message(sent).status is PutMessageStatus.PUT_OK
    store.dispatch()
    return made


def offset(broker: LiteBroker) -> int | None:
    return broker.broker.offsets.query(GROUP, SESSION, 0)


def table(broker: LiteBroker) -> dict[str, dict[int, int]]:
    content = files_on(broker.disk).read_file(TABLE)
    offsets = {} if content is None else decode_consumer_offsets(content)[1]
    return {key: queues for key, queues in offsets.items() if key.startswith("%LMQ%")}


@pytest.mark.parametrize(("committed", "kept"), [(2, 2), (3, 3), (9, 3)])
def test_an_offset_outlives_a_kill(broker: LiteBroker, committed: int, kept: int) -> None:
    """A lite topic has no directory; its groups began at 0 again."""
    broker.broker.offsets.commit(GROUP, SESSION, 0, committed)
    broker.passes(6000)
    broker.kill()
    assert broker.broker.store.recovered and offset(broker) == kept
    broker.restart()
    assert offset(broker) == kept


def test_a_clean_stop_writes_the_table_of_rocketmq(broker: LiteBroker) -> None:
    broker.broker.offsets.commit(GROUP, SESSION, 0, 2)
    broker.passes(6000)
    assert table(broker) == {}
    broker.restart()
    assert table(broker) == {f"{SESSION}@{GROUP}": {0: 2}}
    broker.broker.offsets.commit(GROUP, SESSION, 0, 3)
    broker.passes(6000)
    broker.kill()
    assert offset(broker) == 3


def test_offsets_that_rocketmq_wrote_are_taken_over(broker: LiteBroker) -> None:
    broker.broker.offsets.commit(GROUP, SESSION, 0, 2)
    broker.restart()
    content = files_on(broker.disk).read_file(TABLE)
    assert content is not None
    version, _ = decode_consumer_offsets(content)
    theirs = {f"{SESSION}@{GROUP}": {0: 1}, f"{SESSION}@other": {0: 3}}
    content = b"".join(consumer_offset_pieces(version.next(5), theirs, light=True))
    files_on(broker.disk).write_file(TABLE, content)
    broker.kill()
    assert offset(broker) == 1 and broker.broker.offsets.query("other", SESSION, 0) == 3
    broker.restart()
    assert table(broker) == {f"{SESSION}@{GROUP}": {0: 1}, f"{SESSION}@other": {0: 3}}


def test_very_many_are_not_written_to_the_table(broker: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offset_manager, "LITE_EXPORTED_MAX", 1)
    broker.broker.offsets.commit(GROUP, SESSION, 0, 2)
    broker.broker.offsets.commit("other", SESSION, 0, 2)
    broker.restart()
    assert table(broker) == {} and offset(broker) == 2


def test_requests_read_and_set_an_offset(broker: LiteBroker) -> None:
    fields: dict[str, object] = {"consumerGroup": GROUP, "topic": SESSION, "queueId": 0}
    none = {"setZeroIfNotFound": "false"}
    assert broker.request(RequestCode.QUERY_CONSUMER_OFFSET, fields | none).code == ResponseCode.QUERY_NOT_FOUND
    assert broker.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": 2}).code == 0
    answer = broker.request(RequestCode.QUERY_CONSUMER_OFFSET, fields).answer
    assert answer is not None and answer.ext_fields["offset"] == "2"
    unknown = fields | {"topic": "%LMQ%$T$unknown", "commitOffset": 2}
    assert broker.request(RequestCode.UPDATE_CONSUMER_OFFSET, unknown).code == ResponseCode.TOPIC_NOT_EXIST
    other = fields | {"queueId": 1, "commitOffset": 2}
    assert broker.request(RequestCode.UPDATE_CONSUMER_OFFSET, other).code == ResponseCode.INVALID_PARAMETER
    assert len(broker.offsets) == 1


def test_an_offset_is_copied_and_a_group_takes_its_own_with_it(broker: LiteBroker) -> None:
    offsets = broker.broker.offsets
    offsets.commit(GROUP, SESSION, 0, 2)
    offsets.clone(GROUP, "other", SESSION)
    offsets.commit(GROUP, SESSION, 0, -1)
    assert offsets.groups_of(SESSION) == [GROUP, "other"] and offsets.topics_of(GROUP) == []
    assert offsets.queues_begun(SESSION) == {GROUP: {0}, "other": {0}}
    assert broker.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": "true"}).code == 0
    assert offsets.groups_of(SESSION) == ["other"]
    offsets.remove_topic(SESSION)
    assert offsets.groups_of(SESSION) == []


def test_an_export_writes_any_number(broker: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offset_manager, "LITE_EXPORTED_MAX", 0)
    for group, consumed in ((GROUP, 2), ("other", 1), ("gone", 1)):
        broker.broker.offsets.commit(group, SESSION, 0, consumed)
    broker.broker.offsets.remove_group("gone")
    with pytest.raises(StoreDamagedError):
        export_offsets("/store", files_on(broker.disk))
    asyncio.run(broker.broker.shutdown())
    assert table(broker) == {}
    assert export_offsets("/store", files_on(broker.disk)) == 2
    assert table(broker) == {f"{SESSION}@{GROUP}": {0: 2}, f"{SESSION}@other": {0: 1}}
    broker.kill()
    assert offset(broker) == 2 and len(broker.offsets) == 2
