"""A server of ``rucola up --brokers`` in a process of its own, which is started again whenever it ends.

The process runs a server command with ``--under-up``. It reads its configuration from a pipe, writes its address to
standard output, and stops when its standard input ends. Standard input also ends when the parent process is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rucola.cli.exit_codes import ProcessStartError
from rucola.cli.serve import LogOptions
from rucola.common.java import format_properties
from rucola.common.json_library import orjson
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
_STOP_S = 30.0
_PAUSE_S = 1.0
_PAUSE_MAX_S = 60.0
_FULL_S = 0.01
_SOUND_S = 60.0
"""Seconds for which a process must have served, so that its end counts as the first one."""


class ServerProcess(ABC):
    """One server, whose process is started again whenever it ends. Call ``start`` once, then ``stop`` once.

    Args:
        name: its name in messages; no two servers of a ``rucola up`` have the same one.
        values: entries of its configuration file.
        log: log options of the process, which writes to this process's standard error.

    Attributes:
        address: its address, which stays the same.
        http: address of its metrics; each process has another one.
        ended_with: exit status of the process that ended last; None while the server serves requests.
    """

    _arguments: ClassVar[Sequence[str]]
    """The command, and the options that every process of this kind has."""

    def __init__(self, name: str, values: Mapping[str, str], log: LogOptions) -> None:
        self.name = name
        self.address = self.http = ""
        self.ended_with: int | None = None
        self._values = dict(values)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the process; returns when the server serves requests.

        Raises:
            ProcessStartError: the server ended before it served requests.
        """
        await self._begin()
        self._watch = asyncio.create_task(self._keep_alive())

    async def stop(self) -> None:
        """Stops the server; kills it if it does not stop in time."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            event(logger, logging.ERROR, "server process did not stop, killing it", name=self.name, pid=process.pid)
            process.kill()
            await process.wait()

    async def _begin(self) -> None:
        """See ``start``."""
        line = await self._first_line(format_properties(self._values).encode())
        if not line:
            assert self._process is not None
            status = await self._process.wait()
            raise ProcessStartError(status if status > 0 else 1)
        self._take(orjson.loads(line))

    @abstractmethod
    def _take(self, facts: Mapping[str, Any]) -> None:
        """Takes the addresses that a process has, from the line that it writes when it serves. The next process must
        get the same port.
        """

    async def _first_line(self, config: bytes) -> bytes:
        """Starts the process; returns the line that it writes when it serves, empty if it ends before."""
        # The configuration holds secrets. A pipe shows them to nobody else, and leaves nothing on the disk.
        reading, writing = os.pipe()
        try:
            command = [sys.executable, "-P", "-m", "rucola", *self._arguments, "-c", f"/dev/fd/{reading}"]
            command += ["--json", "--under-up", "--log-level", self._log.level, "--log-format", self._log.form]
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, pass_fds=(reading,)
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        await _write_all(writing, config)
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def _keep_alive(self) -> None:
        """Starts the process again whenever it ends: after 1 s, then after pauses that double up to ``_PAUSE_MAX_S``,
        until a process has served for ``_SOUND_S``.
        """
        loop, pause_s = asyncio.get_running_loop(), _PAUSE_S
        while True:
            assert self._process is not None
            began_s = loop.time()
            self.ended_with = await self._process.wait()
            if loop.time() - began_s >= _SOUND_S:
                pause_s = _PAUSE_S
            while self.ended_with is not None:
                event(
                    logger,
                    logging.CRITICAL,
                    "server process ended and is started again, the others continue",
                    name=self.name,
                    address=self.address,
                    pid=self._process.pid,
                    exit=self.ended_with,
                    pause_s=pause_s,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                try:
                    await self._begin()
                except ProcessStartError as error:
                    self.ended_with = error.exit_status
                except OSError as error:  # no memory for a process, or no space for its file
                    event(logger, logging.ERROR, "server process cannot be started", name=self.name, error=error)
                else:
                    self.ended_with = None
            event(logger, logging.INFO, "server process serves again", name=self.name, pid=self._process.pid)


async def _write_all(descriptor: int, content: bytes) -> None:
    """Writes to a pipe, and closes it; a process that ends before it has read is no error here."""
    os.set_blocking(descriptor, False)
    rest = memoryview(content)
    try:
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # longer than what the pipe holds
                await asyncio.sleep(_FULL_S)
    except BrokenPipeError:
        pass
    finally:
        os.close(descriptor)
