"""Each page of the console: opened light, dark and narrow; and what its script does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from tests.browser.scene import FAILING, HEALTHY, STOPPED
from tests.browser.seen import SeenScene
from tests.browser.shown import Visitor

from rucola.console.changes.table import CHANGES
from rucola.console.views.table import VIEWS

_PAUSE_S: Final = 0.5
_REFRESHES: Final = 60


def addresses(broker: str, seen: SeenScene) -> Mapping[str, str]:
    """Name and address of every page, also of those that say that something is not there."""

    def at(path: str, **query: object) -> str:
        return f"{path}?{urlencode(query)}" if query else path

    message = {"broker": "broker-a", "queue": 0}
    timed = {
        "topic": "reminders",
        "broker": "broker-a",
        "key": seen.timed["unique_key"],
        "due": seen.timed["handle_ms"],
    }
    ended = {"broker": "broker-a", "offset": seen.half["offset"], "to": "commit"}
    return {
        "overview": "",
        "topics": at("topics"),
        "topics-all": at("topics", only="all", sort="-messages"),
        "topics-none": at("topics", q="no such name"),
        "topic": at("topic", name="orders"),
        "groups": at("groups", sort="-lag"),
        "group": at("group", name=HEALTHY),
        "group-behind": at("group", name=STOPPED),
        "members": at("members", name=HEALTHY, hours=1),
        "members-none": at("members", name=STOPPED, hours=1),
        "clients": at("clients"),
        "client": at("client", id=seen.client, stacks="true"),
        "brokers": at("brokers"),
        "broker": at("broker", address=broker),
        "name-servers": at("name-servers"),
        "messages": at("messages", by="time", topic="orders"),
        "messages-key": at("messages", by="key", topic="orders", key="order-7"),
        "messages-offset": at("messages", by="offset", topic="orders"),
        "message": at("message", topic="orders", offset=3, **message),
        "message-dead": at("messages", by="time", topic=f"%DLQ%{FAILING}"),
        "tail-form": at("tail"),
        "trace": at("trace", topic="orders", key=seen.traced),
        "trace-form": at("trace"),
        "waiting-delayed": at("waiting"),
        "waiting-timed": at("waiting", kind="timed"),
        "waiting-half": at("waiting", kind="half"),
        "waiting-popped": at("waiting", kind="popped"),
        "access": at("access", account="anybody", name="orders"),
        "sql-form": at("sql"),
        "store": at("store"),
        "store-item": at("store-item", kind="record", number=0),
        "store-unit": at("store-item", kind="unit", topic="orders", queue=0, number=3),
        "store-key": at("store-key", topic="orders", key="order-7"),
        "audit": at("audit"),
        "missing": at("topic", name="no-such-topic"),
        "change-reset-offsets": at("change/reset-offsets", group=STOPPED, topic="orders", to="end"),
        "change-resend": at("change/resend", group=FAILING, to="group"),
        "change-send": at("change/send", topic="orders"),
        "change-copy": at("change/send", topic="orders", source="orders", copy="broker-a:0:3"),
        "change-consume": at("change/consume", topic="orders", place="broker-a:0:3", group=HEALTHY),
        "change-recall": at("change/recall", **timed),
        "change-transaction": at("change/transaction", **ended),
        "change-topic": at("change/topic"),
        "change-delete-topic": at("change/delete-topic", name="returns-europe-central"),
        "change-group": at("change/group", name=HEALTHY),
        "change-rule": at("change/rule"),
        "change-delete-rule": at("change/delete-rule"),
        "change-user": at("change/user"),
        "change-delete-group": at("change/delete-group", name=STOPPED),
    }


def unopened(pages: Mapping[str, str]) -> list[str]:
    """Pages of the console that are not among ``pages``."""
    opened = {address.partition("?")[0] for address in pages.values()}
    there = {view.path for view in VIEWS if view.template} | {f"change/{kind}" for kind in CHANGES}
    return sorted(there - opened)


async def visit_all(visitor: Visitor, pages: Mapping[str, str]) -> None:
    """Opens every page."""
    for name, path in pages.items():
        await visitor.open(path, name, 404 if name == "missing" else 200)


async def shipped_bodies(visitor: Visitor) -> None:
    """Opens a text with characters of many scripts, and the hexdump of bytes."""
    page = visitor.page
    for key, name in (("label-1", "message-text"), ("scan-1", "message-hex")):
        visitor.where = f"{name} ({visitor.name})"
        await page.goto(f"{visitor.address}/cluster/messages?by=key&topic=shipping&key={key}")
        await page.click("tr[data-row] a")
        visitor.expect(await page.locator("pre.body").count() == 1, "shows no body")
        await visitor.check(name)


async def follows(visitor: Visitor) -> None:
    """Follows a topic until rows come by themselves, and stops the window."""
    page = visitor.page
    visitor.where = f"tail ({visitor.name})"
    await page.goto(f"{visitor.address}/cluster/tail?topic=orders")
    await _until(visitor, "tr[data-row]")
    await visitor.check("tail")
    await page.click("a.button:has-text('Pause')")
    await page.wait_for_url(re.compile(r"paused=true"))
    visitor.expect("Paused." in await visitor.text(".coverage"), "does not pause")


async def queries(visitor: Visitor) -> None:
    """Queries of the brokers and of the store, by the form; each shows its rows by itself."""
    page = visitor.page
    query = 'SELECT tags, count(*) AS messages FROM "orders" GROUP BY tags'
    for store, name in (("-1", "sql"), ("0", "sql-store")):
        visitor.where = f"{name} ({visitor.name})"
        await page.goto(f"{visitor.address}/cluster/sql")
        await page.fill("[name=query]", query)
        await page.select_option("[name=store]", store)
        await page.click("button[value=run]")
        if await _until(visitor, "main tbody tr"):
            text = await visitor.text()
            visitor.expect("new" in text and "changed" in text, f"shows {text}")
        await visitor.check(name)


async def explores(visitor: Visitor) -> None:
    """From a key over the index to the record in the log; and the check of all files."""
    page = visitor.page
    visitor.where = f"store ({visitor.name})"
    await page.goto(f"{visitor.address}/cluster/store-key?topic=orders&key=order-7")
    for name in ("slot", "entry", "record"):
        await page.click("main tbody a:has-text('→') >> nth=0")
        await visitor.check(f"store-{name}")
    visitor.expect("order-7" in await visitor.text(), "does not lead to the record")
    for job in ("verify", "shares"):
        visitor.where = f"{job} ({visitor.name})"
        await page.goto(f"{visitor.address}/cluster/store")
        await page.click(f"#{job} button[value=start]")
        await _until(visitor, f"#{job} .note" if job == "verify" else f"#{job} tbody tr")
    await visitor.check("store-done")


async def _until(visitor: Visitor, selector: str) -> bool:
    """Waits until the page shows something by itself."""
    for _ in range(_REFRESHES):
        if await visitor.page.locator(selector).count():
            return True
        await asyncio.sleep(_PAUSE_S)
    visitor.expect(False, f"does not show {selector}")
    return False


async def look_changes(visitor: Visitor) -> None:
    """Settings: Chinese, local time, dark; by the form, as a visitor does."""
    page = visitor.page
    visitor.where = "settings"
    await page.goto(f"{visitor.address}/cluster/")
    await page.click("details.menu:last-of-type > summary")
    await visitor.check("settings")
    await page.select_option("select[name=language]", "zh")
    await page.select_option("select[name=zone]", "local")
    await page.select_option("select[name=theme]", "dark")
    await page.click("details.menu:last-of-type .sheet form button")
    visitor.expect(await page.get_attribute("html", "lang") == "zh-CN", "is not in Chinese")
    visitor.expect("总览" in await visitor.text("nav"), "has no Chinese menu")
    await visitor.check("overview-chinese")
    await visitor.open("groups", "groups-chinese")
    await visitor.context.clear_cookies()


async def keys(visitor: Visitor) -> None:
    """Only the keyboard: go, search, choose a row, open it, see the keys."""
    page = visitor.page
    visitor.where = "keys"
    await page.goto(f"{visitor.address}/cluster/")
    await page.keyboard.press("g")
    await page.keyboard.press("t")
    await page.wait_for_url("**/topics")
    await page.keyboard.press("/")
    await page.keyboard.type("orders")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"q=orders"))
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("j")
    visitor.expect(await page.locator("tr.at").count() == 1, "j chooses no row")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/topic?name=orders")
    await page.keyboard.press("?")
    visitor.expect(await page.locator("dialog[open]").count() == 1, "? shows no keys")
    await visitor.check("help")
    await page.keyboard.press("Escape")
    visitor.expect(await page.locator("dialog[open]").count() == 0, "Escape leaves the keys open")
    await page.keyboard.press("Tab")
    visitor.expect(await page.evaluate("document.activeElement.className") == "skip", "the first stop is not the skip")


async def refreshes(visitor: Visitor) -> None:
    """A page shows new figures by itself, and leaves what somebody reads alone."""
    page = visitor.page
    visitor.where = "refresh"
    await page.goto(f"{visitor.address}/cluster/topics")
    await page.evaluate("window.kept = document.querySelector('#live .head')")
    for _ in range(_REFRESHES):  # wait_for_function would need unsafe-eval
        await asyncio.sleep(_PAUSE_S)
        if not await page.evaluate("document.contains(window.kept)"):
            break
    else:
        visitor.expect(False, "shows nothing new")
    visitor.expect(await page.locator("#live.stale").count() == 0, "is stale")
    await page.focus("[data-search]")
    await page.keyboard.type("ord")
    answered = await page.evaluate("isBusy(document.getElementById('live'))")
    visitor.expect(answered, "would refresh while somebody types")


async def copies(visitor: Visitor) -> None:
    """The command and the ``curl`` line are there to copy, and the line works."""
    page = visitor.page
    visitor.where = "copies"
    await page.goto(f"{visitor.address}/cluster/groups?sort=-lag")
    await page.click(".copies summary")
    lines = await page.locator(".copies code").all_inner_texts()
    visitor.expect(any(line.startswith("rucola mqadmin") for line in lines), f"no command in {lines}")
    curl = next((line for line in lines if line.startswith("curl")), "")
    address = re.search(r"http://[^'\" ]+", curl)
    answer = await page.request.get(address[0]) if address else None
    visitor.expect(answer is not None and answer.ok, f"{curl!r} does not work")


async def exports(visitor: Visitor) -> None:
    """The buttons of a search give a file, whose last line says why it ends."""
    page = visitor.page
    for form, end in (("JSONL", '"stopped":"end"'), ("CSV", "end")):
        visitor.where = f"export {form}"
        await page.goto(f"{visitor.address}/cluster/messages?by=time&topic=payments&begin=0")
        async with page.expect_download() as begun:
            await page.click(f"a.button:has-text('Export as {form}')")
        content = (await (await begun.value).path()).read_text()
        visitor.expect("payment-7" in content, f"has no payment: {content[:200]}")
        last = content.strip().splitlines()[-1]
        visitor.expect(end in last, f"ends with {last}")
