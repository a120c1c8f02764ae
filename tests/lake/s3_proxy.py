"""A proxy before an S3 server that counts requests, fails chosen ones, and can hold them while a process is killed.

Requests and answers pass unchanged, also the header ``Host``, which is signed: clients use the proxy's ``endpoint``
with the server's keys. The proxy is a process of its own (``s3_proxy_process``), since some calls of deltalake keep the
interpreter's lock while they wait for an answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from tests.lake.s3_server import S3Server

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 30.0
_PAUSE_S = 0.002


class Fault(Enum):
    """What happens to a request."""

    SLOW_DOWN = "503 instead of forwarding it"
    SLOW_DOWN_DONE = "503 after the server has done it"
    CUT = "the connection ends instead of forwarding it"
    LOST_ANSWER = "the connection ends after the server has done it"
    DELAY = "it is forwarded later"
    HOLD = "it waits, and each later one, until it is released"


class Kind(Enum):
    """Kind of a request. A conditional put has ``If-None-Match`` or ``If-Match``; ``MULTIPART`` is each request of
    an upload in parts; ``BUCKET`` creates or looks for a bucket.
    """

    LIST = "list"
    GET = "get"
    HEAD = "head"
    PUT = "put"
    CONDITIONAL_PUT = "conditional put"
    COPY = "copy"
    MULTIPART = "multipart"
    DELETE = "delete"
    BUCKET = "bucket"


@dataclass(frozen=True)
class Request:
    """A request that has arrived; ``status`` is what the client was answered, 0 if nothing yet."""

    kind: Kind
    method: str
    target: str
    status: int
    fault: Fault | None

    @property
    def key(self) -> str:
        """Bucket and key."""
        return unquote(urlsplit(self.target).path).lstrip("/")

    def __str__(self) -> str:
        return f"{self.kind.value} {self.key}: {self.status}{f', {self.fault.name}' if self.fault else ''}"


class FaultyS3:
    """The proxy; use it as ``with``. It has what clients need of a server: ``endpoint``, ``access_key``, ``secret``,
    ``region``. It ends with the test's process.
    """

    def __init__(self, server: S3Server) -> None:
        self.access_key, self.secret, self.region = server.access_key, server.secret, server.region
        self._port = server.endpoint.rpartition(":")[2]
        self._one_by_one = threading.Lock()

    def __enter__(self) -> Self:
        # Without packages, Python starts in a third of the time.
        arguments = [sys.executable, "-S", "-E", "-m", "tests.lake.s3_proxy_process", self._port]
        self._process = subprocess.Popen(
            arguments, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.endpoint = f"http://127.0.0.1:{self._ask('port')}"
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate()

    def fail(
        self,
        number: int,
        how: Fault,
        kind: Kind | None = None,
        *,
        times: float = 1,
        key: str = "",
        seconds: float = 0.1,
    ) -> None:
        """Plans a fault for the request that is ``number``-th from now; 1 is the next one.

        Args:
            kind: requests of other kinds are not counted.
            times: for so many requests; ``math.inf`` for all that follow.
            key: only requests whose path and query contain this are counted.
            seconds: of ``Fault.DELAY``.
        """
        self._ask("plan", number, how.name, kind and kind.name, times, key, seconds)

    def heal(self) -> None:
        """Forgets faults that are planned."""
        self._ask("heal")

    @property
    def requests(self) -> list[Request]:
        """Requests in the order in which they came, since the last ``forget``."""
        return [
            Request(Kind[kind], method, target, status, Fault[fault] if fault else None)
            for kind, method, target, status, fault in self._ask("seen")
        ]

    def counts(self) -> Counter[Kind]:
        return Counter(one.kind for one in self.requests)

    def forget(self) -> None:
        """Requests are listed anew from here on."""
        self._ask("forget")

    def wait_held(self, timeout_s: float = _TIMEOUT_S) -> Request:
        """Waits until a request is held, and returns the first one.

        Raises:
            TimeoutError: none came.
        """
        until = time.monotonic() + timeout_s
        while not self._ask("held"):
            if time.monotonic() > until:
                raise TimeoutError("no request was held; came: " + "; ".join(map(str, self.requests)))
            time.sleep(_PAUSE_S)
        return next(one for one in self.requests if one.fault is Fault.HOLD and not one.status)

    def release(self, *, forward: bool = True) -> None:
        """Lets go what is held: forwards it, or ends its connection, as if it had never arrived. Later requests pass
        again.
        """
        self._ask("release", forward)

    def reset(self) -> None:
        """Ends what is held, and forgets faults and requests."""
        self.release(forward=False)
        self.heal()
        self.forget()

    def _ask(self, command: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_by_one:
            self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
            return json.loads(self._process.stdout.readline())
