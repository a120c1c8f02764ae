"""Batches made from columns equal those made from messages, with the compiled and the interpreted kernel."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel

from rucola.errors import FormatError
from rucola.protocol.batch_members import BatchMember, members_of
from rucola.protocol.send_request import batch_member, properties_text

IDS = [f"{number:032X}" for number in range(20)]


@pytest.fixture
def module(form: str) -> ModuleType:
    return kernel("protocol._batch_members_cy", form)


def column(values: list[bytes]) -> tuple[array[int], bytes]:
    """Returns the offsets and the bytes of a column; the bytes begin with three bytes that belong to no value."""
    return array("i", accumulate(map(len, values), initial=3)), b"xxx" + b"".join(values)


def pack(
    module: ModuleType, bodies: list[bytes], texts: list[bytes], bytes_max: int, rows_max: int
) -> list[tuple[int, bytes]]:
    """Packs all rows into requests; returns each request, preceded by the number of the first row after it."""
    ids = "".join(IDS[: len(bodies)]).encode()
    found, first = [], 0
    while first < len(bodies):
        first, request = module.pack_members(*column(bodies), *column(texts), ids, first, bytes_max, rows_max)
        found.append((first, request))
    return found


@given(
    rows=st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=40),
            st.dictionaries(st.sampled_from("abc"), st.text("xyz\u00fc", min_size=1)),
        ),
        min_size=1,
        max_size=20,
    ),
    bytes_max=st.integers(1, 400),
    rows_max=st.integers(1, 5),
)
def test_members(rows: list[tuple[bytes, dict[str, str]]], bytes_max: int, rows_max: int) -> None:
    bodies, texts = [body for body, _ in rows], [properties_text(own).encode() for _, own in rows]
    found, *others = [
        pack(kernel("protocol._batch_members_cy", form), bodies, texts, bytes_max, rows_max) for form in FORMS
    ]
    assert all(other == found for other in others)
    members = [
        batch_member(body, 0, {**own, "UNIQ_KEY": msg_id}) for (body, own), msg_id in zip(rows, IDS, strict=False)
    ]
    assert b"".join(request for _, request in found) == b"".join(members)
    for start, (end, request) in zip([0, *(end for end, _ in found)], found, strict=False):
        assert end == start + 1 or (len(request) <= bytes_max and end - start <= rows_max)
        assert end == len(rows) or end - start == rows_max or len(request) + len(members[end]) > bytes_max
    read = [member for _, request in found for member in members_of(request)]
    assert read == [
        BatchMember(body, 0, {**own, "UNIQ_KEY": msg_id}) for (body, own), msg_id in zip(rows, IDS, strict=False)
    ]


def append(module: ModuleType, texts: list[bytes], values: list[bytes], given: bytes = b"") -> list[bytes] | None:
    offsets = array("i", bytes(4 * len(texts) + 4))
    written = module.append_property(*column(texts), b"TAGS", *column(values), given, offsets)
    if written is None:
        return None
    return [written[start:end] for start, end in pairwise(offsets)]


def test_properties_are_added(module: ModuleType) -> None:
    texts = [b"a\x01b\x02", b"", b"c\x01\x02"]
    assert append(module, texts, [b"x", b"", b"yz"]) == [
        b"a\x01b\x02TAGS\x01x\x02", b"", b"c\x01\x02TAGS\x01yz\x02"
    ]  # fmt: skip
    assert append(module, texts, [b"x", b"", b"y"], b"\1\0\0") == [b"a\x01b\x02TAGS\x01x\x02", b"", b"c\x01\x02"]
    assert append(module, [], []) == []
    for separator in (b"\x01", b"\x02"):
        assert append(module, [b"", b""], [b"x", b"a" + separator]) is None


def test_columns_that_do_not_fit(module: ModuleType) -> None:
    good, ids = column([b"a", b"b"]), "".join(IDS[:2]).encode()
    for bad in ((array("i", [3, 4]), good[1]), (array("i", [3, 5, 4]), good[1]), (array("i", [0, 1, 9]), b"a"),
                (array("i", [-1, 1, 2]), b"abc")):  # fmt: skip
        with pytest.raises(ValueError, match=r"columns have different|offsets of a column"):
            module.pack_members(*good, *bad, ids, 0, 1000, 10)
        with pytest.raises(ValueError, match=r"columns have different|offsets of a column"):
            module.pack_members(*bad, *good, ids, 0, 1000, 10)
        with pytest.raises(ValueError, match=r"columns have different|offsets of a column"):
            module.append_property(*good, b"n", *bad, b"", array("i", [0, 0, 0]))
    for first in (-1, 2):
        with pytest.raises(ValueError, match="first row"):
            module.pack_members(*good, *good, ids, first, 1000, 10)
    with pytest.raises(ValueError, match="properties of row 0 take 32768 bytes"):
        module.pack_members(*column([b"a"]), *column([b"x" * 32_726]), ids[:32], 0, 1 << 20, 10)
    with pytest.raises(ValueError, match="different lengths"):
        module.append_property(*good, b"n", *good, b"\1", array("i", [0, 0, 0]))


@pytest.mark.parametrize("body", [b"x", batch_member(b"b", 0, {})[:-1], batch_member(b"b", 0, {}) + bytes(30)])
def test_lengths_that_do_not_add_up(body: bytes) -> None:
    with pytest.raises(FormatError, match="batch"):
        list(members_of(body))
