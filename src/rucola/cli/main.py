"""The command ``rucola``. Options and exit codes are stable; every error is one line on standard error.

The server commands use argparse, so that their start does not wait for the import of the tools' command-line libraries
(decision 4).
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from rucola import __version__
from rucola.cli.closed_output import drop_output, open_standard_streams
from rucola.cli.exit_codes import ExitCode, exit_code
from rucola.cli.lines import print_error
from rucola.errors import RucolaError
from rucola.runtime import extras
from rucola.runtime.logs import LOG_FORMATS, LOG_LEVELS

BROKERS_MAX = 64
FORMS = ("table", "csv", "json", "parquet")
"""Output formats for the result of a query."""
SHELLS = ("bash", "zsh", "fish")
GC_OBJECTS = 50_000
"""Number of new objects after which a command collects garbage."""


def run() -> NoReturn:
    """Entry point of the command."""
    open_standard_streams()
    if sys.argv[1:2] in (["sql"], ["replay"]):
        # On import, NumPy would start a thread for linear algebra on each core. The threads spin while they wait, and
        # take a tenth of a second of CPU time. ``sql`` and ``replay`` use no linear algebra.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.argv[1:2] == ["sql"]:
        data_sets = (f"pyarrow._dataset_{name}" for name in ("orc", "parquet", "parquet_encryption"))
        sys.meta_path.insert(0, _Hidden("pandas", *data_sets))
    elif sys.argv[1:2] == ["replay"]:
        sys.meta_path.insert(0, _Hidden("pandas"))
    # The imports create no garbage, but with Python's default threshold they would cause dozens of garbage collections.
    # A server sets its own thresholds later.
    gc.set_threshold(GC_OBJECTS)
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        if error.filename is not None:
            raise
        drop_output()
        code = _fail(f"standard output: {error.strerror}", ExitCode.DISK)
    if sys.argv[1:2] == ["sql"]:
        # All files are closed by now. An orderly end of the interpreter would make a command that looks up a key take
        # about a tenth longer.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


class _Hidden:
    """Hides modules that PyArrow would import although the command does not use them. Importing pandas takes half a
    second; importing the readers of Parquet and ORC data sets takes a twentieth of a second.

    Args:
        names: full names of the modules.
    """

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Finds nothing.

        Raises:
            ModuleNotFoundError: the module is one of the hidden modules.
        """
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is hidden, because this command does not use it", name=fullname)


def main(arguments: list[str]) -> int:
    """Runs one command line; returns the exit code."""
    try:
        if arguments[:1] != ["store"]:  # ``store`` accepts topic and file names that are not UTF-8
            _check_text(arguments)
        if arguments[:1] in (["store"], ["replay"], ["mqadmin"], ["lab"], ["spark"]):
            return _use_tool(*arguments)
        return _serve(arguments)
    except UsageError as error:
        return _fail(str(error), ExitCode.USAGE)
    except RucolaError as error:
        return _fail(str(error), exit_code(error))
    except KeyboardInterrupt:
        return ExitCode.CLEAN


class UsageError(Exception):
    """The command line is invalid."""


def _check_text(arguments: list[str]) -> None:
    """Refuses arguments that are not UTF-8: Python reads their bytes as lone surrogates, which can be neither sent nor
    printed.

    Raises:
        UsageError: an argument is not UTF-8.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"argument {argument!a} is not UTF-8") from None


def _use_tool(name: str, *arguments: str) -> int:
    extras.require(extras.CLI, f"rucola {name}")
    # Typer converts arguments with Pydantic. By default, Pydantic searches all installed packages for plugins; Typer
    # needs no plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    import typer

    run_tool: Callable[[list[str]], int]
    if name == "store":
        from rucola.cli.store import run as run_tool
    elif name == "replay":
        extras.require(extras.ARROW, "rucola replay")
        from rucola.cli.replay import run as run_tool
    elif name == "lab":
        from rucola.cli.lab import run as run_tool
    elif name == "spark":
        from rucola.cli.spark import run as run_tool
    else:
        from rucola.cli.mqadmin.run import run as run_tool
    try:
        return run_tool(list(arguments))
    except typer.TyperException as error:
        message = error.format_message()
        if not message:  # no command was given, and the help was printed
            return ExitCode.USAGE
        raise UsageError(message) from None
    except typer.Abort:
        return ExitCode.CLEAN


def _serve(arguments: list[str]) -> int:
    parser = command_line()
    try:
        options = parser.parse_args(arguments)
    except SystemExit:  # --help and --version
        return ExitCode.CLEAN
    if options.command is None:
        parser.print_help()
        return ExitCode.USAGE
    if options.command == "sql":
        extras.require(extras.CLI, "rucola sql")
        extras.require(extras.SQL, "rucola sql")
        gc.disable()  # start-up creates no garbage; ``query`` enables the collector before it reads the result
        from rucola.cli.sql import run as query

        return query(options)
    # Start-up creates no garbage, and a garbage collection would take a twentieth of the start-up time. ``run_servers``
    # enables the collector again.
    gc.disable()
    try:
        return _start(options)
    finally:
        gc.enable()


def _start(options: argparse.Namespace) -> int:
    if options.command == "completion":
        extras.require(extras.CLI, "rucola completion")
        from rucola.cli.completion import script

        print(script(options.shell, command_line()), end="")  # noqa: T201 - this is the output
        return ExitCode.CLEAN
    extras.require(extras.SERVER, f"rucola {options.command}")
    from rucola.cli import start

    if options.command == "up":
        return start.up(options)
    if options.command == "namesrv":
        return start.namesrv(options)
    return start.broker(options)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Version(argparse.Action):
    """Shows the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        with suppress(BrokenPipeError):
            print("rucola", __version__)  # noqa: T201 - this is the output
        parser.exit()


def command_line() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = _Parser(
        "rucola", description="RocketMQ's message store, broker and clients in Python.", allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="Show the version.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    def command(name: str, text: str) -> Callable[..., object]:
        return commands.add_parser(name, help=text, description=text, allow_abbrev=False).add_argument

    up = command("up", "Start a name server and a broker in one process; with --brokers, start several brokers.")
    up("--store", metavar="DIR", help="Store directory. [default: ~/store]")
    up("--ephemeral", action="store_true", help="Use a temporary store and remove it at the end.")
    up("--host", help="Address to listen on. [default: 127.0.0.1]")
    _port(up, "--namesrv-port", "Port of the name server; 0 for any free port. [default: 9876]", 9876)
    _port(up, "--broker-port", "Port of the broker; 0 for any free port. [default: 10911]")
    _port(up, "--http-port", "Port of /livez, /readyz and /metrics; 0 for any free port. [default: 8088]", 8088)
    up("--flush", metavar="sync|async", help="When to confirm a send: after the disk sync, or before it.")
    up("-c", "--config", metavar="FILE", help="File in the format of RocketMQ's broker.conf.")
    up(
        "--brokers",
        type=_brokers,
        default=1,
        metavar="N",
        help="Number of brokers. With several, each has its own process and store. [default: 1]",
    )
    _common(up, quarantine=True)

    namesrv = command("namesrv", "Start only a name server.")
    namesrv("-c", "--config", metavar="FILE", help="A properties file.")
    namesrv("--host", help="Address to listen on. [default: 127.0.0.1]")
    _port(namesrv, "--port", "Port; 0 for any free port. [default: 9876]")
    _common(namesrv, quarantine=False)

    broker = command("broker", "Start only a broker.")
    broker("-c", "--config", metavar="FILE", help="File in the format of RocketMQ's broker.conf.")
    broker("-n", "--namesrv", metavar="ADDRESSES", help="Name servers, host:port, separated by semicolons.")
    _port(broker, "--http-port", "Port of /livez, /readyz and /metrics; 0 for any free port. [default: none]")
    broker("--under-up", action="store_true", help=argparse.SUPPRESS)
    _common(broker, quarantine=True)

    completion = command("completion", "Print a shell completion script for this command.")
    completion("shell", choices=SHELLS, help="For example: source <(rucola completion bash)")

    sql = command(
        "sql",
        "Use SQL to query the topics of a store directory or of brokers; each topic is a view.",
    )
    sql("query", metavar="QUERY", help="One statement of DuckDB's SQL.")
    sql("--store", metavar="DIR", help="Store directory to read in place.")
    sql("-n", "--namesrv", metavar="ADDRESSES", help="Name servers; messages are read from their brokers.")
    sql("--format", choices=FORMS, help="Format of the result. [default: by the ending of --output, else table]")
    sql("--json", action="store_true", help="The same as --format json: one object per line.")
    sql("-o", "--output", metavar="FILE", help="Write to this file; it must not exist.")
    sql(
        "--max",
        type=_count,
        default=100,
        metavar="N",
        help="Maximum number of rows of a table; other formats have all rows. [default: 100]",
    )
    sql("--no-index", action="store_true", help="Find keys by a scan, not by the index.")

    # Listed only for the help: these commands parse their own arguments.
    commands.add_parser("store", help="Inspect or repair a store directory.")
    commands.add_parser("replay", help="Send stored messages to a topic again.")
    commands.add_parser("mqadmin", help="Administer a cluster with RocketMQ's mqadmin commands.")
    commands.add_parser("lab", help="Measure common claims about storage engines.")
    commands.add_parser("spark", help="Work on stores and archives with Spark; pack an environment for executors.")
    return parser


def _port(add: Callable[..., object], name: str, text: str, default: int | None = None) -> None:
    add(name, type=int, default=default, metavar="PORT", help=text)


def _common(add: Callable[..., object], quarantine: bool) -> None:
    if quarantine:
        text = "Move damaged parts to quarantine/ in the store, and serve the rest."
        add("--quarantine", action="store_true", help=text)
    add("--json", action="store_true", help="Print one line of JSON when ready.")
    add(
        "--log-format", choices=LOG_FORMATS, default="text", help="Format of the log on standard error. [default: text]"
    )
    add(
        "--log-level",
        choices=LOG_LEVELS,
        default="INFO",
        metavar="LEVEL",
        help=f"{', '.join(LOG_LEVELS)}. [default: INFO]",
    )


def _brokers(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= BROKERS_MAX:
        raise argparse.ArgumentTypeError(f"a number from 1 to {BROKERS_MAX}, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of at least 1, got {text!r}")
    return int(text)


def _fail(message: str, code: ExitCode) -> int:
    print_error(message)
    return int(code)
