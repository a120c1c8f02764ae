"""The search for positions at which records may begin."""

from __future__ import annotations

import pytest

from rucola.formats import record_search
from rucola.formats.record_search import RECORD_MAGICS, find_record


@pytest.mark.parametrize("magic", RECORD_MAGICS)
@pytest.mark.parametrize("piece", [8, 9, 10, 11, 64])
def test_every_place_is_found_also_across_pieces(magic: bytes, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "_PIECE_BYTES", piece)
    for place in range(40):
        data = bytes(place + 4) + magic + bytes(20)
        assert find_record(data, 0, len(data)) == place
        assert find_record(data, place, place + 8) == place
        assert find_record(data, place + 1, len(data)) == -1
        assert find_record(data, 0, place + 7) == -1, "the end cuts the magic code"


def test_the_first_of_several_is_found() -> None:
    v1, v2 = RECORD_MAGICS
    data = bytes(10) + v2 + bytes(10) + v1
    assert [find_record(data, at, len(data)) for at in (0, 6, 7, 20, 21)] == [6, 6, 20, 20, -1]
