"""Trace records: those of the official clients, and texts that cannot be read."""

from __future__ import annotations

import pytest

from rucola.protocol.trace import TraceRecord, TraceType, decode_trace, encode_trace, trace_keys

PUBLISHED = (
    "Pub\x011795249636844\x01DefaultRegion\x01G_trace_P\x01T_trace\x01FD0000000000000000000000000000021F064E0E2F2A68CF9"
    "DEB0000\x01TagA\x01k0\x01127.0.0.1:23011\x0116\x0187\x010\x017F000001000059E30000000000000000\x01true\x02"
    "Pub\x011795249636934\x01DefaultRegion\x01G_trace_P\x01T_trace\x01FD0000000000000000000000000000021F064E0E2F2A68CF9"
    "E460002\x01TagA\x01k1\x01127.0.0.1:23011\x0116\x019\x010\x017F000001000059E30000000000000117\x01true\x02"
)
CONSUMED = (
    "SubBefore\x011795249638614\x01DefaultRegion\x01G_trace\x01FD0000000000000000000000000000021F064E0E2F2A68CFA4D60005"
    "\x01FD0000000000000000000000000000021F064E0E2F2A68CF9E460002\x010\x01k1\x02"
    "SubAfter\x01FD0000000000000000000000000000021F064E0E2F2A68CFA4D60005\x01FD0000000000000000000000000000021F064E0E2F"
    "2A68CF9E460002\x0117\x01true\x01k1\x010\x011795249638631\x01G_trace\x02"
)
ENDED = (
    "EndTransaction\x011\x01R\x01G\x01T\x01ID\x01null\x01k a\x01127.0.0.1:1\x012\x01ID\x01ROLLBACK_MESSAGE\x01true\x02"
    "Recall\x012\x01R\x01G\x01T\x01ID\x01false\x02"
)


@pytest.mark.parametrize("text", [PUBLISHED, CONSUMED, ENDED])
def test_records_of_the_official_client(text):
    records = decode_trace(text)
    assert len(records) == 2
    assert encode_trace(records) == text


def test_fields():
    published, consumed, ended = (decode_trace(text) for text in (PUBLISHED, CONSUMED, ENDED))
    assert published[0] == TraceRecord(
        trace_type=TraceType.PUB,
        timestamp_ms=1795249636844,
        region="DefaultRegion",
        group="G_trace_P",
        topic="T_trace",
        msg_id="FD0000000000000000000000000000021F064E0E2F2A68CF9DEB0000",
        tags="TagA",
        keys="k0",
        store_host="127.0.0.1:23011",
        body_length=16,
        cost_ms=87,
        offset_msg_id="7F000001000059E30000000000000000",
    )
    assert (consumed[0].request_id, consumed[0].retry_times) == (consumed[1].request_id, 0)
    assert (consumed[1].cost_ms, consumed[1].group, consumed[1].context_code) == (17, "G_trace", 0)
    assert (ended[0].tags, ended[0].transaction_state, ended[0].from_transaction_check) == (
        None,
        "ROLLBACK_MESSAGE",
        True,
    )
    assert ended[1].success is False


def test_keys():
    assert trace_keys(decode_trace(CONSUMED)) == ["FD0000000000000000000000000000021F064E0E2F2A68CF9E460002", "k1"]
    assert trace_keys(decode_trace(ENDED)) == ["ID", "k", "a"]


def test_old_clients():
    pub, after = PUBLISHED.split("\x02", maxsplit=1)[0].split("\x01"), CONSUMED.split("\x02")[1].split("\x01")
    old_pub = "\x01".join([*pub[:12], "false"])
    old_after = "\x01".join(after[:6])
    decoded_pub, decoded_after = decode_trace(f"{old_pub}\x02{old_after}\x02")
    assert (decoded_pub.offset_msg_id, decoded_pub.success) == (None, False)
    assert (decoded_after.keys, decoded_after.timestamp_ms, decoded_after.group) == ("k1", 0, "")


def test_newer_clients_may_say_more():
    assert decode_trace(PUBLISHED.replace("\x01true\x02", "\x01true\x01127.0.0.1:5\x02")) == decode_trace(PUBLISHED)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x02\x02",
        "Pub",
        "Pub\x01\x02",
        PUBLISHED.split("\x02", maxsplit=1)[0].replace("1795249636844", "now"),
        PUBLISHED.split("\x02", maxsplit=1)[0][:110],
        "Nothing\x011\x02",
    ],
)
def test_unreadable_records_are_passed_over(text):
    assert decode_trace(text) == []
    assert decode_trace(text + "\x02" + CONSUMED) == decode_trace(CONSUMED)


def test_separators_in_values_do_not_make_records():
    record = TraceRecord(trace_type=TraceType.RECALL, msg_id="ID", group="a\x02Pub\x01b")
    assert [one.group for one in decode_trace(encode_trace([record]))] == ["a Pub b"]
