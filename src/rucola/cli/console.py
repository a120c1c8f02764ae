"""``rucola console``: the pages of clusters, in a process of its own."""

from __future__ import annotations

from argparse import Namespace

from rucola.cli.config_file import read_config
from rucola.cli.exit_codes import ExitCode
from rucola.cli.ready import prepare, say_ready
from rucola.cli.serve import LogOptions, Stop, run_servers
from rucola.console import Console, ConsoleConfig


def run(options: Namespace) -> int:
    """Runs ``rucola console``; returns the exit code.

    Raises:
        RucolaError: the console cannot start.
    """
    prepare(options)
    config = console_config(options)

    async def start() -> Stop:
        console = Console(config)
        await console.start()
        lines = {cluster.name: cluster.namesrv for cluster in config.cluster_list}
        lines |= {"data": console.directory, "console": f"http://{console.address}{config.base_path}/"}
        facts = {
            "clusters": {cluster.name: cluster.namesrv for cluster in config.cluster_list},
            "data": console.directory,
            "console": console.address,
            "http": console.address,
        }
        say_ready(options.json, "rucola console", lines, facts)
        return console.stop

    run_servers(start, LogOptions.of(options), stop_at_end_of_input=options.under_up)
    return ExitCode.CLEAN


def console_config(options: Namespace) -> ConsoleConfig:
    """The options of ``rucola console``.

    Raises:
        ConfigError: an entry is not allowed; ``OptionsError`` with all errors if there are several.
    """
    return read_config(
        options.config,
        ConsoleConfig,
        "console",
        namesrvAddr="|".join(options.namesrv) if options.namesrv else None,
        bindAddress=options.host,
        consolePort=options.port,
        consoleData=options.data,
        consoleStores=",".join(options.store) if options.store else None,
        publicUrl=options.public_url,
        readOnly="true" if options.read_only else None,
        insecure="true" if options.insecure else None,
    )
