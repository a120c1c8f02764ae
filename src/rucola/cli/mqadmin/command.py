"""Common parts of the ``rucola mqadmin`` commands: options, their values, and the client's configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer

from rucola.cli.mqadmin import output
from rucola.cli.tool import tool_app
from rucola.client.config import ClientConfig
from rucola.common.json_library import orjson
from rucola.common.options import parse_options
from rucola.errors import ConfigError, MissingFileError
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files

app = tool_app("mqadmin", "Administer a cluster: RocketMQ's mqadmin commands, for RocketMQ's servers and Rucola's.")

Namesrv = Annotated[
    str,
    typer.Option(
        "-n", "--namesrvAddr", envvar="NAMESRV_ADDR", help="Name servers, host:port separated by ;", show_default=False
    ),
]
Cluster = Annotated[str | None, typer.Option("-c", "--clusterName", help="All masters of this cluster.")]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic.", show_default=False)]
Group = Annotated[str, typer.Option("-g", "--groupName", help="Consumer group.", show_default=False)]
T = TypeVar("T")
TOOLS_FILE = "conf/tools.yml"
Switch = str | None
"""Text of an option that takes ``true`` or ``false``; see ``switch``."""


@app.callback()
def options(json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False) -> None:
    """Chooses the output format by ``--json``, which stands before the name of the command."""
    output.JSON.set(json)


def client_config() -> ClientConfig:
    """The client configuration in ``$ROCKETMQ_HOME/conf/tools.yml``, or the default if there is no such file.

    RocketMQ's tool reads ``accessKey`` and ``secretKey`` from this file. Here, the file can have any key of
    ``ClientConfig``, for example ``useTLS`` and ``tlsClientTrustCertPath``.

    Raises:
        ConfigError: the file is not a YAML mapping of names to values, or has an invalid value.
    """
    home = os.environ.get("ROCKETMQ_HOME")
    path = f"{home}/{TOOLS_FILE}"
    content = Files().read_file(path) if home else None
    if content is None:
        return ClientConfig()
    import yaml

    try:
        values = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise ConfigError(path, f"line {_line(error)}", "YAML") from None  # the error's text may contain the secret
    if values is None:  # nothing but comments
        return ClientConfig()
    if not isinstance(values, dict):
        raise ConfigError(path, type(values).__name__, "a mapping of names to values")
    return parse_options(ClientConfig, {str(key): _option_text(value) for key, value in values.items()})


def settings(config: ClientConfig) -> dict[str, Any]:
    """The options of ``config`` as keyword arguments for another client's configuration."""
    return {each.name: getattr(config, each.name) for each in fields(ClientConfig)}


def time_ms(option: str, text: str) -> int:
    """Parses a time in the forms that RocketMQ's tool accepts.

    Raises:
        ConfigError: the text is not ``now``, milliseconds or ``yyyy-MM-dd#HH:mm:ss:SSS``.
    """
    if text == "now":
        return SystemClock().wall_ms()
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 19:
        return int(text)
    try:
        seconds, _, milliseconds = text.rpartition(":")
        moment = datetime.strptime(seconds, "%Y-%m-%d#%H:%M:%S")
        return int(moment.timestamp()) * 1000 + int(milliseconds)
    except ValueError:
        raise ConfigError(option, text, "now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS") from None


def json_list(path: str, kind: str, make: Callable[[dict[str, Any]], T]) -> list[T]:
    """Reads a JSON list of objects from a file, and converts each object with ``make``. ``kind`` names the type of
    the objects, for errors.

    Raises:
        ConfigError: the file does not exist, or is not a list of at least one such object.
    """
    content = Files().read_file(path)
    if content is None:
        raise MissingFileError("-f", path)
    try:
        found = orjson.loads(content)
    except ValueError as error:
        raise ConfigError("-f", path, f"a file with JSON ({error})") from None
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise ConfigError("-f", path, "a file with a JSON list of objects")
    try:
        return [make(one) for one in found]
    except (TypeError, ValueError) as error:
        raise ConfigError("-f", path, f"a file with {kind} ({error})") from None


def named(text: str | None) -> list[str]:
    """The items of a comma-separated list."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _line(error: object) -> int:
    mark = getattr(error, "problem_mark", None)
    return 0 if mark is None else mark.line + 1


def switch(option: str, text: str | None, default: bool) -> bool:
    """Returns the value of an option that takes ``true`` or ``false``, as options of RocketMQ's tool do.

    Raises:
        ConfigError: the text is neither ``true`` nor ``false``.
    """
    if text is None:
        return default
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ConfigError(option, text, "true or false")
    return value
