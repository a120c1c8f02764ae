"""Logging set-up: one line per event, fields as key=value, over the standard library's ``logging``."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

_FIELDS = "rucola_fields"
_TEXT_MAX = 1024


def event(logger: logging.Logger, level: int, text: str, /, **fields: object) -> None:
    """Logs ``text`` with ``fields``; the fields are formatted only when the line is written.

    Args:
        logger: the module's logger.
        level: ``logging.INFO`` and so on.
        text: what happened, a constant: things that vary are fields.
        fields: ids, positions, errors.
    """
    if logger.isEnabledFor(level):
        logger.log(level, text, extra={_FIELDS: fields})


class KeyValueFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z INFO rucola.broker.broker "text" key=value ...``; one event never spans two lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One line for ``record``; a traceback follows as the field ``trace``, its line ends escaped."""
        seconds = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        parts = [f"{seconds}.{int(record.msecs):03d}", record.levelname, record.name, _quote(record.getMessage())]
        fields: dict[str, Any] = getattr(record, _FIELDS, {})
        parts += [f"{key}={_quote(value)}" for key, value in fields.items()]
        if record.exc_info:
            parts.append(f"trace={_quote(self.formatException(record.exc_info))}")
        return " ".join(parts)


def set_up(level: str = "INFO", stream: TextIO | None = None) -> logging.Handler:
    """Sends the package's log to ``stream`` (standard error when not given) and returns the handler, for removal."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logger = logging.getLogger("rucola")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler


def _quote(value: object) -> str:
    """``value`` as one token: cut at a length, control characters escaped (no line can be forged), quoted if needed."""
    text = str(value)
    if len(text) > _TEXT_MAX:
        text = text[:_TEXT_MAX] + "…"
    if text.isprintable() and text and not any(mark in text for mark in ' "='):
        return text
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return '"' + escaped.replace('"', '\\"') + '"'
