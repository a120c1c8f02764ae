"""What clients hand back to the door."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.common.numbers import INT32_MAX, INT64_MAX
from rucola.proxy import messages
from rucola.proxy.receipt import ReceiptHandle, TransactionId
from rucola.proxy.refusal import RefusedError

TEXT = "7 1700000000000 30000 3 0 broker-a 2 11 4096"
HANDLE = ReceiptHandle(7, 1700000000000, 30000, 3, "0", "broker-a", 2, 11, 4096)


def test_both_ways():
    assert ReceiptHandle.decode(TEXT) == HANDLE
    assert HANDLE.encode() == TEXT
    assert HANDLE.extra_info == TEXT.removesuffix(" 4096")


def test_a_handle_of_remoting_clients_has_no_place_in_the_log():
    handle = ReceiptHandle.decode(TEXT.removesuffix(" 4096"))
    assert handle == HANDLE._replace(physical_offset=-1)
    assert handle.encode() == handle.extra_info == TEXT.removesuffix(" 4096")


def test_a_handle_has_its_lite_topic():
    handle = ReceiptHandle.decode(TEXT + " session-1_A")
    assert handle == HANDLE._replace(lite_topic="session-1_A") == HANDLE.of_lite_topic("session-1_A")
    assert handle.encode() == TEXT + " session-1_A"
    assert handle.extra_info == HANDLE.extra_info, "brokers do not see it"
    assert ReceiptHandle.decode("0" + TEXT + " " + "s" * 128).lite_topic == "s" * 128, "not by the usual way"
    with pytest.raises(RefusedError, match="no lite topic has") as refused:
        HANDLE.of_lite_topic("a/b")
    assert refused.value.code == messages.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize(("after_ms", "expired"), [(-1, False), (0, True), (1, True)])
def test_expired(after_ms, expired):
    assert HANDLE.is_expired(1700000030000 + after_ms) is expired


@pytest.mark.parametrize(("kind", "topic"), [("0", "t"), ("1", "%RETRY%g_t"), ("2", "%RETRY%g+t")])
def test_the_topic_that_holds_the_message(kind, topic):
    assert HANDLE._replace(topic_kind=kind).real_topic("t", "g") == topic


@pytest.mark.parametrize(("queue", "ordered"), [(998, False), (999, True), (1000, False)])
def test_popped_in_order(queue, ordered):
    assert HANDLE._replace(revive_queue_id=queue).is_ordered is ordered


BOUNDS = [INT64_MAX, 1 << 61, 1 << 61, INT32_MAX, None, None, INT32_MAX, INT64_MAX, INT64_MAX]


@pytest.mark.parametrize(("place", "highest"), [pair for pair in enumerate(BOUNDS) if pair[1] is not None])
def test_every_number_is_bounded(place, highest):
    words = TEXT.split(" ")
    for fine in ("0", str(highest - 1), str(highest)):
        words[place] = fine
        assert ReceiptHandle.decode(" ".join(words))[place] == int(fine)
    for wrong in ("-1", str(highest + 1), "", "x", "1_0", "\u0663", "9" * 5000):
        words[place] = wrong
        with pytest.raises(RefusedError, match="is not a number from 0 to") as refused:
            ReceiptHandle.decode(" ".join(words))
        assert refused.value.code == messages.INVALID_RECEIPT_HANDLE == 40013


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1 fields instead of 8 to 10"),
        ("1 2 3 4 0 b 6", "7 fields"),
        (TEXT + " a b", "11 fields"),
        (TEXT + " ", "no lite topic has"),
        (TEXT + " a/b", "no lite topic has"),
        (TEXT + " ü", "no lite topic has"),
        (TEXT.replace(" ", "  ", 1) + " a", "11 fields"),
        (TEXT.replace(" 0 b", " 3 b"), "kind of topic"),
        (TEXT.replace(" 0 b", " 00 b"), "kind of topic"),
        ("7 1 2 3 0  4 5", "no name"),
        ("x" * 100_000, "1 fields"),
    ],
)
def test_malformed(text, problem):
    with pytest.raises(RefusedError, match=problem) as refused:
        ReceiptHandle.decode(text)
    assert refused.value.code == messages.INVALID_RECEIPT_HANDLE
    assert len(refused.value.text) < 300


@given(st.text() | st.text(" 0123456789-bx", max_size=40))
def test_any_text_is_decoded_or_refused(text):
    for kind in (ReceiptHandle, TransactionId):
        try:
            decoded = kind.decode(text)
        except RefusedError:
            continue
        assert decoded.encode() == text or kind is ReceiptHandle  # +07 is 7


TRANSACTION = TransactionId("01ABCDEF", "broker-a", 5, 4096)


@pytest.mark.parametrize(
    "transaction",
    [
        TRANSACTION,
        TransactionId("01ABCDEF", "broker-a", 0, 0),
        TransactionId("a key with spaces \U0001f33f", "b", INT64_MAX, INT64_MAX),
        TransactionId("k", "b", 1, 1),
    ],
)
def test_a_transaction_id_holds_the_place_of_the_half_message(transaction):
    text = transaction.encode()
    assert TransactionId.decode(text) == transaction
    assert not transaction.is_plain
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text


@pytest.mark.parametrize("text", ["01ABCDEF", "T1", "t1.x", "any text"])
def test_a_plain_unique_key_is_accepted(text):
    transaction = TransactionId.decode(text)
    assert transaction == TransactionId(text, "", -1, -1)
    assert transaction.is_plain
    assert transaction.encode() == text


def encoded(words: str) -> str:
    return TransactionId("k", "b", 1, 1).encode()[:3] + base64.urlsafe_b64encode(words.encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "T1.",
        "T1.!!!!",
        "T1.AA\n",
        TRANSACTION.encode()[:-14],
        encoded("1 1 b"),
        encoded("1 1  k"),
        encoded("1 1 b "),
        encoded("-1 1 b k"),
        encoded("1 -1 b k"),
        encoded(f"{INT64_MAX + 1} 1 b k"),
        encoded(f"1 {INT64_MAX + 1} b k"),
        "T1.____",
    ],
)
def test_transaction_ids_that_are_refused(text):
    with pytest.raises(RefusedError) as refused:
        TransactionId.decode(text)
    assert refused.value.code == messages.INVALID_TRANSACTION_ID == 40008
