"""The server commands ``up``, ``namesrv``, ``broker``, ``proxy`` and ``controller``. Each returns when its servers
have stopped.

The configuration file is read before the event loop begins: if it is a FIFO into which nobody writes, signals still end
the command.
"""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext
from typing import TYPE_CHECKING

from rucola.broker import Broker
from rucola.broker.config import broker_options
from rucola.cli.broker_server import BrokerServers, broker_values
from rucola.cli.config_file import read_properties
from rucola.cli.exit_codes import ExitCode, ProcessStartError
from rucola.cli.namesrv_server import NamesrvServer, namesrv_config
from rucola.cli.ready import prepare, say_ready
from rucola.cli.serve import LogOptions, Stop, run_servers, temporary_store
from rucola.cli.servers import UpOptions, UpServers
from rucola.errors import ConfigError

if TYPE_CHECKING:
    from rucola.cli.console_process import ConsoleProcess


def up(options: Namespace) -> int:
    """Runs a name server and a broker in this process; several brokers and their proxy each have a
    process of their own.
    """
    if options.ephemeral and options.store is not None:
        raise ConfigError("--store", options.store, "no value, because --ephemeral is given")
    prepare(options)
    config = None if options.config is None else read_properties(options.config)
    console = _console(options)
    with temporary_store() if options.ephemeral else nullcontext(options.store) as directory:

        async def start() -> Stop:
            servers = UpServers(
                UpOptions(
                    store=directory,
                    ephemeral=options.ephemeral,
                    host=options.host,
                    namesrv_port=options.namesrv_port,
                    broker_port=options.broker_port,
                    http_port=options.http_port,
                    grpc_port=options.grpc_port,
                    grpc=not options.no_grpc,
                    tls_dir=options.tls_dir,
                    flush=options.flush,
                    config=config,
                    brokers=options.brokers,
                    quarantine=options.quarantine,
                    log=LogOptions.of(options),
                )
            )
            addresses = await servers.start()
            if console is not None:
                console.start_soon(addresses.namesrv)
            one = {"broker": next(iter(addresses.brokers.values()))}
            lines = {
                "store": addresses.store + (" (temporary)" if options.ephemeral else ""),
                "name server": addresses.namesrv,
                **(addresses.brokers if options.brokers > 1 else one),
                "grpc": addresses.grpc_text,
                **({} if addresses.ha is None else {"slaves": addresses.ha}),
                **({} if addresses.slave is None else {"slave": addresses.slave}),
                "http": f"http://{addresses.http}",
            }
            facts: dict[str, object] = {
                "store": addresses.store,
                "namesrv": addresses.namesrv,
                "brokers": list(addresses.brokers.values()),
                "http": addresses.http,
                "grpc": addresses.grpc,
                "ha": addresses.ha,
            }
            if addresses.slave is not None:
                facts["slave"] = addresses.slave
            _add_console(console, lines, facts)
            say_ready(options.json, "rucola up", lines, facts)
            return _with_console(servers.stop, console)

        try:
            run_servers(start, LogOptions.of(options))
        except ProcessStartError as error:
            return error.exit_status
    return ExitCode.CLEAN


def namesrv(options: Namespace) -> int:
    """Runs only a name server."""
    prepare(options)
    config = namesrv_config(options.config, options.host, options.port)

    async def start() -> Stop:
        one = NamesrvServer(config)
        await one.start()
        address = one.server.address
        say_ready(options.json, "rucola namesrv", {"name server": address}, {"namesrv": address})
        return one.stop

    run_servers(start, LogOptions.of(options))
    return ExitCode.CLEAN


def broker(options: Namespace) -> int:
    """Runs only a broker."""
    prepare(options)
    values = broker_values(options.config, options.namesrv, options.quarantine, options.grpc_port, options.tls_dir)

    console = _console(options)
    if console is not None and not values.get("namesrvAddr"):
        raise ConfigError("--console", "true", "name servers with it, by -n or namesrvAddr")

    async def start() -> Stop:
        server = Broker(*broker_options(values))
        servers = BrokerServers(server, options.http_port)
        await servers.start()
        root, namesrv_addr = server.store.root, server.config.namesrv_addr
        http = servers.http.address if servers.http is not None else None
        lines = {"store": root, "name servers": namesrv_addr or "-", "broker": server.address}
        grpc = servers.door.address if servers.door is not None else None
        if grpc is not None:
            lines["grpc"] = grpc
        if server.ha_address is not None:
            lines["slaves"] = server.ha_address
        if server.config.is_slave:
            lines["slave"] = server.role_text
        if http is not None:
            lines["http"] = f"http://{http}"
        facts: dict[str, object] = {
            "store": root,
            "namesrv": namesrv_addr or None,
            "brokers": [server.address],
            "http": http,
            "grpc": grpc,
            "ha": server.ha_address,
        }
        if server.config.is_slave:
            facts["slave"] = server.role_text
        if console is not None:
            console.start_soon(namesrv_addr)
        _add_console(console, lines, facts)
        say_ready(options.json, "rucola broker", lines, facts)
        return _with_console(servers.stop, console)

    run_servers(start, LogOptions.of(options), stop_at_end_of_input=options.under_up)
    return ExitCode.CLEAN


def proxy(options: Namespace) -> int:
    """Runs only a gRPC proxy."""
    # Imported late: the other commands do not need gRPC.
    from rucola.cli.proxy_server import ProxyServer, proxy_config

    prepare(options)
    config = proxy_config(
        options.config,
        options.namesrv,
        options.host,
        options.port,
        options.grpc_advertised_address,
        options.tls_dir,
    )

    async def start() -> Stop:
        server = ProxyServer(config, own_brokers=options.under_up, http_port=options.http_port)
        await server.start()
        lines = {"name servers": config.namesrv_addr, "grpc": server.address}
        http = server.http.address if server.http is not None else None
        if http is not None:
            lines["http"] = f"http://{http}"
        facts = {"namesrv": config.namesrv_addr, "grpc": server.address, "http": http}
        say_ready(options.json, "rucola proxy", lines, facts)
        return server.stop

    run_servers(start, LogOptions.of(options), stop_at_end_of_input=options.under_up)
    return ExitCode.CLEAN


def controller(options: Namespace) -> int:
    """Runs only a controller."""
    # Imported late: the other commands need no HTTP to etcd.
    from rucola.cli.controller_server import ControllerServer, controller_config

    prepare(options)
    config = controller_config(options.config, options.etcd, options.prefix, options.listen, options.advertise)

    async def start() -> Stop:
        server = ControllerServer(config, options.http_port)
        await server.start()
        address = server.controller.address
        lines = {"controller": address, "etcd": config.etcd_endpoints, "prefix": config.etcd_prefix}
        http = server.http.address if server.http is not None else None
        if http is not None:
            lines["http"] = f"http://{http}"
        facts = {"controller": address, "etcd": config.etcd_endpoints, "prefix": config.etcd_prefix, "http": http}
        say_ready(options.json, "rucola controller", lines, facts)
        return server.stop

    run_servers(start, LogOptions.of(options))
    return ExitCode.CLEAN


def _console(options: Namespace) -> ConsoleProcess | None:
    """The console that a command also starts; None if none is wanted.

    Raises:
        AddressInUseError: its port is taken.
    """
    if not options.console:
        return None
    # Imported late: most commands start no console.
    from rucola.cli.console_process import ConsoleProcess

    console = ConsoleProcess(options.console_port, LogOptions.of(options))
    console.check_port()
    return console


def _add_console(console: ConsoleProcess | None, lines: dict[str, str], facts: dict[str, object]) -> None:
    if console is not None:
        lines["console"] = f"http://{console.address}/"
        facts["console"] = console.address


def _with_console(stop: Stop, console: ConsoleProcess | None) -> Stop:
    """Ends the console, then the servers."""
    if console is None:
        return stop

    async def stop_both() -> None:
        await console.stop()
        await stop()

    return stop_both
