"""Moto's S3 as a server: the short form of ``s3_server``, which starts in a second and keeps its objects in memory.

Two things that a real server does are added. Requests are served one by one, so that a condition and the write that
depends on it are one step. Signatures are checked, so that a wrong secret is refused.
"""

from __future__ import annotations

import io
import logging
import re
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.lake.s3_client import sign

_AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), ?SignedHeaders=([^,]+), ?Signature=(\w+)")
_ERROR = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>{}</Message></Error>'

CARELESS = "/careless/"
"""Keys with this in their path are written whatever the request's condition says, as some gateways do it."""

Environ = dict[str, Any]
StartResponse = Callable[..., Any]


def make_server(directory: Path, access_key: str, secret: str) -> Any:
    """Returns the server, listening on a free port: ``port``, ``serve_forever()``. Large objects go into files in
    ``directory``.
    """
    from moto.server import create_backend_app
    from werkzeug import serving

    class Handler(serving.WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as real servers do it

    tempfile.tempdir = str(directory)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = Guarded(create_backend_app("s3"), access_key, secret)
    return serving.make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)


class Guarded:
    """Checks signatures and lets one request after the other into the application."""

    def __init__(self, application: Callable[[Environ, StartResponse], Any], access_key: str, secret: str) -> None:
        self._application = application
        self._access_key, self._secret = access_key, secret
        self._one_by_one = threading.Lock()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        body = _read(environ)
        if refused := self._refused(environ):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [_ERROR.format(*refused).encode()]
        if CARELESS in environ["PATH_INFO"]:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        with self._one_by_one:
            answer = self._application(environ, start_response)
            try:
                return list(answer)
            finally:
                answer.close()

    def _refused(self, environ: Environ) -> tuple[str, str] | None:
        """Returns code and message of the error; None if the request is signed as it should be."""
        found = _AUTHORIZATION.match(environ.get("HTTP_AUTHORIZATION", ""))
        if found is None:
            return "AccessDenied", "Access Denied"
        access_key, scope, names, signature = found.groups()
        if access_key != self._access_key:
            return "InvalidAccessKeyId", "The access key id you provided does not exist in our records."
        path, _, query = environ["REQUEST_URI"].partition("?")
        asked = "&".join(sorted(part if "=" in part else f"{part}=" for part in query.split("&") if part))
        headers = [(name, _header(environ, name)) for name in names.split(";")]
        if sign(self._secret, scope, environ["REQUEST_METHOD"], path, asked, headers) != signature:
            return "SignatureDoesNotMatch", "The request signature we calculated does not match the signature provided."
        return None


def _read(environ: Environ) -> bytes:
    if environ.get("wsgi.input_terminated"):
        return bytes(environ["wsgi.input"].read())
    return bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))


def _header(environ: Environ, name: str) -> str:
    variable = name.upper().replace("-", "_")
    return str(environ.get(variable if name in ("content-type", "content-length") else f"HTTP_{variable}", ""))
