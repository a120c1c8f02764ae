"""Running servers in this process: event loop, signals, logs, a temporary store."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rucola.runtime.logs import event, set_up
from rucola.runtime.notify import ServiceManager

_log = logging.getLogger(__name__)
Stop = Callable[[], Coroutine[Any, Any, None]]
_HELD_RECORDS_MAX = 10_000


class LogOptions(NamedTuple):
    """What the log on standard error looks like."""

    level: str = "INFO"
    form: str = "text"
    """One of ``LOG_FORMATS``."""

    @classmethod
    def of(cls, options: Namespace) -> LogOptions:
        """Those of a command line."""
        return cls(options.log_level, options.log_format)


def run_servers(
    start: Callable[[], Coroutine[Any, Any, Stop]], log: LogOptions, stop_at_end_of_input: bool = False
) -> None:
    """Start servers, wait for SIGINT, SIGTERM or SIGHUP (a closed terminal), stop them.

    Args:
        start: starts everything, or raises and leaves nothing running; gives the function that stops it.
        log: the log on standard error. Records of the start are held back until it has succeeded: when it fails, the
            error that ends the command is the one line to read.
        stop_at_end_of_input: also stop when standard input ends, which it does when the process at its other end does.
    """

    async def serve() -> None:
        manager = ServiceManager(os.environ)
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop_at(name: str) -> None:
            event(_log, logging.INFO, "stopping", signal=name)
            stopping.set()

        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            # Control-C at a terminal reaches all processes of an `up`; its brokers stop when it says so.
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
        # What the start made stays for good: a full collection would walk over it again and again, 7 ms each. No
        # collection before: it takes as long, finds two dozen objects, and the first request waits for it.
        gc.freeze()
        gc.enable()
        try:
            await stopping.wait()
        finally:
            manager.stopping()
            await stop()
        event(_log, logging.INFO, "stopped")

    with _held_back_logs(log) as release, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve())


def _ignore(_name: str) -> None:
    """What a signal does that is not for this process."""


def _input_ended(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    loop.remove_reader(sys.stdin.fileno())
    stopping.set()


@contextmanager
def temporary_store() -> Iterator[str]:
    """A directory that is gone afterwards."""
    # Imported by who wants one: with the compression libraries they bring they cost a fiftieth of a start.
    import shutil
    import tempfile

    path = tempfile.mkdtemp(prefix="rucola-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class _Holder(logging.Handler):
    """Keeps records, the first ones when they are too many. ``logging.handlers`` has more of the kind, and is large."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.records) < _HELD_RECORDS_MAX:
            self.records.append(record)


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
    """uvloop's loop where there is one; None stands for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
