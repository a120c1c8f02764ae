"""The command ``rucola``. Options and exit codes are a stable face; every error is one line on standard error."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, NoReturn

import orjson
import typer

from rucola.cli.exit_codes import ExitCode, exit_code
from rucola.errors import ConfigError, RucolaError

app = typer.Typer(
    name="rucola",
    help="RocketMQ's message store, broker and clients in Python.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Quarantine = Annotated[
    bool, typer.Option("--quarantine", help="Serve around damage: it is moved to quarantine/ in the store.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON when ready.")]


def run() -> NoReturn:
    """Entry point of the command."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        result = typer.main.get_command(app)(arguments, prog_name="rucola", standalone_mode=False)
    except typer.TyperException as error:
        return _fail(error.format_message(), ExitCode.USAGE)
    except RucolaError as error:
        return _fail(str(error), exit_code(error))
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.CLEAN
    return result if isinstance(result, int) else ExitCode.CLEAN


@app.command()
def up(
    store: Annotated[str | None, typer.Option(help="Directory of the store. [default: ~/store]")] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="A temporary store, removed at the end.")] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    namesrv_port: Annotated[int, typer.Option(help="Port of the name server; 0: any free one.")] = 9876,
    broker_port: Annotated[int | None, typer.Option(help="Port of the broker. [default: 10911]")] = None,
    http_port: Annotated[int, typer.Option(help="Port of /livez, /readyz and /metrics; 0: any free one.")] = 8088,
    flush: Annotated[
        str | None, typer.Option(help="sync or async: answer sends after the disk sync or before.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="A broker.conf of RocketMQ.")] = None,
    brokers: Annotated[
        int, typer.Option(min=1, max=64, help="So many brokers, more than one as processes with a store each.")
    ] = 1,
    quarantine: Quarantine = False,
    json: Json = False,
) -> None:
    """Start name server and broker in one process over one store directory."""
    from rucola.cli.broker_processes import BrokerStartError
    from rucola.cli.serve import Stop, run_servers, temporary_store
    from rucola.cli.servers import UpOptions, UpServers

    if ephemeral and store is not None:
        raise ConfigError("--store", store, "nothing, with --ephemeral")
    options = UpOptions(
        store, ephemeral, host, namesrv_port, broker_port, http_port, flush, config, brokers, quarantine
    )
    with temporary_store() if ephemeral else nullcontext(store) as directory:

        async def start() -> Stop:
            servers = UpServers(replace(options, store=directory))
            try:
                addresses = await servers.start()
            except BrokerStartError as error:
                raise typer.Exit(error.exit_status) from None
            lines = {
                "store": addresses.store + (" (temporary)" if ephemeral else ""),
                "name server": addresses.namesrv,
                **(addresses.brokers if brokers > 1 else {"broker": next(iter(addresses.brokers.values()))}),
                "http": f"http://{addresses.http}",
            }
            facts = {
                "store": addresses.store,
                "namesrv": addresses.namesrv,
                "brokers": list(addresses.brokers.values()),
                "http": addresses.http,
            }
            _say_ready(json, "rucola up", lines, facts)
            return servers.stop

        run_servers(start, "WARNING")


@app.command()
def namesrv(
    config: Annotated[str | None, typer.Option("-c", "--config", help="A properties file.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0: any free one. [default: 9876]")] = None,
    json: Json = False,
) -> None:
    """Start a name server alone."""
    from rucola.cli.serve import Stop, run_servers
    from rucola.cli.servers import namesrv_of

    async def start() -> Stop:
        server = namesrv_of(config, host, port)
        await server.start()
        _say_ready(json, "rucola namesrv", {"name server": server.address}, {"namesrv": server.address})
        return server.shutdown

    run_servers(start, "INFO")


@app.command()
def broker(
    config: Annotated[str | None, typer.Option("-c", "--config", help="A broker.conf of RocketMQ.")] = None,
    namesrv: Annotated[
        str | None, typer.Option("-n", "--namesrv", help="Name servers, host:port, separated by semicolons.")
    ] = None,
    under_up: Annotated[bool, typer.Option("--under-up", hidden=True)] = False,
    quarantine: Quarantine = False,
    json: Json = False,
) -> None:
    """Start a broker alone."""
    from rucola.cli.serve import Stop, run_servers
    from rucola.cli.servers import broker_of

    async def start() -> Stop:
        server = broker_of(config, namesrv, quarantine)
        await server.start()
        root, namesrv_addr = server.store.root, server.config.namesrv_addr
        lines = {"store": root, "name servers": namesrv_addr or "-", "broker": server.address}
        facts = {"store": root, "namesrv": namesrv_addr or None, "brokers": [server.address]}
        _say_ready(json, "rucola broker", lines, facts)
        return server.shutdown

    run_servers(start, "WARNING" if under_up else "INFO", stop_at_end_of_input=under_up)


@app.command(
    "store",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "allow_extra_args": True},
    options_metavar="info|ls|cat|grep|hexdump|verify DIR ...",
)
def store_command(context: typer.Context) -> int:
    """Look into a store directory without changing it."""
    from rucola.cli.store import run as run_store

    return run_store(context.args)


@app.command(
    "mqadmin",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "allow_extra_args": True},
    options_metavar="COMMAND ...",
)
def mqadmin_command(context: typer.Context) -> int:
    """Administer a cluster with RocketMQ's mqadmin commands."""
    from rucola.cli.mqadmin.run import run as run_mqadmin

    return run_mqadmin(context.args)


def _say_ready(json: bool, title: str, lines: dict[str, str], facts: Mapping[str, object]) -> None:
    """Tell a person, or with ``json`` a script, that everything runs and where."""
    from rucola.runtime.machine import process_id

    if json:
        print(orjson.dumps({"pid": process_id(), **facts}).decode(), flush=True)  # noqa: T201 - this is the output
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for name, value in lines.items():
        grid.add_row(f"[dim]{name}", value)
    console = Console(highlight=False)
    console.print(Panel(grid, title=title, expand=False))
    console.print("ready")
    console.file.flush()


def _fail(message: str, code: ExitCode) -> int:
    print(f"rucola: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line
    return int(code)
