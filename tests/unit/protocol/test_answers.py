"""Responses that the kernel encodes, and formatted headers of pull responses, are decoded by the general decoder."""

from __future__ import annotations

from array import array
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS
from tests.kernels import kernel as load_kernel
from tests.unit.protocol.golden import all_frames

from rucola.common.columns import ROW_WIDTH, FrameColumn, new_table
from rucola.protocol import answers
from rucola.protocol.answers import SendAnswers, encode_pull_header
from rucola.protocol.codes import LanguageCode
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.headers.pull import PullMessageResponseHeader
from rucola.protocol.headers.send import SendMessageResponseHeader

KERNELS = [load_kernel("protocol._answer_cy", form) for form in FORMS]
HOST4 = bytes.fromhex("7f00000100002a9f")
HOST6 = bytes(15) + b"\x01" + bytes.fromhex("00002a9f")


def table_of(rows: list[dict[str, int]]) -> array[int]:
    table = new_table(len(rows))
    for row, columns in enumerate(rows):
        table[row * ROW_WIDTH + FrameColumn.UNIQ_KEY_LEN] = -1
        for name, value in columns.items():
            table[row * ROW_WIDTH + FrameColumn[name]] = value
    return table


def split(data: bytes) -> list[RemotingCommand]:
    commands = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        commands.append(decode_frame(data[:end]))
        data = data[end:]
    return commands


@pytest.fixture(params=KERNELS, ids=FORMS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Makes ``SendAnswers`` use the compiled or the interpreted kernel; returns this kernel."""
    monkeypatch.setattr(answers, "encode_send_answers", request.param.encode_send_answers)
    module: ModuleType = request.param
    return module


def test_bytes_of_an_answer(kernel: ModuleType) -> None:
    table = table_of(
        [
            {
                "OPAQUE": 7,
                "QUEUE_ID": 1,
                "QUEUE_OFFSET": 42,
                "PHYSICAL_OFFSET": 0x1A2B,
                "UNIQ_KEY_POS": 1,
                "UNIQ_KEY_LEN": 3,
            }
        ]
    )
    header = (
        b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"7F00000100002A9F0000000000001A2B",'
        b'"queueId":"1","queueOffset":"42","transactionId":"KEY"},"flag":1,"language":"PYTHON","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    expected = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    assert SendAnswers(HOST4, "DefaultRegion").encode(bytearray(b"xKEYx"), table, 0, 1) == expected


@pytest.mark.parametrize("serialize", [0, 1])
@pytest.mark.parametrize("host", [HOST4, HOST6])
def test_answers(kernel: ModuleType, serialize: int, host: bytes) -> None:
    source = bytearray(b'UNIQ"\\/\x01\x1f' + "\u00e9".encode())
    key = {"UNIQ_KEY_POS": 0, "UNIQ_KEY_LEN": len(source)}
    rows = [
        {
            "OPAQUE": -(1 << 31),
            "QUEUE_ID": 0,
            "QUEUE_OFFSET": (1 << 63) - 1,
            "PHYSICAL_OFFSET": (1 << 62) + 0xABCDEF,
            **key,
        },
        {"OPAQUE": 10, "FLAG": 2, **key},
        {"OPAQUE": (1 << 31) - 1, "QUEUE_ID": 12, "UNIQ_KEY_LEN": 0},
        {"OPAQUE": 5},
    ]
    table = table_of([{**row, "SERIALIZE": serialize} for row in rows])
    found = split(SendAnswers(host, 'R"1', trace_on=False, code=10).encode(source, table, 0, 4))
    assert [command.opaque for command in found] == [-(1 << 31), (1 << 31) - 1, 5]
    for command in found:
        assert (command.code, command.flag, command.remark, command.body) == (10, 1, "", b"")
        assert (command.serialize, command.language, command.version) == (serialize, LanguageCode.PYTHON, 479)
    assert SendMessageResponseHeader.from_ext_fields(found[0].ext_fields) == SendMessageResponseHeader(
        msg_id=host.hex().upper() + "4000000000ABCDEF",
        queue_id=0,
        queue_offset=(1 << 63) - 1,
        transaction_id=source.decode(),
        region='R"1',
        trace_on=False,
    )
    assert found[1].ext_fields.keys() == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}
    assert found[1].ext_fields["queueId"] == "12"
    assert split(SendAnswers(host, "R").encode(source, table, 1, 3)) == split(
        SendAnswers(host, "R").encode(source, table, 2, 3)
    )
    assert SendAnswers(host, "R").encode(source, table, 1, 2) == b""
    assert SendAnswers(host, "R").encode(source, table, 2, 2) == b""


def test_refuses_what_lies_outside(kernel: ModuleType) -> None:
    good = SendAnswers(HOST4, "R")
    with pytest.raises(ValueError, match="unique key"):
        good.encode(bytearray(3), table_of([{"UNIQ_KEY_POS": 1, "UNIQ_KEY_LEN": 3}]), 0, 1)
    with pytest.raises(ValueError, match="unique key"):
        good.encode(bytearray(3), table_of([{"UNIQ_KEY_POS": -1, "UNIQ_KEY_LEN": 3}]), 0, 1)
    with pytest.raises(ValueError, match="outside"):
        good.encode(bytearray(3), table_of([{}]), 0, 2)
    with pytest.raises(ValueError, match="position 101 lies outside of out"):
        kernel.encode_send_answers(bytearray(1), table_of([{}]), 0, 1, bytearray(100), 101, b"", b"", b"", b"", b"")


def test_answers_that_may_not_fit_are_not_begun(kernel: ModuleType) -> None:
    out, table = bytearray(300), table_of([{}, {}])
    needed = kernel.send_answers_bytes_max(table, 0, 2, 0)
    assert needed > 300
    assert kernel.encode_send_answers(bytearray(1), table, 0, 2, out, 0, b"", b"", b"", b"", b"") == -needed
    assert not any(out)
    out = bytearray(needed + 10)
    assert kernel.encode_send_answers(bytearray(1), table, 0, 2, out, 11, b"", b"", b"", b"", b"") == -needed
    assert kernel.encode_send_answers(bytearray(1), table, 0, 2, out, 10, b"", b"", b"", b"", b"") > 10


def test_a_long_run_makes_room_for_its_answers(kernel: ModuleType) -> None:
    good = SendAnswers(HOST4, "R")
    table = table_of([{"OPAQUE": number} for number in range(100)])
    assert [command.opaque for command in split(good.encode(bytearray(1), table, 0, 100))] == list(range(100))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "OPAQUE": st.integers(-(1 << 31), (1 << 31) - 1),
                "FLAG": st.sampled_from([0, 0, 2]),
                "SERIALIZE": st.sampled_from([0, 1]),
                "QUEUE_ID": st.integers(0, 1 << 31),
                "QUEUE_OFFSET": st.integers(0, (1 << 63) - 1),
                "PHYSICAL_OFFSET": st.integers(0, (1 << 63) - 1),
                "UNIQ_KEY_POS": st.integers(0, 20),
                "UNIQ_KEY_LEN": st.integers(-1, 12),
            }
        ),
        max_size=5,
    ),
    st.text(st.characters(max_codepoint=0x7F), min_size=32, max_size=32),
)
def test_forms_agree_and_answers_read_back(rows: list[dict[str, int]], keys: str) -> None:
    source, table = bytearray(keys.encode()), table_of(rows)
    constants = SendAnswers(HOST4, "R")._constants
    results = []
    for module in KERNELS:
        room = module.send_answers_bytes_max(table, 0, len(rows), sum(map(len, constants)))
        out = bytearray(room)
        end = module.encode_send_answers(source, table, 0, len(rows), out, 0, *constants)
        results.append(bytes(out[:end]))
    assert all(result == results[0] for result in results)
    for command, row in zip(split(results[0]), [row for row in rows if not row["FLAG"]], strict=True):
        key = keys[row["UNIQ_KEY_POS"] :][: max(row["UNIQ_KEY_LEN"], 0)]
        fields = {
            "msgId": f"{HOST4.hex().upper()}{row['PHYSICAL_OFFSET']:016X}",
            "queueId": str(row["QUEUE_ID"]),
            "queueOffset": str(row["QUEUE_OFFSET"]),
            "MSG_REGION": "R",
            "TRACE_ON": "true",
        }
        assert command.ext_fields == (fields | {"transactionId": key} if key else fields)
        assert command.opaque == row["OPAQUE"]


@pytest.mark.parametrize("serialize", [0, 1])
def test_pull_header(serialize: int) -> None:
    offsets = SimpleNamespace(next_offset=1 << 40, min_offset=2, max_offset=3, message_bytes=4)
    head = encode_pull_header(-5, serialize, 21, "OFFSET_OVERFLOW_BADLY", offsets)
    command = decode_frame(head + b"body")
    assert (command.code, command.opaque, command.flag, command.remark) == (21, -5, 1, "OFFSET_OVERFLOW_BADLY")
    assert (command.serialize, command.body, command.version) == (serialize, b"body", 479)
    assert PullMessageResponseHeader.from_ext_fields(command.ext_fields) == PullMessageResponseHeader(
        0, 1 << 40, 2, 3, topic_sys_flag=0, group_sys_flag=0
    )


def test_fields_are_those_of_the_official_broker() -> None:
    """Our responses to sends and pulls have the same ext fields as recorded ones."""
    ours = split(SendAnswers(HOST4, "R").encode(bytearray(b"K"), table_of([{"UNIQ_KEY_LEN": 1}]), 0, 1))[0]
    offsets = SimpleNamespace(next_offset=1, min_offset=0, max_offset=1, message_bytes=0)
    pull = decode_frame(encode_pull_header(1, 0, 0, "FOUND", offsets))
    seen = 0
    for recorded in all_frames():
        record = recorded.record
        if (
            record.get("request_code") in (10, 310)
            and record["code"] == 0
            and recorded.header["extFields"].get("transactionId")
        ):
            assert recorded.header["extFields"].keys() - {"recallHandle"} == ours.ext_fields.keys()
            seen += 1
        if record.get("request_code") in (11, 361) and record["code"] == 0:
            assert recorded.header["extFields"].keys() == pull.ext_fields.keys()
            assert decode_frame(recorded.frame).remark == pull.remark
            seen += 1
    assert seen > 100


def test_room_for_a_long_key_that_is_escaped(kernel: ModuleType) -> None:
    source = bytearray(b"\x01" * 5000)
    answer = split(SendAnswers(HOST4, "R").encode(source, table_of([{"UNIQ_KEY_LEN": 5000}]), 0, 1))
    assert answer[0].ext_fields["transactionId"] == "\x01" * 5000
