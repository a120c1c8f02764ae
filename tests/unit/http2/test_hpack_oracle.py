"""Random header blocks, read by the library ``hpack`` too: the same fields, the same table, the same refusals."""

from __future__ import annotations

import random

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from tests.sizes import size
from tests.unit.http2.wire import Decoded

from rucola.http2.hpack import encode_block
from rucola.http2.hpack_tables import STATIC_TABLE

ROUNDS = size(20, 40_000)
BLOCKS = 50
NAMES = (b"x-id", b":path", b"te", b"content-length", b"accept", b"a", b"grpc-timeout", b"authorization", b"x" * 60)
HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
UNREADABLE = -1
KINDS = ((0x80, 7), (0x40, 6), (0x00, 4), (0x10, 4))


def number(value: int, bits: int, first: int) -> bytes:
    encoded: bytearray = hpack.hpack.encode_integer(value, bits)
    encoded[0] |= first
    return bytes(encoded)


def string(rng: random.Random, text: bytes) -> bytes:
    if rng.random() < 0.6:
        text = HUFFMAN.encode(text)
        return number(len(text), 7, 0x80) + text
    return number(len(text), 7, 0) + text


def value(rng: random.Random) -> bytes:
    count = rng.choice((0, 1, 3, 8, 36, 140, rng.randrange(5000)))
    return bytes(rng.choices(b"0123456789abcdef-:/ =\xc3\xa4\x00\n" if rng.random() < 0.9 else range(256), k=count))


def random_block(rng: random.Random, entries: int) -> bytes:
    """A block that refers to the newer half of so many entries; a few refer to more, which is wrong."""
    block = b""
    for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 1, 2))):
        size_ = rng.choice((0, 40, 200, 4095, 4096, 4096, 4096, 4097 if rng.random() < 0.1 else 4096))
        entries = entries if size_ > 4000 else 0
        block += number(size_, 5, 0x20)
    for _ in range(rng.randrange(12)):
        first, bits = rng.choice(KINDS)
        index = rng.randrange(1, 62 + entries // 2) if rng.random() < 0.998 else 62 + entries
        text = value(rng)
        if first == 0x80:
            block += number(index, bits, first)
        elif rng.random() < 0.5:
            block += number(index, bits, first) + string(rng, text)
        else:
            block += bytes((first,)) + string(rng, rng.choice(NAMES)) + string(rng, text)
        if first != 0x80:
            entries = entries if len(text) < 200 else 0
    return block


def changed(rng: random.Random, block: bytes) -> bytes:
    """The block with a byte changed, or cut; one in fifty."""
    if not block or rng.random() < 0.98:
        return block
    place = rng.randrange(len(block))
    if rng.random() < 0.5:
        return block[:place]
    return block[:place] + bytes((rng.randrange(256),)) + block[place + 1 :]


def updates(block: bytes) -> int:
    """How many changes of size a block begins with."""
    count = at = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        count += 1
        at += 1
        if block[at - 1] & 0x1F == 0x1F:
            while at < len(block) and block[at] & 0x80:
                at += 1
            at += 1
    return count


def theirs(decoder: hpack.Decoder, block: bytes) -> list[tuple[bytes, bytes]] | None:
    """What ``hpack`` reads; None if it refuses."""
    try:
        return [(bytes(name), bytes(text)) for name, text in decoder.decode(block, raw=True)]
    except hpack.HPACKError:
        return None


@pytest.mark.timeout(size(600, 7200))
def test_random_blocks(form: str) -> None:
    """Differences allowed: ``hpack`` accepts numbers of any length, and any number of changes of size."""
    wanted = sorted({name for name, _ in STATIC_TABLE} | set(NAMES))
    refused = read = 0
    for seed in range(ROUNDS if form == "compiled" else ROUNDS // 10 + 1):
        rng = random.Random(seed)
        ours, other = Decoded(form, wanted, 4096, 1 << 20), hpack.Decoder(1 << 30)
        for _ in range(BLOCKS):
            block = changed(rng, random_block(rng, len(other.header_table.dynamic_entries)))
            expected = theirs(other, block)
            found = ours.decode(block)
            if expected is None or updates(block) > 2:
                assert ours.status == UNREADABLE, (seed, block.hex())
                refused += 1
                break
            assert ours.status != UNREADABLE, (seed, block.hex())
            last = dict(expected)
            assert found == {name: last[name] for name in last if name in wanted}, (seed, block.hex())
            table = [(bytes(name), bytes(text)) for name, text in other.header_table.dynamic_entries]
            assert ours.decoder.table() == table, (seed, block.hex())
            for name in found:
                check_entry(ours, name, found[name], table)
            read += 1
    assert read > 3 * refused > 0


def check_entry(ours: Decoded, name: bytes, text: bytes, table: list[tuple[bytes, bytes]]) -> None:
    """Checks that an entry number is one of an entry with this field, if it still exists."""
    entry = ours.entry(name)
    if 1 <= entry <= 61:
        assert STATIC_TABLE[entry - 1] == (name, text)
    elif entry > 61:
        seen = ours.__dict__.setdefault("entries", {})
        assert seen.setdefault(entry, (name, text)) == (name, text)
    else:
        assert entry == -1


@pytest.mark.few(1)
@pytest.mark.timeout(size(600, 3600))
@pytest.mark.parametrize("seed", range(3))
def test_our_blocks_are_read_by_others(seed: int) -> None:
    """Between blocks of an encoder that uses the table, and changes of its size."""
    rng = random.Random(seed)
    other = hpack.Decoder(1 << 30)
    encoder = hpack.Encoder()
    for _ in range(size(300, 30_000)):
        fields = [
            (rng.choice(NAMES), value(rng).translate(None, b"\0\r\n").strip(b" \t")) for _ in range(rng.randrange(9))
        ]
        assert other.decode(encode_block(fields), raw=True) == fields
        if rng.random() < 0.1:
            encoder.header_table_size = other.header_table.maxsize and rng.randrange(4096)
        assert other.decode(encoder.encode(fields), raw=True) == fields
