"""The guard in front of the application: foreign hosts, foreign origins, long bodies, and the headers of every
answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from rucola.console.access.headers import ANSWER_HEADERS, Origins

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_BYTES_MAX: Final = 256 * 1024
QUERY_BYTES_MAX: Final = 16 * 1024
_METHODS: Final = ("GET", "HEAD", "POST")


class Guard:
    """An ASGI application in front of another one.

    Args:
        app: gets the requests that are let through.
        origins: the names of the console.
        base_path: path in front of every address; a proxy may leave it out.
    """

    def __init__(self, app: App, origins: Origins, base_path: str) -> None:
        self._app, self._origins, self._base_path = app, origins, base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in ANSWER_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        path = scope["path"]
        if self._base_path and (path == self._base_path or path.startswith(f"{self._base_path}/")):
            scope = {**scope, "path": path[len(self._base_path) :] or "/"}
        await self._app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if not self._origins.is_host(headers.get("host", "")):
            return PlainTextResponse("This name is not the console's; see publicUrl.\n", 421)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("GET, HEAD or POST.\n", 405)
        if len(scope["query_string"]) > QUERY_BYTES_MAX:
            return PlainTextResponse("The address is too long.\n", 414)
        if scope["method"] == "POST":
            if not self._is_own_page(headers):
                return PlainTextResponse("A page of another site may not change anything here.\n", 403)
            length = headers.get("content-length", "")
            if not length.isascii() or not length.isdigit():
                return PlainTextResponse("A body needs its length.\n", 411)
            if int(length) > BODY_BYTES_MAX:
                return PlainTextResponse(f"A body has at most {BODY_BYTES_MAX} bytes.\n", 413)
        return None

    def _is_own_page(self, headers: Headers) -> bool:
        """Whether a change comes from a page of the console, or from no page at all, as from curl."""
        origin = headers.get("origin")
        if origin is not None:
            return self._origins.is_origin(origin)
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
