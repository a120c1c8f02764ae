"""What the first bytes of a record tell."""

from __future__ import annotations

from struct import pack

import pytest
from tests.unit.store.stores import message

from rucola.formats.message import BLANK, MAGIC_BLANK, MAGIC_V1, encode_message
from rucola.store.ha.record_head import HEAD_BYTES, PROVING_BYTES, head_problem

AT = 5000
SPACE = 1 << 20
SOUND = encode_message(message(1, size=300), AT, 0, 1_700_000_000_000, bytes(8))


def changed(position: int, content: bytes) -> bytes:
    return SOUND[:position] + content + SOUND[position + len(content) :]


def problem(content: bytes, space: int = SPACE) -> str:
    return head_problem(memoryview(content)[:HEAD_BYTES], AT, space)


@pytest.mark.parametrize("length", range(HEAD_BYTES + 1))
def test_a_sound_record_has_no_problem_however_little_of_it_is_there(length: int) -> None:
    assert problem(SOUND[:length]) == ""


@pytest.mark.parametrize(
    ("content", "known_at", "text"),
    [
        (changed(0, pack(">i", -1)), 8, "a record of -1 bytes"),
        (changed(0, pack(">i", 90)), 8, "a record of 90 bytes"),
        (changed(0, pack(">i", SPACE + 1)), 8, f"a record of {SPACE + 1} bytes"),
        (changed(0, pack(">i", 0x7FFFFFFF)), 8, "a record of 2147483647 bytes"),
        (changed(4, b"\0\0\0\0"), 8, "0x00000000 is the magic number of no record"),
        (changed(28, pack(">q", AT + 1)), PROVING_BYTES, f"the physical offset {AT + 1}"),
        (changed(84, pack(">i", -1)), 88, "a body of -1 bytes"),
        (changed(84, pack(">i", len(SOUND))), 88, "a body of"),
        (
            changed(0, pack(">i", len(SOUND) + 70_000)),
            88,
            f"a record of {len(SOUND) + 70_000} bytes with a body of 300",
        ),
        (BLANK.pack(SPACE - 1, MAGIC_BLANK), 8, f"the segment ends at {AT + SPACE - 1} there"),
    ],
)
def test_a_wrong_field_is_a_problem_as_soon_as_it_is_there(content: bytes, known_at: int, text: str) -> None:
    assert problem(content[: known_at - 1]) == ""
    assert text in problem(content[:known_at])
    assert text in problem(content)


def test_hosts_of_ipv6_move_the_length_of_the_body() -> None:
    wide = encode_message(message(1, size=300), AT, 0, 1_700_000_000_000, bytes(20))
    assert problem(wide) == ""
    assert "a body of -7" in problem(wide[:96] + pack(">i", -7) + wide[100:])


@pytest.mark.parametrize("space", [0, 7])
def test_the_last_bytes_of_a_segment_hold_no_record(space: int) -> None:
    assert f"the last {space} bytes" in problem(b"", space)


def test_a_blank_record_that_fills_the_segment() -> None:
    assert problem(BLANK.pack(SPACE, MAGIC_BLANK)) == ""
    assert problem(BLANK.pack(8, MAGIC_BLANK), 8) == ""
    assert "a record of 8 bytes" in problem(BLANK.pack(8, MAGIC_V1), 8)
