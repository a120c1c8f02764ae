"""Where tables may be: in a directory or in a bucket."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from rucola.errors import ConfigError
from rucola.places.local_place import LocalPlace
from rucola.places.place import Place
from rucola.places.storage_options import OPTIONS, StorageOptions, without_user

_SAME = {"s3a": "s3"}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BUCKETS = {"s3": _BUCKET, "gs": _BUCKET, "abfss": re.compile(rf"{_BUCKET.pattern}@{_BUCKET.pattern}")}
_ODD_PARTS = frozenset(("", ".", ".."))


def scheme_of(name: str, text: str) -> str:
    """The kind of object store that a URL names, a key of ``OPTIONS``; empty for a directory.

    Args:
        name: name of the option or argument, for the error.
        text: what the user gave.

    Raises:
        ConfigError: another kind of URL.
    """
    match = _URL.match(text)
    scheme = "" if match is None else match[1].lower()
    if scheme in ("", "file"):
        return ""
    scheme = _SAME.get(scheme, scheme)
    url = urlsplit(text)
    if scheme not in OPTIONS or not _BUCKETS[scheme].fullmatch(url.netloc) or url.query or url.fragment:
        raise ConfigError(
            name, without_user(text), "a path, file:///path, s3://BUCKET/PATH, gs://BUCKET/PATH or abfss://…"
        )
    if not _ODD_PARTS.isdisjoint(url.path.removesuffix("/").split("/")[1:]):
        # Libraries leave such parts out, each in its own way: another table would get the files.
        raise ConfigError(name, text, "s3://BUCKET/PATH without empty parts, '.' and '..'")
    return scheme


def open_place(
    table: str | os.PathLike[str], options: Mapping[str, str] | None = None, *, name: str = "table"
) -> Place:
    """The place of a table, or of other files.

    Args:
        table: a path, a ``file:`` URL, or a URL of an object store: ``s3://``; ``gs://`` and ``abfss://`` take the same
            way, untested.
        options: see ``storage_options.OPTIONS``.
        name: name of the option or argument, for errors.

    Raises:
        ConfigError: another kind of URL, or an unknown option.
    """
    text = os.fspath(table)
    scheme = scheme_of(name, text)
    if not scheme:
        if options:
            raise ConfigError("storage_options", ", ".join(options), f"no options for {text}, which is a directory")
        return LocalPlace(text)
    from rucola.places.object_place import ObjectPlace

    url = urlsplit(text)
    return ObjectPlace(scheme, url.netloc, url.path.strip("/"), StorageOptions(scheme, options or {}))
