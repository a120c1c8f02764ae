"""``consumerFilter.json`` as fastjson writes it."""

from __future__ import annotations

import pytest

from rucola.errors import FormatError
from rucola.formats.tables import ConsumerFilter, consumer_filter_pieces, decode_consumer_filters

TEXT = b"""{
	"filterDataByTopic":{
		"TopicTest":{
			"groupFilterData":{
				"group_sql":{
					"bloomFilterData":{
						"bitNum":112,
						"bitPos":[10,54,98]
					},
					"bornTime":1700000000000,
					"clientVersion":1700000000001,
					"consumerGroup":"group_sql",
					"dead":false,
					"deadTime":0,
					"expression":"a > 5",
					"expressionType":"SQL92",
					"topic":"TopicTest"
				}
			},
			"topic":"TopicTest"
		}
	}
}"""
FILTER = ConsumerFilter(
    "group_sql", "TopicTest", "a > 5", "SQL92", 1_700_000_000_000, 0, 1_700_000_000_001, 112, (10, 54, 98)
)


def test_read_and_written_again() -> None:
    table = decode_consumer_filters(TEXT)
    assert table == {"TopicTest": {"group_sql": FILTER}}
    assert b"".join(consumer_filter_pieces(table)) == TEXT
    assert b"".join(consumer_filter_pieces({})) == b'{\n\t"filterDataByTopic":{}\n}'


def test_a_group_without_a_bloom_filter_whose_members_have_left() -> None:
    filters = {"T": {"g": FILTER._replace(topic="T", group="g", bits=0, bit_positions=(), dead_ms=FILTER.born_ms + 1)}}
    text = b"".join(consumer_filter_pieces(filters))
    assert b"bloomFilterData" not in text and b'"dead":true' in text
    assert decode_consumer_filters(text) == filters


@pytest.mark.parametrize(
    ("old", "new"), [(b'"topic":"TopicTest"\n\t\t\t\t}', b'"x":1\n\t\t\t\t}'), (b"112", b'"many"')]
)
def test_a_broken_entry_is_named(old: bytes, new: bytes) -> None:
    with pytest.raises(FormatError, match="TopicTest"):
        decode_consumer_filters(TEXT.replace(old, new))
