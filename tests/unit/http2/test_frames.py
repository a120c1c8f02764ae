"""The kernel that finds frames: what a frame must be by itself, and that rows, states and codes mean the same in all
modules.
"""

from __future__ import annotations

from array import array

import pytest
from tests.kernels import kernel
from tests.unit.http2.wire import ACK, END_STREAM, PADDED, PRIORITY_FLAG, frame, split

from rucola.http2 import columns, frames, limits
from rucola.http2.columns import EventKind, Scope
from rucola.http2.frames import ErrorCode, FrameType
from rucola.http2.streams import StreamState

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = FrameType
STREAM, CONNECTION = Scope.STREAM, Scope.CONNECTION
SIZE, PROTOCOL = ErrorCode.FRAME_SIZE_ERROR, ErrorCode.PROTOCOL_ERROR
FINE = (Scope.NONE, ErrorCode.NO_ERROR)


def find(form: str, data: bytes, rows_max: int = 8, largest: int = 16384) -> tuple[list[list[int]], int]:
    """The rows of some bytes, and where the kernel has stopped; the bytes do not begin at 0."""
    table = array("q", [-1] * (columns.ROW_COLUMNS * rows_max))
    find_frames = kernel("http2._frames_cy", form).find_frames
    rows, position = find_frames(bytearray(b"??" + data + b"?"), 2, 2 + len(data), table, rows_max, largest)
    width = columns.ROW_COLUMNS
    return [list(table[row * width : row * width + width]) for row in range(rows)], position - 2


@pytest.mark.parametrize(
    ("bytes_", "expected"),
    [
        (frame(DATA, b"abc", 0, 1), FINE),
        (frame(DATA, b"abc", 0, 0), (CONNECTION, PROTOCOL)),
        (frame(DATA, b"", PADDED, 1), (CONNECTION, SIZE)),
        (frame(DATA, b"\0", PADDED, 1), FINE),
        (frame(DATA, b"\1", PADDED, 1), (CONNECTION, PROTOCOL)),
        (frame(DATA, b"\1a", PADDED, 1), FINE),
        (frame(DATA, b"\2a", PADDED, 1), (CONNECTION, PROTOCOL)),
        (frame(HEADERS, b"", 0, 1), FINE),
        (frame(HEADERS, b"", 0, 0), (CONNECTION, PROTOCOL)),
        (frame(HEADERS, b"", PADDED, 1), (CONNECTION, SIZE)),
        (frame(HEADERS, b"\5abcd", PADDED, 1), (CONNECTION, PROTOCOL)),
        (frame(HEADERS, b"\0\0\0\0", PRIORITY_FLAG, 1), (CONNECTION, SIZE)),
        (frame(HEADERS, b"\0\0\0\0\0", PRIORITY_FLAG, 1), FINE),
        (frame(HEADERS, b"\0\0\0\1\0", PRIORITY_FLAG, 1), (STREAM, PROTOCOL)),
        (frame(HEADERS, b"\x80\0\0\1\0", PRIORITY_FLAG, 1), (STREAM, PROTOCOL)),
        (frame(HEADERS, b"\0\0\0\0\2\0", PRIORITY_FLAG | PADDED, 1), FINE),
        (frame(HEADERS, b"\1\0\0\0\2\0", PRIORITY_FLAG | PADDED, 1), (CONNECTION, PROTOCOL)),
        (frame(PRIORITY, b"\0\0\0\0\0", 0, 1), FINE),
        (frame(PRIORITY, b"\0\0\0\0\0", 0, 0), (CONNECTION, PROTOCOL)),
        (frame(PRIORITY, b"\0\0\0\0", 0, 1), (STREAM, SIZE)),
        (frame(PRIORITY, b"\0\0\0\0\0\0", 0, 1), (STREAM, SIZE)),
        (frame(PRIORITY, b"\x80\0\0\1\0", 0, 1), (STREAM, PROTOCOL)),
        (frame(RST, b"\0\0\0\7", 0, 1), (Scope.NONE, ErrorCode.REFUSED_STREAM)),
        (frame(RST, b"\0\0\0\7", 0, 0), (CONNECTION, PROTOCOL)),
        (frame(RST, b"\0\0\0", 0, 1), (CONNECTION, SIZE)),
        (frame(RST, b"\0\0\0\0\0", 0, 1), (CONNECTION, SIZE)),
        (frame(SETTINGS), FINE),
        (frame(SETTINGS, bytes(6)), FINE),
        (frame(SETTINGS, bytes(5)), (CONNECTION, SIZE)),
        (frame(SETTINGS, b"", ACK), FINE),
        (frame(SETTINGS, bytes(6), ACK), (CONNECTION, SIZE)),
        (frame(SETTINGS, b"", 0, 1), (CONNECTION, PROTOCOL)),
        (frame(PUSH, bytes(4), 0, 1), (CONNECTION, PROTOCOL)),
        (frame(PING, bytes(8)), FINE),
        (frame(PING, bytes(7)), (CONNECTION, SIZE)),
        (frame(PING, bytes(9)), (CONNECTION, SIZE)),
        (frame(PING, bytes(8), 0, 1), (CONNECTION, PROTOCOL)),
        (frame(GOAWAY, bytes(8)), FINE),
        (frame(GOAWAY, bytes(20)), FINE),
        (frame(GOAWAY, bytes(7)), (CONNECTION, SIZE)),
        (frame(GOAWAY, bytes(8), 0, 1), (CONNECTION, PROTOCOL)),
        (frame(WINDOW, b"\0\0\0\1"), FINE),
        (frame(WINDOW, b"\x80\0\0\1", 0, 1), FINE),
        (frame(WINDOW, b"\0\0\0\0"), (CONNECTION, PROTOCOL)),
        (frame(WINDOW, b"\x80\0\0\0", 0, 1), (STREAM, PROTOCOL)),
        (frame(WINDOW, b"\0\0\1"), (CONNECTION, SIZE)),
        (frame(WINDOW, b"\0\0\0\0\1", 0, 1), (CONNECTION, SIZE)),
        (frame(CONTINUATION, b"", 0, 1), FINE),
        (frame(CONTINUATION, b"", 0, 0), (CONNECTION, PROTOCOL)),
        (frame(10, b"anything", 255, 0), FINE),
        (frame(255, b"", 255, 7), FINE),
    ],
)
def test_a_frame_by_itself(form: str, bytes_: bytes, expected: tuple[Scope, int]) -> None:
    ((row, *more), position) = find(form, bytes_ + frame(PING, bytes(8)))
    assert (row[columns.ROW_SCOPE], row[columns.ROW_CODE]) == expected
    assert (row[columns.ROW_TYPE], row[columns.ROW_FLAGS]) == (bytes_[3], bytes_[4])
    assert row[columns.ROW_STREAM] == int.from_bytes(bytes_[5:9], "big")
    assert row[columns.ROW_FLOW] == len(bytes_) - 9 and row[columns.ROW_START] == 2
    assert len(more) == (expected[0] != CONNECTION)
    assert position == len(bytes_) + 17 * len(more)


def test_padding_and_priority_are_left_out(form: str) -> None:
    ((first, second, third, fourth), _) = find(
        form,
        frame(DATA, b"\3abc\0\0\0", PADDED | END_STREAM, 1)
        + frame(HEADERS, b"\1\0\0\0\0\0xyz\0", PADDED | PRIORITY_FLAG, 3)
        + frame(HEADERS, b"xyz", END_STREAM, 5)
        + frame(WINDOW, b"\x80\0\1\0", 0, 5),
    )
    places = [
        (row[columns.ROW_POSITION], row[columns.ROW_LENGTH], row[columns.ROW_END]) for row in (first, second, third)
    ]
    assert places == [(12, 3, 1), (18 + 9 + 6, 3, 0), (37 + 9, 3, 1)]
    assert first[columns.ROW_FLOW] == 7 and first[columns.ROW_KIND] == EventKind.NONE
    assert fourth[columns.ROW_LENGTH] == 256


def test_flags_of_other_types_mean_nothing(form: str) -> None:
    ((row,), _) = find(form, frame(DATA, b"abcde", PRIORITY_FLAG, 1))
    assert (row[columns.ROW_POSITION], row[columns.ROW_LENGTH], row[columns.ROW_SCOPE]) == (11, 5, 0)


def test_the_reserved_bit_is_ignored(form: str) -> None:
    ((row,), _) = find(form, b"\0\0\1\0\0\x80\0\0\1a")
    assert row[columns.ROW_STREAM] == 1 and row[columns.ROW_SCOPE] == Scope.NONE


def test_a_frame_that_is_too_long_is_refused_before_it_has_come(form: str) -> None:
    ((row,), position) = find(form, b"\0\x40\1\0\0\0\0\0\1")
    assert (row[columns.ROW_SCOPE], row[columns.ROW_CODE], position) == (CONNECTION, SIZE, 0)
    assert find(form, b"\0\x40\0\0\0\0\0\0\1") == ([], 0)
    assert len(find(form, frame(DATA, bytes(16385), 0, 1), largest=16385)[0]) == 1


def test_incomplete_frames_wait(form: str) -> None:
    stream = frame(DATA, b"abc", 0, 1) + frame(PING, bytes(8))
    for end in range(len(stream) + 1):
        rows, position = find(form, stream[:end])
        assert (len(rows), position) == ((0, 0) if end < 12 else (1, 12) if end < 29 else (2, 29))


def test_rows_are_bounded(form: str) -> None:
    stream = frame(PING, bytes(8)) * 5
    assert [find(form, stream, rows_max)[1] for rows_max in (0, 1, 4, 5)] == [0, 17, 68, 85]
    find_frames = kernel("http2._frames_cy", form).find_frames
    for arguments in ((-1, 4, 1), (0, 90, 1), (5, 4, 1), (0, 85, 2), (0, 85, -1)):
        start, end, rows_max = arguments
        with pytest.raises(ValueError):
            find_frames(bytearray(stream), start, end, array("q", bytes(8 * columns.ROW_COLUMNS)), rows_max, 16384)


def test_frames_that_we_send() -> None:
    long = frames.headers_frames(3, b"x" * 25, True, 10)
    assert split(long) == [
        (HEADERS, END_STREAM, 3, b"x" * 10), (CONTINUATION, 0, 3, b"x" * 10), (CONTINUATION, 4, 3, b"x" * 5)
    ]  # fmt: skip
    assert split(frames.headers_frames(3, b"x" * 10, False, 10)) == [(HEADERS, 4, 3, b"x" * 10)]
    assert split(frames.settings_frame([(4, 70000)])) == [(SETTINGS, 0, 0, b"\0\4\0\1\x11\x70")]
    assert split(frames.ping_ack(b"12345678")) == [(PING, ACK, 0, b"12345678")]
    assert split(frames.rst_stream(5, 8)) == [(RST, 0, 5, b"\0\0\0\x08")]
    assert split(frames.goaway(5, 11, b"why")) == [(GOAWAY, 0, 0, b"\0\0\0\5\0\0\0\x0bwhy")]
    assert frames.goaway_of(b"\xff\0\0\5\0\0\0\x0b") == (0x7F000005, 11)
    assert split(frames.window_update(5, 1 << 20)) == [(WINDOW, 0, 5, b"\0\x10\0\0")]


PREFIXES = {
    "KIND_": EventKind,
    "SCOPE_": Scope,
    "STATE_": StreamState,
    "TYPE_": FrameType,
}


@pytest.mark.parametrize("name", ["_frames_cy", "_exchange_cy", "_hpack_cy"])
def test_numbers_that_kernels_repeat(name: str) -> None:
    """Kernels repeat numbers of the plain modules as C constants."""
    module = kernel(f"http2.{name}", "interpreted")
    checked = 0
    for constant, value in vars(module).items():
        if constant.startswith("_") or not constant.isupper() or not isinstance(value, int):
            continue
        owner = next((one for one in (columns, frames, limits) if constant in vars(one)), None)
        prefix = next((prefix for prefix in PREFIXES if constant.startswith(prefix)), None)
        if prefix is not None:
            expected = PREFIXES[prefix][constant.removeprefix(prefix)]
        elif owner is not None:
            expected = getattr(owner, constant)
        elif constant in FrameType.__members__ and name == "_frames_cy":
            expected = FrameType[constant]
        elif constant in ErrorCode.__members__:
            expected = ErrorCode[constant]
        else:
            assert name != "_frames_cy", constant
            continue
        assert value == expected, constant
        checked += 1
    assert checked >= 9
