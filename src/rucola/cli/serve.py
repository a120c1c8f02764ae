"""Runs servers in this process: event loop, signals, logs, temporary store."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TextIO

from rucola.errors import AddressInUseError
from rucola.runtime.collector import freeze_survivors
from rucola.runtime.logs import event, set_up
from rucola.runtime.memory import trim_heap
from rucola.runtime.notify import ServiceManager
from rucola.runtime.supervision import Supervisor

logger = logging.getLogger(__name__)
Stop = Callable[[], Coroutine[Any, Any, None]]
_HELD_RECORDS_MAX = 10_000
SWITCH_S = 0.0005
"""Seconds after which a thread must release the GIL if another thread waits for it; Python's default is ten times as
long. While a thread computes, for example parses JSON, the event loop waits this long for the GIL after each system
call. Creating a queue takes dozens of system calls.
"""
_TRIM_S = 2.0
"""Seconds between two trims of the heap. In this time, requests seldom free more than 100 MiB. A trim returns 100 MiB
to the operating system in 6 ms.
"""


class LogOptions(NamedTuple):
    """Format and level of the log on standard error."""

    level: str = "INFO"
    form: str = "text"
    """One of ``LOG_FORMATS``."""

    @classmethod
    def of(cls, options: Namespace) -> LogOptions:
        """The log options of a command line."""
        return cls(options.log_level, options.log_format)


def run_servers(
    start: Callable[[], Coroutine[Any, Any, Stop]],
    log: LogOptions,
    stop_at_end_of_input: bool = False,
    work: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Starts servers, waits for SIGINT, SIGTERM or, without nohup, SIGHUP (a closed terminal), and stops the servers.
    SIGQUIT writes the stacks of all threads to standard error, SIGUSR1 and SIGUSR2 do nothing.

    Args:
        start: starts everything and returns the function that stops it; after an error nothing is left running.
        log: options of the log on standard error. Log records of the start-up are held back until it succeeds, so that
            after a failure the error of the command is the only line.
        stop_at_end_of_input: also stop when standard input ends, as it does when the parent process ends.
        work: what the servers do; when it has ended, they are stopped, and its error is raised. It is cancelled when
            they are stopped before. None for servers that work for their clients.
    """

    async def serve() -> None:
        manager = ServiceManager(os.environ)
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop_at(name: str) -> None:
            event(logger, logging.INFO, "stopping", signal=name)
            stopping.set()

        signals = ["SIGINT", "SIGTERM"]
        if getattr(signal, "SIGHUP", None) and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signals.append("SIGHUP")  # under nohup, SIGHUP is ignored already, and stays so
        for name in signals:
            # Ctrl-C at a terminal signals all processes of `rucola up`; the brokers stop only when `up` tells them to.
            act = _ignore if name == "SIGINT" and stop_at_end_of_input else stop_at
            try:
                loop.add_signal_handler(getattr(signal, name), act, name)
            except (NotImplementedError, AttributeError):  # Windows: KeyboardInterrupt ends the runner
                break
        if stop_at_end_of_input:
            loop.add_reader(sys.stdin.fileno(), _input_ended, loop, stopping)
        stop = await start()
        release()
        manager.ready()
        # Objects made at start-up live until the process ends; each full garbage collection would scan them for 7 ms.
        # No collection runs before the freeze: it would free only two dozen objects, and delay the first request by
        # 7 ms.
        freeze_survivors()
        sys.setswitchinterval(SWITCH_S)
        trims = Supervisor().every("trim heap", lambda: _TRIM_S, _trim_heap, loop)
        try:
            await _until(stopping, work)
        finally:
            manager.stopping()
            await trims.stop()
            await stop()
        event(logger, logging.INFO, "stopped")

    with (
        _held_back_logs(log) as release,
        _other_signals(),
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        runner.run(serve())


async def _until(stopping: asyncio.Event, work: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    """Returns when the servers are to stop; raises the error of ``work``."""
    if work is None:
        await stopping.wait()
        return
    working, waiting = asyncio.ensure_future(work()), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        working.cancel()
        await asyncio.wait((working, waiting))
    if not working.cancelled():
        working.result()


async def _trim_heap() -> None:
    await asyncio.to_thread(trim_heap)


@contextmanager
def _other_signals() -> Iterator[None]:
    """In the block, SIGUSR1 and SIGUSR2 do nothing, and SIGQUIT writes the stacks. Operators of RocketMQ's brokers send
    SIGQUIT for them, also when nothing else is answered; a terminal sends it for Ctrl-\\.

    A thread waits for the signal, without the event loop, and writes the stacks while it holds the GIL, so that all of
    them are complete. A handler of ``faulthandler.register`` would read the stack of a thread that goes on meanwhile,
    and end the process.
    """
    for name in ("SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if not hasattr(signal, "pthread_sigmask") or sys.__stderr__ is None:
        yield
        return
    # Threads that start later do not take the signal either. It stays blocked: one that is sent at the very end would
    # otherwise end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGQUIT,))
    ending = threading.Event()
    thread = threading.Thread(target=_write_stacks, args=(sys.__stderr__, ending), name="rucola-stacks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        signal.pthread_kill(thread.ident or 0, signal.SIGQUIT)
        thread.join()


def _write_stacks(output: TextIO, ending: threading.Event) -> None:
    while True:
        signal.sigwait((signal.SIGQUIT,))
        if ending.is_set():
            return
        with suppress(OSError, ValueError):  # the output was closed
            faulthandler.dump_traceback(output, all_threads=True)


def _ignore(_name: str) -> None:
    """Handler for signals that this process ignores."""


def _input_ended(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    loop.remove_reader(sys.stdin.fileno())
    stopping.set()


@contextmanager
def temporary_store() -> Iterator[str]:
    """Yields a new directory; the end of the ``with`` block removes it."""
    # Imported late: with its compression libraries, shutil would take a fiftieth of the start-up time.
    import shutil
    import tempfile

    path = tempfile.mkdtemp(prefix="rucola-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class _Holder(logging.Handler):
    """Keeps log records up to a limit; drops later ones. Imports less than the handlers of ``logging.handlers``."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.records) < _HELD_RECORDS_MAX:
            self.records.append(record)


@contextmanager
def port_from(option: str) -> Iterator[None]:
    """Makes an ``AddressInUseError`` name ``option`` as the option that sets the port, instead of ``listenPort``."""
    try:
        yield
    except AddressInUseError as error:
        if error.option != "listenPort":
            raise
        raise AddressInUseError(error.address, option) from error.__cause__


@contextmanager
def _held_back_logs(log: LogOptions) -> Iterator[Callable[[], None]]:
    output = set_up(log.level, log_format=log.form)
    logger = logging.getLogger("rucola")
    logger.removeHandler(output)
    holder = _Holder()
    logger.addHandler(holder)

    def release() -> None:
        logger.removeHandler(holder)
        for record in holder.records:
            output.handle(record)
        logger.addHandler(output)

    try:
        yield release
    finally:
        logger.removeHandler(holder)
        logger.removeHandler(output)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop if installed; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
