"""What the commands of ``rucola mqadmin`` share: the options, the client, the command they register with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from rucola.cli.mqadmin import output
from rucola.client.admin import AdminClient
from rucola.errors import ConfigError

app = typer.Typer(
    name="mqadmin",
    help="Administer a cluster: RocketMQ's mqadmin commands, against its servers or ours.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Namesrv = Annotated[
    str,
    typer.Option(
        "-n", "--namesrvAddr", envvar="NAMESRV_ADDR", help="Name servers, host:port separated by ;", show_default=False
    ),
]
Broker = Annotated[str | None, typer.Option("-b", "--brokerAddr", help="This broker, host:port.")]
Cluster = Annotated[str | None, typer.Option("-c", "--clusterName", help="All masters of this cluster.")]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic.", show_default=False)]
Group = Annotated[str, typer.Option("-g", "--groupName", help="Consumer group.", show_default=False)]
Switch = str | None
"""Text of an option that takes ``true`` or ``false``; see ``switch``."""


@app.callback()
def options(json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False) -> None:
    """Administer a cluster: RocketMQ's mqadmin commands, against its servers or ours."""
    output.JSON.set(json)


def administer(namesrv: str, work: Callable[[AdminClient], Awaitable[None]]) -> None:
    """Do ``work`` with a client of these name servers."""

    async def session() -> None:
        async with AdminClient(namesrv) as admin:
            await work(admin)

    asyncio.run(session())


def switch(option: str, text: str | None, default: bool) -> bool:
    """The value of an option that takes ``true`` or ``false``, as RocketMQ's do.

    Raises:
        ConfigError: it is neither.
    """
    if text is None:
        return default
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ConfigError(option, text, "true or false")
    return value


def one_of(broker: str | None, cluster: str | None) -> None:
    """Refuse a command that names neither a broker nor a cluster.

    Raises:
        ConfigError: both are missing.
    """
    if broker is None and cluster is None:
        raise ConfigError("-b or -c", "", "a broker's address or a cluster's name")
