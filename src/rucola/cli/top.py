"""``rucola top``: a cluster at a glance in a terminal, refreshed each second; with ``--once`` for scripts.

Exit codes: 0 it ended, 1 no name server answers (with ``--once``), 2 usage.
"""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from dataclasses import replace
from typing import Final

from rucola.cli.closed_output import OutputClosedError, drop_output
from rucola.cli.exit_codes import ExitCode
from rucola.cli.top_tables import TABLES, Seen, TopTable, reverse
from rucola.client.admin import AdminClient
from rucola.client.config import ClientConfig
from rucola.console.cluster.poller import ClusterPoller
from rucola.console.cluster.problems import NewLetters
from rucola.console.lists import ListQuery
from rucola.errors import ConfigError
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.extras import TOP, require

SECRET_VARIABLE: Final = "RUCOLA_SECRET_KEY"
"""Environment variable with the secret, which is then not in the list of processes."""
INTERVAL_MIN_S: Final = 0.5
INTERVAL_MAX_S: Final = 60.0
TABLES_S: Final = 3.0
"""Seconds between two looks at topics and groups: a look at all of them costs a broker more than one at its figures."""
_TIMEOUT_MS: Final = 1_000


class ClusterLook:
    """Looks at a cluster with the console's poller. Event loop only; close it once."""

    def __init__(self, namesrv: str, account: ClientConfig, interval_s: float, clock: Clock | None = None) -> None:
        self.namesrv, self.interval_s = namesrv, interval_s
        self.clock = clock or SystemClock()
        self._admin = AdminClient(namesrv, _TIMEOUT_MS, account, self.clock)
        self._poller = ClusterPoller(self._admin, self.clock, interval_s, max(interval_s, TABLES_S))
        self._dead: dict[str, tuple[int, int]] = {}
        """Dead letters of each group when they were first seen, and when that was."""

    async def next(self) -> Seen:
        """Looks again, as often as the interval allows."""
        await self._poller.fresh()
        if self._poller.is_due:
            await self._poller.look()
        return self._seen()

    async def twice(self) -> Seen:
        """Looks at everything two times, an interval apart, because rates of topics need it."""
        await self._poller.look()
        self._seen()
        await asyncio.sleep(self.interval_s)
        await self._poller.look()
        return self._seen()

    async def close(self) -> None:
        """Ends a look that runs, and closes all connections."""
        await self._poller.close()
        await self._admin.close()

    def _seen(self) -> Seen:
        snapshot, letters = self._poller.snapshot, {}
        for group in snapshot.groups.values():
            if group.dead is None:
                continue
            first, since_ms = self._dead.setdefault(group.name, (group.dead, snapshot.taken_ms))
            if group.dead > first:
                letters[group.name] = NewLetters(group.name, group.dead - first, since_ms)
        return Seen(snapshot, letters)


def run(options: Namespace) -> int:
    """Runs ``rucola top``; returns the exit code.

    Raises:
        RucolaError: an option is not allowed, or a package is missing.
    """
    if not INTERVAL_MIN_S <= options.interval <= INTERVAL_MAX_S:
        raise ConfigError("--interval", str(options.interval), f"{INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g} seconds")
    table, query = wanted(options)
    account = _account(options)
    try:
        if options.once or options.json:
            return asyncio.run(_once(options, account, query))
        require(TOP, "rucola top without --once")
        if not all(map(os.isatty, range(3))):
            raise ConfigError("--once", "false", "true, because input, output and error are no terminal")
        from rucola.cli.top_app import TopApp

        look = ClusterLook(options.namesrv, account, options.interval)
        app = TopApp(look, table, query.sort)
        app.run()
        if app.failure is not None:
            raise app.failure
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, OutputClosedError):
        drop_output()
    return ExitCode.CLEAN


def wanted(options: Namespace) -> tuple[TopTable, ListQuery]:
    """The table that comes first, and its order.

    Raises:
        ConfigError: the table has no such column.
    """
    table = TABLES[options.table or "groups"]
    if options.sort is not None and options.sort not in table.sorts:
        raise ConfigError("--sort", options.sort, f"for {table.name}: {', '.join(table.sorts)}")
    sort = table.sort if options.sort is None else table.order(options.sort)
    return table, ListQuery(sort=reverse(sort) if options.reverse else sort, size=options.rows)


async def _once(options: Namespace, account: ClientConfig, query: ListQuery) -> int:
    from rucola.cli import top_output

    look = ClusterLook(options.namesrv, account, options.interval)
    try:
        seen = await look.twice()
    finally:
        await look.close()
    chosen = [TABLES[options.table]] if options.table else list(TABLES.values())
    # The order was given for the first table.
    queries = [query if number == 0 else replace(query, sort=table.sort) for number, table in enumerate(chosen)]
    lists = [(table, table.rows(seen, one)) for table, one in zip(chosen, queries, strict=True)]
    if options.json:
        top_output.print_json(seen, lists)
    else:
        top_output.print_tables(look.namesrv, seen, lists)
    is_there = any(server.unknown is None for server in seen.snapshot.name_servers)
    return ExitCode.CLEAN if is_there else ExitCode.FAILED


def _account(options: Namespace) -> ClientConfig:
    """The account of the command line, or that of ``$ROCKETMQ_HOME/conf/tools.yml``."""
    from rucola.cli.mqadmin.command import client_config

    config = client_config()
    if not options.access_key:
        return config
    secret = options.secret_key or os.environ.get(SECRET_VARIABLE, "")
    return replace(config, access_key=options.access_key, secret_key=secret)
