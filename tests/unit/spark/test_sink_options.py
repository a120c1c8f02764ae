"""Options and columns of the sink."""

from __future__ import annotations

import pickle

import pytest
from tests.unit.spark.ddl import schema_of

from rucola.client.send_result import SendStatus
from rucola.errors import ConfigError
from rucola.spark.sink_options import SinkLayout, parse_sink_options, sink_layout
from rucola.spark.source import RocketMQDataSource

GIVEN = {"nameServer": "h:1", "topic": "t"}
SOURCE = "topic string, body binary, brokerName string, queueId int, queueOffset bigint, storeTimestamp timestamp"


def layout(ddl: str, **given: str) -> SinkLayout:
    return sink_layout(parse_sink_options({**GIVEN, **given}), schema_of(ddl))


def test_names_in_any_case_and_what_spark_adds() -> None:
    options = parse_sink_options(
        {
            "NAMESERVER": "h:1",
            "Topic": "t",
            "checkpointLocation": "c",
            "queryName": "q",
            "acceptedstatus": "slave_not_available",
        }
    )
    assert (options.name_server, options.topic) == ("h:1", "t")
    assert options.accepted == {SendStatus.SEND_OK, SendStatus.SLAVE_NOT_AVAILABLE}


@pytest.mark.parametrize(
    ("given", "place"), [("", ""), ("/p", "/p"), ("file:/p", "/p"), ("s3://bucket/p", "s3://bucket/p")]
)
def test_the_directory_of_dead_letters(given: str, place: str) -> None:
    assert parse_sink_options({**GIVEN, "deadLetterPath": given}).dead_letter_path == place


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topik": "t"}, "nearest is topic"),
        ({"path": "p"}, "take no path"),
        ({"subscribe": "t"}, "instead, use topic"),
        ({"topic": "a b"}, "option topic"),
        ({"deadLetterTopic": "d", "deadLetterPath": "p"}, "one of the two"),
        ({"deadLetterPath": "s3:/bucket/letters"}, "file:///path"),
        ({"acceptedStatus": "FLUSHED"}, "FLUSH_DISK_TIMEOUT"),
        ({"nameServer": ""}, "name servers"),
        ({"batchBytes": "0"}, "1 to 4194304"),
        ({"secretKey": "s"}, "both or neither"),
    ],
)
def test_refused_options(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_sink_options({**GIVEN, **given})


def test_a_secret_travels_and_is_not_shown() -> None:
    options = parse_sink_options({**GIVEN, "accessKey": "a", "secretKey": "nobody-sees"})
    copy = pickle.loads(pickle.dumps(options))
    assert copy.access.secret_key.reveal() == "nobody-sees"
    assert "nobody-sees" not in repr(copy)


def test_rows_of_the_source_have_a_position_and_no_queue_to_go_to() -> None:
    found = layout(SOURCE)
    assert (found.has_position, found.id_field, found.queue_field) == (True, None, None)
    assert layout(SOURCE, queueColumn="queueId").queue_field == 3


def test_other_rows_go_to_the_queue_they_name() -> None:
    found = layout("VALUE string, queueId int, id string", idColumn="ID")
    assert (found.has_position, found.id_field, found.queue_field) == (False, 2, 1)
    assert found.fields["body"] == 0


@pytest.mark.parametrize(
    ("ddl", "given", "text"),
    [
        ("tags string", {}, "a column body"),
        ("body int", {}, "string or binary"),
        ("body string, tag string", {}, "nearest is tags"),
        ("body string, value string", {}, "one column for body"),
        ("body string, queueOffset bigint", {}, "topic, brokerName, queueId, the rest of"),
        ("body string", {"idColumn": "id"}, "one of these columns"),
        ("body string, q string", {"queueColumn": "q"}, "whole numbers"),
        ("body string", {"topic": ""}, "or a column topic"),
        ("body string, Body string", {}, "regardless of case"),
    ],
)
def test_refused_columns(ddl: str, given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        layout(ddl, **given)


def test_nothing_is_replaced() -> None:
    source = RocketMQDataSource({**GIVEN})
    for face, text in ((source.writer, "append"), (source.streamWriter, "append or update")):
        with pytest.raises(ConfigError, match=text):
            face(schema_of("body string"), True)
