"""Text of items of a store, without characters that control the terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BODY_SHOWN_MAX = 2000


def shown(text: str) -> str:
    """Text from a store, with escapes such as ``\\x1b`` in place of non-printable characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown_lines(text: str) -> str:
    """Does the same for several lines of text; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(char if char in "\n\t" else shown(char) for char in text)


def body_text(body: bytes) -> str:
    """The text of ``body`` if it is printable, otherwise the first bytes of ``body`` as hexadecimal digits."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or not (text.isprintable() or all(char.isprintable() or char in "\t\n" for char in text)):
        return f"{len(body)} bytes {body[:64].hex(' ')}{' ...' if len(body) > 64 else ''}" if body else "no body"
    return text if len(text) <= _BODY_SHOWN_MAX else f"{text[:_BODY_SHOWN_MAX]} ... ({len(body)} bytes)"


def time_text(timestamp_ms: int) -> str:
    """A time in UTC; ``-`` if there is none."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z" if timestamp_ms >= 0 else "-"
