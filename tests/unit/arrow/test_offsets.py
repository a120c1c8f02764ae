"""Offsets as a JSON document: equal offsets have the same text, and all values are integers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.arrow.offsets import Mark, StreamOffsets, from_document, parse_document, to_document
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError

names = st.text(min_size=1, max_size=8)
topics = names.filter(lambda topic: not topic.startswith("#"))  # no topic can have that character
queues = st.builds(MessageQueue, topics, names, st.integers(0, 40))
offsets_of_queues = st.dictionaries(queues, st.integers(0, 2**63 - 1), max_size=20)


def test_the_document_is_nested_and_sorted() -> None:
    offsets = {MessageQueue("B", "b", 0): 3, MessageQueue("A", "b", 10): 1, MessageQueue("A", "b", 9): 2}
    assert json.dumps(to_document(offsets)) == '{"A": {"b": {"9": 2, "10": 1}}, "B": {"b": {"0": 3}}}'


@given(offsets_of_queues)
def test_round_trip_through_json(offsets: dict[MessageQueue, int]) -> None:
    assert from_document(json.loads(json.dumps(to_document(offsets)))) == offsets


@given(offsets_of_queues, offsets_of_queues, st.dictionaries(queues, st.builds(Mark, st.integers(0), st.integers(0))))
def test_round_trip_of_a_streams_document(
    offsets: dict[MessageQueue, int], starts: dict[MessageQueue, int], marks: dict[MessageQueue, Mark]
) -> None:
    whole = StreamOffsets(offsets, starts, marks)
    document = json.loads(json.dumps(whole.to_document()))
    assert StreamOffsets.from_document(document) == whole
    assert from_document(document) == parse_document(json.dumps(document), "startingOffsets", -2) == offsets


@given(offsets_of_queues, st.randoms())
def test_equal_offsets_give_equal_text(offsets: dict[MessageQueue, int], random: object) -> None:
    shuffled = list(offsets.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert json.dumps(to_document(dict(shuffled))) == json.dumps(to_document(offsets))


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"t":[]}', '{"t":{"b":3}}', '{"t":{"b":{"x":1}}}', '{"t":{"b":{"-1":1}}}', '{"t":{"b":{"0":"1"}}}',
     '{"t":{"b":{"0":1.0}}}', '{"t":{"b":{"0":true}}}', '{"t":{"b":{"0":9223372036854775808}}}',
     '{"t":{"b":{"0":-3}}}', '{"t":{"b":{"99999999999":1}}}'],
)  # fmt: skip
def test_refused_documents(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, "startingOffsets", -2)
    assert caught.value.key == "startingOffsets"
