"""The stream between slave and master: reports, headers, and what is refused."""

from __future__ import annotations

import pytest

from rucola.errors import FormatError
from rucola.formats.ha import TRANSFER_BYTES_MAX, TransferHeader, decode_header, encode_report


@pytest.mark.parametrize(
    ("max_offset", "expected"),
    [(0, "0000000000000000"), (1, "0000000000000001"), (1 << 40, "0000010000000000"), ((1 << 63) - 1, "7f" + 14 * "f")],
)
def test_reports(max_offset: int, expected: str) -> None:
    assert encode_report(max_offset).hex() == expected


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        ("000000000000000100008000", (1, 32768)),
        ("000000000000000000000000", (0, 0)),
        ("7fffffffffffffff003ffff4", ((1 << 63) - 1, TRANSFER_BYTES_MAX - 12)),
    ],
)
def test_headers(encoded: str, expected: tuple[int, int]) -> None:
    source = bytes.fromhex(encoded)
    for more in (b"", b"behind"):
        header = decode_header(source + more)
        assert header == TransferHeader(*expected)
        assert header.is_heartbeat == (expected[1] == 0)


@pytest.mark.parametrize(
    ("encoded", "position"),
    [
        ("ffffffffffffffff00000000", 0),
        ("800000000000000000008000", 0),
        ("0000000000000000ffffffff", 8),
        ("0000000000000000003ffff5", 8),
        ("00000000000000007fffffff", 8),
    ],
)
def test_headers_that_no_master_sends(encoded: str, position: int) -> None:
    with pytest.raises(FormatError) as refused:
        decode_header(bytes.fromhex(encoded))
    assert refused.value.position == position
