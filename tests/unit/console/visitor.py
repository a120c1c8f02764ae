"""A visitor of a console in the test's process: requests go to the application as they come from a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.unit.broker.administered import Administered, administered

from rucola.console import Console, ConsoleConfig


@dataclass
class Answer:
    """An answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    cookies: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def page(self) -> Page:
        return Page.of(self.text)


@dataclass
class Page(HTMLParser):
    """What a test looks at: the words of a page, its links, its forms, its elements."""

    words: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> Page:
        page = cls()
        HTMLParser.__init__(page)
        page.feed(text)
        page.close()
        return page

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        self.open.append(tag)
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag == "input" and given.get("name"):
            self.fields[given["name"] or ""] = given.get("value") or ""

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def has(self, tag: str, **attributes: str) -> bool:
        return any(
            name == tag and all(given.get(key) == value for key, value in attributes.items())
            for name, given in self.elements
        )


class Visitor:
    """Keeps cookies, as a browser does."""

    def __init__(self, console: Console, host: str = "", peer: str = "127.0.0.1") -> None:
        assert console.application is not None
        self._application = console.application
        self.host = host or console.address
        self.peer = peer
        self.cookies: dict[str, str] = {}

    async def get(self, address: str, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.ask("GET", address, headers or {}, b"")

    async def follow(self, address: str) -> Answer:
        """Gets a page, and what it redirects to."""
        answer = await self.get(address)
        while answer.status in (302, 303, 307):
            answer = await self.get(answer.headers["location"])
        return answer

    async def post(self, address: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
        """Sends a form, with the word of this session unless ``fields`` has one."""
        given = {"csrf": await self.csrf(), **fields}
        kind = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{self.host}"}
        return await self.ask("POST", address, {**kind, **(headers or {})}, urlencode(given).encode())

    async def send(self, address: str, value: object, headers: Mapping[str, str] | None = None) -> Answer:
        """Sends JSON, as scripts do."""
        body = json.dumps(value).encode()
        return await self.ask("POST", address, {"content-type": "application/json", **(headers or {})}, body)

    async def csrf(self) -> str:
        return (await self.follow("/")).page.fields.get("csrf", "")

    async def ask(self, method: str, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        parts = urlsplit(address)
        given = {"host": self.host, "content-length": str(len(body))} if method == "POST" else {"host": self.host}
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        given |= dict(headers)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": _unquoted(parts.path), "raw_path": parts.path.encode(), "query_string": parts.query.encode(),
            "root_path": "", "server": ("127.0.0.1", 80), "client": (self.peer, 50_000),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        sent: list[Any] = []
        received = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return received.pop() if received else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await self._application(scope, receive, send)
        raw = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        cookies = {}
        for name, value in raw:
            if name == "set-cookie":
                key, _, rest = value.partition("=")
                cookies[key] = rest.split(";")[0]
                if "Max-Age=0" in value:
                    self.cookies.pop(key, None)
                else:
                    self.cookies[key] = cookies[key]
        return Answer(sent[0]["status"], dict(raw), cookies, b"".join(one.get("body", b"") for one in sent[1:]))


def _unquoted(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)


@asynccontextmanager
async def console_of(namesrv: str, folder: Path, **options: Any) -> AsyncIterator[Console]:
    """A console of a cluster."""
    console = Console(ConsoleConfig(clusters=namesrv, port=0, data=str(folder / "console"), **options))
    await console.start()
    try:
        yield console
    finally:
        await console.stop()


@dataclass
class Seen:
    """A console, its visitor, and the cluster with a live consumer and producer that it shows."""

    console: Console
    visitor: Visitor
    there: Administered

    async def api(self, path: str) -> Any:
        answer = await self.visitor.get(f"/api/cluster/{path}")
        assert answer.status == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        return answer.json

    async def page(self, path: str, status: int = 200) -> Page:
        answer = await self.visitor.get(f"/cluster/{path}")
        assert answer.status == status, answer.text
        return answer.page

    async def look(self) -> None:
        """Has the console look at the cluster anew."""
        watch = self.console.watch("cluster")
        watch.poller.expect_change()
        await watch.poller.look()


@asynccontextmanager
async def seen(folder: Path, broker: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[Seen]:
    """A console that has looked at a cluster once; ``broker``: options of the broker."""
    async with (
        administered(folder / "store", **(broker or {})) as there,
        console_of(there.cluster.namesrv.address, folder, **options) as console,
    ):
        found = Seen(console, Visitor(console), there)
        await found.look()
        yield found
