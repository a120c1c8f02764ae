"""Checkpoints and acknowledgements of pops: encoded as by RocketMQ; invalid texts are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.golden.loader import load_broker
from tests.plain_log import read_log

from rucola.broker.pop.revive_log import record_of
from rucola.common.java import parse_properties
from rucola.common.message import MessageExt
from rucola.errors import FormatError
from rucola.formats.message import decode_message
from rucola.formats.pop import PopAck, PopCheckpoint, PopKey

KEY = PopKey("T_store", "G_store", 0, 1, 1795249881060, "broker-a")


def golden_messages(name: str) -> list[MessageExt]:
    case = load_broker(name)
    segments = {path.removeprefix("commitlog/"): data for path, data in case.files.items() if path.startswith("commit")}
    log = read_log(segments, int(parse_properties(case.broker_conf)["mappedFileSizeCommitLog"]))
    return [decode_message(record.data) for record in log.records]


@pytest.mark.parametrize("name", ["pop_clean", "pop_killed"])
def test_every_record_of_the_reference_is_encoded_as_it_is(name: str) -> None:
    found = [(message, record_of(message)) for message in golden_messages(name)]
    records = [(message, record) for message, record in found if record is not None]
    assert {type(record) for _, record in records} == {PopCheckpoint, PopAck}
    for message, record in records:
        assert record.encode() == message.body
        assert record.unique_key == message.properties["UNIQ_KEY"]


def test_a_checkpoint_names_its_messages() -> None:
    checkpoint = PopCheckpoint(KEY, 60_000, (0, 1, 4))
    assert checkpoint.queue_offsets == [1, 2, 5]
    assert checkpoint.revive_ms == 1795249941060
    assert PopCheckpoint.decode(checkpoint.encode()) == checkpoint


def test_a_checkpoint_of_an_old_broker_has_messages_in_a_row() -> None:
    body = b'{"bm":0,"bn":"b","c":"g","it":5,"n":3,"pt":9,"q":1,"so":7,"t":"t"}'
    assert PopCheckpoint.decode(body).queue_offsets == [7, 8, 9]


def test_a_batch_ack_names_all_its_messages() -> None:
    ack = PopAck(KEY, (1, 2, 5), batch=True)
    assert ack.encode() == (
        b'{"ao":-1,"aol":[1,2,5],"bn":"broker-a","c":"G_store","pt":1795249881060,"q":0,"so":1,"t":"T_store"}'
    )
    assert ack.unique_key == "T_store@0@-1@G_store@1795249881060@broker-a@ack"
    assert (ack.tag, replace(ack, batch=False).tag) == ("bAck", "ack")
    assert PopAck.decode(ack.encode()) == ack


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"t":"t"}', b'{"t":"t","c":7}', b'{"t":"t","c":"c","q":"1"}', b'{"t":"t","c":"c","d":[-1]}'],
)
def test_other_texts_are_no_checkpoints(body: bytes) -> None:
    with pytest.raises(FormatError):
        PopCheckpoint.decode(body)


@pytest.mark.parametrize("body", [b"{", b'{"c":"c"}', b'{"t":"t","c":"c","aol":["1"]}', b'{"t":"t","c":"c","ao":1.5}'])
def test_other_texts_are_no_acknowledgements(body: bytes) -> None:
    with pytest.raises(FormatError):
        PopAck.decode(body)
