"""The only way to print text that is not a table: no character of it can control the terminal.

Names in a store, and texts in its messages, come from anybody. Control characters (C0, DEL, C1) could move the cursor,
set the title or be answered as typed input; controls of the writing direction could show a line in another order.
"""

from __future__ import annotations

import sys

from rucola.cli.closed_output import OutputClosedError
from rucola.cli.store_text import shown, shown_lines


def print_error(message: str) -> None:
    """Prints the one line of an error on standard error."""
    print(f"rucola: {shown(' '.join(message.split()))}", file=sys.stderr)  # noqa: T201 - the one line


def print_text(text: str) -> None:
    """Prints lines on standard output, and a line end after them.

    Raises:
        OutputClosedError: the reader closed the output.
    """
    _write(shown_lines(text) + "\n")


def print_json_line(line: bytes) -> None:
    """Prints one line of JSON on standard output. Its characters that are not printable become escapes of JSON, so the
    values stay the same.

    Raises:
        OutputClosedError: the reader closed the output.
    """
    _write(shown_json(line.decode().rstrip("\n")) + "\n")


def shown_json(text: str) -> str:
    """Lines of JSON with JSON's escapes in place of the characters that are not printable; the values stay the same."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise OutputClosedError from None
