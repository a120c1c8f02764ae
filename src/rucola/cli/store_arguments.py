"""Arguments that the commands over store directories share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from rucola.cli.times import time_ms
from rucola.errors import ConfigError
from rucola.runtime.files import Files
from rucola.store.inspect.search import MessageQuery


def existing(directory: str) -> str:
    """The directory, which must exist.

    Raises:
        ConfigError: the directory does not exist.
    """
    if not Files().is_directory(directory):
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
LiteTopic = Annotated[
    str | None, typer.Option("--lite-topic", metavar="NAME", help="Only messages of this lite topic of the topic.")
]
Pattern = Annotated[str | None, typer.Option("--pattern", help="Regular expression to find in bodies.")]
Jobs = Annotated[
    int | None, typer.Option("-j", "--jobs", min=1, help="Number of processes. [default: one per processor]")
]
Stores = Annotated[list[str], typer.Argument(metavar="DIR...", help="Store directories.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The options that choose messages. A message must meet all given conditions."""

    topic: Topic = None
    lite_topic: LiteTopic = None
    key: Annotated[str | None, typer.Option("--key", help="Only messages with this key or unique key.")] = None
    tag: Annotated[str | None, typer.Option("--tag", help="Only messages with this tag.")] = None
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="NAME=REGEX: a property that must match; repeatable.")
    ] = None
    since: Annotated[
        str | None, typer.Option("--since", help="Stored at or after this time: ISO 8601 (UTC), or milliseconds.")
    ] = None
    until: Annotated[str | None, typer.Option("--until", help="Stored at or before this time.")] = None

    def query(self, option: str, pattern: str | None, flags: int = 0, queue_id: int | None = None) -> MessageQuery:
        """The query for messages that meet these conditions.

        Args:
            option: name of the option that has the pattern, for errors.
            pattern: a regular expression that must be found in the body.
            flags: flags of ``re`` for ``pattern`` and for the patterns of properties.
            queue_id: the only queue to look into.

        Raises:
            ConfigError: an option has an invalid value.
        """
        return MessageQuery(
            self.topic,
            queue_id,
            self.key,
            self.tag,
            re.compile(regex_of(option, pattern, flags).pattern.encode(), flags) if pattern is not None else None,
            tuple(property_of(text, flags) for text in self.properties or []),
            time_ms("--since", self.since) if self.since is not None else 0,
            time_ms("--until", self.until) if self.until is not None else (1 << 63) - 1,
            self.lite_topic,
        )


def regex_of(name: str, text: str, flags: int) -> re.Pattern[str]:
    """Compiles ``text``, the value of option ``name``.

    Raises:
        ConfigError: ``text`` is not a regular expression.
    """
    try:
        return re.compile(text, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(name, text, f"a regular expression ({error})") from None


def property_of(text: str, flags: int) -> tuple[str, re.Pattern[str]]:
    """Name and pattern of ``NAME=REGEX``.

    Raises:
        ConfigError: the text is not ``NAME=REGEX``.
    """
    name, equals, pattern = text.partition("=")
    if not name or not equals:
        raise ConfigError("--property", text, "NAME=REGEX")
    return name, regex_of("--property", pattern, flags)
