"""Requests to an S3 server, signed with version 4 of AWS's signatures, without a library that retries or hides them."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple, Self
from urllib.parse import quote, urlsplit

REGION = "us-east-1"
_ALGORITHM = "AWS4-HMAC-SHA256"
_TIMEOUT_S = 30.0
_UNRESERVED = "-_.~"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error, as in ``NoSuchKey``; empty where there is none."""
        return ET.fromstring(self.body).findtext("Code", "") if self.status >= 400 and self.body else ""


class S3Client:
    """One connection to a server; not for several threads.

    Args:
        endpoint: as in ``http://127.0.0.1:8333``.
    """

    def __init__(self, endpoint: str, access_key: str, secret: str) -> None:
        self._host = urlsplit(endpoint).netloc
        self._access_key, self._secret = access_key, secret
        self._connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()

    def connect(self) -> None:
        """Connects now, not with the first request."""
        self._connection.connect()

    def request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes = b"", **headers: str
    ) -> Answer:
        """Sends one request, once; ``if_none_match="*"`` becomes the header ``if-none-match``."""
        named = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        target = quote(path, safe="/" + _UNRESERVED)
        asked = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted((query or {}).items()))
        digest = hashlib.sha256(body).hexdigest()
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        named |= {"host": self._host, "x-amz-date": moment, "x-amz-content-sha256": digest}
        scope = f"{moment[:8]}/{REGION}/s3/aws4_request"
        signed = sorted(named)
        signature = sign(self._secret, scope, method, target, asked, [(name, named[name]) for name in signed])
        named["authorization"] = (
            f"{_ALGORITHM} Credential={self._access_key}/{scope}, "
            f"SignedHeaders={';'.join(signed)}, Signature={signature}"
        )
        self._connection.request(method, f"{target}?{asked}" if asked else target, body, named)
        answer = self._connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def put(self, path: str, body: bytes = b"", **headers: str) -> Answer:
        return self.request("PUT", path, None, body, **headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, None, b"", **headers)

    def keys(self, bucket: str, prefix: str = "", page: int = 1000) -> list[str]:
        """Returns all keys of a bucket that begin with ``prefix``, asking for so many at once."""
        found: list[str] = []
        query = {"list-type": "2", "prefix": prefix, "max-keys": str(page)}
        while True:
            answer = self.request("GET", f"/{bucket}", query)
            assert answer.status == 200, answer
            listing = ET.fromstring(answer.body)
            found += [key.text or "" for key in listing.iterfind("{*}Contents/{*}Key")]
            more = listing.findtext("{*}NextContinuationToken")
            if listing.findtext("{*}IsTruncated") != "true" or not more:
                return found
            query["continuation-token"] = more


def sign(secret: str, scope: str, method: str, path: str, query: str, headers: list[tuple[str, str]]) -> str:
    """Returns the signature of a request.

    Args:
        scope: day, region, service and ``aws4_request``, as they follow the access key in ``Credential``.
        path: as it is sent.
        query: as it is sent, its fields sorted by name.
        headers: the signed headers, names in lower case and sorted; ``x-amz-date`` and ``x-amz-content-sha256`` belong
            to them.
    """
    values = dict(headers)
    request = "\n".join(
        [
            method,
            path,
            query,
            *(f"{name}:{' '.join(value.split())}" for name, value in headers),
            "",
            ";".join(values),
            values["x-amz-content-sha256"],
        ]
    )
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = "\n".join([_ALGORITHM, values["x-amz-date"], scope, digest])
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _quoted(text: str) -> str:
    return quote(text, safe=_UNRESERVED)
