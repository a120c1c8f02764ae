"""Calls to members of etcd over HTTP: kept connections, members that fail, users, and answers of something else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from tests.brokers import run_virtual

from rucola.controller.http_gateway import EtcdUser, HttpGateway, endpoints_of
from rucola.errors import ConfigError, EtcdError

Answer = Callable[[str, dict[str, Any], dict[str, str]], Any]


class Member:
    """A member of etcd as a test wants it.

    Attributes:
        answer: returns the answer to path, body and headers: JSON, bytes as they are, None for silence, or an exception
            to close the connection.
        calls: the paths that were called.
        connections: number of connections so far.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[str] = []
        self.connections = 0
        self.url = ""
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> Member:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.1)  # the other side learns of it

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                body = orjson.loads(await reader.readexactly(int(headers["content-length"])))
                path = head[0].split()[1]
                self.calls.append(path)
                found = self.answer(path, body, headers)
                if found is None:
                    await asyncio.Event().wait()
                if isinstance(found, Exception):
                    writer.transport.abort()
                    return
                writer.write(found if isinstance(found, bytes) else answered(found))
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass


def answered(body: Any, status: str = "200 OK") -> bytes:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content)


def header(cluster: int = 1) -> dict[str, Any]:
    return {"header": {"cluster_id": str(cluster), "revision": "7"}}


def play(work: Callable[..., Awaitable[None]], *answers: Answer, user: EtcdUser | None = None) -> None:
    async def scene() -> None:
        members = [await Member(answer).start() for answer in answers]
        gateway = HttpGateway(endpoints_of(",".join(member.url for member in members)), 1.0, user)
        try:
            await work(gateway, *members)
        finally:
            await gateway.close()
            for member in members:
                await member.stop()

    run_virtual(scene())


def echo(path: str, body: dict[str, Any], _headers: dict[str, str]) -> Any:
    return {**header(), "path": path, "body": body}


def test_calls_share_kept_connections() -> None:
    async def work(gateway: HttpGateway, member: Member) -> None:
        for number in range(3):
            found = await gateway.call("/v3/kv/range", {"key": str(number)})
            assert (found["path"], found["body"]) == ("/v3/kv/range", {"key": str(number)})
        assert member.connections == 1
        await asyncio.gather(*[gateway.call("/v3/kv/range", {"key": "x"}) for _ in range(20)])
        assert 1 < member.connections <= 8

    play(work, echo)


def test_a_connection_that_ended_while_idle_is_replaced() -> None:
    async def work(gateway: HttpGateway, member: Member) -> None:
        await gateway.call("/v3/kv/txn", {})
        for writer in member._writers:
            writer.close()
        await asyncio.sleep(0.1)
        await gateway.call("/v3/kv/txn", {})
        assert member.connections == 2 and gateway.failures == 0

    play(work, echo)


def test_another_member_is_asked_only_if_the_call_may_be_made_twice() -> None:
    async def work(gateway: HttpGateway, silent: Member, good: Member) -> None:
        assert (await gateway.call("/v3/kv/range", {}, True))["path"] == "/v3/kv/range"
        assert (len(silent.calls), len(good.calls)) == (1, 1)
        assert (await gateway.call("/v3/kv/txn", {}))["path"] == "/v3/kv/txn", "the member that answered last"
        await good.stop()
        with pytest.raises(EtcdError, match="no answer within 1 s") as caught:
            await gateway.call("/v3/kv/txn", {})
        assert (caught.value.code, caught.value.endpoint) == (0, silent.url)
        assert silent.calls == ["/v3/kv/range", "/v3/kv/txn"], "nobody listened at the other one"
        assert gateway.failures == 1

    play(work, lambda *_: None, echo)


def test_a_write_without_answer_goes_nowhere_else() -> None:
    async def work(gateway: HttpGateway, cutting: Member, good: Member) -> None:
        with pytest.raises(EtcdError) as caught:
            await gateway.call("/v3/kv/txn", {})
        assert caught.value.code == 0 and good.calls == []
        assert (await gateway.call("/v3/kv/txn", {}))["path"] == "/v3/kv/txn", "the next write asks the other one"

    play(work, lambda *_: ConnectionError(), echo)


def test_a_member_without_quorum_is_passed_over_and_a_refusal_is_final() -> None:
    refusal = {"error": "etcdserver: no leader", "message": "etcdserver: no leader", "code": 14}

    async def work(gateway: HttpGateway, alone: Member, good: Member) -> None:
        assert (await gateway.call("/v3/kv/range", {}, True))["path"] == "/v3/kv/range"
        good.answer = lambda *_: answered({"error": "no", "message": "permission denied", "code": 7}, "403 Forbidden")
        with pytest.raises(EtcdError, match=r"refused /v3/kv/range \(code 7\): permission denied"):
            await gateway.call("/v3/kv/range", {}, True)
        assert len(alone.calls) == 1

    play(work, lambda *_: answered(refusal, "503 Service Unavailable"), echo)


def test_a_user_is_authenticated_and_again_when_its_token_has_expired() -> None:
    tokens = iter(["one", "two"])

    def answer(path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        if path == "/v3/auth/authenticate":
            assert body == {"name": "rucola", "password": "secret"}
            return {**header(), "token": next(tokens)}
        if headers.get("authorization") != answer_token[0]:
            return answered({"error": "x", "message": "invalid auth token", "code": 16}, "401 Unauthorized")
        return header()

    answer_token = ["one"]

    async def work(gateway: HttpGateway, member: Member) -> None:
        await gateway.call("/v3/kv/txn", {})
        answer_token[0] = "two"
        await gateway.call("/v3/kv/txn", {})
        assert [path for path in member.calls if "auth" in path] == ["/v3/auth/authenticate"] * 2
        answer_token[0] = "three"
        member.answer = lambda path, *rest: {**header()} if "auth" in path else answer(path, *rest)
        with pytest.raises(EtcdError, match="no token in the answer"):
            await gateway.call("/v3/kv/txn", {})

    play(work, answer, user=EtcdUser("rucola", "secret"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html", "not JSON: '<html'"),
        (answered([1]), "not JSON"),
        (answered(b"x" * 100, "502 Bad Gateway"), "HTTP status 502, and not JSON"),
        (answered({"error": {"message": "lease gone", "grpc_code": 5}}), r"code 5\): lease gone"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "did not answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "no answer within"),
    ],
)
def test_answers_of_something_else_are_errors(answer: bytes, expected: str) -> None:
    async def work(gateway: HttpGateway, _member: Member) -> None:
        with pytest.raises(EtcdError, match=expected):
            await gateway.call("/v3/kv/txn", {})

    play(work, lambda *_: answer)


def test_a_member_of_another_cluster_is_refused() -> None:
    async def work(gateway: HttpGateway, first: Member, second: Member) -> None:
        await gateway.call("/v3/kv/range", {}, True)
        await first.stop()
        with pytest.raises(EtcdError, match="cluster 2, but the first answer was of 1"):
            await gateway.call("/v3/kv/range", {}, True)

    play(work, lambda *_: header(1), lambda *_: {"result": header(2)})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:2379",
        "ftp://a:1",
        "http://",
        "http://a:x",
        "http://a:1/v3",
        "http://a:1,,http://b:1",
        "http://a:99999",
    ],
)
def test_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="etcdEndpoints"):
        endpoints_of(text)


def test_endpoints() -> None:
    found = endpoints_of("http://a, https://[::1]:1/,http://a:2379")
    assert [(each.host, each.port, each.is_tls) for each in found] == [("a", 2379, False), ("::1", 1, True)]
    with pytest.raises(ConfigError) as caught:
        endpoints_of("http://me:secret@a:1")
    assert "secret" not in str(caught.value)
