"""Sets up the standard library's ``logging``: one line per event, as key=value text or as JSON.

An event's message is its text followed by its fields, so any formatter shows both. The record also keeps text and
fields apart, for the formatters of this module and for handlers of applications: ``rucola_event``, ``rucola_fields``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any, TextIO

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_EVENT = "rucola_event"
_FIELDS = "rucola_fields"
_TEXT_MAX = 1024
_ERRORS_MAX = 32
"""Number of different errors of one thing that are counted."""


def event(
    logger: logging.Logger, level: int, text: str, error: BaseException | None = None, /, **fields: object
) -> None:
    """Logs the event ``text`` with ``fields``, which are formatted only if the line is written.

    Args:
        logger: the module's logger.
        level: ``logging.INFO`` and so on.
        text: what happened, as a constant; values that vary belong in fields.
        error: its traceback becomes the field ``trace``.
        fields: ids, positions, errors.
    """
    if logger.isEnabledFor(level):
        extra = {_EVENT: text, _FIELDS: fields}
        logger.log(level, text.replace("%", "%%") + "%s", _Tail(fields), exc_info=error, extra=extra, stacklevel=2)


class _Tail:
    """The fields at the end of an event's message; they become text when a handler asks for the message."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return "".join(f" {key}={_quote(value)}" for key, value in self._fields.items())


class Recurring:
    """Failures of things that are tried again and again. A failure is worth a line when it begins, and at its 10th,
    100th and further powers of ten, until the thing succeeds.
    """

    def __init__(self) -> None:
        self._counts: dict[Hashable, dict[str, int]] = {}

    def note(self, thing: Hashable, error: object) -> int:
        """Counts a failure of ``thing``. Returns how often this error was noted since the last success if that is worth
        a line, otherwise 0.
        """
        counts = self._counts.setdefault(thing, {})
        text = str(error)
        if text not in counts and len(counts) == _ERRORS_MAX:
            counts.clear()
        count = counts[text] = counts.get(text, 0) + 1
        return count if str(count).rstrip("0") == "1" else 0

    def end(self, thing: Hashable) -> None:
        """Notes a success of ``thing``: its next failure begins anew."""
        self._counts.pop(thing, None)


class KeyValueFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000+01:00 INFO rucola.broker.broker "text" key=value ...``; an event is always one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats ``record`` as one line; a traceback becomes the field ``trace``, with escaped line ends."""
        parts = [_time(record), record.levelname, record.name, _quote(_event(record))]
        parts += [f"{key}={_quote(value)}" for key, value in _fields(record).items()]
        if record.exc_info:
            parts.append(f"trace={_quote(self.formatException(record.exc_info))}")
        return " ".join(parts)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time``, ``level``, ``logger``, ``event``, the fields, and ``trace`` after an
    exception.

    Numbers and booleans keep their types; other values become text. A field with one of the names above gets an
    underscore appended to its name.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Formats ``record`` as one line."""
        import json  # imported here, so that the import does not slow down a start with text logs

        table: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "event": _event(record),
        }
        if record.exc_info:
            table["trace"] = self.formatException(record.exc_info)
        for key, value in _fields(record).items():
            plain = value is None or isinstance(value, int | float)
            table[key + "_" * (key in table)] = value if plain else _cut(str(value))
        return json.dumps(table)


def set_up(level: str = "INFO", stream: TextIO | None = None, log_format: str = "text") -> logging.Handler:
    """Sends the package's log to ``stream`` (standard error when not given) and returns the handler, for removal.

    Args:
        log_format: one of ``LOG_FORMATS``.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else KeyValueFormatter())
    logger = logging.getLogger("rucola")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler


def _event(record: logging.LogRecord) -> str:
    """The text of an event without its fields; the message of any other record."""
    text: str | None = getattr(record, _EVENT, None)
    return record.getMessage() if text is None else text


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, _FIELDS, {})
    return fields


def _time(record: logging.LogRecord) -> str:
    """Returns a time as RFC 3339 text, in the time zone of the machine."""
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


def _cut(text: str) -> str:
    return text[:_TEXT_MAX] + "…" if len(text) > _TEXT_MAX else text


def _quote(value: object) -> str:
    """Returns ``value`` as one token: truncated, with control characters escaped (so that no line can be forged), and
    quoted if necessary.
    """
    text = _cut(str(value))
    if text.isprintable() and text and not any(mark in text for mark in ' "='):
        return text
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return '"' + escaped.replace('"', '\\"') + '"'
