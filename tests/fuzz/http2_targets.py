"""Targets of the fuzzer for HTTP/2: whole conversations, and header blocks beside the library ``hpack``."""

from __future__ import annotations

import hpack
from tests.fuzz.mutation import Mutator
from tests.kernels import FORMS
from tests.unit.http2.test_hpack_oracle import theirs, updates
from tests.unit.http2.test_splitting import conversation, outcome
from tests.unit.http2.wire import REQUEST, Decoded, Peer

from rucola.http2.columns import EventKind

WANTED = (b":path", b"x-id", b"te")
COMPARE_EVERY = 128
UNREADABLE = -1


def conversations() -> Mutator:
    return Mutator(
        [conversation(Peer(FORMS[0]))], [b"\0\0\0\4\0\0\0\0\0", b"\0\0\0\0\1\0\0\0\1", b"\0\0\4\x08\0\0\0\0\0"]
    )


def blocks() -> Mutator:
    encoder = hpack.Encoder()
    fields = [*REQUEST, ("x-id", "a-1"), ("te", "trailers"), ("user-agent", "x" * 300)]
    return Mutator(
        [encoder.encode(fields) for _ in range(3)], [b"\x20", b"\x3f\xe1\x1f", b"\xbe", b"\x82", b"\x40\x01a"]
    )


def check_conversation(data: bytes, number: int) -> None:
    """Checks that bytes in two pieces mean the same as the whole, and the same in both forms of the kernels."""
    events, sent = outcome(FORMS[0], data, [])
    closed = [event for event in events if event.kind in (EventKind.CLOSED, EventKind.NOT_HTTP2)]
    assert closed == events[len(events) - len(closed) :] and len(closed) <= 1
    if not closed or closed[0].kind == EventKind.CLOSED:
        assert outcome(FORMS[0], data, [number % (len(data) + 1)]) == (events, sent)
    if number % COMPARE_EVERY == 0:
        assert all(outcome(form, data, []) == (events, sent) for form in FORMS[1:])


def check_block(data: bytes, number: int) -> None:
    """Checks that a block is refused where ``hpack`` refuses it, and leaves the same table."""
    other = hpack.Decoder(1 << 30)
    expected = theirs(other, data)
    for form in FORMS if number % COMPARE_EVERY == 0 else FORMS[:1]:
        ours = Decoded(form, WANTED, 4096, 1 << 20)
        found = ours.decode(data)
        if expected is None or updates(data) > 2:
            assert ours.status == UNREADABLE
            continue
        assert ours.status != UNREADABLE
        last = dict(expected)
        assert found == {name: last[name] for name in WANTED if name in last}
        entries = other.header_table.dynamic_entries
        assert ours.decoder.table() == [(bytes(name), bytes(text)) for name, text in entries]
