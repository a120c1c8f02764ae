"""A body as text, JSON or a hexdump: a window of it, so that a page never holds more than ``WINDOW_BYTES``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rucola.common.json_library import orjson
from rucola.console.cluster.snapshot import Large
from rucola.console.messages.decoding import DecodeError, TopicDecoder

WINDOW_BYTES: Final = 64 * 1024
HEX_BYTES: Final = 8 * 1024
JSON_BYTES_MAX: Final = 256 * 1024
"""Longest body that is tried as JSON."""
FORMS: Final = ("auto", "decoded", "text", "json", "hex")
_HEX_COLUMNS: Final = 16
_INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class BodyView:
    """A window of a body.

    Attributes:
        form: ``decoded`` (by a schema), ``text``, ``json`` or ``hex``.
        guess: what the body seems to be: ``empty``, ``json``, ``text`` or ``binary``.
        text: the window in this form.
        begin: first byte of the window; ``end``: the byte after its last one.
        size: bytes of the whole body.
        schema: name of the topic's schema; empty if it has none.
        problem: why the body cannot be decoded by it.
    """

    form: str
    guess: str
    text: str
    begin: Large
    end: Large
    size: Large
    schema: str = ""
    problem: str = ""


def view_body(body: bytes, form: str, at: int, decoder: TopicDecoder | None = None) -> BodyView:
    """The window of a body that begins at byte ``at``, in one of ``FORMS``. JSON and what a decoder makes is shown from
    the first byte. A body that cannot be decoded is shown otherwise, with the problem.
    """
    if decoder is None or form not in ("auto", "decoded"):
        return replace(_window(body, form, at), schema=decoder.name if decoder is not None else "")
    try:
        text = decoder.text(body)
    except DecodeError as error:
        return replace(_window(body, "auto", at), schema=decoder.name, problem=error.args[0])
    return BodyView("decoded", guess_of(body), text, 0, len(body), len(body), decoder.name)


def _window(body: bytes, form: str, at: int) -> BodyView:
    guess = guess_of(body)
    if form in ("auto", "decoded"):
        form = {"json": "json", "binary": "hex"}.get(guess, "text")
    if form == "json" and guess == "json":
        indented = indent_json(body.decode())
        if len(indented) <= WINDOW_BYTES:
            return BodyView("json", guess, indented, 0, len(body), len(body))
        form = "text"
    elif form == "json":
        form = "text"
    length = HEX_BYTES if form == "hex" else WINDOW_BYTES
    begin = min(max(at, 0), max(len(body) - 1, 0))
    begin -= begin % _HEX_COLUMNS if form == "hex" else 0
    window = body[begin : begin + length]
    text = hexdump(window, begin) if form == "hex" else window.decode("utf-8", "replace")
    return BodyView(form, guess, text, begin, begin + len(window), len(body))


def guess_of(body: bytes) -> str:
    """What a body seems to be, see ``BodyView``."""
    if not body:
        return "empty"
    head = body[:WINDOW_BYTES]
    try:
        # A character may be cut at the end of the window, but nowhere else.
        text = head.decode() if len(head) == len(body) else head[: _whole(head)].decode()
    except UnicodeDecodeError:
        return "binary"
    if any(ord(character) < 32 and character not in "\t\n\r" for character in text):
        return "binary"
    if body[:1].strip() in (b"", b"{", b"[") and len(body) <= JSON_BYTES_MAX and _is_json(body):
        return "json"
    return "text"


def hexdump(window: bytes, begin: int) -> str:
    """Lines with offset, 16 bytes and their characters."""
    lines = []
    for at in range(0, len(window), _HEX_COLUMNS):
        part = window[at : at + _HEX_COLUMNS]
        digits = f"{part[:8].hex(' ')}  {part[8:].hex(' ')}".ljust(_HEX_COLUMNS * 3)
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{begin + at:08x}  {digits}  {shown}")
    return "\n".join(lines)


def indent_json(text: str) -> str:
    """A JSON document with one member a line. Only space between its words changes: numbers keep all their digits."""
    parts: list[str] = []
    depth, position = 0, 0
    while position < len(text):
        character = text[position]
        if character == '"':
            end = _string_end(text, position)
            parts.append(text[position:end])
            position = end
            continue
        position += 1
        if character in " \t\r\n":
            continue
        if character in "{[":
            following = _next(text, position)
            if following < len(text) and text[following] in "}]":
                parts.append(character + text[following])
                position = following + 1
                continue
            depth += 1
            parts.append(f"{character}\n{_INDENT * depth}")
        elif character in "}]":
            depth -= 1
            parts.append(f"\n{_INDENT * depth}{character}")
        elif character == ",":
            parts.append(f",\n{_INDENT * depth}")
        else:
            parts.append(": " if character == ":" else character)
    return "".join(parts)


def _string_end(text: str, position: int) -> int:
    position += 1
    while position < len(text) and text[position] != '"':
        position += 2 if text[position] == "\\" else 1
    return min(position + 1, len(text))


def _next(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _whole(head: bytes) -> int:
    """Length of ``head`` without a character that is cut at its end."""
    for back in range(1, 4):
        byte = head[-back]
        if byte & 0xC0 == 0xC0:
            return len(head) - back
        if byte & 0x80 == 0:
            break
    return len(head)


def _is_json(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except ValueError:
        return False
    return True
