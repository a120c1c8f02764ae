"""HPACK: the examples of RFC 7541, what is refused, what a request must have, and the encoder."""

from __future__ import annotations

import random

import hpack
import pytest
from tests.kernels import kernel
from tests.unit.http2.wire import decoder

from rucola.http2 import columns
from rucola.http2.hpack import encode_block
from rucola.http2.hpack_tables import HUFFMAN_LENGTHS, STATIC_TABLE

AUTHORITY, STATUS, DATE = b":authority", b":status", b"date"
REQUESTS = {
    "C.3": (
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ),
    "C.4": (
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ),
}
RESPONSES = {
    "C.5": (
        (
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d"
            "546e1768747470733a2f2f7777772e6578616d706c652e636f6d"
        ),
        "4803 3330 37c1 c0bf",
        (
            "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f"
            "6f3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b"
            "2076 6572 7369 6f6e 3d31"
        ),
    ),
    "C.6": (
        (
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c7"
            "8f0b 97c8 e9ae 82ae 43d3"
        ),
        "4883 640e ffc1 c0bf",
        (
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335"
            "dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
        ),
    ),
}
COOKIE = b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
VALID = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"))
MALFORMED, TOO_LARGE, UNREADABLE = 1, 2, -1


def block(*fields: tuple[bytes, bytes]) -> bytes:
    """Fields as literals, even if they are none."""
    encoded = b""
    for name, value in fields:
        encoded += b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
    return encoded


def test_single_fields_of_the_rfc(form: str) -> None:
    names = [b"custom-key", b":path", b"password", b":method"]
    one = decoder(form, names)
    assert one.decode(bytes.fromhex("400a637573746f6d2d6b65790d637573746f6d2d686561646572")) == {
        b"custom-key": b"custom-header"
    }
    assert one.decoder.table() == [(b"custom-key", b"custom-header")]
    assert one.decode(bytes.fromhex("040c2f73616d706c652f70617468")) == {b":path": b"/sample/path"}
    assert one.decode(bytes.fromhex("100870617373776f726406736563726574")) == {b"password": b"secret"}
    assert one.decode(bytes.fromhex("82")) == {b":method": b"GET"}
    assert one.decoder.table() == [(b"custom-key", b"custom-header")]


@pytest.mark.parametrize("chapter", REQUESTS)
def test_requests_of_the_rfc(form: str, chapter: str) -> None:
    names = [b":method", b":scheme", b":path", AUTHORITY, b"cache-control", b"custom-key"]
    one = decoder(form, names)
    first, second, third = map(bytes.fromhex, REQUESTS[chapter])
    get = {b":method": b"GET", b":scheme": b"http", b":path": b"/", AUTHORITY: b"www.example.com"}
    assert one.decode(first) == get and one.status == 0
    assert one.decode(second) == {**get, b"cache-control": b"no-cache"} and one.status == 0
    found = {**get, b":scheme": b"https", b":path": b"/index.html", b"custom-key": b"custom-value"}
    assert one.decode(third) == found
    assert one.fields[columns.FIELDS_LIST_BYTES] == 32 * 5 + sum(len(name + value) for name, value in found.items())
    assert one.decoder.table() == [
        (b"custom-key", b"custom-value"), (b"cache-control", b"no-cache"), (AUTHORITY, b"www.example.com")
    ]  # fmt: skip


@pytest.mark.parametrize("chapter", RESPONSES)
def test_responses_of_the_rfc_with_evictions(form: str, chapter: str) -> None:
    names = [STATUS, b"cache-control", DATE, b"location", b"content-encoding", b"set-cookie"]
    one = decoder(form, names)
    first, second, third = map(bytes.fromhex, RESPONSES[chapter])
    found = {
        STATUS: b"302", b"cache-control": b"private", DATE: b"Mon, 21 Oct 2013 20:13:21 GMT",
        b"location": b"https://www.example.com",
    }  # fmt: skip
    assert one.decode(b"\x3f\xe1\x01" + first) == found
    assert one.decoder.table() == [*reversed(found.items())]
    found[STATUS] = b"307"
    assert one.decode(second) == found
    assert one.decoder.table()[0] == (STATUS, b"307") and len(one.decoder.table()) == 4
    later = {DATE: b"Mon, 21 Oct 2013 20:13:22 GMT", b"content-encoding": b"gzip", b"set-cookie": COOKIE}
    assert one.decode(third) == {**found, **later, STATUS: b"200"}
    assert one.decoder.table() == [*reversed(later.items())]


def test_the_codes_are_those_of_the_rfc() -> None:
    from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
    from hpack.table import HeaderTable

    assert tuple(REQUEST_CODES_LENGTH) == HUFFMAN_LENGTHS
    assert len(REQUEST_CODES) == 257
    assert tuple(HeaderTable.STATIC_TABLE) == STATIC_TABLE


def test_each_byte_is_decoded(form: str) -> None:
    from hpack.huffman import HuffmanEncoder
    from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

    decode, encoder = (
        kernel("http2._hpack_cy", form).huffman_decode,
        HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH),
    )
    for one in (bytes((byte,)) for byte in range(256)):
        for text in (one, one + b"a" + one, one * 9, b"0" * 7 + one):
            code = encoder.encode(text)
            for room in (len(text) + 2, len(text), 1, 0):
                out = bytearray(b"\xee" * (room + 4))
                assert decode(code, memoryview(out)[:room]) == len(text), text
                kept = min(room, len(text))
                assert out[:kept] == text[:kept] and out[room:] == b"\xee" * 4, text


@pytest.mark.parametrize(
    ("code", "length"),
    [
        ("", 0),
        ("ff", -1),  # eight bits of padding
        ("1fff", -1),  # a byte and eleven bits of padding
        ("1f", 1),
        ("1e", -1),  # padding with a zero
        ("18", -1),
        ("3fffffff", -1),  # 0, then the beginning of EOS
        ("ffffffff", -1),
        ("fffffffc", -1),  # EOS whole
        ("fffffffffc", -1),
        ("1ffffffff8", -1),  # a byte, then EOS
        ("fffffff7", 1),  # the last code before EOS
    ],
)
def test_padding_and_eos(form: str, code: str, length: int) -> None:
    assert kernel("http2._hpack_cy", form).huffman_decode(bytes.fromhex(code), bytearray(40)) == length


@pytest.mark.parametrize(
    "wrong",
    [
        "80",  # index 0
        "be",  # nothing in the dynamic table
        "ff00be",
        "7e0161",  # a name from there
        "ff",  # a number without an end
        "ff80",
        "ffffffffff",
        "ff8080808080808001",  # a number with more than five bytes
        "ffffffffff7f",
        "3fe21f",  # 4,097 bytes of table
        "8220",  # a change of size after a field
        "202020",  # three of them
        "40",  # no string
        "4001",
        "40016101",
        "400161ff",
        "4002610161",
        "40018161",  # Huffman code that is none
        "400161817e",
        "0001617f8080808008",  # a length beyond the block
    ],
)
def test_unreadable_blocks(form: str, wrong: str) -> None:
    one = decoder(form)
    one.decode(block(*VALID) + bytes.fromhex(wrong) if not wrong.startswith(("3f", "20")) else bytes.fromhex(wrong))
    assert one.status == UNREADABLE


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (VALID, 0),
        ((*VALID, (AUTHORITY, b"a"), (b"te", b"trailers"), (b"x", b"")), 0),
        (VALID[:2], MALFORMED),
        (VALID[1:], MALFORMED),
        ((VALID[0], VALID[2]), MALFORMED),
        ((*VALID, VALID[0]), MALFORMED),
        ((*VALID, VALID[1]), MALFORMED),
        ((*VALID, VALID[2]), MALFORMED),
        ((*VALID, (AUTHORITY, b"a"), (AUTHORITY, b"a")), MALFORMED),
        ((*VALID[:2], (b":path", b"")), MALFORMED),
        ((*VALID, (b"x", b"1"), (AUTHORITY, b"a")), MALFORMED),
        ((*VALID, (b":status", b"200")), MALFORMED),
        ((*VALID, (b":protocol", b"websocket")), MALFORMED),
        ((*VALID, (b":", b"")), MALFORMED),
        ((*VALID, (b"", b"1")), MALFORMED),
        ((*VALID, (b"X", b"1")), MALFORMED),
        ((*VALID, (b"a b", b"1")), MALFORMED),
        ((*VALID, (b"a:b", b"1")), MALFORMED),
        ((*VALID, (b"a\x7f", b"1")), MALFORMED),
        ((*VALID, (b"\xc3\xa4", b"1")), MALFORMED),
        ((*VALID, (b"x", b"a\0")), MALFORMED),
        ((*VALID, (b"x", b"a\rb")), MALFORMED),
        ((*VALID, (b"x", b"a\nb")), MALFORMED),
        ((*VALID, (b"x", b" a")), MALFORMED),
        ((*VALID, (b"x", b"a\t")), MALFORMED),
        ((*VALID, (b"x", b"a\tb \xff")), 0),
        ((*VALID, (b"connection", b"close")), MALFORMED),
        ((*VALID, (b"keep-alive", b"1")), MALFORMED),
        ((*VALID, (b"proxy-connection", b"1")), MALFORMED),
        ((*VALID, (b"transfer-encoding", b"chunked")), MALFORMED),
        ((*VALID, (b"upgrade", b"h2c")), MALFORMED),
        ((*VALID, (b"te", b"gzip")), MALFORMED),
        ((*VALID, (b"te", b"trailers, deflate")), MALFORMED),
        ((*VALID, (b"content-length", b"")), MALFORMED),
        ((*VALID, (b"content-length", b"-1")), MALFORMED),
        ((*VALID, (b"content-length", b"1x")), MALFORMED),
        ((*VALID, (b"content-length", b"1" * 19)), MALFORMED),
        ((*VALID, (b"content-length", b"1"), (b"content-length", b"2")), MALFORMED),
        ((*VALID, (b"content-length", b"1"), (b"content-length", b"1")), 0),
        (((b":method", b"CONNECT"), (AUTHORITY, b"a")), 0),
        (((b":method", b"CONNECT"),), MALFORMED),
        (((b":method", b"CONNECT"), (AUTHORITY, b"a"), (b":path", b"/")), MALFORMED),
        (((b":method", b"CONNECT"), (AUTHORITY, b"a"), (b":scheme", b"http")), MALFORMED),
        ((), MALFORMED),
    ],
)
def test_what_a_request_must_have(form: str, fields: tuple[tuple[bytes, bytes], ...], status: int) -> None:
    """As literals, and again from the table, where the traits of name and value are kept."""
    one = decoder(form)
    one.decode(block(*fields))
    assert one.status == status
    encoder = hpack.Encoder()
    for _ in range(3):
        one.decode(encoder.encode(list(fields)))
        assert one.status == status


def test_what_trailers_must_have(form: str) -> None:
    one = decoder(form)
    one.decode(block((b"x-id", b"7")), trailers=True)
    assert one.status == 0
    one.decode(b"", trailers=True)
    assert one.status == 0
    one.decode(block((b":path", b"/")), trailers=True)
    assert one.status == MALFORMED
    one.decode(block((b"upgrade", b"/")), trailers=True)
    assert one.status == MALFORMED


def test_content_length(form: str) -> None:
    one = decoder(form)
    one.decode(block(*VALID))
    assert one.fields[columns.FIELDS_CONTENT_LENGTH] == -1
    one.decode(block(*VALID, (b"content-length", b"012345678901234567")))
    assert one.fields[columns.FIELDS_CONTENT_LENGTH] == 12345678901234567


def test_entry_numbers_are_never_reused(form: str) -> None:
    one = decoder(form, [b"x-id", b":method", b":path"])
    one.decode(bytes.fromhex("82") + b"\x40\x04x-id\x01a" + b"\x04\x02/p")
    assert (one.entry(b":method"), one.entry(b"x-id"), one.entry(b":path")) == (2, 62, -1)
    one.decode(b"\xbe")
    assert one.entry(b"x-id") == 62
    one.decode(b"\x7e\x01b")  # a new value for the same name
    assert one.entry(b"x-id") == 63
    one.decode(b"\xbf")
    assert one.entry(b"x-id") == 62 and one.decode(b"\xbf") == {b"x-id": b"a"}
    assert one.decode(b"\x0f\x2f\x01c") == {b"x-id": b"c"} and one.entry(b"x-id") == -1
    one.decode(b"\x20" + b"\x3f\xe1\x1f" + b"\x40\x04x-id\x01a")  # the table is emptied, and filled again
    assert one.entry(b"x-id") == 64
    numbers = set()
    for number in range(3000):
        value = b"%04d" % number
        assert one.decode(b"\x40\x04x-id\x04" + value) == {b"x-id": value}
        numbers.add(one.entry(b"x-id"))
    assert len(numbers) == 3000 and min(numbers) == 65
    assert len(one.decoder.table()) == 4096 // 40 and one.decoder.table()[0] == (b"x-id", b"2999")
    one.decode(b"\x40\x04x-id" + b"\x7f\xe1\x1e" + bytes(4065 - 1) + b"a")
    assert one.entry(b"x-id") == -1 and one.decoder.table() == []  # larger than the table


def test_entries_stay_whole_as_the_ring_turns(form: str) -> None:
    rng, one = random.Random(3), decoder(form, [b"x-id"])
    model: list[tuple[bytes, bytes]] = []
    for number in range(600):
        text = b"%d" % number * rng.choice((1, 5, 100, 800))
        length = b"\x7f" + encoded(len(text) - 127) if len(text) >= 127 else bytes((len(text),))
        assert one.decode(b"\x40\x04x-id" + length + text) == {b"x-id": text}
        model.insert(0, (b"x-id", text))
        while sum(36 + len(text) for _, text in model) > 4096:
            model.pop()
        assert one.decoder.table() == model
        for place in range(len(model)):
            assert one.decode(bytes((0xBE + place,)))[b"x-id"] == model[place][1]


def encoded(value: int) -> bytes:
    """A number after its prefix."""
    return bytes((value,)) if value < 128 else bytes((value & 127 | 128,)) + encoded(value >> 7)


def test_entries_that_just_fit_stay(form: str) -> None:
    one = decoder(form)
    one.decode(b"\x3f\x45" + (b"\x40\x01a\x11" + b"v" * 17) * 2)
    assert len(one.decoder.table()) == 2
    one.decode(b"\x40\x01a\x12" + b"v" * 18)
    assert len(one.decoder.table()) == 1


def test_a_name_may_be_taken_from_an_entry_with_a_bad_value(form: str) -> None:
    one = decoder(form)
    one.decode(block(*VALID) + b"\x40\x01x\x02a\n")
    assert one.status == MALFORMED
    one.decode(block(*VALID) + b"\x7e\x01b")
    assert one.status == 0
    one.decode(block(*VALID) + b"\xbe\xbf")
    assert one.status == MALFORMED


def test_numbers_have_at_most_five_more_bytes(form: str) -> None:
    one = decoder(form)
    one.decode(b"\x00\x7f\x80\x80\x80\x80\x00" + b"n" * 127 + b"\x01v")
    assert one.status != UNREADABLE
    one.decode(b"\x00\x7f\x80\x80\x80\x80\x80\x00" + b"n" * 127 + b"\x01v")
    assert one.status == UNREADABLE


def test_the_last_of_several_fields_counts(form: str) -> None:
    assert decoder(form).decode(block(*VALID, (b"x-id", b"1"), (b"x-id", b"2")))[b"x-id"] == b"2"


@pytest.mark.few(1)
def test_large_strings_are_read_to_their_end(form: str) -> None:
    one = decoder(form, [b"x-id"], list_max=200)
    long = hpack.Encoder().encode([("x", "y" * 50_000)])
    assert one.decode(long + b"\x40\x04x-id\x011") == {} and one.status & TOO_LARGE
    assert one.decoder.table() == [(b"x-id", b"1")]
    assert one.decode(b"\xbe") == {b"x-id": b"1"} and not one.status & TOO_LARGE
    raw = b"\x40\x7f\xd1\x8c\x01" + b"n" * (127 + 18001) + b"\x01v"
    one.decode(raw)
    assert one.status & TOO_LARGE and one.decoder.table() == []


def test_many_references_to_a_large_entry_cost_little_text(form: str) -> None:
    """A bomb: two bytes for each 4 KiB."""
    one = decoder(form, [b"x-id"])
    one.decode(b"\x40\x04x-id\x7f\xa1\x1e" + b"v" * 4000)
    one.decode(b"\xbe" * 15_000)
    assert one.status & TOO_LARGE
    assert one.fields[columns.FIELDS_TEXT_END] <= 16384


def test_a_list_of_exactly_the_largest_size(form: str) -> None:
    one = decoder(form, [b"x-id"], list_max=100)
    one.decode(b"\x00\x04x-id\x40" + b"v" * 64)
    assert one.status == MALFORMED  # it is no request, but not too large
    one.decode(b"\x00\x04x-id\x41" + b"v" * 65)
    assert one.status & TOO_LARGE


def test_a_smaller_table_must_be_announced(form: str) -> None:
    one = decoder(form, table=100)
    one.decode(b"\x40\x01a\x01b" * 3)
    assert len(one.decoder.table()) == 3  # before the peer has our settings
    one.decoder.set_limit(100)
    one.decode(b"\x82")
    assert one.status == UNREADABLE
    one.decode(b"\x3f\x45")
    assert one.status != UNREADABLE and len(one.decoder.table()) == 2
    one.decode(b"\x82")
    assert one.status != UNREADABLE
    one.decode(b"\x3f\x46")
    assert one.status == UNREADABLE  # 101 bytes


def test_a_larger_table_is_used(form: str) -> None:
    one, encoder = decoder(form, table=20_000), hpack.Encoder()
    one.decoder.set_limit(20_000)
    encoder.header_table_size = 20_000
    for number in range(2000):
        one.decode(encoder.encode([(f"name-{number}", f"value-{number}" * 3)]))
    assert one.decoder.table() == [(bytes(a), bytes(b)) for a, b in encoder.header_table.dynamic_entries]


@pytest.mark.parametrize("arguments", [(-1, 2, 0, 0), (0, 9, 0, 0), (2, 1, 0, 0), (0, 2, 70_000, 0), (0, 2, 0, 1)])
def test_positions_are_checked(form: str, arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError):
        decoder(form).decoder.decode(bytearray(b"\x82\x82"), *arguments, False)


def test_encoder() -> None:
    assert encode_block([(b":status", b"200"), (b":status", b"418")]) == b"\x88" + b"\x08\x03418"
    assert encode_block([(b"date", b"x" * 200)]) == b"\x0f\x12" + b"\x7f\x49" + b"x" * 200
    assert encode_block([(b"grpc-status", b"0")]) == b"\x00\x0bgrpc-status\x010"
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"a" * 300, b"b" * 40_000)]
    assert hpack.Decoder(1 << 20).decode(encode_block(fields), raw=True) == fields


@pytest.mark.parametrize(
    "field", [(b"A", b""), (b"", b""), (b"a\r", b""), (b"a", b"\n"), (b"a", b" b"), (b"a", b"b\t"), (b"a b", b"")]
)
def test_encoder_refuses(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError):
        encode_block([field])
