"""The proxy's faults, each seen to happen: what the client gets, and what the server then has."""

from __future__ import annotations

import http.client
import math
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tests.lake.s3_client import S3Client
from tests.lake.s3_proxy import Fault, FaultyS3, Kind
from tests.lake.s3_server import S3Server


@pytest.fixture
def proxy(each_faulty_s3: FaultyS3) -> FaultyS3:
    return each_faulty_s3


@pytest.fixture
def bucket(each_s3_server: S3Server) -> str:
    return each_s3_server.bucket()


@pytest.fixture
def client(proxy: FaultyS3) -> Iterator[S3Client]:
    with S3Client(proxy.endpoint, proxy.access_key, proxy.secret) as client:
        yield client


def test_requests_pass_unchanged_and_are_listed(proxy: FaultyS3, client: S3Client, bucket: str) -> None:
    body = bytes(range(256)) * 4096
    assert client.put(f"/{bucket}/a b/ü", body).status == 200
    assert client.get(f"/{bucket}/a b/ü").body == body
    assert client.request("HEAD", f"/{bucket}/a b/ü").headers["content-length"] == str(len(body))
    assert client.get(f"/{bucket}/none").status == 404
    assert client.keys(bucket) == ["a b/ü"]
    assert [str(one) for one in proxy.requests] == [
        f"put {bucket}/a b/ü: 200",
        f"get {bucket}/a b/ü: 200",
        f"head {bucket}/a b/ü: 200",
        f"get {bucket}/none: 404",
        f"list {bucket}: 200",
    ]
    assert proxy.counts() == {Kind.PUT: 1, Kind.GET: 2, Kind.HEAD: 1, Kind.LIST: 1}
    proxy.forget()
    assert proxy.requests == []


def test_kinds(proxy: FaultyS3, client: S3Client, bucket: str) -> None:
    key = f"/{bucket}/key"
    etag = client.put(key, b"1", if_none_match="*").headers["etag"]
    client.put(key, b"2", if_match=etag)
    client.put(f"/{bucket}/copy", x_amz_copy_source=key)
    started = client.request("POST", f"/{bucket}/parts", {"uploads": ""})
    upload = started.body.decode().partition("<UploadId>")[2].partition("</UploadId>")[0]
    client.request("PUT", f"/{bucket}/parts", {"partNumber": "1", "uploadId": upload}, b"part")
    client.request("DELETE", f"/{bucket}/parts", {"uploadId": upload})
    client.request("DELETE", key)
    client.request("HEAD", f"/{bucket}")
    assert [(one.kind.value, one.status) for one in proxy.requests] == [
        ("conditional put", 200),
        ("conditional put", 200),
        ("copy", 200),
        ("multipart", 200),
        ("multipart", 200),
        ("multipart", 204),
        ("delete", 204),
        ("bucket", 200),
    ]


@pytest.mark.parametrize(("how", "done"), [(Fault.SLOW_DOWN, False), (Fault.SLOW_DOWN_DONE, True)])
def test_throttled(proxy: FaultyS3, client: S3Client, bucket: str, how: Fault, done: bool) -> None:
    proxy.fail(2, how, Kind.CONDITIONAL_PUT)
    statuses = [client.put(f"/{bucket}/{key}", b"x", if_none_match="*").status for key in "abb"]
    assert statuses == [200, 503, 412 if done else 200]
    proxy.fail(1, Fault.SLOW_DOWN)
    assert client.get(f"/{bucket}/a").code == "SlowDown"
    assert client.get(f"/{bucket}/a").body == b"x"
    assert [one.fault for one in proxy.requests] == [None, how, None, Fault.SLOW_DOWN, None]


@pytest.mark.parametrize(("how", "done"), [(Fault.CUT, False), (Fault.LOST_ANSWER, True)])
def test_without_an_answer(proxy: FaultyS3, client: S3Client, bucket: str, how: Fault, done: bool) -> None:
    proxy.fail(1, how, key="/b")
    assert client.put(f"/{bucket}/a", b"x").status == 200
    with pytest.raises(http.client.RemoteDisconnected):
        client.put(f"/{bucket}/b", b"x")
    assert proxy.requests[-1].status == 0
    assert client.get(f"/{bucket}/b").status == (200 if done else 404)


def test_several_times_until_healed(proxy: FaultyS3, client: S3Client, bucket: str) -> None:
    proxy.fail(1, Fault.SLOW_DOWN, Kind.GET, times=2)
    assert [client.get(f"/{bucket}/a").status for _ in range(3)] == [503, 503, 404]
    proxy.fail(2, Fault.SLOW_DOWN, Kind.GET, times=math.inf)
    assert [client.get(f"/{bucket}/a").status for _ in range(4)] == [404, 503, 503, 503]
    assert client.put(f"/{bucket}/a", b"x").status == 200
    proxy.heal()
    assert client.get(f"/{bucket}/a").status == 200


def test_delayed(proxy: FaultyS3, client: S3Client, bucket: str) -> None:
    proxy.fail(1, Fault.DELAY, seconds=0.2)
    begun = time.monotonic()
    assert client.put(f"/{bucket}/a", b"x").status == 200
    assert time.monotonic() - begun >= 0.2


@pytest.mark.parametrize("forward", [True, False])
def test_held(proxy: FaultyS3, client: S3Client, each_s3_server: S3Server, bucket: str, forward: bool) -> None:
    """From the second put on, all requests wait, also those of other connections."""
    proxy.fail(2, Fault.HOLD, Kind.PUT)
    assert client.put(f"/{bucket}/1", b"x").status == 200
    ended: list[str] = []

    def ask(method: str, key: str) -> None:
        with S3Client(proxy.endpoint, proxy.access_key, proxy.secret) as other:
            try:
                ended.append(f"{method} {key} {other.request(method, f'/{bucket}/{key}', body=b'').status}")
            except OSError:
                ended.append(f"{method} {key} -")

    threads = [threading.Thread(target=ask, args=one) for one in (("PUT", "2"), ("GET", "1"))]
    threads[0].start()
    assert proxy.wait_held().key == f"{bucket}/2"
    threads[1].start()
    until = time.monotonic() + 10
    while len(proxy.requests) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    with each_s3_server.client() as beside:
        assert beside.keys(bucket) == ["1"]
    assert ended == []
    proxy.release(forward=forward)
    for thread in threads:
        thread.join()
    assert sorted(ended) == (["GET 1 200", "PUT 2 200"] if forward else ["GET 1 -", "PUT 2 -"])
    assert client.get(f"/{bucket}/2").status == (200 if forward else 404)
    assert client.put(f"/{bucket}/3").status == 200


def test_a_reset_ends_all(proxy: FaultyS3, client: S3Client, bucket: str) -> None:
    def put() -> None:
        with S3Client(proxy.endpoint, proxy.access_key, proxy.secret) as other, pytest.raises(OSError):
            other.put(f"/{bucket}/1", b"x")

    proxy.fail(1, Fault.HOLD, Kind.PUT, times=math.inf)
    thread = threading.Thread(target=put)
    thread.start()
    proxy.wait_held()
    proxy.reset()
    thread.join()
    assert proxy.requests == []
    assert client.put(f"/{bucket}/2").status == 200
    assert client.keys(bucket) == ["2"]


def test_a_client_may_ask_before_it_sends_a_body(proxy: FaultyS3) -> None:
    with connected(proxy.endpoint) as connection:
        connection.sendall(b"PUT /b/k HTTP/1.1\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        assert proxy.requests == []
        connection.sendall(b"x")
        assert connection.recv(100).startswith(b"HTTP/1.1 4")
    assert proxy.counts() == {Kind.PUT: 1}


@pytest.mark.parametrize("status", [503, 403])
def test_no_answer_to_a_head_has_a_body(proxy: FaultyS3, each_s3_server: S3Server, status: int) -> None:
    proxy.fail(1, Fault.SLOW_DOWN)
    with connected((proxy if status == 503 else each_s3_server).endpoint) as connection:
        connection.sendall(b"HEAD /b/k HTTP/1.1\r\nHost: h\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.endswith(b"\r\n\r\n")


def connected(endpoint: str) -> socket.socket:
    host, _, port = endpoint.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_nothing_held(proxy: FaultyS3) -> None:
    with pytest.raises(TimeoutError, match="no request was held"):
        proxy.wait_held(0.01)


def test_the_proxy_ends_with_a_request_held(each_s3_server: S3Server, bucket: str) -> None:
    ended = threading.Event()

    def put() -> None:
        with S3Client(own.endpoint, own.access_key, own.secret) as other, pytest.raises(OSError):
            other.put(f"/{bucket}/1", b"x")
        ended.set()

    with FaultyS3(each_s3_server) as own:
        own.fail(1, Fault.HOLD)
        thread = threading.Thread(target=put)
        thread.start()
        own.wait_held()
    thread.join()
    assert ended.is_set()
    with each_s3_server.client() as client:
        assert client.keys(bucket) == []
