"""Attacks end in ENHANCE_YOUR_CALM at their limit; what honest peers do often does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.http2.wire import ACK, END_HEADERS, LIMITS, Event, Peer, data, frame, headers, settings, word

from rucola.http2.columns import EventKind
from rucola.http2.frames import ErrorCode, FrameType, Setting
from rucola.http2.hpack import encode_block
from rucola.http2.limits import Allowance, BurstRate, Http2Limits

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = FrameType
CALM = Event(EventKind.CLOSED, 0, code=ErrorCode.ENHANCE_YOUR_CALM)
SMALL = Http2Limits(
    quick_resets=BurstRate(20, 1),
    forced_resets=BurstRate(20, 1),
    control_frames=BurstRate(100, 10),
    small_frames=BurstRate(100, 10),
    unsent_bytes_max=4000,
)
ANSWER = encode_block([(b":status", b"200")])


def rounds(peer: Peer, stream_of: Callable[[int], bytes], most: int, pause_ms: int = 0) -> int:
    """How many rounds a peer survives; at most ``most``."""
    for number in range(most):
        peer.now_ms += pause_ms
        events = peer.feed(stream_of(number))
        if CALM in events:
            assert events[-1] == CALM and peer.connection.is_over
            kind, _, _, payload = peer.sent()[-1]
            assert kind == GOAWAY and payload[8:].startswith(b"too many: ")
            return number
        peer.sent()
    return most


def odd(number: int) -> int:
    return 2 * number + 1


def rapid_reset(peer: Peer) -> Callable[[int], bytes]:
    return lambda number: peer.request(odd(number)) + word(RST, odd(number), ErrorCode.CANCEL)


def made_you_reset(peer: Peer) -> Callable[[int], bytes]:
    return lambda number: peer.request(odd(number)) + word(WINDOW, odd(number), 0)


def nameless_field(peer: Peer) -> Callable[[int], bytes]:
    return lambda number: headers(odd(number), b"\x82\x86\x84\x00\x00\x00", True)


def empty_headers(peer: Peer) -> Callable[[int], bytes]:
    return lambda number: headers(odd(number), b"")


def bomb(peer: Peer) -> Callable[[int], bytes]:
    peer.feed(headers(1, b"\x82\x86\x84\x40\x04x-id\x7f\xa1\x1e" + b"v" * 4000, True))
    return lambda number: headers(odd(number + 1), b"\x82\x86\x84" + b"\xbe" * 16_000, True)


def refused(peer: Peer) -> Callable[[int], bytes]:
    peer.feed(b"".join(peer.request(odd(number)) for number in range(LIMITS.streams_max)))
    return lambda number: peer.request(odd(LIMITS.streams_max + number))


def other_control(bytes_: bytes) -> Callable[[Peer], Callable[[int], bytes]]:
    return lambda peer: lambda number: bytes_


def empty_data(peer: Peer) -> Callable[[int], bytes]:
    peer.feed(peer.request(1))
    return lambda number: data(1)


def dribble(peer: Peer) -> Callable[[int], bytes]:
    peer.feed(peer.request(1))
    return lambda number: data(1, b"x")


def data_of_nothing(peer: Peer) -> Callable[[int], bytes]:
    peer.feed(peer.request(1))
    peer.connection.reset(1, ErrorCode.CANCEL)
    return lambda number: data(1, b"x" * 1000)


def resets_of_nothing(peer: Peer) -> Callable[[int], bytes]:
    peer.feed(peer.request(1, True))
    peer.connection.reset(1, ErrorCode.CANCEL)
    return lambda number: word(RST, 1, ErrorCode.CANCEL)


def table_sizes(peer: Peer) -> Callable[[int], bytes]:
    def one(number: int) -> bytes:
        peer.connection.reset(odd(number) - 2, ErrorCode.CANCEL)
        return headers(odd(number), b"\x20\x3f\xe1\x1f\x82\x86\x84", True)

    return one


def windows_of_streams(peer: Peer) -> Callable[[int], bytes]:
    peer.feed(peer.request(1, True))
    return lambda number: word(WINDOW, 1, 1)


def window_by_bytes(peer: Peer) -> Callable[[int], bytes]:
    """The peer wants a long answer byte by byte."""
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 0)) + peer.request(1, True))
    peer.connection.send_data(1, bytes(100_000))
    return lambda number: word(WINDOW, 1, 1)


def many_settings(peer: Peer) -> Callable[[int], bytes]:
    return lambda number: settings(*[(Setting.INITIAL_WINDOW_SIZE, 1)] * 50)


ATTACKS: dict[str, tuple[Callable[[Peer], Callable[[int], bytes]], tuple[int, int]]] = {
    "rapid reset": (rapid_reset, (20, 20)),
    "MadeYouReset": (made_you_reset, (20, 20)),
    "fields without a name": (nameless_field, (20, 20)),
    "empty HEADERS": (empty_headers, (20, 20)),
    "HPACK bomb": (bomb, (20, 20)),
    "more streams than allowed": (refused, (20, 20)),
    "SETTINGS": (other_control(settings((Setting.INITIAL_WINDOW_SIZE, 1000))), (8, 10)),
    "acknowledged SETTINGS": (other_control(frame(SETTINGS, b"", ACK)), (8, 10)),
    "PING": (other_control(frame(PING, bytes(8))), (85, 100)),
    "answers to PING": (other_control(frame(PING, bytes(8), ACK)), (85, 100)),
    "PRIORITY": (other_control(frame(PRIORITY, bytes(5), 0, 1)), (85, 100)),
    "WINDOW_UPDATE": (other_control(word(WINDOW, 0, 1)), (85, 100)),
    "WINDOW_UPDATE of a stream": (windows_of_streams, (85, 110)),
    "GOAWAY": (other_control(frame(GOAWAY, bytes(8))), (85, 100)),
    "unknown frames": (other_control(frame(77)), (85, 100)),
    "RST_STREAM": (resets_of_nothing, (85, 110)),
    "empty DATA": (empty_data, (85, 110)),
    "a window of a byte": (window_by_bytes, (70, 100)),
    "many values in SETTINGS": (many_settings, (1, 2)),
    "DATA of a byte": (dribble, (100, 100)),
    "DATA of a stream that was reset": (data_of_nothing, (100, 100)),
    "sizes of the table": (table_sizes, (12, 20)),
}


@pytest.mark.few
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_end_at_their_limit(form: str, name: str) -> None:
    attack, (least, most) = ATTACKS[name]
    peer = Peer(form, SMALL)
    assert least <= rounds(peer, attack(peer), 1000) <= most


@pytest.mark.parametrize(
    "name", sorted(set(ATTACKS) - {"HPACK bomb", "more streams than allowed", "many values in SETTINGS"})
)
def test_what_comes_seldom_is_allowed(form: str, name: str) -> None:
    """Each limit is one per second or more."""
    peer = Peer(form, SMALL)
    assert rounds(peer, ATTACKS[name][0](peer), 200, pause_ms=1500) == 200


def test_long_polls_may_be_cancelled_at_once(form: str) -> None:
    """A client that shuts down cancels all its long polls."""
    peer = Peer(form, SMALL)
    peer.feed(b"".join(peer.request(odd(number)) for number in range(90)))
    peer.now_ms += SMALL.quick_reset_ms
    events = peer.feed(b"".join(word(RST, odd(number), ErrorCode.CANCEL) for number in range(90)))
    assert [event.kind for event in events] == [EventKind.RESET] * 90
    assert peer.connection.stream_count == 0


def test_quick_resets_are_those_within_the_time(form: str) -> None:
    peer = Peer(form, SMALL)
    peer.feed(b"".join(peer.request(odd(number)) for number in range(21)))
    peer.now_ms += SMALL.quick_reset_ms - 1
    assert peer.feed(b"".join(word(RST, odd(number), ErrorCode.CANCEL) for number in range(21)))[-1] == CALM


def test_control_frames_that_go_with_requests(form: str) -> None:
    """A gRPC client sends a PING and a WINDOW_UPDATE with nearly all data; 2,000 calls at once."""
    peer = Peer(form, SMALL)
    for number in range(2000):
        stream = odd(number)
        events = peer.feed(
            peer.request(stream)
            + data(stream, bytes(100), True)
            + frame(PING, bytes(8))
            + word(WINDOW, 0, 100)
            + frame(PING, bytes(8), ACK)
        )
        assert [event.kind for event in events] == [EventKind.REQUEST, EventKind.DATA]
        peer.connection.send_headers(stream, ANSWER)
        peer.connection.send_data(stream, bytes(100))
        peer.connection.send_headers(stream, ANSWER, True)
        peer.sent()


@pytest.mark.few(1)
def test_late_updates_for_a_long_answer(form: str) -> None:
    peer = Peer(form, Http2Limits(control_frames=SMALL.control_frames))
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 1 << 30)) + word(WINDOW, 0, 1 << 30) + peer.request(1, True))
    frames = 1000
    for _ in range(frames):
        peer.connection.send_data(1, bytes(16384))
    peer.sent()
    peer.now_ms += 1000
    assert peer.feed((word(WINDOW, 0, 16384) + word(WINDOW, 1, 16384) + frame(PING, bytes(8))) * frames) == []


def test_a_ping_every_30_seconds(form: str) -> None:
    peer = Peer(form, Http2Limits(control_frames=BurstRate(12, 1)))
    peer.now_ms += 60_000
    assert rounds(peer, lambda number: frame(PING, bytes(8)), 500, pause_ms=30_000) == 500


def test_a_flood_of_continuations(form: str) -> None:
    peer = Peer(form)
    assert peer.feed(headers(1, b"\x82", flags=0)) == []
    assert peer.feed(frame(CONTINUATION, b"", 0, 1) * LIMITS.continuations_max) == []
    assert peer.feed(frame(CONTINUATION, b"", 0, 1)) == [CALM]


def test_a_block_of_many_bytes(form: str) -> None:
    peer = Peer(form)
    part = b"\x00\x01a\x7f\xa1\x1e" + bytes(4000)
    assert peer.feed(headers(1, part * 4, flags=0)) == []
    assert peer.feed(frame(CONTINUATION, part * 4, 0, 1) * 3) == []
    assert peer.feed(frame(CONTINUATION, part * 4, END_HEADERS, 1)) == [CALM]


def test_answers_that_the_peer_does_not_read_are_bounded(form: str) -> None:
    peer = Peer(form, Http2Limits(unsent_bytes_max=4000))
    received = 0
    while not (events := peer.feed(frame(PING, bytes(8)) * 10)):
        received += 10
        assert received < 300
    assert events == [CALM] and peer.connection.ready_bytes < 6000


def test_a_peer_that_opens_no_window_is_seen(form: str) -> None:
    peer = Peer(form)
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 0)) + peer.request(1, True) + peer.request(3, True))
    peer.connection.send_data(1, bytes(1000))
    peer.connection.send_data(3, bytes(500))
    queued = peer.connection.queued_bytes
    assert (queued(), queued(1), queued(3), queued(5)) == (1500, 1000, 500, 0)


def test_an_increment_costs_what_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams without window of their own are not looked at when the window of the connection opens."""
    peer = Peer("interpreted")
    peer.feed(peer.request(1, True) + settings((Setting.INITIAL_WINDOW_SIZE, 0)))
    peer.feed(b"".join(peer.request(odd(number), True) for number in range(1, 500)))
    for number in range(1, 500):
        peer.connection.send_data(odd(number), b"abc")
    pumped: list[object] = []
    monkeypatch.setattr(type(peer.connection).__mro__[1], "_pump", lambda *arguments: pumped.append(arguments))
    peer.feed(word(WINDOW, 0, 1))
    assert pumped == []
    peer.feed(word(WINDOW, 3, 1))
    assert len(pumped) == 1


def test_allowance() -> None:
    allowance = Allowance(BurstRate(10, 2))
    assert allowance.take(5000, 10) and not allowance.take(5000, 1)
    assert not allowance.take(5999, 1)  # what was refused counts, too
    allowance = Allowance(BurstRate(10, 2))
    assert allowance.take(5000, 10) and allowance.take(5500, 1) and allowance.take(6500, 2)
    assert allowance.take(1_000_000, 10) and not allowance.take(1_000_000, 1)
    allowance = Allowance(BurstRate(10, 2))
    assert allowance.take(5000, 9) and allowance.take(4000, 1) and not allowance.take(4000, 1)
