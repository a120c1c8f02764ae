"""Calls to etcd's JSON gateway over kept HTTP/1.1 connections (the protocol is h11's).

The members of the cluster are asked in turn: the one that answered last, then the others. A call that may not be
carried out twice goes to another member only if no connection to the one before could be made. Every call has a time
limit for each member. All answers must come from one cluster: its id is that of the first answer. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from ssl import SSLContext
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import h11

from rucola.common.json_library import orjson
from rucola.errors import ConfigError, EtcdError

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Longest answer that is read; a page of groups has 256 of them, of 64 brokers at most."""
_READ_BYTES = 64 * 1024
_KEPT = 8
"""Number of connections to keep to each member, and of calls that may run at once."""
_UNAUTHENTICATED = 16


class Endpoint(NamedTuple):
    """A member of the cluster."""

    url: str
    host: str
    port: int
    is_tls: bool


class EtcdUser(NamedTuple):
    """A user of etcd."""

    name: str
    password: str


class HttpGateway:
    """The calls to one cluster.

    Args:
        endpoints: its members.
        timeout_s: time limit of a call to one member.
        account: the user of all calls; None for an etcd without users.
        tls: for members with ``https``.

    Attributes:
        failures: number of calls that failed since the start.
    """

    def __init__(
        self,
        endpoints: tuple[Endpoint, ...],
        timeout_s: float,
        account: EtcdUser | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self._endpoints = deque(endpoints)
        self._timeout_s, self._account, self._tls = timeout_s, account, tls
        self._idle: dict[Endpoint, list[_Connection]] = {endpoint: [] for endpoint in endpoints}
        self._slots = asyncio.Semaphore(_KEPT)
        self._token, self._cluster = "", ""
        self.failures = 0

    async def call(self, path: str, body: Mapping[str, Any], is_idempotent: bool = False) -> dict[str, Any]:
        """See ``Gateway``."""
        async with self._slots:
            try:
                return await self._call_as_user(path, body, is_idempotent)
            except EtcdError:
                self.failures += 1
                raise

    async def close(self) -> None:
        """Closes the connections."""
        for kept in self._idle.values():
            while kept:
                kept.pop().close()

    async def _call_as_user(self, path: str, body: Mapping[str, Any], is_idempotent: bool) -> dict[str, Any]:
        account = self._account
        if account is None:
            return await self._call(path, body, is_idempotent)
        if not self._token:
            await self._authenticate(account)
        try:
            return await self._call(path, body, is_idempotent)
        except EtcdError as error:
            # The token has expired, which it does after some minutes without calls, or when the member restarts.
            if error.code != _UNAUTHENTICATED:
                raise
        await self._authenticate(account)
        return await self._call(path, body, is_idempotent)

    async def _authenticate(self, account: EtcdUser) -> None:
        self._token = ""
        asked = {"name": account.name, "password": account.password}
        answer = await self._call("/v3/auth/authenticate", asked, True)
        token = answer.get("token")
        if not isinstance(token, str) or not token:
            raise EtcdError(self._endpoints[0].url, "/v3/auth/authenticate", "no token in the answer")
        self._token = token

    async def _call(self, path: str, body: Mapping[str, Any], is_idempotent: bool) -> dict[str, Any]:
        content = orjson.dumps(body)
        last = len(self._endpoints) - 1
        for number in range(last + 1):
            endpoint = self._endpoints[0]
            try:
                return await self._ask(endpoint, path, content)
            except _NotSentError as error:
                failed = EtcdError(endpoint.url, path, str(error))
            except EtcdError as error:
                if error.code and error.code not in _OF_THE_MEMBER:
                    raise
                failed = error
                if not is_idempotent:
                    self._endpoints.rotate(-1)
                    raise
            self._endpoints.rotate(-1)
            if number == last:
                raise failed
        raise AssertionError("a cluster has members")

    async def _ask(self, endpoint: Endpoint, path: str, content: bytes) -> dict[str, Any]:
        """Asks one member.

        Raises:
            _NotSentError: it cannot have received the call.
            EtcdError: it did not answer, or refused the call.
        """
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connection(endpoint)
                status, answer = await connection.exchange(path, content, self._token)
        except TimeoutError:
            _drop(connection)
            reason = f"no answer within {self._timeout_s:g} s"
            if connection is None:
                raise _NotSentError(reason) from None
            raise EtcdError(endpoint.url, path, reason) from None
        except (OSError, h11.RemoteProtocolError, ValueError, _AnswerError) as error:
            _drop(connection)
            reason = str(error) or type(error).__name__
            if connection is None:
                raise _NotSentError(reason) from error
            raise EtcdError(endpoint.url, path, reason) from error
        except BaseException:  # cancelled: the connection is in the middle of an answer
            _drop(connection)
            raise
        if connection.is_reusable and len(self._idle[endpoint]) < _KEPT:
            self._idle[endpoint].append(connection)
        else:
            connection.close()
        found = _result(endpoint, path, status, answer)
        self._check_cluster(endpoint, path, found)
        return found

    def _check_cluster(self, endpoint: Endpoint, path: str, answer: Mapping[str, Any]) -> None:
        """Refuses answers of two clusters: each would have a leader."""
        header = (answer.get("result") or answer).get("header")
        cluster = str(header["cluster_id"]) if isinstance(header, dict) and "cluster_id" in header else ""
        self._cluster = self._cluster or cluster
        if cluster and cluster != self._cluster:
            reason = f"it is of the cluster {cluster}, but the first answer was of {self._cluster}; if etcd was set up "
            raise EtcdError(endpoint.url, path, f"{reason}anew, start the controller again")

    async def _connection(self, endpoint: Endpoint) -> _Connection:
        kept = self._idle[endpoint]
        while kept:
            connection = kept.pop()
            if not connection.is_ended:
                return connection
            connection.close()
        tls = self._tls if endpoint.is_tls else None
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls)
        return _Connection(endpoint, reader, writer)


class _NotSentError(Exception):
    """There was no connection."""


class _AnswerError(Exception):
    """The answer is not one of etcd's."""


_OF_THE_MEMBER = (4, 14)
"""Refusals for which another member may be asked: deadline exceeded and unavailable, as while there is no quorum."""


class _Connection:
    """One connection to a member; it carries one call at a time."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._endpoint, self._reader, self._writer = endpoint, reader, writer
        self._protocol = h11.Connection(h11.CLIENT)

    @property
    def is_ended(self) -> bool:
        """Whether the member has closed it."""
        return self._reader.at_eof() or self._reader.exception() is not None or self._writer.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Whether it can carry another call."""
        return self._protocol.our_state is h11.IDLE and self._protocol.their_state is h11.IDLE

    async def exchange(self, path: str, content: bytes, token: str) -> tuple[int, bytes]:
        """Sends a call; returns status and body of the answer."""
        headers = [
            ("Host", f"{self._endpoint.host}:{self._endpoint.port}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
        ]
        if token:
            headers.append(("Authorization", token))
        request = h11.Request(method="POST", target=path, headers=headers)
        parts = [self._protocol.send(each) for each in (request, h11.Data(content), h11.EndOfMessage())]
        self._writer.write(b"".join(part for part in parts if part))
        await self._writer.drain()
        status, body = 0, bytearray()
        while True:
            found = self._protocol.next_event()
            if found is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise _AnswerError("the connection was closed")
                self._protocol.receive_data(data)
            elif isinstance(found, h11.Response):
                status = found.status_code
            elif isinstance(found, h11.Data):
                body += found.data
                if len(body) > ANSWER_BYTES_MAX:
                    raise _AnswerError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
            elif isinstance(found, h11.EndOfMessage):
                if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
                    self._protocol.start_next_cycle()
                return status, bytes(body)

    def close(self) -> None:
        """Closes it at once."""
        self._writer.transport.abort()


def _drop(connection: _Connection | None) -> None:
    if connection is not None:
        connection.close()


def _result(endpoint: Endpoint, path: str, status: int, answer: bytes) -> dict[str, Any]:
    """The JSON object in an answer; raises ``EtcdError`` for a refusal."""
    try:
        found = orjson.loads(answer)
    except ValueError:
        found = None
    if status == 200 and isinstance(found, dict) and "error" not in found:
        return found
    if not isinstance(found, dict):
        text = answer[:200].decode("utf-8", "replace")
        raise EtcdError(endpoint.url, path, f"HTTP status {status}, and not JSON: {text!r}")
    # A stream, such as that of a renewal, has its error one level deeper.
    refusal = found["error"] if isinstance(found.get("error"), dict) else found
    code = refusal.get("code", refusal.get("grpc_code", 0))
    reason = str(refusal.get("message") or refusal.get("error") or f"HTTP status {status}")
    raise EtcdError(endpoint.url, path, reason[:200], code if isinstance(code, int) else 0)


def endpoints_of(text: str) -> tuple[Endpoint, ...]:
    """The members that an option names: URLs, separated by commas.

    Raises:
        ConfigError: a part is no URL of an etcd.
    """
    allowed = "URLs of the members of etcd, http://host:port or https://host:port, separated by commas"
    found = []
    for part in text.split(","):
        url = part.strip()
        try:
            split = urlsplit(url)
            host, port = split.hostname, split.port
        except ValueError:
            host, port = None, None
        if not host or split.scheme not in ("http", "https") or split.path not in ("", "/") or split.query:
            raise ConfigError("etcdEndpoints", text, allowed)
        if split.username is not None:
            raise ConfigError("etcdEndpoints", f"{split.scheme}://...@{host}", "a URL without user; see etcdUser")
        found.append(Endpoint(f"{split.scheme}://{host}:{port or 2379}", host, port or 2379, split.scheme == "https"))
    return tuple(dict.fromkeys(found))
