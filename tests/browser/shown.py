"""One page in the browser: opened, checked for what no page may have, and photographed."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page
from playwright.async_api import Error as BrowserError

SIZES: Final = {"wide": (1280, 800), "narrow": (390, 844)}
THEMES: Final = ("light", "dark")
_SERIOUS: Final = frozenset({"serious", "critical"})
_OVERFLOW: Final = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass
class Complaints:
    """What is wrong, by page. Empty at the end of a good run."""

    found: list[str] = field(default_factory=list)

    def add(self, where: str, what: str) -> None:
        """Notes a complaint and goes on, so that a run names all of them."""
        self.found.append(f"{where}: {what}")


@dataclass
class Visitor:
    """A browser's profile with one look: colors and width.

    Attributes:
        name: ``light``, ``dark`` or ``narrow``.
        complaints: where it notes what is wrong.
        pictures: directory of its screenshots.
    """

    name: str
    page: Page
    context: BrowserContext
    address: str
    complaints: Complaints
    pictures: Path
    where: str = ""

    @classmethod
    async def of(cls, browser: Browser, name: str, address: str, complaints: Complaints, pictures: Path) -> Visitor:
        """A visitor of the console at ``address``."""
        width, height = SIZES["narrow" if name == "narrow" else "wide"]
        context = await browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if name == "dark" else "light",
            has_touch=name == "narrow",
            locale="en-US",
        )
        page = await context.new_page()
        visitor = cls(name, page, context, address, complaints, pictures)
        page.on("console", visitor._heard)
        page.on("pageerror", lambda error: complaints.add(visitor.where, f"script failed: {error}"))
        page.on("requestfailed", lambda request: visitor._failed(request.url, request.failure or ""))
        return visitor

    async def open(self, path: str, name: str, status: int = 200) -> None:
        """Opens a page of the cluster, and checks it."""
        self.where = f"{name} ({self.name})"
        answer = await self.page.goto(f"{self.address}/cluster/{path}")
        if answer is None or answer.status != status:
            self.complaints.add(self.where, f"status {answer.status if answer else None} instead of {status}")
        await self.check(name)

    async def check(self, name: str) -> None:
        """Checks the page that is open, and photographs it."""
        self.where = f"{name} ({self.name})"
        overflow = await self.page.evaluate(_OVERFLOW)
        if overflow > 0:
            self.complaints.add(self.where, f"is {overflow} pixels wider than the screen")
        await self._check_access()
        self.pictures.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=self.pictures / f"{name}-{self.name}.png", full_page=True)

    async def _check_access(self) -> None:
        results = await Axe().run(self.page)
        for violation in results.response["violations"]:
            if violation["impact"] in _SERIOUS:
                targets = [str(node["target"]) for node in violation["nodes"][:3]]
                self.complaints.add(self.where, f"axe: {violation['id']} ({violation['help']}) at {', '.join(targets)}")

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not self._is_expected(message.text):
            self.complaints.add(self.where, f"browser says: {message.text}")

    def _failed(self, url: str, why: str) -> None:
        if "ERR_ABORTED" not in why:  # a refresh that the next page ended
            self.complaints.add(self.where, f"{url} failed: {why}")

    def _is_expected(self, text: str) -> bool:
        status = {"missing": "404", "login-wrong": "401"}.get(self.where.partition(" ")[0])
        return status is not None and f"status of {status}" in text

    async def attempt(self, part: Awaitable[None]) -> None:
        """Does a part of the run; what the browser refuses is a complaint, and the run goes on."""
        try:
            await part
        except BrowserError as error:
            self.complaints.add(self.where, f"the browser refused: {error}")

    async def text(self, selector: str = "main") -> str:
        """The text of a part of the page."""
        return await self.page.inner_text(selector)

    async def close(self) -> None:
        """Closes it."""
        await self.context.close()

    def expect(self, holds: Any, what: str) -> None:
        """Notes a complaint unless something holds."""
        if not holds:
            self.complaints.add(self.where, what)
