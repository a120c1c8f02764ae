"""The command ``rucola``. Options and exit codes are stable; every error is one line on standard error.

The server commands use argparse, so that their start does not wait for the import of the tools' command-line libraries
(decision 4).
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

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
TOP_TABLES = ("groups", "topics", "brokers")
"""Tables of ``rucola top``."""
ROWS_MAX = 1000
GC_OBJECTS = 50_000
"""Number of new objects after which a command collects garbage."""
Add = Callable[..., object]
"""``argparse.ArgumentParser.add_argument``."""


class Command:
    """A command of ``rucola``.

    Args:
        help: what it does, for the help.
        needs: the extras that it needs.
        run: module of this package and function. The function takes the options or, if the command parses them itself,
            the words after the command's name; it returns the exit code.
        add_options: declares the options; None if the command parses them itself.
        hides: modules that are imported by others although the command does not use them.
        ends_at_once: whether the interpreter need not come to an orderly end.
        is_binary: whether the words may be bytes that are not UTF-8.
    """

    # A data class or a named tuple would take part of a millisecond of each start.
    def __init__(
        self,
        help: str,
        needs: Sequence[extras.Extra],
        run: str,
        add_options: Callable[[Add], None] | None = None,
        *,
        hides: Sequence[str] = (),
        ends_at_once: bool = False,
        is_binary: bool = False,
    ) -> None:
        self.help, self.needs, self.run, self.add_options = help, needs, run, add_options
        self.hides, self.ends_at_once, self.is_binary = hides, ends_at_once, is_binary

    def prepare(self) -> None:
        """Prepares a process that runs only this command."""
        if self.hides:
            # On import, NumPy would start a thread for linear algebra on each core. The threads spin while they wait,
            # and take a tenth of a second of CPU time.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            sys.meta_path.insert(0, _Hidden(self.hides))

    def start(self, given: object, name: str) -> int:
        """Runs the command; returns the exit code.

        Raises:
            MissingExtraError: a package is not installed.
        """
        for extra in self.needs:
            extras.require(extra, f"rucola {name}")
        module, _, function = self.run.partition(":")
        started: Any = getattr(import_module(f"rucola.cli.{module}"), function)
        code: int = started(given)
        return code


def run() -> NoReturn:
    """Entry point of the command."""
    open_standard_streams()
    command = COMMANDS.get("".join(sys.argv[1:2]))
    if command is not None:
        command.prepare()
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
    if command is not None and command.ends_at_once:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


class _Hidden:
    """Hides modules from imports.

    Args:
        names: full names of the modules.
    """

    def __init__(self, names: Sequence[str]) -> None:
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
    name, words = "".join(arguments[:1]), arguments[1:]
    command = COMMANDS.get(name)
    try:
        if command is None or not command.is_binary:
            _check_text(arguments)
        if command is not None and command.add_options is None:
            return _run_tool(command, words, name)
        return _parse_and_run(arguments)
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


def _run_tool(command: Command, words: list[str], name: str) -> int:
    """Runs a command that parses its options itself, with Typer."""
    extras.require(extras.CLI, f"rucola {name}")
    # Typer converts arguments with Pydantic. By default, Pydantic searches all installed packages for plugins; Typer
    # needs no plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    import typer

    try:
        return command.start(words, name)
    except typer.TyperException as error:
        message = error.format_message()
        if not message:  # no command was given, and the help was printed
            return ExitCode.USAGE
        raise UsageError(message) from None
    except typer.Abort:
        return ExitCode.CLEAN


def _parse_and_run(arguments: list[str]) -> int:
    parser = command_line()
    try:
        options = parser.parse_args(arguments)
    except SystemExit:  # --help and --version
        return ExitCode.CLEAN
    if options.command is None:
        parser.print_help()
        return ExitCode.USAGE
    # Start-up creates no garbage, and a garbage collection would take a twentieth of the start-up time. Servers and
    # queries enable the collector again.
    gc.disable()
    try:
        return COMMANDS[options.command].start(options, options.command)
    finally:
        gc.enable()


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

    for name, one in COMMANDS.items():
        if one.add_options is None:
            commands.add_parser(name, help=one.help)  # Listed only for the help.
        else:
            one.add_options(
                commands.add_parser(name, help=one.help, description=one.help, allow_abbrev=False).add_argument
            )
    return parser


def _up(add: Add) -> None:
    add("--store", metavar="DIR", help="Store directory. [default: ~/store]")
    add("--ephemeral", action="store_true", help="Use a temporary store and remove it at the end.")
    add("--host", help="Address to listen on. [default: 127.0.0.1]")
    _port(add, "--namesrv-port", "Port of the name server; 0 for any free port. [default: 9876]", 9876)
    _port(add, "--broker-port", "Port of the broker; 0 for any free port. [default: 10911]")
    _port(add, "--http-port", "Port of /livez, /readyz and /metrics; 0 for any free port. [default: 8088]", 8088)
    _port(add, "--grpc-port", "Port for clients of RocketMQ 5; 0 for any free port. [default: 8081 if it is free]")
    add("--tls-dir", metavar="DIR", help="Keep the certificate of the gRPC port in this directory.")
    add("--no-grpc", action="store_true", help="Serve no clients of RocketMQ 5.")
    add("--flush", metavar="sync|async", help="When to confirm a send: after the disk sync, or before it.")
    add("-c", "--config", metavar="FILE", help="File in the format of RocketMQ's broker.conf.")
    _with_console(add)
    add(
        "--brokers",
        type=_brokers,
        default=1,
        metavar="N",
        help="Number of brokers. With several, each has its own process and store. [default: 1]",
    )
    _common(add, quarantine=True)


def _namesrv(add: Add) -> None:
    add("-c", "--config", metavar="FILE", help="A properties file.")
    add("--host", help="Address to listen on. [default: 127.0.0.1]")
    _port(add, "--port", "Port; 0 for any free port. [default: 9876]")
    _common(add, quarantine=False)


def _broker(add: Add) -> None:
    add("-c", "--config", metavar="FILE", help="File in the format of RocketMQ's broker.conf.")
    add("-n", "--namesrv", metavar="ADDRESSES", help="Name servers, host:port, separated by semicolons.")
    _port(add, "--http-port", "Port of /livez, /readyz and /metrics; 0 for any free port. [default: none]")
    _port(add, "--grpc-port", "Port for clients of RocketMQ 5; 0 for any free port. [default: none]")
    add("--tls-dir", metavar="DIR", help="Keep the certificate of the gRPC port in this directory.")
    _with_console(add)
    add("--under-up", action="store_true", help=argparse.SUPPRESS)
    _common(add, quarantine=True)


def _proxy(add: Add) -> None:
    add("-c", "--config", metavar="FILE", help="A properties file.")
    add("-n", "--namesrv", metavar="ADDRESSES", help="Name servers, host:port, separated by semicolons.")
    add("--host", help="Address to listen on. [default: 127.0.0.1]")
    _port(add, "--port", "Port for clients of RocketMQ 5; 0 for any free port. [default: 8081]")
    _port(add, "--http-port", "Port of /livez, /readyz and /metrics; 0 for any free port. [default: none]")
    add("--tls-dir", metavar="DIR", help="Keep the certificate of the gRPC port in this directory.")
    add("--grpc-advertised-address", metavar="ADDRESS", help="Address of the proxy, host:port, that routes name.")
    add("--under-up", action="store_true", help=argparse.SUPPRESS)
    _common(add, quarantine=False)


def _controller(add: Add) -> None:
    add("-c", "--config", metavar="FILE", help="A properties file.")
    add("--etcd", metavar="URLS", help="Members of one etcd, http://host:port, separated by commas.")
    add("--prefix", metavar="PATH", help="Where the controller's keys are. [default: /rucola/controller]")
    add("--listen", metavar="ADDRESS", help="Address to listen on, host:port. [default: 127.0.0.1:9878]")
    add("--advertise", metavar="ADDRESS", help="Address, host:port, for brokers. [default: that of --listen]")
    _port(add, "--http-port", "Port of /livez, /readyz and /metrics; 0 for any free port. [default: none]")
    _common(add, quarantine=False)


def _console(add: Add) -> None:
    add("-c", "--config", metavar="FILE", help="A properties file.")
    add(
        "-n",
        "--namesrv",
        metavar="[NAME=]ADDRESSES",
        action="append",
        help="Name servers, host:port, separated by semicolons; once for each cluster, with a name if there are "
        "several. [default: 127.0.0.1:9876]",
    )
    add("--host", help="Address to listen on. [default: 127.0.0.1]")
    _port(add, "--port", "Port of the pages; 0 for any free port. [default: 8090]")
    add("--data", metavar="DIR", help="Directory of history and audit log. [default: below ~/.local/state/rucola]")
    add("--store", metavar="DIR", action="append", help="Store directory that super users may look into; repeatable.")
    add("--public-url", metavar="URL", help="Address under which a reverse proxy shows the console.")
    add("--read-only", action="store_true", help="Make no changes.")
    add("--insecure", action="store_true", help="Listen on any address, and let visitors in who have no account.")
    add("--under-up", action="store_true", help=argparse.SUPPRESS)
    _common(add, quarantine=False)


def _top(add: Add) -> None:
    add(
        "-n",
        "--namesrv",
        metavar="ADDRESSES",
        default=os.environ.get("NAMESRV_ADDR") or "127.0.0.1:9876",
        help="Name servers, host:port, separated by semicolons. [default: $NAMESRV_ADDR, or 127.0.0.1:9876]",
    )
    add("--interval", type=float, default=1.0, metavar="SECONDS", help="Pause between two looks. [default: 1]")
    add("--table", choices=TOP_TABLES, help="The table to show first; with --once, the only one. [default: groups]")
    add("--sort", metavar="COLUMN", help="Order of the first table, such as lag or name.")
    add("--reverse", action="store_true", help="Turn the order around; it begins with the largest figures.")
    add("--once", action="store_true", help="Print figures, problems and tables once, and end.")
    add("--json", action="store_true", help="The same as one line of JSON.")
    add("--rows", type=_rows, default=20, metavar="N", help="With --once: rows of a table. [default: 20]")
    add("--access-key", metavar="NAME", default="", help="Account. [default: that of mqadmin's tools.yml]")
    add("--secret-key", metavar="SECRET", default="", help="Its secret. [default: the variable RUCOLA_SECRET_KEY]")


def _replica(add: Add) -> None:
    add(
        "--master",
        required=True,
        metavar="ADDRESS",
        help="HA port of the master, host:port (haListenPort, often 10912).",
    )
    add("--store", required=True, metavar="DIR", help="Directory of the copy.")
    add(
        "--hidden",
        action="store_true",
        required=True,
        help="Only copy: register nowhere, serve nobody. Required, because a copy cannot serve clients yet.",
    )
    add(
        "--broker",
        metavar="ADDRESS",
        help="Broker port of the master, host:port. The copy then begins with the oldest message, and has topics, "
        "groups and offsets. [default: begin with the master's newest segment]",
    )
    add("--until", choices=("now",), help="End when the copy has what the master had at the start; needs --broker.")
    add(
        "--segment-bytes",
        type=_count,
        metavar="N",
        help="The master's mappedFileSizeCommitLog. [default: asked of --broker, or that of the directory]",
    )
    add(
        "--flush",
        choices=("sync", "async"),
        default="async",
        help="sync: sync and report at once what came, for a master whose senders wait. [default: twice a second]",
    )
    add(
        "--rejoin",
        action="store_true",
        help="If the master lost its newest messages and wrote on: go back to the last record that both have. What "
        "only the copy has goes to quarantine/.",
    )
    add(
        "--quarantine-max",
        metavar="BYTES",
        default="1GiB",
        help="With --rejoin: keep at most so many bytes; of more, only length and digest. [default: 1GiB]",
    )
    add(
        "--keep",
        metavar="AGE|BYTES",
        help="Remove the oldest segments: those older than 12h or 30d, or those beyond 200GiB. [default: remove "
        "nothing]",
    )
    add("--access-key", metavar="NAME", default="", help="Account for a protected master.")
    add("--secret-key", metavar="SECRET", default="", help="Its secret. [default: the variable RUCOLA_SECRET_KEY]")
    add(
        "--tls-ca",
        metavar="FILE",
        default="",
        help="PEM file with the authorities of the master's certificates. Connect over TLS, to both ports.",
    )
    add("--tls-cert", metavar="FILE", default="", help="PEM file with the certificate to show.")
    add("--tls-key", metavar="FILE", default="", help="PEM file with its key. [default: in --tls-cert]")
    _common(add, quarantine=False)


def _completion(add: Add) -> None:
    add("shell", choices=SHELLS, help="For example: source <(rucola completion bash)")


def _sql(add: Add) -> None:
    add("query", metavar="QUERY", help="One statement of DuckDB's SQL.")
    add("--store", metavar="DIR", help="Store directory to read in place.")
    add("-n", "--namesrv", metavar="ADDRESSES", help="Name servers; messages are read from their brokers.")
    add("--format", choices=FORMS, help="Format of the result. [default: by the ending of --output, else table]")
    add("--json", action="store_true", help="The same as --format json: one object per line.")
    add("-o", "--output", metavar="FILE", help="Write to this file; it must not exist.")
    add(
        "--max",
        type=_count,
        default=100,
        metavar="N",
        help="Maximum number of rows of a table; other formats have all rows. [default: 100]",
    )
    add("--no-index", action="store_true", help="Find keys by a scan, not by the index.")


def _with_console(add: Add) -> None:
    add("--console", action="store_true", help="Also start the console, in a process of its own.")
    _port(add, "--console-port", "Port of the console; 0 for any free port. [default: 8090]", 8090)


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


def _rows(text: str) -> int:
    count = _count(text)
    if count > ROWS_MAX:
        raise argparse.ArgumentTypeError(f"a number from 1 to {ROWS_MAX}, got {text!r}")
    return count


# PyArrow imports what is hidden here: pandas in half a second, the readers of Parquet and ORC data sets in a twentieth.
_PANDAS = ("pandas",)
_DATA_SETS = tuple(f"pyarrow._dataset_{name}" for name in ("orc", "parquet", "parquet_encryption"))

COMMANDS = {
    "up": Command(
        "Start a name server and a broker in one process; with --brokers, start several brokers.",
        (extras.SERVER,),
        "start:up",
        _up,
    ),
    "namesrv": Command("Start only a name server.", (extras.SERVER,), "start:namesrv", _namesrv),
    "broker": Command("Start only a broker.", (extras.SERVER,), "start:broker", _broker),
    "proxy": Command(
        "Start a gRPC proxy for clients of RocketMQ 5, in front of brokers behind name servers.",
        (extras.SERVER, extras.GRPC),
        "start:proxy",
        _proxy,
    ),
    "controller": Command(
        "Start a controller, which elects the masters of RocketMQ's brokers, with its state in etcd.",
        (extras.SERVER, extras.CONTROLLER),
        "start:controller",
        _controller,
    ),
    "console": Command(
        "Start the console: pages that show clusters and change them.",
        (extras.SERVER, extras.CONSOLE),
        "console:run",
        _console,
    ),
    "top": Command(
        "Show a cluster in a terminal: rates, lag, disk, problems, groups, topics, brokers.",
        (extras.CLI, extras.CONSOLE),
        "top:run",
        _top,
    ),
    "replica": Command(
        "Copy the log of a RocketMQ master into a directory, byte by byte, while the master goes on.",
        (extras.SERVER,),
        "replica:run",
        _replica,
    ),
    "completion": Command(
        "Print a shell completion script for this command.", (extras.CLI,), "completion:run", _completion
    ),
    "sql": Command(
        "Use SQL to query the topics of a store directory or of brokers; each topic is a view.",
        (extras.CLI, extras.SQL),
        "sql:run",
        _sql,
        hides=_PANDAS + _DATA_SETS,
        # All files are closed by then. An orderly end of the interpreter would make a command that looks up a key take
        # about a tenth longer.
        ends_at_once=True,
    ),
    "store": Command("Inspect or repair a store directory.", (), "store:run", is_binary=True),
    "replay": Command("Send stored messages to a topic again.", (extras.ARROW,), "replay:run", hides=_PANDAS),
    "mqadmin": Command("Administer a cluster with RocketMQ's mqadmin commands.", (), "mqadmin.run:run"),
    "lab": Command("Measure common claims about storage engines.", (), "lab:run"),
    "spark": Command("Archive and replay topics with Spark; pack an environment for executors.", (), "spark:run"),
}
"""All commands. A command without ``add_options`` needs the extra ``cli``, too."""


def _fail(message: str, code: ExitCode) -> int:
    print_error(message)
    return int(code)
