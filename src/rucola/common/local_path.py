"""Paths and URLs that users give for files and directories of this machine."""

from __future__ import annotations

import re

from rucola.errors import ConfigError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of a URL; ``pathlib`` leaves one slash of two. The name of a drive is one letter."""


def local_path(name: str, text: str) -> str:
    """The path in ``text``, which is a path or a ``file:`` URL.

    Args:
        name: name of the option or argument, for the error.
        text: what the user gave; a relative path that looks like a URL is written with ``./`` before it.

    Raises:
        ConfigError: it is a URL of another kind, or of another host. As a path, it would be a new directory here.
    """
    if not _URL.match(text):
        return text
    from urllib.parse import unquote, urlsplit  # clients do not need it

    url = urlsplit(text)
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return unquote(url.path)
    raise ConfigError(name, text, "a path, or file:///path; nothing is read or written elsewhere")
