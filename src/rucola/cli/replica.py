"""``rucola replica``: copies the log of a RocketMQ master into a directory.

Exit codes: 0 after SIGTERM, or when ``--until now`` is reached; 1 the master does not answer, refuses, or must not be
followed; 2 usage; 4 another process uses the directory; 5 the directory is damaged; 6 the disk is full or fails.
"""

from __future__ import annotations

import os
from argparse import Namespace

from rucola.broker.ha.master_broker import MasterBroker
from rucola.broker.ha.replica import Replica, ReplicaOptions
from rucola.cli.amounts import keep_rule, size_of
from rucola.cli.exit_codes import ExitCode
from rucola.cli.ready import prepare, say_ready
from rucola.cli.serve import LogOptions, Stop, run_servers
from rucola.client.config import ClientConfig
from rucola.common.hosts import split_address
from rucola.errors import ConfigError
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.runtime.tls import client_context

SECRET_VARIABLE = "RUCOLA_SECRET_KEY"
"""Environment variable with the secret, which is then not in the list of processes."""


def run(options: Namespace) -> int:
    """Runs ``rucola replica``; returns the exit code.

    Raises:
        RucolaError: the copy cannot begin or go on.
    """
    wanted = _options(options)
    secret = options.secret_key or os.environ.get(SECRET_VARIABLE, "") if options.access_key else ""
    account = ClientConfig(
        access_key=options.access_key,
        secret_key=secret,
        use_tls=bool(options.tls_ca),
        tls_trust_cert_path=options.tls_ca,
        tls_cert_path=options.tls_cert,
        tls_key_path=options.tls_key,
    )
    prepare(options)
    replicas: list[Replica] = []

    async def start() -> Stop:
        clock = SystemClock()
        master = None if wanted.broker is None else MasterBroker(wanted.broker, account, clock)
        replica = Replica(wanted, master, Files(), clock)
        await replica.start()
        replicas.append(replica)
        root, end = replica.store.root, replica.end_offset
        lines = {"store": root, "master": wanted.master, "broker": wanted.broker or "-", "copied to": f"{end:,}"}
        facts = {"store": root, "master": wanted.master, "broker": wanted.broker, "endOffset": end}
        facts["segmentBytes"] = replica.segment_bytes
        say_ready(options.json, "rucola replica", lines, facts)
        return replica.stop

    async def work() -> None:
        await replicas[0].run()

    run_servers(start, LogOptions.of(options), work=work)
    return ExitCode.CLEAN


def _options(options: Namespace) -> ReplicaOptions:
    for name in ("master", "broker"):
        value = getattr(options, name)
        try:
            if value is not None:
                split_address(value)
        except ValueError:
            raise ConfigError(f"--{name}", value, "host:port") from None
    if (options.tls_cert or options.tls_key) and not options.tls_ca:
        raise ConfigError("--tls-ca", "", "the authorities of the master's certificate, because there is one to show")
    if options.until is not None and options.broker is None:
        raise ConfigError("--until", options.until, "no value without --broker, which tells where the log ends now")
    return ReplicaOptions(
        master=options.master,
        store=options.store,
        broker=options.broker,
        until_now=options.until is not None,
        segment_bytes=options.segment_bytes,
        flush_at_once=options.flush == "sync",
        tls=client_context(options.tls_ca, options.tls_cert, options.tls_key) if options.tls_ca else None,
        keep=None if options.keep is None else keep_rule("--keep", options.keep),
        rejoin=options.rejoin,
        quarantine_bytes_max=size_of("--quarantine-max", options.quarantine_max),
    )
