"""A child process that answers questions, a JSON object a line. It can be killed at any time: it changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from rucola.common.json_library import orjson

LINE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Longest answer."""
_KEPT: Final = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TZ", "VIRTUAL_ENV")
"""Variables of the environment that a child gets; others may hold secrets."""


class ChildError(Exception):
    """The child refused the question, took too long, or ended; ``args[0]`` says why."""


class Child:
    """One process. It starts with the first question, and again with the next one if it has ended. Event loop only.

    Args:
        module: the module that it runs.
        environment: further variables of its environment.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._module = module
        self._environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def ask(
        self,
        question: Mapping[str, Any],
        timeout_s: float,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Any:
        """Asks a question; questions wait for each other. If the caller is cancelled, the process is killed.

        Args:
            timeout_s: time for the answer, in seconds, without the time for others' questions.

        Raises:
            ChildError: there is no answer.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._answer(question, progress)
            except TimeoutError:
                await self._kill()
                raise ChildError(f"it took longer than {timeout_s:g} s, and was ended") from None
            except ChildError:
                raise
            except (OSError, ValueError) as error:  # ValueError: a line that is too long, or no JSON
                await self._kill()
                raise ChildError(f"the process failed: {error}") from error
            except BaseException:
                await self._kill()
                raise

    async def close(self) -> None:
        """Ends the process."""
        await self._kill()

    async def _answer(self, question: Mapping[str, Any], progress: Callable[[int, int], None]) -> Any:
        process = await self._running()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(ConnectionError):  # it has ended; the next line says so
            process.stdin.write(orjson.dumps(dict(question)) + b"\n")
            await process.stdin.drain()
        while True:
            line = await process.stdout.readline()
            if not line.endswith(b"\n"):
                await self._kill()
                raise ChildError(f"the process ended ({process.returncode})")
            message = orjson.loads(line)
            if "result" in message:
                return message["result"]
            if "error" in message:
                raise ChildError(str(message["error"]))
            progress(*message["progress"])

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", self._module,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env=self._environment, start_new_session=True, limit=LINE_BYTES_MAX,
            )  # fmt: skip
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())
