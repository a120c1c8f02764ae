"""Commands in both serializations: JSON and binary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol.golden import frames
from tests.unit.protocol.rows import frame_of

from rucola.errors import FormatError
from rucola.protocol import header_binary
from rucola.protocol.codes import LanguageCode
from rucola.protocol.command import BINARY, JSON, RemotingCommand, decode_frame, decode_header

WORKED_EXT = {
    "a": "pg_demo", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "UNIQ_KEY\x01C0A8010A1F9018B4AAC2000000010000\x02TAGS\x01TagA\x02WAIT\x01true\x02", "j": "0", "k": "false",
    "m": "false", "n": "broker-a",
}  # fmt: skip
WORKED = RemotingCommand(310, 7, ext_fields=WORKED_EXT, body=b"hello", language=LanguageCode.JAVA, version=479)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
commands = st.builds(
    RemotingCommand,
    st.integers(-32768, 32767),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, 3),
    text,
    st.dictionaries(text.filter(bool), text.filter(bool), max_size=4),
    st.binary(max_size=10),
    st.sampled_from(LanguageCode),
    st.integers(0, 600),
    st.sampled_from([JSON, BINARY]),
)


def test_worked_frame() -> None:
    """The frame has the lengths of the worked example in protocol.md 1.12."""
    frame = WORKED.encode()
    assert frame[:8] == bytes.fromhex("0000016900000160")
    assert b'{"code":310,"extFields":{"a":"pg_demo","b":"TopicTest"' in frame
    assert rb"UNIQ_KEY\u0001C0A8" in frame
    WORKED.serialize = BINARY
    assert WORKED.encode()[:32] == bytes.fromhex(
        "000000f1010000e801360001df00000007000000000000000000" + "0000d3000161"
    )
    WORKED.serialize = JSON


@given(commands)
def test_round_trip(command: RemotingCommand) -> None:
    assert decode_frame(command.encode()) == command


def test_answer() -> None:
    request = RemotingCommand(34, 9, flag=2, serialize=BINARY, language=LanguageCode.JAVA)
    answer = request.answer(17, "no such topic", {"a": "b"}, b"x")
    assert answer == RemotingCommand(17, 9, 1, "no such topic", {"a": "b"}, b"x", LanguageCode.PYTHON, 479, BINARY)
    assert answer.is_response and not answer.is_oneway
    assert request.is_oneway and not request.is_response


@pytest.mark.parametrize(
    ("header", "command"),
    [
        (b'{"code":1}', RemotingCommand(1, version=0, language=LanguageCode.OTHER)),
        (
            b'{"code":1,"opaque":2,"flag":1,"version":3,"language":"CPP","remark":null,"extFields":null,"x":[{}]}\n',
            RemotingCommand(1, 2, 1, version=3, language=LanguageCode.CPP),
        ),
        (
            b'{"code":1,"language":"COBOL","extFields":{"a":1,"b":true,"c":false,"d":null,"e":"","f":-1.5}}',
            RemotingCommand(
                1,
                ext_fields={"a": "1", "b": "true", "c": "false", "e": "", "f": "-1.5"},
                version=0,
                language=LanguageCode.OTHER,
            ),
        ),
        (b'{"code":200050,"language":7}', RemotingCommand(200050, version=0, language=LanguageCode.OTHER)),
    ],
)
def test_lenient_reading(header: bytes, command: RemotingCommand) -> None:
    assert decode_header(header, JSON) == command


@pytest.mark.parametrize(
    "header",
    [
        b"", b"[]", b"null", b"{}", b'{"code":"1"}', b'{"code":1.0}', b'{"code":true}', b'{"code":2147483648}',
        b'{"code":1,"opaque":null}', b'{"code":1,"extFields":[]}', b'{"code":1,"extFields":{"a":{}}}', b'{"code":1}x',
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"extFields":{' + b",".join(b'"%d":""' % i for i in range(129)) + b"}}",
    ],
)  # fmt: skip
def test_undecodable_headers(header: bytes) -> None:
    with pytest.raises(FormatError):
        decode_header(header, JSON)


def test_code_beyond_the_binary_header() -> None:
    with pytest.raises(FormatError, match="16-bit"):
        RemotingCommand(200050, serialize=BINARY).encode()
    assert decode_frame(RemotingCommand(200050).encode()).code == 200050


@pytest.mark.parametrize(
    "frame", [b"", b"\x00\x00\x00\x04", frame_of(b""), frame_of(b"x") + b"x", frame_of(b"{}", serialize=2)]
)
def test_not_one_frame(frame: bytes) -> None:
    with pytest.raises(FormatError):
        decode_frame(frame)


# --- the binary header


def golden_binary() -> list[bytes]:
    found = [entry.frame for name in ("java533_binary_both", "java498_binary_header") for entry in frames(name)]
    return [frame[8 : 8 + int.from_bytes(frame[5:8], "big")] for frame in found if frame[4] == BINARY]


def test_binary_golden_both_ways() -> None:
    headers = golden_binary()
    assert len(headers) > 60
    for header in headers:
        assert header_binary.encode(header_binary.decode(header)) == header


def test_binary_cut_anywhere_or_longer() -> None:
    header = max(golden_binary(), key=len)
    for size in range(len(header)):
        with pytest.raises(FormatError):
            header_binary.decode(header[:size])
    with pytest.raises(FormatError, match="more bytes"):
        header_binary.decode(header + b"\x00")


FIXED = bytes.fromhex("0022030 1df 00000001 00000000".replace(" ", ""))


@pytest.mark.parametrize(
    "rest",
    [
        "ffffffff00000000",  # negative remark length
        "0000000500000000",  # remark beyond the header
        "00000000ffffffff",  # negative ext length
        "0000000000000001",  # ext beyond the header
        "000000000000000100",  # half a key length
        "000000000000000600000000000000",  # key of no bytes
        "0000000000000007ffff6100000000",  # negative key length
        "00000000000000070005 61 00000000",  # key beyond the block
        "00000000000000070001 61 ffffffff",  # negative value length
        "00000000000000070001 61 00000001",  # value beyond the block
        "0000000000000003000161",  # no value length
        "00000000000000080001 61 00000001 ff",  # not UTF-8
        "00000000000000100001 61 00000001 62 0001 61 00000001 63",  # the same key twice
        "0000000100000000",  # remark length that takes a byte of the ext length
    ],
)
def test_binary_lengths(rest: str) -> None:
    with pytest.raises(FormatError):
        header_binary.decode(FIXED + bytes.fromhex(rest.replace(" ", "")))


def test_binary_null_value_is_absent() -> None:
    header = FIXED + bytes.fromhex("00000000" + "00000007" + "0001" + "61" + "00000000")
    assert header_binary.decode(header).ext_fields == {}
    with pytest.raises(FormatError, match="at most 128"):
        header_binary.decode(
            FIXED
            + bytes(4)
            + (9 * 129).to_bytes(4, "big")
            + b"".join(b"\x00\x03%03d\x00\x00\x00\x00" % i for i in range(129))
        )


@given(st.binary(max_size=60))
def test_binary_any_bytes(data: bytes) -> None:
    for source in (data, FIXED + data):
        try:
            header_binary.decode(source)
        except FormatError as error:
            assert str(error)
