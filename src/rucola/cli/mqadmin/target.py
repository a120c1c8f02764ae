"""What a command of ``rucola mqadmin`` administers, and how commands are registered."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from rucola.cli.mqadmin import output
from rucola.cli.mqadmin.command import Cluster, Namesrv, app, client_config
from rucola.client.admin import AdminClient
from rucola.errors import ConfigError

Broker = Annotated[str | None, typer.Option("-b", "--brokerAddr", help="Only this broker, host:port.")]
Work = TypeVar("Work", bound=Callable[..., Awaitable[None]])


class AnyTarget:
    """The brokers that a command administers: one broker, or the masters of a cluster or of all clusters.

    Args:
        admin: a client for the name servers of the command line.
        broker: address of the broker.
        cluster: name of the cluster.
    """

    def __init__(self, admin: AdminClient, broker: str | None, cluster: str | None) -> None:
        self.admin, self.broker, self.cluster = admin, broker, cluster

    async def masters(self) -> list[str]:
        """Addresses of the brokers."""
        return await self.admin.masters(self.broker, self.cluster)

    async def change(
        self,
        change: Callable[[str], Awaitable[object]],
        done: Callable[[str], str],
        *,
        slaves: bool = False,
        **values: object,
    ) -> None:
        """Makes a change on each broker, and prints a line for it.

        Args:
            change: makes the change on the broker at an address.
            done: returns the line for the broker at an address.
            slaves: whether to include slaves, for changes that slaves do not copy from their master.
            values: fields of the JSON output, in addition to the address.
        """
        for address in await (self.admin.members if slaves else self.admin.masters)(self.broker, self.cluster):
            await change(address)
            output.say(done(address), **values, broker=address)


class Target(AnyTarget):
    """The same for a command that must name a broker or a cluster.

    Raises:
        ConfigError: it names neither.
    """

    def __init__(self, admin: AdminClient, broker: str | None, cluster: str | None) -> None:
        if broker is None and cluster is None:
            raise ConfigError("-b or -c", "", "a broker's address or a cluster's name")
        super().__init__(admin, broker, cluster)


def command(name: str) -> Callable[[Work], Work]:
    """Registers a command. Its first argument is what it administers: an ``AdminClient`` for the name servers that
    ``-n`` names, or a target, which ``-b`` and ``-c`` choose. The other arguments are options.
    """

    def register(work: Work) -> Work:
        hints = get_type_hints(work, include_extras=True)
        first, *others = inspect.signature(work).parameters.values()
        kind: Any = hints[first.name]
        chosen: dict[str, Any] = {} if kind is AdminClient else {"broker": Broker, "cluster": Cluster}

        @wraps(work)
        def run(namesrv: str, **given: Any) -> None:
            async def session() -> None:
                async with AdminClient(namesrv, config=client_config()) as admin:
                    choice = {option: given.pop(option) for option in chosen}
                    await work(kind(admin, **choice) if chosen else admin, **given)

            asyncio.run(session())

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                _option("namesrv", Namesrv, inspect.Parameter.empty),
                *(_option(option, hint, None) for option, hint in chosen.items()),
                *(_option(one.name, hints[one.name], one.default) for one in others),
            ]
        )
        app.command(name)(run)
        return work

    return register


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    # All options are keyword-only, so that an option without a default may follow one with a default.
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
