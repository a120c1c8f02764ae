"""Each change, by the buttons of its pages, and what it did as the broker says."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from tests.browser.scene import FAILED, FAILING, HEALTHY, STOPPED
from tests.browser.shown import Visitor

from rucola.client.admin import AdminClient

NEW_TOPIC: Final = "made-here"
NEW_GROUP: Final = "made-here-too"
_QUIET: Final = "returns-europe-central"
"""A topic that nobody else writes."""


async def make_all(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    """Makes each change once, in an order in which each finds what it needs."""
    await _topic(visitor, admin, broker)
    await _group(visitor, admin, broker)
    await _reset(visitor, admin)
    await _resend(visitor, admin, broker)
    await _send(visitor, admin, broker)
    await _copy(visitor, admin, broker)
    await _consume(visitor)
    await _recall(visitor)
    await _transactions(visitor, admin, broker)
    await _delete(visitor, admin, broker)
    await visitor.open("audit", "audit-after")
    text = await visitor.text()
    for word in (NEW_TOPIC, NEW_GROUP, STOPPED, FAILING):
        visitor.expect(word in text, f"the audit log does not name {word}")


async def _show(visitor: Visitor, kind: str, **query: object) -> None:
    visitor.where = f"change {kind}"
    await visitor.page.goto(f"{visitor.address}/cluster/change/{kind}?{urlencode(query)}")


async def _fill(visitor: Visitor, **fields: str) -> None:
    for name, value in fields.items():
        await visitor.page.fill(f"form.change [name={name}]", value)
    await visitor.page.click("form.change > button")


async def _make(visitor: Visitor, name: str, confirm: str = "") -> None:
    """Presses the button of the plan that is shown, and checks the result."""
    page = visitor.page
    if await page.locator("form.confirm").count() == 0:
        visitor.expect(False, f"shows no plan: {await visitor.text()}")
        return
    if confirm:
        await page.fill("form.confirm [name=confirm]", "wrong")
        await page.click("form.confirm button")
        visitor.expect("to confirm" in await visitor.text(".alarm"), "a wrong name is accepted")
        await page.fill("form.confirm [name=confirm]", confirm)
    await page.click("form.confirm button")
    text = await visitor.text()
    visitor.expect("Result" in text and "done" in text, f"is not done: {text}")
    visitor.expect(" refused" not in text and " unknown" not in text, f"is done in part: {text}")
    await visitor.check(f"made-{name}")


async def _topic(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    await _show(visitor, "topic")
    await _fill(visitor, name=NEW_TOPIC, queues="3")
    await _make(visitor, "topic")
    config = await admin.api.topic_config(broker, NEW_TOPIC)
    visitor.expect(config.read_queue_nums == config.write_queue_nums == 3, f"made {config}")


async def _group(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    await _show(visitor, "group")
    await _fill(visitor, name=NEW_GROUP, retries="5")
    await _make(visitor, "group")
    config = await admin.api.group_config(broker, NEW_GROUP)
    visitor.expect(config.retry_max_times == 5, f"made {config}")


async def _reset(visitor: Visitor, admin: AdminClient) -> None:
    await _show(visitor, "reset-offsets", group=STOPPED, topic="orders", to="end")
    await _make(visitor, "reset-offsets")
    await _show(visitor, "reset-offsets", group=STOPPED, topic="orders", to="begin")
    await _make(visitor, "reset-offsets-begin")
    table = (await admin.consume_stats(STOPPED, "orders")).offset_table
    visitor.expect(all(one.consumer_offset == 0 for one in table.values()), f"left {table}")


async def _resend(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    """All dead letters of the group, found from its page as somebody would."""
    page = visitor.page
    visitor.where = "change resend"
    before = await _end_of(admin, broker, "payments")
    await page.goto(f"{visitor.address}/cluster/group?name={FAILING}")
    await page.click("a.button:has-text('Resend dead letters')")
    await page.select_option("form.change [name=to]", "topic")
    await page.click("form.change > button")
    await _make(visitor, "resend")
    after = await _end_of(admin, broker, "payments")
    visitor.expect(after - before == FAILED, f"sent {after - before} copies instead of {FAILED}")


async def _send(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    """A message, from the page of its topic."""
    before = await _end_of(admin, broker, _QUIET)
    visitor.where = "change send"
    await visitor.page.goto(f"{visitor.address}/cluster/topic?name={_QUIET}")
    await visitor.page.click("a.button:has-text('Send…')")
    await _fill(visitor, body='{"parcel": "größer"}', keys="parcel-1", properties='{"color": "green"}')
    await _make(visitor, "send")
    visitor.expect(await _end_of(admin, broker, _QUIET) == before + 1, "stored no message")


async def _copy(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    """An edited copy, from the page of the message; its own page shows what it is a copy of."""
    page = visitor.page
    visitor.where = "change send, a copy"
    before = await _end_of(admin, broker, _QUIET)
    await page.goto(f"{visitor.address}/cluster/messages?by=key&topic={_QUIET}&key=parcel-1")
    await page.click("tr[data-row] a")
    await page.click("a.button:has-text('Send a copy')")
    body = await page.input_value("form.change [name=body]")
    visitor.expect("größer" in body, f"the form has {body!r}")
    await _fill(visitor, body=body.replace("größer", "kleiner"), keys="parcel-2")
    await _make(visitor, "copy")
    visitor.expect(await _end_of(admin, broker, _QUIET) == before + 1, "stored no copy")
    await page.goto(f"{visitor.address}/cluster/messages?by=key&topic={_QUIET}&key=parcel-2")
    await page.click("tr[data-row] a")
    text = await visitor.text()
    visitor.expect("kleiner" in text and "COPIED_FROM" in text and "green" in text, f"stored {text}")


async def _consume(visitor: Visitor) -> None:
    await _show(visitor, "consume", topic="orders", place="broker-a:0:3", group=HEALTHY)
    await _make(visitor, "consume")
    visitor.expect("CR_SUCCESS" in await visitor.text(), "the member did not consume it")


async def _recall(visitor: Visitor) -> None:
    page = visitor.page
    visitor.where = "change recall"
    await page.goto(f"{visitor.address}/cluster/waiting?kind=timed")
    await page.click("a:has-text('Cancel…')")
    key = await page.input_value("form.change [name=key]")
    await _make(visitor, "recall")
    await page.goto(f"{visitor.address}/cluster/waiting?kind=timed")
    visitor.expect(key not in await visitor.text(), "the message still waits")


async def _transactions(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    """Two decisions; only one of the messages gets to consumers."""
    page = visitor.page
    before = await _end_of(admin, broker, "reminders")
    for button in ("Commit…", "Roll back…"):
        visitor.where = f"change transaction, {button}"
        await page.goto(f"{visitor.address}/cluster/waiting?kind=half")
        await page.click(f"a:has-text('{button}')")
        await _make(visitor, f"transaction-{button.split()[0].lower().strip('…')}", "reminders")
    visitor.expect(await _end_of(admin, broker, "reminders") == before + 1, "the decisions were not both followed")


async def _end_of(admin: AdminClient, broker: str, topic: str) -> int:
    offsets = (await admin.api.topic_stats(broker, topic)).offset_table.values()
    return sum(one.max_offset for one in offsets)


async def _delete(visitor: Visitor, admin: AdminClient, broker: str) -> None:
    await _show(visitor, "delete-topic", name=NEW_TOPIC)
    await _make(visitor, "delete-topic", NEW_TOPIC)
    await _show(visitor, "delete-group", name=NEW_GROUP)
    await _make(visitor, "delete-group", NEW_GROUP)
    visitor.expect(NEW_TOPIC not in await admin.api.all_topic_configs(broker), "the topic is still there")
    visitor.expect(NEW_GROUP not in await admin.api.all_groups(broker), "the group is still there")
