"""Arguments that the commands over store directories share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from rucola.cli.times import time_ms
from rucola.errors import ConfigError
from rucola.store.offline.search import MessageQuery


def existing(directory: str) -> str:
    """The directory, which must exist.

    Raises:
        ConfigError: it does not.
    """
    if not Path(directory).expanduser().is_dir():
        raise ConfigError("DIR", directory, "an existing directory")
    return directory


Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="Store directory.", show_default=False, callback=existing)
]
CommitLog = Annotated[
    str | None,
    typer.Option(
        "--commit-log", metavar="PATHS", help="storePathCommitLog: directories of the commit log, separated by commas."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Config = Annotated[str | None, typer.Option("-c", "--config", metavar="FILE", help="The broker's configuration file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only messages of this topic.")]
Queue = Annotated[int | None, typer.Option("--queue", min=0, help="Only messages of this queue id.")]
Most = Annotated[int | None, typer.Option("--max", min=0, help="Stop after this many messages.")]
Pattern = Annotated[str | None, typer.Option("--pattern", help="Regular expression, searched in bodies.")]
Key = Annotated[str | None, typer.Option("--key", help="Only messages with this key or unique key.")]
Tag = Annotated[str | None, typer.Option("--tag", help="Only messages with this tag.")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", help="NAME=REGEX: only with such a property; repeatable.")
]
Since = Annotated[
    str | None, typer.Option("--since", help="Stored at or after this time: ISO 8601 (UTC), or milliseconds.")
]
Until = Annotated[str | None, typer.Option("--until", help="Stored at or before this time.")]
Stores = Annotated[list[str], typer.Argument(metavar="DIR...", help="Store directories.", show_default=False)]


def query_of(
    topic: str | None,
    key: str | None,
    tag: str | None,
    properties: list[str] | None,
    pattern: str | None,
    since: str | None,
    until: str | None,
) -> MessageQuery:
    """The query that these options describe.

    Raises:
        ConfigError: an option has an invalid value.
    """
    return MessageQuery(
        topic,
        None,
        key,
        tag,
        re.compile(regex_of("--pattern", pattern, 0).pattern.encode()) if pattern is not None else None,
        tuple(property_of(text, 0) for text in properties or []),
        time_ms("--since", since) if since is not None else 0,
        time_ms("--until", until) if until is not None else (1 << 63) - 1,
    )


def regex_of(name: str, text: str, flags: int) -> re.Pattern[str]:
    """The compiled text of option ``name``.

    Raises:
        ConfigError: it is no regular expression.
    """
    try:
        return re.compile(text, flags)
    except re.error as error:
        raise ConfigError(name, text, f"a regular expression ({error})") from None


def property_of(text: str, flags: int) -> tuple[str, re.Pattern[str]]:
    """Name and pattern of ``NAME=REGEX``.

    Raises:
        ConfigError: the text has another form.
    """
    name, equals, pattern = text.partition("=")
    if not name or not equals:
        raise ConfigError("--property", text, "NAME=REGEX")
    return name, regex_of("--property", pattern, flags)
